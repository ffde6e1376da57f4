"""The output of `orch shards`, as text or JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from typing import Any

from worker.data_files.element_counts import WITH_READER
from worker.fast_dataclass import dataclass
from worker.words import bytes_of, count_of

from ...errors import UsageError
from ...model.input.sharding import FOR_EVER, Epoch, Sharding, Share, Tally, epoch, steps, whole_batch
from ...model.input.sharding_advice import Advice, advise
from ...model.input.spec_inputs import SpecInput
from ...model.task_names import group_tasks
from ...record.text.format import aligned, wrap
from .input_files import Found, explain_uncounted

MOST_ROWS = 32
"""The most rows of the picture."""
MOST_ENDS = 4
MOST_LINES = 5
"""The most unreadable files that an error names."""
_NAMES = {
    "tfrecord": "TFRecords",
    "text": "lines of text",
    "csv": "CSV",
    "npy": "NumPy arrays",
    "npz": "NumPy archives",
    "parquet": "Parquet",
    "image": "images",
    "other": "an unknown kind",
}


@dataclass(frozen=True, slots=True)
class Planned:
    """An input, and its distribution to the workers."""

    sharding: Sharding
    found: Tally
    kinds: tuple[str, ...]
    names: tuple[str, ...]
    """The names of the workers."""
    ignored: str = ""
    """Why the strategy shards nothing; empty if it does."""
    uncounted: str = ""
    """How the user can make the number of elements known, if it is unknown."""

    @property
    def is_counted(self) -> bool:
        return not self.found.uncounted

    @property
    def has_steps(self) -> bool:
        """Whether the steps of an epoch are known: elements and batch are known, and TensorFlow accepts the input."""
        refused = self.sharding.applied == "file" and self.found.files < self.sharding.workers
        return self.sharding.batch is not None and self.is_counted and not refused and self.found.elements > 0

    def advice(self) -> list[Advice]:
        if self.ignored:
            return [Advice("note", "not sharded", self.ignored)]
        found = advise(self.sharding, self.found, self.names)
        if "csv" in self.kinds and self.sharding.policy == "auto" and self.sharding.workers > 1:
            found.append(Advice("note", "csv", _CSV, "say --format text, if the script reads lines with TextLineDataset"))
        if not self.is_counted:
            found.append(Advice("note", "not counted", "it is not known how many elements these files hold", self.uncounted))
        return found


def plan(looked_at: Iterable[Found], known: SpecInput) -> Planned:
    """Reads the iterator once, and keeps no file. Raises one `UsageError` for all files that cannot be read."""
    found, kinds, problems = Tally(len(known.names)), set[str](), list[str]()
    for one in looked_at:
        if one.problem:
            problems.append(one.problem)
            continue
        kinds.add(one.kind)
        found.add(one.file)
    if problems:
        more = [f"and {len(problems) - MOST_LINES:,} more files"] if len(problems) > MOST_LINES else []
        raise UsageError("\n".join([*problems[:MOST_LINES], *more]))
    sharding = replace(known.sharding, has_reader=kinds <= set(WITH_READER))
    uncounted = explain_uncounted(kinds) if found.uncounted else ""
    return Planned(sharding, found, tuple(sorted(kinds)), known.names, known.ignored, uncounted)


_CSV = (
    "TensorFlow cannot shard CsvDataset and make_csv_dataset by file. Each line of a CSV file is counted as an element: also a header, "
    "and each line of a text in quotes"
)


# --- text --------------------------------------------------------------------------------------


def to_text(planned: Planned, width: int) -> Iterator[str]:
    """A headline, a row and a bar for each worker, the end of an epoch, and the advice."""
    summed = epoch(planned.sharding, planned.found)
    yield from wrap(_headline(planned), width)
    yield from wrap(_rule(planned), width)
    yield ""
    yield from _picture(planned, summed, width)
    if planned.has_steps:
        yield ""
        yield from wrap(_end(planned, summed), width)
    for one in planned.advice():
        yield ""
        yield from _advice(one, width)


def _headline(planned: Planned) -> str:
    found = planned.found
    kinds = " and ".join(_NAMES[kind] for kind in planned.kinds)
    text = f"{count_of(found.files, 'file')} of {kinds}, {bytes_of(found.bytes)}"
    if planned.is_counted:
        each = f"{found.smallest:,} to {found.largest:,} in a file" if found.smallest < found.largest else f"{found.largest:,} in each"
        return f"{text}, {found.elements:,} elements" + (f"; {each}" if found.files > 1 else "")
    return f"{text}; the number of elements is not known"


def _rule(planned: Planned) -> str:
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
    replicas = f"{sharding.all_replicas} replicas" if sharding.all_replicas > 1 else "1 replica"
    sizes = whole_batch(sharding)
    each = f"{max(sizes):,}" if max(sizes) == min(sizes) else f"{min(sizes):,} to {max(sizes):,}"
    return f"{rule}. A global batch of {sharding.batch:,} is {each} for each of {replicas}"


def _picture(planned: Planned, summed: Epoch, width: int) -> Iterator[str]:
    head = ["WORKER", "FILES", "READS"]
    if planned.is_counted:
        head.append("ELEMENTS")
    if planned.has_steps:
        head.append("STEPS")
    shown = summed.shares if len(summed.shares) <= MOST_ROWS else summed.shares[: MOST_ROWS - 1]
    rows = [head]
    for share in shown:
        row = [planned.names[share.worker], f"{share.files:,}", bytes_of(share.bytes)]
        if planned.is_counted:
            row.append(f"{share.elements:,}")
        if planned.has_steps:
            row.append(f"{share.steps:,}")
        rows.append(row)
    lines = aligned([[*row, ""] for row in rows], right=range(1, len(head)))
    space = max(10, min(60, width - max(map(len, lines)) - 2))
    widest = max(map(len, lines))
    yield lines[0]
    for share, line in zip(shown, lines[1:], strict=True):
        yield f"{line.ljust(widest)}  {_bar(planned, summed, share, space)}".rstrip()
    if left := summed.shares[len(shown) :]:
        amounts = [share.elements if planned.is_counted else share.bytes for share in left]
        least, most = (f"{amount:,} elements" if planned.is_counted else bytes_of(amount) for amount in (min(amounts), max(amounts)))
        yield f"and {len(left)} more, {least} to {most}; --json has all"
    if planned.has_steps and planned.sharding.repeat != FOR_EVER and any(share.steps < summed.steps for share in shown):
        yield "# steps with data   . steps with batches of size 0, while others go on"


def _bar(planned: Planned, summed: Epoch, share: Share, space: int) -> str:
    if planned.has_steps:
        done = -(-space * share.steps // max(summed.steps, 1))
        return "#" * done + "." * (space - done) * (planned.sharding.repeat != FOR_EVER)
    amounts = [other.elements if planned.is_counted else other.bytes for other in summed.shares]
    own = amounts[share.worker]
    return "#" * (-(-space * own // max(*amounts, 1)) if len(amounts) > 1 else space * bool(own))


def _end(planned: Planned, summed: Epoch) -> str:
    if planned.sharding.repeat == FOR_EVER:
        least = min(share.steps for share in summed.shares)
        passes = f"{least:,} to {summed.steps:,} steps" if least < summed.steps else f"{summed.steps:,} steps"
        return f"A worker's pass over its files has {passes}; then the worker begins the next pass."
    passes = f", {planned.sharding.repeat} times over the files," if planned.sharding.repeat > 1 else ""
    text = f"An epoch{passes} has {summed.steps:,} steps"
    if summed.full == summed.steps:
        text += ", each with a whole global batch"
    else:
        text += f"; in {summed.full:,} of them every replica has its whole batch"
    early: dict[int, list[int]] = {}
    for share in summed.shares:
        if share.steps < summed.steps:
            early.setdefault(share.steps, []).append(share.worker)
    ends = []
    for step, workers in sorted(early.items())[:MOST_ENDS]:
        who = group_tasks(planned.names[worker] for worker in workers)
        ends.append(f"for {who} {f'after step {step:,}' if step else 'at once'}")
    if ends:
        more = "; for others later" if len(early) > len(ends) else ""
        text += f". The data ends {'; '.join(ends)}{more}"
    return text + "."


def _advice(one: Advice, width: int) -> Iterator[str]:
    indent = " " * 9
    yield from wrap(one.what or one.topic, width, f"{one.severity:<9}", indent)
    if one.remedy:
        yield from wrap(f"do: {one.remedy}", width, indent)


def batch_lines(planned: Planned) -> Iterator[str]:
    """A line for each step, with the batch sizes of all replicas."""
    for number, step in enumerate(steps(planned.sharding, planned.found), start=1):
        parts = (f"{name} {'+'.join(str(len(part)) for part in of)}" for name, of in zip(planned.names, step, strict=True))
        yield f"step {number}: {', '.join(parts)}"


# --- JSON --------------------------------------------------------------------------------------


def to_json(planned: Planned) -> dict[str, Any]:
    """Everything in the text, for programs. A value that is not known is null."""
    sharding, found = planned.sharding, planned.found
    summed = epoch(sharding, found)
    unknown = set() if planned.is_counted else {"elements"}
    if not planned.has_steps:
        unknown |= {"steps"}
    if not planned.has_steps or sharding.repeat == FOR_EVER:
        unknown |= {"full", "empty", "partial", "dropped", "idle"}

    def known(**values: Any) -> dict[str, Any]:
        return {name: None if name in unknown else value for name, value in values.items()}

    return {
        **asdict(sharding),
        "applied": sharding.applied,
        "files": found.files,
        "kinds": list(planned.kinds),
        "bytes": found.bytes,
        "shares": [{"task": planned.names[share.worker], **known(**asdict(share))} for share in summed.shares],
        "read": summed.read,
        **known(elements=found.elements, steps=summed.steps, full=summed.full, dropped=summed.dropped, idle=round(summed.idle, 4)),
        "advice": [asdict(one) for one in planned.advice()],
    }
