"""How runs end and what is said about it: the exit code, the first cause, nothing left behind. Real processes, no TensorFlow."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from tests.conftest import IMPATIENT, Orch
from tests.live import LiveRun, wait_for_file, wait_until_ready, write_script


def test_a_run_whose_tasks_all_end_well_succeeds(orch: Orch, tmp_path: Path, run: LiveRun) -> None:
    write_script(tmp_path, "print('done', TASK)")
    done = orch("up", "script.py", "-n", "3", check=0)
    assert sorted(done.out.splitlines()) == [f"worker-{i} | done worker-{i}" for i in range(3)]
    assert (run.result()["outcome"], run.result()["exit_code"]) == ("succeeded", 0)
    assert re.fullmatch(r"orch: script-\S+ succeeded after \d+\.\d s", done.err.splitlines()[-1])


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
    done = orch("up", "script.py", "-n", "3", "--grace", grace, check=7)
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


def test_a_killed_task_is_the_cause(orch: Orch, tmp_path: Path, run: LiveRun) -> None:
    write_script(tmp_path, "ready(); sleep()")
    running = orch.start("up", "script.py", "-n", "2")
    wait_until_ready(tmp_path, "worker-0", "worker-1")["worker-1"].kill()
    assert "first failure: worker-1 on local: killed by SIGKILL\n" in running.wait(check=137).err
    assert run.cause()["task"] == "worker-1"


@pytest.mark.parametrize("code", [124, 125])
def test_codes_that_mean_something_else_are_given_as_1_and_explained(orch: Orch, tmp_path: Path, code: int) -> None:
    write_script(tmp_path, f"sys.exit({code})")
    done = orch("up", "script.py", "-n", "1", check=1)
    assert f"first failure: worker-0 on local: exit code {code}\n" in done.err
    assert f"exit code 1 (worker-0 ended with {code}, which means something else here)\n" in done.err


def test_an_exception_is_shown_with_its_traceback(orch: Orch, tmp_path: Path, run: LiveRun) -> None:
    write_script(tmp_path, "def deep():\n    raise ValueError('that is why')\ndeep()")
    done = orch("up", "script.py", "-n", "1", check=1)
    report = done.err[done.err.index("first failure") :]
    assert "in deep" in report
    assert "ValueError: that is why" in report
    assert run.cause()["failure"]["type"] == "ValueError"


@pytest.mark.parametrize("prepare", ["", "ignore()"])
def test_of_two_failures_the_earlier_is_the_cause_though_its_exit_came_later(
    orch: Orch, tmp_path: Path, run: LiveRun, prepare: str
) -> None:
    write_script(
        tmp_path,
        f"""
        if TASK == "worker-0":
            import atexit
            {prepare}
            atexit.register(lambda: (tell("failed"), wait_for("later")))
            raise ValueError("first")
        wait_for("failed")
        raise KeyError("second")
        """,
    )
    running = orch.start("up", "script.py", "-n", "2")
    run.event("task_exited", task="worker-1")
    (tmp_path / "later").touch()
    done = running.wait(check=1)
    assert run.cause()["task"] == "worker-0"
    report = done.err[done.err.index("first failure") :]
    assert "ValueError: first" in report
    assert "failed after it: worker-1 (exit code 1)" in report


def test_the_report_of_one_error_in_all_tasks_names_the_task_that_the_screen_has_named(orch: Orch, tmp_path: Path) -> None:
    write_script(
        tmp_path,
        """
        ignore()
        ready()
        [wait_for(f"worker-{i}.ready") for i in range(3)]
        raise ValueError(f"no layer for {TASK}")
        """,
    )
    done = orch("up", "script.py", "-n", "3", "--all", check=1)
    told = done.err.split(" has failed (exit code 1)")[0].rsplit("orch: ", 1)[1]
    others = {"worker-0": "worker-1..2", "worker-1": "worker-0, worker-2", "worker-2": "worker-0..1"}[told]
    report = done.err[done.err.index("first failure") :]
    assert report.startswith(f"first failure: {told} on local: exit code 1")
    assert f"failed with the same error: {others}\n" in report
    assert "failed after it" not in report


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


def test_a_program_that_cannot_be_executed_is_our_failure_and_named(orch: Orch, tmp_path: Path, run: LiveRun) -> None:
    program = tmp_path / "program"
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o700)
    done = orch("up", "--no-python", "./program", "-n", "2", check=125)
    assert "could not be started: ./program: No such file or directory" in done.err
    assert run.result()["outcome"] == "broken"


# --- parameter servers -------------------------------------------------------------------------

PS = ("up", "script.py", "--ps", "1", "-n", "1", "--chief", "--grace", "0.3")


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


@pytest.mark.parametrize("task", ["ps-0", "worker-0"])
def test_a_server_that_ends_before_the_chief_is_a_failure(orch: Orch, tmp_path: Path, run: LiveRun, task: str) -> None:
    write_script(tmp_path, f"if TASK != '{task}':\n    ready()\n    sleep()\nwait_for('chief-0.ready')")
    done = orch(*PS, check=1)
    assert f"{task} ended by itself (exit code 0) before the training was done" in done.err
    assert run.cause()["task"] == task


def test_a_failing_evaluator_does_not_fail_the_run(orch: Orch, tmp_path: Path, run: LiveRun) -> None:
    write_script(tmp_path, "if TASK == 'evaluator-0':\n    sys.exit(3)\nwait_for('go')")
    running = orch.start("up", "script.py", "-n", "1", "--chief", "--evaluator")
    assert run.event("task_exited", task="evaluator-0")["code"] == 3
    (tmp_path / "go").touch()
    running.wait(check=0)
    assert run.result()["outcome"] == "succeeded"


# --- deadlines ---------------------------------------------------------------------------------


def test_a_run_that_takes_too_long_is_ended(orch: Orch, tmp_path: Path, run: LiveRun) -> None:
    write_script(tmp_path, "ready(); sleep()")
    done = orch("up", "script.py", "-n", "2", "--timeout", "8", check=124)
    assert "the run was not over after 8 s (--timeout)\n" in done.err
    assert " timed out after " in done.err
    assert ": timed out after " in orch("ps", check=0).out
    assert "where the tasks were:" in done.err
    assert run.result()["outcome"] == "timed_out"
    assert "first failure" not in done.err


def test_a_cluster_that_does_not_form_names_who_is_late(orch: Orch, tmp_path: Path, run: LiveRun) -> None:
    write_script(tmp_path, "server = None if TASK == 'worker-1' else listen()\nsleep()")
    done = orch("up", "script.py", "-n", "3", "--start-timeout", "10", check=124)
    last = next(line for line in reversed(done.err.splitlines()) if "(--start-timeout)" in line)
    assert "waiting for worker-1: no port is open yet" in last
    assert "worker-0" not in last
    assert run.result()["outcome"] == "timed_out"


def test_a_cluster_that_has_formed_in_time_is_left_alone(orch: Orch, tmp_path: Path, run: LiveRun) -> None:
    write_script(tmp_path, "server = listen()\nwait_for('go')")
    running = orch.start("up", "script.py", "-n", "2", "--start-timeout", "60")
    running.wait_for("cluster formed after")
    assert {event["task"] for event in run.events() if event["event"] == "task_up"} == {"worker-0", "worker-1"}
    (tmp_path / "go").touch()
    running.wait(check=0)


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


def test_who_is_awaited_is_said_while_the_user_waits(orch: Orch, tmp_path: Path) -> None:
    write_script(tmp_path, "server = TASK == 'worker-0' and listen()\nready()\nsleep()")
    running = orch.start("up", "script.py", "-n", "2", env=IMPATIENT)
    assert wait_for_file(tmp_path / "worker-0.ready")
    running.wait_for("waiting for worker-1: no port is open yet (1 of 2 up)")
    running.signal(2)
    running.wait(check=130)
