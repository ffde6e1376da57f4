"""Leaves orch's files out of what TensorFlow and Keras show of a stack.

Both leave out of an exception the frames of some files: `_EXCLUDED_PATHS` of their `traceback_utils`. The stacks of a graph's nodes, for
``Detected at node … defined at``, have filters for each thread; the first, `SentinelFilter` in tensorflow/python/util/tf_stack.py, leaves
out none.
"""

from __future__ import annotations

import os

from . import after, put
from .features import TRACEBACKS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
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
    put(TRACEBACKS, "tensorflow.stacks", lambda stacks: _of_own(module, stacks))


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
