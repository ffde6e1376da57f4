"""Writes down the first steps of a training: rows, losses, gradients, variables. `orch verify` compares what one process and several
workers have written.

A step is one call of a replica's code: of `train_step`, or of what a program gives to `strategy.run`. In a program that calls neither, it
ends with each optimizer's next step. `record_hooks` calls the functions here.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from ...protocol import task_files
from .. import failure, patches
from ..patches import guard
from ..patches.features import VERIFY, VERIFY_2
from ..shared import shared
from . import fingerprints, loss_terms

WAIT_S = 20.0
"""How long a worker that has ended waits for the others: they may still be in the last step."""
MOST_SIZE = 1 << 22
"""The largest result of an operation whose sum is written down."""
MOST_NUMBERS = 4096
"""The most numbers that are written down of each kind that a program may show without an end."""
_settings: dict[str, Any] = shared("verify", dict)
_files: list[str] = shared("verified files", list)
recorders: list[Recorder] = shared("recorders", list)


def apply_soon(settings: dict[str, Any], log_dir: str) -> None:
    """Apply the section `verify`, before the program draws any random number."""
    if settings.get("steps"):
        _settings.update({"word": "verify", **settings})
        os.environ["ORCH_ORDER"] = word()


def word() -> str:
    """The word from which the random numbers of a program without a seed come."""
    return str(_settings["word"])


def batch_of() -> int:
    """The number of workers that the program of one process finds where it computes the size of a batch; 0: as many as there are."""
    return int(_settings.get("batch_of", 0))


def note_files(line: str) -> None:
    """Each worker reads files of its own, of the dataset that this line divides."""
    if is_on():
        _files.append(line)


def is_on() -> bool:
    """True if this process writes down what it trains, and so draws its random numbers as the other processes of `orch verify` do."""
    return bool(_settings)


class Step:
    def __init__(self, replica: int, line: str) -> None:
        self.replica, self.line = replica, line
        self.rows: tuple[list[int], list[list[int]]] = ([], [])
        self.events: list[dict[str, Any]] = []
        self.used: dict[int, Any] = {}
        """The variables of this step that the recorder knows, by number."""
        self.optimizers: set[int] = set()
        self.random: dict[str, str] = {}
        """The lines that draw random numbers, and how."""
        self.draws = 0
        self.adds: list[str] = []
        """The lines by which the program itself adds up something of all replicas."""
        self.terms = loss_terms.Terms()
        self.trace: list[tuple[str, str, int, float, float]] = []
        """The operations before the optimizer's step: kind, line, and of the result its size, sum and sum of absolute values."""

        self.of_loss = 0
        """How many of these were done when the gradients had been taken."""

    @property
    def trains(self) -> bool:
        return any(event["kind"] == "apply" or event["variables"] for event in self.events)


class _Here(threading.local):
    step: Step | None = None
    is_own = False


