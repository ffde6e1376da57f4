"""`orch warm`: used when it fits and said so, never when it does not, and nothing is lost or left when it dies.

Cheap imports, real processes; `tests/real/test_template.py` does it with TensorFlow.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.live import LiveRun, wait_for_file, wait_until, wait_until_gone, write_script
from tests.worker.agent_double import ROOT
from tests.worker.host.test_template import LOOK
from worker.host.forkserver.caller_state import find_cgroups
from worker.host.forkserver.warm_server import WarmProcess
from worker.host.forkserver.warm_socket import open_socket, receive

USED = "tasks are forked from the warm process of "
NOT_USED = "the warm process is not used: "
WHOSE = """
import os
stat = lambda pid: open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()
template = os.getppid()
agent = int(stat(template)[1])
tell(TASK, stat(agent)[1])  # the agent's parent
"""

Start = Callable[..., Any]


def status(orch: Any, **settings: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(orch("warm", "status", "--json", check=0, **settings).out)
    assert not found["running"] or datetime.fromisoformat(found["imported_at"]).tzinfo is not None
    return found


def warm_process(orch: Any) -> psutil.Process:
    return psutil.Process(status(orch)["pid"])


def home() -> Path:
    return Path(os.environ["XDG_RUNTIME_DIR"]) / "orch"


def address() -> Path:
    return home() / "warm"


# --- it is used --------------------------------------------------------------------------------


def test_a_run_uses_it_and_says_so(orch: Any, tmp_path: Path, start_warm: Start) -> None:
    write_script(tmp_path, WHOSE, preload=["decimal"])
    assert "has imported decimal at " in start_warm("decimal").out
    done = orch("up", "script.py", "-n", "2", check=0)
    assert done.err.count(USED) == 1
    found = status(orch)
    assert (tmp_path / "worker-0").read_text() == (tmp_path / "worker-1").read_text() == str(found["pid"])
    assert (found["running"], found["preload"], found["uses"]) == (True, ["decimal"], 1)
    assert found["pss_bytes"] > 1e6
    assert f"its output is in {home()}/warm.log" in orch("warm", "status", check=0).out
    assert home().stat().st_mode & 0o777 == 0o700
    (ready,) = (event for event in LiveRun(tmp_path).events() if event["event"] == "template_ready")
    assert ready["modules"] == ["decimal"]


ASKED_AND_NOT_TAKEN = """
import os, sys
from pathlib import Path
from orchestrator.backends import imagine
from orchestrator.backends.connection import agent_process
from orchestrator.model.settings import ClusterSpec, TaskSpec
from worker.protocol.orders import Program

