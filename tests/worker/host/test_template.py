"""Forked from a template: what an exec would have given, no fork that is not safe, and nothing lost when a template dies.

Real agents and cheap imports; `tests/real/test_template.py` does it with TensorFlow.
"""

from __future__ import annotations

import json
import os
import re
import signal
import textwrap
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.live import is_alive, wait_for_file, wait_until, wait_until_gone
from tests.worker import template_double
from tests.worker.controller_double import AgentProcess
from worker.protocol import messages
from worker.protocol.messages import Program, TemplateOrder
from worker.protocol.task_environment import default_environment

SCRIPT = Program("script", "s.py")


class Host:
    """An agent, and the tasks that it has been told to start. Each task finds its logs in ``1/TASK`` of its agent's directory."""

    def __init__(self, agent: AgentProcess) -> None:
        self.agent, self.directory = agent, agent.directory

    def greet(self, preload: Sequence[str], *, program: Program = SCRIPT, always: bool = True, env: dict[str, str] | None = None) -> None:
        template = TemplateOrder(tuple(preload), 2, env or {}, always) if preload else None
        self.agent.hello(programs=(program,), template=template)

    def order(self, *names: str, program: Program = SCRIPT, attempt: int = 1, env: dict[str, str] | None = None) -> None:
        orders = (
            messages.TaskOrder(
                task=name,
                attempt=attempt,
                program=program,
                cwd=str(self.directory),
                log_dir=f"{attempt}/{name}",
                env={"ORCH_TASK": name, **(env or {})},
            )
            for name in names
        )
        defaults = default_environment(len(os.sched_getaffinity(0)), 2)
        self.agent.order(messages.StartTasks(tuple(orders), env={"ORCH_RUN_ID": "run"}, env_defaults=defaults))

    def log(self, name: str = "worker-0", stream: str = "stdout", attempt: int = 1) -> str:
        return (self.directory / str(attempt) / name / f"{stream}.log").read_text()

    def wait(self, *names: str, attempt: int = 1) -> list[int]:
        """The exit codes of these tasks, of which nothing is left by then."""
        for name in names:
            self.agent.wait_for(messages.TaskSwept, lambda frame, name=name: (frame.task, frame.attempt) == (name, attempt))
        exited = {(frame.task, frame.attempt): frame.code for frame in self.agent.all(messages.TaskExited)}
        return [exited[name, attempt] for name in names]

    def run(self, *names: str, **settings: Any) -> list[str]:
        """Start tasks, see them succeed; returns what each has printed."""
        self.order(*names, **settings)
        assert self.wait(*names, attempt=settings.get("attempt", 1)) == [0] * len(names), [self.log(name, "stderr") for name in names]
        return [self.log(name, attempt=settings.get("attempt", 1)) for name in names]

    def notes(self) -> list[str]:
        return [frame.text for frame in self.agent.all(messages.RunNoted)]

    def templates(self) -> list[psutil.Process]:
        """Those that live, the oldest first."""
        children = psutil.Process(self.agent.process.pid).children()
        return sorted((child for child in children if is_template(child)), key=lambda child: child.pid)

    def wait_for_template(self) -> psutil.Process:
        self.agent.wait_for(messages.TemplateReady)
        (template,) = self.templates()
        return template


def is_template(process: psutil.Process) -> bool:
    """Unlike its forks, it is not called by a task's name."""
    try:
        return (
            is_alive(process) and any("forkserver/start_template" in word for word in process.cmdline()) and "worker-" not in process.name()
        )
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def start_host(tmp_path: Path, start_agent: Callable[[Path], AgentProcess]) -> Callable[[str], Host]:
    """``start_host("name")``: an agent whose directory, of that name, has the files that the test has written to tmp_path."""

    def start(name: str = "host") -> Host:
        directory = tmp_path / name
        directory.mkdir()
        for path in tmp_path.glob("*.*"):
            if path.is_file():
                (directory / path.name).write_bytes(path.read_bytes())
        return Host(start_agent(directory))

    return start


