"""Changes Keras for programs of a cluster: `fit` of Keras 3 works with several workers, and `fit` reports its progress.

The changes are made in Keras's own functions once the program has imported Keras. So scripts need no change, and a program without Keras
pays nothing. docs/keras.md says which functions work under which strategy.
"""

from __future__ import annotations

import os
import sys

from .. import import_hooks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def apply_soon(settings: dict[str, object], log_dir: str) -> None:
    """Apply settings, the JSON of a `KerasSettings`, as soon as Keras is imported; at once in a fork of a template with Keras."""
    is_reported = bool(settings.get("report", True))
    is_exact = bool(settings.get("exact", False))
    if settings.get("mode") != "off":
        import_hooks.after("keras", lambda keras: _change_keras_3(is_reported, is_exact), "fit")
        import_hooks.after("tf_keras", lambda keras: _change_keras_2(is_reported), "fit")


def prepare_forks() -> None:
    """In a template that has imported Keras: import what each forked task would otherwise import."""
    if "keras" in sys.modules or "tf_keras" in sys.modules:
        from . import callbacks, contract, feed, fit, lines_of_keras_2, old_releases, optimizer, parts, saving, steps  # noqa: F401

        import_hooks.compile_stand_in()


def _change_keras_2(is_reported: bool) -> None:
    from tf_keras.src import callbacks as keras_callbacks
    from tf_keras.src.engine import data_adapter, training
    from tf_keras.src.utils import losses_utils

    from . import callbacks, lines_of_keras_2

    if is_reported:
        callbacks.mend(keras_callbacks, training.Model, is_in_cluster=False, is_reported=True)
    import_hooks.attempt(
        lambda: lines_of_keras_2.name_differences(training.Model, data_adapter, losses_utils), "lines about numbers", "tf_keras"
    )


def _change_keras_3(is_reported: bool, is_exact: bool) -> None:
    """Change what this release of Keras has. A change that fails leaves the other changes."""
    from ...tensorflow_facts import keras_3
    from . import fit, old_releases, optimizer

    trainer = sys.modules.get(fit.TRAINER)
    if trainer is None:  # Keras 2, or another backend than TensorFlow
        return
    version = str(getattr(sys.modules["keras"], "__version__", ""))
    in_cluster = "TF_CONFIG" in os.environ
    has_workers = in_cluster and '"ps"' not in os.environ["TF_CONFIG"]
    changes: list[tuple[str, Callable[[], None]]] = [
        ("the data of fit", _change_trainer),
        ("the warning about old releases", lambda: old_releases.warn(version, trainer, has_workers=has_workers)),
        ("callbacks", lambda: _change_callbacks(trainer, in_cluster, is_reported)),
        ("numbers of a strategy's variables", _let_variables_be_numbers),
    ]
    if in_cluster:
        changes.append(("saving", _change_saving))
    if keras_3.release(version) >= keras_3.FIRST_KNOWN:  # older ones have other functions, and stay as they are
        changes.append(("the optimizer", lambda: optimizer.mend(trainer, is_exact=is_exact)))
        if in_cluster:
            changes.append(("fit", lambda: _change_steps(trainer)))
        else:
            changes.append(("the line about parts", _name_parts))
    elif is_exact:
        import_hooks.print_once(optimizer.UNKNOWN)
    for what, change in changes:
        import_hooks.attempt(change, what, "keras")


def _change_trainer() -> None:
    """Change what all others call: so they are changed after it."""
    from keras import Model

    from . import contract

    contract.mend(Model)


def _name_parts() -> None:
    from keras import Model

    from . import fit

    fit.name_parts(Model)


def _change_callbacks(trainer: Any, is_in_cluster: bool, is_reported: bool) -> None:
    from keras import Model
    from keras.src import callbacks as keras_callbacks

    from . import callbacks

    callbacks.mend(keras_callbacks, Model, is_in_cluster=is_in_cluster, is_reported=is_reported)


def _change_steps(trainer: Any) -> None:
    from keras.src.backend import tensorflow as backend
    from keras.src.metrics import reduction_metrics
    from keras.src.optimizers import base_optimizer, loss_scale_optimizer
    from tensorflow.python.distribute import input_lib

    from . import parts

    parts.mend(input_lib, backend, reduction_metrics.Mean, base_optimizer.BaseOptimizer, loss_scale_optimizer.LossScaleOptimizer)


def _change_saving() -> None:
    from keras.src.saving import saving_api
    from keras.src.utils import file_utils

    from . import saving

    saving.mend(saving_api, file_utils)


def _let_variables_be_numbers() -> None:
    """Make `int(optimizer.iterations)` and `float(optimizer.learning_rate)` work under a strategy, as they do without one."""
    from tensorflow.python.distribute import values

    for name, kind in (("__int__", int), ("__float__", float)):
        if not hasattr(values.DistributedVariable, name):
            setattr(values.DistributedVariable, name, lambda self, kind=kind: kind(self.numpy()))
