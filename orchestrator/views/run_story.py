"""Defines what happened in a run, as values: a story that `orch report` draws. Pure: the events are folded with the same `step` as
everywhere."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace

from worker.protocol.messages import Sampled
from worker.values.fast_dataclass import dataclass

from ..model.policy import lifecycle
from ..model.state import events
from ..model.state.cluster import Cluster, PastAttempt, Phase, TaskState, TaskStatus

WAITS, PREPARES, STARTS, TRAINS, LOST, STOPS, PAUSES = "waits for hosts", "prepares", "starts", "trains", "lost", "stops", "pauses"
"""What a run does, in the words of the report. ``lost``: it trained, and a restart began at an earlier step again."""
COMPILES, MAKES_NONE = "compiles", "makes no step"
"""What it does besides while its tasks run: before the first step, and between or after its steps; see goodput.py."""
_PHASES = {
    Phase.ALLOCATING: WAITS,
    Phase.CONNECTING: STARTS,
    Phase.PREPARING: PREPARES,
    Phase.STARTING: STARTS,
    Phase.RUNNING: TRAINS,
    Phase.STOPPING: STOPS,
    Phase.RESTARTING: PAUSES,
}
_ALIVE = {TaskState.STARTED: "starts", TaskState.UP: "runs"}


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch of time in which something stayed as it was. Times are seconds since the epoch."""

    begun: float
    ended: float
    kind: str
    attempt: int = 1

    @property
    def seconds(self) -> float:
        return max(0.0, self.ended - self.begun)


@dataclass(frozen=True, slots=True)
class Reported:
    at: float
    attempt: int
    values: Mapping[str, float]
    waiting: float | None = None
    """The share of the time since the report before in which the task waited for input; None: unknown."""
    not_finite: Mapping[str, float] = field(default_factory=dict)
    """The numbers that are NaN or infinite."""


@dataclass(frozen=True, slots=True)
class Story:
    """A run, from its first event to its last."""

    begun: float
    ended: float
    cluster: Cluster
    band: tuple[Stretch, ...]
    """What the run did, without a gap."""
    tracks: Mapping[str, tuple[Stretch, ...]]
    """The life of each task: ``starts``, ``runs``."""
    reports: Mapping[str, Sequence[Reported]] = field(default_factory=dict)
    samples: tuple[Sampled, ...] = ()
    happened: Sequence[events.Event] = ()
    """The events, without most reports."""
    is_cut: bool = False
    """The run has no verdict, and its controller is gone: the story ends where the record ends."""

    @property
    def seconds(self) -> float:
        return max(0.001, self.ended - self.begun)


@dataclass(frozen=True, slots=True)
class AttemptCost:
    attempt: int
    seconds: Mapping[str, float]
    """The seconds of each kind of span."""
    steps: float | None
    """The steps that were trained again; None: unknown, or nothing was lost."""


def tell(happened: Sequence[events.Event], now: float) -> Story:
    """The story of these events, without reports and samples. `now`: the end of a run that goes on."""
    cluster = Cluster()
    begun, last, number = 0.0, 0.0, 1
    changes: list[tuple[float, str, int]] = []
    lives: dict[str, list[tuple[float, str, int]]] = {}
    trained: set[int] = set()
    for event in happened:
        begun, last = begun or event.at, max(last, event.at)
        before, (cluster, _) = cluster, lifecycle.step(cluster, event)
        # An attempt of a task that restarts alone is none of the run.
        number = cluster.attempt if cluster.attempt_at != before.attempt_at else number
        if isinstance(event, events.TaskReported):  # some programs report, and form no cluster
            trained.add(event.attempt)
        kind = _PHASES.get(cluster.phase, "")
        kind = TRAINS if kind == STARTS and number in trained else kind
        if not changes or (kind, number) != changes[-1][1:]:
            changes.append((event.at, kind, number))
        for task in _changed(before, cluster, event):
            states = lives.setdefault(task.name, [])
            state = _ALIVE.get(task.state, "")
            state = "runs" if state and task.report else state
            if not states or states[-1][1:] != (state, task.attempt):
                states.append((event.at, state, task.attempt))
    verdict = cluster.verdict
    ended = verdict.ended_at if verdict is not None else max(last, now)
    return Story(
        begun or ended,
        max(begun, ended),
        cluster,
        _spans(changes, ended),
        {name: _spans(states, ended) for name, states in lives.items()},
        happened=happened,
    )


def _changed(before: Cluster, after: Cluster, event: events.Event) -> Iterable[TaskStatus]:
    """The tasks that an event may have changed: one, for most events."""
    if isinstance(event, events.TaskEvent) and event.task in after.tasks and after.attempt == before.attempt:
        return (after.tasks[event.task],)
    return after.tasks.values() if after.tasks is not before.tasks else ()


def _spans(changes: Sequence[tuple[float, str, int]], ended: float) -> tuple[Stretch, ...]:
    times = [*(at for at, _, _ in changes[1:]), ended][: len(changes)]  # none of a run that waits for its engine
    return tuple(Stretch(at, max(at, until), kind, attempt) for (at, kind, attempt), until in zip(changes, times, strict=True) if kind)


