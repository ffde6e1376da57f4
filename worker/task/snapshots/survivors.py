"""What a worker that has survived another one keeps: the state of the last step that it has finished.

orch ends the survivors of a failed worker, and tells them if a restart follows. Then each looks at the counters of `step_gate`. If they say
that what the optimizer changes is that of its last finished step, one worker of each host copies these variables into the memory of the
agent, and the others their checksums, by which the agent finds replicas that have diverged. What each worker has for itself is there
already, in its records, also that of the dead one. The agents make a save of it (`checkpoint_files.snapshot_files`).

A common variable that the optimizer does not change must be that of the last snapshot in memory, as the agent sees. Numbers of the
optimizer that the program may set between two steps, such as the learning rate, are read at the end of each step.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from ...checkpoint_files import saves, snapshot_memory
from ...checkpoint_files.snapshot_memory import Memory
from ..checkpoints import variables
from ..checkpoints.variables import NamedVariable
from ..import_hooks import print_once
from .assignments import NO_OPTIMIZER
from .schedule import SMALL
from .step_gate import StepGate
from .values import as_bytes, reader

Document = Callable[[], tuple[dict[str, Any], dict[str, Any]]]
PATIENCE_S = 1.0
"""How long the last step may take to its end: it may be over but for what Python does after it."""
MOST_FOLLOWED = 8
"""The most such numbers."""
_POLL_S = 0.01


class Survivor:
    """Of one training. `step`: the steps that are finished; `is_lazy`: the document of a step stays what it is until the next step is over,
    or until `freeze` is called.
    """

    def __init__(self, series: Any, named: list[NamedVariable], step: int, *, is_lazy: bool) -> None:
        paths = os.environ[snapshot_memory.VARIABLE].split(":")
        self._parts = [
            (name, part, reader(part), variables.code_of(part) or "")
            for each in named
            if not each.is_own
            for name, part in zip(each.names(), each.components(), strict=True)
        ]
        """Of what all workers have alike: the name, the variable, what reads its value, and its type."""
        self._series, self._is_lazy = series, is_lazy
        self._size = variables.bytes_of([each for each in named if not each.is_own])
        self._gate = StepGate(named, snapshot_memory.records_of(paths)[0], step, _unfit(series.strategy))
        self._memory = Memory(snapshot_memory.kept_of(paths))
        self._followed: list[tuple[str, Callable[[], Any]]] = []
        """The numbers that Python may change between two steps, such as a learning rate."""
        self._numbers: dict[str, Any] = {}
        """Their values at the end of the last step."""
        self._last = step
        """The last step that is over."""
        self._is_proved = self._is_told = False
        self._lock = threading.Lock()
        """A thread keeps the last step, while the training may end in the main thread: a file that is closed gives its number to the next
        one that the program opens, and the thread would write there."""
        self._is_closed = False
        self._at: tuple[int, Document, dict[str, Any]] | None = None
        """The last finished step, its document, and the values of `_numbers` then; None: no step was finished, or it cannot be saved."""

    @property
    def is_ready(self) -> bool:
        """Whether the records of the steps are those of this worker's state."""
        return self._is_proved and not self._gate.why

    def step_ended(self, step: int, document: Document) -> None:
        """A step is over."""
        if not self._is_proved or self._gate.has_new or step > self._last + 1:
            self._look(step)
        self._last = step
        if self._gate.why:
            self._end(self._gate.why)
            return
        if self._gate.ends(step):  # the record is older than what the worker has for itself now
            self._at = None
            return
        if self._gate.by_python.has_new_numbers:
            self._gate.by_python.has_new_numbers = False
            self._numbers = {name: read() for name, read in self._followed}
        self._at = step, document, self._numbers
        if not self._is_lazy:
            self.freeze()

    def freeze(self) -> None:
        """What the document of the last step is made of is about to change."""
        if self._at is not None:
            step, document, followed = self._at
            found = document()
            self._at = step, lambda: found, followed

    def is_possible(self, step: int) -> bool:
        """Whether a step that is over, such as the first one, can be saved."""
        return not (self._gate.why or self._look(step))

    def refuse(self, why: str) -> None:
        """No step is kept from now on. The line about it comes at the end of the step."""
        self._gate.refuse(why)

    def check(self, step: int, own: dict[str, Any]) -> None:
        """Compare the record of a step that is over with what the worker has for itself: the program may have changed it since."""
        if not self.is_ready or self._look(step):
            return
        found = self._gate.record_of(step)
        if found is None:
            return
        known = {name: bytes(one.data) for name, one in found.tensors.items()}
        other = next((name for name, data in own.items() if known.get(name) != bytes(data)), None)
        if other is not None:
            self._gate.refuse(f"{other} changes after the step")

    def keep(self, *, writes: bool, note: Callable[[dict[str, Any], bytes], bytes], may: Callable[[], bool]) -> None:
        """Another worker has failed: keep the last finished step, if the counters show it. `writes`: the values, too, not only checksums;
        where they are small, each survivor keeps them, for one may be a step ahead of another one, or die, too.

        `note`: makes the note of a snapshot; `may`: whether the generators of random numbers are those of the last snapshot.
        """
        writes = writes or self._size <= SMALL
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until and not self._gate.why:
            at = self._at
            with self._lock:
                if self._is_closed:
                    return
                if at is not None and self._is_of(at) and may() and self._write(at, writes=writes, note=note):
                    return
            time.sleep(_POLL_S)

    def close(self) -> None:
        self._gate.close()
        with self._lock:
            self._is_closed = True
            self._memory.clear()
            self._memory.close()

    # --- inside ------------------------------------------------------------------------------------

    def _is_of(self, at: tuple[int, Document, dict[str, Any]]) -> bool:
        """Whether what the optimizer changes is that of this step, which is still the last one."""
        return self._at is at and not self._gate.why and self._gate.read() == (at[0], at[0])

    def _write(self, at: tuple[int, Document, dict[str, Any]], *, writes: bool, note: Callable[[dict[str, Any], bytes], bytes]) -> bool:
        """Returns whether it is kept: the next step may have begun to change it meanwhile."""
        step, document, followed = at
        found, arrays = document()
        data = {name: as_bytes(followed[name] if name in followed else read()) for name, _, read, _ in self._parts}
        told = {name: (code, list(part.shape), False) for name, part, _, code in self._parts}
        for name, array in arrays.items():
            tensor = variables.tensor(array)
            data[name], told[name] = tensor.data, (tensor.dtype, list(tensor.shape), False)
        alike = {} if writes else {name: hashlib.sha256(one).hexdigest() for name, one in data.items()}
        still = [name for name, *_ in self._parts if name not in self._gate.changed and name not in followed]
        of_step = {"step": step, "at": time.time(), "kind": "", **self._series.facts()}
        of_snapshot = {"name": saves.name_of(step), "document": {**found, **of_step}, "alike": alike, "still": still}
        text = note(of_snapshot, json.dumps(told if writes else {}).encode())
        return self._memory.write(text, list(data.values()) if writes else [], is_true=lambda: self._is_of(at))

    def _look(self, step: int) -> str:
        """Whether this step, which is over, was one update by the optimizer; else the reason why the steps cannot be saved."""
        if not self._is_proved or self._gate.has_new:
            self._prove()
        if step > self._last + 1:
            self._gate.refuse("several steps run in one call, as by steps_per_execution, and the others stand in the middle of a call")
        elif self._gate.read() != (step, step):
            self._gate.refuse("a step has no update, or several, by an optimizer of Keras 3")
        return self._gate.why

    def _prove(self) -> None:
        self._gate.prove()
        if not self._gate.has_traced:
            self._gate.refuse(NO_OPTIMIZER)
        if not self._gate.why:
            self._is_proved = True
            self._gate.by_python.is_armed = True
            numbers = [(name, read) for name, part, read, _ in self._parts if name not in self._gate.changed and not part.shape.rank]
            self._followed, self._gate.by_python.has_new_numbers = numbers[:MOST_FOLLOWED], True

    def _end(self, why: str) -> None:
        if not self._is_told:
            self._at, self._is_told = None, True
            with self._lock:
                self._memory.clear()
            print_once(f"checkpoints: a worker that is killed may cost the steps since the newest snapshot in memory: {why}")


def _unfit(strategy: Any) -> str:
    """Why the survivors of this strategy cannot save; empty: they can."""
    devices = [str(device) for device in strategy.extended.worker_devices]
    if len(devices) > 1:
        return "a worker has several replicas"
    if not devices[0].rpartition("/")[2].startswith("device:CPU"):
        return "the replicas are on devices of which values may not be readable after a failure"
    return ""
