"""Leaves orch's files out of what TensorFlow and Keras show of a stack.

Both leave out of an exception the frames of some files: `_EXCLUDED_PATHS` of their `traceback_utils`. The stacks of a graph's nodes, for
``Detected at node … defined at``, have filters for each thread; the first, `SentinelFilter` in tensorflow/python/util/tf_stack.py, leaves
out none.
"""

from __future__ import annotations

import os

from ..import_hooks import after

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def hide_own() -> None:
    """Leave orch's files out, as soon as the libraries are imported."""
    what = "the filter of tracebacks"
    after("tensorflow.python.util.tf_stack", lambda module: _put("tensorflow.stacks", lambda stacks: _of_own(module, stacks)), what)
    for package in ("tensorflow.python.util", "keras.src.utils", "tf_keras.src.utils"):
        after(f"{package}.traceback_utils", _exclude, what)


def _exclude(module: ModuleType) -> None:
    _put(f"{module.__name__.partition('.')[0]}.traceback", lambda paths: (*paths, _ROOT + os.sep))


def _put(name: str, change: Callable[[Any], Any]) -> None:
    from . import put
    from .table import TRACEBACKS  # a program without TensorFlow does not need it

    put(TRACEBACKS, name, change)


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