def write(directory: Path, text: str, name: str = "s.py") -> Path:
    path = directory / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return path


# --- a fork is what an exec is -----------------------------------------------------------------

LOOK = r"""
import os, sys
fds = {name: os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{name}")}
import atexit, asyncio, fcntl, faulthandler, gc, json, locale, resource, signal, subprocess, tempfile, threading, time, warnings

def flags(fd):
    return fcntl.fcntl(fd, fcntl.F_GETFL), fcntl.fcntl(fd, fcntl.F_GETFD)

def stream(file):
    names = "encoding", "errors", "line_buffering", "write_through", "newlines", "mode", "name", "closed"
    return [getattr(file, name) for name in names] + [file.fileno(), file.isatty(), type(file.buffer).__name__]

found = {
    "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path, "flags": list(sys.flags), "executable": sys.executable,
    "file": __file__, "loader": type(__loader__).__name__, "spec": repr(__spec__), "package": __package__,
    "cwd": os.getcwd(), "environ": dict(os.environ), "environ of children": subprocess.check_output(["env", "-0"]).decode().split("\0"),
    "descriptors": fds, "flags of descriptors": [flags(fd) for fd in (0, 1, 2)],
    "streams": [stream(sys.stdin), stream(sys.stdout), stream(sys.stderr), sys.stdin.read(),
                sys.stdin is sys.__stdin__, sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__],
    "signals": {int(number): str(signal.getsignal(number)) for number in signal.valid_signals()},
    "SIGINT": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
    "mask": list(signal.pthread_sigmask(signal.SIG_BLOCK, ())), "pending": list(signal.sigpending()),
    "wakeup": signal.set_wakeup_fd(-1), "timers": [signal.getitimer(which) for which in (0, 1, 2)],
    "umask": os.umask(0o22), "limits": {name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if "RLIMIT" in name},
    "nice": os.nice(0), "cores": sorted(os.sched_getaffinity(0)), "scheduler": os.sched_getscheduler(0), 
    "ids": os.getresuid() + os.getresgid(),
    "leads": [os.getpid() == os.getpgrp(), os.getpid() == os.getsid(0)],
    "children": open(f"/proc/self/task/{os.getpid()}/children").read(), "threads": len(os.listdir("/proc/self/task")),
    "thread": [threading.current_thread() is threading.main_thread(), threading.current_thread().name, threading.active_count()],
    "main": sys.modules["__main__"].__dict__ is globals(),
    "hooks": [sys.excepthook is sys.__excepthook__, sys.gettrace(), sys.getprofile()],
    "gc": [gc.isenabled(), gc.get_threshold(), gc.get_debug(), len(gc.callbacks)], "depth": sys.getrecursionlimit(),
    "warnings": repr(warnings.filters), "atexit": atexit._ncallbacks() <= 2, "faulthandler": faulthandler.is_enabled(),
    "locale": locale.setlocale(locale.LC_ALL), "zone": time.tzname, "temporary": tempfile.gettempdir(),
    "loop": asyncio.run(asyncio.sleep(0, "slept")), "exit of a child": subprocess.call(["sh", "-c", "exit 3"]),
}
json.dump(found, sys.stdout)
"""


def test_a_fork_finds_what_an_exec_finds(tmp_path: Path, start_host: Callable[[str], Host], monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, LOOK)
    program = Program("script", "s.py", ("a b", "$HOME", "ü"))
    found = []
    monkeypatch.setenv("PYTHONPATH", f"{os.environ['PYTHONPATH']}:{tmp_path / 'forked'}")
    for preload in ((), ("decimal",)):
        host = start_host("forked" if preload else "executed")
        host.greet(preload, program=program)
        (text,) = host.run("worker-0", program=program, env={"OF_THE_TASK": "1"})
        pipes = re.sub(r"pipe:\[\d+\]", "pipe", re.sub(r"/(forked|executed)\b", "/HERE", text))
        found.append(json.loads(pipes))
        assert host.log(stream="stderr") == ""
        assert host.notes() == []
        assert len(host.agent.all(messages.TemplateReady)) == bool(preload)
    executed, forked = found
    for name, value in executed.items():
        assert forked[name] == value, name
    assert executed["environ"]["OF_THE_TASK"] == "1"
    assert "PYTHONPATH" in executed["environ"]
    assert executed["leads"] == [True, True]


