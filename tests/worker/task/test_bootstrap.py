"""A program under the bootstrap is what it is under plain Python, whether its task was executed or forked from a template."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import fields
from pathlib import Path

import pytest

from tests.worker.agent_double import ROOT, START, Outcome, clean_environment, run_plainly, run_task, start_task
from tests.worker.template_double import RefusedError, TemplateProcess, template
from worker.protocol import messages
from worker.protocol.messages import Program
from worker.settings.collective_settings import CollectiveSettings
from worker.settings.device_settings import DeviceSettings
from worker.values.codec import to_json

SHIM = str(ROOT / "worker" / "task" / "pythonpath")

LOOK = """
import json, sys
here = dict(globals())
json.dump({
    "argv": sys.argv, "orig_argv": sys.orig_argv[1:], "path": [entry for entry in sys.path if entry != SHIM],
    "flags": list(sys.flags), "warnings": sys.warnoptions, "hook": sys.excepthook is sys.__excepthook__,
    "names": sorted(set(here) - {"json", "sys"}), "file": __file__, "name": __name__, "package": __package__,
    "spec": repr(__spec__), "cached": __cached__, "doc": __doc__, "annotations": __annotations__,
    "builtins": repr(__builtins__), "loader": type(__loader__).__name__, "loads": getattr(__loader__, "name", None),
    "loads_from": getattr(__loader__, "path", None), "same": sys.modules["__main__"].__dict__ is globals(),
    "meta_path": [name for finder in sys.meta_path if (name := getattr(finder, "__name__", type(finder).__name__)) != "_Finder"],
}, sys.stdout, indent=1)
""".replace("SHIM", repr(SHIM))
"""What a program finds, but for what orch cannot do without: the directory of its API, and the finder that waits for Keras."""


def write(path: Path, text: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


WITHOUT_SITE = ("-S",)
"""An interpreter in which orch is not installed, though it may be in the one that runs the tests."""


_template: TemplateProcess


@pytest.fixture(scope="module", autouse=True)
def _forking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    global _template
    with template(tmp_path_factory.mktemp("template"), "decimal") as _template:
        yield


@pytest.fixture(params=["executed", "forked"])
def run(request: pytest.FixtureRequest) -> Callable[..., Outcome]:
    """Runs a task to its end, in one way or the other."""
    return run_task if request.param == "executed" else lambda *args, **settings: _template.fork(*args, **settings).wait()


def compare(cwd: Path, target: str, *args: str, kind: str = "script", shadows: bool = False, **settings: object) -> Outcome:
    """Run the program by hand, executed and forked; all must have the same code and output. Returns the task's.

    `shadows`: it has modules by names that a template has imported, which does not fork it then.
    """
    options: Sequence[str] = settings.get("options", ())  # type: ignore[assignment]
    plain = run_plainly([*options, *(["-m"] if kind == "module" else []), target, *args], cwd)
    task = run_task(Program(kind, target, args), cwd, **settings)  # type: ignore[arg-type]
    assert task.told() == plain.told()
    if shadows:
        with pytest.raises(RefusedError, match="of its own"):
            _template.fork(Program(kind, target, args), cwd)  # type: ignore[arg-type]
    elif not options:
        assert _template.fork(Program(kind, target, args), cwd).wait().told() == plain.told()  # type: ignore[arg-type]
    return task


# --- where the program finds itself ------------------------------------------------------------


@pytest.mark.parametrize(
    "target", ["look.py", "./look.py", "sub/../look.py", "sub/look.py", "link.py", "sub/up.py", "no_suffix", "../here/look.py"]
)
def test_a_script_finds_itself_where_plain_python_puts_it(tmp_path: Path, target: str) -> None:
    here = tmp_path / "here"
    write(here / "look.py", LOOK)
    write(here / "no_suffix", LOOK)
    write(here / "sub" / "look.py", LOOK)
    (here / "link.py").symlink_to("sub/look.py")
    (here / "sub" / "up.py").symlink_to("../link.py")
    seen = json.loads(compare(here, target, "a b", "$HOME", "").check().out)
    assert seen["argv"] == [target, "a b", "$HOME", ""]


def test_a_directory_and_a_zip_file_run_by_their_main(tmp_path: Path) -> None:
    write(tmp_path / "app" / "__main__.py", LOOK + "import helper; helper.help()")
    write(tmp_path / "app" / "helper.py", "def help(): print('helped')")
    with zipfile.ZipFile(tmp_path / "app.zip", "w") as archive:
        for name in ("__main__.py", "helper.py"):
            archive.write(tmp_path / "app" / name, name)
    for target in ("app", "app.zip", str(tmp_path / "app")):
        assert compare(tmp_path, target, "x").check().out.endswith("helped\n")


def test_a_module_runs_as_with_dash_m(tmp_path: Path) -> None:
    write(tmp_path / "package" / "__init__.py", "import sys; print('init', sys.argv)")
    write(tmp_path / "package" / "train.py", "from . import __name__ as parent\nprint(parent)\n" + LOOK)
    write(tmp_path / "package" / "__main__.py", LOOK)
    compare(tmp_path, "package.train", "--epochs", "5", kind="module").check()
    compare(tmp_path, "package", kind="module").check()


@pytest.mark.parametrize(
    ("kind", "target"), [("script", "absent.py"), ("script", "no/absent"), ("script", "empty"), ("module", "absent"), ("module", "empty")]
)
def test_a_missing_program_is_told_in_pythons_words(tmp_path: Path, kind: str, target: str) -> None:
    (tmp_path / "empty").mkdir()
    outcome = compare(tmp_path, target, kind=kind)
    assert outcome.code != 0
    assert outcome.failure is None


def test_options_of_the_interpreter_hold(tmp_path: Path) -> None:
    write(tmp_path / "look.py", LOOK)
    options = ["-W", "ignore::DeprecationWarning", "-X", "dev", "-O", *(["-P"] if sys.version_info >= (3, 11) else [])]
    plain = run_plainly([*options, "look.py", "1"], tmp_path)
    task = run_task(Program("script", "look.py", ("1",)), tmp_path, options=options)
    assert (task.code, task.out, task.err) == (0, plain.out, plain.err)


# --- what works in it --------------------------------------------------------------------------

MULTIPROCESSING = """
import inspect, multiprocessing, pickle, sys
import worker

