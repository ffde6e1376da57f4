"""The saves of one `fit`: when, what, and how it begins again."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from ...checkpoint_files import saves
from ...values.words import few
from .. import patches, save_orders
from ..context import context
from ..import_hooks import print_once
from ..snapshots.snapshots import TrainingSnapshots
from . import callback_state, input_check, random_state, restoring, variables
from .saver import place_of
from .series import Series

MARK = "_orch_checkpoint"
"""An attribute of the callback that asks for saves."""
_SESSION = "_orch_session"
DATASETS = "TFDatasetAdapter"
"""Keras 3's class of adapters for a dataset of TensorFlow."""


@dataclasses.dataclass(frozen=True)
class Data:
    """What a `fit` trains on."""

    dataset: Any
    """As TensorFlow has divided it."""
    kind: str
    """``dataset`` or ``arrays``; empty: what orch does not know, such as a generator."""
    batch_size: int | None
    """Of arrays."""
    steps_per_execution: int


class Fit:
    """One call of Keras 3's `fit`."""

    def __init__(self, number: int, model: Any) -> None:
        self.number, self.model = number, model
        self.is_over = False
        self._first = getattr(model, "_initial_epoch", 0)
        self.iterator: Any = None
        """Keras's iterator over the epochs of the training."""
        self.left_out = (0, 0)
        """The epochs, and the steps in the next one, that were trained before the restart."""
        self.is_begun_within = False
        """The epoch that runs has begun before the restart, so Keras may see none of its steps."""
        self.is_about_to_validate = self.has_validated = False
        """Keras makes its iterator over the validation data next; it has made this iterator."""
        self.validations = 0
        """How often Keras has begun validation data that shuffle, also before the restart."""

    def data(self) -> Data:
        iterator = self.iterator
        kind = {DATASETS: "dataset", "ArrayDataAdapter": "arrays"}.get(type(iterator.data_adapter).__name__, "")
        size = iterator.data_adapter.batch_size if kind == "arrays" else None
        return Data(iterator._distributed_dataset, kind, size, iterator.steps_per_execution)

    def reads_whole_epochs(self) -> bool:
        """See `input_check.is_read_whole`. Keras's own datasets of arrays draw each order when an epoch begins."""
        data = self.data()
        return data.kind == "dataset" and input_check.is_read_whole(data.dataset)

    def build(self) -> None:
        """Make the variables of metrics and optimizer, from the shapes of the data, as Keras does under a strategy (`_symbolic_build`)."""
        model = self.model
        if model._distribute_strategy is None:
            with contextlib.suppress(Exception):  # a model of the program's own; `_unbuilt` says what is missing
                model._symbolic_build(data_batch=self.iterator._distributed_dataset.element_spec)
        if not getattr(model.optimizer, "built", True) and model.trainable_variables:
            with model.distribute_strategy.scope():
                model.optimizer.build(model.trainable_variables)

    def more_variables(self) -> dict[str, Any]:
        """Those of the model that no layer and no optimizer has, by name."""
        return {}

    def begin_with(self, epoch: int, batch: int, first: int) -> None:
        """Begin in this epoch, after so many batches. `first`: the epoch with which the training began."""
        self.model._initial_epoch, self.left_out = epoch, (epoch - first, batch)

    def end(self) -> None:
        """The next fit of the model begins where the program says."""
        if not self.is_over:
            self.is_over, self.model._initial_epoch = True, self._first


