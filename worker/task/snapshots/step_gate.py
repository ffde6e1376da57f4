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
import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ...checkpoint_files import step_records
from ..checkpoints import variables
from ..checkpoints.variables import NamedVariable
from ..import_hooks import replace
from ..pace import shared
from . import program_order

MOST_BYTES = 1 << 20
"""The most that a worker may have for itself: the record is a part of each step."""
_HOST = "/device:CPU:0"
_ASSIGNMENTS = ("assign", "assign_add", "assign_sub", "scatter_add", "scatter_sub", "scatter_update", "scatter_max", "scatter_min")
_SCATTERS = ("scatter_mul", "scatter_div", "batch_scatter_update", "scatter_nd_add", "scatter_nd_sub", "scatter_nd_update")

_gates: list[StepGate] = shared("step_gates", list)
"""Of the training that runs; empty: none has one."""
_steps: list[list[Any]] = shared("gated_steps", list)
"""The steps that were traced in this process: a weak reference to the graph, the names of `begun` and `ended`, and why the training of the
step was refused, or nothing. A second `fit` of a model uses the graphs of the first one."""
_is_installed = False


def current() -> StepGate | None:
    """The gate of the training that runs, if its steps get one."""
    return next((gate for gate in _gates if not gate.why), None)


def refuse(why: str) -> None:
    """The steps that are traced now have no gate."""
    for gate in _gates:
        gate.refuse(why)


class StepGate:
    """Of one training. `named`: its variables; `paths`: of the two files for the records; `step`: the steps that are finished."""

    def __init__(self, named: list[NamedVariable], paths: list[str], step: int) -> None:
        import tensorflow as tf

        self.why = ""
        """Why the steps have none; empty: they have one."""
        self.has_traced = False
        """Whether a step with an optimizer was traced."""
        self.changed: set[str] = set()
        """The names of the common variables that the optimizer changes."""
        self._paths = paths
        self._own, self._alike = _parts(named, is_own=True), _parts(named, is_own=False)
        self._names, self._own_names = _names(self._alike), _names(self._own)
        self._doors: list[tuple[Any, Any]] = []
        """Of the steps that are being traced: the operation before the gradients are given away, and the number of the step."""
        self._traced: list[list[Any]] = []
        """Of `_steps`: those of this training that are not proved yet."""
        self._mine: list[list[Any]] = []
        """Of `_steps`: all of this training."""
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
        _steps[:] = [each for each in _steps if each[0]() is not None]
        self._traced = [each for each in _steps if _handles(each[0](), self._names)]
        self._mine = list(self._traced)
        self.has_traced = bool(self._traced)
        if former := next((each[3] for each in self._traced if each[3]), ""):  # it may have no record
            self.refuse(former)
        _install(self)

    def refuse(self, why: str) -> None:
        self.why = self.why or why
        for each in self._mine:
            each[3] = each[3] or why

    def close(self) -> None:
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
        return bool(self._traced)

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
        """The gradients of this replica, which are given to the others only after the record of this step."""
        import tensorflow as tf

        self.has_traced = True
        if tf.executing_eagerly():
            self.refuse("the steps run outside of a graph")
            return grads
        with tf.device(_HOST):
            number = tf.raw_ops.ReadVariableOp(resource=self._begun, dtype=tf.int64) + 1
            door = tf.no_op()
        self._doors.append((door, number))
        with tf.control_dependencies([door]):
            return [None if grad is None else tf.nest.map_structure(tf.identity, grad, expand_composites=True) for grad in grads]

    @contextlib.contextmanager
    def bracket(self, added: list[Any]) -> Iterator[None]:
        """While this is entered, each operation waits for all of the sums of the gradients, and the optimizer changes the variables."""
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
            with tf.control_dependencies([begun]):  # and so for all sums: one edge for each operation, in place of one for each sum
                yield
        finally:
            self._brackets -= 1
        made = [op for op in graph.get_operations()[before:] if op.op_def.is_stateful]
        with tf.control_dependencies(made), tf.device(_HOST):
            ended = tf.raw_ops.AssignAddVariableOp(resource=self._ended, value=one)
        made_step = [weakref.ref(graph), begun.name, ended.name, self.why]
        for each in (self._traced, self._mine, _steps):
            each.append(made_step)

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
        elif late := _late(graph, door, self._own):
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
        traced, self._traced = self._traced, []
        if self._late_own:
            self.refuse(f"{self._late_own} changes after the step of the replicas")
        for reference, begun, ended, _ in traced:
            if (graph := reference()) is None:
                continue
            after, before = _reach(graph.get_operation_by_name(begun), _followers), _reach(graph.get_operation_by_name(ended), _sources)
            outside = []
            for op, name in _writers(graph, self._names):
                if op in after and op in before:
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
        if name is None or self._brackets or self.why or (tf.executing_eagerly() and not (self._is_armed and name in self.changed)):
            return
        self.refuse(f"{variables_in_words([name])} also outside of the optimizer's update")

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


