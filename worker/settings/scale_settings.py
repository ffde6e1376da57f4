"""The section `scale`: a run whose steps are measured, for `orch scale`."""

from __future__ import annotations

from ..values.fast_dataclass import dataclass
from .declare import setting


@dataclass(frozen=True, slots=True)
class ScaleSettings:
    """`orch scale` sets this."""

    SHORTHAND = "measure"

    measure: bool = setting(False, "Measure where the time of each step goes, save nothing, and let `fit` go on until orch ends it.")