class Point:
    def __init__(self, x): self.x = x

def double(point): return Point(2 * point.x), worker.context().task

if __name__ == "__main__":
    assert pickle.loads(pickle.dumps(double)) is double
    assert inspect.getsource(Point).startswith("class Point:")
    with multiprocessing.get_context(sys.argv[1]).Pool(1) as pool:
        point, task = pool.map(double, [Point(21)])[0]
    print(point.x, task)
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing_and_pickle(tmp_path: Path, run: Callable[..., Outcome], method: str) -> None:
    write(tmp_path / "pool.py", MULTIPROCESSING)
    assert run(Program("script", "pool.py", (method,)), tmp_path).check().out == "42 worker-0\n"


def test_the_future_of_our_files_is_not_the_users(tmp_path: Path) -> None:
    write(tmp_path / "s.py", "def f(x: 1 + 1): pass\nprint(f.__annotations__)\n")
    assert compare(tmp_path, "s.py").check().out == "{'x': 2}\n"


def test_ends_are_tidy(tmp_path: Path) -> None:
    write(
        tmp_path / "s.py",
        "import atexit, threading\nlate = 'the module lives on'\n"
        "atexit.register(lambda: print('atexit', late))\ngo = threading.Event()\n"
        "threading.Thread(target=lambda: (go.wait(), print('thread', late))).start()\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "print('end')\nthreading.Timer(0.1, go.set).start()\n",
    )
    assert compare(tmp_path, "s.py").check().out == "end\nthread the module lives on\natexit the module lives on\n"


def test_the_users_first_descriptor_has_the_usual_number(tmp_path: Path) -> None:
    write(tmp_path / "s.py", "print(open('s.py').fileno())")
    compare(tmp_path, "s.py").check()


