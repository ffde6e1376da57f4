"""How runs end and what is said about it: the exit code, the first cause, nothing left behind. Real processes, no TensorFlow."""

from __future__ import annotations

import re
import shlex
import time
from pathlib import Path

import pytest

from tests.conftest import IMPATIENT, Orch
from tests.live import LiveRun, write_script

# --- failures ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prepare", "grace", "code"), [("", "60", 143), ("ignore(signal.SIGTERM, signal.SIGINT, signal.SIGHUP)", "0.3", 137)]
)
def test_the_first_failure_ends_the_run_and_its_peers(
    orch: Orch, tmp_path: Path, run: LiveRun, prepare: str, grace: str, code: int
) -> None:
    write_script(
        tmp_path,
        f"""
        if TASK == "worker-1":
            wait_for("worker-0.ready", "worker-2.ready")
            print("the reason", file=sys.stderr)
            sys.exit(7)
        {prepare}
        ready()
        sleep()
        """,
    )
    done = orch("up", "script.py", "-n", "3", "--set", f"timeouts.grace_s={grace}", check=7)
    assert (run.cause()["task"], run.cause()["code"], run.result()["outcome"]) == ("worker-1", 7, "failed")
    report = done.err[done.err.index("first failure") :]
    assert report.startswith("first failure: worker-1 on local: exit code 7\n")
    assert "    the reason\n" in report
    assert "stopped because of it: worker-0, worker-2\n" in report
    assert "failed after it" not in report
    log = re.search(r"log: (\S+)", report)
    assert log is not None
    assert (tmp_path / log[1]).read_bytes() == b"the reason\n"
    codes = {event["task"]: event["code"] for event in run.events() if event["event"] == "task_exited"}
    assert codes == {"worker-0": code, "worker-1": 7, "worker-2": code}


def test_a_death_by_signal_is_said_in_words(orch: Orch, tmp_path: Path) -> None:
    write_script(tmp_path, "import threading\nthreading.Thread(target=sleep).start()\nos.kill(os.getpid(), signal.SIGSEGV)")
    done = orch("up", "script.py", "-n", "1", check=139)
    assert "first failure: worker-0 on local: killed by SIGSEGV: segmentation fault\n" in done.err
    shown = done.err.partition("its last lines on stderr:\n")[2].partition("orch:   log: ")[0].splitlines()
    assert shown[0] == "orch:     Fatal Python error: Segmentation fault"
    (frame,) = shown[1:]  # no other thread, and no frame of orch
    assert re.search(r'/script.py", line \d+ in <module>$', frame)


def test_an_exception_is_shown_with_its_traceback(orch: Orch, tmp_path: Path, run: LiveRun) -> None:
    write_script(tmp_path, "def deep():\n    raise ValueError('that is why')\ndeep()")
    done = orch("up", "script.py", "-n", "1", check=1)
    report = done.err[done.err.index("first failure") :]
    assert "in deep" in report
    assert "ValueError: that is why" in report
    assert run.cause()["failure"]["type"] == "ValueError"


@pytest.mark.parametrize("answer", ["sys.exit(9)", "raise RuntimeError('stopped, not failed')", "os.abort()"])
def test_what_a_task_does_when_it_is_stopped_is_never_the_cause(orch: Orch, tmp_path: Path, run: LiveRun, answer: str) -> None:
    write_script(
        tmp_path,
        f"""
        if TASK == "worker-1":
            wait_for("worker-0.ready")
            sys.exit(7)
        def end(*_):
            {answer}
        signal.signal(signal.SIGTERM, end)
        ready()
        sleep()
        """,
    )
    done = orch("up", "script.py", "-n", "2", check=7)
    assert run.cause()["task"] == "worker-1"
    assert "stopped because of it: worker-0\n" in done.err
    assert "failed after it" not in done.err
    assert "stopped, not failed" not in done.err[done.err.index("first failure") :]


# --- parameter servers -------------------------------------------------------------------------

PS = ("up", "script.py", "--ps", "1", "-n", "1", "--set", "tasks.chief=1", "--set", "timeouts.grace_s=0.3")


