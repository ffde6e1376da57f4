"""Doing something right after a module is imported, whoever imports it and whenever that is."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any


def after(name: str, then: Callable[[ModuleType], None]) -> None:
    """Call `then` with the module `name`: now if it is there, as in a fork of what has imported it, or else once it is loaded."""
    present = sys.modules.get(name)
    if present is not None:
        then(present)
    else:
        sys.meta_path.insert(0, _Finder(name, then))


class _Finder:
    """A finder that leaves the finding to the others, and calls `then` with the module once it is loaded."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self._name, self._then = name, then

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != self._name:
            return None
        # Only those behind it: another of this kind may wait for the same module, and would ask this one again.
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None else None
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(spec.loader, self)
                found: ModuleSpec = spec
                return found
        return None

    def loaded(self, module: ModuleType) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            self._then(module)


class _Loader:
    """The module's own loader, until it has run. An import that fails may be tried again: only one that succeeds is the last."""

    def __init__(self, real: Any, owner: _Finder) -> None:
        self._real, self._owner = real, owner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._real
        if module.__spec__ is not None:
            module.__spec__.loader = self._real
        self._real.exec_module(module)
        self._owner.loaded(module)


def named_like(real: Any, ours: Any) -> Any:
    """A function of ours under the name and with the docstring of the one that it stands for."""
    import functools  # which whoever has such functions has imported by now

    return functools.wraps(real)(ours)