log = Path("log")
spec = ClusterSpec("one", "none", Program("script", "script.py"), (TaskSpec("worker", 1),), os.getcwd(), preload=("decimal",))
agent = agent_process.start_ahead(imagine(spec), lambda host: log).hosts[0].transport.early.take().process
print(type(agent).__name__, "asyncio" in sys.modules, flush=True)
sys.stdin.readline()
os._exit(0)
"""


def test_it_is_asked_before_the_rest_of_orch_is_imported_and_an_agent_that_nobody_takes_ends(
    orch: Any, tmp_path: Path, start_warm: Start
) -> None:
    write_script(tmp_path, "", preload=["decimal"])
    start_warm("decimal")
    command = [sys.executable, "-c", ASKED_AND_NOT_TAKEN]
    with subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "WarmAgent False\n"
        wait_until(lambda: len(warm_process(orch).children()) == 1, "agent")
        process.communicate("\n")
    wait_until(lambda: not warm_process(orch).children(), "end of the agent")
    assert (tmp_path / "log").read_text() == ""


def test_a_command_that_starts_no_run_here_leaves_nothing_of_the_agent_that_it_asked_for(
    orch: Any, tmp_path: Path, start_warm: Start
) -> None:
    write_script(tmp_path, "", preload=["decimal"])
    start_warm("decimal")
    process = warm_process(orch)
    before = process.num_fds()
    for words, code in (
        (["--help"], 0),
        (["--workers", "none"], 2),
        (["script.py", "--dry-run"], 0),
        *([(["-H", "there.invalid", "script.py"], 125)] if shutil.which("ssh") else []),
    ):
        orch("up", *words, check=code)
    command = orch.start("up", "--set", "preload=[]", "--no-python", "/bin/sh", "-n", "1", "--", "-c", "echo >up; exec sleep 60")
    wait_for_file(tmp_path / "up")
    wait_until(lambda: not process.children(), "end of the agents")
    command.signal(signal.SIGTERM)
    command.wait(check=143)
    assert process.num_fds() == before
    assert (home() / "warm.log").read_text() == ""


def test_two_runs_at_once_share_it_and_its_death_costs_them_nothing(orch: Any, tmp_path: Path, start_warm: Start) -> None:
    start_warm("decimal")
    running = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write_script(tmp_path / name, "ready(); wait_for('../go'); sys.exit(3)", preload=["decimal"])
        running.append(orch.start("up", "script.py", "-n", "2", cwd=tmp_path / name))
    for name in ("one", "two"):
        wait_for_file(tmp_path / name / "worker-0.ready")
        wait_for_file(tmp_path / name / "worker-1.ready")
    process = warm_process(orch)
    assert len(process.children()) == 2
    process.kill()
    wait_until_gone([process])
    (tmp_path / "go").touch()
    for run in running:
        done = run.wait(check=3)
        assert USED in done.err
        assert "which takes longer" not in done.err
    assert f"{NOT_USED}its process has died" in orch("up", "script.py", "-n", "1", cwd=tmp_path / "one", check=3).err
    assert status(orch) == {"running": False}
    orch("warm", "stop", check=0)
    assert "warm" not in orch("up", "script.py", "-n", "1", cwd=tmp_path / "one", check=3).err


def test_tasks_find_what_an_exec_would_have_given(orch: Any, tmp_path: Path) -> None:
    """The process was started elsewhere, under other limits, another mask, other signals and another environment."""
    start = f"exec {sys.executable} -m orchestrator warm start --preload=decimal"
    (tmp_path / "elsewhere").mkdir()
    subprocess.run(
        ["sh", "-c", f"umask 027; ulimit -S -n 300; ulimit -S -s 4096; trap '' USR1 TERM; {start}"],
        cwd=tmp_path / "elsewhere",
        env={**os.environ, "OF_THE_WARM": "1", "ORCH_TASK": "worker-9", "ORCH_HOME": "/nowhere"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        check=True,
        start_new_session=True,
    )
    write_script(tmp_path, LOOK, preload=["decimal"])
    found = []
    try:
        for preload in (["decimal"], []):
            (tmp_path / "orch.yaml").write_text(f"preload: {json.dumps(preload)}\nname: looks\n")
            done = orch("up", "script.py", "-n", "1", "--strategy", "none", check=0, env={"OF_THE_RUN": "1"})
            assert (USED in done.err) == bool(preload)
            text = LiveRun(tmp_path).log("worker-0").decode().replace(LiveRun(tmp_path).path.name, "RUN")
            found.append(json.loads(re.sub(r"pipe:\[\d+\]", "pipe", text)))
            assert LiveRun(tmp_path).log("worker-0", "stderr") == b""
    finally:
        orch("warm", "stop", check=0)
    forked, executed = found
    for one in found:
        one["environ"].pop("MASTER_PORT", None)
        one["environ of children"] = sorted(line for line in one["environ of children"] if not line.startswith("MASTER_PORT="))
    for name, value in executed.items():
        assert forked[name] == value, name
    assert executed["environ"]["OF_THE_RUN"] == "1"


QUIET = {"defaults": {"log_level": "warning"}, "preload": ["decimal"]}


@pytest.mark.parametrize(
    ("document", "words", "where"),
    [
        (QUIET, (), "here"),
        (QUIET, ("-f", "specs/other.yaml"), "specs"),
        ({"preload": ["decimal"]}, ("--log-placement",), "here"),
        (
            {},
            ("--set", "preload=[decimal]", "--set", "workdir=specs", "--env", "TF_ENABLE_ONEDNN_OPTS=0", "--env", "PYTHONPATH=own"),
            "here",
        ),
    ],
    ids=["file", "another file", "placement", "variables"],
)
def test_a_spec_has_one_of_its_own_imports(orch: Any, tmp_path: Path, document: dict[str, Any], words: tuple[str, ...], where: str) -> None:
    """What decides on the imports is given to `orch warm` as to `orch up`."""
    for name in ("", "specs"):
        (tmp_path / name / "own").mkdir(parents=True)
        write_script(tmp_path / name, "tell(TASK, os.environ.get('TF_CPP_MIN_LOG_LEVEL', ''))")
    (tmp_path / ("orch.yaml" if where == "here" else "specs/other.yaml")).write_text(json.dumps(document))
    try:
        assert "has imported decimal at " in orch("warm", "start", *words, check=0).out
        assert USED in orch("up", "script.py", *words, check=0).err
    finally:
        orch("warm", "stop", check=0)


INHERITED = """
import json
import os