def test_the_chiefs_success_ends_the_servers(orch: Orch, tmp_path: Path, run: LiveRun) -> None:
    write_script(
        tmp_path,
        """
        if TASK == "chief-0":
            wait_for("ps-0.ready", "worker-0.ready")
            sys.exit()
        ignore()
        ready()
        sleep()
        """,
    )
    orch(*PS, check=0)
    assert run.result()["outcome"] == "succeeded"
    states = {event["task"]: (event["code"], event["stopped"]) for event in run.events() if event["event"] == "task_exited"}
    assert states == {"chief-0": (0, False), "ps-0": (137, True), "worker-0": (137, True)}


# --- deadlines ---------------------------------------------------------------------------------


def test_a_run_that_takes_too_long_is_ended(orch: Orch, tmp_path: Path, run: LiveRun) -> None:
    write_script(tmp_path, "ready(); sleep()")
    done = orch("up", "script.py", "-n", "2", "--timeout", "8", check=124)
    assert "the run took longer than 8 s (--timeout)\n" in done.err
    assert " timed out after " in done.err
    assert ": timed out after " in orch("ps", check=0).out
    assert "where the tasks were:" in done.err
    assert run.result()["outcome"] == "timed_out"
    assert "first failure" not in done.err
    (fix,) = re.findall("fix: orch (.*)", done.err)
    assert "--timeout 16" in fix
    orch(*shlex.split(fix, comments=True), "--dry-run", check=0)  # it can be pasted


def test_a_cluster_that_does_not_form_names_who_is_late(orch: Orch, tmp_path: Path, run: LiveRun) -> None:
    write_script(tmp_path, "server = None if TASK == 'worker-1' else listen()\nsleep()")
    done = orch("up", "script.py", "-n", "3", "--set", "timeouts.start_s=10", check=124)
    last = next(line for line in reversed(done.err.splitlines()) if "(timeouts.start_s)" in line)
    assert "waiting for worker-1: no port is open yet" in last
    assert "worker-0" not in last
    assert run.result()["outcome"] == "timed_out"


def test_a_task_that_ends_before_it_comes_up_is_not_counted_among_those_that_are(orch: Orch, tmp_path: Path) -> None:
    write_script(
        tmp_path,
        """
        if TASK == "worker-0":
            sys.exit()
        if TASK == "worker-2":
            wait_for("go")
        server = listen()
        wait_for("over")
        """,
    )
    running = orch.start("up", "script.py", "-n", "3", env=IMPATIENT)
    gone = "worker-0 ended (exit code 0) before it was seen to come up"
    running.wait_for(f"waiting for worker-2: no port is open yet; {gone} (1 of 3 up)")
    (tmp_path / "go").touch()
    running.wait_for(f"; {gone}; the other tasks may wait forever")
    (tmp_path / "over").touch()
    done = running.wait(check=0)
    assert "orch: 2 of 3 tasks are up after " in done.err
    assert "cluster formed" not in done.err


def test_who_is_awaited_is_said_again_only_when_that_changes(orch: Orch, tmp_path: Path) -> None:
    write_script(
        tmp_path,
        """
        if TASK == "worker-1":
            wait_for("go")
        server = TASK != "worker-2" and listen()
        sleep()
        """,
    )
    running = orch.start("up", "script.py", "-n", "3", env=IMPATIENT)
    first = "waiting for worker-1..2: no port is open yet (1 of 3 up)"
    second = "waiting for worker-2: no port is open yet (2 of 3 up)"
    running.wait_for(first)
    time.sleep(2.5)  # it is looked at every second
    (tmp_path / "go").touch()
    running.wait_for(second)
    running.signal(2)
    done = running.wait(check=130)
    said = [line for line in done.err.splitlines() if line.startswith("orch: waiting for ")]
    assert said[-2:] == [f"orch: {first}", f"orch: {second}"]  # before that, on a slow machine, that nobody is up
    assert len(said) == len(set(said))


def test_a_loss_that_is_nan_for_one_step_alone_is_seen(orch: Orch, tmp_path: Path) -> None:
    write_script(
        tmp_path,
        """
        import time
        import worker

        for step in range(1, 300):
            worker.report(step=step, loss=float("nan") if step == 100 else 0.5)
            time.sleep(0.002)
        """,
    )
    assert "worker-0: loss is nan by step 100; --fail-on-nan ends such a run" in orch("up", "script.py", check=0).err
    assert "reported that loss is nan by step 100 (--fail-on-nan)" in orch("up", "script.py", "--fail-on-nan", check=1).err