# --- whose modules -----------------------------------------------------------------------------


def test_worker_is_ours_where_the_user_has_none(tmp_path: Path, run: Callable[..., Outcome]) -> None:
    write(
        tmp_path / "s.py",
        "import worker\nprint(worker.__file__)\nfrom worker import context\nprint(context().task)\nimport worker.protocol.messages",
    )
    for kind, target in (("script", "s.py"), ("module", "s")):
        out = run(Program(kind, target), tmp_path, task="ps-3").check().out  # type: ignore[arg-type]
        assert out == f"{ROOT / 'worker' / '__init__.py'}\nps-3\n"


@pytest.mark.parametrize("kind", ["script", "module"])
@pytest.mark.parametrize(
    ("layout", "program"),
    [
        ({"worker.py": "whose = 'mine'"}, "import worker"),
        ({"worker/__init__.py": "whose = 'mine'"}, "import worker"),
        ({"worker/part.py": "whose = 'mine'"}, "from worker import part as worker"),
        ({"lib/worker.py": "whose = 'mine'"}, "import sys; sys.path.append('lib'); import worker"),
    ],
)
def test_a_users_own_worker_wins(tmp_path: Path, layout: dict[str, str], program: str, kind: str) -> None:
    for name, text in layout.items():
        write(tmp_path / name, text)
    write(tmp_path / "s.py", f"{program}\nprint(worker.whose)\n1 / 0")
    outcome = compare(tmp_path, "s.py" if kind == "script" else "s", kind=kind, options=WITHOUT_SITE)
    assert outcome.check(1).out == "mine\n"
    assert outcome.failure is not None
    assert outcome.failure.type == "ZeroDivisionError"


@pytest.mark.parametrize(
    "name", ["json", "signal", "enum", "re", "traceback", "functools", "bootstrap", "failure", "start", "orchestrator"]
)
def test_a_users_module_with_the_name_of_one_that_we_use_wins(tmp_path: Path, name: str) -> None:
    write(tmp_path / f"{name}.py", "whose = 'mine'")
    write(tmp_path / "s.py", f"import {name}\nprint({name}.whose)\nraise ValueError('x')")
    outcome = compare(tmp_path, "s.py", shadows=name in ("json", "signal", "enum", "re", "functools"))
    assert outcome.check(1).out == "mine\n"
    assert outcome.failure is not None
    assert outcome.failure.traceback == outcome.err


def test_an_installed_orch_changes_nothing(tmp_path: Path) -> None:
    site = tmp_path / "site"
    shutil.copytree(ROOT / "worker", site / "worker", ignore=shutil.ignore_patterns("__pycache__"))
    write(tmp_path / "s.py", "import worker\nprint(worker.__file__, worker.context().task)")
    env = {"PYTHONPATH": str(site)}
    outcome = run_task(Program("script", "s.py"), tmp_path, env=env)
    assert outcome.check().out == f"{site / 'worker' / '__init__.py'} worker-0\n"
    write(tmp_path / "worker.py", "__file__ = 'mine'\ndef context(): return context\ncontext.task = 1")
    assert run_task(Program("script", "s.py"), tmp_path, env=env).check().out == "mine 1\n"


def test_a_shipped_copy_runs_with_nothing_else(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "worker", tmp_path / "shipped copy" / "worker", ignore=shutil.ignore_patterns("__pycache__"))
    write(tmp_path / "s.py", "import worker\nprint(worker.__file__)")
    start = tmp_path / "shipped copy" / "worker" / "task" / "start_task.py"
    outcome = run_task(Program("script", "s.py"), tmp_path, start=start, options=WITHOUT_SITE)
    assert outcome.check().out == f"{start.parents[1] / '__init__.py'}\n"


def test_nothing_heavy_is_imported(tmp_path: Path) -> None:
    write(tmp_path / "s.py", "import sys\nprint(*sys.modules)")
    modules = set(run_task(Program("script", "s.py"), tmp_path).check().out.split())
    heavy = {
        "tensorflow",
        "numpy",
        "asyncio",
        "logging",
        "dataclasses",
        "typing",
        "inspect",
        "traceback",
        "threading",
        "subprocess",
        "contextlib",
        "_orch_worker.protocol.messages",
    }
    assert not modules & heavy
    assert "worker" not in modules


