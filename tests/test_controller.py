"""The controller as a program whose input is a run directory, and what the program that has started it may ask of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import cast

import pytest

from orchestrator import controller
from orchestrator.backends import Backend, Request
from orchestrator.backends.local import Local
from orchestrator.control import signals
from orchestrator.control.requests import LONGEST, MOST_NOTES, READ_BYTES, Requests, ask, handle_requests
from orchestrator.control.starting import create, read_start
from orchestrator.control.supervisor import Supervisor
from orchestrator.model.settings import ClusterSpec, TaskSpec
from orchestrator.record.run_directory import RunDir
from orchestrator.record.run_store import create_run
from orchestrator.record.text.event_messages import Messages
from tests.conftest import Orch
from tests.live import LiveRun, wait_for_file, wait_until
from worker.protocol.messages import Program


def spec_of(directory: Path, text: str, workers: int = 1) -> ClusterSpec:
    (directory / "script.py").write_text(text)
    return ClusterSpec(
        "one",
        "none" if workers == 1 else "multi_worker_mirrored",
        Program("script", "script.py"),
        (TaskSpec("worker", workers),),
        str(directory),
        preload=(),
    )


def control(run: RunDir, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the program, as a batch step would, in a directory with modules that have the names of ours."""
    for name in ("worker.py", "errors.py", "signals.py"):
        (cwd / name).write_text("raise SystemExit('the wrong module')\n")
    return subprocess.run(
        [sys.executable, "-m", "orchestrator.controller", run.path], cwd=cwd, capture_output=True, text=True, timeout=200, check=False
    )


@pytest.mark.parametrize("what", ["missing", "file", "directory"])
def test_a_directory_that_is_no_run_is_refused_and_left_alone(tmp_path: Path, what: str) -> None:
    place = tmp_path / "place"
    if what == "file":
        place.touch()
    elif what == "directory":
        place.mkdir()
    (tmp_path / "elsewhere").mkdir()
    done = control(RunDir(place), tmp_path / "elsewhere")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: {place} is no run directory: there is no file spec.yaml in it\n"
    assert not (place / "lock").exists()


def test_a_lock_that_cannot_be_opened_is_an_error_in_one_line(tmp_path: Path) -> None:
    run = create_run(tmp_path / ".orch", "one")
    run.write("spec.yaml", "script: script.py\n")
    (run.path / "lock").mkdir()
    done = control(run, tmp_path)
    remedy = "name another directory with --home or ORCH_HOME"
    assert (done.returncode, done.stderr) == (125, f"error: {run.path}/lock cannot be locked: Is a directory; {remedy}\n")


def test_a_run_directory_is_run_to_its_verdict(tmp_path: Path) -> None:
    run = create(tmp_path / ".orch", spec_of(tmp_path, "print('hello')\nraise SystemExit(7)\n")).run
    run.lock.release()
    (tmp_path / "elsewhere").mkdir()
    done = control(run, tmp_path / "elsewhere")
    assert done.returncode == 7, done.stderr
    verdict = run.read_verdict()
    assert verdict is not None
    assert verdict.cause is not None
    assert (verdict.outcome.value, verdict.exit_code, verdict.cause.task) == ("failed", 7, "worker-0")
    assert "first failure: worker-0" in done.stderr
    assert LiveRun(tmp_path).log("worker-0") == b"hello\n"


def test_a_spec_that_was_written_by_hand_is_run(tmp_path: Path) -> None:
    run = create_run(tmp_path / ".orch", "by-hand")
    (tmp_path / "script.py").write_text("print('hello')\n")
    run.write("spec.yaml", f"# mine\nscript: script.py\nworkdir: {tmp_path}\npreload: []\nstrategy: none\n")
    assert control(run, tmp_path).returncode == 0
    assert "by-hand has been run already" in control(run, tmp_path).stderr
    run = create_run(tmp_path / ".orch", "wrong")
    run.write("spec.yaml", "script: script.py\ntasks: {worker: 0}\n")
    done = control(run, tmp_path)
    assert done.returncode == 2
    assert f"{run.path}/spec.yaml:2: tasks.worker: must be at least 1, not 0" in done.stderr


def test_a_refused_run_says_why_in_its_directory(tmp_path: Path) -> None:
    run = create(tmp_path / ".orch", spec_of(tmp_path, "def f(:\n")).run
    run.lock.release()
    done = control(run, tmp_path)
    verdict = run.read_verdict()
    assert done.returncode == 2
    assert verdict is not None
    assert verdict.cause is not None
    assert "'script.py' is not valid Python" in verdict.cause.what
    assert "'script.py' is not valid Python" in done.stderr


def test_a_run_can_be_run_in_a_thread_without_any_signal(tmp_path: Path) -> None:
    """As a test fixture may want: no process of its own, no handler, and no mask that changes."""
    run = create(tmp_path / ".orch", spec_of(tmp_path, "print('hello')\n", workers=2)).run
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    ends = []
    thread = threading.Thread(target=lambda: ends.append(controller.run(read_start(run), Messages())))
    thread.start()
    thread.join()
    assert [ended.verdict.exit_code for ended in ends] == [0]
    assert {number: signal.getsignal(number) for number in signal.valid_signals()} == handlers


