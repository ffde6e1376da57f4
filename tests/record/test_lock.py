"""Who runs a run: the lock that says whether it is alive, and the signals that its controller gets."""

from __future__ import annotations

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
from orchestrator.record import lock
from orchestrator.record.home import create_run
from orchestrator.record.rundir import RunDir
from tests.live import HOLD, held_run, wait_until


@pytest.fixture
def held(tmp_path: Path) -> Iterator[tuple[RunDir, subprocess.Popen[bytes]]]:
    with held_run(tmp_path / ".orch") as found:
        yield found


def test_the_lock_and_not_the_pid_in_it_says_whether_a_run_is_alive(tmp_path: Path) -> None:
    run = create_run(tmp_path / "home", "one")
    assert run.lock.controller_pid() is None
    (run.path / "lock").write_text(str(os.getpid()))
    assert run.lock.controller_pid() is None, "a pid without a lock is nobody"
    with subprocess.Popen([sys.executable, "-c", HOLD, run.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        assert run.lock.controller_pid() == holder.pid
        with pytest.raises(OrchError, match="one already has a controller"):
            run.lock.take()
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
    assert run.lock.has_taken(holder, signal.SIGTERM)
    assert run.lock.send_signal(holder, signal.SIGTERM)
    assert not run.lock.has_taken(holder, signal.SIGTERM)
    assert run.lock.has_taken(holder, signal.SIGHUP)
    process.send_signal(signal.SIGCONT)
    process.wait()
    assert run.lock.has_taken(holder, signal.SIGTERM)


def test_who_looks_whether_a_run_is_alive_does_not_keep_it_from_starting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "LOCK_S", 100.0)
    run = create_run(tmp_path / "home", "one")
    (run.path / "lock").touch(mode=0o600)
    fd = os.open(run.path / "lock", os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_SH)  # as `controller_pid` does
    timer = threading.Timer(0.02, os.close, (fd,))
    timer.start()
    run.lock.take()
    timer.join()
    run.lock.release()


@pytest.mark.parametrize("text", ["0", "1", "-1", "pid", ""])
def test_a_pid_that_no_controller_can_have_is_not_believed(held: tuple[RunDir, subprocess.Popen[bytes]], text: str) -> None:
    run, _ = held
    (run.path / "lock").write_text(text)
    assert run.lock.controller_pid() is None


def test_a_run_of_another_user_is_not_ours(held: tuple[RunDir, subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch) -> None:
    run, holder = held
    assert run.lock.is_ours()
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    assert not run.lock.is_ours()
    with pytest.raises(OrchError, match=f"belongs to another user.* kill -TERM {holder.pid}"):
        run.lock.send_signal(lock.Holder(holder.pid), signal.SIGTERM)
    assert holder.poll() is None
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert run.lock.is_ours(), "root may"


# --- from elsewhere -----------------------------------------------------------------------------


def test_the_lock_says_which_process_holds_it_and_where(held: tuple[RunDir, subprocess.Popen[bytes]]) -> None:
    run, holder = held
    written = json.loads((run.path / "lock").read_bytes())
    assert (written["pid"], written["host"]) == (holder.pid, socket.gethostname())
    assert run.lock.holder() == lock.Holder(holder.pid, lock.here())


ELSEWHERE = {
    "another machine": ({"host": "hostB", "boot": "b0071d", "pid_namespace": 1}, "on hostB, not on this machine ({this})"),
    "another machine of the same name": ({"boot": "b0071d"}, "on another machine named {this}"),
    "a machine that does not say when it was booted": ({"host": "hostB", "boot": ""}, "on hostB, not on this machine ({this})"),
    "another container": (
        {"host": "5ca1ab1e", "pid_namespace": 1},
        "in another container (pid namespace) of this machine (its host name: 5ca1ab1e)",
    ),
}


@pytest.mark.parametrize(("place", "where"), ELSEWHERE.values(), ids=ELSEWHERE)
def test_a_controller_somewhere_else_gets_no_signal_from_here(
    held: tuple[RunDir, subprocess.Popen[bytes]], place: dict[str, object], where: str
) -> None:
    """Its pid is another process's here: the holder stands for that one."""
    run, holder = held
    text = json.loads((run.path / "lock").read_bytes())
    (run.path / "lock").write_text(json.dumps({**text, **place}))
    wanted = f"one runs {where.format(this=socket.gethostname())}; there, give the same command, or kill -TERM {holder.pid}"
    found = run.lock.holder()
    assert found is not None
    assert found.pid == holder.pid, "shown all the same"
    with pytest.raises(OrchError, match=re.escape(wanted)):
        run.lock.send_signal(found, signal.SIGTERM)
    assert holder.poll() is None


def test_what_a_machine_does_not_tell_of_itself_keeps_nobody_from_ending_its_runs(
    held: tuple[RunDir, subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one without /proc."""
    run, holder = held
    text = json.loads((run.path / "lock").read_bytes())
    (run.path / "lock").write_text(json.dumps({**text, "boot": "", "pid_namespace": 0}))
    found = run.lock.holder()
    assert found is not None
    monkeypatch.setattr(lock, "here", lambda: lock.Place(socket.gethostname(), "", 0))
    assert run.lock.send_signal(found, signal.SIGTERM)
    assert holder.wait() == -signal.SIGTERM


@pytest.mark.parametrize("text", ["{pid}", '{{"pid": {pid}}}', '{{"pid": {pid}, "of_a_newer_orch": 1}}'])
def test_a_lock_that_names_no_place_is_believed(held: tuple[RunDir, subprocess.Popen[bytes]], text: str) -> None:
    """As an older orch wrote it."""
    run, holder = held
    (run.path / "lock").write_text(text.format(pid=holder.pid))
    found = run.lock.holder()
    assert found is not None
    assert run.lock.send_signal(found, signal.SIGTERM)
    assert holder.wait() == -signal.SIGTERM


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
    assert done.stderr.count("Error: one runs in another container (pid namespace) of this machine") == 3, done
    assert holder.poll() is None
