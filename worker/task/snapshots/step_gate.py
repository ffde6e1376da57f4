"""What makes the state of a worker that outlives another one that of one step, in the graph of the step itself.

Under MultiWorkerMirroredStrategy all workers have the same weights, so the training can continue with those of a worker that has survived.
But this worker stands within a step: the weights are of the step before, while seeds, statistics and metrics are those of the step that
will never end. In the graph of each step with an optimizer of Keras 3:

    record   what this worker has for itself is written into the memory of the agent, before the worker gives its gradients to the others
    gate     all that the optimizer changes waits for the sums of all gradients (`worker/task/keras/optimizer.py`)
    begun    a counter behind the gate, before the first change
    ended    a counter after the last change

So if both counters say step N, all that the optimizer changes is of step N. And as no worker comes to the end of step N before all have
given their gradients, each worker, also one that is dead, has written what it had for itself at the end of step N.

That the optimizer alone changes these variables is shown twice. `StepGate.prove` walks the graph of the step: every operation that may
write a common variable must come after `begun`, and before `ended`. And each assignment by Python outside of the optimizer is noticed, be
it in another graph or in none.
"""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from collections.abc import Iterator
from typing import Any

from ...checkpoint_files import step_records
from ...checkpoint_files.step_records import StepRecord
from ..checkpoints import variables
from ..checkpoints.variables import NamedVariable
from ..pace import shared
from . import assignments, graph_walks
from .records import Records
from .step_counters import StepCounters

_HOST = "/device:CPU:0"


@dataclasses.dataclass
class _TracedStep:
    """A graph with a gate."""

    graph: weakref.ref[Any]
    begun: str
    """The names of the operations that count."""
    ended: str
    why: str
    """Why the training of the step was refused; empty: it was not."""
    own: list[int]
    """The handles of the variables that are in its record, in this order."""


_gates: list[StepGate] = shared("step_gates", list)
"""Of the training that runs; empty: none has one."""
_steps: list[_TracedStep] = shared("gated_steps", list)
"""The steps that were traced in this process. A second `fit` of a model uses the graphs of the first one."""


def current() -> StepGate | None:
    """The gate of the training that runs, if its steps get one."""
    return next((gate for gate in _gates if not gate.why), None)


def refuse(why: str) -> None:
    """The steps that are traced now have no gate."""
    for gate in _gates:
        gate.refuse(why)


