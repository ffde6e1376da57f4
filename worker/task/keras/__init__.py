"""Changes Keras for programs of a cluster: `fit` of Keras 3 works with several workers, and `fit` reports its progress.

The changes are made in Keras's own functions once the program has imported Keras. So scripts need no change, and a program without Keras
pays nothing. docs/keras.md says which functions work under which strategy.
"""

from __future__ import annotations

import os
import sys

from .. import import_hooks


def apply_soon(settings: dict[str, object], log_dir: str) -> None:
    """Apply settings, the JSON of a `KerasSettings`, as soon as Keras is imported; at once in a fork of a template with Keras."""
    is_reported = bool(settings.get("report", True))
    if settings.get("mode") != "off":
        import_hooks.after("keras", lambda keras: _change_keras_3(is_reported), "fit")
        if is_reported:
            import_hooks.after("tf_keras", lambda keras: _report_keras_2(), "fit")


def prepare_forks() -> None:
    """In a template that has imported Keras: import what each forked task would otherwise import."""
    if "keras" in sys.modules or "tf_keras" in sys.modules:
        from . import callbacks, saving  # noqa: F401


def _report_keras_2() -> None:
    from tf_keras.src import callbacks as keras_callbacks
    from tf_keras.src.engine import training

    from . import callbacks

    callbacks.mend(keras_callbacks, training.Model, is_in_cluster=False, is_reported=True)


def _change_keras_3(is_reported: bool) -> None:
    from . import callbacks, fit, saving

    trainer = sys.modules.get(fit.TRAINER)
    if trainer is None:  # Keras 2, or another backend than TensorFlow
        return
    from keras.src import callbacks as keras_callbacks
    from keras.src.saving import saving_api
    from keras.src.utils import file_utils

    is_in_cluster = "TF_CONFIG" in os.environ
    callbacks.mend(keras_callbacks, trainer.TensorFlowTrainer, is_in_cluster=is_in_cluster, is_reported=is_reported)
    if is_in_cluster:
        fit.mend(trainer)
        saving.mend(saving_api, file_utils)
    _let_variables_be_numbers()


def _let_variables_be_numbers() -> None:
    """Make `int(optimizer.iterations)` and `float(optimizer.learning_rate)` work under a strategy, as they do without one."""
    from tensorflow.python.distribute import values

    for name, kind in (("__int__", int), ("__float__", float)):
        if not hasattr(values.DistributedVariable, name):
            setattr(values.DistributedVariable, name, lambda self, kind=kind: kind(self.numpy()))