# --- the order, signals ------------------------------------------------------------------------


def test_the_order_is_read_as_the_contract_writes_it(tmp_path: Path, run: Callable[..., Outcome]) -> None:
    known = {spec.name for spec in fields(messages.BootstrapOrder)}
    assert known == {"task", "program", "tf_config", "log_dir", "settings"}
    write(tmp_path / "s.py", "import os, sys\nprint(ascii(sys.argv), len(os.environ['TF_CONFIG']))")
    long = "x" * 300_000
    args = ("", "ü\udcff\n", "-x")
    outcome = run(Program("script", "s.py", args), tmp_path, tf_config=long)
    assert outcome.check().out == f"{['s.py', *args]!a} 300000\n"


def test_the_order_does_not_stay_open(tmp_path: Path, run: Callable[..., Outcome]) -> None:
    write(
        tmp_path / "s.py",
        """import os
with os.scandir("/proc/self/fd") as entries:
    targets = [os.readlink(entry.path) for entry in entries if int(entry.name) > 2]
print([target for target in targets if not target.startswith(("/proc/", "pipe:"))])
""",
    )
    outcome = run(Program("script", "s.py"), tmp_path).check()
    assert outcome.out == f"[{str(outcome.log_dir / 'stacks.txt')!r}]\n"


@pytest.mark.parametrize("content", [b"", b"{", b"\xff"])
def test_a_broken_order_is_one_line(tmp_path: Path, content: bytes) -> None:
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.flush()
        fd = file.fileno()
        done = subprocess.run(
            [sys.executable, START, str(fd), "worker-0", "s.py"], pass_fds=[fd], capture_output=True, text=True, check=False
        )
    assert done.returncode == 125
    assert done.stderr.startswith(f"orch: cannot read this task's order from descriptor {fd}: ")
    assert done.stderr.count("\n") == 1


STUCK = """
import threading
def stuck_here():
    threading.Event().wait()
threading.Thread(target=stuck_here, daemon=True).start()
print("ready", flush=True)
def waits_for_the_last_line():
    import sys
    for line in open(sys.argv[1]):
        print(line)
waits_for_the_last_line()
"""


@pytest.mark.parametrize("how", ["executed", "forked"])
def test_sigquit_writes_the_stacks_of_all_threads_and_the_task_goes_on(tmp_path: Path, how: str) -> None:
    write(tmp_path / "s.py", STUCK)
    os.mkfifo(tmp_path / "fifo")
    task = (start_task if how == "executed" else _template.fork)(Program("script", "s.py", ("fifo",)), tmp_path)
    try:
        # Opening the other end waits until the task has opened its own.
        with (tmp_path / "fifo").open("w") as fifo:
            for _ in range(2):
                task.process.send_signal(signal.SIGQUIT)
                wait_for_text(task.log_dir / "stacks.txt", "waits_for_the_last_line")
            fifo.write("bye")
        outcome = task.wait().check()
    finally:
        task.kill()
    stacks = (outcome.log_dir / "stacks.txt").read_text()
    assert "stuck_here" in stacks
    assert outcome.out == "ready\nbye\n"
    assert (outcome.log_dir / "stacks.txt").stat().st_mode & 0o777 == 0o600


def test_a_task_can_be_asked_for_its_stacks_once_the_file_for_them_is_there_and_no_sooner(tmp_path: Path) -> None:
    text = """
import faulthandler, os
from worker.task import bootstrap
register = faulthandler.register
def look(*arguments, **named):
    print(os.path.exists("stacks.txt"))
    register(*arguments, **named)
faulthandler.register = look
bootstrap._show_stacks_on_signal(".")
print(os.listdir())
"""
    done = run_plainly(["-c", text], tmp_path, {"PYTHONPATH": str(ROOT)})
    assert done.check().out == "False\n['stacks.txt']\n"


