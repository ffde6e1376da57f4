"""A part of the contract: which Keras the tasks use, and what orch does for it."""

from __future__ import annotations

from typing import Literal

from .declare import setting
from .records import dataclass


@dataclass(frozen=True, slots=True)
class KerasSettings:
    """What orch does about Keras in a task."""

    SHORTHAND = "mode"

    mode: Literal["auto", "v3", "legacy", "off"] = setting(
        "auto",
        "Which Keras the tasks use. auto: the one that TensorFlow takes; v3: Keras 3; legacy: Keras 2, the package tf-keras; "
        "off: as auto, and orch changes nothing in Keras.",
        example="legacy",
        flag="--keras",
        metavar="auto|v3|legacy|off",
        label="the ways to use Keras",
    )
    report: bool = setting(True, "Let Keras's fit report its epoch, steps a second, losses and metrics, which orch ps shows.")
