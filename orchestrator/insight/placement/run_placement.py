"""The placement of a run: reads the logs of its tasks, and returns text or JSON."""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from worker.words import count_of

from ...errors import OrchError
from ...model.task_names import group_tasks
from ...record.output.lines import clean
from ...record.storage.run_directory import RunDir
from ...record.storage.run_files import open_file
from ...record.text.format import aligned, wrap
from .placement_log import BOOKKEEPING, Count, StreamScan, TaskPlacement, summarise

BLOCK = 1 << 20
"""The bytes of one read."""
WIDTH = 80
MOST_LISTED = 12
"""The most lines under a heading. The text has the number of the others; --json has all."""

NOTHING_LOGGED = """\
no task of {run} logged where its operations ran. To get that,
  start the run with --log-placement (devices.log_placement: true), or
  call tf.debugging.set_log_device_placement(True) first in the script"""
MUTED = "eager runs are missing: with TF_CPP_MIN_LOG_LEVEL above 0 TensorFlow logs graphs only"


def read(run: RunDir, attempts: Mapping[str, int]) -> list[TaskPlacement]:
    """The placement of each task. `attempts`: the attempt by task. Raises `OrchError` for a log that cannot be read."""
    return [summarise(task, *(_scan(run, task, attempt, stream) for stream in ("stderr", "stdout"))) for task, attempt in attempts.items()]


def _scan(run: RunDir, task: str, attempt: int, stream: str) -> StreamScan:
    scan = StreamScan()
    path = run.log_path(task, attempt, stream)
    try:
        with open_file(path) as file:
            while block := file.read(BLOCK):
                scan.feed(block)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise OrchError(f"{path}: cannot read this log: {error.strerror or error}") from None
    scan.finish()
    return scan


def with_ops(placement: TaskPlacement, patterns: Collection[str]) -> TaskPlacement:
    """The placement of the operations that fit a pattern. The patterns are those of a shell, without case."""

    def fits(op: str) -> bool:
        return any(fnmatch.fnmatchcase(op.casefold(), pattern.casefold()) for pattern in patterns)

    return replace(
        placement,
        counts={(op, device): count for (op, device), count in placement.counts.items() if fits(op)},
        reads={read: number for read, number in placement.reads.items() if fits(read.op)},
    )


# --- for programs -------------------------------------------------------------------------------


def to_json(run_id: str, attempts: Mapping[str, int], placements: Iterable[TaskPlacement]) -> dict[str, Any]:
    """Everything, with a flat list for each kind of finding. `attempt` is the newest attempt; `tasks` has the attempt of each task."""
    found = list(placements)
    return {
        "run": run_id,
        "attempt": max(attempts.values(), default=1),
        "operations": [
            {"task": one.task, "op": op, "device": device, **asdict(count)}
            for one in found
            for (op, device), count in sorted(one.counts.items())
        ],
        "fallbacks": [{"task": one.task, "op": op, **asdict(count)} for one in found for op, count in sorted(one.fallbacks.items())],
        "variable_reads": [{"task": one.task, **asdict(read), "times": number} for one in found for read, number in one.reads.items()],
        "tasks": [
            {"task": one.task, "attempt": attempts[one.task], "gpus": sorted(one.gpus), "eager_runs_logged": not one.is_muted}
            for one in found
        ],
    }


# --- for people ---------------------------------------------------------------------------------


def to_text(placements: Sequence[TaskPlacement], *, everything: bool = True) -> Iterator[str]:
    """The table, then the findings. Tasks with the same line share the line. `everything`: the table has `BOOKKEEPING` too."""
    rows = _rows(placements)
    shown = rows if everything else [row for row in rows if row[0] not in BOOKKEEPING]
    yield from _table(shown) if shown else ("no operation fits",)
    if hidden := sum(count.total * len(tasks) for op, _, count, tasks in rows if not everything and op in BOOKKEEPING):
        yield f"not shown: {hidden:,} of what every graph is full of (constants, arguments); --all"
    muted = [one.task for one in placements if one.is_muted]
    if muted:
        yield from wrap(f"{group_tasks(muted)}: {MUTED}", WIDTH, "", "  ")
    yield from _section("On the CPU although the task has a GPU", placements, _fallback_lines, _FALLBACK_NOTE)
    yield from _section("Variables used on another device than their own (each use copies them)", placements, _read_lines, _READ_NOTE)


Row = tuple[str, str, Count, list[str]]
_FALLBACK_NOTE = "tf.device asked for it, or there is no GPU kernel for the op or its type of data: the log does not say which."
_READ_NOTE = "Seen by the names of graph nodes; of eager operations the log does not say where their inputs came from."


def _rows(placements: Iterable[TaskPlacement]) -> list[Row]:
    """(op, device, count in each task, names of the tasks), the most frequent first."""
    same: dict[tuple[str, str, Count], list[str]] = {}
    for one in placements:
        for (op, device), count in one.counts.items():
            same.setdefault((op, device, count), []).append(one.task)
    rows = [(op, device, count, tasks) for (op, device, count), tasks in same.items()]
    return sorted(rows, key=lambda row: (-row[2].total, row[0], row[1], row[3]))


def _table(rows: Sequence[Row]) -> Iterator[str]:
    cells = [["OPERATION", "DEVICE", "RUN", "PLACED", "TASKS"]]
    for op, device, count, tasks in rows:
        numbers = [f"{number:,}" if number else "-" for number in (count.executed, count.placed)]
        cells.append([_cut(clean(op), 34), device, *numbers, group_tasks(tasks)])
    yield from aligned(cells, right=(2, 3))
    yield "RUN: each eager run; function() is one run, wherever its parts ran."
    yield "PLACED: a node of a graph, once, however often the graph ran."


def _section(title: str, placements: Iterable[TaskPlacement], describe: Callable[[TaskPlacement], list[str]], note: str) -> Iterator[str]:
    same: dict[str, list[str]] = {}
    for one in placements:
        for line in describe(one):
            same.setdefault(line, []).append(one.task)
    if not same:
        return
    yield ""
    yield f"{title}:"
    for line, tasks in list(same.items())[:MOST_LISTED]:
        yield from wrap(f"{group_tasks(tasks)}: {line}", WIDTH, "  ", "    ")
    if len(same) > MOST_LISTED:
        yield f"  and {len(same) - MOST_LISTED:,} more; --json has all"
    yield from wrap(note, WIDTH, "  ", "    ")


def _fallback_lines(placement: TaskPlacement) -> list[str]:
    on_gpu = {op for op, device in placement.counts if device.startswith("GPU:")}
    found = sorted(placement.fallbacks.items(), key=lambda item: (item[0] in on_gpu, -item[1].total, item[0]))
    return [f"{op}, {_times(count)}{', elsewhere on the GPU' if op in on_gpu else ''}" for op, count in found]


def _read_lines(placement: TaskPlacement) -> list[str]:
    summed = Counter[tuple[str, str, str, bool]]()
    for read, number in placement.reads.items():
        likely = read.evidence == "scope"
        what = f"{read.op} in {read.node}" if likely else f"{read.op} {read.node}"
        summed[what, read.device, read.variable_device, likely] += number
    return [
        f"{what} on {device} {'probably ' if likely else ''}uses a variable of {source} ({count_of(number, 'graph')})"
        for (what, device, source, likely), number in sorted(summed.items(), key=lambda item: (item[0][3], -item[1], item[0]))
    ]


def _times(count: Count) -> str:
    words = {"run": count.executed, "placed": count.placed}
    return ", ".join(f"{word} {number:,} times" if number > 1 else f"{word} once" for word, number in words.items() if number)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
