"""Compares the first steps of several workers with those of one process: are they the same training, and if not, what differs first?

Rounding differs: sums of other parts round otherwise, and the optimizers make more of it from step to step. So a difference counts from
`LIMIT` on, and from `GROWTH` times that of the steps before.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from worker.values.fast_dataclass import dataclass
from worker.values.words import count_of, few

from .training_rows import of_ends, of_rows
from .training_steps import Difference, Numbers, World, add, line_of, place_of, ratio_of, relation, size

LIMIT, GROWTH, MOST = 1e-3, 10.0, 0.05
HUGE = 100
SMALL = 20
"""So many times as much is rounding in float16 and bfloat16."""
ROUNDING = 1e-4
"""Steps whose gradients differ by less are the same up to rounding."""
NOISE = 1e-5
"""A gradient that is so much smaller than the largest one is rounding."""


@dataclass(frozen=True, slots=True)
class Comparison:
    workers: int
    findings: tuple[Difference, ...]
    steps: int
    rows: int
    variables: int
    largest: float
    """The largest difference of gradients, as a part of one of them."""
    notes: tuple[str, ...] = ()

    @property
    def is_same(self) -> bool:
        """True if nothing differs."""
        return not self.findings


def compare(one: World, many: World, workers: int) -> Comparison:
    """Compare the steps that both worlds have taken. The findings are in the order of the steps."""
    numbers = [number for number in one.steps if number in many.steps]
    findings, notes = [*_apart(many, workers), *of_rows(one, many, numbers, workers), *of_ends(one, many)], _notes(one, many)
    others = min((finding.step for finding in findings if finding.kind != "batch"), default=math.inf)
    if findings and findings[0].kind in ("batch", "apart"):
        others = 0
    starts = list(_starts(one, many)) if others else []
    largest, wrong = 0.0, math.inf
    if not starts:
        for number in (number for number in numbers if number < others):
            found, difference = _step(one, many, number, largest)
            if found and largest < ROUNDING and _is_of_rounding(one, many, number, found, largest):
                notes.append(f"in step {number} rounding chose another of nearly equal numbers: later steps are not compared")
                break
            largest = max(largest, difference)
            if found:
                findings, wrong = [*findings, *found], number
            elif _explodes(one, number):
                notes.append(f"after step {number} the variables are more than {HUGE} times as large: later steps are not compared")
            else:
                continue
            break
    variables = len({place for number in numbers for step in one.steps[number] for place in step["after"]})
    if not variables:
        findings.append(Difference("unseen", 1, "no gradient of the training could be read"))
    findings += [*starts, *_shown(one, many, min(wrong, others) if not starts else 0)]
    return Comparison(
        workers,
        tuple(sorted({each.text: each for each in findings}.values(), key=lambda finding: finding.step)),
        len(numbers),
        sum(sum(one.rows(number).values()) for number in numbers),
        variables,
        largest,
        tuple(notes),
    )


def with_larger_batch(found: Comparison, again: Comparison) -> Comparison:
    """The comparison with one process whose batches are as large as those of the workers. `found`: with its own batches."""
    batch, others = found.findings[0], again.findings
    if others and others[0].kind in ("batch", "rows", "start"):
        return replace(
            found, findings=(batch,), notes=(*found.notes, "orch could not give one process the same batches to compare the steps")
        )
    note = f"with the same batches in one process the steps are the same, largest difference {again.largest:.0e}"
    return replace(again, findings=(batch, *others), notes=(*again.notes, *([] if others else [note])))


def _notes(one: World, many: World) -> list[str]:
    drawn = sorted({line for each in many.steps.values() for step in each for line, how in step["random"].items() if how == "rows"})
    wrote = sorted({f"{path} ({line})" for found in (*one.tasks.values(), *many.tasks.values()) for path, line in found["wrote"].items()})
    notes = []
    if drawn:
        lines = [place_of(line) for line in drawn if place_of(line)]
        where = f" ({few(lines, 3)})" if lines else ""
        notes.append(f"random numbers for rows, such as those of Dropout{where}, are the same in both runs; a real training draws others")
    if many.first["is_small"]:
        notes.append(f"float16 and bfloat16 round: differences below {LIMIT * SMALL:.0%} do not count")
    if wrote:
        notes.append(f"the program wrote {few(wrote, 3)} in the meantime")
    return notes


def _apart(many: World, workers: int) -> Iterator[Difference]:
    replicas = [step["replica"] for step in next(iter(many.steps.values()), ())]
    if len(replicas) > 1 and len(set(replicas)) == 1:
        line = line_of(many.steps[1][0]) if 1 in many.steps else ""
        what = f"each of the {workers} workers trains a model of its own"
        yield Difference(
            "apart", 1, what, line, "make the model in the scope of the strategy, and call its step by strategy.run, or by fit"
        )


# --- one step --------------------------------------------------------------------------------------------


def _starts(one: World, many: World) -> Iterator[Difference]:
    """Variables that begin with other values."""
    others = []
    for place in range(min(len(one.first["variables"]), len(many.first["variables"]))):
        mine, theirs = one.started(place), many.started(place)
        if mine is not None and theirs is not None and len(mine) == len(theirs) and relation(mine, theirs).difference > LIMIT:
            others.append(one.name(place))
    if others:
        what = f"the training begins with other values of {few([f'`{name}`' for name in others], 3)}"
        yield Difference("start", 1, what, "", "keras.utils.set_random_seed, and no seed that depends on the worker")


def _step(one: World, many: World, number: int, before: float) -> tuple[list[Difference], float]:
    """The differences in a step whose rows are the same, and the largest difference of a gradient. `before`: that in earlier steps."""
    mine, theirs = one.steps[number], many.steps[number]
    findings: list[Difference] = []
    largest, limit = 0.0, _limit(many, before)
    pairs = zip(mine[0]["events"], zip(*(step["events"] for step in theirs), strict=False), strict=False)
    kinds = [[(event["kind"], event.get("optimizer")) for event in step["events"]] for step in (mine[0], *theirs)]
    if any(each != kinds[0] for each in kinds[1:]):
        what = f"{_from(number)}a step takes other gradients, or has other optimizers take a step, than in one process"
        why = "gradients overflow in float16 at other values in a part than in a whole batch" if many.first["is_small"] else ""
        return [Difference("gradient", number, what, line_of(theirs[0]), why)], 0.0
    losses = [(own, others) for own, others in pairs if own["kind"] == "loss"]
    for own, others in losses:
        findings += _terms(number, own, others, theirs[0]["line"])
    for own, others in zip(mine[0]["events"], zip(*(step["events"] for step in theirs), strict=False), strict=False):
        if own["kind"] != "apply" or any(each["kind"] != "apply" for each in others):
            continue
        found, difference = _applied(one, many, number, own, others, limit, is_told=bool(findings), losses=losses)
        findings, largest = findings + found, max(largest, difference)
    if not findings:
        findings += _after(one, many, number, limit)
    return findings, largest


def _is_of_rounding(one: World, many: World, number: int, found: Sequence[Difference], before: float) -> bool:
    """True if gradients differ in one later step alone, as at two nearly equal maxima. An error differs from step 1 on, or stays."""
    sizes = {len(step["rows"]) for step in many.steps[number]}
    is_alone = number > 1 and len(sizes) == 1 and all(each.kind == "gradient" and each.ratio is None for each in found)
    return is_alone and not (number + 1 in one.steps and number + 1 in many.steps and _step(one, many, number + 1, before)[0])


def _explodes(one: World, number: int) -> bool:
    """True if a training diverges, where rounding becomes as large as everything else."""
    after = one.steps[number][0]["after"]
    sizes = [sum(size(each) ** 2 for each in values if each) for values in (after.values(), map(one.first["started"].get, after))]
    return sizes[0] > HUGE**2 * sizes[1] > 0 or not math.isfinite(sizes[0])


def _limit(many: World, before: float = 0.0) -> float:
    """Return the difference that a gradient may have in a step. `before`: the largest one of earlier steps."""
    rounding = SMALL if many.first["is_small"] else 1
    return min(MOST * rounding, max(LIMIT * rounding, GROWTH * before))


def _terms(number: int, own: Mapping[str, Any], others: Sequence[Mapping[str, Any]], step: str) -> Iterator[Difference]:
    """The terms of a loss that count N times, or 1/N. `step`: the line that begins the step."""
    replicas = len(others)
    if any(len(each["terms"]) != len(own["terms"]) for each in others):
        return
    largest = max((abs(term["value"]) for term in own["terms"]), default=0.0)
    for place, term in enumerate(own["terms"]):
        parts = [each["terms"][place]["value"] for each in others]
        ratio = ratio_of(term["value"], sum(parts))
        if replicas == 1 or abs(term["value"]) < NOISE * largest or not math.isfinite(ratio):
            continue
        line = next(filter(None, map(place_of, (term["line"], own["line"], step))), "")
        whose = "a term of the loss" if len(own["terms"]) > 1 else "the loss"
        if abs(ratio - replicas) < 0.02 * replicas:
            what = f"{_from(number)}{whose} counts {replicas} times: each replica adds the whole of it, or the mean of its own rows"
            yield Difference("loss", number, what, line, "divide it by strategy.num_replicas_in_sync", ratio)
        elif abs(ratio - 1 / replicas) < 0.02 / replicas:
            what = f"{_from(number)}{whose} counts 1/{replicas}: it is divided by the replicas once too often"
            yield Difference("loss", number, what, line, "do not divide it again; in a step of fit, take the mean over its rows", ratio)


def _from(number: int) -> str:
    return f"from step {number} " if number > 1 else ""


def _applied(
    one: World, many: World, number: int, own: Mapping[str, Any], others: Any, limit: float, *, is_told: bool, losses: Any
) -> tuple[list[Difference], float]:
    """Return the differences between the gradients that an optimizer applies, and the largest of all differences, also of those that do
    not count.
    """
    are_applied = all("applied" in event for event in (own, *others))
    mine, theirs = (_gradients(own, events, are_applied=are_applied) for events in ([own], others))
    pairs = [(place, left, right) for place, left in mine.items() if left is not None and (right := theirs.get(place)) is not None]
    most = max((size(left) for _, left, _ in pairs), default=0.0)
    wrong, largest = [], 0.0
    for place, left, right in pairs:
        if not most or max(size(left), size(right)) < NOISE * most:
            continue
        found = relation(left, right)
        gap = found.difference * size(left) / (size(left) + NOISE * most) if math.isfinite(found.difference) else found.difference
        largest = max(largest, gap)
        if not gap <= limit:
            wrong.append((place, found))
    findings = []
    if own.get("rate") and others[0].get("rate") and abs(ratio_of(own["rate"], others[0]["rate"]) - 1) > LIMIT:
        ratio = ratio_of(own["rate"], others[0]["rate"])
        what = f"{_from(number)}the learning rate is {others[0]['rate']:.4g}, and {own['rate']:.4g} in one process"
        findings.append(
            Difference(
                "rate",
                number,
                what,
                place_of(own["line"]) or line_of(many.steps[number][0]),
                "look for what computes it from the workers",
                ratio,
            )
        )
    if wrong and not is_told:
        findings.append(_cause(one, many, number, own, others, limit, wrong, losses))
    return findings, largest


def _gradients(own: Mapping[str, Any], events: Sequence[Mapping[str, Any]], *, are_applied: bool) -> dict[int, Numbers | None]:
    """The gradients of all replicas: as the optimizer applies them, or as it gets them, where the former are not known."""
    if are_applied:
        return {int(place): numbers for place, numbers in events[0]["applied"].items()}
    each = events if own["is_added"] else events[:1]
    return {place: add(event["grads"][index] for event in each) for index, place in enumerate(own["variables"])}


def _cause(one: World, many: World, number: int, own: Mapping[str, Any], others: Any, limit: float, wrong: Any, losses: Any) -> Difference:
    """Why an optimizer applies other gradients."""
    replicas, found = len(others), wrong[0][1]
    names = few([f"`{one.name(each)}`" for each, _ in wrong], 2)
    times = next((ratio for ratio in (replicas, 1 / replicas) if all(each.is_ratio(ratio) for _, each in wrong)), None)
    size = min(found.difference, 99)
    far = f"differs by {size:.{0 if size >= 0.01 else 1}%}" if math.isfinite(found.difference) else "is NaN on one side alone"
    what = f"from step {number} the gradient of {names} {f'is {found.ratio:.2f} times that of one process' if times else far}"
    why, place, remedy = next(_causes(one, many, number, own, others, limit, wrong, losses, times))
    return Difference("gradient", number, f"{what}{why}", place or line_of(many.steps[number][0]), remedy, found.ratio if times else None)


def _causes(
    one: World, many: World, number: int, own: Any, others: Any, limit: float, wrong: Any, losses: Any, times: float | None
) -> Iterator[tuple[str, str, str]]:
    """Return possible causes, the most certain first: part of a sentence, a line, a fix."""
    steps, line = many.steps[number], place_of(own["line"])
    lines = [term["line"] for event, _ in losses for term in event["terms"]] + [event["line"] for event, _ in losses]
    made = next(filter(None, map(place_of, lines)), "")  # the line that makes the loss
    adds = [place for step in steps for place in step["adds"]]
    traced = 1 if 1 in one.steps and 1 in many.steps else number  # the numbers of one step alone are written down

    def are_alike(pairs: Any) -> bool:
        """True if what one process and the replicas have of each wrong gradient is the same."""
        of_both: dict[int, Any] = {}
        for event, each in pairs:
            of_all = [add(numbers) for numbers in zip(*(replica["grads"] for replica in each), strict=True)]
            of_both |= dict(zip(event["variables"], zip(event["grads"], of_all, strict=True), strict=True))
        found = [of_both.get(place, (None, None)) for place, _ in wrong]
        return all(None not in each and relation(*each).difference <= limit for each in found)

    is_given = are_alike([(own, others)])
    if times == len(steps) and (adds or all(are_alike([(own, [each])]) for each in others)):
        remedy = "leave out the all_reduce" if adds else "leave out one of the two sums"
        yield ": the program adds up the gradients of the replicas, and the optimizer adds them again", (adds or [line])[0], remedy
    if is_given and own.get("clips", False) and "applied" in others[0]:
        first = "--set keras.exact=true adds the gradients first, but not the rows of an embedding"
        yield ": those of the replicas are clipped before they are added", line, first
    if not own["is_added"] and not adds:
        yield ": the program has the optimizer not add those of the replicas", line, "add them, or leave out the option"
    if not is_given and are_alike(losses):
        changed = _first_other(one.steps[traced][0], many.steps[traced], after_loss=True)
        clip = "clip by the optimizer (clipnorm, global_clipnorm, clipvalue), with --set keras.exact=true"
        why = ": the program changes those of each replica, as by clipping, before they are added"
        yield why, place_of(changed[1]) if changed else line, clip
    parts = [len(step["rows"]) for step in steps]
    if len(set(parts)) > 1:
        divide = "divide the sum of the losses by the rows of the whole batch"
        yield f": the parts have {few(list(map(str, parts)), 8)} rows, and each counts the same", made or line, divide
    layers = [name for name in many.first["layers"] if "BatchNorm" in name]
    if layers and not times:
        whole = "BatchNormalization(synchronized=True) takes those of all rows"
        yield f": {layers[0]} takes the mean and the variance of a replica's own rows", made or line, whole
    drawn = [text for step in steps for text, how in step["random"].items() if how == "own"]
    if drawn:
        yield ": each replica draws random numbers of its own", place_of(drawn[0]) or made or line, ""
    if times is None and (found := _first_other(one.steps[traced][0], many.steps[traced])):
        yield f": the first operation whose numbers are others is {found[0]}", place_of(found[1]) or made or line, _OWN_ROWS
    yield "", made or line, _OWN_ROWS


_OWN_ROWS = "look there for a mean over rows, a comparison of rows, or a constant that differs between the workers"


def _first_other(own: Mapping[str, Any], steps: Sequence[Mapping[str, Any]], *, after_loss: bool = False) -> tuple[str, str] | None:
    """The first operation of a line of the program whose results are neither those of one process, nor its parts, their sums or means."""
    mine, *traces = (_by_line(step["trace"][step["of_loss"] if after_loss else 0 :]) for step in (own, *steps))
    for key, (size_of_one, total, absolute) in mine.items():
        others = [trace[key] for trace in traces if key in trace]
        if not place_of(key[1]) or len(others) < len(traces):
            continue
        sizes, totals, absolutes = zip(*others, strict=True)
        scale = LIMIT * max(absolute, *absolutes, 1e-12)
        are_parts = max(abs(sum(totals) - total), abs(sum(absolutes) - absolute)) <= scale  # a part may be padded to another length
        are_sums = set(sizes) == {size_of_one} and min(abs(sum(totals) - total), abs(sum(totals) / len(totals) - total)) <= scale
        if not are_parts and not are_sums:
            return key[0], key[1]
    return None


def _by_line(trace: Sequence[tuple[str, str, int, float, float]]) -> dict[tuple[str, str, int], tuple[float, float, float]]:
    """The results of operations, by kind, line, and how often the line has done this before."""
    found: dict[tuple[str, str, int], tuple[float, float, float]] = {}
    counts: Counter[tuple[str, str]] = Counter()
    for kind, line, *numbers in trace:
        found[kind, line, counts[kind, line]] = (numbers[0], numbers[1], numbers[2])
        counts[kind, line] += 1
    return found


def _after(one: World, many: World, number: int, limit: float) -> list[Difference]:
    """Variables that differ after a step with the same gradients: between the workers, or by much."""
    mine, theirs = one.steps[number][0]["after"], [step["after"] for step in many.steps[number]]
    for place, left in mine.items():
        values = [each[place] for each in theirs if each.get(place) is not None]
        if left is None or not values:
            continue
        name = one.name(int(place))
        if any(relation(values[0], each).difference > LIMIT for each in values[1:]):
            what = f"after step {number} the replicas have different values of `{name}`"
            return [Difference("variable", number, what, line_of(many.steps[number][0]))]
        if any(event["kind"] == "apply" for event in one.steps[number][0]["events"]):
            continue  # the gradients were compared
        before = _values(one, many, number - 1, place)
        moved = [[now - then for now, then in zip(each, start, strict=True)] for each, start in zip((left, values[0]), before, strict=True)]
        found = relation(*moved)
        if max(map(size, moved)) > NOISE * size(left) and not found.difference <= limit:
            what = f"in step {number} `{name}` changes otherwise than in one process ({found.ratio:.2f} times as much)"
            return [Difference("variable", number, what, line_of(many.steps[number][0]), "", found.ratio)]
    return []


def _values(one: World, many: World, number: int, place: str) -> list[Numbers]:
    """The values of a variable after a step, or before the first one, in both worlds."""
    steps = [found.steps[number][0]["after"] if number in found.steps else found.first["started"] for found in (one, many)]
    return [each.get(place) or found.first["started"][place] for each, found in zip(steps, (one, many), strict=True)]


# --- what the program shows -------------------------------------------------------------------------------


def _shown(one: World, many: World, before: float) -> Iterator[Difference]:
    """Numbers that `fit` or a loop shows, in steps whose gradients are the same."""
    told: set[str] = set()
    replicas = len(next(iter(many.steps.values()), ()))
    for mine, theirs in zip(one.first["shown"], many.first["shown"], strict=False):
        if mine["step"] >= before or (mine["kind"], mine["line"], mine["step"]) != (theirs["kind"], theirs["line"], theirs["step"]):
            continue
        for name, value in mine["values"].items():
            other = theirs["values"].get(name)
            # A metric that counts has steps: after rounding has grown, another row may count.
            limit = 5 * _limit(many) * abs(value) + 1e-5 if mine["step"] <= 1 else max(MOST, _limit(many)) * abs(value) + 0.02
            if name in told or other is None or not math.isfinite(value) or abs(other - value) <= limit:
                continue
            told.add(name)
            ratio = ratio_of(value, other)
            is_times = any(abs(ratio - number) < 0.02 * number for number in (replicas, 1 / replicas))
            who = f"what fit shows as {name!r}" if name else "what strategy.reduce gives"
            by = f"is {ratio:.2f} times that of one process" if is_times else f"is {other:.5g}, and {value:.5g} in one process"
            remedy = "return means over the rows, no sums" if name and is_times else ""
            what = f"{_from(mine['step'])}{who} {by}"
            yield Difference("shown", mine["step"], what, place_of(mine["line"]), remedy, ratio if is_times else None)


def to_json(found: Comparison) -> dict[str, Any]:
    findings = [{name: getattr(each, name) for name in ("kind", "step", "what", "place", "remedy", "ratio")} for each in found.findings]
    return {"same": found.is_same, "workers": found.workers, "findings": findings, "notes": list(found.notes)} | {
        name: getattr(found, name) for name in ("steps", "rows", "variables", "largest")
    }


def sentences(found: Comparison) -> list[str]:
    counts = [count_of(found.steps, "step"), *([count_of(found.rows, "row")] if found.rows else []), count_of(found.variables, "variable")]
    if found.is_same:
        first = [f"the same training as in one process: {', '.join(counts)}, largest difference {found.largest:.0e}"]
    else:
        first = [
            f"not the same training as in one process: {found.findings[0].text}",
            *(f"also: {each.text}" for each in found.findings[1:]),
        ]
    return [*first, *(f"note: {note}" for note in found.notes)]
