"""The saves of one `fit`: when, what, and how it begins again."""

from __future__ import annotations

import dataclasses
import itertools
from abc import ABC, abstractmethod
from types import SimpleNamespace
from typing import Any

from ...values.words import few
from .. import patches
from ..context import context
from ..patches.features import SAVES
from ..patches.import_hooks import print_once
from . import callback_state, input_check, random_state, restoring, variables
from .saver import place_of
from .series import Series
from .training_session import TrainingSession

MARK = "_orch_checkpoint"
"""An attribute of the callback that asks for saves."""


@dataclasses.dataclass(frozen=True)
class Data:
    """Holds what a `fit` trains on."""

    dataset: Any
    kind: str
    """``dataset`` or ``arrays``; empty: what orch does not know, such as a generator."""
    batch_size: int | None
    """Of arrays."""
    steps_per_execution: int


class Fit(ABC):
    """One call of `fit` that is saved. `asked`: what the callback of the program asks for, if there is one."""

    numbers = itertools.count(1)
    """The numbers of the calls in this process, of Keras 2 and of Keras 3."""
    _validations_before = 0

    def __init__(self, number: int, model: Any, asked: Any) -> None:
        self.number, self.model = number, model
        self.asked = asked or SimpleNamespace(every=None, keep=None, dir=None)
        self.callbacks: Any = None
        """Keras's list of callbacks, which knows nothing of the saves."""
        self.session: Any = None
        self.left_out = (0, 0)
        """The epochs, and the steps in the next one, that were trained before the restart."""
        self.first: int | None = None
        """The epoch with which the training began before the restart. BackupAndRestore begins with a later one: its epochs would be left
        out twice. None: nothing was restored."""

    def leave_out_validations(self, count: int) -> None:
        """Let the validation data draw the orders that they have drawn before the restart."""
        self._validations_before = count

    def count_validations(self) -> int:
        """Count how often the validation data have begun, also before the restart. Of Keras 2 this is not known."""
        return self._validations_before

    def begin_saves(self, callbacks: Any, saving: Any) -> None:
        """Save from now on. `callbacks`: Keras's list of them; `saving`: the list that `fit` has (`saving_list`)."""
        self.callbacks = callbacks
        self.session = FitSession(self)
        saving.callbacks, saving.params = callbacks.callbacks, callbacks.params

    @abstractmethod
    def data(self) -> Data:
        """Return what it trains on."""

    @abstractmethod
    def build(self) -> None:
        """Make the variables of the model, its optimizer and its metrics that do not exist yet, from the shapes of the data."""

    def reads_whole_epochs(self) -> bool:
        """See `input_check.is_read_whole`. Keras's own datasets of arrays draw each order when an epoch begins."""
        data = self.data()
        return data.kind == "dataset" and input_check.is_read_whole(data.dataset)

    def more_variables(self) -> dict[str, Any]:
        """Return those of the model that no layer and no optimizer has, by name."""
        return {}

    def begin_with(self, epoch: int, batch: int, first: int) -> None:
        """Begin in this epoch, after so many batches. `first`: the epoch with which the training began."""
        self.left_out, self.first = (epoch - first, batch), first

    # --- Keras's loop ------------------------------------------------------------------------------

    def begin_epoch(self) -> bool:
        """Keras begins an epoch. Returns whether it is trained; otherwise it was before the restart."""
        return True

    def end_epoch(self) -> bool:
        return True

    def begin_step(self, step: int) -> int | None:
        """The number of the step that Keras begins; None: it was trained before the restart."""
        return step

    def end_step(self, step: int) -> int | None:
        return step


def asked_of(callbacks: Any) -> Any:
    """The callback that asks for saves, among those that a program gives to `fit`, or nothing."""
    import tensorflow as tf

    given = tf.nest.flatten(getattr(callbacks, "callbacks", callbacks))
    return next((one for one in given if hasattr(one, MARK)), None)


def saving_list(base: Any, fit: Fit) -> Any:
    """A list of callbacks for `fit`, of Keras's class `base`: it calls its callbacks, and saves after all of them. Callbacks see no epoch
    and no step that was trained before the restart."""

    def hook(name: str) -> Any:
        @patches.guarded(SAVES)
        def called(self: Any, *args: Any, **kwargs: Any) -> None:
            if (name == "on_epoch_begin" and not fit.begin_epoch()) or (name == "on_epoch_end" and not fit.end_epoch()):
                return
            if name in ("on_train_batch_begin", "on_train_batch_end"):
                step = (fit.begin_step if name == "on_train_batch_begin" else fit.end_step)(args[0])
                if step is None:
                    return
                args = (step, *args[1:])
            session = fit.session
            if name == "on_train_begin":
                session.prepare()
            patches.theirs(getattr(fit.callbacks, name), *args, **kwargs)
            if name == "on_train_begin":
                session.begin()
            elif session.is_on and hasattr(session, name):
                getattr(session, name)(*args)
            if name == "on_train_end":
                session.end()

        return called

    return type("SavingCallbacks", (base,), {name: hook(name) for name in dir(base) if name.startswith("on_")})()


