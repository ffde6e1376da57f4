"""Writes the snapshots that the tasks of a host have left in memory (`snapshot_memory`) as a save. Standard library only.

The agent of each host does so when the tasks of an attempt have ended and another attempt begins. Each agent writes the own files of its
tasks, of both of their snapshots, and then says which those are. The agent of the chief's host waits for what the others say, and makes
the newest snapshot that all workers have a save. All workers make snapshots after the same steps, and none begins one before all have the
one before (`worker/task/checkpoints/snapshots.py`): so, of two snapshots of each worker, one is common.

Where a host is lost, its workers say nothing. Then the snapshot is a save without their own values, whose manifest names them (`lost`).
If it was the chief's host, one of the others takes its part.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..values.fast_dataclass import dataclass
from . import saves, snapshot_memory, tensor_file
from .saves import LOCAL
from .snapshot_memory import StateSnapshot
from .tensor_file import Tensor

OTHERS_S = 5.0
"""How long the agent of the chief's host waits for what the agents of the other hosts say."""
CHIEF_S = 10.0
"""How long those wait for the agent of the chief's host."""
_POLL_S = 0.02


def write_saves(memories: Sequence[Sequence[str]]) -> list[str]:
    """Write what the tasks of a host have left, from the files of each. Returns a line for each training that has no save."""
    found: dict[tuple[str, str, int], dict[str, _Left]] = {}
    for paths in memories:
        snapshots = snapshot_memory.read(paths)
        if snapshots and all(_is_note(one.note) for one in snapshots):
            note = snapshots[0].note
            series = note["series"], note["run"], note["attempt"]
            of_series = [one for one in snapshots if _series_of(one) == series]
            found.setdefault(series, {})[note["task"]] = _Left(of_series, snapshot_memory.reached(paths[0]))
    lines = []
    for (directory, _, _), tasks in found.items():
        writer = _Writer(directory, tasks)
        try:
            writer.write()
        except Exception as error:  # the training continues with an older save
            reason = getattr(error, "strerror", None) or error or type(error).__name__
            lines.append(f"checkpoints: the snapshot in memory of {directory} is not saved: {reason}; an older checkpoint is used")
        lines += writer.lines
    return lines


def _is_note(note: Any) -> bool:
    """True if a note is as a task of orch writes it: a task may write there what it likes, and the names become those of files."""
    match note:
        case {
            "series": str(series),
            "run": str(),
            "attempt": int(),
            "task": task,
            "name": name,
            "chief": chief,
            "workers": [*workers],
            **more,
        }:
            known = "holds" in more and "random" in more and isinstance(more.get("document", {}), dict)
            return (
                known and os.path.isabs(series) and (not name or saves.is_name(name)) and all(map(saves.is_task, (task, chief, *workers)))
            )
    return False


def _series_of(snapshot: StateSnapshot) -> tuple[str, str, int]:
    note = snapshot.note
    return note["series"], note["run"], note["attempt"]


@dataclass(frozen=True, slots=True)
class _Left:
    snapshots: list[StateSnapshot]
    """The whole ones, the newest first."""
    reached: int
    """The last step that it has finished."""


