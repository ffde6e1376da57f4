"""The story of a run: the same attempts as the run had, though most reports are left out."""

from __future__ import annotations

from pathlib import Path

from orchestrator.model.state import events
from orchestrator.model.state.cluster import Cluster
from orchestrator.record.run_progress import read_cluster
from orchestrator.views import charts, run_story, trace_file
from orchestrator.views.story_gather import gather
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


LATER = ((261, 320), (320, 330), (330, 386), (327, 384))
"""From which step to which the spans of the later attempts go."""


def test_the_steps_of_fit_are_counted_through_its_epochs() -> None:
    """Epochs of 64 steps. The second attempt goes on where the first one ended; the third begins 60 steps before that of the second did."""
    told = {
        1: ((1.0, 1, 1), (3.0, 1, 64), (6.0, 2, 64), (9.0, 5, 1)),
        2: ((11.0, 5, 5), (13.0, 5, 64), (16.0, 6, 10), (18.0, 7, 2)),
        3: ((21.0, 6, 7), (23.0, 6, 64)),
    }
    reports = {
        task: [
            run_story.Reported(at + late, attempt, {"epoch": float(epoch), "step": float(step)})
            for attempt, found in told.items()
            for at, epoch, step in found
        ]
        for task, late in (("worker-0", 0.0), ("worker-1", 0.1))
    }
    band = tuple(run_story.Stretch(at, at + 10, run_story.TRAINS, attempt) for attempt, at in ((1, 0.0), (2, 10.0), (3, 20.0)))
    story = run_story.Story(0.0, 30.0, Cluster(), band, {"worker-0": band}, reports)
    steps = [one["name"] for one in trace_file.trace(story)["traceEvents"] if one["name"].startswith("steps ")]
    assert steps == ["steps 2 to 64", "steps 65 to 128", "steps 129 to 257", *(f"steps {before + 1} to {after}" for before, after in LATER)]
    marked = run_story.with_losses(band, (), reports)
    assert [(one.begun, one.ended, one.kind, one.attempt) for one in marked] == [
        (0.0, 10.0, "trains", 1),
        (10.0, 16.0, "trains", 2),
        (16.0, 20.0, "lost", 2),
        (20.0, 30.0, "trains", 3),
    ]
    assert [one.steps for one in run_story.losses(marked, reports)] == [0.0, 60.0, None]
    globally = {
        "worker-0": [run_story.Reported(0.0, 1, {"epoch": 1.0, "step": 40.0}), run_story.Reported(1.0, 1, {"epoch": 2.0, "step": 80.0})]
    }
    globally["worker-0"].append(run_story.Reported(2.0, 2, {"epoch": 1.0, "step": 41.0}))
    assert [one.steps for one in run_story.losses(band[:2], globally)] == [40.0, None]


def test_a_line_ends_with_the_attempt() -> None:
    """worker-0 is there twice, with one number the second time; the host has a line without an end."""
    points = [(0.0, 1.0), (40.0, 2.0), (90.0, 0.0)]
    tracks = {"worker-0": (run_story.Stretch(0.0, 40.0, "runs"), run_story.Stretch(80.0, 100.0, "runs", 2))}
    drawn = charts.chart("loss", {"worker-0": points, "host": points}, run_story.Story(0.0, 100.0, Cluster(), (), tracks), str)
    assert drawn is not None
    assert {line.name: line.path for line in drawn.lines} == {"worker-0": "M0 30.0L288 1.0M648 59.0h2", "host": "M0 30.0L288 1.0L648 59.0"}


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


def test_a_hang_is_no_training_and_names_the_task_for_which_the_others_wait() -> None:
    """For the last 40 seconds worker-1 sleeps, and worker-0 waits for it; worker-2 gets no batch for as long."""

    def uses(at: float) -> tuple[TaskUse, ...]:
        waits = max(0.0, at - 60)
        return (
            TaskUse("worker-0", 1, "S", 90.0, came=9 if waits else 8, met=8, waits=waits),
            TaskUse("worker-1", 1, "S", 90.0, came=8, met=8),
            TaskUse("worker-2", 1, "S", 90.0, came=8, met=8, reads=waits),
        )

    tracks = {f"worker-{number}": (run_story.Stretch(0.0, 100.0, "runs"),) for number in range(3)}
    samples = tuple(Sampled(float(at), 2.0, uses(at), host="a") for at in range(2, 101, 2))
    story = run_story.Story(0.0, 100.0, Cluster(), (), tracks, samples=samples)
    shares = {strip.name: strip.shares for strip in charts.strips(story)}
    assert [max(shares[name], key=lambda kind, name=name: (kind != "most", shares[name][kind])) for name in tracks] == [
        "peers",
        "missing",
        "input",
    ]
    assert 0.3 < shares["worker-1"]["missing"] < 0.4
    assert charts.awaited(story) == {"worker-1": 36.0, "worker-2": 36.0}