class FitSession:
    """The saves of one `fit`. Its methods have the names of Keras's hooks, after which they run."""

    def __init__(self, fit: Fit) -> None:
        strategy, asked = fit.model.distribute_strategy, fit.asked
        self.is_on = True
        self._fit, self._model, self._callbacks = fit, fit.model, fit.callbacks
        self._every = asked.every or context().settings.checkpoints.every
        series = Series(place_of(asked.dir, asked.keep, strategy), f"fit-{fit.number}", strategy)
        self._session = TrainingSession(series, self._every, self._variables, lambda: self._document(is_over=False))
        self._first: int | None = None
        self._epoch = self._batch = 0
        self._before = 0
        """The steps before this epoch."""
        self._saved = 0
        """The step of the last save in an epoch."""
        self._found: restoring.FoundSave | None = None
        self._names: list[str] = []
        """Of the variables that existed before the first step."""
        self._begun: list[dict[str, str]] = []
        """What the callbacks had when this program began to train."""
        self._logs: list[bytes] = []
        self._is_stopped = False
        self._is_first_step = True
        """No step was trained since this program began."""
        self._late: dict[str, Any] = {}
        """The optimizers of the model, besides its own, that had no variables before the first step, by their attributes."""

    @property
    def steps(self) -> int:
        return self._before + self._batch

    def end(self) -> None:
        """The fit is over, also if it was not saved."""
        self.is_on = False
        self._session.end()

    # --- what is saved -------------------------------------------------------------------------

    def _variables(self, wanted: Any = ()) -> list[variables.NamedVariable]:
        others = {f"model.{name}": one for name, one in vars(self._model).items() if hasattr(one, "apply_gradients")}
        others = {name: one for name, one in others.items() if one is not self._model.optimizer}
        named = variables.collect({"model": self._model, "optimizer": self._model.optimizer, **others, **self._fit.more_variables()})
        return [*named, *random_state.generators(self._session.series.strategy, wanted)]

    def _unbuilt(self) -> dict[str, Any]:
        found = {
            name: one for name, one in vars(self._model).items() if hasattr(one, "apply_gradients") and not getattr(one, "built", True)
        }
        return {name: one for name, one in found.items() if one is not self._model.optimizer}

    def _trained(self) -> dict[str, list[str]]:
        """The variables that each of the late optimizers trains, by their names in a save: a restart builds the optimizer for these."""
        names = {id(each.variable): each.name for each in self._variables()} if self._late else {}
        built = {name: one for name, one in self._late.items() if one.built}
        return {name: [names.get(id(_raw(each)), "") for each in one._trainable_variables] for name, one in built.items()}

    def _build_late(self, trained: dict[str, list[str]]) -> None:
        """Give the late optimizers their variables, as a save says. What is not as in the save, the comparison of variables names."""
        names = {id(each.variable): each.name for each in self._variables()}
        there = {names.get(id(_raw(each)), ""): each for each in self._model.variables}
        with self._model.distribute_strategy.scope():
            for name, wanted in trained.items():
                if name in self._late and not self._late[name].built and all(each in there for each in wanted):
                    self._late[name].build([there[each] for each in wanted])

    def _write(self, kind: str) -> None:
        if self._can_restore(self._variables()):
            document, arrays = self._document(is_over=kind in ("epoch", "final") or self._is_stopped)
            self._saved = self.steps
            self._session.write(self.steps, kind, document, arrays)

    def _can_restore(self, named: list[variables.NamedVariable]) -> bool:
        """True if a restart could set all variables before its first step. If not, this fit is not saved."""
        known = ("keras.random", "tf.random", *(f"model.{name}/" for name in self._late))
        made = [each.name for each in named if each.name not in self._names and not each.name.startswith(known)]
        made += [f"what model.{name} trains" for name, trained in self._trained().items() if "" in trained]
        if made:
            self._turn_off(
                f"{few(made)} did not exist before the first step, so a restart could not restore {'it' if len(made) == 1 else 'them'}: "
                "build the model and its optimizers before fit"
            )
        return not made

    def _document(self, *, is_over: bool) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what a manifest says of the place of the training, and the arrays of the callbacks. `is_over`: the epoch is."""
        told, arrays = callback_state.save(self._callbacks.callbacks, self._begun)
        document = {
            "epoch": self._epoch,
            "step_in_epoch": 0 if is_over else self._batch,
            "input": {"first_epoch": self._first, "epoch": self._epoch, "batch": self._batch, **self._facts()},
            "fit": {"epochs": self._callbacks.params.get("epochs"), "is_stopped": self._is_stopped, "callbacks": told},
            "validations": self._fit.count_validations(),
            "optimizers": self._trained(),
        }
        return document, arrays

    def _turn_off(self, why: str) -> None:
        self.is_on = False
        self._session.give_up()
        print_once(f"checkpoints: this fit is not saved: {why}")

    def _facts(self) -> dict[str, Any]:
        data = self._fit.data()
        found = {**input_check.facts(data.dataset), "steps_per_execution": data.steps_per_execution}
        return {**found, "batch_sizes": [data.batch_size]} if data.kind == "arrays" else found

    # --- the hooks -----------------------------------------------------------------------------

    def prepare(self) -> None:
        """Keras is about to begin the training."""
        self._logs = callback_state.logs(self._callbacks.callbacks)

    def begin(self) -> None:
        import tensorflow as tf

        if isinstance(self._session.series.strategy, tf.distribute.ParameterServerStrategy):
            self._turn_off("under ParameterServerStrategy a training cannot continue exactly, because steps may run twice")
            return
        self._fit.build()
        self._late = self._unbuilt()
        if no_list := [name for name, one in self._late.items() if not hasattr(one, "_trainable_variables")]:
            self._turn_off(f"the optimizer {few(no_list)} has no variables before the first step; call its build(variables) before fit")
            return
        self._check_input()
        random_state.watch()
        named = self._variables()
        self._names = [each.name for each in named]
        self._begun = callback_state.begin(self._callbacks.callbacks)
        self._found = self._session.find()
        if self._found is not None:
            self._continue(self._found)
        self._session.begin(self.steps)

    def _check_input(self) -> None:
        data = self._fit.data()
        if data.kind == "dataset":
            input_check.tell(data.dataset, "fit")
        elif data.kind != "arrays":
            print_once(
                "checkpoints: a generator or a PyDataset of fit begins again after a restart, and must give the same batches. "
                "more: orch help resume"
            )

    def _continue(self, found: restoring.FoundSave) -> None:
        document, model = found.document, self._model
        self._build_late(document.get("optimizers", {}))
        self._session.restore(found)
        arrays = {name: variables.array(one) for name, one in found.tensors.items() if name.startswith(f"{callback_state.ARRAYS}/")}
        callback_state.restore(self._callbacks.callbacks, document["fit"]["callbacks"], arrays, self._logs)
        at = document["input"]
        self._first, self._epoch, self._batch = at["first_epoch"], at["epoch"], at["batch"]
        self._before = document["step"] - self._batch
        self._saved = document["step"]
        self._is_stopped = document["fit"]["is_stopped"]
        self._fit.leave_out_validations(document.get("validations", 0))
        epochs, epoch = self._callbacks.params.get("epochs") or 0, self._epoch
        if self._is_stopped:
            model.stop_training, epoch = True, max(epoch, epochs)
        self._fit.begin_with(epoch, self._batch, self._first or 0)
        input_check.tell_of_other(at, self._facts())
        is_over = epoch >= epochs
        place = f"after step {self._batch} of it" if self._batch else "from its beginning"
        self._session.tell_of_restart(found, "; this training is over" if is_over else f" (epoch {self._epoch + 1}, {place})")

    def on_epoch_begin(self, epoch: int, *_: Any) -> None:
        found, self._found = self._found, None
        if found is not None and self._batch:  # Keras has reset the metrics
            variables.assign(self._variables(found.tensors), found.tensors)
            return
        if self._first is None:
            self._first = epoch
        self._before, self._epoch, self._batch = self.steps, epoch, 0

    def on_train_batch_end(self, batch: int, *_: Any) -> None:
        before, self._batch = self.steps, int(batch) + 1
        self._session.reach(self.steps)
        if self._is_first_step:
            self._is_first_step = False
            if not self._can_restore(self._variables()):
                return
        is_last = self._batch >= (self._callbacks.params.get("steps") or float("inf"))  # the end of the epoch saves
        self._session.after_step(before, self.steps, lambda: self._write(""), is_saved_soon=is_last)

    def on_epoch_end(self, epoch: int, *_: Any) -> None:
        is_due = not self._every or self.steps // self._every > self._saved // self._every
        self._is_stopped = bool(self._model.stop_training)
        self._before, self._epoch, self._batch = self.steps, epoch + 1, 0
        if is_due:
            self._write("epoch")

    def on_train_end(self, *_: Any) -> None:
        if self._first is None:  # a fit without an epoch
            self._first = self._epoch
        if self._session.series.is_over(self.steps):  # restored, and nothing was trained since
            return
        self._write("final")
        self._session.series.wait()


def _raw(variable: Any) -> Any:
    return getattr(variable, "_value", variable)