found = {}
for fd in os.listdir("/proc/self/fd"):
    if int(fd) > 2 and os.path.exists(f"/proc/self/fd/{fd}"):
        found[fd] = os.readlink(f"/proc/self/fd/{fd}")
print(json.dumps([fd for fd, path in found.items() if path.startswith("socket:")]))
"""


def test_an_executed_task_inherits_no_socket(orch: Any, tmp_path: Path, start_warm: Start) -> None:
    """A process that a task leaves behind would otherwise keep the channel of a dead agent open."""
    write_script(tmp_path, INHERITED, preload=["decimal"])
    start_warm("decimal")
    assert USED in orch("up", "--no-python", sys.executable, "-n", "1", "--", "script.py", check=0).err
    assert LiveRun(tmp_path).log("worker-0") == b"[]\n"


def test_an_environment_of_any_size_uses_it_and_leaves_nothing_open_in_it(orch: Any, tmp_path: Path, start_warm: Start) -> None:
    write_script(tmp_path, "tell(TASK, str(sum(len(os.environ[name]) for name in os.environ if 'LARGE' in name)))", preload=["decimal"])
    start_warm("decimal")
    before = warm_process(orch).num_fds()
    large = {f"LARGE_{number}": "x" * 100_000 for number in range(8)}
    assert USED in orch("up", "script.py", "-n", "1", env=large, check=0).err
    assert (tmp_path / "worker-0").read_text() == "800000"
    with open_socket() as visitor:
        visitor.connect(str(address()))
        socket.send_fds(visitor, [b"no json"], [0, 1])
        assert visitor.recv(1024) == b""
    assert warm_process(orch).num_fds() == before


BROKEN = """
import sys

def fail(*arguments):
    raise OSError("there is none")

