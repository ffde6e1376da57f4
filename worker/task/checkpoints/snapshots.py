"""The snapshots of one series: after some steps, the state of the training is copied into the memory that the agent keeps."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any

from ...formats import saves, snapshot_memory
from ...formats.snapshot_memory import Memory
from ...machine import kernel_files
from ...values.words import bytes_of, count_of
from ..input import given
from ..patches.import_hooks import print_once
from . import random_state, variables
from .schedule import Schedule
from .variables import NamedVariable


class Values:
    """The variables of which a worker makes snapshots. `holds`: also those that all workers have alike."""

    def __init__(self, named: list[NamedVariable], *, holds: bool) -> None:
        self._parts: list[tuple[str, Callable[[], Any], str | None, bool]] = []
        for each in named:
            if each.is_own or holds:
                for name, part in zip(each.names(), each.components(), strict=True):
                    self._parts.append((name, reader(part), variables.code_of(part), each.is_own))
        self._shapes: list[tuple[int, ...]] = []
        self._told = b""

    def read(self, arrays: dict[str, Any]) -> tuple[bytes, list[Any]]:
        """Return what the tensors are, as JSON, and their bytes. `arrays`: more, which all workers have alike.

        The bytes are those of TensorFlow, so they are to be written before the next step.
        """
        values = [read() for _, read, _, _ in self._parts]
        shapes = [value.shape for value in values]
        if shapes != self._shapes:
            self._shapes = shapes
            known = zip(self._parts, shapes, strict=True)
            self._told = json.dumps({name: (code, list(shape), is_own) for (name, _, code, is_own), shape in known}).encode()
        if not arrays:
            return self._told, [as_bytes(value) for value in values]
        tensors = {name: variables.tensor(array) for name, array in arrays.items()}
        more = {name: (tensor.dtype, list(tensor.shape), False) for name, tensor in tensors.items()}
        told = json.dumps({**json.loads(self._told), **more}).encode()
        return told, [*map(as_bytes, values), *(tensor.data for tensor in tensors.values())]


def reader(part: Any) -> Callable[[], Any]:
    """A function that returns the value of a variable as an array of NumPy, with TensorFlow's own buffer if that is in this host's memory.

    As long as the array is used, an assignment to the variable gets another buffer (core/kernels/training_op_helpers.h).
    """
    from tensorflow.python.ops import gen_resource_variable_ops, resource_variable_ops

    if not isinstance(part, resource_variable_ops.BaseResourceVariable):
        return lambda: part.numpy()
    read, handle, dtype = gen_resource_variable_ops.read_variable_op, part.handle, part.dtype
    return lambda: read(handle, dtype)._numpy()  # numpy() makes a copy


def as_bytes(value: Any) -> Any:
    """The buffer of an array, as bytes."""
    import numpy as np

    return np.ascontiguousarray(value).reshape(-1).view(np.uint8)


Series = Any

MEMORY_SHARE = 0.25
"""The share of the free memory that snapshots may take."""
LONG_S = 1.5
"""An interval between two snapshots that is longer is printed."""
_POLL_S = 0.01
_live: list[TrainingSnapshots] = []
"""The trainings of this process that are not over. The memory has room for one, and two must not continue at different places."""


def wait_until_written() -> None:
    """Wait until the agent has written what the attempt before has left in memory."""
    if paths := os.environ.get(snapshot_memory.VARIABLE, ""):
        while snapshot_memory.is_busy(paths.partition(":")[0]):
            time.sleep(_POLL_S)


class TrainingSnapshots:
    """Makes the snapshots of a series whose variables exist, and are restored. `named`: finds the variables; see `Series.write`. `step`:
    the finished steps."""

    def __init__(self, series: Series, named: Callable[[], list[variables.NamedVariable]], step: int) -> None:
        self._series, self._named = series, named
        self._values: Values | None = None
        self._random: tuple[Any, bytes] = (None, b"")
        """What Python and NumPy draw their numbers from, at the last note: as it is, and as JSON."""
        self._generators = (False, False)
        """Which global generators `_values` has; see `random_state.made`."""
        self._is_on = snapshot_memory.VARIABLE in os.environ and series.files is saves.LOCAL  # the agent writes to no other file system
        self._schedule: Schedule | None = None
        self._memory: Memory | None = None
        self._told_s = 0.0
        if not self._is_on:
            return
        if _is_of_fit(series):
            for each in [each for each in _live if _is_of_fit(each._series)]:
                each.end()  # it has failed, and the program has caught the exception
        self._memory = _open()
        self._holds = series.is_chief or series.place.task.local_rank == 0
        """All workers have the same weights, so one of each host keeps them."""
        self._head = {
            "series": saves.join(series.bases[0], series.name),
            "task": series.place.task.task,
            "run": series.place.task.run_id,
            "attempt": series.place.task.attempt,
            "chief": series.chief,
            "workers": series.workers,
            "holds": self._holds,
        }
        self._facts = series.facts()
        if self._memory is not None:  # so that the agent knows this worker, also if it is killed before its first snapshot
            self._memory.write(self._note({"name": "", "document": {}}, b"{}"), [])
            self._memory.reach(step)
        _live.append(self)
        for each in _live if len(_live) > 1 else []:
            each._turn_off("a program that trains twice at a time has none, because both trainings must continue at the same time")

    def reach(self, step: int) -> bool:
        """Note the last finished step in memory. Returns whether it is there."""
        if self._memory is None:
            return False
        self._memory.reach(step)
        return True

    def after_step(self, step: int, document: Callable[[], tuple[dict[str, Any], dict[str, Any]]]) -> bool:
        """A step is over. Returns whether a save on the disk is due. All workers make this call.

        `document`: makes what the manifest says of the place of the training, and the arrays of `Series.write`.
        """
        if not self._is_on:
            return False
        if self._schedule is None:
            self._schedule = self._begin()
        if self._is_on and self._schedule.step_ended(time.perf_counter()):
            self._make(self._schedule, step, document)
        self._schedule.step_begins(time.perf_counter())
        return self._is_on and self._schedule.is_save_due

    def saved(self) -> None:
        """The training is saved on the disk. All workers make this call."""
        if self._schedule is not None:
            self._schedule.saved()
            self._values = None  # variables that were made since are found now

    def end(self) -> None:
        """The training is over, and the save of its end is on the disk: nothing else may be taken for its newest state."""
        if self in _live:
            _live.remove(self)
        self._turn_off("")

    # --- inside --------------------------------------------------------------------------------

    def _begin(self) -> Schedule:
        """Before the first snapshot: whether all workers have the room for it."""
        named = self._named()
        size = variables.bytes_of([each for each in named if each.is_own or self._holds])
        has_room = 2 * size <= MEMORY_SHARE * kernel_files.memory()[1]
        can = int(has_room and self._memory is not None)
        answers = given.of_all(self._series.strategy, can, variables.bytes_of(named))
        if not all(can for can, _ in answers):
            self._turn_off("" if has_room else f"this host has too little memory left for two copies of {bytes_of(size)}")
        return Schedule(max(size for _, size in answers))

    def _make(self, schedule: Schedule, step: int, document: Callable[[], tuple[dict[str, Any], dict[str, Any]]]) -> None:
        begun = time.perf_counter()
        found, arrays = document()
        if self._values is None or self._generators != random_state.made():
            self._generators = random_state.made()
            self._values = Values(self._named(), holds=self._holds)
        told, data = self._values.read(arrays if self._holds else {})
        at = {"step": step, "at": time.time(), "kind": ""}
        note = self._note({"name": saves.name_of(step), "document": {**found, **at, **self._facts}}, told)
        try:
            assert self._memory is not None
            self._memory.write(note, data)
        except OSError as error:  # such as a limit of memory; the newest snapshot stays
            print_once(f"checkpoints: step {step} has no snapshot in memory: {error.strerror}; the training goes on", in_each_task=True)
        schedule.made(time.perf_counter() - begun)
        # Also so that no worker begins the next snapshot, in place of the one before this one, while another one has not made this one.
        schedule.agree(given.of_all(self._series.strategy, *schedule.numbers()))
        self._tell_of(schedule)

    def _tell_of(self, schedule: Schedule) -> None:
        """Print the interval if it is longer than about a second, and again if it has doubled or halved."""
        seconds = schedule.interval_s
        if seconds > LONG_S and not self._told_s / 2 < seconds < self._told_s * 2:
            self._told_s = seconds
            print_once(
                f"checkpoints: a copy into memory takes {schedule.cost_s:.2g} s, so orch makes one every {seconds:.0f} s "
                f"({count_of(schedule.every, 'step')}): so much may be lost",
                is_note=True,
            )

    def _note(self, of_snapshot: dict[str, Any], tensors: bytes) -> bytes:
        drawn = random_state.raw()
        if drawn != self._random[0]:  # most trainings leave these generators alone
            self._random = drawn, json.dumps(random_state.state()).encode()
        text = json.dumps({**self._head, **of_snapshot}).encode()
        return text[:-1] + b', "random": ' + self._random[1] + b"}\n" + tensors

    def _turn_off(self, why: str) -> None:
        if self._is_on:
            self._is_on = False
            if self._memory is not None:
                self._memory.clear()
                self._memory = None
            if why:
                print_once(f"checkpoints: there are no snapshots in memory: {why}. Checkpoints on the disk go on")


def _is_of_fit(series: Series) -> bool:
    return bool(series.name.startswith("fit-"))


def _open() -> Memory | None:
    """None: this worker can have none, and says so to the others."""
    paths = os.environ[snapshot_memory.VARIABLE]
    try:
        return Memory(paths.split(":")) if paths else None
    except OSError as error:
        if not _live:
            print_once(f"checkpoints: there are no snapshots in memory: {error.strerror}. Checkpoints on the disk go on", in_each_task=True)
        return None
