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
    from types import ModuleType
    from typing import Any


def apply_soon(settings: dict[str, Any], log_dir: str) -> None:
    """Apply settings, the JSON of a `KerasSettings`, as soon as Keras is imported; at once in a fork of a template with Keras."""
    reports = settings.get("report", True)
    if settings.get("mode") == "off":
        return
    import_hooks.after("keras", lambda keras: _try(keras, lambda: _apply(reports=reports)))
    if reports:
        import_hooks.after("tf_keras", lambda keras: _try(keras, _report_keras_2))


def prepare_forks() -> None:
    """In a template that has imported Keras: do the work that each forked task would otherwise repeat."""
    saving_api = sys.modules.get("keras.src.saving.saving_api")
    if "keras.src.backend.tensorflow.trainer" in sys.modules and saving_api is not None:
        from ..input import input_counter as input_counter
        from . import callbacks as callbacks
        from . import fit as fit
        from . import saving

        saving.find_holders(saving_api)


def _try(keras: ModuleType, change: Callable[[], None]) -> None:
    try:
        change()
    except Exception as error:  # another version of Keras must still work as by hand
        version = getattr(keras, "__version__", "of unknown version")
        print(f"orch: Keras {version} is left as it is: {type(error).__name__}: {error}", file=sys.stderr)


def _report_keras_2() -> None:
    from tf_keras.src import callbacks as keras_callbacks
    from tf_keras.src.engine import training

    from ..input import input_counter
    from . import callbacks

    callbacks.report_keras_2(keras_callbacks, training)
    input_counter.follow(training.Model)


def _apply(*, reports: bool) -> None:
    trainer = sys.modules.get("keras.src.backend.tensorflow.trainer")
    if trainer is None:  # Keras 2, or another backend than TensorFlow
        return
    from keras.src import callbacks as keras_callbacks
    from keras.src.saving import saving_api
    from keras.src.utils import file_utils

    from ..input import input_counter
    from . import callbacks, fit, saving

    is_wanted = None
    if "TF_CONFIG" in os.environ:
        is_wanted = fit.mend(trainer)
        saving.mend(saving_api, file_utils, is_wanted)
    callbacks.mend(keras_callbacks, trainer, is_wanted, reports=reports)
    if reports:
        input_counter.follow(trainer.TensorFlowTrainer)
    _let_variables_be_numbers()


def _let_variables_be_numbers() -> None:
    """Make `int(optimizer.iterations)` and `float(optimizer.learning_rate)` work under a strategy, as they do without one."""
    from tensorflow.python.distribute import values

    for name, kind in (("__int__", int), ("__float__", float)):
        if not hasattr(values.DistributedVariable, name):
            setattr(values.DistributedVariable, name, lambda self, kind=kind: kind(self.numpy()))
