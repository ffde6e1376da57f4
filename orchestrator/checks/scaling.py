"""Tells why more workers are not as many times faster: from what a few sizes measured to the bound, what to change, and other sizes. Pure.

A step of one worker has five parts: computing, the exchange of the gradients, the wait for the slowest worker, the wait for input, and
Python between the graphs. All workers wait for the exchange: of what they wait for their peers between two steps, it is as much as the one
waits that waits least. The rest is the wait for the slowest.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from worker.protocol.step_sums import StepSums
from worker.values.fast_dataclass import dataclass
from worker.values.words import bytes_of, count_of

from ..model.policy.stragglers import milliseconds
from ..record.text.format import aligned

PARTS = ("computing", "exchange", "waiting", "input", "Python")
OWN = ("computing", "input", "Python")
"""Those that a worker has without the others."""
ALL, EACH, OTHER, UNKNOWN = "all", "worker", "other", "unknown"
"""What the batch does as workers are added: all share one, each has one of its own, the script has another rule, or orch sees none."""
WARM_S, WARM_STEPS, FEWEST = 3.0, 5, 10
"""The first seconds and steps are left out, and what is measured has so many steps."""
BOUND = 0.2
"""A part of a step that is named as the bound has this share of it."""
SMALL_S, SMALL = 0.01, 0.4
"""A step is too small if a worker computes for less, and messages, waits and Python have this share of it."""
FEW_BYTES = 100_000
"""The time of fewer bytes is that of messages, so no rate is told."""
LIKE = 0.1
"""Batches that differ by less are alike."""
CHANGES = 0.5
"""The slowest worker is another one from step to step if it waits for the slowest for this share of what the others wait."""
LEAST_ERROR = 0.1
TIMES = 4
"""Other sizes are told up to so many times the largest one."""


@dataclass(frozen=True, slots=True)
class Size:
    """Holds what one number of workers measured."""

    workers: int
    step: float
    """The seconds of a step."""
    parts: Mapping[str, float]
    """The seconds of each of `PARTS`, of a worker that waits for the slowest one."""
    examples: float = 0.0
    """In one step of all workers; 0: orch sees no batches."""
    messages: float = 0.0
    bytes: float = 0.0
    """What one worker gives to the collectives of a step."""
    between: float = 0.0
    """The seconds between epochs for each step, with the validation."""
    slowest: str = ""
    """Empty: another one from step to step."""
    why: str = ""
    """The part that takes the slowest worker longer than the others, in these seconds:"""
    its: float = 0.0
    others: float = 0.0
    shares: str = ""
    """What the workers share, in words; empty: each has cores, or a GPU, of its own."""
    batch: float = 0.0
    """What `--batch-argument` gave to the script; 0: nothing."""

    @property
    def speed(self) -> float:
        """Examples a second, or steps where orch sees no batches."""
        return (self.examples or 1.0) / self.step

    def share(self, *parts: str) -> float:
        return sum(self.parts[part] for part in parts) / self.step


def _measured(rows: Sequence[StepSums]) -> Sequence[StepSums]:
    """The rows after the warm-up."""
    first = next((row for row in rows if row.steps), None)
    warm = (at for at, row in enumerate(rows) if first and row.time - first.time >= WARM_S and row.steps - first.steps >= WARM_STEPS)
    return rows[next(warm, len(rows)) :]


def measured_s(rows: Sequence[StepSums]) -> float:
    """The seconds after the warm-up; 0: too few steps."""
    found = _measured(rows)
    return found[-1].time - found[0].time if found and found[-1].steps - found[0].steps >= FEWEST else 0.0


def size_of(tasks: Mapping[str, Sequence[StepSums]], **known: Any) -> Size:
    """What the rows of all tasks of one size tell. Each has been measured."""
    windows = {task: _measured(rows) for task, rows in tasks.items()}
    each = {task: _parts(rows[0], rows[-1]) for task, rows in windows.items()}
    slowest = min(each, key=lambda task: each[task]["peers"])
    others = [parts for task, parts in each.items() if task != slowest] or [each[slowest]]
    mean = {part: statistics.fmean(parts[part] for parts in others) for part in others[0]}
    exchange = min(_exchange_of([*windows.values()]), each[slowest]["peers"])
    parts = {**mean, "exchange": exchange, "waiting": mean["peers"] - exchange}
    why = max(OWN, key=lambda part: each[slowest][part] - mean[part])
    changes = each[slowest]["peers"] - exchange > CHANGES * parts["waiting"]

    def of_step(name: str) -> float:
        """What all workers together have added to a sum in a step."""
        both = [(rows[0], rows[-1]) for rows in windows.values()]
        return sum(((getattr(last, name) - getattr(first, name)) / (last.steps - first.steps) for first, last in both), 0.0)

    messages, size, between = (of_step(name) / len(tasks) for name in ("messages", "bytes", "between"))
    step = mean["peers"] + sum(mean[part] for part in OWN)
    found = Size(len(tasks), step, {part: parts[part] for part in PARTS}, of_step("examples"), messages, size, between, **known)
    return replace(found, slowest="" if changes else slowest, why=why, its=each[slowest][why], others=mean[why])


def _parts(first: StepSums, last: StepSums) -> dict[str, float]:
    seconds, steps, inside, peers, fetched = (now - then for now, then in zip(last[:5], first[:5], strict=True))
    found = {"peers": peers, "input": fetched, "Python": max(0.0, seconds - inside)}
    return {part: took / steps for part, took in {"computing": max(0.0, seconds - sum(found.values())), **found}.items()}


def _exchange_of(windows: Sequence[Sequence[StepSums]]) -> float:
    """The seconds of a step for which each worker waits: between two steps that all tell, those of the worker that waits least."""
    told: list[dict[float, float]] = [
        {step: waited for row in rows for step, waited in row.waits if rows[0].steps <= step <= rows[-1].steps} for rows in windows
    ]
    steps = sorted(set.intersection(*map(set, told)))
    if len(steps) < 2:
        return math.inf
    return sum(min(one[last] - one[first] for one in told) for first, last in itertools.pairwise(steps)) / (steps[-1] - steps[0])


# --- other sizes ----------------------------------------------------------------------------------


def way_of(sizes: Sequence[Size]) -> str:
    """What the batch does as the workers become more."""
    if not all(size.examples for size in sizes):
        return UNKNOWN
    for way, found in ((EACH, [size.examples / size.workers for size in sizes]), (ALL, [size.examples for size in sizes])):
        if max(found) <= (1 + LIKE) * min(found):
            return way
    return OTHER


def forecast(sizes: Sequence[Size], workers: int, *, of_messages: float | None = None) -> Size:
    """The step of another number of workers. `of_messages`: their share in the exchange, if one size alone tells; None: a guess."""
    way, last = way_of(sizes), sizes[-1]
    many = [size for size in sizes if size.workers > 1]
    parts = {part: statistics.fmean(size.parts[part] for size in many or sizes) for part in OWN}
    if way == ALL:  # what each worker gets becomes less
        parts |= {part: _line([(1 / size.workers, size.parts[part]) for size in sizes])(1 / workers) for part in ("computing", "input")}
    else:
        parts["input"] = _line([(size.workers, size.parts["input"]) for size in sizes])(workers)
    parts |= {"exchange": _exchange(many, workers, of_messages), "waiting": last.parts["waiting"]}
    examples = last.examples if way == ALL else last.examples / last.workers * workers
    return replace(last, workers=workers, step=sum(parts.values()), parts=parts, examples=examples)


def _line(points: Sequence[tuple[float, float]]) -> Callable[[float], float]:
    """The line through points, which neither falls nor begins below zero."""
    xs, ys = zip(*points, strict=True)
    slope, height = statistics.linear_regression(xs, ys) if len(points) > 1 else (0.0, ys[0])
    if slope < 0:
        slope, height = 0.0, statistics.fmean(ys)
    if height < 0:
        slope, height = sum(x * y for x, y in points) / sum(x * x for x in xs), 0.0
    return lambda x: height + slope * x


def _exchange(many: Sequence[Size], workers: int, of_messages: float | None) -> float:
    """The seconds of an exchange in a ring: each of n workers sends 2 (n - 1) messages of one n-th of the gradients, one after the other.

    So a message takes some time of its own, and a time in proportion to 1 / n.
    """
    points = [(1 / size.workers, size.parts["exchange"] / (size.workers - 1)) for size in many]
    if len(points) == 1:
        share = float(many[0].bytes < FEW_BYTES) if of_messages is None else of_messages
        points.append((0.0, share * points[0][1]))
    return _line(points)(1 / workers) * (workers - 1) if points else 0.0


def error_of(sizes: Sequence[Size], workers: int) -> float:
    """The share by which a forecast may be wrong: by how much one of the largest size is, from the others."""
    last, rest = sizes[-1], sizes[:-1]
    if any(size.workers > 1 for size in rest):
        found = abs(forecast(rest, last.workers).step / last.step - 1)
    else:
        guess = forecast(sizes, workers).step
        found = max(abs(forecast(sizes, workers, of_messages=share).step / guess - 1) for share in (0.0, 1.0))
    return max(found, LEAST_ERROR) * max(1.0, math.log2(workers / last.workers))


# --- the answer -----------------------------------------------------------------------------------


def bound_of(size: Size) -> str:
    """The part that keeps the workers from being faster; ``computing``: none does; ``small``: the step is."""
    name = max(PARTS[1:], key=lambda part: size.parts[part])
    is_other = name == "input" or (name == "waiting" and size.slowest) or (name == "exchange" and size.bytes >= FEW_BYTES)
    is_short = size.parts["computing"] + size.parts["Python"] < SMALL_S
    if is_short and not is_other and size.share("exchange", "waiting", "Python") >= SMALL:
        return "small"
    if size.share(name) < BOUND:
        return "computing"
    # While the others wait for the slowest worker's input, they read ahead: theirs may be as slow.
    return "input" if name == "waiting" and size.slowest and size.why == "input" else name


def answer(sizes: Sequence[Size], others: Sequence[Size] = (), notes: Sequence[str] = ()) -> dict[str, Any]:
    """What `orch scale` says, for programs; ``text`` is for people. `others`: measured with the batches of `--batch-argument`."""
    last, forecasts = sizes[-1], list[tuple[Size, float]]()
    if len(sizes) > 1 and not last.shares and way_of(sizes) != OTHER:
        forecasts = [(forecast(sizes, number), error_of(sizes, number)) for number in (2 * last.workers, TIMES * last.workers)]

    def of_size(size: Size) -> dict[str, Any]:
        known = "examples_per_s" if size.examples else "steps_per_s"
        up = None if size.shares else size.speed / sizes[0].speed
        return {**asdict(size), known: size.speed, "speed_up": up, "bound": bound_of(size)}

    return {
        "sizes": [of_size(size) for size in sizes],
        "other_batches": [of_size(size) for size in others],
        "forecasts": [{**of_size(size), "error": error} for size, error in forecasts],
        "batch_is_for": way_of(sizes),
        "bound": bound_of(last),
        "text": [*_table(sizes), "", *_lines(sizes, others, forecasts), *notes],
    }


def _table(sizes: Sequence[Size]) -> list[str]:
    is_known = way_of(sizes) != UNKNOWN
    rows = [["workers", "examples/s" if is_known else "steps/s", "speed-up", "step", "compute", *PARTS[1:]]]
    for size in sizes:
        up = "-" if sizes[-1].shares else f"{size.speed / sizes[0].speed:.2f} x"
        shares = [f"{100 * size.share(part):.0f} %" for part in PARTS]
        rows.append([str(size.workers), f"{size.speed:,.{0 if size.speed >= 100 else 1}f}", up, milliseconds(size.step), *shares])
    return aligned([[*row, ""] for row in rows], right=range(len(rows[0])))


def _lines(sizes: Sequence[Size], others: Sequence[Size], forecasts: Sequence[tuple[Size, float]]) -> list[str]:
    first, last, bound = sizes[0], sizes[-1], bound_of(sizes[-1])
    lines = [f"batch: {_batch(sizes)}"]
    if last.shares:
        lines.append(f"{last.shares}. On hosts of their own: -H HOST,HOST")
    who, is_alone = count_of(last.workers, "worker"), last.shares or len(sizes) == 1
    up = who if is_alone else f"{who} are {last.speed / first.speed:.1f} x as fast as {first.workers}"
    lines.append(f"{up}: {_describe(last)}{_turn(sizes) if forecasts else ''}")
    for one, error in forecasts:
        lines.append(f"{one.workers} workers: about {one.speed / first.speed:.1f} x, within {100 * error:.0f} %")
    for other in others:
        up = "" if last.shares else f", {other.speed / first.speed:.1f} x"
        what = f"with a batch of {other.batch:.0f}, {count_of(other.workers, 'worker')}: {other.speed:,.0f} examples a second{up}"
        lines.append(f"{what}; {_describe(other)}")
    if last.between > BOUND * last.step:
        lines.append(f"left out: the time between epochs, with the validation: {milliseconds(last.between)} for each step")
    if not (last.shares and bound in ("computing", "exchange", "waiting")):  # they wait for cores
        lines.append(f"try: {_advice(sizes)}")
    return lines


def _describe(size: Size) -> str:
    bound = bound_of(size)
    if bound == "small":
        rest = 100 * size.share("exchange", "waiting", "Python")
        return f"a step of {milliseconds(size.step)} is too small: {rest:.0f} % of it is Python, messages and waits"
    if bound == "input" and size.parts["waiting"] > size.parts["input"]:
        bound = "waiting"
    part = f"{100 * size.share(bound):.0f} % of a step is"
    if bound == "exchange":
        rate = 2 * (size.workers - 1) / size.workers * size.bytes / size.parts["exchange"]
        what = f"{bytes_of(round(size.bytes))} in {count_of(round(size.messages), 'message')}"
        return f"{part} the exchange of {what}" + (f", at {bytes_of(round(rate))} a second" if size.bytes >= FEW_BYTES else "")
    if bound == "waiting" and size.slowest:
        its, others = milliseconds(size.its), milliseconds(size.others)
        return f"{part} the wait for {size.slowest}: its {_WORDS[size.why]} takes {its}, that of the others {others}"
    return f"{part} {_WORDS[bound]}" + (f": {milliseconds(size.parts[bound])}" if bound != "computing" else "")


_WORDS = {
    "computing": "computing",
    "waiting": "the wait for the slowest worker, which is another one from step to step",
    "input": "waiting for input",
    "Python": "Python between the graphs",
}


def _advice(sizes: Sequence[Size]) -> str:
    size, batch = sizes[-1], _of_each(sizes)
    gain = 2 * size.step / (size.step + size.parts["computing"] + size.parts["input"])
    larger = f"batch {batch:.0f} -> {2 * batch:.0f} for each worker" if batch and batch.is_integer() else "twice the batch"
    slow = f"look at {size.slowest} with orch stacks, and at its host with orch top"
    even = "batches that take all workers as long, such as texts of like lengths; orch top shows busy hosts"
    more = "a batch for each worker, so that a step of more workers has more examples" if way_of(sizes) == ALL else "more workers"
    return {
        "exchange": f"{larger} (half the exchanges for each example: about {gain:.1f} x the speed), or a faster network",
        "small": f"{larger} or more, or several steps in one graph (compile(steps_per_execution=10))",
        "waiting": slow if size.slowest else even,
        "input": "prefetch, cache and a parallel map; orch help input",
        "Python": "take it out of the loop, or run several steps in one graph (compile(steps_per_execution=10))",
        "computing": more,
    }[bound_of(size)]


def _of_each(sizes: Sequence[Size]) -> float:
    """The examples of one worker in a step of the largest size. Where they are the same in all sizes, a smaller last batch can only lessen
    the mean that a size had in its time."""
    found = [size.examples / size.workers for size in sizes]
    return max(found) if way_of(sizes) == EACH else found[-1]


def _turn(sizes: Sequence[Size]) -> str:
    """The first larger number of workers with another bound, in words."""
    last = sizes[-1]
    words = {"waiting": "the slowest worker", "small": "the size of a step", "exchange": "the exchange", "input": "the input"}
    for number in range(last.workers + 1, TIMES * last.workers + 1):
        if (bound := bound_of(forecast(sizes, number))) != bound_of(last):
            return f"; from {number} workers on the bound is {words.get(bound, bound)}"
    return ""


def _batch(sizes: Sequence[Size]) -> str:
    each = ", ".join(f"{size.examples / size.workers:.0f}" for size in sizes)
    total = ", ".join(f"{size.examples:.0f}" for size in sizes)
    about = "" if sizes[0].examples.is_integer() else "about "  # an epoch ends with a smaller one
    return {
        ALL: f"{about}{sizes[0].examples:.0f} for all workers together, the same in all sizes ({each} for each)",
        EACH: f"{about}{_of_each(sizes):.0f} for each worker, the same in all sizes ({total} together)",
        OTHER: f"the script has another rule ({total} together), so other sizes are not told",
        UNKNOWN: "orch sees none; if each worker has its own, a step of n workers has n times as many examples",
    }[way_of(sizes)]