# --- what restarts cost ---------------------------------------------------------------------------


def with_losses(band: Sequence[Stretch], past: Sequence[PastAttempt], reports: Mapping[str, Sequence[Reported]]) -> tuple[Stretch, ...]:
    """The band, in which the training is marked as lost that a later attempt has done again.

    What was lost is known by the steps that the tasks report: an attempt that begins at step 40 has lost what the attempt before did
    after it had reported step 40; one that begins after all reported steps has lost nothing. Without steps, a checkpoint in the run
    directory tells.
    """
    for attempt, until in kept_until(band, past, reports).items():
        if until is not None:
            band = overlaid(band, until, math.inf, LOST, attempt)
    return tuple(band)


def overlaid(band: Sequence[Stretch], begun: float, ended: float, kind: str, attempt: int) -> tuple[Stretch, ...]:
    """The band, in which the training of an attempt between two times is of this kind."""
    found: list[Stretch] = []
    for span in band:
        first, last = max(begun, span.begun), min(ended, span.ended)
        if span.kind != TRAINS or span.attempt != attempt or first >= last:
            found.append(span)
            continue
        parts = ((span.begun, first, TRAINS), (first, last, kind), (last, span.ended, TRAINS))
        found += [Stretch(at, until, one, attempt) for at, until, one in parts if until > at]
    return tuple(found)


def kept_until(band: Sequence[Stretch], past: Sequence[PastAttempt], reports: Mapping[str, Sequence[Reported]]) -> dict[int, float | None]:
    """Until when the work of each attempt but the last was kept; None: unknown, infinite: to its end."""
    numbers, steps = sorted({span.attempt for span in band}), _steps(reports)
    # An attempt that made no step tells nothing about those before it.
    return {number: _kept_until(number, min((one for one in steps if one > number), default=0), past, steps) for number in numbers[:-1]}


def _kept_until(number: int, later: int, past: Sequence[PastAttempt], steps: Mapping[int, _Steps]) -> float | None:
    if number in steps and later in steps:
        resumed = steps[later][0][1]
        return min((at for at, step in steps[number] if step >= resumed), default=math.inf)
    ended = next((one for one in past if one.attempt == number and not one.task), None)
    return ended.saved_at if ended is not None and ended.saved_at else None


_Steps = list[tuple[float, float]]
"""When the tasks of an attempt reported a step, and the number of the step, in the order of time."""


def _steps(reports: Mapping[str, Sequence[Reported]]) -> dict[int, _Steps]:
    found: dict[int, _Steps] = {}
    counted = through_epochs(reports).values()
    for one in sorted((one for told in counted for one in told if "step" in one.values), key=lambda one: one.at):
        found.setdefault(one.attempt, []).append((one.at, one.values["step"]))
    return found


def through_epochs(reports: Mapping[str, Sequence[Reported]]) -> Mapping[str, Sequence[Reported]]:
    """The reports, with steps that are counted through all epochs: `fit` reports the step of the epoch."""
    length = _steps_of_an_epoch(reports)
    if not length:
        return reports

    def count(one: Reported) -> Reported:
        if not {"step", "epoch"} <= one.values.keys():
            return one
        return replace(one, values={**one.values, "step": length * max(0.0, one.values["epoch"] - 1) + one.values["step"]})

    return {task: [count(one) for one in told] for task, told in reports.items()}


def _steps_of_an_epoch(reports: Mapping[str, Sequence[Reported]]) -> float:
    """The steps of the longest epoch; 0: steps are not counted again in each epoch, as far as is seen."""
    is_anew, most = False, 0.0
    for told in reports.values():
        counted = [one for one in told if {"step", "epoch"} <= one.values.keys()]
        most = max(most, *(one.values["step"] for one in counted), 0.0)
        is_anew = is_anew or any(
            one.attempt == then.attempt and one.values["epoch"] < then.values["epoch"] and one.values["step"] >= then.values["step"]
            for one, then in itertools.pairwise(counted)
        )
    return most if is_anew else 0.0


def losses(band: Sequence[Stretch], reports: Mapping[str, Sequence[Reported]]) -> list[AttemptCost]:
    """Return what each attempt has cost; the seconds of all attempts together are those of the run."""
    numbers, steps_of = sorted({span.attempt for span in band}), _steps(reports)
    found = []
    for number, later in zip(numbers, [*numbers[1:], None], strict=False):
        seconds: dict[str, float] = {}
        for span in band:
            if span.attempt == number:
                seconds[span.kind] = seconds.get(span.kind, 0.0) + span.seconds
        reached = max((step for _, step in steps_of.get(number, ())), default=None)
        resumed = next((step for _, step in steps_of.get(later or 0, ())), None)
        steps = None if reached is None or resumed is None else max(0.0, reached - resumed + 1)
        found.append(AttemptCost(number, seconds, steps))
    return found
