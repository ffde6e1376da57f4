"""The placement of a run: reads the logs of its tasks, and returns text or JSON."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from worker.values.words import count_of

from ..errors import OrchError
from ..model.task_names import group_tasks
from ..record.run_directory import RunDir
from ..record.run_files import open_file
from ..record.text.format import aligned, wrap
from ..record.text.lines import clean
from .cross_device_reads import VariableRead
from .placement_log import BOOKKEEPING, OperationCount, StreamScan, TaskPlacement, scan, summarise

MAX_LINE = 1 << 20
"""A line that is longer is read in parts, in bytes."""
WIDTH = 80
MOST_LISTED = 12
"""The most lines under a heading. The text has the number of the others; --json has all."""

NOTHING_LOGGED = """\
no task of {run} logged where its operations ran. To get that,
  start the run with --log-placement (defaults.devices.log_placement: true), or
  call tf.debugging.set_log_device_placement(True) first in the script"""
MUTED = "eager runs are missing: with TF_CPP_MIN_LOG_LEVEL above 0 TensorFlow logs graphs only"
T = TypeVar("T")


def read(run: RunDir, attempts: Mapping[str, int]) -> list[TaskPlacement]:
    """The placement of each task. `attempts`: the attempt by task. Raises `OrchError` for a log that cannot be read."""
    return [
        summarise(task, *(_scan(run.log_path(task, attempt, stream)) for stream in ("stderr", "stdout")))
        for task, attempt in attempts.items()
    ]


def _scan(path: Path) -> StreamScan:
    try:
        with open_file(path) as file:
            return scan(iter(partial(file.readline, MAX_LINE), b""))
    except FileNotFoundError:
        return StreamScan()
    except OSError as error:
        raise OrchError(f"{path}: cannot read this log: {error.strerror or error}") from None


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

    def rows(counts_of: Callable[[TaskPlacement], Mapping[tuple[str, str], OperationCount]]) -> list[dict[str, Any]]:
        return [
            {"task": one.task, "op": op, "device": device, **asdict(count)}
            for one in found
            for (op, device), count in sorted(counts_of(one).items())
        ]

    return {
        "run": run_id,
        "attempt": max(attempts.values(), default=1),
        "operations": rows(lambda one: one.counts),
        "fallbacks": rows(lambda one: one.fallbacks),
        "variable_reads": [{"task": one.task, **asdict(read), "times": number} for one in found for read, number in one.reads.items()],
        "tasks": [
            {"task": one.task, "attempt": attempts[one.task], "gpus": sorted(one.gpus), "eager_runs_logged": not one.is_muted}
            for one in found
        ],
    }


# --- for people ---------------------------------------------------------------------------------

_FALLBACK_NOTE = "tf.device asked for it, or there is no GPU kernel for the op or its type of data: the log does not say which."
_READ_NOTE = "Seen by the names of graph nodes; of eager operations the log does not say where their inputs came from."


def to_text(placements: Sequence[TaskPlacement], *, everything: bool = True) -> Iterator[str]:
    """The table, then the findings. Tasks with the same line share the line. `everything`: the table has `BOOKKEEPING` too."""
    rows = _with_tasks(placements, lambda one: ((op, device, count) for (op, device), count in one.counts.items()))
    rows.sort(key=lambda row: (-row[0][2].total, row[0][0], row[0][1], row[1]))
    shown = [row for row in rows if everything or row[0][0] not in BOOKKEEPING]
    yield from _table(shown) if shown else ("no operation fits",)
    if hidden := sum(count.total * len(tasks) for (op, _, count), tasks in rows if not everything and op in BOOKKEEPING):
        yield f"not shown: {hidden:,} of what every graph is full of (constants, arguments); --all"
    muted = [one.task for one in placements if one.is_muted]
    if muted:
        yield from wrap(f"{group_tasks(muted)}: {MUTED}", WIDTH, "", "  ")
    yield from _section("On the CPU although the task has a GPU", _with_tasks(placements, _fallback_lines), _FALLBACK_NOTE)
    title = "Variables used on another device than their own (each use copies them)"
    yield from _section(title, _with_tasks(placements, _read_lines), _READ_NOTE)


def _with_tasks(placements: Iterable[TaskPlacement], items_of: Callable[[TaskPlacement], Iterable[T]]) -> list[tuple[T, list[str]]]:
    """All items of these placements, each once, with the names of its tasks."""
    found: dict[T, list[str]] = {}
    for one in placements:
        for item in items_of(one):
            found.setdefault(item, []).append(one.task)
    return list(found.items())


def _table(rows: Sequence[tuple[tuple[str, str, OperationCount], list[str]]]) -> Iterator[str]:
    cells = [["OPERATION", "DEVICE", "RUN", "PLACED", "TASKS"]]
    for (op, device, count), tasks in rows:
        numbers = [f"{number:,}" if number else "-" for number in (count.executed, count.placed)]
        name = clean(op)
        cells.append([name if len(name) <= 34 else f"{name[:33]}…", device, *numbers, group_tasks(tasks)])
    yield from aligned(cells, right=(2, 3))
    yield "RUN: each eager run; function() is one run, wherever its parts ran."
    yield "PLACED: a node of a graph, once, however often the graph ran."


def _section(title: str, lines: Sequence[tuple[str, list[str]]], note: str) -> Iterator[str]:
    if not lines:
        return
    yield from ("", f"{title}:")
    for line, tasks in lines[:MOST_LISTED]:
        yield from wrap(f"{group_tasks(tasks)}: {line}", WIDTH, "  ", "    ")
    if len(lines) > MOST_LISTED:
        yield f"  and {len(lines) - MOST_LISTED:,} more; --json has all"
    yield from wrap(note, WIDTH, "  ", "    ")


def _fallback_lines(placement: TaskPlacement) -> Iterator[str]:
    on_gpu = {op for op, device in placement.counts if device.startswith("GPU:")}
    for (op, device), count in sorted(placement.fallbacks.items(), key=lambda item: (item[0][0] in on_gpu, -item[1].total, item[0])):
        yield f"{op} on {device}, run {count.executed:,}, placed {count.placed:,}{', elsewhere on the GPU' if op in on_gpu else ''}"


def _read_lines(placement: TaskPlacement) -> Iterator[str]:
    def order(item: tuple[VariableRead, int]) -> tuple[bool, int, str]:
        return item[0].evidence == "scope", -item[1], item[0].node

    for read, number in sorted(placement.reads.items(), key=order):
        node, probably = (f"in {read.node}", "probably ") if read.evidence == "scope" else (read.node, "")
        uses = f"{probably}uses a variable of {read.variable_device}"
        yield f"{read.op} {node} on {read.device} {uses} ({count_of(number, 'graph')})"
