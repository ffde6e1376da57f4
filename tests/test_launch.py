"""`orchestrator.launch`: runs as a Python program starts, watches and ends them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

import orchestrator
from orchestrator import ClusterSpec, OrchError, Run, RunFailed, SpecError, UsageError
from orchestrator.api import FLAGS, read_spec
from orchestrator.cli.script_command import OPTIONS
from orchestrator.handle import Line
from tests.conftest import Orch
from tests.live import PATIENCE_S, PRELUDE, controller_of, is_alive, wait_for_file, wait_until, wait_until_gone, wait_until_ready

QUICK: dict[str, Any] = {"preload": [], "grace": 20}
"""Each task is a fresh interpreter: nothing here is about imports."""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        (tmp_path / "program.py").write_text(PRELUDE + text)
        return "program.py"

    return write


@pytest.fixture
def waiting(program: Callable[[str], str]) -> Iterator[Run]:
    """Two tasks that wait for the file `go`, and then end well."""
    with orchestrator.launch(program("print('up', TASK, flush=True)\nready()\nwait_for('go')\n"), workers=2, **QUICK) as run:
        wait_until_ready(Path.cwd(), "worker-0", "worker-1")
        wait_until(lambda: [task.pid for task in run.tasks.values() if task.pid] and len(run.tasks) == 2, "tasks")
        yield run


def processes_of(run: Run) -> list[psutil.Process]:
    return [process for pid in [controller_of(run)] for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True))]


@pytest.mark.parametrize("name", orchestrator.__all__)
def test_each_public_name_can_be_imported(name: str) -> None:
    assert getattr(orchestrator, name) is not None


# --- the result -----------------------------------------------------------------------------------


def test_a_run_is_launched_and_tells_how_it_ended(program: Callable[[str], str], tmp_path: Path) -> None:
    script = program("import worker\nprint(TASK, sys.argv[1:], os.environ['A'])\nworker.report(step=3, loss=0.5)\n")
    run = orchestrator.launch(script, workers=2, args=["--epochs", 5], env={"A": 1}, name="mine", **QUICK)
    result = run.wait()
    assert result is run.wait()
    assert (result.outcome, result.exit_code, result.cause) == ("succeeded", 0, None)
    assert result.check() is result
    assert result.reports == {"worker-0": {"step": 3, "loss": 0.5}, "worker-1": {"step": 3, "loss": 0.5}}
    assert {(task.name, task.host, task.state, task.attempt, task.exit_code) for task in result.tasks.values()} == {
        (f"worker-{index}", "local", "succeeded", 1, 0) for index in (0, 1)
    }
    assert run.logs("worker-1") == "worker-1 ['--epochs', '5'] 1\n"
    assert result.run_dir == run.run_dir == tmp_path / ".orch/runs" / run.run_id
    assert run.run_id.startswith("mine-")
    assert "worker-0" in result.durations
    assert "<td>worker-1</td><td>local</td><td>succeeded</td><td>step=3 loss=0.5</td>" in result._repr_html_()
    assert not run.is_running


def test_a_failure_is_told_with_its_traceback_and_can_be_raised(program: Callable[[str], str]) -> None:
    script = program("if TASK == 'worker-1':\n    raise FileNotFoundError('shard-2.npz')\nsleep()\n")
    result = orchestrator.launch(script, workers=2, **QUICK).wait()
    assert (result.outcome, result.exit_code) == ("failed", 1)
    cause = result.cause
    assert cause is not None
    assert cause.failure is not None
    assert (cause.task, cause.failure.type, cause.failure.message) == ("worker-1", "FileNotFoundError", "shard-2.npz")
    assert 'raise FileNotFoundError("shard-2.npz")' in cause.failure.traceback.replace("'", '"')
    with pytest.raises(RunFailed, match=r"(?s)first failure: worker-1 on local.*FileNotFoundError: shard-2.npz") as raised:
        result.check()
    assert raised.value.result is result
    assert raised.value.exit_code == 1


def test_what_is_wrong_on_the_host_is_the_result(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text("print(")
    result = orchestrator.launch("wrong.py", **QUICK).wait()
    assert (result.exit_code, result.outcome, result.tasks) == (2, "failed", {})
    with pytest.raises(RunFailed, match=r"the script 'wrong.py' is not valid Python"):
        result.check()


def test_a_missing_script_is_raised_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    with pytest.raises(UsageError, match=r"there is no script 'trian.py' in .*; did you mean 'train.py'"):
        orchestrator.launch("trian.py", **QUICK)
    assert not (tmp_path / ".orch").exists()


# --- what it may be given -------------------------------------------------------------------------


def test_mistakes_are_all_named_by_their_keywords() -> None:
    with pytest.raises(SpecError) as raised:
        orchestrator.launch("a.py", workers=0, start_timeout=-1, timeouts={"hang_s": "soon"}, stragety="none", restart=object())
    assert str(raised.value) == "launch(restart=…): holds a value of type object\nfix: give texts, numbers, lists and mappings"
    with pytest.raises(SpecError) as raised:
        orchestrator.launch("a.py", workers=0, start_timeout=-1, timeouts={"hang_s": "soon"}, stragety="none")
    wrong = ("stragety", "timeouts", "start_timeout", "workers")
    assert {problem.place for problem in raised.value.problems} == {f"launch({name}=…)" for name in wrong}
    assert "did you mean 'strategy'?" in str(raised.value)
    assert "must be at least 1, not 0" in str(raised.value)
    assert not Path(".orch").exists()


NOT_HERE = "belongs to backend slurm or join, and this run is local"


@pytest.mark.parametrize(
    ("program", "keywords", "said"),
    [
        ("a.py", {"chief": "yes"}, "launch(chief=…): must be a whole number, not 'yes'"),
        (5, {}, "launch: must be a text, not a value of type int"),
        ("a.py", {"nodes": 3}, f'launch(nodes=…): backend.nodes {NOT_HERE}\nfix: write backend="slurm"'),
        (None, {"script": 5}, "launch(script=…): must be a text, not a value of type int"),
        (None, {"command": ["a"]}, "launch(command=…): must be a text, not a value of type list"),
        ("a.py", {"env": {"A": None}}, "launch(env=…): A has no value\nfix: give a text"),
    ],
)
def test_a_value_of_another_type_is_a_mistake_of_the_spec(program: Any, keywords: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError) as raised:
        read_spec(program, keywords)
    assert str(raised.value) == said


def test_a_mapping_changes_only_the_keys_that_it_has() -> None:
    spec = {"script": "a.py", "tasks": {"worker": {"count": 2}}, "defaults": {"env": {"A": "1"}}}
    assert read_spec(spec, {"env": {}, "tasks": {"worker": {}}}) == read_spec(spec, {})
    assert read_spec(spec, {"env": {"B": "2"}}).env == {"A": "1", "B": "2"}
    assert read_spec("a.py", {"tasks": {"worker": {}}}).counts == {"worker": 1}


def test_a_program_is_needed_and_only_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing to run"):
        orchestrator.launch(workers=2)
    with pytest.raises(UsageError, match="given a script and module; only one"):
        orchestrator.launch("a.py", module="b")
    with pytest.raises(UsageError, match="the arguments of the script are given twice"):
        orchestrator.launch("a.py", "--epochs", 5, args=["--epochs", 5])


def test_a_spec_is_a_file_a_mapping_or_a_value(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    document = {"script": "a.py", "tasks": {"worker": {"count": 2, "env": {"A": "1"}}}, "timeouts": {"start_s": 5}, "preload": []}
    (tmp_path / "project/orch.yaml").write_text(json.dumps(document))
    keywords = {"workers": 3, "env": {"B": 2}, "timeouts": {"grace_s": 7}, "timeout": 9, "chief": True}
    from_file = read_spec(Path("project/orch.yaml"), keywords)
    from_data = read_spec({**document, "workdir": str(tmp_path / "project")}, keywords)
    assert from_file == from_data
    assert read_spec(from_file, {}) == from_file
    assert isinstance(from_file, ClusterSpec)
    assert from_file.counts == {"chief": 1, "worker": 3}
    assert (from_file.timeouts.start_s, from_file.timeouts.grace_s, from_file.timeouts.run_s) == (5, 7, 9)
    assert from_file.env == {"B": "2"}
    assert from_file.workdir == str(tmp_path / "project")
    script = read_spec("a.py", {"workdir": "project"})
    assert (script.program.target, script.workdir) == (str(tmp_path / "a.py"), str(tmp_path / "project")), "it starts where it was named"
    assert read_spec(None, {"module": "pkg.train", "strategy": "none"}).program.kind == "module"


def test_the_flags_of_the_command_line_are_keywords() -> None:
    """All but those that turn off what another one turns on."""
    names = {option.name.lstrip("-").replace("-", "_") for option in OPTIONS}
    assert {name for name in names if name not in FLAGS} == {name for name in names if name.startswith("no_")}
    given = {"workers": 2, "soft_placement": False, "gpus": "auto", "cpus": 2, "evaluator": True, "hosts": ["a:2", "b"], "backend": "ssh"}
    spec = read_spec("a.py", given)
    assert spec.counts == {"worker": 2, "evaluator": 1}
    assert spec.backend.type == "ssh"
    assert spec.backend.named_slots == {"a": 2, "b": None}
    with_keys = {"workers": 2, "devices": {"soft_placement": False, "gpus": "auto", "cpus": 2}, "evaluator": 1}
    assert read_spec("a.py", {**with_keys, "backend": {"hosts": "a:2,b"}}) == spec


def test_importing_the_package_costs_nothing() -> None:
    text = (
        "import sys, orchestrator\nprint(sorted(name for name in sys.modules if name.startswith(('orchestrator.', 'worker', 'asyncio'))))"
    )
    assert subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True).stdout == "[]\n"
    assert {"launch", "Run", "Result", "RunFailed"} <= set(dir(orchestrator))
    with pytest.raises(AttributeError, match="has no attribute 'lunch'"):
        orchestrator.lunch  # noqa: B018


def test_a_module_of_the_users_that_is_called_worker_is_named(tmp_path: Path) -> None:
    (tmp_path / "worker.py").write_text("")
    done = subprocess.run([sys.executable, "-c", "import orchestrator\norchestrator.launch"], capture_output=True, text=True, check=False)
    said = f"ImportError: orchestrator needs its package 'worker', but 'import worker' gives {tmp_path}/worker.py: give that another name"
    assert done.stderr.splitlines()[-1] == said


# --- while it runs --------------------------------------------------------------------------------


def test_tasks_logs_lines_and_events_of_a_run_that_goes_on(waiting: Run, tmp_path: Path) -> None:
    assert {task.state for task in waiting.tasks.values()} <= {"started", "up"}
    assert all(is_alive(task.pid) for task in waiting.tasks.values() if task.pid)
    wait_until(lambda: waiting.logs("worker-1") == "up worker-1\n", "output")
    lines, seen = waiting.lines("worker-0", stream="stdout"), waiting.events
    assert next(lines) == Line("worker-0", "stdout", "up worker-0")
    assert next(seen)["event"] == "run_begun"
    with pytest.raises(TimeoutError, match="is still running"):
        waiting.wait(timeout=0.05)
    assert waiting.is_running
    (tmp_path / "go").touch()
    names = [event["event"] for event in seen]
    assert names.count("task_exited") == 2
    assert list(lines) == []
    assert waiting.wait().exit_code == 0
    assert [event["event"] for event in waiting.events][1:] == names
    assert {line.text for line in waiting.lines()} == {"up worker-0", "up worker-1"}
    with pytest.raises(UsageError, match=r"has no task 'worker-7'; tasks: worker-0..1"):
        waiting.logs("worker-7")


def test_reports_are_seen_as_they_are_made(program: Callable[[str], str]) -> None:
    """Though `events.jsonl` has one every few seconds only."""
    script = program("import worker\nfor step in range(3):\n    worker.report(step=step)\n    time.sleep(0.2)\nsleep()\n")
    with orchestrator.launch(script, **QUICK) as run:
        wait_until(lambda: run.tasks and run.tasks["worker-0"].report == {"step": 2}, "last report")


def test_a_task_is_stopped_continued_and_asked_where_it_is(waiting: Run, tmp_path: Path) -> None:
    pid = waiting.tasks["worker-0"].pid
    assert pid is not None
    waiting.kill("worker-0", signal.SIGSTOP)
    wait_until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, "stopped task")
    assert waiting.stacks()["worker-0"] == "is stopped (SIGSTOP)"
    waiting.kill("worker-0", signal.SIGCONT)
    assert "in wait_for" in waiting.stacks()["worker-1"] or "program.py" in waiting.stacks()["worker-1"]
    (tmp_path / "go").touch()
    assert waiting.wait().exit_code == 0


def test_a_run_is_restarted(waiting: Run, tmp_path: Path) -> None:
    for name in ("worker-0", "worker-1"):
        (tmp_path / f"{name}.ready").unlink()
    waiting.restart()
    wait_until_ready(tmp_path, "worker-0", "worker-1")
    (tmp_path / "go").touch()
    result = waiting.wait()
    assert result.exit_code == 0
    assert {task.attempt for task in result.tasks.values()} == {2}
    assert [line.text for line in waiting.lines("worker-0")] == ["up worker-0"] * 2
    assert waiting.logs("worker-0", attempt=1) == "up worker-0\n"


@pytest.mark.parametrize("now", [False, True])
def test_a_run_is_stopped_by_asking_or_at_once(program: Callable[[str], str], tmp_path: Path, now: bool) -> None:
    handler = "ignore()" if now else "signal.signal(signal.SIGTERM, lambda *_: sys.exit(tell('tidied')))"
    run = orchestrator.launch(program(f"{handler}\nready()\nsleep()\n"), preload=[], grace=1000)
    wait_until_ready(tmp_path, "worker-0")
    result = run.stop(now=now)
    assert (result.outcome, result.exit_code) == ("cancelled", 143)
    assert (tmp_path / "tidied").exists() == (not now)
    assert run.stop() is result


def test_a_run_is_stopped_though_its_file_system_has_no_named_pipes(
    program: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mkfifo(*_: object) -> None:
        raise PermissionError("mkfifo")

    monkeypatch.setattr(os, "mkfifo", mkfifo)
    with orchestrator.launch(program("ready()\nsleep()\n"), preload=[], grace=1000) as run:
        wait_until_ready(tmp_path, "worker-0")
        with pytest.raises(OrchError, match="its directory holds no named pipe for requests"):
            run.restart()
        run.stop()
    assert (run.wait().outcome, run.wait().exit_code) == ("cancelled", 143)


def test_a_run_can_be_stopped_before_it_has_tasks(program: Callable[[str], str], tmp_path: Path) -> None:
    result = orchestrator.launch(program("ready()\nsleep()\n"), **QUICK).stop()
    assert (result.outcome, result.exit_code) == ("cancelled", 143)
    assert result.cause is not None
    assert result.cause.what == "stopped by the program that launched it"


def test_a_restart_is_refused_before_there_are_tasks(program: Callable[[str], str]) -> None:
    with orchestrator.launch(program("ready()\nsleep()\n"), **QUICK) as run, pytest.raises(UsageError, match="no tasks yet"):
        run.restart()


def test_leaving_the_context_stops_what_runs(program: Callable[[str], str], tmp_path: Path) -> None:
    with orchestrator.launch(program("ready()\nsleep()\n"), **QUICK) as run:
        processes = [*wait_until_ready(tmp_path, "worker-0").values(), *processes_of(run)]
    assert not [process for process in processes if is_alive(process)]
    assert run.wait().outcome == "cancelled"


# --- the caller -----------------------------------------------------------------------------------


def test_several_runs_at_once_from_threads_leave_signals_alone(program: Callable[[str], str]) -> None:
    script = program("print(sys.argv[1])\n")
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}

    def run(word: str) -> str:
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        launched = orchestrator.launch(script, word, **QUICK)
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == mask
        launched.wait(PATIENCE_S).check()
        return launched.logs("worker-0")

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(run, "abcd")) == ["a\n", "b\n", "c\n", "d\n"]
    assert {number: signal.getsignal(number) for number in signal.valid_signals()} == before


def test_beside_a_running_event_loop(waiting: Run, tmp_path: Path) -> None:
    async def main() -> int:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(waiting.finished(), 0.05)
        assert waiting.is_running
        (tmp_path / "go").touch()
        return (await waiting.finished()).exit_code

    assert asyncio.run(main()) == 0


def test_many_threads_may_wait_for_one_run(waiting: Run, tmp_path: Path) -> None:
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(waiting.wait())) for _ in range(4)]
    for thread in threads:
        thread.start()
    (tmp_path / "go").touch()
    for thread in threads:
        thread.join()
    assert found == [waiting.wait()] * 4


CALLER = """
import os, sys, time, orchestrator
run = orchestrator.launch("program.py", workers=2, preload=[])
while len([name for name in os.listdir() if name.endswith(".ready")]) < 2:
    time.sleep(0.01)