def mend(feature: str, package: str, now: Callable[[], Fit | None]) -> None:
    """Have Keras's list of callbacks save and restore, after all of them. `package`: ``tf_keras.`` or nothing; `now`: the fit that runs."""

    def begin(real: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        real(self, *args, **kwargs)
        fit = now()
        asked = next((one for one in self.callbacks if hasattr(one, MARK)), None)
        if (
            fit is None
            or fit.is_over
            or fit.iterator is None
            or getattr(self, "model", None) is not fit.model
            or (asked is None and not context().settings.checkpoints.fit)
        ):
            return
        session = FitSession(fit, self, asked or SimpleNamespace(every=None, keep=None, dir=None))
        setattr(self, _SESSION, session)
        session.begin()

    patches.replace(feature, f"{package}CallbackList.on_train_begin", begin)
    for name in ("on_epoch_begin", "on_train_batch_end", "on_epoch_end", "on_train_end"):

        def hook(real: Any, self: Any, *args: Any, name: str = name, **kwargs: Any) -> None:
            real(self, *args, **kwargs)
            session = getattr(self, _SESSION, None)
            if session is not None and session.is_on:
                getattr(session, name)(*args)
            if session is not None and name == "on_train_end":
                session.end()

        patches.replace(feature, f"{package}CallbackList.{name}", hook)


class FitSession:
    """The saves of one `fit`. Its methods have the names of Keras's hooks, after which they run."""

    def __init__(self, fit: Fit, callbacks: Any, asked: Any) -> None:
        given = context().settings.checkpoints
        self.is_on = True
        self._fit, self._model, self._callbacks = fit, fit.model, callbacks
        self._every = asked.every or given.every
        self._series = Series(
            place_of(asked.dir, asked.keep, fit.model.distribute_strategy), f"fit-{fit.number}", fit.model.distribute_strategy
        )
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
        self._is_stopped = False
        self._is_first_step = True
        """No step was trained since this program began."""
        self._snapshots: TrainingSnapshots | None = None
        self._is_announced = False
        """The controller was told that this fit can save on order."""

    @property
    def steps(self) -> int:
        return self._before + self._batch

    def end(self) -> None:
        """The fit is over, also if it was not saved."""
        self.is_on = False
        self._series.wait()
        self._end_snapshots()
        self._fit.end()

    # --- what is saved -------------------------------------------------------------------------

    def _variables(self, wanted: Any = ()) -> list[variables.NamedVariable]:
        others = {f"model.{name}": one for name, one in vars(self._model).items() if hasattr(one, "apply_gradients")}
        others = {name: one for name, one in others.items() if one is not self._model.optimizer}
        named = variables.collect({"model": self._model, "optimizer": self._model.optimizer, **others, **self._fit.more_variables()})
        return [*named, *random_state.generators(self._series.strategy, wanted)]

    def _unbuilt(self) -> list[str]:
        found = [name for name, one in vars(self._model).items() if hasattr(one, "apply_gradients") and not getattr(one, "built", True)]
        return [name.lstrip("_") for name in found]

    def _write(self, kind: str) -> None:
        named = self._variables()
        if not self._can_restore(named):
            return
        document, arrays = self._document(is_over=kind in ("epoch", "final") or self._is_stopped)
        self._saved = self.steps
        self._series.write(self.steps, named, document, kind=kind, arrays=arrays)
        if self._snapshots is not None:
            self._snapshots.saved()

    def _can_restore(self, named: list[variables.NamedVariable]) -> bool:
        """Whether a restart could set all variables before its first step. If not, this fit is not saved."""
        made = [each.name for each in named if each.name not in self._names and not each.name.startswith(("keras.random", "tf.random"))]
        if made:
            self._turn_off(
                f"{few(made)} did not exist before the first step, so a restart could not restore {'it' if len(made) == 1 else 'them'}: "
                "build the model and its optimizers before fit"
            )
        return not made

    def _document(self, *, is_over: bool) -> tuple[dict[str, Any], dict[str, Any]]:
        """What a manifest says of the place of the training, and the arrays of the callbacks. `is_over`: the epoch is."""
        told, arrays = callback_state.save(self._callbacks.callbacks, self._begun)
        document = {
            "epoch": self._epoch,
            "step_in_epoch": 0 if is_over else self._batch,
            "input": {"first_epoch": self._first, "epoch": self._epoch, "batch": self._batch, **self._facts()},
            "fit": {"epochs": self._callbacks.params.get("epochs"), "is_stopped": self._is_stopped, "callbacks": told},
            "validations": self._fit.validations,
        }
        return document, arrays

    def _end_snapshots(self) -> None:
        if self._snapshots is not None:
            self._snapshots.end()

    def _turn_off(self, why: str) -> None:
        self.is_on = False
        self._end_snapshots()
        if self._is_announced:
            self._is_announced = False
            save_orders.end()
        print_once(f"checkpoints: this fit is not saved: {why}")

    def _facts(self) -> dict[str, Any]:
        data = self._fit.data()
        found = {**input_check.facts(data.dataset), "steps_per_execution": data.steps_per_execution}
        return {**found, "batch_sizes": [data.batch_size]} if data.kind == "arrays" else found

    # --- the hooks -----------------------------------------------------------------------------

    def begin(self) -> None:
        import tensorflow as tf

        if isinstance(self._series.strategy, tf.distribute.ParameterServerStrategy):
            self._turn_off("under ParameterServerStrategy a training cannot continue exactly, because steps may run twice")
            return
        self._fit.build()
        if unbuilt := self._unbuilt():
            self._turn_off(f"the optimizer {few(unbuilt)} has no variables before the first step; call its build(variables) before fit")
            return
        self._check_input()
        random_state.watch()
        named = self._variables()
        self._names = [each.name for each in named]
        self._begun = callback_state.begin(self._callbacks.callbacks)
        self._found = self._series.choose()
        if self._found is not None:
            self._continue(self._found)
        elif self._series.is_expected:
            self._series.tell(f"{self._series.name} begins at step 0, for there is no whole save; {restoring.lost(self._series, 0)}")
        self._snapshots = TrainingSnapshots(self._series, self._variables, self.steps)
        self._is_announced = True
        save_orders.begin(self.steps)

    def _check_input(self) -> None:
        data = self._fit.data()
        if data.kind == "dataset":
            input_check.tell(data.dataset, "fit")
        elif data.kind != "arrays":
            print_once(
                "checkpoints: fit reads a generator or a PyDataset, which a restart begins anew, without the batches that were trained "
                "on; the rest is right only if it gives the same batches in each run"
            )

    def _continue(self, found: restoring.FoundSave) -> None:
        document, model = found.document, self._model
        self._series.restore(found, self._variables(found.tensors))
        arrays = {name: variables.array(one) for name, one in found.tensors.items() if name.startswith(f"{callback_state.ARRAYS}/")}
        callback_state.restore(self._callbacks.callbacks, document["fit"]["callbacks"], arrays)
        at = document["input"]
        self._first, self._epoch, self._batch = at["first_epoch"], at["epoch"], at["batch"]
        self._before = document["step"] - self._batch
        self._saved = document["step"]
        self._is_stopped = document["fit"]["is_stopped"]
        self._fit.validations = document.get("validations", 0)
        epochs, epoch = self._callbacks.params.get("epochs") or 0, self._epoch
        if self._is_stopped:
            model.stop_training, epoch = True, max(epoch, epochs)
        self._fit.begin_with(epoch, self._batch, self._first or 0)
        input_check.tell_of_other(at, self._facts())
        is_over = epoch >= epochs
        place = f"after step {self._batch} of it" if self._batch else "from its beginning"
        where = "; this training is over" if is_over else f" (epoch {self._epoch + 1}, {place})"
        self._series.tell(
            f"{self._series.name} continues at step {self.steps}{where}, saved {saves.age(document):.0f} s ago by "
            f"{restoring.attempt_of(document)}; {restoring.lost(self._series, self.steps)}"
        )

    def on_epoch_begin(self, epoch: int, *_: Any) -> None:
        found, self._found = self._found, None
        self._fit.is_begun_within = found is not None and self._batch > 0
        if found is not None and self._batch:  # Keras has reset the metrics
            variables.assign(self._variables(found.tensors), found.tensors)
            return
        if self._first is None:
            self._first = epoch
        self._before, self._epoch, self._batch = self.steps, epoch, 0

    def on_train_batch_end(self, batch: int, *_: Any) -> None:
        before, self._batch = self.steps, int(batch) + 1
        assert self._snapshots is not None
        self._series.reach(self.steps, is_kept=self._snapshots.reach(self.steps))
        if self._is_first_step:
            self._is_first_step = False
            if not self._can_restore(self._variables()):
                return
        is_save_due = self._snapshots.after_step(self.steps, lambda: self._document(is_over=False))
        is_last = self._batch >= (self._callbacks.params.get("steps") or float("inf"))  # the end of the epoch saves
        is_ordered = save_orders.is_due(before, self.steps, self._series)
        is_save_due = is_save_due or bool(self._every and self.steps // self._every > before // self._every)
        if is_ordered or (is_save_due and not is_last):
            self._write("")
        if is_ordered:
            save_orders.leave(self._series, self.steps)

    def on_epoch_end(self, epoch: int, *_: Any) -> None:
        is_due = not self._every or self.steps // self._every > self._saved // self._every
        self._is_stopped = bool(self._model.stop_training)
        self._before, self._epoch, self._batch = self.steps, epoch + 1, 0
        if is_due:
            self._write("epoch")

    def on_train_end(self, *_: Any) -> None:
        if self._first is None:  # a fit without an epoch
            self._first = self._epoch
        if self._series.is_over(self.steps):  # restored, and nothing was trained since
            return
        self._write("final")
        self._series.wait()
