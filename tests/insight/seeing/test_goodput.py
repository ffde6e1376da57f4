"""Goodput: the share of a run's time that trained steps which count, from its recorded events and samples."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.cli import main
from orchestrator.model.policy import lifecycle
from orchestrator.model.settings import ClusterSpec, TaskSpec
from orchestrator.model.settings.run_sections import Restart
from orchestrator.model.state import events
from orchestrator.model.state.cluster import Cluster
from orchestrator.views import goodput, run_story
from orchestrator.views.goodput import Goodput, marked, measure
from orchestrator.views.run_story import Reported, Story
from orchestrator.views.story_gather import gather
from tests.made_up_run import MadeUpRun
from worker.protocol.messages import Program, Sampled, TaskUse

SPEC = ClusterSpec(
    "made-up", "multi_worker_mirrored", Program("script", "train.py"), (TaskSpec("worker", 2),), "/w", restart=Restart(max=1)
)
NAMES = ("worker-0", "worker-1")


def attempt(number: int, begun: float, ended: float, codes: tuple[int, int] = (0, 0)) -> list[events.Event]:
    """Two tasks that start, form a cluster after two seconds, and end."""
    found: list[events.Event] = [events.TaskStarted(name, number, 10, begun) for name in NAMES]
    found += [events.TaskUp(name, number, begun + 2) for name in NAMES]
    for name, code in zip(NAMES, codes, strict=True):
        found += [events.TaskExited(name, number, code, False, ended), events.TaskSwept(name, number, ended)]
    return found


def told(*happened: events.Event, steps: tuple[tuple[int, float, float], ...] = (), samples: tuple[Sampled, ...] = ()) -> Goodput:
    """The goodput of a run. `steps`: the attempt, the time and the number of each step that worker-0 has reported."""
    begun: list[events.Event] = [events.RunBegun(1.0, "made-up", lifecycle.policy_of(SPEC)), events.Allocated(1, ("local",), 11.0)]
    begun.append(events.Planned(1, dict.fromkeys(NAMES, "local"), 12.0))
    story = run_story.tell([*begun, *happened], 0.0)
    reports = {"worker-0": [Reported(at, number, {"step": step}) for number, at, step in steps]}
    story = replace(story, reports=reports, samples=samples)
    return measure(replace(story, band=marked(story)))


def every_second(number: int, begun: float, ended: float, first: int = 1) -> tuple[tuple[int, float, float], ...]:
    return tuple((number, begun + each, float(first + each)) for each in range(int(ended - begun) + 1))


def test_the_time_of_a_run_is_divided_among_all_kinds() -> None:
    """Ten seconds in a queue, one of connecting and three of starting, six until the first step, 80 of training."""
    found = told(*attempt(1, 13.0, 101.0), steps=every_second(1, 21.0, 100.0))
    assert found.seconds == {"queued": 10.0, "started": 4.0, "compiled": 6.0, "trained": 80.0}
    assert (found.share, found.text, found.unknown) == (0.8, "80 %", ())
    assert found.rest == "waited in a queue 10.0 s, compiled 6.0 s, started 4.0 s"


def test_steps_that_a_restart_did_again_do_not_count() -> None:
    """The second attempt begins with step 21: the 40 seconds after this step, in the first attempt, are done again."""
    first = attempt(1, 13.0, 101.0, (1, 1))
    assert isinstance(first[-1], events.TaskSwept)
    second = [events.Tick(101.5), *attempt(2, 102.0, 204.0)]
    steps = (*every_second(1, 41.0, 100.0), *every_second(2, 114.0, 203.0, first=21))
    found = told(*first, *second, steps=steps)
    assert found.seconds["done_again"] == pytest.approx(40.0)
    assert found.seconds["trained"] == pytest.approx(20.0 + 90.0)
    assert found.seconds["compiled"] == pytest.approx(26.0 + 10.0)
    assert sum(found.seconds.values()) == pytest.approx(203.0)
    assert found.unknown == ()


def test_a_restart_without_known_steps_has_no_share() -> None:
    """It may have begun at the first step again: only the most that it can be is said."""
    first, second = attempt(1, 13.0, 101.0, (1, 1)), [events.Tick(101.5), *attempt(2, 102.0, 204.0)]
    uses = [(at, 1 if at < 101 else 2) for at in range(20, 204, 2)]
    samples = tuple(Sampled(float(at), 2.0, (TaskUse("worker-0", number, "S", step=at),), host="a") for at, number in uses)
    found = told(*first, *second, samples=samples)
    assert found.share is None
    assert found.text == "at most 89 %"
    assert found.unknown == ("how much of attempt 1 was done again is not known: worker.report(step=...) of the whole training tells",)
    silent = told(*attempt(1, 13.0, 101.0))
    assert silent.unknown == ("orch saw no step in attempt 1: worker.report(step=...) tells of steps",)


def test_a_run_that_fails_counts_until_its_last_save() -> None:
    failing = replace(SPEC, restart=Restart())
    assert failing.restart.max == 0
    ended = attempt(1, 13.0, 101.0, (1, 1))
    saved = [*ended[:4], events.CheckpointSeen(61.0), *ended[4:], events.Tick(101.5), events.StopRequested("Ctrl-C", 130, 101.6)]
    for happened, seconds in (
        (saved, {"trained": 40.0, "done_again": 40.0}),
        ([one for one in saved if not isinstance(one, events.CheckpointSeen)], {"trained": 80.0}),
    ):
        found = told(*happened, *attempt(2, 102.0, 103.0, (1, 1)), steps=every_second(1, 21.0, 100.0))
        assert {name: took for name, took in found.seconds.items() if name in ("trained", "done_again")} == pytest.approx(seconds)
        assert (found.share is None) == ("done_again" not in seconds)


def test_gaps_without_a_step_are_no_training() -> None:
    """A validation of twenty seconds, and thirty seconds after the last step; a pause of five seconds counts as training."""
    steps = (*every_second(1, 21.0, 40.0), *every_second(1, 60.0, 65.0, 30), *every_second(1, 70.0, 71.0, 40))
    found = told(*attempt(1, 13.0, 101.0), steps=steps)
    assert found.seconds["no_step"] == pytest.approx(20.0 + 30.0)
    assert found.seconds["trained"] == pytest.approx(19.0 + 11.0)


def test_long_steps_of_several_tasks_are_training() -> None:
    """Each of four workers reports each step of twenty seconds, and all do so within a moment."""
    story = run_story.Story(0.0, 200.0, Cluster(), (run_story.Stretch(0.0, 200.0, run_story.TRAINS),), {})
    reports = {f"worker-{number}": [Reported(20.0 * step + number / 10, 1, {"step": step}) for step in range(1, 11)] for number in range(4)}
    story = replace(story, reports=reports)
    assert measure(replace(story, band=marked(story))).seconds == {"compiled": 20.0, "trained": 180.0}


def test_a_standstill_before_a_failure_is_no_training() -> None:
    failed = told(
        *attempt(1, 13.0, 101.0, (1, 1)),
        events.Tick(101.5),
        *attempt(2, 102.0, 204.0),
        steps=(*every_second(1, 21.0, 50.0), *every_second(2, 104.0, 203.0, 31)),
    )
    assert failed.seconds["no_step"] == pytest.approx(51.0)


def test_a_task_that_restarts_alone_begins_no_attempt_of_the_run() -> None:
    """The worker of a parameter server is lost and comes back; the chief reports steps all the time."""
    spec = replace(SPEC, strategy="parameter_server", tasks=tuple(TaskSpec(name, 1) for name in ("chief", "worker", "ps")))
    names = ("chief-0", "worker-0", "ps-0")
    happened: list[events.Event] = [events.RunBegun(1.0, "made-up", lifecycle.policy_of(spec)), events.Allocated(1, ("local",), 1.0)]
    happened += [events.Planned(1, dict.fromkeys(names, "local"), 2.0), *(events.TaskStarted(name, 1, 10, 3.0) for name in names)]
    happened += [*(events.TaskUp(name, 1, 4.0) for name in names), events.TaskExited("worker-0", 1, 1, False, 20.0)]
    happened += [events.TaskSwept("worker-0", 1, 20.0), events.Tick(20.5), events.TaskStarted("worker-0", 2, 11, 21.0)]
    happened += [
        events.TaskUp("worker-0", 2, 22.0),
        *(events.TaskExited(name, 1, 0, name != "chief-0", 54.0) for name in ("chief-0", "ps-0")),
    ]
    story = run_story.tell(happened, 54.0)
    assert story.cluster.attempt == 2
    story = replace(story, reports={"chief-0": [Reported(at, 1, {"step": step}) for _, at, step in every_second(1, 4.0, 54.0)]})
    story = replace(story, band=marked(story))
    assert {span.attempt for span in story.band} == {1}
    assert measure(story) == Goodput({"started": 3.0, "trained": 50.0})
    epochs = [replace(one, values={**one.values, "epoch": 1.0}) for one in story.reports["chief-0"]]
    unknown = measure(replace(story, reports={"chief-0": epochs})).unknown
    assert unknown == ("fit with parameter servers does not say when its first step is over",)


def test_runs_of_a_name_have_one_number_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two runs of ten and five minutes, the second with two restarts that do ten steps again."""
    runs = [
        MadeUpRun(tmp_path, seconds=600.0, run_id="digits-20261130-100000-aaaa").run,
        MadeUpRun(tmp_path, seconds=300.0, fails_at=(0.3, 0.6), run_id="digits-20261130-110000-bbbb").run,
    ]
    own = [measure(gather(run)) for run in runs]
    assert own[1].seconds["done_again"] == pytest.approx(80.0, abs=9.0)
    with pytest.raises(SystemExit):
        main(["ps", "--all", "--sort", "goodput", "--home", str(tmp_path)])
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[1:3] for line in shown[1:3]] == [one.text.split() for one in reversed(own)]
    assert shown[-1] == f"goodput of digits, 2 runs: {goodput.total(own).text}; {goodput.total(own).rest}"
    with pytest.raises(SystemExit):
        main(["ps", "--all", "--sort", "goodput", "--json", "--home", str(tmp_path)])
    found = {one["run"]: one["goodput"] for one in json.loads(capsys.readouterr().out)}
    assert [found[run.run_id]["share"] for run in runs] == [one.share for one in own]
    assert {one["of_name"] for one in found.values()} == {goodput.total(own).share}
    with pytest.raises(SystemExit):
        main(["ps", "--json", runs[0].run_id, "--home", str(tmp_path)])
    assert json.loads(capsys.readouterr().out)["goodput"] is None, "all events of a run are read for it: not for each look"


def test_steps_that_only_samples_tell_are_known_to_a_sample() -> None:
    """Ten steps a second from 24 to 74.5."""
    uses = {at: TaskUse("worker-0", 1, "S", step=max(0, min(10 * (at - 24), 505)), rate=10.0) for at in range(20, 101, 2)}
    samples = tuple(Sampled(float(at), 2.0, (uses[at],), host="a") for at in sorted(uses))
    found = told(*attempt(1, 13.0, 101.0), samples=samples)
    assert found.seconds["compiled"] == pytest.approx(24.0 - 15.0, abs=2.0)
    assert found.seconds["no_step"] == pytest.approx(101.0 - 74.5, abs=2.0)


def test_a_story_without_events_is_measured() -> None:
    assert measure(Story(0.0, 1.0, Cluster(), (), {})).text == "0 %"