sys.modules["_orch_worker.host.{module}"].{name} = fail
"""


@pytest.mark.parametrize(
    ("module", "name", "code"),
    [("forkserver.warm_server", "redirect", 0), ("forkserver.template_server", "reseed", 1)],
    ids=["template", "task"],
)
def test_what_fails_in_a_fork_of_it_is_shown(
    orch: Any, tmp_path: Path, packages: Path, start_warm: Start, module: str, name: str, code: int
) -> None:
    (packages / "faulty.py").write_text(BROKEN.format(module=module, name=name))
    write_script(tmp_path, "", preload=["faulty"])
    start_warm("faulty")
    done = orch("up", "script.py", "-n", "1", check=code)
    if code == 0:
        assert "importing faulty failed: OSError: there is none" in done.err
    else:
        assert b"OSError: there is none" in LiveRun(tmp_path).log("worker-0", "stderr")


@pytest.mark.parametrize(
    ("python", "words"),
    [
        ("~/venv/python", ("--python", "~/venv/python")),
        ("specs/venv/python", ("--python", "venv/python", "--set", "workdir=specs")),
        ("venv/python", ("--set", 'backend.hosts={"localhost": {"python": "venv/python"}}')),
    ],
    ids=["home", "working directory", "of the host"],
)
def test_it_is_started_by_the_interpreter_that_orch_up_takes(orch: Any, tmp_path: Path, python: str, words: tuple[str, ...]) -> None:
    write_script(tmp_path, "", preload=["decimal"])
    path = tmp_path / python.removeprefix("~/")
    path.parent.mkdir(parents=True)
    path.symlink_to(sys.executable)
    env = {"HOME": str(tmp_path)}
    try:
        assert f"with {path}, " in orch("warm", "start", *words, env=env, check=0).err
        assert USED in orch("up", "script.py", *words, env=env, check=0).err
    finally:
        orch("warm", "stop", check=0)


# --- it is not used ----------------------------------------------------------------------------


def test_a_run_says_what_keeps_its_spec_from_it(orch: Any, tmp_path: Path, start_warm: Start) -> None:
    start_warm("decimal")
    write_script(tmp_path, "", preload=["decimal"])
    (tmp_path / "orch.yaml").write_text(json.dumps(QUIET))
    why = "TF_CPP_MIN_LOG_LEVEL differs from what decimal has been imported under"
    assert f"{NOT_USED}{why}" in orch("up", "script.py", "-n", "1", check=0).err
    refused = orch("warm", "start", "--set", "preload=[]", check=2).err
    assert "orch.yaml says preload: [], so nothing is imported ahead" in refused
    assert "defaults.log_level: " in orch("warm", "start", "--set", "defaults.log_level=loud", check=2).err


def test_a_secret_of_the_spec_is_not_shown_to_others(orch: Any, tmp_path: Path, packages: Path) -> None:
    """Anybody may read the arguments of a process."""
    text = f"import time\nopen({str(tmp_path / 'importing')!r}, 'w').close()\nwhile True: time.sleep(0.1)"
    (packages / "stuck.py").write_text(text)
    (tmp_path / "orch.yaml").write_text("defaults: {env: {TOKEN: s3cret}}")
    running = orch.start("warm", "start", "--preload", "stuck")
    wait_for_file(tmp_path / "importing")
    seen = [" ".join(process.cmdline()) for process in psutil.Process(running.pid).children(recursive=True)]
    assert len(seen) == 1
    assert "s3cret" not in "".join(seen)
    running.signal(signal.SIGINT)
    running.wait(check=130)
    orch("warm", "stop", check=0)


def test_a_run_finds_it_where_the_shell_says_also_if_the_spec_says_otherwise(orch: Any, tmp_path: Path, start_warm: Start) -> None:
    elsewhere = ("--env", f"XDG_RUNTIME_DIR={tmp_path}")
    start_warm("decimal", *elsewhere)
    write_script(tmp_path, "tell(TASK, os.environ['XDG_RUNTIME_DIR'])", preload=["decimal"])
    assert USED in orch("up", "script.py", "-n", "1", *elsewhere, check=0).err
    assert (tmp_path / "worker-0").read_text() == str(tmp_path)


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "site-packages"
    directory.mkdir()
    (directory / "part.py").write_text("value = 1\n")
    monkeypatch.setenv("PYTHONPATH", f"{os.environ['PYTHONPATH']}:{directory}")
    return directory


def _change_the_zone(directory: Path, env: dict[str, str]) -> None:
    env["TZ"] = "JST-9"  # needs no data of time zones


def _change_the_path(directory: Path, env: dict[str, str]) -> None:
    env["PYTHONPATH"] = f"{os.environ['PYTHONPATH']}:{directory.parent}"


def _change_a_module(directory: Path, env: dict[str, str]) -> None:
    (directory / "part.py").write_text("value = 22\n")


def _install_a_package(directory: Path, env: dict[str, str]) -> None:
    (directory / "other.py").touch()


CHANGES = {
    "environment": (_change_the_zone, "TZ differs from what part has been imported under", False),
    "path": (_change_the_path, "PYTHONPATH differs from what part has been imported under", False),
    "module": (_change_a_module, "site-packages/part.py has changed since it was imported; it has ended", True),
    "package": (_install_a_package, "site-packages has changed since it was imported; it has ended", True),
}


@pytest.mark.parametrize(("change", "why", "ends"), CHANGES.values(), ids=CHANGES)
def test_a_stale_one_is_not_used(
    orch: Any, tmp_path: Path, start_warm: Start, packages: Path, change: Callable[..., None], why: str, ends: bool
) -> None:
    write_script(tmp_path, "import part; tell(TASK, f'{part.value} {time.tzname[0]}')", preload=["part"])
    start_warm("part")
    env: dict[str, str] = {}
    change(packages, env)
    done = orch("up", "script.py", "-n", "2", check=0, env=env)
    assert done.err.count(NOT_USED) == 1
    assert why in done.err
    assert USED not in done.err
    expected = f"{(22 if change is _change_a_module else 1)} {'JST' if change is _change_the_zone else time.tzname[0]}"
    assert [(tmp_path / name).read_text() for name in ("worker-0", "worker-1")] == [expected] * 2
    assert status(orch)["running"] == (not ends)
    # A new start puts one in its place that fits.
    again = start_warm("part", env=env)
    assert ("replaced a warm process that no longer fits" in again.out) == (not ends)
    assert USED in orch("up", "script.py", "-n", "2", check=0, env=env).err
    assert "it was running already" in start_warm("part", env=env).out


def test_a_caller_that_has_imported_the_same_itself_uses_it(orch: Any, tmp_path: Path, start_warm: Start, packages: Path) -> None:
    """TensorFlow's import sets variables of MKL's and of TPUs, so a test that imports TensorFlow has variables that the shell had not."""
    (packages / "part.py").write_text("import os; os.environ['SET_BY_PART'] = 'one'")
    write_script(tmp_path, "", preload=["part"])
    start_warm("part")
    assert USED in orch("up", "script.py", "-n", "1", check=0, env={"SET_BY_PART": "one"}).err
    why = "SET_BY_PART differs from what part has been imported under"
    assert f"{NOT_USED}{why}" in orch("up", "script.py", "-n", "1", check=0, env={"SET_BY_PART": "another"}).err


def test_another_interpreter_or_preload_does_not_use_it(orch: Any, tmp_path: Path, start_warm: Start) -> None:
    write_script(tmp_path, "", preload=["decimal"])
    start_warm("decimal")
    other = tmp_path / "bin" / "python"
    other.parent.mkdir()
    other.symlink_to(sys.executable)
    why = "the interpreter differs from what decimal has been imported under"
    both = f"(the run takes {other}, and the warm process {sys.executable})"
    assert f"{NOT_USED}{why} {both}\n" in orch("up", "script.py", "-n", "1", "--python", str(other), check=0).err
    assert f"{NOT_USED}preload differs" in orch("up", "script.py", "-n", "1", "--set", "preload=[json]", check=0).err


@pytest.mark.parametrize("words", [("script.py", "--set", "preload=[]"), ("script.py",), ("--no-python", "true")])
def test_a_run_that_could_not_have_used_it_is_told_nothing(orch: Any, tmp_path: Path, start_warm: Start, words: tuple[str, ...]) -> None:
    """The imports that this process keeps differ from those of any of these runs, which import nothing ahead."""
    write_script(tmp_path, "")
    (tmp_path / "orch.yaml").unlink()  # so that the modules of a spec that names none would be imported, if the program had a use for them
    start_warm("decimal")
    assert "warm" not in orch("up", "-n", "1", *words, check=0).err


def test_another_name_of_the_same_interpreter_uses_it(orch: Any, tmp_path: Path) -> None:
    """`orch` has the name python3 in its first line, and people call python."""
    write_script(tmp_path, "", preload=["decimal"])
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").symlink_to(sys.executable)
    (venv / "bin" / "python3").symlink_to("python")
    try:
        orch("warm", "start", "--python", str(venv / "bin" / "python3"), check=0)
        assert USED in orch("up", "script.py", "-n", "1", "--python", str(venv / "bin" / "python"), check=0).err
        again = orch("warm", "start", "--python", str(venv / "bin" / "python"), check=0)
        assert "it was running already" in again.out
    finally:
        orch("warm", "stop", check=0)


def test_another_orch_does_not_use_it(orch: Any, tmp_path: Path) -> None:
    write_script(tmp_path, "", preload=["decimal"])
    shutil.copytree(ROOT / "worker", tmp_path / "older" / "worker")
    shutil.copytree(ROOT / "orchestrator", tmp_path / "older" / "orchestrator")
    older = [sys.executable, "-m", "orchestrator", "warm", "start", "--preload", "decimal"]
    subprocess.run(older, check=True, capture_output=True, cwd=tmp_path / "older")
    try:
        assert f"{NOT_USED}orch differs" in orch("up", "script.py", "-n", "1", check=0).err
    finally:
        assert "was ended" in orch("warm", "stop", check=0).out


def test_one_that_is_stuck_is_not_waited_for(orch: Any, tmp_path: Path, start_warm: Start) -> None:
    write_script(tmp_path, "print('begun', flush=True)", preload=["decimal"])
    start_warm("decimal")
    process = warm_process(orch)
    process.suspend()
    done = orch("up", "script.py", "-n", "2", check=0, env={"ORCH_TIME_SCALE": "0.25"})
    assert done.err.count(f"{NOT_USED}it has not answered for 1 s; orch warm stop ends it") == 1
    # What it has been asked meanwhile does no harm when it goes on.
    process.resume()
    assert status(orch)["running"]
    wait_until(lambda: not process.children(), "end of what it has forked for nobody")
    assert LiveRun(tmp_path).log("worker-0") == b"begun\n"
    process.suspend()
    asked = [orch.start("warm", what) for what in ("status", "start")]
    for each in asked:
        complaint = f"error: warm: the warm process {process.pid} does not answer; orch warm stop ends it\n"
        assert each.wait(check=125).err.endswith(complaint)
    assert "was killed: it did not end by itself" in orch("warm", "stop", check=0).out
    wait_until_gone([process])
    assert not address().exists()


def test_a_directory_that_others_may_enter_is_not_trusted(orch: Any, tmp_path: Path, start_warm: Start) -> None:
    write_script(tmp_path, "", preload=["decimal"])
    start_warm("decimal")
    home().chmod(0o755)
    complaint = f"{home()} is not a directory of yours that is closed to others (0700); remove it, or set XDG_RUNTIME_DIR"
    told = orch("up", "script.py", "-n", "1", check=0).err
    assert f"{NOT_USED}{complaint}" in told
    assert "orch warm stop" not in told
    assert f"\nerror: warm: {complaint}" in orch("warm", "start", "--preload=decimal", check=125).err
    home().chmod(0o700)


@pytest.mark.parametrize("way", ["dies", "hangs"])
def test_a_run_that_gets_no_answer_goes_on_and_the_channel_of_that_try_is_closed(orch: Any, tmp_path: Path, way: str) -> None:
    """Whatever becomes of the request later: no second agent can serve the run."""
    write_script(tmp_path, "print('begun', flush=True)", preload=["decimal"])
    home().mkdir(mode=0o700, exist_ok=True)
    try:
        with open_socket() as listener:
            listener.bind(str(address()))
            listener.listen()
            running = orch.start("up", "script.py", "-n", "1", env={"ORCH_TIME_SCALE": "0.25"})
            connection, _ = listener.accept()
            with connection:
                assert receive(connection) == ({"ask": "agent"}, [])
                _, fds = receive(connection)
                channel = socket.socket(fileno=fds[0])
                for fd in fds[1:]:
                    os.close(fd)
                if way == "dies":
                    connection.close()
                done = running.wait(check=0)
            with channel:
                assert channel.recv(1) == b""
        assert f"{NOT_USED}{'it has died' if way == 'dies' else 'it has not answered for 1 s'}" in done.err
        assert LiveRun(tmp_path).log("worker-0") == b"begun\n"
    finally:
        shutil.rmtree(home())


def test_a_kill_at_any_moment_costs_a_run_nothing(orch: Any, tmp_path: Path) -> None:
    write_script(tmp_path, "print('begun', flush=True)", preload=["decimal"])
    for delay_s in (0.1, 0.3):
        orch("warm", "start", "--preload", "decimal", check=0)
        process = warm_process(orch)
        running = orch.start("up", "script.py", "-n", "2")
        time.sleep(delay_s)
        process.kill()
        done = running.wait(check=0)
        assert [LiveRun(tmp_path).log(name) for name in ("worker-0", "worker-1")] == [b"begun\n"] * 2, done.err
        assert "which takes longer" not in done.err
    orch("warm", "stop", check=0)


@pytest.mark.parametrize(("words", "what"), [("nice -n 5", "the priority (nice) differs"), ("unshare --uts", "the namespaces differ")])
def test_a_caller_in_other_surroundings_does_not_use_it(orch: Any, tmp_path: Path, start_warm: Start, words: str, what: str) -> None:
    prefix = words.split()
    if subprocess.run([*prefix, "true"], capture_output=True).returncode:
        pytest.skip(f"{prefix[0]} is not allowed here")
    write_script(tmp_path, "print(os.nice(0))", preload=["decimal"])
    start_warm("decimal")
    command = [*prefix, sys.executable, "-m", "orchestrator", "up", "script.py", "-n", "1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"{NOT_USED}{what} from its own" in done.stderr
    assert int(LiveRun(tmp_path).log("worker-0")) == os.nice(0) + (5 if prefix[0] == "nice" else 0)


def test_a_scope_of_systemd_counts_only_if_it_limits_something(tmp_path: Path) -> None:
    path = tmp_path / "user.slice/app.slice/vte-1.scope"
    path.mkdir(parents=True)
    (path / "memory.max").write_text("max\n")
    (path / "cpu.max").write_text("max 100000\n")
    (path / "cpuset.cpus").write_text("\n")
    text = "4:memory:/job.scope\n0::/user.slice/app.slice/vte-1.scope\n"
    assert find_cgroups(text, str(tmp_path)) == ["4:memory:/job.scope", "0::/user.slice/app.slice"]
    (path / "memory.max").write_text("4294967296\n")
    assert find_cgroups(text, str(tmp_path)) == text.splitlines()


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user as well")
LISTEN = """
import os, socket, sys
server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
server.bind(sys.argv[1])
os.seteuid(65534)
server.listen()
print("listening", flush=True)
sys.stdin.read()
"""
VISIT = """
import os, socket, sys
os.seteuid(65534)
visitor = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
visitor.connect(sys.argv[1])
try:
    visitor.send(b'{"ask": "end"}')
    assert visitor.recv(1000) == b"", "an answer"
