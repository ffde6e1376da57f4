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
import os
import weakref
from collections.abc import Iterator
from typing import Any

from ...checkpoint_files import step_records
from ..checkpoints import variables
from ..checkpoints.variables import NamedVariable
from ..pace import shared
from . import assignments, graph_walks

MOST_BYTES = 1 << 20
"""The most that a worker may have for itself: the record is a part of each step."""
NO_OPTIMIZER = "its steps have no optimizer of Keras 3 in the code of a replica"
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
    """Of one training. `named`: its variables; `paths`: of the files for the records; `step`: the steps that are finished."""

    def __init__(self, named: list[NamedVariable], paths: list[str], step: int) -> None:
        import tensorflow as tf

        self.why = ""
        """Why the steps have none; empty: they have one."""
        self.has_traced = False
        """Whether a step with an optimizer was traced."""
        self.changed: set[str] = set()
        """The names of the common variables that the optimizer changes."""
        self.has_new_numbers = True
        """Whether Python has assigned a common variable that the optimizer does not change, since this was last set to false."""
        self._mine: list[_TracedStep] = []
        """Of `_steps`: those of this training, of which the first `_proved` were proved."""
        self._proved, self._paths = 0, paths
        self._own, self._alike = _parts(named, is_own=True), _parts(named, is_own=False)
        self._names, self._own_names = _names(self._alike), _names(self._own)
        self._doors: list[tuple[Any, Any]] = []
        """Of the steps that are being traced: the operation before a gradient is given away, and the number of the step."""
        self._recorded: Any = lambda: None
        """A weak reference to the graph that got a record last."""
        self._late_own = ""
        """A variable that the same graph changes after its record."""
        self._finished, self._has_new_own = step, False
        """The last step that is over; and whether a variable of the worker itself has changed since the step of the graph after it."""
        self._brackets = 0
        self._is_armed = False
        unknown = [name for name, part in [*self._own, *self._alike] if not hasattr(part, "handle") or variables.code_of(part) is None]
        if unknown:
            self.refuse(f"{unknown[0]} is no variable that a graph can read")
        if variables.bytes_of([each for each in named if each.is_own]) > MOST_BYTES:
            self.refuse("what each worker has for itself is larger than a record of each step may be")
        with tf.init_scope(), tf.device(_HOST):
            self._begun, self._ended = (self._counter(tf, name, step) for name in ("begun", "ended"))
        _steps[:] = [each for each in _steps if each.graph() is not None]
        self._mine = [each for each in _steps if graph_walks.names_of_handles(each.graph(), self._names)]
        self.has_traced = bool(self._mine)
        if former := next((each.why for each in self._mine if each.why), ""):  # it may have no record
            self.refuse(former)
        _gates[:] = [self]
        assignments.watch(self)

    def refuse(self, why: str) -> None:
        self.why = self.why or why
        for each in self._mine:
            each.why = each.why or why

    def close(self) -> None:
        assignments.leave(self)
        if self in _gates:
            _gates.remove(self)

    def read(self) -> tuple[int, int]:
        """The counters `begun` and `ended`."""
        import tensorflow as tf
        from tensorflow.python.ops import gen_resource_variable_ops

        read = gen_resource_variable_ops.read_variable_op
        return int(read(self._begun, tf.int64)._numpy()), int(read(self._ended, tf.int64)._numpy())

    @property
    def has_new(self) -> bool:
        """Whether a step was traced that is not proved yet."""
        return self._proved < len(self._mine)

    def path_of(self, step: int) -> str:
        """The file with the record of a step."""
        return self._paths[step % len(self._paths)]

    def arm(self) -> None:
        """The training has begun: from now on, also an assignment outside of any graph changes a variable behind the optimizer's back."""
        self._is_armed = True

    def ends(self, step: int) -> bool:
        """A step is over. Returns whether the program has changed since what its record says; then there is no such record any more."""
        self._finished = step
        has_changed, self._has_new_own = self._has_new_own, False
        if has_changed:
            with contextlib.suppress(OSError):
                os.truncate(self.path_of(step), 0)
        return has_changed

    # --- while a step is traced ------------------------------------------------------------------

    def open_door(self, grads: list[Any]) -> list[Any]:
        """The gradients of this replica, of which one is given to the others only after the record of this step: without this one, no
        worker comes to the end of the step.
        """
        import tensorflow as tf

        self.has_traced = True
        if tf.executing_eagerly():
            self.refuse("the steps run outside of a graph")
            return grads
        with tf.device(_HOST):
            number = tf.raw_ops.ReadVariableOp(resource=self._begun, dtype=tf.int64) + 1
            door = tf.no_op()
        self._doors.append((door, number))
        held = next((place for place, grad in enumerate(grads) if grad is not None), None)
        with tf.control_dependencies([door]):
            made = None if held is None else tf.nest.map_structure(tf.identity, grads[held], expand_composites=True)
        return [made if place == held else grad for place, grad in enumerate(grads)]

    @contextlib.contextmanager
    def bracket(self, added: list[Any]) -> Iterator[None]:
        """While this is entered, the optimizer changes the variables: each change waits for all of the sums of the gradients."""
        import tensorflow as tf

        graph = tf.compat.v1.get_default_graph()
        if tf.executing_eagerly() or not self._doors or self._doors[-1][0].graph is not graph:
            with tf.control_dependencies(added):
                yield
            return
        one = tf.constant(1, tf.int64)
        with tf.control_dependencies(added), tf.device(_HOST):
            begun = tf.raw_ops.AssignAddVariableOp(resource=self._begun, value=one)
        before = len(graph.get_operations())
        self._brackets += 1
        try:
            yield
        finally:
            self._brackets -= 1
        changes = [op for op in graph.get_operations()[before:] if graph_walks.written(op)]
        for op in changes:  # and not each operation: those that only compute would cost more with an edge than without
            op._add_control_input(begun)
        with tf.control_dependencies(changes), tf.device(_HOST):
            ended = tf.raw_ops.AssignAddVariableOp(resource=self._ended, value=one)
        made = _TracedStep(weakref.ref(graph), begun.name, ended.name, self.why)
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
        door, number = doors[0]
        if len(doors) > 1:
            self.refuse("a step has several optimizers, or several updates by one")
        elif door.graph is not graph:
            self.refuse("the function that strategy.run calls has a graph of its own (tf.function)")
        elif late := graph_walks.late(graph, door, self._own_names):
            self.refuse(f"{late} changes after the gradients of the workers are added")
        else:
            record = self._record(tf, number)
            # TensorFlow otherwise lets all operations with effects on no variable wait for one another, as they stand in the program.
            graph.experimental_acd_manager.run_independently(record)
            door._add_control_input(record)
            self._recorded, self._late_own = weakref.ref(graph), ""

    def _record(self, tf: Any, number: Any) -> Any:
        """The operation that writes what this worker has for itself, as it is at this place of the graph."""

        def raw(value: Any) -> Any:
            value = tf.cast(value, tf.uint8) if value.dtype == tf.bool else value
            return tf.reshape(tf.bitcast(value, tf.uint8), [-1])

        with tf.device(_HOST):
            values = [raw(tf.raw_ops.ReadVariableOp(resource=part.handle, dtype=part.dtype)) for _, part in self._own]
            told = step_records.head([(name, variables.code_of(part) or "", part.shape) for name, part in self._own])
            data = tf.io.serialize_tensor(tf.concat([raw(number), *values, raw(number)], 0))
            path = tf.gather(tf.constant(self._paths), number % len(self._paths))
            return tf.raw_ops.WriteFile(filename=path, contents=tf.strings.join([tf.constant(told), data]))

    # --- after it --------------------------------------------------------------------------------

    def prove(self) -> None:
        """Walk the graphs that were traced since the last call; `why` then names what changes outside of the optimizer."""
        traced, self._proved = self._mine[self._proved :], len(self._mine)
        if self._late_own:
            self.refuse(f"{self._late_own} changes after the step of the replicas")
        for step in traced:
            if (graph := step.graph()) is None:
                continue
            begun, ended = map(graph.get_operation_by_name, (step.begun, step.ended))
            between = graph_walks.after(begun) & graph_walks.before(ended)
            outside = []
            for op, name in graph_walks.writers(graph, self._names):
                if op in between:
                    self.changed.add(name)
                else:
                    outside.append(name)
            if outside:
                self.refuse(f"{variables_in_words(outside)} also outside of the optimizer's update")

    def on_assignment(self, variable: Any) -> None:
        """A variable is assigned by Python: in a graph that is being made, or at once."""
        import tensorflow as tf

        handle = id(getattr(variable, "_handle", None))
        if own := self._own_names.get(handle):
            self._on_own(tf, own)
            return
        name = self._names.get(handle)
        if name is None or self._brackets or self.why:
            return
        if tf.executing_eagerly() and not (self._is_armed and name in self.changed):
            self.has_new_numbers = True
        elif self.has_traced:
            self.refuse(f"{variables_in_words([name])} also outside of the optimizer's update")
        else:
            self.refuse(NO_OPTIMIZER)

    def _on_own(self, tf: Any, name: str) -> None:
        """What changes after the record is not in it: in the same graph, or at once, before the program says that the step is over."""
        if self.why:
            return
        if not tf.executing_eagerly():
            graph, recorded = tf.compat.v1.get_default_graph(), self._recorded()
            while graph is not None and graph is not recorded:
                graph = getattr(graph, "outer_graph", None)
            if graph is not None:
                self._late_own = name
        elif self.has_traced and self.read()[0] != self._finished:
            self._has_new_own = True

    @staticmethod
    def _counter(tf: Any, name: str, step: int) -> Any:
        made = tf.raw_ops.VarHandleOp(dtype=tf.int64, shape=[], shared_name=f"orch_{name}", container="")
        tf.raw_ops.AssignVariableOp(resource=made, value=tf.constant(step, tf.int64))
        return made


def variables_in_words(names: list[str]) -> str:
    names = list(dict.fromkeys(names))
    more = f" (and {len(names) - 1} other variables)" if len(names) > 1 else ""
    return f"{names[0]}{more} {'change' if more else 'changes'}"


def _parts(named: list[NamedVariable], *, is_own: bool) -> list[tuple[str, Any]]:
    return [pair for each in named if each.is_own == is_own for pair in zip(each.names(), each.components(), strict=True)]


def _names(parts: list[tuple[str, Any]]) -> dict[int, str]:
    """The names of variables by the identity of their handles."""
    return {id(part.handle): name for name, part in parts if hasattr(part, "handle")}
