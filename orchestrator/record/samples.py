"""`samples/`: what the tasks and hosts of a run have used, in files of bounded size.

Each file holds lines of JSON for one resolution: every sample as it came (``0.jsonl``), the samples of 30 seconds folded into one line
(``1.jsonl``), those of five minutes (``2.jsonl``). A file that has grown to `MOST_BYTES` becomes ``0.old.jsonl``, in place of the last.
So all files together never have more than six times `MOST_BYTES`, however long a run goes on: the last hours are kept as they were, the
last day roughly, and the time before more roughly still. Files only grow by whole lines, so that a reader can follow them.

A line: ``{"at": …, "s": SECONDS, "host": …, "tasks": {"worker-0/1": [state, cpu, memory, …]}, "use": [cpu, cores, …], "gpus": [[…]]}``.
The numbers are the fields of `TaskUse`, `HostUse` and `GpuUse`, in their order; trailing zeros are left out. What is said of a task's steps
is that of its newest window, and stays until the next window: a task makes steps as long as `step` grows.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from worker.protocol.messages import GpuUse, HostUse, Sampled, TaskUse
from worker.values.codec import MOMENTS, ContractError

from ..errors import OrchError
from .event_log import objects
from .run_directory import RunDir
from .run_files import open_file, open_own, read_lines, write_all

DIRECTORY = "samples"
FOLDED_S = (0.0, 30.0, 300.0)
"""The time that a line of each file is about; 0: one sample."""
MOST_BYTES = 4 << 20
"""The size of a file from which on another one is begun."""
_HIGHEST = frozenset({"memory", "own_memory", "threads", "swap", "waits", "reads"})
"""Of these numbers, a folded line has the highest; of the limits and names the last; of all others the mean."""
_LAST = frozenset({"task", "attempt", "cores", "memory_total", "index", "step", "window", "came", "met"})

T = TypeVar("T", TaskUse, HostUse, GpuUse)


class SampleFiles:
    """Writes the samples of a run. If the disk is full, samples are lost and nothing else happens."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._fds: dict[int, int] = {}
        self._is_closed = False
        self._folds: dict[tuple[int, str], list[Sampled]] = {}
        """The samples of each host that are still to be folded, by the number of the file."""

    def keep(self, sample: Sampled) -> None:
        """Append a sample, and its fold where one is complete; nothing after `close`."""
        if self._is_closed:
            return
        with contextlib.suppress(OSError):
            self._append(0, sample)
            for level, span_s in enumerate(FOLDED_S[1:], start=1):
                gathered = self._folds.setdefault((level, sample.host), [])
                gathered.append(sample)
                if sample.at - gathered[0].at < span_s - gathered[0].seconds:
                    return
                self._folds[level, sample.host] = []
                sample = fold(gathered)
                self._append(level, sample)

    def _append(self, level: int, sample: Sampled) -> None:
        path = self._run.path / DIRECTORY / f"{level}.jsonl"
        if level not in self._fds:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            self._fds[level] = open_own(path, os.O_WRONLY | os.O_APPEND)
        write_all(self._fds[level], to_line(sample))
        if os.fstat(self._fds[level]).st_size >= MOST_BYTES:
            os.close(self._fds.pop(level))
            path.replace(path.with_name(f"{level}.old.jsonl"))

    def close(self) -> None:
        self._is_closed = True
        while self._fds:
            os.close(self._fds.popitem()[1])


# --- folding ------------------------------------------------------------------------------------


def fold(samples: Sequence[Sampled]) -> Sampled:
    """One sample in place of several of one host: means of rates, the highest of sizes, for each task that was there at any time."""
    tasks: dict[tuple[str, int], list[TaskUse]] = {}
    gpus: dict[int, list[GpuUse]] = {}
    for sample in samples:
        for use in sample.tasks:
            tasks.setdefault((use.task, use.attempt), []).append(use)
        for gpu in sample.gpus:
            gpus.setdefault(gpu.index, []).append(gpu)
    last = samples[-1]
    return Sampled(
        last.at,
        round(sum(sample.seconds for sample in samples), 3),
        tuple(map(_fold_uses, tasks.values())),
        _fold_uses([sample.use for sample in samples]),
        tuple(map(_fold_uses, gpus.values())),
        last.host,
    )


def _fold_uses(uses: Sequence[T]) -> T:
    folded: dict[str, Any] = {}
    for field in fields(uses[0]):
        values = [getattr(use, field.name) for use in uses]
        if field.name in _LAST or isinstance(values[0], str):
            # A task that was stopped in any of the samples is shown as stopped.
            folded[field.name] = "T" if "T" in values else values[-1]
        elif field.name in _HIGHEST:
            folded[field.name] = max(values)
        elif isinstance(values[0], int) and not any(isinstance(value, float) for value in values):
            folded[field.name] = round(sum(values) / len(values))
        else:
            mean = sum(values) / len(values)
            folded[field.name] = round(mean, 2 if mean >= 1 else 6)
    return type(uses[0])(**folded)


# --- lines --------------------------------------------------------------------------------------