except (BrokenPipeError, ConnectionResetError):
    pass
"""


@as_root
def test_a_directory_or_a_process_of_another_user_is_refused(orch: Any, tmp_path: Path) -> None:
    write_script(tmp_path, "", preload=["decimal"])
    home().mkdir(mode=0o700, exist_ok=True)
    try:
        command = [sys.executable, "-c", LISTEN, str(address())]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as listener:
            assert listener.stdout is not None
            assert listener.stdout.readline() == b"listening\n"
            complaint = f"the process at {home()} belongs to another user"
            assert f"{NOT_USED}{complaint}" in orch("up", "script.py", "-n", "1", check=0).err
            assert complaint in orch("warm", "status", check=125).err
            os.chown(home(), 65534, 65534)
            complaint = f"{home()} is not a directory of yours"
            assert f"{NOT_USED}{complaint}" in orch("up", "script.py", "-n", "1", check=0).err
            assert complaint in orch("warm", "start", "--preload=decimal", check=125).err
            listener.communicate()
    finally:
        shutil.rmtree(home())


@as_root
def test_another_user_gets_no_answer(orch: Any) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as runtime:
        env = {"XDG_RUNTIME_DIR": runtime}
        orch("warm", "start", "--preload", "decimal", env=env, check=0)
        place = Path(runtime) / "orch"
        try:
            for path, mode in ((place.parent, 0o755), (place, 0o755), (place / "warm", 0o777)):
                path.chmod(mode)
            subprocess.run([sys.executable, "-c", VISIT, str(place / "warm")], check=True)
            place.chmod(0o700)
            assert status(orch, env=env)["running"]
        finally:
            place.chmod(0o700)
            orch("warm", "stop", env=env, check=0)


# --- start and end -----------------------------------------------------------------------------


@pytest.mark.slow
def test_it_ends_when_nobody_uses_it(orch: Any, tmp_path: Path, start_warm: Start) -> None:
    write_script(tmp_path, "ready(); wait_for('go')", preload=["decimal"])
    start_warm("decimal", "--idle-timeout", "8")
    running = orch.start("up", "script.py", "-n", "1")
    wait_for_file(tmp_path / "worker-0.ready")
    process = warm_process(orch)
    wait_until_gone([process])
    assert not address().exists()
    (tmp_path / "go").touch()  # the run goes on
    running.wait(check=0)


FAULTY = {
    "missing": ("import there_is_none", "importing faulty failed: ModuleNotFoundError: No module named 'there_is_none'"),
    "ends": ("import os; os._exit(3)", "importing faulty ended the process"),
    "thread": (
        "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()",
        "faulty cannot be kept for forking: the import of faulty has started a thread",
    ),
    "file": ("file = open(__file__)", "an import has left "),
}


@pytest.mark.parametrize(("text", "why"), FAULTY.values(), ids=FAULTY)
def test_what_cannot_be_kept_is_refused_at_the_start(orch: Any, packages: Path, text: str, why: str) -> None:
    (packages / "faulty.py").write_text(text)
    done = orch("warm", "start", "--preload", "faulty", check=125)
    assert done.err.startswith("orch: importing faulty with ")
    assert "\nerror: warm: " in done.err
    assert why in done.err
    assert "Traceback" not in done.err
    assert not status(orch)["running"]
    assert orch("warm", "stop", check=0).out == "no warm process was running\n"


STUCK = """
import os, time
def wait():
    if os.fork() == 0:  # and it holds whatever we hold
        time.sleep(1000)
    open({path!r}, 'w').close()
    while True: time.sleep(1000)