if "fork" in sys.argv and os.fork() == 0:
    time.sleep(1000)
with open("caller.ready", "w") as file:  # a signal in the end of a file that nothing holds is lost
    file.write(str(os.getpid()))
if "end" in sys.argv:
    sys.exit()
run.wait()
"""


@pytest.mark.parametrize("how", ["killed", "killed fork", "interrupted", "end"])
def test_a_run_ends_with_the_program_that_launched_it(program: Callable[[str], str], tmp_path: Path, how: str) -> None:
    """Killed, interrupted, or come to its end; also if a process that it has forked still holds whatever it held."""
    program("ready()\nsleep()\n")
    with subprocess.Popen([sys.executable, "-c", CALLER, *how.split()], start_new_session=True, stderr=subprocess.DEVNULL) as caller:
        wait_for_file(tmp_path / "caller.ready")
        (lock,) = tmp_path.glob(".orch/runs/*/lock")
        tasks = wait_until_ready(tmp_path, "worker-0", "worker-1")
        controller = psutil.Process(json.loads(lock.read_text())["pid"])
        if how != "end":
            caller.send_signal(signal.SIGINT if how == "interrupted" else signal.SIGKILL)
        wait_until_gone([controller, *tasks.values()])
        if "fork" in how:
            os.killpg(caller.pid, signal.SIGKILL)
    result = json.loads((lock.parent / "result.json").read_text())
    assert (result["outcome"], result["cause"]["what"]) == ("cancelled", "the program that launched it has ended")


def test_the_terminals_ctrl_c_reaches_the_caller_alone(waiting: Run, tmp_path: Path) -> None:
    assert os.getpgid(controller_of(waiting)) != os.getpgid(0)
    assert os.getsid(controller_of(waiting)) == controller_of(waiting)
    (tmp_path / "go").touch()


def test_a_handle_that_is_dropped_does_not_end_its_run(program: Callable[[str], str], tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # Python's own: the process of the controller goes on
        run_dir = orchestrator.launch(program("ready()\nwait_for('go')\n"), **QUICK).run_dir
    wait_until_ready(tmp_path, "worker-0")
    (tmp_path / "go").touch()
    wait_until((run_dir / "result.json").exists, "result")
    assert json.loads((run_dir / "result.json").read_text())["outcome"] == "succeeded"


def test_a_run_is_seen_and_ended_from_the_command_line(waiting: Run, orch: Orch) -> None:
    shown = json.loads(orch("ps", "--json", check=0).out)
    assert (shown["run"], shown["state"], shown["controller_pid"]) == (waiting.run_id, "running", controller_of(waiting))
    found = orchestrator.find()
    assert (found.run_id, found.is_running, {task.state for task in found.tasks.values()}) == (waiting.run_id, True, {"started"})
    orch("down", waiting.run_id, check=0)
    assert waiting.wait().exit_code == found.wait().exit_code == 143
