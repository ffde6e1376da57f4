"""Which failure is named, with real processes that fail as TensorFlow's do: its errors by the texts that it prints. No TensorFlow."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
from pathlib import Path

import pytest

from tests.conftest import Orch
from tests.live import LiveRun, wait_until_ready, write_script

# The module name is part of what a traceback prints.
ERRORS = """
class UnavailableError(Exception):
    __module__ = "tensorflow.python.framework.errors_impl"

def lose(task):
    kind, index = task.split("-")
    target = f"/job:{kind}/replica:0/task:{index} while calling /tensorflow.WorkerService/RecvBuf"
    told = f"Socket closed\\nAdditional GRPC error information from remote target {target}:\\n:UNKNOWN:Error received from peer"
    raise UnavailableError(f"Collective ops is aborted by: {told}  {{grpc_status:14}}")
"""


def write_failing(directory: Path, text: str) -> None:
    """A script that can also fail as TensorFlow does when it has lost a peer: ``lose("worker-0")``."""
    write_script(directory, ERRORS + textwrap.dedent(text))


def report(err: str) -> str:
    return err[err.index("first failure") :]


@pytest.mark.parametrize("end", ["raise ValueError('the reason')", "os._exit(3)", "os.kill(os.getpid(), signal.SIGSEGV)", "sys.exit(3)"])
def test_of_those_that_fail_within_the_same_moment_the_culprit_is_named(orch: Orch, tmp_path: Path, run: LiveRun, end: str) -> None:
    write_failing(
        tmp_path,
        """
        import fcntl
        held = open("held", "a")
        if TASK == "worker-0":
            fcntl.flock(held, fcntl.LOCK_EX)
            ready()
            wait_for("worker-1.ready", "worker-2.ready")
            END
        wait_for("worker-0.ready")
        ready()
        fcntl.flock(held, fcntl.LOCK_SH)  # as a connection: the kernel lets go of it when the process ends
        lose("worker-0")
        """.replace("END", end),
    )
    orch("up", "script.py", "-n", "3")
    cause = run.cause()
    assert cause["task"] == "worker-0"
    assert {end["task"]: end["lost"] for end in cause["secondary"]}.items() <= {
        "worker-1": "worker-0 (its connection was closed)",
        "worker-2": "worker-0 (its connection was closed)",
    }.items()


def test_the_lines_and_the_report_name_one_task_as_the_cause_whatever_the_order_of_the_exits(orch: Orch, tmp_path: Path) -> None:
    write_failing(
        tmp_path,
        """
        import atexit
        if TASK == "worker-0":
            atexit.register(lambda: (tell("failed"), sleep()))  # until orch stops it
            raise ValueError("the reason")
        wait_for("failed")
        raise ValueError("another reason")
        """,
    )
    done = orch("up", "script.py", "-n", "2", "--set", "timeouts.grace_s=0.5", check=1)
    assert "\norch: worker-1 has failed (exit code 1); stopping worker-0 (" in done.err
    assert done.err.count("worker-0 failed") == 0
    assert report(done.err).startswith("first failure: worker-0 ")
    assert "failed after it: worker-1 (exit code 1)" in report(done.err)


def test_one_that_leaves_early_with_0_is_named_and_the_run_fails_with_1(orch: Orch, tmp_path: Path, run: LiveRun) -> None:
    write_failing(
        tmp_path,
        """
        if TASK == "worker-0":
            sys.exit(0)
        wait_for("left")
        lose("worker-0")
        """,
    )
    running = orch.start("up", "script.py", "-n", "2")
    run.event("task_exited", task="worker-0")
    (tmp_path / "left").touch()
    done = running.wait(check=1)
    assert "worker-1 failed (exit code 1): it lost worker-0 (it had ended with exit code 0)\n" in done.err, "no task is left"
    text = report(done.err)
    assert text.startswith("first failure: worker-0 on local: it ended by itself (exit code 0) while its peers still needed it\n")
    assert "fix: look for a return or sys.exit() before the training: worker-0 took no step" in text
    assert "failed because of it: worker-1: lost worker-0 (it had ended with exit code 0)\n" in text


@pytest.mark.parametrize("number", [0, signal.SIGSTOP])
def test_a_stalled_peer_is_the_suspect_with_the_place_where_it_was(orch: Orch, tmp_path: Path, run: LiveRun, number: int) -> None:
    write_failing(
        tmp_path,
        """
        def load():
            ready()
            time.sleep(1000)
        if TASK == "worker-0":
            load()
        wait_for("held")
        lose("worker-0")
        """,
    )
    running = orch.start("up", "script.py", "-n", "2", "--set", "timeouts.grace_s=0.5")
    stalled = wait_until_ready(tmp_path, "worker-0")["worker-0"]
    if number:
        os.kill(stalled.pid, number)
    (tmp_path / "held").touch()
    text = report(running.wait(check=1).err)
    was = "was stopped (SIGSTOP)" if number else "was still running until orch stopped it"
    assert text.startswith(
        f"first failure: worker-1 on local: exit code 1; it failed because it lost worker-0 (its connection was closed), which {was}\n"
    )
    assert "  worker-0: in time.sleep (script.py:" in text
    assert (run.cause()["task"], run.cause()["suspect"]) == ("worker-1", "worker-0")


def test_a_program_that_only_wraps_python_is_judged_by_the_end_of_its_log(orch: Orch, tmp_path: Path, run: LiveRun) -> None:
    write_failing(
        tmp_path,
        """
        if TASK == "worker-0":
            ready()
            sleep()
        wait_for("worker-0.ready")
        lose("worker-0")
        """,
    )
    wrapper = tmp_path / "wrapper.sh"
    wrapper.write_text('#!/bin/sh\n"$@"\nexit $?\n')
    wrapper.chmod(0o700)
    orch("up", "--no-python", "./wrapper.sh", "-n", "2", "--set", "timeouts.grace_s=0.5", "--", sys.executable, "script.py", check=1)
    assert (run.cause()["task"], run.cause()["suspect"]) == ("worker-1", "worker-0")
    write_script(tmp_path, "import frobnicate")
    done = orch("up", "--no-python", "./wrapper.sh", "-n", "1", "--", sys.executable, "script.py", check=1)
    assert "a package: python -m pip install frobnicate " in report(done.err)