def test_what_should_differ_between_tasks_does(tmp_path: Path, start_host: Callable[[], Host]) -> None:
    write(
        tmp_path,
        """
        import multiprocessing, random, secrets, tempfile, uuid
        print(random.random())
        print(next(tempfile._get_candidate_names()))
        print(multiprocessing.current_process().authkey.hex())
        print(secrets.token_hex())
        print(uuid.uuid4())
        """,
    )
    host = start_host()
    host.greet(["random", "multiprocessing", "multiprocessing.util", "tempfile", "secrets", "uuid"])
    texts = host.run("worker-0", "worker-1", "worker-2")
    assert host.notes() == []
    for values in zip(*(text.split() for text in texts), strict=True):
        assert len(set(values)) == 3


def test_time_spent_on_the_import_is_not_the_tasks(tmp_path: Path, start_host: Callable[[], Host]) -> None:
    write(tmp_path, "import time\nwhile time.process_time() < 0.5: pass", "busy.py")
    write(
        tmp_path,
        "import resource, time\nprint(time.process_time() < 0.4, resource.getrusage(resource.RUSAGE_SELF).ru_utime < 0.4)\nimport busy",
    )
    host = start_host()
    host.greet(["busy"])
    assert host.run("worker-0") == ["True True\n"]
    assert host.notes() == []


def test_a_fork_may_replace_itself(tmp_path: Path, start_host: Callable[[], Host]) -> None:
    write(
        tmp_path,
        """
        import os, sys
        if len(sys.argv) == 1:
            print("before", flush=True)
            os.execv(sys.executable, [sys.executable, __file__, "again"])
        print("after", sys.argv[1], os.environ["ORCH_TASK"], "decimal" in sys.modules, flush=True)
        if os.environ["ORCH_TASK"] == "worker-0":
            sys.exit(7)
        open("ready", "w").close()
        import time
        time.sleep(1000)
        """,
    )
    host = start_host()
    host.greet(["decimal"])
    host.order("worker-0", "worker-1")
    assert host.wait("worker-0") == [7]
    assert host.log() == "before\nafter again worker-0 False\n"
    wait_for_file(host.directory / "ready")
    (task,) = (psutil.Process(frame.pid) for frame in host.agent.all(messages.TaskStarted) if frame.task == "worker-1")
    host.agent.process.kill()
    wait_until_gone([task])


def test_a_fork_may_use_processes_and_be_looked_at(tmp_path: Path, start_host: Callable[[], Host]) -> None:
    """What test_bootstrap.py shows of a task that was executed."""
    write(tmp_path, "LINE = 'beside'\n", "beside.py")
    write(
        tmp_path,
        """
        import concurrent.futures, inspect, multiprocessing, os, pickle, sys, threading
        import beside

        class Point:
            def __init__(self, x): self.x = x

        def double(point): return Point(2 * point.x), os.environ["ORCH_TASK"], beside.LINE

        heard = []
        thread = threading.Thread(target=heard.append, args=("thread",))
        thread.start()

        if __name__ == "__main__":
            assert pickle.loads(pickle.dumps(double)) is double
            assert inspect.getsource(Point).startswith("class Point:")
            assert inspect.getfile(double) == __file__
            for method in ("fork", "spawn", "forkserver"):
                with multiprocessing.get_context(method).Pool(1) as pool:
                    point, task, line = pool.map(double, [Point(21)])[0]
                    print(method, point.x, task, line)
            with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                print(pool.submit(double, Point(4)).result()[0].x)
            thread.join()
            print(*heard, "decimal" in sys.modules)
        """,
    )
    host = start_host()
    host.greet(["decimal"])
    lines = "".join(f"{method} 42 worker-{{0}} beside\n" for method in ("fork", "spawn", "forkserver")) + "8\nthread True\n"
    assert host.run("worker-0", "worker-1") == [lines.format(0), lines.format(1)]
    assert host.notes() == []


