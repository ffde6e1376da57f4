"""The section `keras`: which Keras the tasks use, and what orch changes in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from ..values.fast_dataclass import dataclass
from .declare import setting


@dataclass(frozen=True, slots=True)
class KerasSettings:
    """Keras in a task."""

    SHORTHAND = "mode"

    mode: Literal["auto", "v3", "legacy", "off"] = setting(
        "auto",
        "Which Keras the tasks use. auto: TensorFlow's choice, with orch's corrections for several workers; v3: Keras 3; "
        "legacy: Keras 2, the package tf-keras; off: TensorFlow's choice, and orch changes nothing in Keras.",
        example="legacy",
        flag="--keras",
        hint="write legacy for Keras 2, v3 for Keras 3, auto or off",
    )
    exact: bool = setting(
        False,
        "Add the gradients of all replicas before they are clipped and checked for an overflow, and divide a loss that is one number by "
        "the number of replicas, also where Keras trains by hand: under MirroredStrategy, and in training loops of your own.",
        example="true",
        flag="--keras-exact",
    )
    report: bool = setting(True, "Let Keras's fit report its epoch, steps per second, losses and metrics. orch ps shows the report.")


LEGACY = "TF_USE_LEGACY_KERAS"
"""The environment variable that makes `tf.keras` Keras 2 (tensorflow/python/util/lazy_loader.py, `_KerasLazyLoader`)."""


def is_legacy(env: Mapping[str, str]) -> bool:
    """Whether `tf.keras` is Keras 2 in a task with this environment."""
    return env.get(LEGACY, "").lower() in ("1", "true")


def install_keras_2(python: str, tensorflow: str) -> str:
    """The command that installs Keras 2 beside this version of TensorFlow.

    tf-keras depends on the package ``tensorflow``, which pip would install over ``tensorflow-cpu`` (seen with version 2.21 of both).
    """
    minor = ".".join(tensorflow.split(".")[:2])
    version = f"{minor}.0" if minor.replace(".", "").isdigit() else "MAJOR.MINOR.0"  # for the user to replace by TensorFlow's version
    return f"{python or 'python'} -m pip install --no-deps 'tf-keras~={version}'"
