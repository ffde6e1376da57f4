"""Measures the goodput of a run: the share of its wall time in which it trained steps that count, and where the rest went. Pure.

A step is known by the reports of the training tasks and by their samples, so its time is right to about a second, and to two without
reports. Where orch cannot know what counts, the share is unknown, and the training is the most that it can be.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from worker.protocol.messages import Sampled
from worker.values.fast_dataclass import dataclass
from worker.values.words import few

from ..model.policy import stragglers
from ..model.settings import trains
from ..model.state.cluster import Outcome
from ..record.text.format import describe_seconds
from .run_story import (
    COMPILES,
    LOST,
    MAKES_NONE,
    PAUSES,
    PREPARES,
    STANDS,
    STARTS,
    STOPS,
    TRAINS,
    WAITS,
    Reported,
    Story,
    Stretch,
    kept_until,
    with_losses,
)

KINDS = {
    TRAINS: "trained",
    WAITS: "queued",
    PREPARES: "started",
    STARTS: "started",
    COMPILES: "compiled",
    STANDS: "stood_still",
    MAKES_NONE: "no_step",
    LOST: "done_again",
    STOPS: "stopped",
    PAUSES: "stopped",
}
"""What a run did, by the kind of its stretches. `started`: also the import of TensorFlow. `compiled`: from the start of the training to its
first step. `no_step`: validation, saves, and what comes after the last step. `stopped`: also the pause before a restart."""
_WORDS = {"queued": "waited in a queue", "stood_still": "stood still", "no_step": "made no step", "done_again": "steps lost or done again"}
GAP_S, GAP, APART_S = 6.0, 3.0, 0.5
"""So many seconds, and so many times the usual time between two signs of steps, are no training; what is shorter counts as training.
A report comes every four seconds, a sample every two."""
FEW, OFTEN_S = 3, 5.0
"""Reports come often if there are more than so many, and no more than so many seconds from one to the next."""


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


def to_json(found: Goodput, of_name: Goodput | None = None) -> dict[str, Any]:
    """`of_name`: the goodput of all listed runs of the same name."""
    each = {
        "share": found.share,
        "at_most": found.at_most,
        "text": found.text,
        "seconds": dict(found.seconds),
        "unknown": list(found.unknown),
    }
    return each if of_name is None else {**each, "of_name": of_name.share}


# --- the band -----------------------------------------------------------------------------------


def marked(story: Story) -> tuple[Stretch, ...]:
    """The band of a story, in which the time without steps and the training that does not count are stretches of their own."""
    band, grown = story.band, _grown(story)
    for number, times in grown.items():
        spans = [span for span in story.band if span.kind == TRAINS and span.attempt == number]
        if not spans:
            continue
        band = _overlaid(band, spans[0].begun, times[0], COMPILES, number)
        for begun, ended in _standstills(story.samples):
            band = _overlaid(band, begun, ended, STANDS, number)
        least = max(GAP_S, GAP * _usual(times))
        failed = number != story.band[-1].attempt or _has_failed(story)
        for at, later in itertools.pairwise([*times, max(times[-1], spans[-1].ended)]):
            if later - at > least:
                # A step comes after the gap, or the program has ended well: else nothing went on.
                band = _overlaid(band, at, later, STANDS if failed and later not in grown[number] else MAKES_NONE, number)
    band = with_losses(band, story.cluster.past, story.reports)
    saved = _saved_at_end(story)
    return _overlaid(band, saved, story.ended, LOST, band[-1].attempt) if band and saved is not None else band


def _overlaid(band: Iterable[Stretch], begun: float, ended: float, kind: str, attempt: int) -> tuple[Stretch, ...]:
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


def _grown(story: Story) -> dict[int, list[float]]:
    """When a training task was seen to have made further steps, by attempt, in the order of time.

    Samples come late by up to two seconds. So where reports come often, they alone tell when the last step was.
    """
    told, seen = _told(story.reports), _seen(story.samples)
    found = {}
    for number in sorted({*told, *seen}):
        reported, sampled = sorted(told.get(number, ())), sorted(seen.get(number, ()))
        is_often = len(reported) > FEW and _usual(reported) <= OFTEN_S
        found[number] = sorted([*reported, *(at for at in sampled if not is_often or at < reported[-1])])
    return found


def _told(reports: Mapping[str, Sequence[Reported]]) -> dict[int, set[float]]:
    found: dict[int, set[float]] = {}
    for task, told in reports.items():
        last: tuple[int, float, float] | None = None
        for one in told if _trains(task) else ():
            here = one.attempt, one.values.get("epoch", 0.0), one.values.get("step", 0.0)
            if here[2] and here != last:
                found.setdefault(one.attempt, set()).add(one.at)
            last = here
    return found


def _seen(samples: Iterable[Sampled]) -> dict[int, set[float]]:
    found: dict[int, set[float]] = {}
    known: dict[tuple[str, int], tuple[float, float]] = {}
    for sample in samples:
        for use in sample.tasks:
            key = use.task, use.attempt
            before, earlier = known.get(key, (sample.at - sample.seconds, 0.0))
            if _trains(use.task) and use.step > earlier:
                # The first of many steps may have been made long before the sample, and so may the last.
                took = (use.step - earlier) / use.rate if use.rate else 0.0
                first = sample.at if earlier else max(before, sample.at - took)
                last = min(sample.at, before + took) if earlier and took else sample.at
                found.setdefault(use.attempt, set()).update((min(first, last), last))
            known[key] = sample.at, max(earlier, use.step)
    return found


def _usual(times: Sequence[float]) -> float:
    """The median of the times between two of these; 0 for fewer than two. What several tasks do at one time counts once."""
    pauses = sorted(pause for at, later in itertools.pairwise(times) if (pause := later - at) >= APART_S)
    return pauses[len(pauses) // 2] if pauses else 0.0


def _trains(task: str) -> bool:
    return trains(task.rpartition("-")[0])


def _standstills(samples: Iterable[Sampled]) -> Iterator[tuple[float, float]]:
    """When tasks waited at a meeting for others that did not come, or for their input."""
    latest: dict[str, Sampled] = {}
    for sample in samples:
        latest[sample.host] = sample
        attempts = {use.task: use.attempt for one in latest.values() for use in one.tasks if use.came}
        missing, there = stragglers.absent(latest, attempts)
        if missing:
            waiting = [max(use.waits, use.reads) for name, use in stragglers.running(latest, attempts).items() if name in there]
            yield sample.at - max(sample.seconds, min(waiting)), sample.at


def _has_failed(story: Story) -> bool:
    verdict = story.cluster.verdict
    return story.is_cut or (verdict is not None and verdict.outcome is not Outcome.SUCCEEDED)


def _saved_at_end(story: Story) -> float | None:
    """Until when the work of a run that has not ended well was saved; None: it has ended well, has saved itself, or this is unknown."""
    verdict = story.cluster.verdict
    has_saved = verdict is not None and verdict.saved is not None
    return story.cluster.saved_at or None if _has_failed(story) and not has_saved else None


def _unknown(story: Story) -> Iterator[str]:
    trained = list(dict.fromkeys(span.attempt for span in story.band if span.kind == TRAINS))
    grown = _grown(story)
    if missing := [str(number) for number in trained if number not in grown]:
        yield f"orch saw no step in attempt {few(missing)}: worker.report(step=...) tells of steps"
    whole = {one.attempt for one in story.cluster.past if not one.task}
    kept = kept_until(story.band, story.cluster.past, story.reports)
    if missing := [str(number) for number, until in kept.items() if until is None and number in trained and number in whole]:
        yield f"how much of attempt {few(missing)} was done again is not known: worker.report(step=...) of the whole training tells"
    verdict = story.cluster.verdict
    if (
        trained
        and trained[-1] == story.band[-1].attempt
        and _has_failed(story)
        and _saved_at_end(story) is None
        and not (verdict and verdict.saved)
    ):
        yield "the run did not end well, and orch has seen no save of it in its checkpoint directory"
    schedules = any(story.cluster.policy.role(task).serves for task in story.cluster.tasks.values() if task.trains)
    if schedules and any("epoch" in one.values for told in story.reports.values() for one in told[:1]):
        yield "fit with parameter servers does not say when its first step is over"