class Recorder:
    def __init__(self, log_dir: str) -> None:
        self.log_dir, self.wanted = log_dir, int(_settings["steps"])
        self.here = _Here()
        self.done: dict[int, int] = {}
        """The number of training steps, by replica."""
        self.found: dict[str, Any] = {"steps": [], "shown": [], "datasets": {}, "wrote": {}, "variables": [], "started": {}, "layers": []}
        self.found["is_small"] = False  # whether a step computes in float16 or bfloat16
        self._numbers: dict[int, tuple[int, Any]] = {}
        """The number of each variable, by its `id`; and the variable, which so stays alive."""
        self._optimizers: dict[int, tuple[int, Any]] = {}
        self._lock, self._is_over = threading.RLock(), False
        self.active: dict[int, Step] = {}
        self.line_of_fit = ""
        self.draws = 0
        """How many random numbers the program has drawn outside of steps."""

    @property
    def step(self) -> Step | None:
        """The step of the replica of this thread: TensorFlow runs a part of it in a thread of its own."""
        if self.here.step is not None or not self.active:
            return self.here.step
        import tensorflow as tf

        context = tf.distribute.get_replica_context()
        return self.active.get(int(context.replica_id_in_sync_group)) if context is not None else None

    @contextlib.contextmanager
    def of_own(self) -> Iterator[None]:
        """While this is entered, what this thread computes is no part of the program."""
        before, self.here.is_own = self.here.is_own, True
        try:
            yield
        finally:
            self.here.is_own = before

    # --- steps -------------------------------------------------------------------------------

    @contextlib.contextmanager
    def in_step(self, data: Any) -> Iterator[None]:
        """A step of the replica of this thread, computed from these data; within another one: more exactly its data."""
        import tensorflow as tf

        outer = self.here.step
        if not tf.executing_eagerly():
            yield
            return
        if outer is not None and outer.line:
            if not outer.rows[1]:
                self._note_rows(outer, data)
            yield
            return
        step = self._begin(outer, data)
        try:
            yield
            self._end(step)
        finally:
            self.here.step = None
            if step is not None:
                self.active.pop(step.replica, None)

    @patches.guarded(VERIFY)
    def _begin(self, outer: Step | None, data: Any) -> Step:
        """Begin the step of the replica of this thread. `outer`: the one before, of a program that marks none."""
        import tensorflow as tf

        self._end(outer)
        context, line = tf.distribute.get_replica_context(), failure.calling_line()
        place = context.replica_id_in_sync_group if context is not None else 0
        step = self.here.step = Step(int(place), self.line_of_fit if self.line_of_fit and line.startswith("the ") else line)
        self._note_rows(step, data)
        self.active[step.replica] = step
        return step

    @patches.guarded(VERIFY)
    def _note_rows(self, step: Step, data: Any) -> None:
        with self.of_own():
            step.rows = fingerprints.of_rows(data)

    def _open(self) -> Step:
        """The step of this thread; one without data, in a program that marks none."""
        if (step := self.step) is not None:
            return step
        self.stop_if_done()
        self.here.step = Step(0, "")
        return self.here.step

    @patches.guarded(VERIFY)
    def _end(self, step: Step | None) -> None:
        """Write a step down, if it trains."""
        if step is None or not step.trains:
            return
        with self.of_own(), self._lock:
            number = self.done[step.replica] = self.done.get(step.replica, 0) + 1
            if number > self.wanted:
                return
            after = {place: fingerprints.of_tensor(value_of(variable)) for place, variable in step.used.items()}
            rows, leaves = step.rows
            self.found["steps"].append(
                {"number": number, "replica": step.replica, "line": step.line, "rows": rows, "leaves": leaves, "events": step.events}
                | {"after": after, "random": step.random, "adds": step.adds, "trace": step.trace, "of_loss": step.of_loss}
            )

    def known(self, variable: Any) -> int:
        """The number of a variable of the program, with its first value."""
        kept = getattr(variable, "value", None) if hasattr(variable, "path") else variable
        kept = getattr(kept, "_distributed_container", lambda: kept)() if kept is not None else variable
        with self._lock:
            if id(kept) not in self._numbers:
                number = len(self._numbers)
                self._numbers[id(kept)] = number, kept
                self.found["variables"].append({"name": str(getattr(variable, "path", getattr(variable, "name", "a variable")))})
                self.found["started"][number] = fingerprints.of_tensor(value_of(variable))
            number, _ = self._numbers[id(kept)]
        if (step := self.step) is not None:
            step.used[number] = variable
        return number

    # --- what happens in a step ----------------------------------------------------------------

    def loss(self, target: Any, sources: Any, gradients: Any) -> None:
        import tensorflow as tf

        with self.of_own():
            pairs = [(source, grad) for source, grad in zip(sources, gradients, strict=False) if is_variable(source)]
            targets = [each for each in tf.nest.flatten(target) if tf.is_tensor(each)]
            step = self._open() if pairs and targets else None
            if step is None:
                return
            variables = [self.known(source) for source, _ in pairs]
            grads = [fingerprints.of_tensor(_added(grad)) for _, grad in pairs]
            terms = [{**term, "value": _weight(each) * term["value"]} for each in targets for term in step.terms.of(each)]
            event = {"kind": "loss", "line": failure.calling_line(), "variables": variables, "grads": grads, "terms": terms}
            step.events.append(event)
            step.of_loss = len(step.trace)

    def operation(self, kind: str, output: Any) -> None:
        """An operation of the first step has run."""
        step = self.step
        self.found["is_small"] |= step is not None and output.dtype.is_floating and output.dtype.size < 4
        if step is None or step.optimizers or self.done or len(step.trace) >= MOST_NUMBERS or not output.dtype.is_floating:
            return
        numbers = output.numpy()
        if numbers.size <= MOST_SIZE and numbers.dtype.kind == "f":
            total, absolute = (float(each.sum(dtype="float64")) for each in (numbers, abs(numbers)))
            step.trace.append((kind, failure.calling_line(), numbers.size, total, absolute))

    def apply(self, optimizer: Any, grads: Any, variables: Any, *, is_added: bool = True) -> dict[str, Any] | None:
        """An optimizer is given gradients. `is_added`: it adds those of all replicas. Gives the event."""
        with self.of_own():
            place, _ = self._optimizers.setdefault(id(optimizer), (len(self._optimizers), optimizer))
            step = self._open()
            if not step.line and place in step.optimizers:
                self._end(step)
                self.here.step = None
                step = self._open()
            step.optimizers.add(place)
            pairs = [(grad, variable) for grad, variable in zip(grads, variables, strict=False) if grad is not None]
            event: dict[str, Any] = {"kind": "apply", "optimizer": place, "line": failure.calling_line(), "is_added": is_added}
            event["variables"] = [self.known(variable) for _, variable in pairs]
            event["grads"] = [fingerprints.of_tensor(_added(grad)) for grad, _ in pairs]
            event["clips"] = any(getattr(optimizer, name, None) for name in ("clipnorm", "global_clipnorm", "clipvalue"))
            event["rate"] = _number(getattr(optimizer, "learning_rate", None))
            step.events.append(event)
            return event

    def applied(self, pairs: Any) -> None:
        """These are the gradients of all replicas, as the optimizer of the last event applies them."""
        step = self.step
        if step is None or not step.events or step.events[-1]["kind"] != "apply":
            return
        with self.of_own():
            step.events[-1]["applied"] = {
                self.known(variable): fingerprints.of_tensor(grad) for grad, variable in pairs if grad is not None
            }

    def shown(self, kind: str, line: str, values: dict[str, Any]) -> None:
        """The program gets these numbers of all replicas."""
        step = max(self.done.values(), default=0)
        numbers = {name: number for name, value in values.items() if (number := _number(value)) is not None}
        if numbers and len(self.found["shown"]) < MOST_NUMBERS:
            self.found["shown"].append({"kind": kind, "line": line, "step": step, "values": numbers})

    # --- the end -----------------------------------------------------------------------------------

    def stop_if_done(self) -> None:
        """End the process if it has trained as many steps as are wanted: the program writes no results of these."""
        if not self._is_over and min(self.done.values(), default=0) >= self.wanted:
            self.write("enough steps")
            self._wait_for_others()
            task_files.write(self.log_dir, task_files.ENDED, f"0 {time.time()!r}")
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:
                    stream.flush()
            os._exit(0)

    def write(self, why: str) -> None:
        """Write everything down, once; nothing if the recorder has failed."""
        if self._is_over or {VERIFY, VERIFY_2} & guard.off:
            return
        self._end(self.here.step)
        self._is_over = True
        unknown = patches.problems(VERIFY)
        self.found |= {"ended": why, "files": _files, "off": patches.describe(VERIFY, unknown) if unknown else ""}
        task_files.write(self.log_dir, task_files.VERIFIED, json.dumps(self.found))

    def _wait_for_others(self) -> None:
        """Wait until each worker on this machine has written everything down: TensorFlow ends those that a peer has left."""
        beside, limit = os.path.dirname(self.log_dir), time.monotonic() + WAIT_S
        while time.monotonic() < limit:
            tasks = [name for name in os.listdir(beside) if name.startswith(("worker-", "chief-"))]
            if all(os.path.exists(os.path.join(beside, name, task_files.VERIFIED)) for name in tasks):
                return
            time.sleep(0.02)


def value_of(variable: Any) -> Any:
    import tensorflow as tf

    return tf.convert_to_tensor(variable)


def _view() -> Any:
    """What the code of this replica sees (see `task/keras/one_replica`)."""
    return getattr(shared("view of a step", threading.local), "view", None)


def _added(value: Any) -> Any:
    """What of a gradient is added to those of the other replicas."""
    view = _view()
    return value if view is None or value is None else view.weigh_last(value)


def _weight(loss: Any) -> float:
    """What a term of a loss counts in the loss of all replicas: losses of single rows are added up."""
    import tensorflow as tf

    one, view = tf.constant(1.0), _view()
    return float(_added(view.sum_of_all(one) if view is not None and view.is_of_rows(loss) else one))


def is_variable(source: Any) -> bool:
    import tensorflow as tf

    return isinstance(source, tf.Variable) or (hasattr(source, "path") and hasattr(source, "assign"))


def _number(value: Any) -> float | None:
    """A single number that a program shows; None: it is none."""
    with contextlib.suppress(Exception):
        import numpy as np

        found = np.asarray(value.numpy() if hasattr(value, "numpy") else value)
        return float(found) if found.size == 1 and found.dtype.kind in "fiub" else None
    return None
