"""The sections `verify` and `scale`: runs of a few steps that `orch verify` and `orch scale` compare and measure."""

from __future__ import annotations

from ..values.fast_dataclass import dataclass
from .declare import setting


@dataclass(frozen=True, slots=True)
class VerifySettings:
    """Tells how much of a training is compared with one process. `orch verify` sets all but `before`."""

    SHORTHAND = "steps"

    steps: int = setting(
        0,
        "Train so many steps, write into verified.json of each task what they read and computed, and end before the program saves.",
        example="5",
        words="0: the whole training",
        most=1000,
        is_own=True,
    )
    before: int = setting(
        0,
        "Compare this many first steps with one process before `orch up` begins the run, and end with exit code 1 if they differ.",
        example="5",
        words="0: no comparison",
        most=1000,
    )
    word: str = setting("verify", "The word from which random numbers without a seed come.", is_own=True)
    batch_of: int = setting(
        0,
        "The number of workers that one process sees where it computes the size of a batch.",
        words="as many as there are",
        is_own=True,
    )


@dataclass(frozen=True, slots=True)
class ScaleSettings:
    """`orch scale` sets this."""

    SHORTHAND = "measure"

    measure: bool = setting(
        False, "Measure where the time of each step goes, save nothing, and let `fit` go on until orch ends it.", is_own=True
    )
