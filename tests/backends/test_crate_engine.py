"""A controller that is a job of an engine (crate_engine.py): every command on a run that waits, runs, is requeued, or has lost its host."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.backends.test_crate import ENTER, PROGRAM, ROOT, Up, orch
from tests.live import PATIENCE_S, PRELUDE, LiveRun, wait_for_file, wait_until

QUEUE = "no crate is free"
SCRIPT = """
server = listen()
print(TASK, 'of attempt', os.environ['ORCH_ATTEMPT'], flush=True)
print('MatMul: (MatMul): /job:localhost/replica:0/task:0/device:CPU:0', flush=True)  # as TensorFlow's placer says it
ready()
wait_for('go')
"""
SAVES = "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(1.5), tell(TASK + '.saved'), sys.exit(0)))\n"
"""A task that needs its grace period: an agent without a controller gives one second."""
SPEC = "{script: script.py, tasks: {worker: 2}, preload: [], backend: {type: crate, crates: crates.txt, engine: near}}"


class Yard:
    """The directory of the engine, with the levers of a test."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def set(self, name: str, text: str = "") -> None:
        (self.path / name).write_text(text)

    def take_back(self, name: str) -> None:
        (self.path / name).unlink()

    def asked(self) -> int:
        """How many questions the engine has had."""
        return len((self.path / "asked").read_text().splitlines()) if (self.path / "asked").exists() else 0

    def word(self, job: str = "1") -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.path / "jobs" / job / "word.json").read_text())
        return found

    def wait_for_word(self, state: str, job: str = "1") -> None:
        wait_until(lambda: self.word(job)["state"] == state, f"job {state}")

    def ps(self, code: int = 0) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(orch(self.path, "ps", "--json", check=code).stdout)
        return found

    def shown(self, text: str) -> str:
        """The output of `orch ps`, once this text is in it."""

        def look() -> str:
            found = orch(self.path, "ps").stdout
            return found if text in found else ""

        return wait_until(look, text)

    def ready(self, *tasks: str) -> None:
        for task in tasks:
            wait_for_file(self.path / f"{task}.ready")

    def start(self, *words: str) -> str:
        return orch(self.path, "up", "-d", *words).stdout.strip()


@pytest.fixture(params=["near"])
def yard(tmp_path: Path, _nothing_left: None, request: pytest.FixtureRequest) -> Iterator[Yard]:
    """Two crates, and an engine that runs controllers: on this file system (near), or on another one and in another network (far)."""
    (tmp_path / "crates.txt").write_text("red 1\nblue 1\n")
    (tmp_path / "enter").write_text(ENTER)
    (tmp_path / "enter").chmod(0o700)
    (tmp_path / "script.py").write_text(PRELUDE + SCRIPT)
    (tmp_path / "orch.yaml").write_text(SPEC.replace("near", request.param))
    argv = ["setpriv", "--pdeathsig", "KILL", sys.executable, "-m", "tests.backends.crate_engine", str(tmp_path)]
    env = {**os.environ, "ORCH_TIME_SCALE": "0.1"}
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, env=env, start_new_session=True) as daemon:
        assert daemon.stdout is not None
        assert daemon.stdout.readline() == b"ready\n"
        yield Yard(tmp_path)
        daemon.kill()


