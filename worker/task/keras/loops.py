"""Keras's own loops `fit`, `evaluate` and `predict`, which get data of orch's own (see `feed`): they need no other change.

So orch relies on what Keras lets a program do: to give a data adapter for `x`, a `CallbackList`, and functions that run steps.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from .. import patches
from ..input import input_policy, shuffle_order
from ..observe import recorder
from ..patches.features import LOOPS, SAVES_2
from ..shared import shared
from ..strategy import strategy_builder
from . import data, evaluations, fit, predictions, steps
from .fit import is_wanted

saves_of_fit: dict[str, Callable[..., Any]] = shared("saves of fit", dict)
"""What saves add: ``begin`` gives the saves of a `fit`, or None; ``evaluates`` says whether a validation runs; ``tf_keras`` calls `fit` of
Keras 2."""


def mend() -> None:
    """Wrap the loops, once in this process: before all others that wrap `fit`, so that these see the program's own data."""
    if patches.problems(LOOPS):  # what depends on this prints a line
        return
    steps.mend()
    predictions.mend()
    patches.replace(LOOPS, "Trainer.fit", _fit)
    patches.replace(LOOPS, "Trainer.evaluate", _evaluate)
    patches.replace(LOOPS, "Trainer.predict", _predict)


def wrap_keras_2() -> None:
    """Wrap `fit` of Keras 2, as `mend` does for Keras 3. It gets no data of orch's own."""
    if not patches.problems(SAVES_2):
        patches.replace(SAVES_2, "tf_keras.Model.fit", _fit_of_keras_2)


