"""Runs that survive: attempts of the whole cluster, tasks that come back alone, what is kept of it. Real processes, no TensorFlow."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest

from tests.conftest import Orch
from tests.live import LiveRun, is_alive, kill, wait_for_file, wait_until, wait_until_gone, wait_until_ready, write_script

ATTEMPT = 'ATTEMPT = int(os.environ["ORCH_ATTEMPT"])\n'
FAIL_FIRST = (
    ATTEMPT
    + """
print('try', ATTEMPT, flush=True)
if ATTEMPT == 1 and TASK == 'worker-1':
    wait_for('said')
    sys.exit(3)
if ATTEMPT == 1:
    tell('said')
    sleep()
"""
)
QUICK = ("--set", "restart.backoff_s=0.01")


@pytest.mark.parametrize("preload", [(), ("decimal",)], ids=["executed", "forked"])
def test_the_whole_cluster_comes_back_on_its_ports_and_keeps_what_each_attempt_wrote(
    orch: Orch, tmp_path: Path, run: LiveRun, preload: tuple[str, ...]
) -> None:
    write_script(
        tmp_path, f"tell(f'{{TASK}}.{{os.environ[\"ORCH_ATTEMPT\"]}}.config', os.environ['TF_CONFIG'])\nlisten()\n{FAIL_FIRST}", preload
    )
    done = orch("up", "script.py", "-n", "2", "--max-restarts", "1", check=0)
    configs = {path.name: path.read_text() for path in tmp_path.glob("*.config")}
    assert len(configs) == 4
    assert configs["worker-0.1.config"] == configs["worker-0.2.config"]
    for attempt in (1, 2):
        assert [(run.path / f"attempt-{attempt}/worker-{index}/stdout.log").read_text() for index in (0, 1)] == [f"try {attempt}\n"] * 2
    assert sorted(done.out.splitlines()) == ["worker-0 | try 1", "worker-0 | try 2", "worker-1 | try 1", "worker-1 | try 2"]
    assert "attempt 1 ended after" in done.err
    assert "(restart 1 of 1)" in done.err
    result = run.result()
    assert (result["outcome"], result["attempt"], [past["cause"]["task"] for past in result["past"]]) == ("succeeded", 2, ["worker-1"])
    assert re.search(r"attempt 1 ended after .*: worker-1 failed \(exit code 3\)$", done.err, re.MULTILINE)
    assert len([event for event in run.events() if event["event"] == "template_ready"]) == len(preload)


def test_an_attempt_that_runs_an_edited_script_is_told(orch: Orch, tmp_path: Path) -> None:
    edit = """if ATTEMPT < 3:
        if ATTEMPT == 2:
            Path("script.py").write_text(Path("script.py").read_text() + "print('edited')\\n")
        sys.exit(3)
    """
    write_script(tmp_path, ATTEMPT + edit)
    done = orch("up", "script.py", "-n", "1", "--max-restarts", "2", *QUICK, check=0)
    assert done.err.count("was edited during the run") == 1
    assert "orch: script.py was edited during the run: attempt 3 runs it as it is now\n" in done.err
    assert done.out == "worker-0 | edited\n"


def test_a_script_that_saves_goes_on_where_it_was_and_one_that_does_not_is_given_up(orch: Orch, tmp_path: Path, run: LiveRun) -> None:
    text = """
    folder = Path(os.environ["ORCH_CHECKPOINT_DIR"])
    folder.mkdir(exist_ok=True)
    step = max((int(path.name) for path in folder.iterdir()), default=0)
    while step < 6:
        step += 1
        if sys.argv[1] == "save":
            (folder / str(step)).touch()
        os._exit(9)
    """
    write_script(tmp_path, text)
    orch("up", "script.py", "-n", "1", "--max-restarts", "99", *QUICK, "--", "save", check=0)
    assert [past["progressed"] for past in run.result()["past"]] == [True] * 6
    done = orch("up", "script.py", "-n", "1", "--max-restarts", "99", *QUICK, "--", "forget", check=9)
    assert "gave up: 3 attempts in a row made no progress" in done.err
    assert run.result()["attempt"] == 3


def test_a_worker_of_a_parameter_server_cluster_comes_back_alone_on_its_port(orch: Orch, tmp_path: Path, run: LiveRun) -> None:
    text = """
    server = listen()
    tell(f"{TASK}.{os.environ['ORCH_ATTEMPT']}", os.getpid())
    if TASK == "chief-0":
        wait_for("enough")
        sys.exit()
    sleep()
    """
    write_script(tmp_path, text)
    running = orch.start("up", "script.py", "-n", "2", "--ps", "1", "--max-restarts", "2", *QUICK)
    first = int(wait_for_file(tmp_path / "worker-1.1"))
    for name in ("chief-0.1", "worker-0.1", "ps-0.1"):
        wait_for_file(tmp_path / name)
    os.kill(first, signal.SIGKILL)
    second = int(wait_for_file(tmp_path / "worker-1.2"))
    run.event("task_up", task="worker-1", attempt=2)
    os.kill(second, signal.SIGKILL)
    wait_for_file(tmp_path / "worker-1.3")
    assert ", attempt 3 (restart 2 of 2)\nTASK " in orch("ps").out
    (tmp_path / "enough").touch()
    done = running.wait(check=0)
    assert done.err.count("worker-1 failed (killed by SIGKILL); it restarts alone") == 2
    assert len([event for event in run.events() if event["event"] == "task_started"]) == 6
    assert [past["task"] for past in run.result()["past"]] == ["worker-1", "worker-1"]
    assert sorted(path.name for path in tmp_path.glob("*-0.[0-9]")) == ["chief-0.1", "ps-0.1", "worker-0.1"]


def test_what_a_failed_attempt_left_behind_is_gone_before_the_next_begins(orch: Orch, tmp_path: Path) -> None:
    text = """
    if ATTEMPT == 1:
        leave_behind("ignore(); tell('stray', os.getpid()); sleep()", own_session=True)
        wait_for("stray")
        sys.exit(1)
    stray = int(Path("stray").read_text())
    try:
        os.kill(stray, 0)
    except ProcessLookupError:
        sys.exit(0)
    sys.exit("it lives")
    """
    write_script(tmp_path, ATTEMPT + text.replace("\n    ", "\n"))
    orch("up", "script.py", "-n", "1", "--max-restarts", "1", check=0)


def test_of_reports_that_come_all_the_time_few_are_recorded_and_the_last_counts(orch: Orch, tmp_path: Path, run: LiveRun) -> None:
    write_script(tmp_path, "import worker\nfor step in range(30):\n    worker.report(step=step)\n    time.sleep(0.1)")
    orch("up", "script.py", "-n", "1", check=0)
    steps = [event["values"]["step"] for event in run.events() if event["event"] == "task_reported"]
    assert len(steps) <= 3
    assert steps[-1] == 29
    assert json.loads(orch("ps", "--json").out)["tasks"][0]["report"]["step"] == 29


# --- hangs -------------------------------------------------------------------------------------


def test_silence_ends_with_124_and_with_where_everybody_was(orch: Orch, tmp_path: Path) -> None:
    write_script(tmp_path, "print('hello', flush=True)\ndef wait_for_data():\n    time.sleep(1000)\nwait_for_data()")
    done = orch("up", "script.py", "-n", "2", "--hang-timeout", "5", check=124)
    assert "no task has written or reported anything for 5 s (--hang-timeout)" in done.err
    assert "worker-0..1: in time.sleep (script.py:" in done.err
    assert re.search(r"fix: orch up -f \S+/spec\.yaml --max-restarts 3    # starts again after a hang\n", done.err)


@pytest.mark.parametrize("served", [(), pytest.param(("--set", "serve=true"), marks=pytest.mark.tensorflow)], ids=["ps", "served workers"])
def test_those_that_only_serve_do_not_hide_that_the_training_hangs(orch: Orch, tmp_path: Path, served: tuple[str, ...]) -> None:
    noisy = "not TASK.startswith('chief')" if served else "TASK == 'ps-0'"
    write_script(tmp_path, f"while {noisy}:\n    print('.', flush=True)\n    time.sleep(0.1)\nsleep()")
    options = ("--strategy", "parameter_server", "-n", "1", "--ps", "1", "--hang-timeout", "5", "--timeout", "60", *served)
    done = orch("up", "script.py", *options, check=124)
    assert "no task has written or reported anything for 5 s (--hang-timeout)" in done.err


def test_the_last_report_is_known_though_nothing_else_happens(orch: Orch, tmp_path: Path, run: LiveRun) -> None:
    """Not each report is recorded at once; a task that then works on in silence, without a deadline, is no event."""
    text = """
    import worker
    worker.report(step=0)
    wait_for('on')
    worker.report(step=1)
    time.sleep(0.3)
    worker.report(step=2)
    wait_for('go')
    """
    write_script(tmp_path, text)
    running = orch.start("up", "script.py", "-n", "1")
    run.event("task_reported")
    (tmp_path / "on").touch()

    def last_step() -> float:
        (shown,) = json.loads(orch("ps", "--json", check=0).out)["tasks"]
        return float(shown["report"]["step"])

    wait_until(lambda: last_step() == 2, "last report in ps")
    (tmp_path / "go").touch()
    running.wait(check=0)


# --- the user, the controller ------------------------------------------------------------------


def test_a_controller_killed_during_a_pause_leaves_nothing(orch: Orch, tmp_path: Path, run: LiveRun) -> None:
    write_script(tmp_path, "sys.exit(3)", ("decimal",))
    running = orch.start("up", "script.py", "-n", "2", "--max-restarts", "5", "--set", "restart.backoff_s=60")
    running.wait_for("starting again in")
    agent = run.agent()
    around = [agent, *agent.children(recursive=True)]
    kill(run.controller())
    running.wait(check=None)
    wait_until_gone(around)
    assert "lost" in orch("ps").out


def test_a_template_that_dies_between_attempts_costs_an_import_and_no_more(orch: Orch, tmp_path: Path, run: LiveRun) -> None:
    write_script(tmp_path, ATTEMPT + "if ATTEMPT == 1:\n    ready()\n    sleep()", ("decimal",))
    running = orch.start("up", "script.py", "-n", "2", "--max-restarts", "1")
    tasks = wait_until_ready(tmp_path, "worker-0", "worker-1")
    template = tasks["worker-0"].parent()
    assert template is not None
    kill(template)
    wait_until(lambda: not is_alive(template), "end of the template")
    kill(tasks["worker-1"])
    running.wait(check=0)
    assert run.result()["attempt"] == 2


# --- looking -----------------------------------------------------------------------------------


def test_logs_follow_from_one_attempt_into_the_next(orch: Orch, tmp_path: Path) -> None:
    write_script(
        tmp_path, ATTEMPT + "print('try', ATTEMPT, flush=True)\nready()\nif ATTEMPT < 3:\n    wait_for(f'go{ATTEMPT}')\n    sys.exit(1)"
    )
    running = orch.start("up", "script.py", "-n", "1", "--max-restarts", "2", *QUICK, "--quiet")
    wait_until_ready(tmp_path, "worker-0")
    following = orch.start("logs", "-f", "--json")
    reading = orch.start("logs", "-f")
    following.wait_for('"try 1"')
    reading.wait_for("worker-0 | try 1")
    (tmp_path / "go1").touch()
    following.wait_for('"try 2"')
    reading.wait_for("orch: attempt 2: worker-0 failed (exit code 1) (restart 1 of 2)\n")
    (tmp_path / "go2").touch()
    lines = [json.loads(line)["line"] for line in following.wait(check=0).out.splitlines()]
    assert lines == ["try 1", "try 2", "try 3"]
    assert "orch: attempt 3: worker-0 failed (exit code 1) (restart 2 of 2)\n" in reading.wait(check=0).err
    running.wait(check=0)