def test_a_mistake_of_our_own_ends_the_run_with_its_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def allocate(backend: Backend, request: Request, on_waiting: object) -> None:
        raise ValueError("nobody has thought of this")

    run = create(tmp_path / ".orch", spec_of(tmp_path, "print('hello')\n")).run
    monkeypatch.setattr(Local, "allocate", allocate)
    ended = controller.run(read_start(run), Messages())
    assert str(ended.error) == "an internal error of orch: nobody has thought of this; please report it"
    assert "ValueError: nobody has thought of this" in capsys.readouterr().err
    result = run.read_result()
    assert result is not None
    assert (result["outcome"], result["exit_code"]) == ("broken", 125)


# --- the lock between a run's directory and its controller ----------------------------------------


def test_down_reaches_a_controller_that_was_only_just_started(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "waiting.py").write_text("import time\ntime.sleep(600)\n")
    starting = orch.start("up", "-d", "waiting.py")
    (path,) = wait_until(lambda: list(tmp_path.glob(".orch/runs/*/lock")), "lock")
    done = orch("down", path.parent.name, check=0)
    ended = starting.wait()
    assert "cancelled" in done.out, (done, ended)
    result = json.loads((path.parent / "result.json").read_text())
    assert (result["outcome"], result["exit_code"]) == ("cancelled", 143)


# --- requests -------------------------------------------------------------------------------------


def start(run: RunDir, *words: str) -> subprocess.Popen[bytes]:
    run.lock.release()
    return subprocess.Popen([sys.executable, "-m", "orchestrator.controller", run.path, *words], stderr=subprocess.DEVNULL)


WAITING = "import pathlib, time\npathlib.Path('up').touch()\ntime.sleep(600)\n"


def test_a_run_whose_owner_had_ended_before_it_began_is_not_begun(tmp_path: Path) -> None:
    run = create(tmp_path / ".orch", spec_of(tmp_path, WAITING)).run
    with start(run, "--owner", "1") as process:
        assert process.wait() == 143
    assert not (tmp_path / "up").exists()
    result = run.read_result()
    assert result is not None
    assert result["cause"]["what"] == "the program that launched it has ended"


def test_a_task_gets_a_signal_and_answers_for_what_comes_of_it(tmp_path: Path) -> None:
    run = create(tmp_path / ".orch", spec_of(tmp_path, WAITING)).run
    with start(run) as process:
        wait_for_file(tmp_path / "up")
        ask(run, "signal", task="worker-7", number=9)  # there is none
        ask(run, "signal", task="worker-0", number=9)
        assert process.wait() == 137
    cause = LiveRun(tmp_path).cause()
    assert (cause["task"], cause["code"], cause["killed"]) == ("worker-0", 137, True)


ODD = (
    *("stop", "{", "[" * 3000, "\xff", "[]", '{"ask": "dance"}', '{"ask": "stop"}'),
    '{"ask": "signal", "task": "worker-0", "number": 999}',
    '{"ask": "signal", "task": "worker-0", "number": true}',
)


def test_a_line_that_is_no_request_is_noted_and_does_no_harm(tmp_path: Path) -> None:
    run = create(tmp_path / ".orch", spec_of(tmp_path, WAITING)).run
    with start(run) as process:
        wait_for_file(tmp_path / "up")
        for line in ("", *ODD, *ODD):
            assert run.lock.send(line.encode("latin-1") + b"\n")
        ask(run, "stop", reason="enough", now=False)
        assert process.wait() == 143
    noted = [event["text"] for event in LiveRun(tmp_path).events() if event["event"] == "run_noted"]
    noted = [text for text in noted if text.startswith("a line among the requests is no request: b'")]
    assert len(noted) == MOST_NOTES
    assert noted[0].endswith("b'stop'")
    assert noted[-1].endswith("further ones are not noted")
    assert LiveRun(tmp_path).cause()["what"] == "enough"


def test_a_line_that_is_no_request_asks_for_nothing() -> None:
    """An agent would end at an order with a wrong value, and so would the run."""

    class Asked:
        def note(self, text: str) -> None:
            assert text.startswith("a line among the requests is no request")

    more = (
        '{"ask": "signal", "task": "worker-0", "number": 1e400}',
        '{"ask": "profile", "tasks": ["worker-0"], "id": "x", "seconds": NaN, "at_risk": false}',
        '{"ask": "profile", "tasks": ["worker-0"], "id": "x", "seconds": 61.0, "at_risk": false}',
        '{"ask": "stop", "reason": 5, "now": false}',
        '{"ask": "restart", "x": 1' + "0" * 5000 + "}",
    )
    for line in (*ODD, *more):
        Requests(-1, cast(Supervisor, Asked())).take(line.encode("latin-1") + b"\n")  # any other method is missing


