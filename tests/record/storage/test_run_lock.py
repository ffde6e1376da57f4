"""Who runs a run: the lock that says whether it is alive, and the signals that its controller gets."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from orchestrator.errors import OrchError
from orchestrator.record.storage import run_lock
from orchestrator.record.storage.run_directory import RunDir
from orchestrator.record.storage.run_store import create_run
from tests.conftest import Orch
from tests.live import PROGRAMS, held_run, wait_until


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


def test_a_signal_is_on_its_way_until_it_is_taken(held: tuple[RunDir, subprocess.Popen[bytes]]) -> None:
    run, process = held
    holder = run.lock.holder()
    assert holder is not None
    process.send_signal(signal.SIGSTOP)
    wait_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED, "stopped holder")
    assert run.lock.has_received(holder, signal.SIGTERM)
    assert run.lock.send_signal(holder, signal.SIGTERM)
    assert not run.lock.has_received(holder, signal.SIGTERM)
    assert run.lock.has_received(holder, signal.SIGHUP)
    process.send_signal(signal.SIGCONT)
    process.wait()
    assert run.lock.has_received(holder, signal.SIGTERM)


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


# --- whom it names ------------------------------------------------------------------------------


def test_the_lock_says_which_process_holds_it_and_where(held: tuple[RunDir, subprocess.Popen[bytes]]) -> None:
    run, holder = held
    assert json.loads((run.path / "lock").read_bytes()) == {"pid": holder.pid, "host": socket.gethostname()}
    assert run.lock.holder() == run_lock.Holder(holder.pid, socket.gethostname())


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process
        assert process.poll() is None, "a process that runs nothing got a signal"
        process.kill()


def name_in_lock(run: RunDir, pid: int, host: str = "") -> None:
    (run.path / "lock").write_text(json.dumps({"pid": pid, "host": host or socket.gethostname()}))


@pytest.mark.parametrize("is_open", [False, True])
def test_a_process_that_does_not_hold_the_lock_gets_no_signal(
    held: tuple[RunDir, subprocess.Popen[bytes]], orch: Orch, victim: subprocess.Popen[bytes], is_open: bool
) -> None:
    """Such as one that only reads it, or that has the controller's number here while the run goes on in another container."""
    run, holder = held
    with contextlib.ExitStack() as stack:
        pid = victim.pid
        if is_open:
            reader = stack.enter_context(subprocess.Popen(["sleep", "1000"], stdin=stack.enter_context(open(run.path / "lock", "rb"))))
            stack.callback(reader.kill)
            pid = reader.pid
        name_in_lock(run, pid)
        for command in ("down", "restart", "stacks"):
            said = orch(command, check=125).err
            assert f"one is run by process {pid} on {socket.gethostname()}, which is no process here" in said
    assert holder.poll() is None


@pytest.mark.root
def test_roots_commands_signal_nobody_whom_another_user_names(
    held: tuple[RunDir, subprocess.Popen[bytes]], orch: Orch, victim: subprocess.Popen[bytes]
) -> None:
    run, holder = held
    name_in_lock(run, victim.pid)
    for owned in (run.path / "lock", run.path):
        os.chown(owned, 65534, 65534)
        assert "one belongs to nobody: give the same command as that user" in orch("down", check=125).err
    name_in_lock(run, holder.pid)
    assert "one belongs to nobody" in orch("down", check=125).err, "nor to a controller of that user's"
    assert holder.poll() is None


def test_a_run_of_another_user_is_signalled_by_that_user_only(
    held: tuple[RunDir, subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, holder = held
    found = run.lock.holder()
    assert found is not None
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(OrchError, match="one belongs to "):
        run.lock.send_signal(found, signal.SIGTERM)
    assert holder.poll() is None


def test_a_controller_on_another_machine_gets_no_signal_from_here(
    held: tuple[RunDir, subprocess.Popen[bytes]], victim: subprocess.Popen[bytes]
) -> None:
    run, _ = held
    name_in_lock(run, victim.pid, "hostB")
    found = run.lock.holder()
    assert found is not None
    assert found.pid == victim.pid, "shown all the same"
    with pytest.raises(OrchError, match=re.escape(f"on hostB, which is no process here ({socket.gethostname()}): give the same")):
        run.lock.send_signal(found, signal.SIGTERM)


@pytest.mark.parametrize("change", ["another name of this machine", "no /proc"])
def test_whoever_holds_the_lock_gets_the_signal(
    held: tuple[RunDir, subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    run, holder = held
    if change == "another name of this machine":
        name_in_lock(run, holder.pid, "before")
    elif change == "no /proc":
        monkeypatch.setattr(os.path, "isdir", lambda path: False)
    found = run.lock.holder()
    assert found is not None
    assert run.lock.send_signal(found, signal.SIGTERM)
    assert holder.wait() == -signal.SIGTERM
    assert not run.lock.send_signal(found, signal.SIGTERM)


@pytest.mark.root
@pytest.mark.skipif(shutil.which("unshare") is None, reason="NOT TESTED: no unshare here, to make a pid namespace with")
def test_commands_in_another_pid_namespace_signal_nobody(held: tuple[RunDir, subprocess.Popen[bytes]], tmp_path: Path) -> None:
    """Of the directory of a run that two containers share. The pid in its lock is another process's there, which must survive."""
    _, holder = held
    # The victim gets the controller's number: the kernel is told which pid of the new namespace was given last.
    inside = f"""
        echo {holder.pid - 1} > /proc/sys/kernel/ns_last_pid
        sleep 1000 & test $! = {holder.pid} || exit 77
        for command in restart stacks down; do
            "$@" $command one; echo "code $?" >&2
            kill -0 {holder.pid} || exit 1
        done
    """
    words = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", inside, "sh", sys.executable, "-m", "orchestrator"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    if done.returncode == 77 or "unshare failed" in done.stderr or "ns_last_pid" in done.stderr:
        pytest.skip(f"NOT TESTED: no pid namespace can be made here ({done.stderr.strip()})")
    assert (done.returncode, done.stderr.count("code 125")) == (0, 3), done
    assert done.stderr.count("which is no process here") == 3, done
    assert holder.poll() is None
