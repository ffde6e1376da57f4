"""`orch top` on a real terminal, and as text for pipes and programs."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import pyte
import pytest

from tests.conftest import Orch
from tests.live import held_run, wait_until, wait_until_ready, write_script
from tests.made_up_run import MadeUpRun

ROOT = Path(__file__).resolve().parents[2]


class Terminal:
    """A terminal of 80 columns and 24 rows with `orch top` in it, which thinks that it is in a shell of its own."""

    def __init__(self, directory: Path, **env: str) -> None:
        self.master, self.slave = pty.openpty()
        self.screen = pyte.Screen(80, 24)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = b""
        self._resize(80, 24)
        self.before = termios.tcgetattr(self.slave)
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "COLUMNS": "", "LINES": "", **env}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "orchestrator", "top"],
            cwd=directory,
            env=environment,
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            start_new_session=True,
        )
        os.set_blocking(self.master, False)

    def _resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def resize(self, columns: int, rows: int) -> None:
        self.screen.resize(rows, columns)
        self._resize(columns, rows)
        self.process.send_signal(signal.SIGWINCH)

    def read(self) -> list[str]:
        with contextlib.suppress(BlockingIOError, OSError):
            while data := os.read(self.master, 65536):
                self.raw += data
                self._stream.feed(data)
        return [line.rstrip() for line in self.screen.display]

    def wait_for(self, holds: Callable[[list[str]], bool], what: str) -> list[str]:
        wait_until(lambda: holds(self.read()), what)
        return self.read()

    def press(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def end(self) -> int:
        """The exit code, once the program has ended; the terminal is as it was."""

        def has_ended() -> bool:
            self.read()
            return self.process.poll() is not None

        wait_until(has_ended, "end of orch top")
        self.read()
        assert termios.tcgetattr(self.slave) == self.before
        assert self.raw.count(b"\x1b[?1049h") == self.raw.count(b"\x1b[?1049l") > 0
        assert self.raw.count(b"\x1b[?25h") >= self.raw.count(b"\x1b[?25l") > 0
        return self.process.returncode

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    made: list[Terminal] = []

    def start(**env: str) -> Terminal:
        made.append(Terminal(tmp_path, **env))
        made[-1].wait_for(lambda lines: lines[-1].startswith("q quit"), "first frame")
        return made[-1]

    yield start
    for each in made:
        each.close()


def test_keys_sizes_and_64_tasks(terminal: Callable[..., Terminal], tmp_path: Path) -> None:
    MadeUpRun(tmp_path / ".orch", workers=64, seconds=60.0).run.make_latest()
    screen = terminal()
    lines = screen.read()
    assert lines[0].startswith("made-up-64: succeeded, ")
    assert sum("worker-" in line for line in lines) > 15
    screen.press("G/-63\r")
    screen.wait_for(lambda lines: sum("worker-" in line for line in lines) == 1, "filtered tasks")
    screen.press("\x1b")
    screen.wait_for(
        lambda lines: sum("worker-" in line for line in lines) > 15 and "> worker-63" in lines[-2], "all tasks, at the last one"
    )
    screen.press("g")
    screen.resize(40, 10)
    screen.wait_for(lambda lines: lines[-1].startswith("q quit") and lines[3].startswith("> worker-0"), "smaller frame")
    screen.resize(80, 24)
    screen.wait_for(lambda lines: lines[-1].startswith("q quit  ? help  l log"), "larger frame")
    screen.press("?")
    screen.wait_for(lambda lines: any("choose a task" in line for line in lines), "help")
    screen.press("q")
    assert screen.end() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_signals_leave_the_terminal_as_it_was(number: signal.Signals, terminal: Callable[..., Terminal], tmp_path: Path) -> None:
    MadeUpRun(tmp_path / ".orch", seconds=60.0).run.make_latest()
    screen = terminal(NO_COLOR="1")
    screen.process.send_signal(number)
    assert screen.end() == 128 + number


def test_ctrl_z_and_ctrl_c(terminal: Callable[..., Terminal], tmp_path: Path) -> None:
    MadeUpRun(tmp_path / ".orch", seconds=60.0).run.make_latest()
    screen = terminal()
    screen.press("\x1a")

    def is_as_before() -> bool:
        screen.read()
        return termios.tcgetattr(screen.slave) == screen.before

    wait_until(is_as_before, "terminal of the shell")
    # A session without a shell is an orphan, so that the kernel lets no key stop it (setpgid(2)); SIGCONT comes as from `fg`.
    screen.process.send_signal(signal.SIGCONT)
    wait_until(lambda: not is_as_before(), "terminal of orch top")

    def has_ended() -> bool:
        screen.press("\x03")  # once more: a key that comes while the terminal is set up is lost
        return screen.process.poll() is not None

    wait_until(has_ended, "end of orch top")
    assert screen.end() == 130


def test_it_ends_with_its_terminal(terminal: Callable[..., Terminal], tmp_path: Path) -> None:
    """Not only by SIGHUP, which comes to a shell's session alone: it would take a core for ever."""
    MadeUpRun(tmp_path / ".orch", seconds=60.0).run.make_latest()
    screen = terminal()
    os.close(screen.master)
    screen.master = os.open(os.devnull, os.O_RDWR)
    wait_until(lambda: screen.process.poll() is not None, "end of orch top")