def test_other_readers_of_the_pipe_cost_requests_and_not_the_run(tmp_path: Path) -> None:
    run = create(tmp_path / ".orch", spec_of(tmp_path, WAITING)).run
    with start(run) as process, contextlib.ExitStack() as readers:
        wait_for_file(tmp_path / "up")
        cats = [readers.enter_context(subprocess.Popen(["cat", run.path / "control"], stdout=subprocess.DEVNULL)) for _ in range(4)]
        for _ in range(200):
            ask(run, "stacks")
        assert process.poll() is None
        for cat in cats:
            cat.kill()
            cat.wait()
        ask(run, "stop", reason="enough", now=True)
        assert process.wait() == 143
    assert LiveRun(tmp_path).cause()["what"] == "enough"


def test_a_turn_of_the_loop_reads_few_requests_and_a_cut_line_is_put_together() -> None:
    asked: list[str] = []

    class Asked:
        def stop(self, reason: str, code: int, *, saves: bool) -> None:
            asked.append(reason)

        def note(self, text: str) -> None:
            asked.append(text)

    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    requests = Requests(read_end, cast(Supervisor, Asked()))
    os.write(write_end, b"\n" * (READ_BYTES - 10) + b'{"ask": "stop", "reason": "enough", "now": false}\n')
    requests.read()
    assert asked == []
    requests.read()
    requests.read()  # another process has emptied the pipe
    assert asked == ["enough"]
    os.write(write_end, b"x" * 60_000 + b"\n")
    for _ in range(20):
        requests.read()
    assert len(requests.rest) <= LONGEST + 1
    assert len(asked) == 2
    assert asked[1].startswith("a line among the requests is no request")
    os.close(read_end)
    os.close(write_end)


def test_a_controller_that_resumes_a_run_acts_on_what_the_former_one_has_not_read(tmp_path: Path) -> None:
    run = create_run(tmp_path / ".orch", "one")

    def act() -> list[str]:
        """What a controller is asked for that lives for some turns of its loop."""
        asked: list[str] = []

        class Resumed:
            def stop(self, reason: str, code: int, *, saves: bool) -> None:
                asked.append(reason)

        async def live() -> None:
            handle_requests(run, cast(Supervisor, Resumed()), has_file=True)
            assert asked == [], "the run is resumed first"
            for _ in range(3):
                await asyncio.sleep(0)

        asyncio.run(live())
        return asked

    (run.path / "requests").write_text('{"ask": "stop", "reason": "the first", "now": false}\n{"ask": ')
    assert act() == ["the first"]
    with open(run.path / "requests", "a") as file:
        file.write('"stop", "reason": "while nobody read", "now": false}\n')
    assert act() == ["while nobody read"]
    assert act() == []


@pytest.mark.parametrize("code", [0, 3, 125])
def test_a_job_that_is_started_again_after_the_end_of_its_run_leaves_the_run(tmp_path: Path, code: int) -> None:
    run = create(tmp_path / ".orch", spec_of(tmp_path, "open('again', 'w')\n")).run
    ended = {"outcome": "succeeded" if code == 0 else "failed", "exit_code": code, "attempt": 1, "started_at": 1.0, "ended_at": 2.0}
    run.write("result.json", json.dumps(ended))
    run.lock.release()
    done = subprocess.run(
        [sys.executable, controller.__file__, run.path, "--submitted"], capture_output=True, text=True, timeout=200, check=False
    )
    assert (done.returncode, json.loads((run.path / "result.json").read_text())) == (code, ended)
    assert f"{run.run_id} ended with exit code {code}, and is left as it is" in done.stderr
    assert not (tmp_path / "again").exists()


def test_an_engine_that_signals_a_job_and_each_of_its_processes_asks_once() -> None:
    asked: list[str] = []
    stop = signals.once(asked.append)
    stop("received SIGTERM")
    stop("received SIGTERM")
    assert asked == ["received SIGTERM"]
    stop = signals.once(asked.append, together_s=-1.0)
    stop("received SIGTERM")
    stop("received SIGTERM")
    assert len(asked) == 3


def test_requests_without_end_are_dropped_and_the_end_of_the_run_is_not() -> None:
    asked: list[str] = []

    class Asked:
        def show_stacks(self) -> None:
            asked.append("stacks")

        def profile(self, *_: object, at_risk: bool) -> None:
            asked.append("profile")

        def stop(self, reason: str, code: int, *, saves: bool) -> None:
            asked.append(reason)

    requests = Requests(-1, cast(Supervisor, Asked()))
    profile = b'{"ask": "profile", "tasks": [], "id": "x", "seconds": 1.0, "at_risk": false}\n'
    requests.take((b'{"ask": "stacks"}\n' + profile) * 3000 + b'{"ask": "stop", "reason": "enough", "now": false}\n')
    assert asked[-1] == "enough"
    assert 2 <= len(asked) < 100
