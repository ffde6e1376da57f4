"""The story of a run: the same attempts as the run had, though most reports are left out."""

from __future__ import annotations

from pathlib import Path

from orchestrator.insight.seeing import run_story
from orchestrator.insight.seeing.story_gather import gather
from orchestrator.model.run import events
from orchestrator.record.storage.run_progress import read_cluster
from tests.made_up_run import MadeUpRun


def test_a_run_that_reached_more_steps_in_each_attempt_is_told_to_its_end(tmp_path: Path) -> None:
    """That an attempt has made progress is known from its last steps: without them a restart would seem to come too early."""
    made = MadeUpRun(tmp_path, workers=2, seconds=300.0, fails_at=(0.2, 0.4, 0.6, 0.8))
    story = gather(made.run)
    assert [attempt.attempt for attempt in run_story.losses(story.band, story.reports)] == [1, 2, 3, 4, 5]
    assert story.cluster == read_cluster(made.run)
    assert not story.is_cut
    told = [event for event in story.happened if isinstance(event, events.TaskReported)]
    assert len(told) < 5 * 2 * 6, "of 150"