class _Writer:
    """Writes the save of one training. `tasks`: what each task of this host has left."""

    def __init__(self, directory: str, tasks: dict[str, _Left]) -> None:
        self.lines: list[str] = []
        self._directory, self._tasks = directory, tasks
        note = next(iter(tasks.values())).snapshots[0].note
        self._chief, self._workers, self._attempt = note["chief"], note["workers"], note["attempt"]
        self._meeting = saves.join(directory, f"{saves.LEFT}-{self._attempt}")
        """The directory in which each agent says what it has written."""

    def write(self) -> None:
        base, _, series = self._directory.rpartition("/")
        self._note_reached(base, series)
        newest = next((save.name for save in saves.list_saves(LOCAL, base, series) if save.manifest is not None), "")
        LOCAL.make(self._meeting)
        for task, left in self._tasks.items():
            names = {one.note["name"] for one in left.snapshots if one.note["name"] > newest}
            for one in [one for one in left.snapshots if one.note["name"] in names]:
                alike = _sums(_tensors(one, own=False)) if one.note["holds"] else {}
                self._write_own(task, one.note["name"], _tensors(one, own=True), alike=alike)
            saves.write_bytes(LOCAL, saves.join(self._meeting, task), json.dumps(sorted(names)).encode())
        if not self._holders() or not (self._chief in self._tasks or self._is_left_by_chief()):
            return
        left_by, lost = self._wait_for_others()
        for name in sorted(set[str].intersection(*left_by.values()), reverse=True):
            with contextlib.suppress(FileNotFoundError):  # a file that is not there is no reason to take no older step either
                if self._finish(name, sorted(left_by), lost):
                    break
        LOCAL.remove(self._meeting)

    def _note_reached(self, base: str, series: str) -> None:
        """The chief has noted its last finished step on the disk only now and then."""
        step = self._tasks[self._chief].reached if self._chief in self._tasks else 0
        if step > (saves.reached(LOCAL, base, series) or 0):
            with contextlib.suppress(OSError):
                saves.note_reached(fd := saves.open_reached(base, series), step)
                os.close(fd)

    def _holders(self) -> list[StateSnapshot]:
        """The snapshots with what all workers have alike."""
        return [one for left in self._tasks.values() for one in left.snapshots if one.note["holds"]]

    def _write_own(self, task: str, snapshot: str, own: dict[str, Tensor], *, alike: dict[str, str]) -> None:
        """The file of what the worker has for itself. `alike`: the checksums of what all have alike, if the worker knows them."""
        directory, name = saves.join(self._directory, snapshot), saves.file_of(task)
        if name in LOCAL.names(directory):  # a save of the same step was on its way
            return
        LOCAL.make(directory)
        of_task = self._tasks[task].snapshots[0].note
        note = {**{key: of_task[key] for key in ("run", "attempt", "random")}, "tensors": tensor_file.describe(own), "alike": alike or None}
        saves.write_file(LOCAL, directory, name, own, note)

    def _is_left_by_chief(self) -> bool:
        """True if the agent of the chief's host does nothing, and this one is the first to take its part."""
        return not _wait(lambda: not LOCAL.names(self._meeting), CHIEF_S) and _is_first(saves.join(self._meeting, "taken"))

    def _wait_for_others(self) -> tuple[dict[str, set[str]], list[str]]:
        """The names of the snapshots of each worker; and the workers that say nothing."""

        def missing() -> list[str]:
            names = LOCAL.names(self._meeting)
            return [worker for worker in self._workers if worker not in names]

        _wait(lambda: not missing(), OTHERS_S)
        lost, found = missing(), {}
        for worker in self._workers:
            if worker not in lost:
                with LOCAL.open(saves.join(self._meeting, worker), "rb") as file:
                    found[worker] = set(json.load(file))
        return found, lost

    def _finish(self, name: str, workers: list[str], lost: list[str]) -> bool:
        """Write what all workers have alike, and the manifest. Returns whether this step has a save."""
        directory = saves.join(self._directory, name)
        if saves.MANIFEST in LOCAL.names(directory):
            return True
        holder = next((one for one in self._holders() if one.note["name"] == name), None)
        if holder is None:
            return False
        alike = _tensors(holder, own=False)
        told, by = tensor_file.describe(alike), holder.note["task"]
        saves.write_file(LOCAL, directory, saves.MODEL, alike, {})
        files: dict[str, Any] = {saves.MODEL: told}
        run = next(iter(self._tasks.values())).snapshots[0].note["run"]
        for worker in workers:
            with LOCAL.open(saves.join(directory, saves.file_of(worker)), "rb") as file:
                note = tensor_file.read_note(file)
            if (note["run"], note["attempt"]) != (run, self._attempt):
                raise RuntimeError(f"the file of {worker} in {directory} is of another attempt")
            differing = [tensor for tensor, sha256 in (note["alike"] or {}).items() if told.get(tensor, {}).get("sha256") != sha256]
            if differing:
                problem = f"the replicas have diverged: {worker} has another {differing[0]} than {by}"
                self.lines.append(f"checkpoints: {name} in memory is not saved: {problem}; an older checkpoint is used")
                return False
            files[saves.file_of(worker)] = note["tensors"]
        made = {"run": run, "attempt": self._attempt, "by": by, "how": "snapshot", **({"lost": lost} if lost else {})}
        saves.finish(LOCAL, directory, {**holder.note["document"], **made}, files)
        return True


def _sums(tensors: dict[str, Tensor]) -> dict[str, str]:
    return {name: one["sha256"] for name, one in tensor_file.describe(tensors).items()}


def _tensors(snapshot: StateSnapshot, *, own: bool) -> dict[str, Tensor]:
    return {name: tensor for name, tensor, is_own in _all_tensors(snapshot) if is_own == own}


def _all_tensors(snapshot: StateSnapshot) -> Iterator[tuple[str, Tensor, bool]]:
    view, at = snapshot.view(), 0
    for name, (dtype, shape, is_own) in snapshot.tensors.items():
        size = tensor_file.size_of(dtype, shape)
        yield name, Tensor(dtype, tuple(shape), view[at : at + size]), is_own
        at += size


def _wait(is_done: Callable[[], bool], limit_s: float) -> bool:
    until = time.monotonic() + limit_s
    while not is_done():
        if time.monotonic() > until:
            return False
        time.sleep(_POLL_S)
    return True


def _is_first(path: str) -> bool:
    try:
        with open(path, "xb"):
            return True
    except FileExistsError:
        return False
