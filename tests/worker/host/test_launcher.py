"""The launcher by itself, with real processes: what it costs when there are many, and processes that do not end."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.live import frozen, wait_for_file, wait_until
from worker.host import launcher as launcher_module
from worker.host import leftovers, task_stacks, templates
from worker.host.forkserver import import_environment
from worker.host.launcher import Launcher
from worker.host.log_forwarder import LogForwarder
from worker.host.network.listen_probe import Prober
from worker.host.processes import process_state
from worker.host.processes.helpers import Helpers
from worker.host.processes.loop import Loop
from worker.host.processes.spawn import SpawnError
from worker.machine.directory import Directory
from worker.protocol import messages

COUNT = 12


class Frames(list[Any]):
    """Takes what the launcher sends to the controller."""

    is_full = False
    gathered = staticmethod(contextlib.nullcontext)

    def send(self, frame: Any, data: bytes = b"") -> None:
        self.append(frame)


@pytest.fixture
def told() -> Frames:
    return Frames()


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each look at our children. None is shown: this process is pytest, and has daemons of other tests, not to be swept."""
    found: list[int] = []
    monkeypatch.setattr(process_state, "children", lambda: found.append(1) or set())
    return found


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made._selector.close()


@pytest.fixture
def launcher(told: Any, tmp_path: Path, looks: list[int], loop: Loop) -> Iterator[Launcher]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    forwarder = LogForwarder(loop, told)
    found = Launcher(loop, told, forwarder, Prober(loop, told), Helpers(loop))
    root = Directory(str(tmp_path))
    found.begin("run", root)
    yield found
    found.reap()
    found.close()
    root.close()
    if (inotify := forwarder._inotify.fileno()) >= 0:  # the kernel gives each user a limited number of them
        os.close(inotify)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def start(launcher: Launcher, program: messages.Program, count: int, directory: Path) -> None:
    names = [f"worker-{index}" for index in range(count)]
    launcher.start(messages.StartTasks(tuple(messages.TaskOrder(name, 1, program, str(directory), name) for name in names)))


@pytest.fixture
def many(launcher: Launcher, tmp_path: Path) -> Launcher:
    start(launcher, messages.Program("command", "true"), COUNT, tmp_path)
    return launcher


def wait_for_ends(told: Frames) -> None:
    for frame in told:
        if isinstance(frame, messages.TaskStarted):
            os.waitid(os.P_PID, frame.pid, os.WEXITED | os.WNOWAIT)


def run_to_the_end(launcher: Launcher, loop: Loop) -> None:
    """Until no task is left. Without an agent's signals: this process is pytest."""

    def step() -> None:
        launcher.poll()
        launcher.reap()
        loop.after(0.05, step)

    step()
    loop.run(lambda: not launcher.has_tasks)


def test_all_that_have_ended_are_swept_with_one_look_at_our_children(many: Launcher, told: Frames, looks: list[int]) -> None:
    wait_for_ends(told)
    many.reap()
    assert len([frame for frame in told if isinstance(frame, messages.TaskSwept)]) == COUNT
    assert looks == [1]
    assert not many.has_tasks


@pytest.mark.parametrize(("ending", "code"), [("", 0), ("sys.exit(7)", 7), ("sys.exit('no')", 1), ("raise OSError", 1)])
def test_an_interpreter_that_hangs_when_its_program_is_over_is_ended_and_its_exit_code_kept(
    launcher: Launcher, told: Frames, loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str, code: int
) -> None:
    monkeypatch.setattr(launcher_module, "TEARDOWN_S", 1.0)
    (tmp_path / "script.py").write_text(f"""
import sys, threading, time

class Sticky:
    def __del__(self, sleep=time.sleep):
        sleep(600)

sticky = Sticky()
threading.Thread(target=lambda: (time.sleep(1.8), print("thread done", flush=True))).start()
{ending}
""")
    start(launcher, messages.Program("script", str(tmp_path / "script.py")), 1, tmp_path)
    run_to_the_end(launcher, loop)
    (exited,) = (frame for frame in told if isinstance(frame, messages.TaskExited))
    assert (exited.code, exited.stopped, exited.killed) == (code, False, False)
    (note,) = (frame for frame in told if isinstance(frame, messages.RunNoted))
    is_done = "" if code else ". The program had done its work, and its exit code counts"
    assert note.text == f"worker-0: its program ended ({code}), but Python did not exit within 1 s; killed{is_done}"
    # What the program had left to do, it did.
    assert (tmp_path / "worker-0" / "stdout.log").read_text() == "thread done\n"
    assert "__del__" in (tmp_path / "worker-0" / "stacks.txt").read_text()


