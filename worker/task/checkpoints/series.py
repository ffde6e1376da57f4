"""The saves of one training: written by all workers together, without a message between them, and restored by all alike.

Each worker copies its values at the end of a step. A thread writes them, while the training goes on: each worker its own file, and the
chief what all workers have alike. The chief waits until the files of all workers are there, compares what they say of the common values,
and writes the manifest. Anyone who is killed before has saved nothing, and the saves before stay.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import threading
import time
from typing import Any

from ...formats import saves, tensor_file
from ...formats.tensor_file import Tensor
from ...values.words import few
from .. import patches
from ..context import Context
from ..input import shuffle_order
from ..patches import refusal
from ..patches.features import SAVES
from ..patches.import_hooks import print_once
from . import random_state, restoring, variables, world_facts
from .storage import files_of

PATIENCE_S = 600.0
"""How long the chief waits for the files of the other workers."""
LAST_PATIENCE_S = 10.0
"""The same once the program has ended, or once the next save is due; a line then names the file."""
REACH_S = 0.1
"""The time between two notes of the last finished step, where the agent has it, too."""
FAILED = ".failed"
"""The end of the name of a file that says why a worker could not write its own."""
_POLL_S = 0.02


@dataclasses.dataclass(frozen=True)
class Place:
    """Tells where a task writes its saves, and where it looks for them."""

    base: str
    resume: tuple[str, ...]
    """The directories of the runs that this one continues, the newest first: their saves of a series count if this run has none of it."""
    keep: int
    """How many saves stay, in addition to the last one of a training."""
    task: Context
    own: str = ""
    """The folder of a task that trains alone next to others, in each of these directories; empty: there is none."""


def _reason(error: Exception) -> str:
    """Return why a file could not be written, with its path if the error has one: the path is often mistyped."""
    words = getattr(error, "strerror", None) or str(error) or type(error).__name__
    path = getattr(error, "filename", None)
    return f"{words} ({path})" if path else words


class Series:
    def __init__(self, place: Place, name: str, strategy: Any) -> None:
        self.place, self.name, self.strategy = place, name, strategy
        self.files = files_of(place.base)
        self.chief, self.workers = world_facts.names_of_workers(place.task, strategy)
        self.bases = tuple(saves.join(base, *([place.own] if place.own else [])) for base in (place.base, *place.resume))
        """The directories of the series: of this run, and of those that it continues."""
        self._thread: threading.Thread | None = None
        self._reached, self._reach_at = -1, 0.0
        self._written: set[str] = set()
        self._is_next_due = threading.Event()
        self._has_diverged = False
        """Whether a line has told that the replicas have diverged."""

    @property
    def is_chief(self) -> bool:
        return self.place.task.task == self.chief

    @property
    def is_writing(self) -> bool:
        """True if the last save is not on the disk yet, and was not given up."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def _own(self) -> str:
        return saves.file_of(self.place.task.task)

    @property
    def is_expected(self) -> bool:
        """True if a save may be expected: after a restart, or in a run that continues another one."""
        return self.place.task.attempt > 1 or bool(self.place.resume)

    # --- writing ---------------------------------------------------------------------------------

    def write(
        self, step: int, named: list[variables.NamedVariable], document: dict[str, Any], *, kind: str = "", arrays: Any = None
    ) -> None:
        """Save the values of this moment. All workers call this after the same step. `document`: what the manifest says besides.

        `arrays`: more arrays that all workers have alike, by name. The call copies the values, and returns before they are written; it
        waits for the save before. A second call after the same step does nothing, on all workers.
        """
        name = saves.name_of(step, kind)
        if name in self._written:
            return
        self._written.add(name)
        self._is_next_due.set()
        self._join()
        self._is_next_due.clear()
        alike = variables.read(named, own=False) | {name: variables.tensor(array) for name, array in (arrays or {}).items()}
        own = variables.read(named, own=True)
        note = {"run": self.place.task.run_id, "attempt": self.place.task.attempt, "random": random_state.state()}
        document = {**document, "step": step, "at": time.time(), "kind": kind}
        # Not a daemon: a program that ends waits for its last save.
        self._thread = threading.Thread(target=self._try_to_write, args=(name, alike, own, note, document))
        self._thread.start()

    def wait(self) -> None:
        """Wait until the last save is on the disk."""
        self._join()
        if self._reached >= 0:
            os.close(self._reached)
            self._reached = -1

    def _join(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()

    def _try_to_write(self, name: str, *what: Any) -> None:
        try:
            self._write(name, *what)
        except Exception as error:  # each file system has errors of its own
            if (fault := patches.judge(SAVES, error)) is not error:
                raise fault or error from error
            reason = _reason(error)
            print_once(f"checkpoints: {self.name}/{name} is not saved: {reason}; the training goes on", in_each_task=True)
            with contextlib.suppress(Exception):
                self._give_up(saves.join(self.bases[0], self.name, name), reason)

    def _give_up(self, directory: str, reason: str) -> None:
        """The chief makes room for the next save, which a full disk may not have. Each other worker tells the chief, so that it does not
        wait for a file that will not come; on a full disk, what it tells may stay empty."""
        if saves.MANIFEST in self.files.names(directory):
            return
        if self.is_chief:
            for name in (saves.MODEL, self._own):
                self.files.remove(saves.join(directory, name))
        else:
            with self.files.open(saves.join(directory, self._own + FAILED), "wb") as file:
                file.write(reason.encode())

    def _write(self, name: str, alike: dict[str, Tensor], own: dict[str, Tensor], note: dict[str, Any], document: dict[str, Any]) -> None:
        directory = saves.join(self.bases[0], self.name, name)
        if saves.MANIFEST in self.files.names(directory):
            raise refusal(RuntimeError(f"{directory} is a checkpoint already, and none is overwritten"))
        self.files.make(directory)
        of_model, of_own = tensor_file.describe(alike), tensor_file.describe(own)
        note |= {"tensors": of_own, "alike": {name: one["sha256"] for name, one in of_model.items()}}
        saves.write_file(self.files, directory, self._own, own, note)
        if self.is_chief:
            saves.write_file(self.files, directory, saves.MODEL, alike, {})
            self._finish(directory, {saves.MODEL: of_model, saves.file_of(self.chief): of_own}, note, document)

    def _finish(self, directory: str, told: dict[str, Any], note: dict[str, Any], document: dict[str, Any]) -> None:
        """Wait for the files of the others, and write the manifest."""
        for worker in self.workers:
            if worker != self.chief:
                told[saves.file_of(worker)] = self._of_other(directory, worker, note, told[saves.MODEL])
        made = {"run": note["run"], "attempt": note["attempt"], "by": self.chief}
        saves.finish(self.files, directory, {**document, **self.facts(), **made}, told)
        self._prune(os.path.basename(directory))

    def facts(self) -> dict[str, Any]:
        """Return what a manifest says of the run and the software."""
        return {"order": shuffle_order.word(), "world": world_facts.world(self.strategy, self.workers), "versions": world_facts.versions()}

    def _of_other(self, directory: str, worker: str, note: dict[str, Any], alike: dict[str, Any]) -> dict[str, Any]:
        """Return what the manifest says of the file of another worker. Raises RuntimeError if the file does not come."""
        name, begun = saves.file_of(worker), time.monotonic()
        until = begun + PATIENCE_S
        while name not in (names := self.files.names(directory)):
            now = time.monotonic()
            if name + FAILED in names:
                raise refusal(RuntimeError(f"{worker} could not write its file {name}; a line of {worker} says why"))
            if now > begun + LAST_PATIENCE_S:
                print_once(
                    f"checkpoints: {self.name}/{os.path.basename(directory)} waits for the file {name} of {worker}, at most until "
                    "the next checkpoint is due"
                )
                until = begun if self._is_next_due.is_set() else until  # the training must not wait for a save that may never come
            if not threading.main_thread().is_alive():  # a task that fails must not wait long for one that has failed, too
                until = min(until, now + LAST_PATIENCE_S)
            if now > until:
                why = f"the file {name} of {worker} did not come into {directory}: all workers must see this directory"
                raise refusal(RuntimeError(why))
            time.sleep(_POLL_S)
        with self.files.open(saves.join(directory, name), "rb") as file:
            of_other = tensor_file.read_note(file)
        if (of_other["run"], of_other["attempt"]) != (note["run"], note["attempt"]):
            raise refusal(RuntimeError(f"{directory}/{name} is of another attempt"))
        differing = [tensor for tensor, one in alike.items() if of_other["alike"].get(tensor) != one["sha256"]]
        if differing and not self._has_diverged:
            self._has_diverged = True
            print_once(
                f"checkpoints: {self.chief} and {worker} have different values of {few(differing)} in {os.path.basename(directory)}: "
                "the replicas have diverged"
            )
        found: dict[str, Any] = of_other["tensors"]
        return found

    def _prune(self, name: str) -> None:
        """Remove the oldest saves, and given-up ones. The end of a training stays: each training of a program begins again."""
        found = list(saves.list_saves(self.files, self.bases[0], self.name))
        whole = [save for save in found if save.manifest is not None]
        for save in found:
            if save.name < name and saves.MANIFEST not in self.files.names(save.directory):
                self.files.remove(save.directory)
        for save in [save for save in whole if not save.is_final][self.place.keep :]:
            self.files.remove(saves.join(save.directory, saves.MANIFEST))  # first: what is left is no save
            self.files.remove(save.directory)

    def is_saved(self, step: int) -> bool:
        """True if a save of this step is there."""
        names = [saves.name_of(step, kind) for kind in ("", "epoch", "final")]
        return any(saves.MANIFEST in self.files.names(saves.join(self.bases[0], self.name, name)) for name in names)

    def is_over(self, step: int) -> bool:
        """True if the save of the end of the training is there."""
        return saves.MANIFEST in self.files.names(saves.join(self.bases[0], self.name, saves.name_of(step, "final")))

    def reach(self, step: int, *, is_kept: bool = False) -> None:
        """Note the last finished step for the line of a restart; rarely, if the memory of the agent has it (`is_kept`)."""
        if not self.is_chief or self.files is not saves.LOCAL or (is_kept and time.monotonic() < self._reach_at):
            return
        try:
            if self._reached < 0:
                self.files.make(saves.join(self.bases[0], self.name))
                self._reached = saves.open_reached(self.bases[0], self.name)
            saves.note_reached(self._reached, step)
            self._reach_at = time.monotonic() + REACH_S
        except OSError as error:
            print_once(f"checkpoints: the steps of {self.name} are not noted: {_reason(error)}; the training goes on")

    def tell(self, line: str) -> None:
        """Print a line about a restart: in the first task of each type, or in each task that trains alone."""
        print_once(f"checkpoints: {line}", in_each_task=bool(self.place.own), is_note=True)
        if sys.stderr is not None:
            sys.stderr.flush()

    # --- restoring ---------------------------------------------------------------------------------

    def choose(self) -> restoring.FoundSave | None:
        """The save that all workers take: the newest that is whole. None: there is none. All workers make this call."""
        found = restoring.choose(self)
        if found is not None:
            restoring.tell_of_other_world(self, found.save)
        return found

    def restore(self, found: restoring.FoundSave, named: list[variables.NamedVariable]) -> None:
        """Set the variables and the generators to those of a save. Raises ValueError for a save of another model."""
        told = {name: one for file in found.files_read for name, one in (found.save.manifest or {})["files"][file]["tensors"].items()}
        extra = {name for name in told if name.startswith("callbacks/")}
        variables.compare(named, {name: one for name, one in told.items() if name not in extra}, found.save.directory)
        variables.assign(named, found.tensors)
        random_state.restore(found.note["random"])