def _fit_of_keras_2(real: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    if "tf_keras" not in saves_of_fit:
        return real(self, *args, **kwargs)
    return saves_of_fit["tf_keras"](real, self, _bound(real, self, args, kwargs))


def _fit(real: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    from keras.src.trainers.data_adapters import array_slicing
    from keras.utils import unpack_x_y_sample_weight

    strategy, given = self.distribute_strategy, _bound(real, self, args, kwargs)
    saves = saves_of_fit["begin"](self, given) if "begin" in saves_of_fit else None
    if not is_wanted(strategy):
        fit.tell_of_other_scope(strategy)
        if saves is None and not _is_named(strategy) and not recorder.is_on():
            return real(self, *args, **kwargs)
    _needs_no_build(self)
    if given["validation_split"] and given["validation_data"] is None:
        (given["x"], given["y"], given["sample_weight"]), given["validation_data"] = patches.theirs(
            array_slicing.train_validation_split,
            (given["x"], given["y"], given["sample_weight"]),
            validation_split=given["validation_split"],
        )
    more = {"class_weight": given["class_weight"], "shuffle": given["shuffle"]}
    with shuffle_order.of_training(f"fit-{saves.number}") if saves else nullcontext():
        training = _feed(strategy, given, given["steps_per_epoch"], is_trained=True, **more)
    if is_wanted(strategy):
        fit.tell_of_right_scope()
        if not given["steps_per_epoch"] and training.num_batches is None:
            data.tell_of_one_step_more(training.distributed, self.optimizer)
    validation = None
    if given["validation_data"] is not None:
        x, y, weights = patches.theirs(unpack_x_y_sample_weight, given["validation_data"])
        of_validation = {"x": x, "y": y, "sample_weight": weights, "batch_size": given["validation_batch_size"] or given["batch_size"]}
        with shuffle_order.of_training(f"fit-{saves.number} validation") if saves else nullcontext():
            validation = _feed(strategy, of_validation, given["validation_steps"], is_shown=_sees_evaluations(given["callbacks"]))
        if is_wanted(strategy) and given["epochs"] - given["initial_epoch"] > 1:
            data.tell_of_validations(validation)
        training.batches.others, validation.batches.others = (validation.batches,), (training.batches,)
    given |= {"x": training, "validation_data": validation, **dict.fromkeys(("y", "sample_weight", "class_weight"))}
    if saves is not None:
        saves.prepare(given, training, validation)
    with saves.running() if saves is not None else nullcontext():
        made = real(self, **given)
    for each in filter(None, (training, validation)):
        each.batches.catch_up()
    return made


def _evaluate(real: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    from .feed import Feed

    strategy, given = self.distribute_strategy, _bound(real, self, args, kwargs)
    if isinstance(given["x"], Feed) and "evaluates" in saves_of_fit and not saves_of_fit["evaluates"](given["x"]):
        return {}
    if is_alone := not isinstance(given["x"], Feed):
        if not _is_named(strategy):
            return real(self, *args, **kwargs)
        _needs_no_build(self)
        given["x"] = _feed(strategy, given, given["steps"], is_shown=_sees_evaluations(given["callbacks"]))
    evaluations.begin(given["x"], given["steps"], self.steps_per_execution)
    made = real(self, **{**dict.fromkeys(("y", "sample_weight")), **given})
    if is_alone:
        given["x"].batches.catch_up()
    return made


def _sees_evaluations(callbacks: Any) -> bool:
    return predictions.are_shown(callbacks, "on_test_batch_begin", "on_test_batch_end")


def _predict(real: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    strategy = self.distribute_strategy
    if not _is_named(strategy):
        return real(self, *args, **kwargs)
    given = _bound(real, self, args, kwargs)
    of_data = {**given, "x": data.in_order(strategy, given["x"])}
    given["x"] = _feed(
        strategy, of_data, given["steps"], is_read=True, is_shown=predictions.are_shown(given["callbacks"], "on_predict_batch_end")
    )
    feed = given["x"]
    made = predictions.predict(real, self, given) if is_wanted(strategy) else real(self, **given)
    feed.batches.catch_up()
    return made


def _bound(real: Any, model: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """The arguments of a call by name, with the defaults."""
    try:
        bound = inspect.signature(real).bind(model, *args, **kwargs)
    except TypeError:
        real(model, *args, **kwargs)  # raises Python's error, which names the function
        raise
    bound.apply_defaults()
    given: dict[str, Any] = dict(list(bound.arguments.items())[1:])
    more: dict[str, Any] = given.pop("kwargs", {})
    given.update(more)
    return given


def _feed(strategy: Any, given: dict[str, Any], steps: Any, is_trained: bool = False, **more: Any) -> Any:
    """The data, which are taken out of the arguments. `is_trained`: not of an evaluation or a prediction."""
    from . import feed

    taken: dict[str, Any] = {name: given.pop(name, None) for name in ("y", "sample_weight", "class_weight") if name in given}
    is_ours = is_wanted(strategy) or _begins_with_the_first(strategy)
    options: dict[str, Any] = {"batch_size": given["batch_size"], "steps_per_epoch": steps, "is_read": not is_ours, **taken, **more}
    made = feed.make(strategy, given["x"], **options)
    if not is_wanted(strategy) and strategy.num_replicas_in_sync > 1:
        data.warn_of_uneven_parts(made.distributed, made.adapter, strategy.num_replicas_in_sync, is_trained)
    elif not is_ours and _is_named(strategy):
        data.tell_of_second_order(made)
    return made


def _needs_no_build(model: Any) -> None:
    """A model without `call` (its `train_step` calls the parts of the model, as in a GAN) cannot be built, and need not be: Keras builds
    none without a strategy. Nor can one whose `train_step` gives `call` other things than the data's `x`, such as three pictures."""
    from keras import Model

    if "_symbolic_build" in vars(model) or not (is_wanted(model.distribute_strategy) or recorder.is_on()):
        return
    if type(model).call is Model.call:
        vars(model)["_symbolic_build"] = lambda *_, **__: None
    elif type(model).train_step is not Model.train_step:
        vars(model)["_symbolic_build"] = functools.partial(_build_if_possible, model, model._symbolic_build)


def _build_if_possible(model: Any, real: Any, *args: Any, **kwargs: Any) -> None:
    try:
        patches.theirs(real, *args, **kwargs)
    except Exception:
        if not all(layer.built for layer in model._flatten_layers(include_self=False)):
            raise


def _is_named(strategy: Any) -> bool:
    """True if this is not TensorFlow's default strategy, under which Keras's own data are right."""
    return not type(strategy.extended).__name__.startswith("_DefaultDistribution")


def _begins_with_the_first(strategy: Any) -> bool:
    """True if a worker that is alone begins with the first order of a shuffle, as several workers do, and a process without a strategy.

    Keras would take a batch for the model, and so begin with the second order. It does so without orch, too, under a strategy that the
    script makes, and there the script keeps its numbers. With `worker.strategy`, a script without orch has no strategy.
    """
    is_built_here = input_policy.is_elastic() or recorder.is_on() or getattr(strategy, strategy_builder.BUILT_HERE, False)
    return _is_named(strategy) and is_built_here
