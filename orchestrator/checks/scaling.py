"""Tells why more workers are not as many times faster: from what a few sizes measured to the bound, what to change, and other sizes. Pure.

A step of one worker has five parts: computing, the exchange of the gradients, the wait for the slowest worker, the wait for input, and
Python between the graphs. All workers wait for the exchange; of the other time that a worker waits for its peers, the slowest has none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from worker.values.fast_dataclass import dataclass
from worker.values.words import bytes_of, count_of

from ..model.policy.stragglers import milliseconds
from ..record.text.format import aligned

Row = Sequence[float]
"""The sums of one task at one time: the time, steps, seconds in TensorFlow, those of them for its peers, those for input, elements of the
batches, collectives (messages) and their bytes; last the time between epochs, which all of these leave out."""
PARTS = ("computing", "exchange", "waiting", "input", "Python")
ALL, EACH, OWN, UNKNOWN = "all", "worker", "own", "unknown"
"""What the batch does as workers are added: all share one, each has one of its own, the script has another rule, or orch sees none."""
WARM_S, WARM_STEPS, FEWEST = 3.0, 5, 10
"""The first seconds and steps are left out, and what is measured has so many steps."""
BOUND = 0.2
"""A part of a step that is named as the bound has this share of it."""
SMALL_S, SMALL, HARDLY = 0.01, 0.4, 0.2
"""A shorter step is too small if exchange, waits and Python have this share of it; so is a step that computes for less than the last share,
and exchanges few bytes."""
HOP_S = 0.0002
"""The time of one message from a worker to the next, where only one size tells of the exchange."""
FEW_BYTES = 100_000
"""The time of fewer bytes is that of messages, so no rate is told."""
LIKE = 0.1
"""Batches that differ by less are alike."""
LEAST_ERROR = 0.05
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
    why: str = ""
    """The part that takes the slowest worker longer than the others, in these seconds:"""
    its: float = 0.0
    others: float = 0.0
    noise: float = 0.0
    """By how much the two halves of the time differ."""
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


def begins(rows: Sequence[Row]) -> int:
    """The place of the first row after the warm-up; the number of rows, if there is none yet."""
    first = next((row for row in rows if row[1]), None)
    if first is None:
        return len(rows)
    return next((at for at, row in enumerate(rows) if row[0] - first[0] >= WARM_S and row[1] - first[1] >= WARM_STEPS), len(rows))


def measured_s(rows: Sequence[Row]) -> float:
    """The seconds after the warm-up; 0: too few steps."""
    found = rows[begins(rows) :]
    return found[-1][0] - found[0][0] if found and found[-1][1] - found[0][1] >= FEWEST else 0.0


def size_of(tasks: Mapping[str, Sequence[Row]], **known: Any) -> Size:
    """What the rows of all tasks of one size tell. Each has been measured."""
    windows = {task: rows[begins(rows) :] for task, rows in tasks.items()}
    each = {task: _parts(rows[0], rows[-1]) for task, rows in windows.items()}
    steps = {task: rows[-1][1] - rows[0][1] for task, rows in windows.items()}
    slowest = min(each, key=lambda task: each[task]["peers"])
    others = [parts for task, parts in each.items() if task != slowest] or [each[slowest]]
    mean = {part: sum(parts[part] for parts in others) / len(others) for part in others[0]}
    exchange = each[slowest]["peers"]
    parts = {part: mean[part] for part in ("computing", "input", "Python")} | {"exchange": exchange, "waiting": mean["peers"] - exchange}
    longer = {part: each[slowest][part] - mean[part] for part in ("computing", "input", "Python")}
    why = max(longer, key=lambda part: longer[part])
    total = {at: sum((rows[-1][at] - rows[0][at]) / steps[task] for task, rows in windows.items()) for at in (5, 6, 7, 8)}
    return Size(
        len(tasks),
        sum(parts.values()),
        {part: parts[part] for part in PARTS},
        examples=total[5],
        messages=total[6] / len(tasks),
        bytes=total[7] / len(tasks),
        between=total[8] / len(tasks),
        slowest=slowest,
        why=why,
        its=each[slowest][why],
        others=mean[why],
        noise=max(map(_noise, windows.values())),
        **known,
    )


def _parts(first: Row, last: Row) -> dict[str, float]:
    seconds, steps, inside, peers, fetched, *_ = (end - begun for begun, end in zip(first, last, strict=True))
    found = {"peers": peers, "input": fetched, "Python": max(0.0, seconds - inside)}
    return {part: took / steps for part, took in {"computing": max(0.0, seconds - sum(found.values())), **found}.items()}


def _noise(rows: Sequence[Row]) -> float:
    middle = rows[len(rows) // 2]
    rates = [(end[1] - begun[1]) / max(1e-9, end[0] - begun[0]) for begun, end in ((rows[0], middle), (middle, rows[-1]))]
    return abs(rates[0] - rates[1]) / max(1e-9, sum(rates) / 2) if len(rows) > 3 else 0.0


# --- other sizes ----------------------------------------------------------------------------------


def way_of(sizes: Sequence[Size]) -> str:
    """What the batch does as the workers become more."""
    if not all(size.examples for size in sizes):
        return UNKNOWN
    for way, found in ((EACH, [size.examples / size.workers for size in sizes]), (ALL, [size.examples for size in sizes])):
        if max(found) <= (1 + LIKE) * min(found):
            return way
    return OWN


def forecast(sizes: Sequence[Size], workers: int, *, latency: float | None = None) -> Size:
    """The step of another number of workers. `latency`: the share of messages in the exchange, if one size alone tells; None: a guess."""
    way, last = way_of(sizes), sizes[-1]
    examples = last.examples if way == ALL else last.examples / last.workers * workers
    many = [size for size in sizes if size.workers > 1]

    def of_part(part: str) -> float:
        if way == ALL:  # what each worker gets becomes less
            return _line([(1 / size.workers, size.parts[part]) for size in sizes])(1 / workers)
        return _line([(size.workers, size.parts[part]) for size in sizes])(workers) if part == "input" else _mean(sizes, part)

    parts = {
        "computing": of_part("computing"),
        "exchange": _exchange(many, latency)(workers),
        "waiting": many[-1].parts["waiting"] if many and workers > 1 else 0.0,
        "input": of_part("input"),
        "Python": _mean(sizes, "Python"),
    }
    return replace(last, workers=workers, step=sum(parts.values()), parts=parts, examples=examples)


def _mean(sizes: Sequence[Size], part: str) -> float:
    found = [size for size in sizes if size.workers > 1] or sizes
    return sum(size.parts[part] for size in found) / len(found)


def _line(points: Sequence[tuple[float, float]]) -> Callable[[float], float]:
    """The line through points, which neither falls nor begins below zero."""
    count = len(points)
    middle, height = sum(x for x, _ in points) / count, sum(y for _, y in points) / count
    spread = sum((x - middle) ** 2 for x, _ in points)
    slope = max(0.0, sum((x - middle) * (y - height) for x, y in points) / spread) if spread else 0.0
    if slope * middle > height:
        slope = sum(x * y for x, y in points) / sum(x * x for x, _ in points)
    return lambda x: max(0.0, height - slope * middle) + slope * x


def _exchange(many: Sequence[Size], latency: float | None) -> Callable[[int], float]:
    """The seconds of an exchange in a ring: each worker sends 2 (n - 1) messages of one n-th of the gradients, one after the other."""
    if not many:
        return lambda workers: 0.0
    points = [(size.workers - 1.0, (size.workers - 1) / size.workers, size.parts["exchange"]) for size in many]
    hops, bulk, took = points[-1]
    least = 1.0 if many[-1].bytes < FEW_BYTES else 2 * hops * HOP_S * many[-1].messages / max(1e-9, took)
    of_hops = least if latency is None else latency
    each, all_of_it = min(1.0, of_hops) * took / hops, (1 - min(1.0, of_hops)) * took / bulk
    if len(points) > 1 and latency is None:
        uu, uv, vv = (sum(one * other for one, other in found) for found in _products(points))
        uy, vy = sum(u * y for u, _, y in points), sum(v * y for _, v, y in points)
        each, all_of_it = (vv * uy - uv * vy) / (uu * vv - uv * uv), (uu * vy - uv * uy) / (uu * vv - uv * uv)
        each, all_of_it = (0.0, vy / vv) if each < 0 else (uy / uu, 0.0) if all_of_it < 0 else (each, all_of_it)
    return lambda workers: each * (workers - 1) + all_of_it * (workers - 1) / workers


def _products(points: Sequence[tuple[float, float, float]]) -> list[list[tuple[float, float]]]:
    return [[(u, u) for u, _, _ in points], [(u, v) for u, v, _ in points], [(v, v) for _, v, _ in points]]


def error_of(sizes: Sequence[Size], workers: int) -> float:
    """The share by which a forecast may be wrong: by how much one of the largest size is, from the others."""
    last, rest = sizes[-1], sizes[:-1]
    if any(size.workers > 1 for size in rest):
        found = abs(forecast(rest, last.workers).step / last.step - 1)
    else:
        guess = forecast(sizes, workers).step
        found = max(abs(forecast(sizes, workers, latency=share).step / guess - 1) for share in (0.0, 1.0))
    return float(max(found, LEAST_ERROR, *(size.noise for size in sizes)) * max(1.0, math.log2(workers / last.workers)))


# --- the bound ------------------------------------------------------------------------------------


def bound_of(size: Size) -> str:
    """The part that keeps the workers from being faster; ``computing``: none does; ``small``: the step is."""
    name = max(PARTS[1:], key=lambda part: size.parts[part])
    is_short = size.step < SMALL_S or (name == "exchange" and size.bytes < FEW_BYTES and size.share("computing") < HARDLY)
    if is_short and name != "input" and size.share("exchange", "waiting", "Python") >= SMALL:
        return "small"
    if size.share(name) < BOUND:
        return "computing"
    # While the others wait for the slowest worker's input, they read ahead: theirs may be as slow.
    return "input" if name == "waiting" and size.why == "input" else name


def _describe(size: Size, bound: str) -> str:
    is_first = bound == "input" and size.why == "input" and size.parts["waiting"] > size.parts["input"]
    shares = ("input", "waiting") if is_first else (bound,)
    part = f"{100 * size.share(*shares):.0f} % of a step" if bound in PARTS else ""
    if bound == "exchange":
        rate = 2 * (size.workers - 1) / size.workers * size.bytes / size.parts["exchange"]
        what = f"{bytes_of(round(size.bytes))} in {count_of(round(size.messages), 'message')}"
        return f"{part} is the exchange of {what}" + (f", at {bytes_of(round(rate))} a second" if size.bytes >= FEW_BYTES else "")
    if bound == "waiting":
        what = {"computing": "computing", "input": "wait for input", "Python": "Python between the graphs"}[size.why]
        found = f"{part} is the wait for {size.slowest}"
        return f"{found}: its {what} takes {milliseconds(size.its)}, that of the others {milliseconds(size.others)}"
    if bound == "small":
        rest = 100 * size.share("exchange", "waiting", "Python")
        return f"a step of {milliseconds(size.step)} is too small: {rest:.0f} % of it is Python, messages and waits"
    if is_first:
        return f"{part} is the wait for input, first of {size.slowest}; the others read ahead meanwhile, and theirs may be as slow"
    what = {"input": "the wait for input", "Python": "Python between the graphs", "computing": "computing"}[bound]
    return f"{part} is {what}" + (f": {milliseconds(size.parts[bound])}" if bound != "computing" else "")


@dataclass(frozen=True, slots=True)
class Answer:
    """Holds what `orch scale` says."""

    sizes: tuple[Size, ...]
    others: tuple[Size, ...]
    """What was measured with the batches of `--batch-argument`."""
    way: str
    bound: str
    forecasts: tuple[tuple[Size, float], ...]
    """Sizes that were not run, each with the share by which it may be wrong."""
    text: tuple[str, ...] = ()


def answer(sizes: Sequence[Size], others: Sequence[Size] = (), notes: Sequence[str] = ()) -> Answer:
    """The answer, from the sizes in their order."""
    last, way = sizes[-1], way_of(sizes)
    found: tuple[tuple[Size, float], ...] = ()
    if len(sizes) > 1 and not last.shares and way != OWN:
        found = tuple((forecast(sizes, number), error_of(sizes, number)) for number in (2 * last.workers, TIMES * last.workers))
    made = Answer(tuple(sizes), tuple(others), way, bound_of(last), found)
    return replace(made, text=(*_table(made), "", *_lines(made), *notes))


def _table(made: Answer) -> list[str]:
    first, is_known = made.sizes[0], made.way != UNKNOWN
    rows = [["workers", "examples/s" if is_known else "steps/s", "speed-up", "step", "compute", *PARTS[1:]]]
    for size in (*made.sizes, *made.others, *(one for one, _ in made.forecasts)):
        about = "" if size in made.sizes or size in made.others else "~"
        up = "-" if made.sizes[-1].shares else f"{about}{size.speed / first.speed:.2f} x"
        shares = [f"{100 * size.share(part):.0f} %" for part in PARTS]
        speed = f"{about}{size.speed:,.{0 if size.speed >= 100 else 1}f}"
        rows.append([f"{about}{size.workers}{'*' if size.batch else ''}", speed, up, milliseconds(size.step), *shares])
    return aligned([[*row, ""] for row in rows], right=range(len(rows[0])))


def _lines(made: Answer) -> list[str]:
    first, last = made.sizes[0], made.sizes[-1]
    lines = [f"batch: {_batch(made)}"]
    if last.shares:
        lines.append(f"{last.shares}. On hosts of their own: -H HOST,HOST")
    who, is_alone = count_of(last.workers, "worker"), last.shares or len(made.sizes) == 1
    up = f"{who}:" if is_alone else f"{who} are {last.speed / first.speed:.1f} x as fast as {first.workers}:"
    line = f"{up} {_describe(last, made.bound)}"
    if made.forecasts and (turn := _turn(made)):
        line += f"; from {turn[0]} workers on the bound is {turn[1]}"
    lines.append(line)
    for one, error in made.forecasts:
        lines.append(f"{one.workers} workers: about {one.speed / first.speed:.1f} x, within {100 * error:.0f} %")
    if made.others:
        other = made.others[-1]
        up = "" if last.shares else f", {other.speed / first.speed:.1f} x"
        lines.append(f"*with a batch of {other.batch:.0f}, {count_of(other.workers, 'worker')}: {other.speed:,.0f} examples a second{up}")
    if last.between > BOUND * last.step:
        lines.append(f"left out: {milliseconds(last.between)} for each step between epochs, with the validation")
    if not (last.shares and made.bound in ("computing", "exchange")):
        lines.append(f"try: {_advice(made)}")
    return lines


def _advice(made: Answer) -> str:
    size, batch = made.sizes[-1], _of_each(made)
    gain = 2 * size.step / (size.step + size.parts["computing"] + size.parts["input"])
    larger = f"batch {batch:.0f} -> {2 * batch:.0f} for each worker" if batch else "twice the batch"
    return {
        "exchange": f"{larger} (half the exchanges for each example: about {gain:.1f} x the speed), or a faster network",
        "small": f"{larger} or more, or several steps in one graph (compile(steps_per_execution=10))",
        "waiting": f"look at {size.slowest} with orch stacks, and at its host with orch top",
        "input": "prefetch, cache and a parallel map; orch help input",
        "Python": "take it out of the loop, or run several steps in one graph (compile(steps_per_execution=10))",
        "computing": "a batch for each worker, so that a step of more workers has more examples" if made.way == ALL else "more workers",
    }[made.bound]


def _of_each(made: Answer) -> float:
    """The examples of one worker in a step of the largest size. Where they are the same in all sizes, a smaller last batch can only lessen
    the mean that a size had in its time."""
    found = [size.examples / size.workers for size in made.sizes]
    return max(found) if made.way == EACH else found[-1]


def _turn(made: Answer) -> tuple[int, str] | None:
    last = made.sizes[-1].workers
    bounds = {number: bound_of(forecast(made.sizes, number)) for number in range(last + 1, TIMES * last + 1)}
    words = {"waiting": "the slowest worker", "small": "the size of a step", **{part: f"the {part}" for part in ("exchange", "input")}}
    return next(((number, words.get(name, name)) for number, name in bounds.items() if name != made.bound), None)


def _batch(made: Answer) -> str:
    each = ", ".join(f"{size.examples / size.workers:.0f}" for size in made.sizes)
    total = ", ".join(f"{size.examples:.0f}" for size in made.sizes)
    return {
        ALL: f"{made.sizes[0].examples:.0f} for all workers together, the same in all sizes ({each} for each)",
        EACH: f"{_of_each(made):.0f} for each worker, the same in all sizes ({total} together)",
        OWN: f"the script has another rule ({total} together), so other sizes are not told",
        UNKNOWN: "orch sees none; if each worker has its own, a step of n workers has n times as many examples",
    }[made.way]


def to_json(made: Answer) -> dict[str, Any]:
    """The answer for programs."""
    first = made.sizes[0]

    def of_size(size: Size) -> dict[str, Any]:
        known = "examples_per_s" if size.examples else "steps_per_s"
        return {**asdict(size), known: size.speed, "speed_up": None if size.shares else size.speed / first.speed, "bound": bound_of(size)}

    return {
        "sizes": [of_size(size) for size in made.sizes],
        "other_batches": [of_size(size) for size in made.others],
        "forecasts": [{**of_size(size), "error": error} for size, error in made.forecasts],
        "batch_is_for": made.way,
        "bound": made.bound,
        "text": list(made.text),
    }
