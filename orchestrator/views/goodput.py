"""Measures the goodput of a run: the share of its wall time in which it trained steps that count, and where the rest went. Pure.

A step is known by the reports of the training tasks and by their samples, so its time is right to about two seconds. Where orch cannot know
what counts, the share is unknown, and the training is the most that it can be.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from worker.values.fast_dataclass import dataclass
from worker.values.words import few

from ..model.settings import trains
from ..model.state.cluster import Outcome
from ..record.text.format import describe_seconds
from . import run_story
from .run_story import COMPILES, LOST, MAKES_NONE, TRAINS, Story, Stretch, overlaid

KINDS = {
    TRAINS: "trained",
    run_story.WAITS: "queued",
    run_story.PREPARES: "started",
    run_story.STARTS: "started",
    COMPILES: "compiled",
    MAKES_NONE: "no_step",
    LOST: "done_again",
    run_story.STOPS: "stopped",
    run_story.PAUSES: "stopped",
}
"""What a run did, by the kind of its stretches. `started`: also the import of TensorFlow. `compiled`: from the start of the training to its
first step. `no_step`: a standstill, validation, saves, and what comes after the last step. `stopped`: also the pause before a restart."""
_WORDS = {"queued": "waited in a queue", "no_step": "made no step", "done_again": "steps lost or done again"}
GAP_S, GAP, APART_S = 6.0, 3.0, 0.5
"""So many seconds, and so many times the usual time between two signs of steps, are no training; what is shorter counts as training.
A report comes every four seconds, a sample every two."""


@dataclass(frozen=True, slots=True)
class Goodput:
    """The seconds of one run or of several, by the names of `KINDS`."""

    seconds: Mapping[str, float]
    unknown: tuple[str, ...] = ()
    """Why it is not known which of the training counts."""

    @property
    def at_most(self) -> float:
        return self.seconds.get("trained", 0.0) / max(1e-3, sum(self.seconds.values()))

    @property
    def share(self) -> float | None:
        return None if self.unknown else self.at_most

    @property
    def text(self) -> str:
        """``86 %``, ``at most 86 %``."""
        return f"{'at most ' if self.unknown else ''}{100 * self.at_most:.0f} %"

    @property
    def rest(self) -> str:
        """``started 12.0 s, compiled 3.5 s``: the largest first."""
        found = sorted(((took, name) for name, took in self.seconds.items() if name != "trained" and took >= 0.05), reverse=True)
        return ", ".join(f"{_WORDS.get(name, name)} {describe_seconds(took)}" for took, name in found)


def measure(story: Story) -> Goodput:
    """The goodput of a run whose band was marked."""
    seconds: dict[str, float] = {}
    for span in story.band:
        name = KINDS[span.kind]
        seconds[name] = seconds.get(name, 0.0) + span.seconds
    return Goodput({name: round(took, 3) for name, took in seconds.items() if took}, tuple(_unknown(story)))


def total(found: Sequence[Goodput]) -> Goodput:
    """The goodput of several runs together."""
    names = dict.fromkeys(name for one in found for name in one.seconds)
    seconds = {name: round(sum(one.seconds.get(name, 0.0) for one in found), 3) for name in names}
    return Goodput(seconds, tuple(dict.fromkeys(why for one in found for why in one.unknown)))


def to_json(found: Goodput, of_name: Goodput) -> dict[str, Any]:
    """`of_name`: the goodput of all listed runs of the same name."""
    return {"share": found.share, "at_most": found.at_most, "text": found.text, **asdict(found), "of_name": of_name.share}


# --- the band -----------------------------------------------------------------------------------


def marked(story: Story) -> tuple[Stretch, ...]:
    """The band of a story, in which the time without steps and the training that does not count are stretches of their own."""
    band = story.band
    for number, times in _steps(story).items():
        spans = [span for span in story.band if span.kind == TRAINS and span.attempt == number]
        if not spans:
            continue
        band = overlaid(band, spans[0].begun, times[0], COMPILES, number)
        least = max(GAP_S, GAP * _usual(times))
        for at, later in itertools.pairwise([*times, max(times[-1], spans[-1].ended)]):
            if later - at > least:
                band = overlaid(band, at, later, MAKES_NONE, number)
    band, until = run_story.with_losses(band, story.cluster.past, story.reports), _counts_until(story)
    return band if until is None or not band else overlaid(band, until, story.ended, LOST, band[-1].attempt)


def _steps(story: Story) -> dict[int, list[float]]:
    """When a training task was seen to have made further steps, by attempt, in the order of time."""
    found: dict[int, set[float]] = {}
    newest: dict[tuple[bool, str, int], tuple[float, float]] = {}

    def see(is_told: bool, task: str, attempt: int, at: float, epoch: float, step: float) -> None:
        key = is_told, task, attempt
        if step and newest.get(key) != (epoch, step) and trains(task.rpartition("-")[0]):
            found.setdefault(attempt, set()).add(at)
        newest[key] = epoch, step

    for task, told in story.reports.items():
        for one in told:
            see(True, task, one.attempt, one.at, one.values.get("epoch", 0.0), one.values.get("step", 0.0))
    for sample in story.samples:
        for use in sample.tasks:
            see(False, use.task, use.attempt, sample.at, 0.0, use.step)
    return {number: sorted(times) for number, times in sorted(found.items())}


def _usual(times: Sequence[float]) -> float:
    """The median of the times between two of these; 0 for fewer than two. What several tasks do at one time counts once."""
    pauses = sorted(pause for at, later in itertools.pairwise(times) if (pause := later - at) >= APART_S)
    return pauses[len(pauses) // 2] if pauses else 0.0


def _counts_until(story: Story) -> float | None:
    """Until when the work of the last attempt counts: to its end, or to the last save of a run that has not ended well; None: unknown."""
    verdict = story.cluster.verdict
    counts = not story.is_cut if verdict is None else verdict.outcome is Outcome.SUCCEEDED or verdict.saved is not None
    return story.ended if counts else story.cluster.saved_at or None


def _unknown(story: Story) -> Iterator[str]:
    trained = list(dict.fromkeys(span.attempt for span in story.band if span.kind == TRAINS))
    seen = _steps(story)
    if missing := [str(number) for number in trained if number not in seen]:
        yield f"orch saw no step in attempt {few(missing)}: worker.report(step=...) tells of steps"
    whole = {one.attempt for one in story.cluster.past if not one.task}
    kept = run_story.kept_until(story.band, story.cluster.past, story.reports)
    if missing := [str(number) for number, until in kept.items() if until is None and number in trained and number in whole]:
        yield f"how much of attempt {few(missing)} was done again is not known: worker.report(step=...) of the whole training tells"
    if trained and trained[-1] == story.band[-1].attempt and _counts_until(story) is None:
        yield "the run did not end well, and orch has seen no save of it in its checkpoint directory"
    schedules = any(story.cluster.policy.role(task).serves for task in story.cluster.tasks.values() if task.trains)
    if schedules and any("epoch" in one.values for told in story.reports.values() for one in told[:1]):
        yield "fit with parameter servers does not say when its first step is over"