def test_a_fork_ends_as_an_exec_does(tmp_path: Path, start_host: Callable[[], Host]) -> None:
    """The kinds of end; `test_bootstrap_failures.py` has each exactly."""
    ends = {
        "sys.exit(3)": 3,
        "sys.exit(300)": 44,
        "sys.exit('text')": 1,
        "1 / 0": 1,
        "os._exit(9)": 9,
        "os.kill(os.getpid(), signal.SIGTERM)": 143,
        "os.kill(os.getpid(), signal.SIGKILL)": 137,
        "os.kill(os.getpid(), signal.SIGINT); time.sleep(1000)": 130,
        "os.kill(os.getpid(), signal.SIGHUP)": 129,
        "os.abort()": 134,
        "os.fork() or os._exit(5); os.wait(); sys.exit(6)": 6,
        "threading.Thread(target=lambda: (time.sleep(0.01), print('thread'))).start()": 0,
        "atexit.register(sys.exit, 4)": 0,
    }
    write(
        tmp_path,
        f"""
        import atexit, os, resource, signal, sys, threading, time
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        exec({list(ends)!r}[int(os.environ["ORCH_TASK"].partition("-")[2])])
        """,
    )
    host = start_host()
    host.greet(["decimal"])
    names = [f"worker-{index}" for index in range(len(ends))]
    host.order(*names)
    assert dict(zip(ends, host.wait(*names), strict=True)) == ends
    assert host.notes() == []


def test_more_tasks_than_a_socket_has_room_for(tmp_path: Path, start_host: Callable[[], Host]) -> None:
    write(tmp_path, "import os\nprint(os.getppid())")
    host = start_host()
    host.greet(["decimal"])
    names = [f"worker-{index}" for index in range(50)]
    host.order(*names[:25])
    template = host.wait_for_template()
    host.order(*names[25:])
    assert host.wait(*names) == [0] * len(names)
    assert {host.log(name) for name in names} == {f"{template.pid}\n"}


@pytest.mark.parametrize("kind", ["script", "module"])
def test_a_module_of_the_users_beside_the_program(tmp_path: Path, start_host: Callable[[], Host], kind: str) -> None:
    write(tmp_path, "import os, part\nprint('imported', os.getpid(), flush=True)\nhere = __file__", "model.py")
    write(tmp_path, "", "part.py")
    text = "import os, sys\nalready = 'model' in sys.modules\nimport model\nprint(already, model.here, sys.path.count(os.getcwd()))"
    write(tmp_path, text)
    host = start_host()
    program = Program(kind, "s.py" if kind == "script" else "s")  # type: ignore[arg-type]
    host.greet(["model"], program=program)
    assert host.run("worker-0", "worker-1", program=program) == [f"True {host.directory / 'model.py'} 1\n"] * 2
    template = host.wait_for_template()
    # What an import prints is printed once, and not lost.
    assert (host.directory / "agents" / "template-1.log").read_text() == f"imported {template.pid}\n"
    # A program that lies elsewhere would not find that module.
    write(host.directory, "import sys\nprint('model' in sys.modules)", "sub/other.py")
    assert host.run("worker-2", program=Program("script", "sub/other.py")) == ["False\n"]
    (note,) = host.notes()
    assert re.fullmatch(
        "worker-2: TensorFlow is imported again, which takes longer: "
        f"the module (model|part) was imported from {host.directory}, where this program does not look",
        note,
    )


SHADOWS = {
    "file": ("decimal.py", "s.py"),
    "package": ("decimal/__init__.py", "s.py"),
    "directory": ("app/decimal.py", "app"),
    "zip file": ("app.zip", "app.zip"),
}


