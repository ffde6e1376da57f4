"""No line is lost and nobody waits for a slow reader: what tasks wrote, in the files and on the console. No TensorFlow."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Orch
from tests.live import LiveRun, kill, wait_for_file, wait_until, wait_until_gone, wait_until_ready, write_script

BOTH_STREAMS = """
for number in range(3000):
    os.write(1, f"out {number}\\n".encode())
    os.write(2, f"err {number}\\n".encode())
"""


def numbered(word: str, count: int) -> bytes:
    return b"".join(f"{word} {number}\n".encode() for number in range(count))


def lines_of(task: str, console: str) -> str:
    return "".join(line.partition(" | ")[2] + "\n" for line in console.splitlines() if line.partition(" | ")[0].strip() == task)


# --- nothing is lost ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "code"), [("", 0), ("os._exit(7)", 7), ("os.kill(os.getpid(), signal.SIGKILL)", 137)], ids=["normal end", "os._exit", "kill -9"]
)
def test_every_byte_is_in_the_files_and_every_line_on_the_console(orch: Orch, tmp_path: Path, run: LiveRun, end: str, code: int) -> None:
    # The others have written everything when the first one ends, or they would be stopped in the middle of it.
    last = f"wait_for('worker-1.ready', 'worker-2.ready', 'worker-3.ready'); {end}"
    write_script(tmp_path, f"{BOTH_STREAMS}\nif TASK == 'worker-0':\n    {last}\nelse:\n    ready()\n")
    done = orch("up", "script.py", "-n", "4", check=code)
    for task in (f"worker-{index}" for index in range(4)):
        assert run.log(task, "stdout") == numbered("out", 3000)
        assert run.log(task, "stderr") == numbered("err", 3000)
        assert lines_of(task, done.out).encode() == numbered("out", 3000)
        assert lines_of(task, done.err).encode() == numbered("err", 3000)
    assert all(re.fullmatch(r"worker-\d \| out \d+", line) for line in done.out.splitlines())
    assert all(re.fullmatch(r"worker-\d \| err \d+|orch: .*", line) for line in done.err.splitlines())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("message", "quiet"),
    [("'x' * 10_000_000", ()), ("'x' * 10_000_000", ("-q",)), ("'word word\\n' * 1_000_000", ("-q",))],
    ids=["a line", "a line, quiet", "lines, quiet"],
)
def test_ten_megabytes_in_an_exception_s_message_are_in_its_log_and_in_no_other_file(
    orch: Orch, tmp_path: Path, run: LiveRun, message: str, quiet: tuple[str, ...]
) -> None:
    write_script(tmp_path, f"raise ValueError({message})\n")
    done = orch("up", "script.py", "-n", "1", *quiet, check=1)
    assert len(run.log("worker-0", "stderr")) > 9_000_000
    assert len(done.err) < (20_000 if quiet else 60_000)
    assert "left out" in done.err
    assert "stderr.log has it all" in done.err or "x … 9" in done.err
    kept = [path for path in run.path.rglob("*") if path.is_file() and path.name not in ("stderr.log", "reserve")]
    assert {"error.json", "events.jsonl", "result.json"} <= {path.name for path in kept}
    assert all(path.stat().st_size < 200_000 for path in kept), [(path, path.stat().st_size) for path in kept]
    assert len(orch("ps", "--json", "--all", check=0).out) < 200_000


ENDLESS = """
import itertools
ignore()
count = os.open("count." + TASK, os.O_CREAT | os.O_WRONLY, 0o600)
for number in itertools.count():
    os.write(1, f"out {number}\\n".encode())
    os.pwrite(count, str(number + 1).encode(), 0)
    if number == 500:
        ready()
