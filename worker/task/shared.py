"""Objects of which a process has one. A task imports orch's modules twice, for orch and for the program (`worker`)."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    T = TypeVar("T")

_SHARED = "_orch_shared"


def shared(name: str, make: Callable[[], T]) -> T:
    place = vars(sys.modules.setdefault(_SHARED, type(sys)(_SHARED)))
    if name not in place:
        place[name] = make()
    found: T = place[name]
    return found
