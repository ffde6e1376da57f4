"""Leaves orch's files out of what TensorFlow and Keras show of a stack.

Both leave out of an exception the frames of some files: `_EXCLUDED_PATHS` of their `traceback_utils`. The stacks of a graph's nodes, for
``Detected at node … defined at``, have filters for each thread; the first, `SentinelFilter` in tensorflow/python/util/tf_stack.py, leaves
out none.

The place of a warning is some frames above the function that warns, as the program is where it calls Keras. Frames of orch between the two
do not count.
"""

from __future__ import annotations

import os
import sys

from .. import failure
from . import after, put, replace
from .features import TRACEBACKS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType, ModuleType
    from typing import Any

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def hide_own() -> None:
    """Leave orch's files out, as soon as the libraries are imported."""
    after(TRACEBACKS, "tensorflow.python.util.tf_stack", _filter)
    for package in ("tensorflow.python.util", "keras.src.utils", "tf_keras.src.utils"):
        after(TRACEBACKS, f"{package}.traceback_utils", _exclude)


def _exclude(module: ModuleType) -> None:
    put(TRACEBACKS, f"{module.__name__.partition('.')[0]}.traceback", lambda paths: (*paths, _ROOT + os.sep))


def _filter(module: ModuleType) -> None:
    replace(TRACEBACKS, "warnings.warn", _warn)
    put(TRACEBACKS, "tensorflow.stacks", lambda stacks: _of_own(module, stacks))


def _warn(warn: Any, message: Any, category: Any = None, stacklevel: Any = 1, *args: Any, **kwargs: Any) -> Any:
    """Warn of the same place as if orch had no frame between the function that warns and this place."""
    if not isinstance(stacklevel, int):  # Python itself says what is wrong
        return warn(message, category, stacklevel, *args, **kwargs)
    frame, level = _outer(sys._getframe()), 1
    for _ in range(stacklevel - 1):
        frame = frame and _outer(frame)
    here: FrameType | None = sys._getframe()
    while here is not None and here is not frame:
        here = here.f_back
        level += here is not None and not _is_internal(here)
    # The frame of `warn` itself is one, too. Python knows what to do if there are not so many.
    return warn(message, category, level + 1 + (frame is None), *args, **kwargs)


def _outer(frame: FrameType) -> FrameType | None:
    """The next frame that is neither of orch nor of Python's import system, which leaves out its own frames itself."""
    found = frame.f_back
    while found is not None and (_is_own(found) or _is_internal(found)):
        found = found.f_back
    return found


def _is_own(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_ROOT + os.sep) or frame.f_code in failure.stand_ins


def _is_internal(frame: FrameType) -> bool:
    return "importlib" in frame.f_code.co_filename and "_bootstrap" in frame.f_code.co_filename


def _of_own(module: ModuleType, stacks: Any) -> Any:
    """The filters of each thread, of which the first leaves out orch's files."""
    own = frozenset(os.path.join(place, name) for place, _, names in os.walk(_ROOT) for name in names if name.endswith(".py"))

    class OwnFilter(module.SentinelFilter):  # type: ignore[name-defined, misc]
        def get_filtered_filenames(self) -> frozenset[str]:
            return own

    def first() -> list[Any]:
        found = OwnFilter()
        found.update()
        return [found]

    stacks.default_factory = first
    stacks.clear()  # no graph is being made: TensorFlow is imported at this moment, or was by the template
    return stacks
