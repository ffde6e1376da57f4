"""Lines about releases of Keras 3 that train or count wrongly on several replicas, before they do so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...tensorflow_facts import keras_3
from ...tensorflow_facts.releases import INSTALL_KERAS, KNOWN_KERAS
from ..import_hooks import print_once, replace

_REMEDY = f"{KNOWN_KERAS} are right: {INSTALL_KERAS}"


def warn(version: str, trainer: Any, *, has_workers: bool) -> None:
    """Say what this release does wrongly: now if several workers train one model, otherwise once a model is trained on several replicas."""
    training, fit = keras_3.wrong_training(version), keras_3.wrong_fit(version)
    if training and has_workers:
        print_once(f"{training}. {_REMEDY}")
    elif training:
        from keras.src.backend.tensorflow.optimizer import TFOptimizer

        _say_at(TFOptimizer, "_distributed_tf_update_step", training, lambda optimizer, strategy: strategy)
    elif fit and not has_workers:  # with several workers, fit.py has a line
        _say_at(trainer.TensorFlowTrainer, "fit", fit, lambda model, *_: model.distribute_strategy)


def _say_at(owner: Any, name: str, wrong: str, strategy_of: Callable[..., Any]) -> None:
    """Print a line once this function is called under a strategy with several replicas."""

    def say(real: Any, *args: Any, **kwargs: Any) -> Any:
        used = strategy_of(*args[:2])
        if used is not None and used.num_replicas_in_sync > 1:
            print_once(f"{wrong}. {_REMEDY}")
        return real(*args, **kwargs)

    replace(owner, name, say)