class StepGate:
    """Of one training. `named`: its variables; `path`: of the file for the records; `step`: the steps that are finished."""

    def __init__(self, named: list[NamedVariable], path: str, step: int, why: str = "") -> None:
        import tensorflow as tf

        self.why = why
        """Why the steps have none; empty: they have one."""
        self.has_traced = False
        """Whether a step with an optimizer was traced."""
        self.changed: set[str] = set()
        """The names of the common variables that the optimizer changes."""
        self._mine: list[_TracedStep] = []
        """Of `_steps`: those of this training, of which the first `_proved` were proved."""
        self._proved = 0
        self._own, self._alike = _parts(named, is_own=True), _parts(named, is_own=False)
        self._alike_names, self._own_names = _names(self._alike), _names(self._own)
        self._doors: list[tuple[Any, Any]] = []
        """Of the steps that are being traced: the operation that gives a gradient away, and the number of the steps before."""
        self.finished = step
        """The last step that is over."""
        self.by_python = assignments.Assigned(self, self._alike_names, self._own_names)
        unknown = [name for name, part in [*self._own, *self._alike] if not hasattr(part, "handle") or variables.code_of(part) is None]
        if unknown:
            self.refuse(f"{unknown[0]} is no variable that a graph can read")
        if variables.bytes_of([each for each in named if each.is_own]) > step_records.MOST_BYTES:
            self.refuse("what each worker has for itself is larger than a record of each step may be")
        _steps[:] = [each for each in _steps if each.graph() is not None]
        self._mine = [each for each in _steps if graph_walks.names_of_handles(each.graph(), self._alike_names)]
        self.has_traced = bool(self._mine)
        if former := next((each.why for each in self._mine if each.why), ""):  # it may have no record
            self.refuse(former)
        self._records: Records | None = None
        with tf.init_scope(), tf.device(_HOST):
            self._counters = StepCounters(step)
            try:
                self._records = None if self.why else Records(self._own, path, [each.own for each in _steps])
            except (OSError, ValueError) as error:
                self.refuse(f"its steps cannot be recorded: {getattr(error, 'strerror', None) or error}")
        _gates[:] = [self]
        assignments.watch(self.by_python)

    def refuse(self, why: str) -> None:
        self.why = self.why or why
        for each in self._mine:
            each.why = each.why or why

    def close(self) -> None:
        assignments.leave(self.by_python)
        if self in _gates:
            _gates.remove(self)

    def read(self) -> tuple[int, int]:
        """The counters `begun` and `ended`."""
        return self._counters.read()

    @property
    def has_new(self) -> bool:
        """Whether a step was traced that is not proved yet."""
        return self._proved < len(self._mine)

    def record_of(self, step: int) -> StepRecord | None:
        """What is recorded of a step, one of the last; None: nothing."""
        return self._records.of(step) if self._records is not None else None

    def ends(self, step: int) -> bool:
        """A step is over. Returns whether the program has changed since what its record says; then there is no such record any more."""
        self.finished = step
        if not self.by_python.has_new_own:
            return False
        self.by_python.has_new_own = False
        if self._records is not None:
            self._records.forget(step)
        return True

    # --- while a step is traced ------------------------------------------------------------------

    def open_door(self, grads: list[Any]) -> list[Any]:
        """The gradients of this replica, of which one is given to the others only after the record of this step: without this one, no
        worker comes to the end of the step.
        """
        import tensorflow as tf

        self.has_traced = True
        if tf.executing_eagerly():
            self.refuse("the steps run outside of a graph")
        place = next((place for place, grad in enumerate(grads) if grad is not None), None)
        if place is None or self.why:
            return grads
        with tf.device(_HOST):
            finished = self._counters.finished()
        first, *others = tf.nest.flatten(grads[place], expand_composites=True)
        door = tf.identity(first)
        self._doors.append((door.op, finished))
        held = tf.nest.pack_sequence_as(grads[place], [door, *others], expand_composites=True)
        return [*grads[:place], held, *grads[place + 1 :]]

    @contextlib.contextmanager
    def bracket(self, added: list[Any]) -> Iterator[None]:
        """While this is entered, the optimizer changes the variables: each change waits for all of the sums of the gradients."""
        import tensorflow as tf

        graph = tf.compat.v1.get_default_graph()
        if tf.executing_eagerly() or not self._doors or self._doors[-1][0].graph is not graph:
            with tf.control_dependencies(added):
                yield
            return
        with tf.control_dependencies(added), tf.device(_HOST):
            begun = self._counters.begin()
        before = len(graph.get_operations())
        self.by_python.brackets += 1
        try:
            yield
        finally:
            self.by_python.brackets -= 1
        changes = [op for op in graph.get_operations()[before:] if graph_walks.written(op)]
        for op in changes:  # and not each operation: those that only compute would cost more with an edge than without
            op._add_control_input(begun)
        with tf.control_dependencies(changes), tf.device(_HOST):
            ended = self._counters.end()
        made = _TracedStep(weakref.ref(graph), begun.name, ended.name, self.why, [*self._own_names])
        self._mine.append(made)
        _steps.append(made)

    def end_of_replica(self) -> None:
        """The step of the replica is traced: write the record, and let its door wait for it."""
        doors, self._doors = self._doors, []
        if doors and not self.why:
            try:
                self._close(doors)
            except Exception as error:  # an error of orch's own code: the program must go on
                self.refuse(f"{type(error).__name__}: {error}")

    def _close(self, doors: list[tuple[Any, Any]]) -> None:
        import tensorflow as tf

        graph = tf.compat.v1.get_default_graph()
        door, finished = doors[0]
        if len(doors) > 1:
            self.refuse("a step has several optimizers, or several updates by one")
        elif door.graph is not graph:
            self.refuse("the function that strategy.run calls has a graph of its own (tf.function)")
        elif late := graph_walks.late(graph, door, self._own_names):
            self.refuse(f"{late} changes after the gradients of the workers are added")
        elif self._records is not None:  # it is None only for a reason in `why`
            with tf.device(_HOST):
                door._add_control_input(self._records.write(finished))
            self.by_python.recorded, self.by_python.late_own = weakref.ref(graph), ""

    # --- after it --------------------------------------------------------------------------------

    def prove(self) -> None:
        """Walk the graphs that were traced since the last call; `why` then names what changes outside of the optimizer."""
        traced, self._proved = self._mine[self._proved :], len(self._mine)
        if self.by_python.late_own:
            self.refuse(f"{self.by_python.late_own} changes after the step of the replicas")
        for step in traced:
            if (graph := step.graph()) is None:
                continue
            begun, ended = map(graph.get_operation_by_name, (step.begun, step.ended))
            between = graph_walks.after(begun) & graph_walks.before(ended)
            outside = []
            for op, name in graph_walks.writers(graph, self._alike_names):
                if op in between:
                    self.changed.add(name)
                else:
                    outside.append(name)
            if outside:
                self.refuse(assignments.outside(outside))


def _parts(named: list[NamedVariable], *, is_own: bool) -> list[tuple[str, Any]]:
    return [pair for each in named if each.is_own == is_own for pair in zip(each.names(), each.components(), strict=True)]


def _names(parts: list[tuple[str, Any]]) -> dict[int, str]:
    """The names of variables by the identity of their handles."""
    return {id(part.handle): name for name, part in parts if hasattr(part, "handle")}