def wait_for_text(path: Path, text: str) -> None:
    deadline = time.monotonic() + 60
    while text not in path.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_crash_shows_the_stack(tmp_path: Path, run: Callable[..., Outcome]) -> None:
    write(
        tmp_path / "s.py",
        "import os, resource, signal\nresource.setrlimit(resource.RLIMIT_CORE, (0, 0))\nos.kill(os.getpid(), signal.SIGSEGV)",
    )
    outcome = run(Program("script", "s.py"), tmp_path).check(-signal.SIGSEGV)
    assert "Fatal Python error: Segmentation fault" in outcome.err
    assert 's.py", line 3 in <module>' in outcome.err


def test_a_log_directory_that_is_gone_stops_nobody(tmp_path: Path) -> None:
    write(tmp_path / "s.py", "print('ran')\n1 / 0")
    order = to_json(messages.BootstrapOrder("worker-0", Program("script", "s.py"), None, str(tmp_path / "gone")))
    with tempfile.TemporaryFile() as file:
        file.write(json.dumps(order).encode())
        file.flush()
        argv: Sequence[str] = [sys.executable, str(START), str(file.fileno()), "worker-0", "s.py"]
        done = subprocess.run(
            argv, cwd=tmp_path, pass_fds=[file.fileno()], env=clean_environment(), capture_output=True, text=True, check=False
        )
    plain = run_plainly(["s.py"], tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (1, "ran\n", plain.err)


ENDINGS = {
    "print('ran')": 0,
    "raise SystemExit(3)": 3,
    "1 / 0": 1,
    "raise KeyboardInterrupt": 130,
    "import os\nos.environ['TF_CONFIG'] = '{}'\nprint('ran')": 0,
}


def shadow(directory: Path, names: Collection[str]) -> None:
    """Files with these names, each of which fails when it is imported."""
    directory.mkdir(exist_ok=True)
    for name in names:
        write(directory / f"{name}.py", f"raise RuntimeError({name!r})")


@pytest.mark.parametrize("place", ["beside", "on the path"])
@pytest.mark.parametrize("kind", ["script", "module"])
def test_no_file_of_the_user_runs_as_a_module_of_orchs(tmp_path: Path, place: str, kind: str) -> None:
    """The program imports none of them, so plain Python does not run them."""
    arguments = ["-m", "s"] if kind == "module" else ["s.py"]
    write(tmp_path / "s.py", "import sys\nprint(*sys.modules)")
    started = run_plainly(arguments, tmp_path).check().out.split()  # plain Python imports these
    names = sys.stdlib_module_names - (set() if (place, kind) == ("beside", "script") else set(started))
    shadow(tmp_path if place == "beside" else tmp_path / "lib", names)
    env = {"PYTHONPATH": str(tmp_path / "lib")} if place == "on the path" else {}
    config = json.dumps({"cluster": {"worker": ["localhost:1", "localhost:2"]}, "task": {"type": "worker", "index": 0}})
    devices, collectives = DeviceSettings(cpus=2, log_placement=True), CollectiveSettings(heartbeat_s=9.0)
    for text, code in ENDINGS.items():
        write(tmp_path / "s.py", text)
        plain = run_plainly(arguments, tmp_path, env)
        told = {"tf_config": config, "devices": devices, "collectives": collectives, "env": env}
        task = run_task(Program(kind, arguments[-1]), tmp_path, **told)  # type: ignore[arg-type]
        assert (task.shell_code, task.out, task.err) == (plain.shell_code, plain.out, plain.err)
        assert plain.shell_code == code
        assert (task.failure is not None) is (text == "1 / 0")


def test_a_variable_of_the_users_with_the_name_of_one_of_orchs_means_nothing(tmp_path: Path) -> None:
    write(tmp_path / "s.py", "import os\nprint(os.environ['ORCH_CALLS'])")
    assert run_task(Program("script", "s.py"), tmp_path, env={"ORCH_CALLS": "/nonexistent"}).check().out == "/nonexistent\n"
