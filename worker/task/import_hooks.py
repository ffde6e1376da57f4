"""How orch changes a program's libraries: right after their import, at any time and by any code, by functions of the same names, and with a
line that tells of the change."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any


def after(name: str, then: Callable[[ModuleType], None]) -> None:
    """Call `then` with the module `name`: now if the process or its template has imported it, or else once it is imported."""
    present = sys.modules.get(name)
    if present is not None:
        then(present)
    else:
        sys.meta_path.insert(0, _Finder(name, then))


class _Finder:
    """A finder that lets the other finders find the module, and calls `then` once the module is loaded."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self._name, self._then = name, then

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != self._name:
            return None
        # Only the finders after this one: another `_Finder` for the same module would call this one again.
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None else None
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    self._follow(spec.loader)
                found: ModuleSpec = spec
                return found
        return None

    def _follow(self, loader: Any) -> None:
        """Call `then` after the loader has run the module. The import may fail and be tried again, and a loader may have other modules."""
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            if module.__name__ != self._name:
                execute(module)
                return
            loader.exec_module = execute
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self._then(module)

        try:  # noqa: SIM105 - contextlib would be one more import before every task
            loader.exec_module = exec_module
        except (AttributeError, TypeError):  # an import without `then` is better than none
            pass


def named_like(real: Any, ours: Any) -> Any:
    """The function `ours`, with the name and the docstring of `real`, which it replaces."""
    import functools  # TensorFlow and Keras have imported functools by now

    return functools.wraps(real)(ours)


_printed: set[str] = set()


def print_once(text: str) -> None:
    """Print a line on stderr, once in this process, and only in the first task of each type: the other tasks would print the same."""
    if text not in _printed and os.environ.get("ORCH_TASK", "-0").endswith("-0"):
        _printed.add(text)
        print(f"orch: {text}", file=sys.stderr)