wait()
"""


def test_an_import_that_takes_too_long_is_ended_and_said(orch: Any, tmp_path: Path, packages: Path, start_warm: Start) -> None:
    (packages / "stuck.py").write_text(STUCK.format(path=str(tmp_path / "importing")))
    done = orch("warm", "start", "--preload", "stuck", "--import-timeout", "8", check=125)
    announced, complaint = done.err.splitlines()
    assert announced == f"orch: importing stuck with {sys.executable}, if that is not done yet (at most 8 s)"
    assert complaint == (
        f"error: warm: importing stuck has not ended after 8 s (--import-timeout; its output is in {home()}/warm.log); "
        "orch doctor shows where an import of TensorFlow hangs"
    )
    assert not address().exists()
    (packages / "stuck.py").write_text("")
    start_warm("stuck")  # what the import had forked is gone, too, and its lock


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_start_that_is_given_up_leaves_nothing(orch: Any, tmp_path: Path, packages: Path, number: int) -> None:
    (packages / "stuck.py").write_text(f"import time\nopen({str(tmp_path / 'importing')!r}, 'w').close()\nwhile True: time.sleep(1000)")
    running = orch.start("warm", "start", "--preload", "stuck")
    wait_for_file(tmp_path / "importing")
    assert "another one is being started" in orch("warm", "start", "--preload", "stuck", check=125).err
    running.signal(number)
    running.wait(check=130 if number == signal.SIGINT else -number)
    assert not status(orch)["running"]
    orch("warm", "stop", check=0)
    assert not address().exists()


def test_the_commands_say_what_is_wrong_with_a_command_line(orch: Any, tmp_path: Path) -> None:
    assert "'nan' is not a time; write seconds, or a time with units" in orch("warm", "start", "--idle-timeout", "nan", check=2).err
    refused = orch("warm", "start", "--python", "/bin/cat", check=125).err
    assert "importing tensorflow ended the process; is '/bin/cat' the right Python? (--python): " in refused
    assert "cat: tensorflow: No " in refused
    assert "set --python" in orch("warm", "start", "--python", "/there/is/none", check=2).err
    assert "no warm process is running" in orch("warm", "status", check=0).out
    assert status(orch)["running"] is False


def test_a_stop_leaves_the_socket_of_one_that_is_started_meanwhile(orch: Any) -> None:
    home().mkdir(mode=0o700, exist_ok=True)
    try:
        with open_socket() as listener, (home() / "warm.log").open("w") as log:
            listener.bind(str(address()))
            fcntl.flock(log, fcntl.LOCK_EX)
            orch("warm", "stop", check=0)
            assert address().exists()
        orch("warm", "stop", check=0)
        assert not address().exists()
    finally:
        shutil.rmtree(home())


def test_it_waits_when_it_cannot_accept_a_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []

    class Server(socket.socket):
        def accept(self) -> Any:
            tries.append(1)
            raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(signal, "signal", lambda *_: None)
    warm = WarmProcess.__new__(WarmProcess)
    warm._is_over, warm._used_at, warm._idle_s = False, time.monotonic(), 0.5
    with Server(socket.AF_UNIX) as warm._server:
        monkeypatch.chdir(tmp_path)  # a socket's path must be short
        assert warm.serve(".", lambda: None) is None
    assert 1 <= len(tries) <= 10


def test_no_signal_of_a_terminal_ends_it(orch: Any, start_warm: Start) -> None:
    start_warm("decimal")
    process = warm_process(orch)
    for number in (signal.SIGINT, signal.SIGHUP):
        process.send_signal(number)
    assert status(orch)["pid"] == process.pid


COMPARE = b'{"ask": "compare"}'
_TOO_DEEP = "RecursionError" if sys.version_info < (3, 14) else "JSONDecodeError"  # 3.14 counts the bytes of the stack
MESSAGES = [
    *((b"{}", "KeyError: 'ask'"), (b"[]", "TypeError"), (b"no json", "JSONDecodeError"), (b"[" * 60_000, _TOO_DEEP)),
    (COMPARE, "IndexError"),
]


@pytest.mark.parametrize(("message", "error"), MESSAGES)
def test_what_it_cannot_answer_stands_in_its_log_and_costs_nothing(orch: Any, start_warm: Start, message: bytes, error: str) -> None:
    """A mistake of orch's own, or another orch's words."""
    start_warm("decimal")
    with open_socket() as visitor:
        visitor.connect(str(address()))
        visitor.send(message)
        assert visitor.recv(1024) == b""
    assert error in (home() / "warm.log").read_text()
    assert status(orch)["running"]


@pytest.mark.parametrize("odd", ["pipe", "/dev/zero"])
def test_a_description_without_an_end_is_not_read(orch: Any, start_warm: Start, odd: str) -> None:
    start_warm("decimal")
    fds = [os.open(odd, os.O_RDONLY)] if odd != "pipe" else list(os.pipe())
    with open_socket() as visitor:
        visitor.connect(str(address()))
        socket.send_fds(visitor, [COMPARE], fds[:1])
        assert visitor.recv(1024) == b""
    for fd in fds:
        os.close(fd)
    assert "the description is no file in memory" in (home() / "warm.log").read_text()
    assert status(orch)["running"]
