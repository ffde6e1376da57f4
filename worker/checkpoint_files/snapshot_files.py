"""Writes the snapshots that the tasks of a host have left in memory (`snapshot_memory`) as a save. Standard library only.

The agent of each host does so when the tasks of an attempt have ended and another attempt begins. Each agent writes the own files of its
tasks, of both of their snapshots, and then says which those are. The agent of the chief's host waits for what the others say, and makes
the newest snapshot that all workers have a save. All workers make snapshots after the same steps, and none is more than a step ahead of
another one: so, of two snapshots of each worker, one is common.

Where a host is lost, its workers say nothing. Then the snapshot is a save without their own values, whose manifest names them (`lost`).
If it was the chief's host, one of the others takes its part.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

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
    """Write what the tasks of a host have left. `memories`: the paths of the two files of each task.

    Returns a line for each training of which nothing could be written.
    """
    found: dict[tuple[str, str, int], dict[str, list[StateSnapshot]]] = {}
    for paths in memories:
        for snapshot in snapshot_memory.read(paths):
            note = snapshot.note
            of_training = found.setdefault((note["series"], note["run"], note["attempt"]), {})
            of_training.setdefault(note["task"], []).append(snapshot)
    lines = []
    for (directory, _, _), tasks in found.items():
        try:
            _Writer(directory, tasks).write()
        except Exception as error:  # the training continues with an older save
            reason = getattr(error, "strerror", None) or error or type(error).__name__
            lines.append(f"checkpoints: the snapshot in memory of {directory} is not saved: {reason}; an older save is taken")
    return lines


class _Writer:
    """Of one training. `tasks`: the whole snapshots of each task of this host, the newest first."""

    def __init__(self, directory: str, tasks: dict[str, list[StateSnapshot]]) -> None:
        self._directory, self._tasks = directory, tasks
        note = next(iter(tasks.values()))[0].note
        self._chief, self._workers, self._attempt = note["chief"], note["workers"], note["attempt"]
        self._meeting = saves.join(directory, f"{saves.LEFT}-{self._attempt}")
        """The directory in which each agent says what it has written."""

    def write(self) -> None:
        base, _, series = self._directory.rpartition("/")
        newest = next((save.name for save in saves.list_saves(LOCAL, base, series) if save.manifest is not None), "")
        LOCAL.make(self._meeting)
        for task, snapshots in self._tasks.items():
            left = [one for one in snapshots if one.note["name"] > newest]
            for one in left:
                self._write_own(one)
            saves.write_bytes(LOCAL, saves.join(self._meeting, task), json.dumps([one.note["name"] for one in left]).encode())
        holders = [task for task, snapshots in self._tasks.items() if snapshots[0].note["holds"]]
        if not holders or not (self._chief in self._tasks or self._is_left_by_chief()):
            return
        left_by, lost = self._wait_for_others()
        common = set[str].intersection(*left_by.values())
        if common:
            name = max(common)
            self._finish(next(one for one in self._tasks[holders[0]] if one.note["name"] == name), sorted(left_by), lost)
        LOCAL.remove(self._meeting)

    def _write_own(self, snapshot: StateSnapshot) -> None:
        """The file of what the worker has for itself."""
        directory, name = saves.join(self._directory, snapshot.note["name"]), f"{snapshot.note['task']}.safetensors"
        if name in LOCAL.names(directory):  # a save of the same step was on its way
            return
        LOCAL.make(directory)
        own, alike = _tensors(snapshot, own=True), _tensors(snapshot, own=False)
        told = {name: one["sha256"] for name, one in tensor_file.describe(alike).items()}
        note = {
            **{key: snapshot.note[key] for key in ("run", "attempt", "random")},
            "tensors": tensor_file.describe(own),
            "alike": told or None,
        }
        saves.write_file(LOCAL, directory, name, own, note)

    def _is_left_by_chief(self) -> bool:
        """Whether the agent of the chief's host does nothing, and this one is the first to take its part."""
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

    def _finish(self, snapshot: StateSnapshot, workers: list[str], lost: list[str]) -> None:
        """Write what all workers have alike, and the manifest."""
        directory = saves.join(self._directory, snapshot.note["name"])
        if saves.MANIFEST in LOCAL.names(directory):
            return
        alike = _tensors(snapshot, own=False)
        told: dict[str, Any] = {saves.MODEL: tensor_file.describe(alike)}
        for worker in workers:
            with LOCAL.open(saves.join(directory, f"{worker}.safetensors"), "rb") as file:
                note = tensor_file.read_note(file)
            if (note["run"], note["attempt"]) != (snapshot.note["run"], snapshot.note["attempt"]):
                raise RuntimeError(f"the file of {worker} in {directory} is of another attempt")
            differing = [name for name, sha256 in (note["alike"] or {}).items() if told[saves.MODEL].get(name, {}).get("sha256") != sha256]
            if differing:
                raise RuntimeError(f"the replicas have diverged: {worker} has another {differing[0]} than {snapshot.note['task']}")
            told[f"{worker}.safetensors"] = note["tensors"]
        saves.write_file(LOCAL, directory, saves.MODEL, alike, {})
        by = snapshot.note["task"]
        made = {"run": snapshot.note["run"], "attempt": self._attempt, "by": by, "how": "snapshot", **({"lost": lost} if lost else {})}
        saves.finish(LOCAL, directory, {**snapshot.note["document"], **made}, told)


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