@pytest.mark.parametrize(("name", "target"), SHADOWS.values(), ids=SHADOWS)
def test_a_users_module_with_the_name_of_an_imported_one(tmp_path: Path, start_host: Callable[[], Host], name: str, target: str) -> None:
    host = start_host()
    if name.endswith(".zip"):
        with zipfile.ZipFile(host.directory / name, "w") as archive:
            archive.writestr("__main__.py", "import decimal\nprint(decimal.whose)")
            archive.writestr("decimal.py", "whose = 'mine'")
    else:
        write(host.directory, "whose = 'mine'", name)
        write(host.directory, "import decimal\nprint(decimal.whose)", "s.py" if target == "s.py" else "app/__main__.py")
    program = Program("script", target)
    host.greet(["decimal"], program=program)
    assert host.run("worker-0", program=program) == ["mine\n"]
    why = "the program has a decimal of its own, and another one has been imported"
    assert host.notes() == [f"worker-0: TensorFlow is imported again, which takes longer: {why}"]


# --- fresh interpreters instead ----------------------------------------------------------------

UNFIT = {
    "missing": ("import there_is_none", "importing faulty failed: ModuleNotFoundError: No module named 'there_is_none' (see LOG)"),
    "wrong": ("x = (", "importing faulty failed: SyntaxError: '(' was never closed (faulty.py, line 1) (see LOG)"),
    "raises": ("raise RuntimeError('no\\nluck' + 'x' * 10**6)", f"importing faulty failed: RuntimeError: no luck{'x' * 293} (see LOG)"),
    "exits": ("raise SystemExit(3)", "importing faulty failed: SystemExit: 3 (see LOG)"),
    "ends": ("import os; os._exit(3)", "the template has died (see LOG)"),
    "crashes": ("import os; os.kill(os.getpid(), 11)", "the template has died (see LOG)"),
    "is killed": ("import os; os.kill(os.getpid(), 9)", "the template has died (see LOG)"),
    "closes all": ("import os; os.closerange(3, 1000)", "the template has died (see LOG)"),
    "thread": (
        "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()",
        "the import of faulty has started a thread",
    ),
    "daemon": ("import os; os.fork() or (os.setsid(), os.execlp('sleep', 'sleep', '1000'))", "an import has started a process"),
    "process": ("import subprocess; child = subprocess.Popen(['sleep', '1000'])", "an import has started a process"),
    "forks die": ("import os; os.register_at_fork(after_in_child=lambda: os._exit(4))", "it died as soon as it was forked"),
    "file": ("import tempfile; file = open(__file__)", "an import has left HERE/faulty.py open"),
}


@pytest.mark.parametrize(("text", "why"), UNFIT.values(), ids=UNFIT)
def test_an_import_that_unfits_a_template(tmp_path: Path, start_host: Callable[[], Host], text: str, why: str) -> None:
    write(tmp_path, text, "faulty.py")
    write(tmp_path, "import sys\nprint('faulty' in sys.modules)")
    host = start_host()
    host.greet(["faulty"])
    assert host.run("worker-0", "worker-1") == ["False\n"] * 2
    log = host.directory / "agents" / "template-1.log"
    why = why.replace("LOG", str(log)).replace("HERE", str(host.directory))
    assert host.notes() == [f"worker-0, worker-1: TensorFlow is imported again, which takes longer: {why}"]
    if "importing" in why:  # nothing but the import's own error, once
        assert log.read_text().count("Error") + log.read_text().count("SystemExit") >= 1
        assert "worker" not in log.read_text()