def to_line(sample: Sampled) -> bytes:
    tasks = {f"{use.task}/{use.attempt}": _row(use, 2) for use in sample.tasks}
    line: dict[str, Any] = {"at": round(sample.at, 2), "s": sample.seconds, "host": sample.host, "tasks": tasks, "use": _row(sample.use, 0)}
    if sample.gpus:
        line["gpus"] = [_row(gpu, 0) for gpu in sample.gpus]
    return json.dumps(line, separators=(",", ":")).encode("ascii") + b"\n"


def _row(use: TaskUse | HostUse | GpuUse, first: int) -> list[Any]:
    row = [getattr(use, field.name) for field in fields(use)[first:]]
    while row and not row[-1]:
        row.pop()
    return row


def from_line(found: dict[str, Any]) -> Sampled:
    """The sample of a line. Raises `ContractError`, ValueError, TypeError or OverflowError for a line that orch has not written."""
    tasks, gpus = found.get("tasks"), found.get("gpus", [])
    if not isinstance(tasks, dict) or not isinstance(gpus, list):
        raise ContractError("a sample without tasks")
    uses = []
    for key, row in tasks.items():
        task, _, attempt = key.rpartition("/")
        uses.append(_from_row(TaskUse, [task, attempt, *row]))
    host = found.get("host")
    if not isinstance(host, str):
        raise ContractError("a sample without a host")
    at, seconds = _number(found.get("at")), _number(found.get("s"))
    if not (MOMENTS.fits(at) and MOMENTS.fits(seconds)):
        raise ContractError(f"a sample at {at}, of {seconds} s")
    return Sampled(at, seconds, tuple(uses), _from_row(HostUse, found.get("use")), tuple(_from_row(GpuUse, row) for row in gpus), host)


def _number(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ContractError(f"{value!r} in a sample")
    return number


def _whole(value: Any) -> int:
    return int(_number(value))


_CASTS: Mapping[type[Any], Sequence[Callable[[Any], Any]]] = {
    cls: tuple(str if field.type == "str" else _whole if field.type in ("Size", "Count", "Positive") else _number for field in fields(cls))
    for cls in (TaskUse, HostUse, GpuUse)
}
"""How the fields of each class are read. A long run has millions of these numbers, so they are not read by `from_json`."""


def _from_row(cls: type[T], row: Any) -> T:
    return cls(*(cast(value) for cast, value in zip(_CASTS[cls], row, strict=False)))


# --- reading ------------------------------------------------------------------------------------


def read_samples(run: Path, every_s: float = 0.0) -> Iterator[Sampled]:
    """All samples in order, not coarser than `every_s` as far back as files have them so; the newest are not folded yet."""
    fitting = max(level for level, span_s in enumerate(FOLDED_S) if span_s <= every_s)
    middle = _sorted(_read(run, fitting))
    begun = middle[0].at - middle[0].seconds if middle else math.inf
    earlier: list[list[Sampled]] = []
    for level in range(fitting + 1, len(FOLDED_S)):
        found = _sorted(_read(run, level, until=begun))
        begun = found[0].at - found[0].seconds if found else begun
        earlier.insert(0, found)
    for part in (*earlier, middle):
        yield from part
    ended = middle[-1].at if middle else 0.0
    for level in range(fitting - 1, -1, -1):
        found = _sorted(sample for sample in _read(run, level, since=ended) if sample.at - sample.seconds / 2 > ended)
        ended = found[-1].at if found else ended
        yield from found


def _sorted(samples: Iterable[Sampled]) -> list[Sampled]:
    return sorted(samples, key=lambda sample: sample.at)


def _read(run: Path, level: int, *, since: float = 0.0, until: float = math.inf) -> Iterator[Sampled]:
    """The samples of one file that were taken after `since` and before `until`."""
    for name in (f"{level}.old.jsonl", f"{level}.jsonl"):
        with contextlib.suppress(FileNotFoundError, OrchError), open_file(run / DIRECTORY / name) as file:
            yield from parse(line for line in read_lines(file) if since < _time_of(line) < until)


def _time_of(line: bytes) -> float:
    """The time of a sample, without reading the rest; such as ``{"at":12.5,…``."""
    with contextlib.suppress(ValueError):
        return float(line[6 : line.index(b",")])
    return -1.0


def parse(lines: Iterable[bytes]) -> Iterator[Sampled]:
    """The samples of these lines; damaged lines are skipped."""
    for found in objects(line for line in lines if line.endswith(b"\n")):
        with contextlib.suppress(ContractError, ValueError, TypeError, OverflowError):
            yield from_line(found)


_HOST = re.compile(rb'"host":("(?:[^"\\]|\\.)*")')
LATEST_BYTES = 256 * 1024
"""How much of the end of the newest file is read for the newest samples."""


def read_latest(run: Path) -> dict[str, Sampled]:
    """The newest sample of each host."""
    found: dict[str, Sampled] = {}
    for name in ("0.old.jsonl", "0.jsonl"):
        with contextlib.suppress(FileNotFoundError, OrchError), open_file(run / DIRECTORY / name) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - LATEST_BYTES))
            newest: dict[bytes, bytes] = {}
            for line in file.read().splitlines(keepends=True)[0 if size <= LATEST_BYTES else 1 :]:
                host = _HOST.search(line)
                newest[host[1] if host else b""] = line
            found |= {sample.host: sample for sample in parse(newest.values())}
    return found
