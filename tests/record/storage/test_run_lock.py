"""Who runs a run: the lock that says whether it is alive, and the pipe for requests to its controller."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.control.requests import ask
from orchestrator.errors import OrchError
from orchestrator.record import run_lock
from orchestrator.record.run_directory import RunDir
from orchestrator.record.run_store import create_run
from tests.conftest import Orch
from tests.live import PROGRAMS, held_run, plan_for


@pytest.fixture
def held(tmp_path: Path) -> Iterator[tuple[RunDir, subprocess.Popen[bytes]]]:
    with held_run(tmp_path / ".orch") as found:
        yield found


def test_the_lock_and_not_the_pid_in_it_says_whether_a_run_is_alive(tmp_path: Path) -> None:
    run = create_run(tmp_path / "home", "one")
    assert run.lock.controller_pid() is None
    (run.path / "lock").write_text(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
    assert run.lock.controller_pid() is None, "a pid without a lock is nobody"
    with subprocess.Popen([sys.executable, PROGRAMS / "hold.py", run.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        assert run.lock.controller_pid() == holder.pid
        with pytest.raises(OrchError, match="one already has a controller"):
            run.lock.acquire()
        assert run.lock.controller_pid() == holder.pid, "having asked has changed nothing"
        holder.kill()
    run.lock.wait()
    assert run.lock.controller_pid() is None


def test_who_looks_whether_a_run_is_alive_does_not_keep_it_from_starting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_lock, "LOCK_S", 100.0)
    run = create_run(tmp_path / "home", "one")
    (run.path / "lock").touch(mode=0o600)
    fd = os.open(run.path / "lock", os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_SH)  # as `controller_pid` does
    timer = threading.Timer(0.02, os.close, (fd,))
    timer.start()
    run.lock.acquire()
    timer.join()
    run.lock.release()


@pytest.mark.parametrize("text", ["0", "123", '{"pid": 1, "host": "h"}', '{"pid": -1, "host": "h"}', "pid", "", '{"pid": 99}', "[" * 4000])
def test_a_lock_that_no_controller_has_written_names_nobody(held: tuple[RunDir, subprocess.Popen[bytes]], text: str) -> None:
    run, _ = held
    (run.path / "lock").write_text(text)
    assert run.lock.controller_pid() is None


# --- requests -----------------------------------------------------------------------------------


def requests_in(run: RunDir) -> list[str]:
    """What waits in the pipe of a run whose controller does not read."""
    fd = os.open(run.path / "control", os.O_RDONLY | os.O_NONBLOCK)
    try:
        return os.read(fd, 4096).decode().splitlines()
    finally:
        os.close(fd)


def test_requests_wait_for_a_controller_that_is_not_up_and_come_as_whole_lines(tmp_path: Path) -> None:
    run = create_run(tmp_path / "home", "one")
    assert not ask(run, "restart"), "there is no controller"
    run.lock.acquire()
    assert stat.S_IMODE((run.path / "control").stat().st_mode) == 0o600
    assert run.is_alive()
    assert run.lock.controller_pid() is None
    for number in range(3):
        assert ask(run, "signal", task="worker-0", number=number)
    assert [json.loads(line)["number"] for line in requests_in(run)] == [0, 1, 2]
    run.lock.release()
    assert not ask(run, "restart")
    assert not (run.path / "control").exists(), "copies and archives of a run that is over meet no pipe"


def test_a_pipe_that_is_full_is_said_to_be_so(tmp_path: Path) -> None:
    run = create_run(tmp_path / "home", "one")
    run.lock.acquire()
    os.write(run.lock.fds[2], b"x" * 2**20)
    with pytest.raises(OrchError, match="one cannot be asked: it has not read its last requests; try again"):
        ask(run, "restart")
    run.lock.release()


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process
        assert process.poll() is None, "a process that runs nothing got a signal"
        process.kill()


def name_in_lock(run: RunDir, pid: int, host: str = "") -> None:
    (run.path / "lock").write_text(json.dumps({"pid": pid, "host": host or socket.gethostname()}))


def told(holder: subprocess.Popen[bytes]) -> str:
    """The next request that the process has read."""
    assert holder.stdout is not None
    found: str = json.loads(holder.stdout.readline())["ask"]
    return found


@pytest.mark.root
def test_root_may_end_a_run_of_another_user_and_nobody_else_whatever_that_user_writes(
    held: tuple[RunDir, subprocess.Popen[bytes]], orch: Orch, victim: subprocess.Popen[bytes]
) -> None:
    """The owner of a directory can write any pid into its lock."""
    run, holder = held
    name_in_lock(run, victim.pid)
    for owned in (run.path, run.path / "lock", run.path / "control"):
        os.chown(owned, 65534, 65534)
    orch("restart", check=0)
    assert told(holder) == "restart"
    with subprocess.Popen(["sleep", "1000"], env={**os.environ, "ORCH_RUN_ID": "one"}) as namesake:
        said = orch("down", check=0).out
        assert namesake.poll() is None, "the owner of a directory can give it the name of any run"
        namesake.kill()
    assert "belongs to another user: processes that it may have left were not looked for" in said
    assert told(holder) == "stop"
    assert holder.wait() == 0


@pytest.mark.root
@pytest.mark.parametrize("kind", ["symbolic link", "pipe of a third user", "file"])
def test_what_is_no_pipe_of_the_owner_gets_no_request(
    held: tuple[RunDir, subprocess.Popen[bytes]], orch: Orch, tmp_path: Path, kind: str
) -> None:
    run, holder = held
    (tmp_path / "other").mkdir()
    os.rename(run.path / "control", tmp_path / "other/pipe")
    if kind == "symbolic link":
        (run.path / "control").symlink_to(tmp_path / "other/pipe")
    elif kind == "file":
        (run.path / "control").touch()
    else:
        os.rename(tmp_path / "other/pipe", run.path / "control")
        os.chown(run.path / "control", 1234, 1234)
    for command in ("down", "restart", "stacks"):
        said = orch(command, check=125).err
        assert "is no named pipe of the run's owner" in said or "Too many levels of symbolic links" in said
    assert kind != "file" or not (run.path / "control").read_bytes()
    assert holder.poll() is None


def test_a_controller_on_another_machine_is_not_asked_from_here(tmp_path: Path, orch: Orch) -> None:
    """There the lock of a shared file system is seen, and the pipe, which no process of this machine reads."""
    run = create_run(tmp_path / ".orch", "one")
    plan_for(run, 1)
    run.lock.acquire()
    os.close(run.lock.fds[2])
    run.lock.fds = run.lock.fds[:2]
    name_in_lock(run, 99, "hostB")
    for command in ("down", "restart", "stacks"):
        said = orch(command, check=125).err
        assert said == (
            "error: one (process 99 on hostB) cannot be asked: no process of this machine reads its requests; "
            "give the same command where it runs\n"
        )
    run.lock.release()


@pytest.mark.parametrize("kind", ["file", "link"])
def test_what_lies_in_place_of_the_pipe_is_not_read_by_a_controller(tmp_path: Path, kind: str) -> None:
    """In a directory that somebody else has made, and gives to the controller."""
    run = create_run(tmp_path / ".orch", "one")
    os.mkfifo(tmp_path / "pipe")
    (run.path / "control").touch() if kind == "file" else (run.path / "control").symlink_to(tmp_path / "pipe")
    with pytest.raises(OrchError, match=r"control is no named pipe of the run.s owner|symbolic links"):
        run.lock.acquire()
    assert run.lock.fds == ()


def test_a_file_system_without_named_pipes_holds_runs_that_take_no_requests(
    tmp_path: Path, orch: Orch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mkfifo(*_: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "mkfifo", mkfifo)
    run = create_run(tmp_path / ".orch", "one")
    plan_for(run, 1)
    run.lock.acquire()
    run.lock.sign()
    for command in ("down", "restart", "stacks"):
        said = orch(command, check=125).err
        who = f"process {os.getpid()} on {socket.gethostname()}"
        assert said.startswith(f"error: one ({who}) cannot be asked: its directory holds no named pipe")
    run.lock.release()


@pytest.mark.root
@pytest.mark.skipif(shutil.which("unshare") is None, reason="NOT TESTED: no unshare here, to make a pid namespace with")
def test_commands_in_another_pid_namespace_reach_the_controller_and_no_other_process(
    held: tuple[RunDir, subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    """Of the directory of a run that two containers share. The pid in its lock is another process's there, which must survive."""
    _, holder = held
    # The victim gets the controller's number: the kernel is told which pid of the new namespace was given last.
    inside = f"""
        echo {holder.pid - 1} > /proc/sys/kernel/ns_last_pid
        sleep 1000 & test $! = {holder.pid} || exit 77
        for command in restart down; do
            "$@" $command one || exit 1
            kill -0 {holder.pid} || exit 1
        done
    """
    words = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", inside, "sh", sys.executable, "-m", "orchestrator"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    if done.returncode == 77 or "unshare failed" in done.stderr or "ns_last_pid" in done.stderr:
        pytest.skip(f"NOT TESTED: no pid namespace can be made here ({done.stderr.strip()})")
    assert done.returncode == 0, done
    assert [told(holder), told(holder), holder.wait()] == ["restart", "stop", 0]


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_second_controller_is_refused_though_the_lock_is_another_file(held: tuple[RunDir, subprocess.Popen[bytes]], how: str) -> None:
    run, _ = held
    (run.path / "lock").unlink()
    if how == "replaced":
        (run.path / "lock").touch()
    with pytest.raises(OrchError, match="already has a controller"):
        RunDir(run.path).lock.acquire(patience_s=0.2)


def test_the_lock_is_no_standard_stream_where_these_are_closed(tmp_path: Path) -> None:
    """As in a daemon: a child would get another file in its place."""
    program = f"""
import os
from pathlib import Path
from orchestrator.record.run_store import create_run
said = os.dup(1)
os.closerange(0, 3)
run = create_run(Path({str(tmp_path / "home")!r}), "one")
run.lock.acquire()
os.write(said, str(min(run.lock.fds)).encode())
"""
    assert int(subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout) > 2