@pytest.mark.parametrize(
    ("ending", "why"), [("raise OSError('no')", "importing faulty failed: OSError: no"), ("os.kill(os.getpid(), 9)", "")]
)
def test_an_import_that_ends_while_what_it_has_started_lives_on(
    tmp_path: Path, start_host: Callable[[], Host], ending: str, why: str
) -> None:
    """That holds the template's end of the socket, which so does not close."""
    write(tmp_path, f"import os, time\nif os.fork() == 0:\n    time.sleep(1000)\n{ending}", "faulty.py")
    write(tmp_path, "import sys\nprint('faulty' in sys.modules)")
    host = start_host()
    host.greet(["faulty"])
    assert host.run("worker-0", "worker-1") == ["False\n"] * 2
    log = host.directory / "agents" / "template-1.log"
    assert host.notes() == [
        f"worker-0, worker-1: TensorFlow is imported again, which takes longer: {why or 'the template has died'} (see {log})"
    ]
    assert ("OSError: no" in log.read_text()) is bool(why)


def test_a_task_that_cannot_start_is_told_as_after_an_exec(tmp_path: Path, start_host: Callable[[], Host]) -> None:
    write(tmp_path, "")
    host = start_host()
    host.greet(["decimal"])
    gone = str(host.directory / "gone")
    order = messages.TaskOrder(
        "worker-0", 1, Program("script", str(host.directory / "s.py")), gone, "1/worker-0", env={"ORCH_TASK": "worker-0"}
    )
    defaults = default_environment(len(os.sched_getaffinity(0)), 2)
    host.agent.order(messages.StartTasks((order,), env={"ORCH_RUN_ID": "run"}, env_defaults=defaults))
    assert host.agent.wait_for(messages.TaskNotStarted).reason == f"the working directory {gone}: No such file or directory"
    assert host.run("worker-1") == [""]


def test_one_task_with_an_environment_of_its_own(tmp_path: Path, start_host: Callable[[], Host]) -> None:
    write(tmp_path, "import os, sys\nprint('decimal' in sys.modules, os.environ.get('TZ'), os.environ.get('UNSEEN'))")
    host = start_host()
    host.greet(["decimal"])
    assert host.run("worker-0", env={"TZ": "UTC", "UNSEEN": "1"}) == ["False UTC 1\n"]
    assert host.run("worker-1", env={"UNSEEN": "1"}) == ["True None 1\n"]
    assert host.notes() == [
        "worker-0: TensorFlow is imported again, which takes longer: TZ differs from what decimal has been imported under"
    ]
    assert len(host.agent.all(messages.TemplateReady)) == 1


def test_several_tasks_with_an_environment_of_their_own_share_a_template(tmp_path: Path, start_host: Callable[[], Host]) -> None:
    write(tmp_path, "import os\nvalue = os.environ.get('VALUE')", "seen.py")
    write(tmp_path, "import os, sys\nprint('seen' in sys.modules, os.getppid(), os.environ['ORCH_TASK'])\nimport seen\nprint(seen.value)")
    host = start_host()
    host.greet(["seen"], env={"VALUE": "first"})
    host.order("worker-0", env={"VALUE": "first"})
    host.order("ps-0", "ps-1", env={"VALUE": "second"})
    assert host.wait("worker-0", "ps-0", "ps-1") == [0, 0, 0]
    first, second = host.templates()
    assert host.log() == f"True {first.pid} worker-0\nfirst\n"
    for name in ("ps-0", "ps-1"):
        assert host.log(name) == f"True {second.pid} {name}\nsecond\n"
    # In the next attempt it is there, for one of them as well.
    assert host.run("ps-1", attempt=2, env={"VALUE": "second"}) == [f"True {second.pid} ps-1\nsecond\n"]
    assert host.notes() == []


def test_a_program_that_names_none_of_it_does_not_wait(tmp_path: Path, start_host: Callable[[], Host]) -> None:
    write(tmp_path, "import os\nprint(os.getppid())")
    host = start_host()
    host.greet(["tensorflow"], always=False)
    assert host.run("worker-0") == [f"{host.agent.process.pid}\n"]
    assert (host.templates(), host.notes(), host.agent.all(messages.TaskWaiting)) == ([], [], [])


STUCK = "import os, time\nopen('importing', 'w').close()\nwhile True: time.sleep(1000)"


