"""Finds whether a template may be forked, and whether the fork would behave like a fresh interpreter."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from importlib.machinery import PathFinder
from typing import Any

from ...machine.import_threads import ThreadWatch, count_threads


class Safety:
    """Holds what the imports have done to this process."""

    def __init__(self, directory: str, own_files: dict[int, str], watch: ThreadWatch) -> None:
        """`own_files`: descriptors that were open before the imports; `directory`: see `template_server.serve`; `watch`: of the imports."""
        self._directory, self._watch = directory, watch
        watch.find_thread()
        self._leftovers = _find_leftovers(own_files)
        self._homes = _homes(sys.modules)

    def find_danger(self, path: str) -> str | None:
        """Why a program whose `sys.path[0]` is `path` must not run in a fork of this process; None: it may."""
        return self.find_activity() or self._find_shadowing(path)

    def find_activity(self) -> str | None:
        """Why this process must not be forked at all; None: it may."""
        if self._leftovers is not None:
            return self._leftovers
        context = sys.modules.get("tensorflow.python.eager.context")
        made = getattr(context, "context_safe", lambda: None)()
        if made is not None and getattr(made, "_initialized", True):
            return "an import has started TensorFlow's runtime"
        if count_threads() > 1:
            return self._watch.describe()
        return None

    def _find_shadowing(self, path: str) -> str | None:
        """Why the program would have imported other modules than this process has; None: it would not."""
        hidden = importable(path, self._homes)
        for name, home in self._homes.items():
            if home == self._directory != path:
                return f"the module {name} was imported from {home}, where this program does not look"
            if name in hidden and home != path:
                return f"the program has a {name} of its own, and another one has been imported"
        return None


def open_files() -> dict[int, str]:
    """The descriptors of this process, each with the file that it stands for; empty where there is no /proc."""
    found = {}
    try:
        names = os.listdir("/proc/self/fd")
    except OSError:
        return {}
    for name in names:
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue  # the descriptor of the listing itself
    return found


def _find_leftovers(own_files: dict[int, str]) -> str | None:
    """Return what the imports have left that tasks must not share; None: nothing."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        pass
    else:
        return "an import has started a process"
    opened = [target for fd, target in open_files().items() if fd not in own_files and not target.startswith(_HARMLESS)]
    return f"an import has left {opened[0]} open" if opened else None


# These files have no position and no state that tasks could share.
_HARMLESS = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")


def _homes(modules: dict[str, Any]) -> dict[str, str]:
    """The top-level modules that were imported from files, each with the directory that it was found in; a file next to the script with
    such a name would hide the module."""
    found = {}
    for name, module in list(modules.items()):
        origin = getattr(getattr(module, "__spec__", None), "origin", None)
        if "." in name or origin in ("built-in", "frozen"):
            continue
        if origin is not None:
            found[name] = os.path.dirname(os.path.dirname(origin) if hasattr(module, "__path__") else origin)
        elif hasattr(module, "__path__") and not name.startswith("_orch"):
            found[name] = ""  # a namespace package: any module of that name is found before it
    return found


def importable(path: str, names: Collection[str]) -> set[str]:
    """Return which of `names` can be imported from `path`, a directory or a zip file."""
    try:
        candidates = {entry.partition(".")[0] for entry in os.listdir(path)}.intersection(names)
    except NotADirectoryError:
        candidates = set(names)
    except OSError:
        return set()
    specs = {name: PathFinder.find_spec(name, [path]) for name in candidates}
    return {name for name, spec in specs.items() if spec is not None and spec.origin}  # a directory without code has no origin
