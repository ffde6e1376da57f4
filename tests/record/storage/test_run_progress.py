"""The state of a long run: read from a snapshot and the events since, it is what all events give."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.model.policy import endings, lifecycle
from orchestrator.model.state import events
from orchestrator.model.state.cluster import Cluster
from orchestrator.record import run_progress
from orchestrator.record.run_directory import RunDir
from orchestrator.record.run_progress import Progress, Snapshots
from orchestrator.record.run_store import create_run
from orchestrator.record.text import timeline
from tests.live import plan_for
from worker.protocol.messages import Evidence, Failure

FAILURE = Failure("ValueError", "no", "Traceback …", 150.0)


def happened(reports: int) -> list[events.Event]:
    """A run of two attempts with everything that a state can hold."""
    values = {"step": 7, "loss": 0.5, "more": {"a": [1, None, "x"]}, "input": {"steps": 3, "batches": [3], "elements": [12], "bytes": [96]}}
    first: list[events.Event] = [
        *(events.TaskStarted(f"worker-{i}", 1, 50 + i, 100.0) for i in range(2)),
        events.TaskUp("worker-0", 1, 101.0),
        events.TaskWaiting("worker-1", 1, "no port is open yet", 102.0),
        *(events.TaskReported("worker-0", 1, {**values, "step": n}, 103.0 + n) for n in range(reports)),
        events.CheckpointSeen(140.0),
        events.RestartRequested(149.0),
        events.TaskExited("worker-0", 1, 1, False, 150.0, FAILURE, evidence=Evidence(failed_first=True)),
        events.TaskExited("worker-1", 1, 143, True, 151.0, killed=True),
        *(events.TaskSwept(f"worker-{i}", 1, 152.0) for i in range(2)),
        events.Tick(153.0),
    ]
    again = [events.TaskStarted(f"worker-{i}", 2, 60 + i, 154.0) for i in range(2)]
    return [*first, *again, *(events.TaskReported("worker-1", 2, {**values, "step": n}, 155.0 + n) for n in range(reports))]


def record(run: RunDir, reports: int) -> Cluster:
    """Record a run as its controller does. Returns the controller's own state."""
    cluster, snapshots = Progress(run).read(), Snapshots(run)
    for event in happened(reports):
        run.record(event)
        cluster, _ = lifecycle.step(cluster, event)
        snapshots.keep(cluster, event.at)
    assert cluster.attempt == 2
    return cluster


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = create_run(tmp_path / "home", "one")
    plan_for(run, 2)
    return run


@pytest.mark.parametrize("every", [1, 300, 2000])
def test_a_snapshot_and_the_events_since_are_all_events(run: RunDir, monkeypatch: pytest.MonkeyPatch, every: int) -> None:
    monkeypatch.setattr(run_progress, "EVERY_BYTES", every)
    monkeypatch.setattr(run_progress, "BYTES_OF_TASK", 0)
    cluster = record(run, 20)
    run.close()
    kept = json.loads((run.path / "progress.json").read_bytes())
    assert kept["size"] > 1000
    progress = Progress(run)
    assert progress.read() == cluster
    assert progress.at == happened(20)[-1].at
    (run.path / "progress.json").unlink()
    assert Progress(run).read() == cluster


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"size": 1}', "[" * 3000, "longer than the events"])
def test_a_snapshot_that_is_damaged_is_not_believed(run: RunDir, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    monkeypatch.setattr(run_progress, "EVERY_BYTES", 1)
    cluster = record(run, 3)
    run.close()
    path = run.path / "progress.json"
    if damage.startswith("longer"):
        damage = json.dumps({**json.loads(path.read_bytes()), "size": 10**6, "cluster": {"policy": {"strategy": "none"}, "tasks": {}}})
    path.write_text(damage)
    assert Progress(run).read() == cluster


def test_a_long_run_is_read_from_its_last_snapshot_on(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_progress, "EVERY_BYTES", 10_000)
    monkeypatch.setattr(run_progress, "BYTES_OF_TASK", 0)
    cluster = record(run, 1000)
    run.close()
    steps = []
    step = lifecycle.step

    def count(before: Cluster, event: events.Event) -> endings.Step:
        steps.append(event)
        return step(before, event)

    monkeypatch.setattr(lifecycle, "step", count)
    assert Progress(run).read() == cluster
    assert len(steps) < 200, "of 2,000 events"


def test_the_timeline_and_the_state_need_few_reports_of_each_attempt(run: RunDir) -> None:
    cluster = record(run, 50)
    run.close()
    every: list[bytes] = []
    few = list(run.read_events(milestones=True, on_report=lambda key, line: every.append(line)))
    reports = [(event.task, event.attempt, event.values["step"]) for event in few if isinstance(event, events.TaskReported)]
    assert reports == [("worker-0", 1, 0), ("worker-0", 1, 49), ("worker-1", 2, 0), ("worker-1", 2, 49)]
    assert len(every) == 100
    assert timeline.measure(few, cluster) == timeline.measure(run.read_events(), cluster)
    folded = Cluster()
    for event in few:
        folded, _ = lifecycle.step(folded, event)
    assert folded == cluster
    assert (run.path / "progress.json").exists() is False, "a short run has no snapshot"


def test_what_the_code_before_has_recorded_is_no_error(tmp_path: Path) -> None:
    """Before 0.1.0, the tasks were not among the events."""
    run = create_run(tmp_path / "home", "one")
    (run.path / "plan.json").write_text("{}")
    old = [
        '{"event":"run_begun","at":99.0}',
        '{"event":"launched","attempt":1,"at":100.0}',
        '{"event":"task_up","task":"worker-0","at":101.0}',
    ]
    (run.path / "events.jsonl").write_text("".join(f"{line}\n" for line in old))
    cluster = Progress(run).read()
    assert (cluster.began_at, cluster.tasks) == (99.0, {})