@pytest.mark.parametrize("seconds", [-86400, 1800])
def test_a_system_clock_that_is_set_changes_nothing_for_an_interpreter_that_hangs(
    launcher: Launcher, told: Frames, loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    monkeypatch.setattr(launcher_module, "TEARDOWN_S", 1.0)
    script = tmp_path / "script.py"
    script.write_text("import time\nclass Sticky:\n    def __del__(self, sleep=time.sleep):\n        sleep(600)\nsticky = Sticky()\n")
    start(launcher, messages.Program("script", str(script)), 1, tmp_path)
    wait_for_file(tmp_path / "worker-0" / "ended")
    began, real = time.monotonic(), time.time
    monkeypatch.setattr(time, "time", lambda: real() + seconds)
    loop.after(60.0, lambda: launcher.stop(0.0))
    run_to_the_end(launcher, loop)
    assert 1.0 + task_stacks.PATIENCE_S <= time.monotonic() - began < 60.0


def refuse(*_: Any) -> NoReturn:
    raise SpawnError("not here")


def test_the_import_time_environment_is_determined_once_for_each_task(
    launcher: Launcher, told: Frames, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher_module, "spawn", refuse)
    monkeypatch.setattr(templates, "start_template", refuse)
    asked = []
    frozen = import_environment.frozen
    monkeypatch.setattr(import_environment, "frozen", lambda *words: asked.append(words) or frozen(*words))
    launcher.start_template(messages.TemplateOrder(("json",), COUNT), (), str(tmp_path))
    start(launcher, messages.Program("serve"), COUNT, tmp_path)
    assert [frame.reason for frame in told if isinstance(frame, messages.TaskNotStarted)] == ["not here"] * COUNT
    assert len(asked) == COUNT


SLOW_TO_ANSWER = """
import signal, sys, time
def answer(*_):
    for words in sys.argv[2:]:
        time.sleep(0.1)
        with open(sys.argv[1], "a") as file:
            print(words, file=file)
signal.signal(signal.SIGQUIT, answer)
open(sys.argv[1], "w").close()
while True:
    signal.pause()
"""


@pytest.mark.parametrize(("patience_s", "words"), [(100.0, ("in step", "in main")), (0.2, ())], ids=["slow", "never"])
def test_a_task_that_was_asked_for_its_stacks_is_not_ended_before_they_are_there(
    launcher: Launcher, told: Frames, loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patience_s: float, words: tuple[str, ...]
) -> None:
    monkeypatch.setattr(task_stacks, "PATIENCE_S", patience_s)
    shown = tmp_path / "worker-0" / "stacks.txt"
    start(launcher, messages.Program("command", sys.executable, ("-c", SLOW_TO_ANSWER, str(shown), *words)), 1, tmp_path)
    wait_until(shown.exists, "a task that can answer")
    launcher.request_stacks(("worker-0",))
    launcher.stop(100.0)
    run_to_the_end(launcher, loop)
    (exited,) = (frame for frame in told if isinstance(frame, messages.TaskExited))
    assert (exited.code, exited.stopped) == (143, True)
    asked, *answered = shown.read_text().splitlines()
    assert asked.startswith("orch: asked at ")
    assert answered == list(words)


@pytest.fixture
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GRACE_S", "GIVE_UP_S", "OUTLIVED_S"):
        monkeypatch.setattr(leftovers, name, 1.0)


HELD = r"pid {pid}, waiting in the kernel in state D, where no signal reaches it"


@pytest.mark.root
@pytest.mark.usefixtures("short_patience")
def test_a_task_that_sigkill_does_not_end_is_given_up_and_said_once(launcher: Launcher, told: Frames, loop: Loop, tmp_path: Path) -> None:
    start(launcher, messages.Program("command", "sleep", ("1000",)), 2, tmp_path)
    stuck = told[0].pid
    with frozen(stuck):
        launcher.stop(0.0)
        launcher.stop(0.0)  # as by a second Ctrl-C
        run_to_the_end(launcher, loop)
        assert not [frame for frame in told if isinstance(frame, messages.RunNoted)], "its sweep says it, once"
        assert [frame.task for frame in told if isinstance(frame, messages.TaskExited)] == ["worker-1"]
        swept = {frame.task: frame.left for frame in told if isinstance(frame, messages.TaskSwept)}
        assert swept["worker-1"] == ""
        assert re.fullmatch(HELD.format(pid=stuck), swept["worker-0"])
    os.waitpid(stuck, 0)


@pytest.mark.root
@pytest.mark.usefixtures("short_patience")
def test_what_a_task_has_left_that_sigkill_does_not_end_is_told_with_its_sweep(
    launcher: Launcher, told: Frames, loop: Loop, tmp_path: Path
) -> None:
    program = "sleep 1000 & echo $! >aside; mv aside child; until test -e go; do sleep 0.01; done"
    start(launcher, messages.Program("command", "sh", ("-c", program)), 1, tmp_path)
    child = int(wait_for_file(tmp_path / "child"))
    with frozen(child):
        (tmp_path / "go").touch()
        run_to_the_end(launcher, loop)
        (swept,) = (frame for frame in told if isinstance(frame, messages.TaskSwept))
        assert re.fullmatch(HELD.format(pid=child), swept.left)


class Template:
    """A template that nothing ends before the test does."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def close(self) -> None:
        pass


def test_a_template_that_sigkill_does_not_end_is_not_waited_for_for_ever(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "GIVE_UP_S", 0.1)
    process = subprocess.Popen(["sleep", "20"])
    launcher._templates._links.append(Template(process.pid))  # type: ignore[arg-type]
    started = time.monotonic()
    launcher.close()
    assert time.monotonic() - started < 15
    launcher._templates._links.clear()
    process.kill()
    process.wait()
