"""What a controller writes of its run."""

from __future__ import annotations

import functools
from pathlib import Path

from orchestrator.control.journal import Journal
from orchestrator.model.policy import lifecycle
from orchestrator.model.state import events
from orchestrator.model.state.cluster import Policy
from orchestrator.record.run_store import create_run
from orchestrator.record.text import timeline
from tests.record.states import begun
from tests.record.text.test_timeline import HAPPENED


def test_a_controller_that_resumes_a_run_measures_from_the_beginning_of_its_record(tmp_path: Path) -> None:
    run = create_run(tmp_path / "home", "one")
    first, last = HAPPENED[:4], HAPPENED[4:]
    for event in first:
        run.record(event)
    journal = Journal(run, is_resumed=True)
    for later in last:
        journal.record(later)
    run.close()
    cluster = begun(Policy("multi_worker_mirrored"), dict.fromkeys(("worker-0", "worker-1"), "local"), 103.5)
    happened: tuple[events.Event, ...] = HAPPENED[1:]
    cluster = functools.reduce(lambda state, event: lifecycle.step(state, event)[0], happened, cluster)
    measured = journal.phases.measure(cluster)
    assert measured == timeline.measure(HAPPENED, cluster)
    assert measured["worker-0"]["agent"] == 0.25