def test_an_import_that_hangs_does_not_keep_anybody_from_stopping(orch: Any, tmp_path: Path) -> None:
    write(tmp_path, STUCK, "stuck.py")
    write(tmp_path, "print('never')")
    running = orch.start("up", "s.py", "-n", "2", "--set", "timeouts.grace_s=1000", "--set", "preload=[stuck]")
    wait_for_file(tmp_path / "importing")
    running.signal(signal.SIGINT)
    done = running.wait(check=130)
    assert "never" not in done.out


def test_a_task_that_waits_for_an_import_is_withdrawn(tmp_path: Path, start_host: Callable[[], Host]) -> None:
    write(tmp_path, STUCK, "stuck.py")
    write(tmp_path, "print('never')")
    host = start_host()
    host.greet(["stuck"])
    host.order("worker-0", "worker-1")
    wait_for_file(host.directory / "importing")
    assert host.agent.wait_for(messages.TaskWaiting).reason == "importing stuck"
    host.agent.order(messages.StopTasks(("worker-0",), 1000))
    assert host.agent.wait_for(messages.TaskNotStarted).reason == "stopped before it was started"
    (template,) = host.templates()
    template.kill()
    assert host.wait("worker-1") == [0]
    assert host.log("worker-1") == "never\n"


# --- a template's death ------------------------------------------------------------------------

WAITING = """
import os, sys, time
print("begun", flush=True)
while not os.path.exists("go"):
    time.sleep(0.005)
print("done", flush=True)
index = int(os.environ["ORCH_TASK"].partition("-")[2])
if index == 9:
    os.kill(os.getpid(), 9)
sys.exit(index)
"""


def begin(host: Host, names: Sequence[str]) -> psutil.Process:
    """Forked tasks, all at work; returns their template."""
    host.greet(["decimal"])
    host.order(*names)
    for name in names:
        host.agent.wait_for(messages.TaskStarted, lambda frame, name=name: frame.task == name)
        wait_until(lambda name=name: "begun" in host.log(name), "task at work")
    template = host.wait_for_template()
    assert {psutil.Process(frame.pid).ppid() for frame in host.agent.all(messages.TaskStarted)} == {template.pid}
    return template


def test_a_template_that_is_killed_takes_nothing_with_it(tmp_path: Path, start_host: Callable[[], Host]) -> None:
    write(tmp_path, WAITING)
    host = start_host()
    names = ["worker-0", "worker-7", "worker-9"]
    template = begin(host, names)
    template.kill()
    wait_until_gone([template])
    (host.directory / "go").touch()
    assert host.wait(*names) == [0, 7, 137]
    assert [host.log(name) for name in names] == ["begun\ndone\n"] * 3
    assert host.run("worker-0", attempt=2) == ["begun\ndone\n"]
    log = host.directory / "agents" / "template-1.log"
    assert host.notes() == [f"worker-0: TensorFlow is imported again, which takes longer: the template has died (see {log})"]


def test_a_template_that_is_killed_as_its_tasks_end(tmp_path: Path, start_host: Callable[[str], Host]) -> None:
    write(tmp_path, WAITING)
    names = [f"worker-{index}" for index in range(10)]
    for attempt in range(4):
        host = start_host(f"host-{attempt}")
        template = begin(host, names)
        (host.directory / "go").touch()
        if attempt:  # the first time it may even be too early
            wait_until(lambda host=host: [name for name in names if "done" in host.log(name)], "task about to end")
        template.kill()
        assert host.wait(*names) == [*range(9), 137]


