"""Whether what a process has imported is still what an import would find: packages change under a process that lives long."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Iterable

from ..template.safety import importable

_Stamp = tuple[int, int, int]


class Snapshot:
    """The files that the imports of this process have come from, as they were then.

    Every module's file; the shared libraries and whatever else is mapped; the interpreter; the directories of installed packages,
    whose time changes when one is added or removed, and their ``.pth`` files; what Keras and the C library read when they are
    first used. And which imported modules each other directory on `sys.path` has: files come and go there, and only those count
    that would be found in place of ours.
    """

    def __init__(self) -> None:
        self._stamps = {path: _stamp(path) for path in _paths()}
        self._names = {name.partition(".")[0] for name in list(sys.modules)}
        self._found = {path: importable(path, self._names) for path in sys.path if not _holds_packages(path)}

    def find_change(self) -> str | None:
        """A file or a directory that is not what it was; None: there is none."""
        changed = (path for path, stamp in self._stamps.items() if _stamp(path) != stamp)
        return next(changed, None) or next((path for path, found in self._found.items() if importable(path, self._names) != found), None)


def _paths() -> set[str]:
    found = {sys.executable, os.path.realpath(sys.executable), os.path.join(sys.prefix, "pyvenv.cfg"), "/etc/localtime"}
    found.add(os.path.join(os.environ.get("KERAS_HOME") or os.path.expanduser("~/.keras"), "keras.json"))
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if isinstance(path, str):
            found.add(path)
    with contextlib.suppress(OSError), open("/proc/self/maps", errors="surrogateescape") as maps:
        found.update(path for line in maps if (path := line[line.find("/") :].rstrip("\n")).startswith("/"))
    for directory in filter(_holds_packages, sys.path):
        found.add(directory)
        with contextlib.suppress(OSError):
            found.update(os.path.join(directory, name) for name in os.listdir(directory) if name.endswith((".pth", ".egg-link")))
    return {path for path in found if not path.startswith(("/dev/", "/memfd:", "/SYSV"))}


def _holds_packages(directory: str) -> bool:
    return os.path.basename(directory) in ("site-packages", "dist-packages")


def _stamp(path: str) -> _Stamp | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def fingerprint(directory: str) -> str:
    """Of the source of a package: equal if and only if all its Python files are."""
    digest = hashlib.sha256()
    for path in sorted(_sources(directory)):
        with open(path, "rb") as file:
            text = file.read()
        digest.update(f"{os.path.relpath(path, directory)} {len(text)}\n".encode(errors="surrogateescape"))
        digest.update(text)
    return digest.hexdigest()


def _sources(directory: str) -> Iterable[str]:
    for root, _, names in os.walk(directory):
        yield from (os.path.join(root, name) for name in names if name.endswith(".py"))
