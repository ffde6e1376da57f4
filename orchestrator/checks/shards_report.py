"""The output of `orch shards`, as text or JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from typing import Any

from worker.formats.element_counts import WITH_READER
from worker.values.words import bytes_of, count_of

from ..errors import UsageError
from ..model.planning.sharding import Epoch, Tally, epoch, steps, whole_batch
from ..model.planning.sharding_advice import Sharded, advise
from ..model.planning.spec_inputs import SpecInput
from ..record.text.format import aligned, wrap
from .input_files import Found

MOST_ROWS = 32
"""The most rows of the picture."""
ASSUMED = "This is one pass over the files, for a dataset that reads them, changes no number of elements, and ends with batch"
MOST_LINES = 5
"""The most unreadable files that an error names."""


def plan(looked_at: Iterable[Found], known: SpecInput) -> Sharded:
    """Reads the iterator once, and keeps no file. Raises one `UsageError` for all files that cannot be read."""
    found, kinds, problems = Tally(len(known.names)), set[str](), list[str]()
    for one in looked_at:
        if one.problem:
            problems.append(one.problem)
            continue
        kinds.add(one.kind)
        found.add(one.file)
    if len(problems) > MOST_LINES:
        problems[MOST_LINES:] = [f"and {len(problems) - MOST_LINES:,} more files"]
    if problems:
        raise UsageError("\n".join(problems))
    sharding = replace(known.sharding, has_reader=kinds <= set(WITH_READER))
    return Sharded(sharding, found, tuple(sorted(kinds)), known.names, known.ignored)


# --- text --------------------------------------------------------------------------------------


def to_text(planned: Sharded, width: int) -> Iterator[str]:
    """A headline, a row and a bar for each worker, the end of an epoch, and the advice."""
    summed = epoch(planned.sharding, planned.found)
    yield from wrap(_headline(planned), width)
    yield from wrap(_rule(planned), width)
    yield ""
    yield from _picture(planned, summed, width)
    if planned.has_steps:
        yield ""
        yield from wrap(_end(planned, summed), width)
    for one in advise(planned):
        yield ""
        yield from wrap(one.what, width, f"{one.severity:<9}", " " * 9)
        if one.remedy:
            yield from wrap(f"fix: {one.remedy}", width, " " * 9)


def _headline(planned: Sharded) -> str:
    found = planned.found
    text = f"{count_of(found.files, 'file')} ({' and '.join(planned.kinds)}), {bytes_of(found.bytes)}"
    if planned.found.uncounted:
        return f"{text}; the number of elements is not known"
    each = f"{found.smallest:,} to {found.largest:,} in a file" if found.smallest < found.largest else f"{found.largest:,} in each"
    return f"{text}, {found.elements:,} elements" + (f"; {each}" if found.files > 1 else "")


def _rule(planned: Sharded) -> str:
    sharding = planned.sharding
    workers, policy = sharding.workers, sharding.policy.upper()
    if planned.ignored:
        return f"{workers} workers; each is given all of it"
    if workers == 1:
        rule = "1 worker reads everything"
    else:
        what = {
            "file": f"each of {workers} workers reads its own files",
            "data": f"each of {workers} workers reads everything and keeps its share",
            "off": f"each of {workers} workers reads everything and keeps all of it",
        }[sharding.applied]
        comes_to = f" comes to {sharding.applied.upper()}" if policy in ("AUTO", "HINT") else ""
        rule = f"{policy}{comes_to}: {what}"
    if sharding.batch is None:
        return f"{rule}. With --batch, the steps and batches are shown too"
    sizes = whole_batch(sharding)
    each = f"{max(sizes):,}" if max(sizes) == min(sizes) else f"{min(sizes):,} to {max(sizes):,}"
    return f"{rule}. A global batch of {sharding.batch:,} is {each} for each of {count_of(sharding.all_replicas, 'replica')}"


def _picture(planned: Sharded, summed: Epoch, width: int) -> Iterator[str]:
    has_elements, has_steps = not planned.found.uncounted, planned.has_steps
    rows = [["WORKER", "FILES", "READS", *["ELEMENTS"] * has_elements, *["STEPS"] * has_steps]]
    shown = summed.shares[:MOST_ROWS]
    for share in shown:
        counts = [f"{share.elements:,}"] * has_elements + [f"{share.steps:,}"] * has_steps
        rows.append([planned.names[share.worker], f"{share.files:,}", bytes_of(share.bytes), *counts])
    lines = aligned([[*row, ""] for row in rows], right=range(1, len(rows[0])))
    widest = max(map(len, lines))
    space = max(10, min(60, width - widest - 2))
    measured = "steps" if has_steps else "elements" if has_elements else "bytes"
    most = max(1, *(getattr(share, measured) for share in summed.shares))
    yield lines[0]
    for share, line in zip(shown, lines[1:], strict=True):
        bar = "#" * -(-space * getattr(share, measured) // most)
        yield f"{line:<{widest}}  {bar.ljust(space, '.') if has_steps else bar}".rstrip()
    if left := len(summed.shares) - len(shown):
        yield f"and {left} more; --json has all"
    if has_steps and any(share.steps < summed.steps for share in shown):
        yield "# steps with data   . steps with batches of size 0, while others go on"


def _end(planned: Sharded, summed: Epoch) -> str:
    if not summed.steps:
        return "An epoch has no step."
    text = f"An epoch has {count_of(summed.steps, 'step')}; in {summed.full:,} of them every replica has its whole batch"
    least = min(share.steps for share in summed.shares)
    if least < summed.steps:
        first = planned.group(share.worker for share in summed.shares if share.steps == least)
        text += f". The data ends first for {first}, after step {least:,}"
    return text + f". {ASSUMED}."


def batch_lines(planned: Sharded) -> Iterator[str]:
    """A line for each step, with the batch sizes of all replicas."""
    for number, step in enumerate(steps(planned.sharding, planned.found), start=1):
        parts = (f"{name} {'+'.join(str(len(part)) for part in of)}" for name, of in zip(planned.names, step, strict=True))
        yield f"step {number}: {', '.join(parts)}"


# --- JSON --------------------------------------------------------------------------------------


def to_json(planned: Sharded) -> dict[str, Any]:
    """Everything in the text, for programs. A value that is not known is null."""
    sharding, found = planned.sharding, planned.found
    summed = epoch(sharding, found)
    unknown = {"elements"} if planned.found.uncounted else set()
    if not planned.has_steps:
        unknown |= {"steps", "full", "empty", "partial", "dropped", "idle"}

    def known(**values: Any) -> dict[str, Any]:
        return {name: None if name in unknown else value for name, value in values.items()}

    return {
        **asdict(sharding),
        "applied": sharding.applied,
        "assumed": ASSUMED,
        "files": found.files,
        "kinds": list(planned.kinds),
        "bytes": found.bytes,
        "shares": [{"task": planned.names[share.worker], **known(**asdict(share))} for share in summed.shares],
        "read": summed.read,
        **known(elements=found.elements, steps=summed.steps, full=summed.full, dropped=summed.dropped, idle=round(summed.idle, 4)),
        "advice": [asdict(one) for one in advise(planned)],
    }