@pytest.mark.parametrize("hook", ["after_in_parent", "before"])
def test_a_template_that_dies_between_fork_and_answer_starts_no_task_twice(
    tmp_path: Path, start_host: Callable[[], Host], hook: str
) -> None:
    write(tmp_path, f"import os\nos.register_at_fork({hook}=lambda: os.kill(os.getpid(), 9))", "deadly.py")
    write(tmp_path, "import sys\nprint('deadly' in sys.modules)")
    host = start_host()
    host.greet(["deadly"])
    host.wait_for_template()
    forked = [log == "True\n" for log in host.run("worker-0", "worker-1")]
    assert [host.log("worker-0"), host.log("worker-1")] == ["True\n" if is_forked else "False\n" for is_forked in forked]
    assert not any(forked) or hook == "after_in_parent"  # where the fork that it has made had announced itself in time
    (note,) = host.notes()
    assert ": the template has died" in note


def test_a_task_whose_lifeline_closes_ends(tmp_path: Path) -> None:
    write(tmp_path, "import time\ntime.sleep(600)")
    with template_double.template(tmp_path, "decimal") as asked:
        _, lifeline = asked.ask(SCRIPT, tmp_path)
        pid = asked.receive()["pid"]
        os.close(lifeline)
        assert asked.wait_for_end(pid) == -signal.SIGKILL


def test_a_fork_listens_to_its_lifeline_before_it_is_announced(tmp_path: Path) -> None:
    """So whatever was written there would always kill it, and not once in 500 times: Linux signals listeners after it has woken readers."""
    write(tmp_path, "import time\ntime.sleep(600)")
    with template_double.template(tmp_path, "decimal") as asked:
        _, lifeline = asked.ask(SCRIPT, tmp_path)
        pid = asked.receive()["pid"]
        os.write(lifeline, b"!")
        assert asked.wait_for_end(pid) == -signal.SIGKILL
        os.close(lifeline)


@pytest.mark.parametrize("whose", ["agent", "controller"])
def test_nothing_is_left_when_the_owner_dies(tmp_path: Path, start_host: Callable[[], Host], whose: str) -> None:
    write(tmp_path, WAITING)
    host = start_host()
    template = begin(host, ["worker-0", "worker-1"])
    tasks = [psutil.Process(frame.pid) for frame in host.agent.all(messages.TaskStarted)]
    if whose == "agent":
        host.agent.process.kill()
    else:
        host.agent.stdin.close()  # which is what its death is for the agent
    wait_until_gone([template, *tasks, psutil.Process(host.agent.process.pid)])


def test_a_template_ends_with_its_agent_while_it_imports(tmp_path: Path, start_host: Callable[[], Host]) -> None:
    write(tmp_path, STUCK, "stuck.py")
    write(tmp_path, "")
    host = start_host()
    host.greet(["stuck"])
    wait_for_file(host.directory / "importing")
    (template,) = host.templates()
    host.agent.process.kill()
    wait_until_gone([template])


def test_a_template_that_is_stopped_keeps_no_end_from_being_seen(tmp_path: Path, start_host: Callable[[], Host]) -> None:
    write(tmp_path, WAITING)
    host = start_host()
    names = ["worker-0", "worker-7"]
    template = begin(host, names)
    template.suspend()
    host.order("worker-3")  # which it will not fork
    (host.directory / "go").touch()
    wait_until(lambda: all("done" in host.log(name) for name in names), "tasks that go on")
    assert host.wait("worker-0", "worker-7", "worker-3") == [0, 7, 3]
    wait_until_gone([template])
    assert host.notes() == [
        "worker-3: TensorFlow is imported again, which takes longer: the template did not answer for 5 s and was killed"
    ]


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_no_fork_of_many_is_lost_or_killed(tmp_path: Path, soaks: bool) -> None:
    """Once, 39 of 20,000 were killed as they began."""
    write(tmp_path, "print('ran')")
    names = [f"worker-{index}" for index in range(20)]
    rounds = 1000 if soaks else 10
    with template_double.template(tmp_path, "decimal") as template:
        for _ in range(rounds):
            forked = [template.fork(SCRIPT, tmp_path, task=name, log_dir=tmp_path / name) for name in names]
            assert [task.wait().code for task in forked] == [0] * len(names)
    assert {(tmp_path / name / "stdout.log").read_text() for name in names} == {"ran\n" * rounds}