"""


@pytest.mark.parametrize("victim", ["controller", "agent", "worker-1"])
def test_what_was_written_before_a_violent_death_is_in_the_files(orch: Orch, tmp_path: Path, run: LiveRun, victim: str) -> None:
    write_script(tmp_path, ENDLESS)
    running = orch.start("up", "script.py", "-n", "2", "--set", "timeouts.grace_s=0")
    tasks = wait_until_ready(tmp_path, "worker-0", "worker-1")
    kill(tasks[victim] if victim in tasks else getattr(run, victim)())
    wait_until_gone(tasks.values())
    done = running.wait()
    for task in tasks:
        counted = int((tmp_path / f"count.{task}").read_text())
        # The task may have died between the two writes.
        assert run.log(task) in (numbered("out", counted), numbered("out", counted + 1))
        if victim != "controller":
            assert lines_of(task, done.out).encode() == run.log(task)


def test_eight_writers_of_two_megabytes(orch: Orch, tmp_path: Path, run: LiveRun) -> None:
    write_script(tmp_path, "line = TASK + ' ' + 'x' * 90\nfor number in range(20_000):\n    print(number, line)\n")
    done = orch("up", "script.py", "-n", "8", check=0)
    shown: dict[str, list[str]] = {f"worker-{index}": [] for index in range(8)}
    for line in done.out.splitlines():
        task, _, text = line.partition(" | ")
        shown[task].append(text)
    for task, lines in shown.items():
        assert lines == [f"{number} {task} {'x' * 90}" for number in range(20_000)]
        assert run.log(task).decode() == "\n".join(lines) + "\n"


def test_what_the_children_of_a_task_write_is_its_output(orch: Orch, tmp_path: Path, run: LiveRun) -> None:
    write_script(
        tmp_path, "os.write(1, b'parent\\n'); subprocess.run(['sh', '-c', 'echo child; echo trouble >&2']); os.write(1, b'parent again\\n')"
    )
    done = orch("up", "script.py", "-n", "1", check=0)
    assert run.log("worker-0") == b"parent\nchild\nparent again\n"
    assert run.log("worker-0", "stderr") == b"trouble\n"
    assert done.out == "worker-0 | parent\nworker-0 | child\nworker-0 | parent again\n"


# --- awkward output ----------------------------------------------------------------------------


def test_a_task_that_cuts_its_own_log_is_told_so(orch: Orch, tmp_path: Path, run: LiveRun) -> None:
    write_script(
        tmp_path,
        """
        os.write(1, b"lost\\n" * 1000)
        wait_for("go")
        open("/dev/stdout", "w").close()
        os.write(1, b"kept\\n")
        """,
    )
    running = orch.start("up", "script.py", "-n", "1")
    running.wait_for("worker-0 | lost")
    (tmp_path / "go").touch()
    done = running.wait(check=0)
    assert "worker-0 cut its own log short" in done.err
    assert run.log("worker-0") == b"kept\n"


def test_a_task_that_makes_its_own_log_a_terabyte_long_holds_up_nobody(orch: Orch, tmp_path: Path, run: LiveRun) -> None:
    write_script(tmp_path, "os.write(1, b'first\\n'); os.ftruncate(1, 1 << 40); os.lseek(1, 0, os.SEEK_END); os.write(1, b'last\\n')")
    done = orch("up", "script.py", "-n", "1", check=0)
    for shown in (done, orch("logs", check=0)):
        assert shown.out.splitlines() == ["worker-0 | first", "worker-0 | last"]
    assert (run.path / "attempt-1/worker-0/stdout.log").stat().st_size == (1 << 40) + 5


# --- readers that are slow, stuck or gone ------------------------------------------------------

MUCH = "line = b'x' * 99 + b'\\n'\nfor _ in range(40):\n    os.write(1, line * 1000)\ntell('written')\n"


def test_a_console_that_is_not_read_holds_up_nobody(orch: Orch, tmp_path: Path, run: LiveRun) -> None:
    write_script(tmp_path, MUCH)
    read_fd, write_fd = os.pipe()
    with os.fdopen(read_fd, "rb") as unread:
        running = orch.start("up", "script.py", "-n", "2", stdout=write_fd)
        os.close(write_fd)
        wait_for_file(tmp_path / "written")
        wait_until((run.path / "result.json").exists, "verdict")
        assert run.result()["outcome"] == "succeeded"
        assert running.alive  # it still has 8 MB to show
        # Whoever reads again gets everything.
        shown = unread.read()
    assert shown.count(b"\n") == 80_000
    assert set(shown.splitlines()) == {b"worker-%d | " % index + b"x" * 99 for index in range(2)}
    running.wait(check=0)


@pytest.mark.parametrize("moment", ["while it stops", "at the end"])
def test_ctrl_c_leaves_a_reader_of_json_that_does_not_read(orch: Orch, tmp_path: Path, run: LiveRun, moment: str) -> None:
    write_script(tmp_path, "ignore()\nready()\nsleep()" if moment == "while it stops" else "sys.exit(7)")
    read_fd, write_fd = os.pipe()
    os.set_blocking(write_fd, False)
    with contextlib.suppress(BlockingIOError):
        while os.write(write_fd, b"\n"):
            pass
    os.set_blocking(write_fd, True)
    running = orch.start("up", "script.py", "-n", "1", "--set", "timeouts.grace_s=1000", "--json", stdout=write_fd)
    os.close(write_fd)
    if moment == "while it stops":
        wait_until_ready(tmp_path, "worker-0")
        running.signal(signal.SIGINT)
        run.event("stop_requested")
    else:
        wait_until((run.path / "result.json").exists, "verdict")
        assert running.alive  # nobody has read its lines
    running.signal(signal.SIGINT)
    running.wait(check=130 if moment == "while it stops" else 7)
    os.close(read_fd)


def test_a_stuck_terminal_can_be_left(tmp_path: Path, run: LiveRun) -> None:
    """Both streams go to one place that nobody reads, as a terminal after Ctrl-S."""
    write_script(tmp_path, f"{MUCH}\nready()\nsleep()")
    read_fd, write_fd = os.pipe()
    command = [sys.executable, "-m", "orchestrator", "up", "script.py", "-n", "1"]
    with subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=write_fd, stderr=write_fd) as process:
        try:
            os.close(write_fd)
            wait_until_ready(tmp_path, "worker-0")
            process.send_signal(signal.SIGINT)
            wait_until((run.path / "result.json").exists, "verdict")
            process.send_signal(signal.SIGINT)
            assert process.wait(200) == 130
        finally:
            process.kill()
            os.close(read_fd)


def test_a_reader_that_goes_away_does_not_end_the_run(orch: Orch, tmp_path: Path, run: LiveRun) -> None:
    write_script(tmp_path, "print('first', flush=True)\nwait_for('go')\n" + MUCH)
    read_fd, write_fd = os.pipe()
    running = orch.start("up", "script.py", "-n", "1", stdout=write_fd)
    os.close(write_fd)
    with os.fdopen(read_fd, "rb", buffering=0) as head:
        assert head.read(100) == b"worker-0 | first\n"
    (tmp_path / "go").touch()
    done = running.wait(check=0)
    assert "Traceback" not in done.err
    assert done.err.count("orch: no one reads standard output any more; the run goes on, and orch logs shows what its tasks write") == 1
    assert run.log("worker-0") == b"first\n" + (b"x" * 99 + b"\n") * 40_000


@pytest.mark.parametrize(
    ("file", "why", "words"),
    [
        ("/dev/full", "No space left on device", ()),
        ("/dev/full", "No space left on device", ("--json",)),
        ("/proc/self/mem", "Input/output error", ()),  # no process has memory at address 0
    ],
    ids=["full", "full, json", "broken"],
)
def test_a_full_or_broken_disk_behind_the_console_is_said_and_does_not_end_the_run(
    orch: Orch, tmp_path: Path, run: LiveRun, file: str, why: str, words: tuple[str, ...]
) -> None:
    write_script(tmp_path, "for number in range(3):\n    print(number, flush=True)\n    time.sleep(0.4)")
    with open(file, "wb") as disk:
        done = orch.start("up", "script.py", "-n", "1", *words, stdout=disk).wait(check=0)
    said = f"orch: standard output cannot be written: {why}; the run goes on, and orch logs shows what its tasks write\n"
    assert done.err.count(said) == 1
    assert run.log("worker-0") == b"0\n1\n2\n"


def test_a_terminal_that_is_gone_is_no_error(orch: Orch, tmp_path: Path, run: LiveRun) -> None:
    """Writing to it is EIO; only the session that it controls gets a SIGHUP."""
    write_script(tmp_path, "ready()\nwait_for('go')\nprint('hello')")
    master, slave = os.openpty()
    running = orch.start("up", "script.py", "-n", "1", stdout=slave)
    os.close(slave)
    wait_until_ready(tmp_path, "worker-0")
    os.close(master)
    (tmp_path / "go").touch()
    assert "cannot be written" not in running.wait(check=0).err
    assert run.log("worker-0") == b"hello\n"
