"""Trainings that save themselves before they are taken away, and lose no step."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from orchestrator.record.run_directory import RunDir
from tests.backends.test_crate import Up
from tests.backends.test_crate_engine import Yard
from tests.backends.test_crate_engine import yard as _yard
from tests.live import PATIENCE_S, LiveRun, wait_until
from tests.real.test_resume import FIT, FIT_OPTIONS, LOOP, ORDER, Uninterrupted, check_as, check_each_once, latest, saved, steps_of, words
from tests.worker.agent_double import ROOT

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.usefixtures("warm_tensorflow")]

SLOW = {"PACE": "0.1"}
GRACE = ("--set", "timeouts.grace_s=120")


def wait_for_step(tmp_path: Path, step: int, *, after: RunDir | None = None) -> None:
    """Wait until the chief of the newest run, which is one after `after`, has finished this step."""

    def is_reached() -> bool:
        run = latest(tmp_path)
        found = [path.read_text() for path in run.path.glob("checkpoints/*-1/reached")]
        return (after is None or run.run_id != after.run_id) and bool(found) and int(found[0] or 0) >= step

    wait_until(is_reached, f"step {step}")


def named_step(said: str) -> int:
    (step,) = re.findall(r"the training saves itself at the end of step (\d+)", said)
    return int(step)


yard = _yard


class Notice(BaseHTTPRequestHandler):
    """The page of a cloud: FALSE when it is first read, and then TRUE."""

    answers: Iterator[bytes] = iter(())

    def do_GET(self) -> None:
        assert self.path == "/computeMetadata/v1/instance/preempted"
        assert self.headers["Metadata-Flavor"] == "Google"
        self.send_response(200)
        self.end_headers()
        self.wfile.write(next(type(self).answers, b"TRUE"))

    def log_message(self, *_: object) -> None:
        pass


def take_notice(tmp_path: Path) -> None:
    """Run the lines of docs/resume.md that wait for the notice of a cloud."""
    found = re.search(r"^until curl .*\norch down --save$", (ROOT / "docs/resume.md").read_text(), re.MULTILINE)
    assert found is not None
    Notice.answers = iter((b"FALSE",))
    with HTTPServer(("127.0.0.1", 0), Notice) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            lines = found[0].replace("metadata.google.internal", f"127.0.0.1:{server.server_port}")
            lines = lines.replace("orch down", f"{sys.executable} -m orchestrator down")
            subprocess.run(["sh", "-c", lines], cwd=tmp_path, check=True, timeout=PATIENCE_S, capture_output=True)
        finally:
            server.shutdown()


def test_sigterm_to_a_run_saves_one_step_and_loses_none(orch: Any, script: Any, tmp_path: Path, uninterrupted: Uninterrupted) -> None:
    program = str(script(LOOP, "loop.py"))
    whole = uninterrupted(LOOP, "-n", "2", *ORDER)
    running = orch.start("up", program, "-n", "2", *ORDER, *GRACE, "--timeout", "1h", "--set", "timeouts.save_before_s=1m", env=SLOW)
    wait_for_step(tmp_path, 7)
    running.signal(signal.SIGTERM)
    done = running.wait(check=42)
    ended, step = latest(tmp_path), named_step(words(done))
    assert f"received SIGTERM; the training has saved itself at step {step}" in words(done)
    (again,) = re.findall(r"to continue: orch (up -f \S+ --resume \S+)", done.err)
    done = orch(*again.split(), check=0)
    assert f"loop-1 continues at step {step} " in words(done)
    assert "no step is lost" in words(done)
    assert saved(latest(tmp_path), "loop-1") == saved(whole, "loop-1")
    steps = steps_of(ended, latest(tmp_path))
    assert steps == steps_of(whole)
    check_each_once(steps)
    assert max(steps_of(ended)["ids-worker-0"]) == step, "no step was done twice"
    assert min(steps_of(latest(tmp_path))["ids-worker-0"]) == step + 1


def test_sigterm_to_one_task_saves_all_of_them_and_costs_no_restart(
    orch: Any, script: Any, tmp_path: Path, uninterrupted: Uninterrupted
) -> None:
    program = str(script(FIT, "fit.py"))
    whole = uninterrupted(FIT, *FIT_OPTIONS)
    running = orch.start("up", program, *FIT_OPTIONS, *GRACE, env=SLOW)
    wait_for_step(tmp_path, 8)
    worker = next(event for event in LiveRun(tmp_path).events() if event["event"] == "task_started" and event["task"] == "worker-1")
    os.kill(worker["pid"], signal.SIGTERM)
    done = running.wait(check=0)
    step = named_step(words(done))
    assert f"worker-1 received SIGTERM; the training has saved itself at step {step}" in words(done)
    assert "does not count against --max-restarts" in words(done)
    ended = [event for event in LiveRun(tmp_path).events() if event["event"] == "task_exited" and event["attempt"] == 1]
    assert [event["code"] for event in ended] == [42, 42]
    assert f"fit-1 continues at step {step} " in words(done)
    assert "no step is lost" in words(done)
    check_as(latest(tmp_path), whole)


HANDLED = LOOP.replace(
    "dataset = tf.data",
    """
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
kept = tf.train.Checkpoint(model=model)
handler = tf.distribute.experimental.PreemptionCheckpointHandler(resolver, kept, os.path.join(os.environ["ORCH_RUN_DIR"], "handler"))
dataset = tf.data""",
).replace("loss = step(batch)", "loss = handler.run(step, batch)")


def test_tensorflows_own_handler_works_beside_it(orch: Any, script: Any, tmp_path: Path, uninterrupted: Uninterrupted) -> None:
    """A task that gets SIGTERM is its own; a run that is asked to save itself, here because of the notice of a cloud, saves as ever."""
    script(LOOP, "loop.py")
    whole = uninterrupted(LOOP, "-n", "2", *ORDER)
    running = orch.start("up", str(script(HANDLED, "handled.py")), "-n", "2", *ORDER, *GRACE, env={"PACE": "0.3"})
    wait_for_step(tmp_path, 7)
    worker = next(event for event in LiveRun(tmp_path).events() if event["event"] == "task_started" and event["task"] == "worker-1")
    os.kill(worker["pid"], signal.SIGTERM)
    wait_until(lambda: any(event["event"] == "task_saves" and event["attempt"] == 2 for event in LiveRun(tmp_path).events()), "attempt 2")
    take_notice(tmp_path)
    done = running.wait(check=42)
    assert "failed (exit code 42)" in words(done), "TensorFlow's handler has ended the first attempt"
    assert list(latest(tmp_path).path.glob("handler/*"))
    step = named_step(words(done))
    done = orch("up", "loop.py", "-n", "2", *ORDER, "--resume", latest(tmp_path).run_id, check=0)
    assert f"loop-1 continues at step {step} " in words(done)
    assert saved(latest(tmp_path), "loop-1") == saved(whole, "loop-1")


def test_a_run_that_its_engine_takes_away_and_starts_again_loses_no_step(
    script: Any, tmp_path: Path, yard: Yard, uninterrupted: Uninterrupted
) -> None:
    script(LOOP, "script.py")
    spec = (yard.path / "orch.yaml").read_text().replace("preload: []", f"python: {sys.executable}, checkpoints: {{order: one}}")
    (yard.path / "orch.yaml").write_text(spec)
    Up(yard.path).end(0)
    whole, another = latest(tmp_path), uninterrupted(LOOP, "-n", "2", *ORDER)
    assert saved(whole, "loop-1") == saved(another, "loop-1"), "two runs that nobody interrupts are equal"
    assert steps_of(whole) == steps_of(another)
    (yard.path / "orch.yaml").write_text(spec.replace("backend:", "timeouts: {grace_s: 120}, defaults: {env: {PACE: '0.1'}}, backend:"))
    yard.set("requeue")
    up = Up(yard.path)
    wait_for_step(tmp_path, 7, after=whole)
    yard.set("jobs/2/term")
    said = " ".join(up.end(0).split())
    step = named_step(said)
    assert f"loop-1 continues at step {step} " in said
    assert "no step is lost" in said
    run = latest(tmp_path)
    assert [past["free"] for past in LiveRun(yard.path).result()["past"]] == [True]
    assert steps_of(run) == steps_of(whole)
    assert saved(run, "loop-1") == saved(whole, "loop-1")
