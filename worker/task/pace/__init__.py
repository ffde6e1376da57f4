"""How fast a task makes its steps, and what it waits for: `meetings` counts in TensorFlow, `step_times` folds the counts into windows."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    T = TypeVar("T")

_SHARED = "_orch_pace"


def shared(name: str, make: Callable[[], T]) -> T:
    """The one object of this name in the process. A task imports these modules twice, for orch and for the program (`worker`)."""
    place = vars(sys.modules.setdefault(_SHARED, type(sys)(_SHARED)))
    if name not in place:
        place[name] = make()
    found: T = place[name]
    return found
