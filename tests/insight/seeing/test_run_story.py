"""The story of a run: the same attempts as the run had, though most reports are left out."""

from __future__ import annotations

from pathlib import Path

from orchestrator.insight.seeing import charts, run_story
from orchestrator.insight.seeing.story_gather import gather
from orchestrator.model.run import events
from orchestrator.model.run.cluster import Cluster
from orchestrator.record.storage.run_progress import read_cluster
from tests.made_up_run import MadeUpRun
from worker.protocol.messages import Sampled, TaskUse


def test_a_run_that_reached_more_steps_in_each_attempt_is_told_to_its_end(tmp_path: Path) -> None:
    """That an attempt has made progress is known from its last steps: without them a restart would seem to come too early."""
    made = MadeUpRun(tmp_path, workers=2, seconds=300.0, fails_at=(0.2, 0.4, 0.6, 0.8))
    story = gather(made.run)
    assert [attempt.attempt for attempt in run_story.losses(story.band, story.reports)] == [1, 2, 3, 4, 5]
    assert story.cluster == read_cluster(made.run)
    assert not story.is_cut
    told = [event for event in story.happened if isinstance(event, events.TaskReported)]
    assert len(told) < 5 * 2 * 6, "of 150"


def test_the_strip_shows_who_waits_for_whom() -> None:
    """worker-0 works, worker-1 waits for it, worker-2 waits for its input, and worker-3 has come to a step that others do not reach."""
    uses = (
        TaskUse("worker-0", 1, "S", 90.0, work=0.09, peers=0.01, window=3),
        TaskUse("worker-1", 1, "S", 90.0, work=0.02, peers=0.08, window=3),
        TaskUse("worker-2", 1, "S", 90.0, work=0.03, peers=0.02, input=0.05, window=3),
        TaskUse("worker-3", 1, "S", 90.0, waits=30.0),
        TaskUse("worker-4", 1, "T", 0.0, waits=30.0),
    )
    tracks = {use.task: (run_story.Stretch(0.0, 100.0, "runs"),) for use in uses}
    samples = tuple(Sampled(float(at), 2.0, uses) for at in range(2, 101, 2))
    strips = charts.strips(run_story.Story(0.0, 100.0, Cluster(), (), tracks, samples=samples))
    assert {strip.name: [*strip.shares] for strip in strips} == {
        "worker-0": ["most"],
        "worker-1": ["peers"],
        "worker-2": ["input"],
        "worker-3": ["peers"],
        "worker-4": ["stopped"],
    }