FAR = pytest.mark.parametrize("yard", [pytest.param("far", marks=pytest.mark.root)], indirect=True)
BOTH = pytest.mark.parametrize("yard", ["near", pytest.param("far", marks=[pytest.mark.root, pytest.mark.slow])], indirect=True)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine may be asked every second or so."""
    monkeypatch.setenv("ORCH_TIME_SCALE", "0.1")


# --- waiting and running ------------------------------------------------------------------------


@BOTH
def test_an_attached_run_is_followed_from_the_queue_to_its_report(yard: Yard) -> None:
    yard.set("queue", QUEUE)
    up = Up(yard.path)
    up.wait_for(f"queued at the crates: {QUEUE}")
    assert (yard.path / ".orch" / "latest").is_symlink()
    seen = yard.ps()
    assert (seen["state"], seen["phase"], seen["waiting"]) == ("running", "allocating", f"queued at the crates: {QUEUE}")
    assert f"has no tasks yet: queued at the crates: {QUEUE}" in orch(yard.path, "ps").stdout
    yard.take_back("queue")
    up.wait_for("worker-0 | worker-0 of attempt 1")
    up.wait_for("worker-1 | worker-1 of attempt 1")
    yard.set("go")
    said = up.end(0)
    assert "submitted as crate job 1" in said
    assert "succeeded after" in said
    assert {path.name for path in LiveRun(yard.path).path.glob("request/*")} >= {"job.json", "order.txt"}
    assert "is_submitted" not in said


@BOTH
def test_every_command_works_on_a_detached_run_from_any_process(yard: Yard) -> None:
    shown = orch(yard.path, "up", "--dry-run").stdout
    yard.set("queue", QUEUE)
    name = yard.start()
    assert (
        shown.split("# job.json\n")[1]
        .partition("\n#")[0]
        .replace("<run>", name)
        .replace("<run directory>", str(yard.path / ".orch/runs" / name))
        .strip()
        == (yard.path / ".orch/runs" / name / "request/job.json").read_text().strip()
    )
    for command in ("logs", "restart", "stacks", "placement"):
        assert f"{name} has no tasks yet: queued at the crates: {QUEUE}" in orch(yard.path, command, check=2).stderr, command
    assert f"waits: queued at the crates: {QUEUE}" in orch(yard.path, "top").stdout
    assert orch(yard.path, "wait", "--timeout", "1", check=124).stderr.endswith("is still running after 1 s\n")
    with subprocess.Popen(["timeout", "200", sys.executable, "-c", PROGRAM, "logs", "-f"], cwd=yard.path, stdout=subprocess.PIPE) as logs:
        yard.take_back("queue")
        yard.ready("worker-0", "worker-1")
        wait_until(lambda: "running since" in orch(yard.path, "ps").stdout, "running tasks")
        assert f"{name.rpartition('-')[0]}  " in orch(yard.path, "ps", "--all").stdout
        assert {line.split()[1] for line in orch(yard.path, "top").stdout.splitlines() if line.startswith("worker-")} == {"red", "blue"}
        wait_until(lambda: "worker-0..1: in time.sleep (script.py:" in orch(yard.path, "stacks").stdout, "both in the same line")
        orch(yard.path, "restart")
        LiveRun(yard.path).event("planned", attempt=1)
        LiveRun(yard.path).event("task_began", attempt=2, task="worker-1")
        yard.set("go")
        assert logs.stdout is not None
        said = logs.stdout.read().decode()
    assert "worker-0 | worker-0 of attempt 1" in said
    assert "worker-1 | worker-1 of attempt 2" in said
    assert orch(yard.path, "wait").stderr.startswith(f"orch: {name} succeeded after")
    orch(yard.path, "report")
    assert orch(yard.path, "top").stdout.startswith(f"{name}: succeeded, attempt 2, ")
    assert "worker-0 of attempt 2" in orch(yard.path, "logs").stdout
    assert "MatMul" in orch(yard.path, "placement").stdout
    assert yard.ps()["state"] == "succeeded"


LAUNCH = """
import json, os, time
from pathlib import Path
import orchestrator
with orchestrator.launch("orch.yaml") as run:
    assert run.is_running and run.tasks == {}
    try:
        run.wait(0.5)
    except TimeoutError:
        Path("queue").unlink()
    found = orchestrator.find(run.run_id)
    while {task.state for task in found.tasks.values()} != {"up"}:
        time.sleep(0.1)
    line = next(found.lines("worker-1")).text
    stacks = sorted(found.stacks())
    result = found.stop()