def test_a_restart_is_asked_for_and_confirmed(terminal: Callable[..., Terminal], tmp_path: Path) -> None:
    with held_run(tmp_path / ".orch", workers=2) as (run, holder):
        run.make_latest()
        screen = terminal()
        screen.press("r")
        screen.wait_for(lambda lines: lines[-1].startswith("stop all tasks and start them again?"), "question")
        screen.press("n")
        screen.wait_for(lambda lines: lines[-1].startswith("q quit"), "keys")
        screen.press("q")
        assert screen.end() == 0
        assert holder.poll() is None


def test_logs_stacks_sorting_and_a_restart_of_a_run_that_goes_on(orch: Orch, terminal: Callable[..., Terminal], tmp_path: Path) -> None:
    write_script(tmp_path, 'print("hello from", TASK, flush=True)\nready()\nwait_for("go")')
    running = orch.start("up", "script.py", "-n", "2", "--quiet")
    wait_until_ready(tmp_path, "worker-0", "worker-1")
    screen = terminal()
    screen.press("l")
    screen.wait_for(lambda lines: "hello from worker-0" in lines, "log of the first task")
    screen.press("\x1b")
    screen.wait_for(lambda lines: lines[-1].startswith("q quit"), "tasks")
    screen.press("s")
    screen.wait_for(lambda lines: lines[-1].endswith("sort: work"), "sorted tasks")
    screen.press("k")
    screen.wait_for(lambda lines: any("worker-0..1: in " in line and "(script.py:" in line for line in lines), "stacks")
    screen.press("\x1b")
    screen.wait_for(lambda lines: lines[-1].startswith("q quit"), "tasks")
    screen.press("r")
    screen.wait_for(lambda lines: lines[-1].startswith("stop all tasks and start them again?"), "question")
    screen.press("y")
    screen.wait_for(lambda lines: ", attempt 2, " in lines[0], "second attempt")
    (tmp_path / "go").touch()
    screen.wait_for(lambda lines: ": succeeded, attempt 2, " in lines[0], "end of the run")
    screen.press("q")
    assert screen.end() == 0
    running.wait(check=0)


@pytest.mark.parametrize("words", [(), ("--once",)])
def test_a_pipe_gets_one_plain_frame(words: tuple[str, ...], orch: Orch, tmp_path: Path) -> None:
    MadeUpRun(tmp_path / ".orch", workers=64, seconds=60.0).run.make_latest()
    told = orch("top", *words, check=0)
    assert "\x1b" not in told.out
    assert sum(line.startswith("worker-") for line in told.out.splitlines()) == 64


def test_without_textual_or_on_a_dumb_terminal_the_state_is_shown_once(tmp_path: Path) -> None:
    MadeUpRun(tmp_path / ".orch", seconds=60.0).run.make_latest()
    (tmp_path / "hide").mkdir()
    # A finder that finds nothing, as where the package is not installed.
    (tmp_path / "hide/sitecustomize.py").write_text("import sys\nsys.modules['textual'] = None\n")
    for env, said in (({"PYTHONPATH": f"{tmp_path / 'hide'}:{ROOT}"}, "pip install textual"), ({"TERM": "dumb"}, "")):
        screen = Terminal(tmp_path, **env)
        screen.wait_for(lambda lines: any(line.startswith("worker-1") for line in lines), "plain frame")
        wait_until(lambda screen=screen: screen.process.poll() is not None, "end")
        assert screen.process.returncode == 0
        assert b"\x1b" not in screen.raw
        assert (said in " ".join(screen.read())) or not said
        screen.close()
