"""The section `keras`: which Keras the tasks use, and what orch changes in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from ..values.fast_dataclass import dataclass
from .declare import setting


@dataclass(frozen=True, slots=True)
class KerasSettings:
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
        "the number of replicas, also where Keras trains without orch: under MirroredStrategy, and in training loops of your own.",
        example="true",
        flag="--keras-exact",
    )
    report: bool = setting(True, "Let Keras's fit report its epoch, steps per second, losses and metrics. orch ps shows the report.")


LEGACY = "TF_USE_LEGACY_KERAS"
"""The environment variable that makes `tf.keras` Keras 2 (tensorflow/python/util/lazy_loader.py, `_KerasLazyLoader`)."""


NEWEST_KERAS_2 = "2.21"
"""The newest release of tf-keras that orch knows."""


def is_legacy(env: Mapping[str, str]) -> bool:
    """True if `tf.keras` is Keras 2 in a task with this environment."""
    return env.get(LEGACY, "").lower() in ("1", "true")


def install_keras_2(python: str, tensorflow: str) -> str:
    """Return how Keras 2 is installed for this version of TensorFlow: the command, or what to do where orch knows no release that fits.

    tf-keras depends on the package ``tensorflow``, which pip would install over ``tensorflow-cpu`` (seen with version 2.21 of both).
    """
    minor = minor_release(tensorflow)
    if minor and [int(word) for word in minor.split(".")] > [int(word) for word in NEWEST_KERAS_2.split(".")]:
        how = f"choose a Python with TensorFlow {NEWEST_KERAS_2} and tf-keras {NEWEST_KERAS_2} (--python)"
        return f"{how}, because orch knows no tf-keras for TensorFlow {minor}"
    version = f"{minor}.0" if minor else "MAJOR.MINOR.0"  # for the user to replace by TensorFlow's version
    return f"{python or 'python'} -m pip install --no-deps 'tf-keras~={version}'"


def minor_release(version: str) -> str:
    """``2.21`` of ``2.21.0rc1``; empty: unknown. Each release of tf-keras is for the release of TensorFlow with the same number."""
    words = version.split(".")[:2]
    return ".".join(words) if len(words) == 2 and all(word.isdigit() for word in words) else ""