def _install(gate: StepGate) -> None:
    """Notice assignments, and the end of a replica's step, from now on."""
    global _is_installed
    _gates[:] = [gate]
    if _is_installed:
        return
    _is_installed = True
    from tensorflow.python.distribute import distribute_lib
    from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable, ResourceVariable, UninitializedVariable

    def assign(real: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        for gate in _gates:
            gate.on_assignment(self)
        return real(self, *args, **kwargs)

    def run(real: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        result = real(self, *args, **kwargs)
        for gate in _gates:
            gate.end_of_replica()
        return result

    for kind in (BaseResourceVariable, ResourceVariable, UninitializedVariable):
        for name in (*_ASSIGNMENTS, *_SCATTERS):
            if name in vars(kind):  # TensorFlow copies methods into classes that it registers
                replace(kind, name, assign)
    replace(distribute_lib.StrategyBase, "run", run)


# --- graphs --------------------------------------------------------------------------------------


def _followers(op: Any) -> Iterable[Any]:
    yield from op._control_outputs
    for output in op.outputs:
        yield from output.consumers()


def _sources(op: Any) -> Iterable[Any]:
    yield from op.control_inputs
    for each in op.inputs:
        yield each.op


def _reach(op: Any, neighbours: Callable[[Any], Iterable[Any]]) -> set[Any]:
    """All operations that come before or after another one."""
    found, left = {op}, [op]
    while left:
        new = [each for each in neighbours(left.pop()) if each not in found]
        found.update(new)
        left += new
    return found


def _handles(graph: Any, names: dict[int, str]) -> dict[int, str]:
    """The names of variables by the numbers of their handles inside a graph. `names`: by the identity of their handles outside of any."""
    found: dict[int, str] = {}
    outer = graph.outer_graph
    of_outer = _handles(outer, names) if hasattr(outer, "captures") else {}
    for outside, inside in graph.captures:
        name = names.get(id(outside)) or of_outer.get(getattr(outside, "_id", -1))
        if name:
            found[inside._id] = name
    return found


def _writers(graph: Any, names: dict[int, str]) -> Iterator[tuple[Any, str]]:
    """The operations of a graph that may write a variable, with its name."""
    from tensorflow.python.framework import auto_control_deps_utils

    handles = _handles(graph, names)
    for op in graph.get_operations():
        if any(each._id in handles for each in op.inputs):
            for each in auto_control_deps_utils.get_read_write_resource_inputs(op)[1]:
                if each._id in handles:
                    yield op, handles[each._id]


def _late(graph: Any, door: Any, own: list[tuple[str, Any]]) -> str:
    """The first of these variables whose last change comes after the door, so that no record can come before it; empty: there is none."""
    handles = _handles(graph, _names(own))
    late = program_order.late_writes(graph, door)
    return next((name for number, name in handles.items() if number in late), "")