print(json.dumps([line, stacks, result.outcome, result.exit_code, result.cause.what, run.wait().exit_code]))
"""


@FAR
def test_a_program_launches_finds_and_ends_such_a_run(yard: Yard) -> None:
    yard.set("queue", QUEUE)
    program = [sys.executable, "-c", f"from tests.backends import crate; crate.register()\n{LAUNCH}"]
    done = subprocess.run(program, cwd=yard.path, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    told = ["cancelled", 143, "stopped by the program that launched it", 143]
    assert json.loads(done.stdout) == ["worker-1 of attempt 1", ["worker-0", "worker-1"], *told]


# --- ending it ----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["interrupted", "down"])
def test_a_job_that_waits_is_withdrawn(yard: Yard, how: str) -> None:
    yard.set("queue", QUEUE)
    up = Up(yard.path)
    up.wait_for(QUEUE)
    if how == "down":
        assert "cancelled" in orch(yard.path, "down").stdout
    else:
        up.process.send_signal(signal.SIGINT)
    said = up.end(143 if how == "down" else 130)
    assert ("stopped by orch down" if how == "down" else "interrupted (Ctrl-C)") in said
    assert yard.word()["state"] == "ended"
    seen = yard.ps()
    assert (seen["state"], seen["phase"], seen["tasks"]) == ("cancelled", "done", [])
    assert "it was not running" in orch(yard.path, "down").stdout


def test_ctrl_c_ends_the_tasks_gracefully_and_a_closed_terminal_leaves_them(yard: Yard) -> None:
    (yard.path / "script.py").write_text(PRELUDE + SAVES + SCRIPT)
    up = Up(yard.path)
    up.wait_for("of attempt 1")
    yard.ready("worker-0", "worker-1")
    up.process.send_signal(signal.SIGHUP)
    up.end(129)
    assert yard.ps()["state"] == "running"
    name = LiveRun(yard.path).path.name
    assert orch(yard.path, "down").stdout.startswith(f"{name}: cancelled after")
    assert (yard.path / "worker-0.saved").exists()
    assert (yard.path / "worker-1.saved").exists()
    for file in yard.path.glob("worker-*"):
        file.unlink()
    # The tasks stay until the follower has seen what is waited for.
    (yard.path / "script.py").write_text(PRELUDE + SAVES.replace("time.sleep(1.5)", "wait_for('may_end')") + SCRIPT)
    up = Up(yard.path, "--set", "timeouts.grace_s=200")
    yard.ready("worker-0", "worker-1")
    up.process.send_signal(signal.SIGINT)
    up.wait_for("interrupted (Ctrl-C); stopping worker-0..1")
    yard.set("may_end")
    up.end(130)
    assert (yard.path / "worker-0.saved").exists()


def test_a_user_can_leave_while_the_engine_is_busy(yard: Yard) -> None:
    yard.set("queue", QUEUE)
    up = Up(yard.path)
    up.wait_for(QUEUE)
    yard.set("slow")
    asked = yard.asked()
    wait_until(lambda: yard.asked() > asked, "question")
    for _ in range(3):
        up.process.send_signal(signal.SIGINT)
        time.sleep(1)  # a signal that is pending counts once
    assert f"{LiveRun(yard.path).path.name} goes on; orch down" in up.end(130)
    yard.take_back("slow")
    assert yard.ps()["state"] == "running"
    orch(yard.path, "down")


# --- when the engine ends it --------------------------------------------------------------------


@FAR
def test_a_run_whose_host_died_has_the_end_that_the_engine_tells(yard: Yard) -> None:
    up = Up(yard.path)
    up.wait_for("of attempt 1")
    yard.set("jobs/1/die")
    said = up.end(125)
    assert "crate job 1: its host died" in said
    assert orch(yard.path, "wait", check=125).stderr.count("crate job 1: its host died") == 1
    assert "its host died" in orch(yard.path, "ps").stdout
    assert {task["state"] for task in yard.ps()["tasks"]} == {"lost"}
    assert "it was not running" in orch(yard.path, "down").stdout


@FAR
@pytest.mark.parametrize("how", ["die", "term"])
def test_a_requeued_run_goes_on_with_its_next_attempt(yard: Yard, how: str) -> None:
    (yard.path / "script.py").write_text(PRELUDE + SAVES + SCRIPT)
    yard.set("requeue")
    up = Up(yard.path)
    up.wait_for("worker-1 of attempt 1")
    yard.ready("worker-0", "worker-1")
    yard.set("queue", QUEUE)
    yard.set(f"jobs/1/{how}")
    up.wait_for(QUEUE)
    wait_until(lambda: yard.word()["state"] == "waiting", "requeued job")
    yard.shown("attempt 2 has no tasks yet: queued")
    assert {path.name for path in yard.path.glob("*.saved")} == ({"worker-0.saved", "worker-1.saved"} if how == "term" else set())
    yard.set("lent", "red 2\n")
    yard.take_back("queue")
    up.wait_for("worker-1 of attempt 2")
    assert not (yard.path / "jobs/1/forgotten").exists(), "the verdict of an attempt that is followed by another one is no end"
    yard.set("go")
    said = up.end(0)
    assert (yard.path / "jobs/1/forgotten").exists()
    assert "attempt 2: multi_worker_mirrored, worker-0..1 on red\n" in said
    assert "succeeded after" in said
    assert [past["free"] for past in LiveRun(yard.path).result()["past"]] == [True]


# --- from another machine ------------------------------------------------------------------------

ELSEWHERE = ("unshare", "--mount", "--net", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc")
"""Another machine on the same disk: processes, network and name are others, and nothing in memory is as it was."""
BOOTED = 'hostname another && mount -t tmpfs tmpfs /run && mkdir -p "$TMPDIR" && exec "$@"'
WITHOUT_LOCKS = f"""
import errno, os
from orchestrator.record import engine_files, run_lock
def refuse(*_):
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
engine_files.try_lock = run_lock.try_lock = refuse
run_lock.RunLock._pipe = property(lambda lock: lock._place() / "pipe-of-another-machine")
{PROGRAM}"""
"""orch on a machine whose file server gives no locks; a named pipe has readers on its own machine only."""


def elsewhere(yard: Yard, *words: str, check: int = 0) -> subprocess.CompletedProcess[str]:
    """`orch` on another machine, or on the same one after a reboot."""
    argv = [*ELSEWHERE, "sh", "-c", BOOTED, "sh", sys.executable, "-c", PROGRAM, *words]
    env = {**os.environ, "TMPDIR": f"{yard.path}/tmp-of-another"}
    done = subprocess.run(argv, cwd=yard.path, env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == check, done
    return done


def lose_machine(yard: Yard, *processes: subprocess.Popen[bytes]) -> None:
    """The submitting machine dies: its processes, at once, and whatever it kept in memory. What it wrote last is half of something."""
    for process in processes:
        process.kill()
        process.wait()
    for half in ("asking", "runs/.new", f"runs/{LiveRun(yard.path).path.name}/mirroring"):
        (yard.path / ".orch" / half).write_text('{"pid": 1, "ho')


@BOTH
@pytest.mark.root
def test_a_run_goes_on_without_the_machine_that_submitted_it_and_is_found_again(yard: Yard) -> None:
    yard.set("queue", QUEUE)
    up = Up(yard.path)
    up.wait_for(QUEUE)
    name = LiveRun(yard.path).path.name
    lose_machine(yard, up.process)
    assert f"it has no tasks yet: queued at the crates: {QUEUE}" in elsewhere(yard, "ps").stdout
    with subprocess.Popen([sys.executable, "-c", PROGRAM, "logs", "-f"], cwd=yard.path, stdout=subprocess.DEVNULL) as logs:
        yard.take_back("queue")
        yard.ready("worker-0", "worker-1")
        yard.shown("running since")
        lose_machine(yard, logs)
    assert "running since" in elsewhere(yard, "ps").stdout
    assert "worker-1 | worker-1 of attempt 1" in elsewhere(yard, "logs").stdout
    assert "worker-0..1: in time.sleep (script.py:" in elsewhere(yard, "stacks").stdout
    elsewhere(yard, "wait", "--timeout", "1", check=124)
    yard.set("go")
    assert elsewhere(yard, "wait").stderr.startswith(f"orch: {name} succeeded after")
    assert orch(yard.path, "logs").stdout.count("worker-1 of attempt 1") == 1
    yard.set("queue", QUEUE)
    second = yard.start()
    lose_machine(yard)
    assert elsewhere(yard, "down").stdout.startswith(f"{second}: cancelled")
    assert yard.word("2")["state"] == "ended"


def test_where_the_file_system_gives_no_locks_the_word_of_the_engine_counts(yard: Yard) -> None:
    def look(*words: str, check: int = 0) -> str:
        argv = [sys.executable, "-c", WITHOUT_LOCKS, *words]
        done = subprocess.run(argv, cwd=yard.path, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert done.returncode == check, done
        return done.stdout + done.stderr

    yard.set("queue", QUEUE)
    name = yard.start()
    assert f"{name}: running; it has no tasks yet: queued at the crates: {QUEUE}" in look("ps")
    yard.take_back("queue")
    yard.ready("worker-0", "worker-1")
    wait_until(lambda: "running since" in look("ps"), "running tasks")
    look("wait", "--timeout", "1", check=124)
    assert "worker-0..1: in time.sleep (script.py:" in look("stacks")
    for file in yard.path.glob("*.ready"):
        file.unlink()
    look("restart")
    yard.ready("worker-0", "worker-1")
    assert "worker-1 of attempt 2" in look("logs")
    yard.set("jobs/1/die")
    yard.wait_for_word("ended")
    assert "its host died" in look("wait", check=125)
    assert "its host died" in look("ps")
    assert "it was not running" in look("down")
    second = yard.start()
    yard.ready("worker-0", "worker-1")
    wait_until(lambda: "running since" in look("ps"), "running tasks")
    assert look("down").startswith(f"{second}: cancelled after")


def test_an_engine_that_does_not_answer_is_named_with_the_age_of_its_last_word(yard: Yard) -> None:
    yard.set("queue", QUEUE)
    yard.start()
    assert QUEUE in orch(yard.path, "ps").stdout
    yard.set("deaf")
    told = yard.shown("cannot ask")
    assert "cannot ask the crates: nobody answers; " in told
    assert f" s ago: queued at the crates: {QUEUE}" in told
    assert yard.ps()["state"] == "running"
    yard.take_back("deaf")
    orch(yard.path, "down")


@FAR
def test_a_machine_that_cannot_be_reached_is_named_and_its_run_goes_on(yard: Yard) -> None:
    name = yard.start()
    yard.ready("worker-0", "worker-1")
    yard.shown("running since")
    yard.set("cut")
    assert " s ago: running at the crates" in yard.shown("the machine of the controller cannot be asked")
    assert "cannot be asked" in orch(yard.path, "down", check=125).stderr
    yard.take_back("cut")
    assert orch(yard.path, "down").stdout.startswith(f"{name}: cancelled after")
    assert "worker-0 of attempt 1" in orch(yard.path, "logs").stdout
    far = yard.path / "far" / "runs" / name
    assert (far / "requests").read_text().count("\n") == 1
    assert not (LiveRun(yard.path).path / "requests").exists()
    for file in ("result.json", "events.jsonl", "plan.json", "attempt-1/worker-1/stdout.log"):
        assert (far / file).read_bytes() == (LiveRun(yard.path).path / file).read_bytes()


def test_one_question_is_for_all_runs_and_is_asked_seldom(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    yard.set("queue", QUEUE)
    names = [yard.start(), yard.start()]
    with monkeypatch.context() as slow:
        slow.setenv("ORCH_TIME_SCALE", "10")  # also on a loaded machine, all come before it is time to ask again, and wait for who asks
        words = [sys.executable, "-c", PROGRAM, "ps", "--all"]
        commands = [subprocess.Popen(words, cwd=yard.path, stdout=subprocess.PIPE, text=True) for _ in range(3)]
        told = [command.communicate()[0] for command in commands]
    assert [command.returncode for command in commands] == [0] * 3
    assert [each.count(f"running: queued at the crates: {QUEUE}") for each in told] == [2] * 3, told
    assert (yard.path / "asked").read_text() == "1,2\n"
    for name in names:
        orch(yard.path, "down", name)


def test_what_the_engine_refuses_leaves_no_run(yard: Yard) -> None:
    yard.set("refuses", "the crates take no job of two workers")
    assert "the crates take no job of two workers" in orch(yard.path, "up", "-d", check=125).stderr
    assert not list(yard.path.glob(".orch/runs/*"))


@pytest.mark.parametrize(
    ("lever", "text", "code", "told"),
    [("until", "2", 124, "the time of its allocation is nearly over"), ("refusal", "no crates are left", 125, "error: no crates are left")],
)
def test_an_allocation_may_end_or_be_refused(yard: Yard, lever: str, text: str, code: int, told: str) -> None:
    yard.set(lever, text)
    assert told in Up(yard.path).end(code)
    assert yard.ps()["result"]["exit_code"] == code
