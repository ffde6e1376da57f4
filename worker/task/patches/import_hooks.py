"""Calls a function of orch right after a program has imported a module, at any time and from any code, and prints lines for the program."""

from __future__ import annotations

import os
import sys

from ..shared import shared

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any


def after(name: str, change: Callable[[ModuleType], None]) -> None:
    """Call `change`, which raises nothing, with the module `name`: now if it was imported, or else once it is imported."""
    present = sys.modules.get(name)
    if present is not None:
        change(present)
    else:
        sys.meta_path.insert(0, _Finder(name, change))


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
            spec: ModuleSpec | None = find(name, path, target) if find is not None else None
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    self._follow(spec.loader)
                return spec
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


_printed: set[str] = shared("printed lines", set)


def print_once(text: str, *, in_each_task: bool = False, is_note: bool = False) -> None:
    """Print a warning on stderr, or a note that needs no decision, once in this process. Without `in_each_task`, only in the first task of
    each type: the other tasks would print the same."""
    is_first = in_each_task or os.environ.get("ORCH_TASK", "-0").endswith("-0")
    if is_first and text not in _printed and sys.stderr is not None:
        _printed.add(text)
        try:  # noqa: SIM105 - as above
            print(f"orch: {'note' if is_note else 'warning'}: {text}", file=sys.stderr)
        except (OSError, ValueError):  # a full disk, or the program has closed it
            pass
