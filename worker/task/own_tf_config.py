"""A program that writes a TF_CONFIG of its own over the one that orch gave it.

By hand such a program works, or TensorFlow says at once that it "Could not start gRPC server": two tasks with one address. Under
orch a task waits for addresses at which nobody listens. So the agent is told where the program has set the variable, and a port that is
not orch's is not shared. While the variable is removed nothing else changes: TensorFlow's tutorial on several workers removes it and puts
it back.
"""

from __future__ import annotations

import json
import os
import sys

from .. import task_files
from .membership import own_port

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_KEY = b"TF_CONFIG"
_REUSE = "TF_GRPC_REUSE_PORT"


def watch(given: str, log_dir: str) -> None:
    """From now on, note in `log_dir` where the program sets or removes TF_CONFIG, if its cluster or its task is another than in `given`."""
    data = getattr(os.environ, "_data", None)
    if type(data) is dict:  # CPython's own, whose keys are bytes
        # Both are views of one dictionary (`environb = _Environ(environ._data, …)` in CPython's Lib/os.py).
        os.environ._data = os.environb._data = _Variables(data, given, log_dir)  # type: ignore[attr-defined]


class _Variables(dict[bytes, bytes]):
    """What `os.environ` keeps: a dictionary that looks at one of its keys."""

    def __init__(self, data: dict[bytes, bytes], given: str, log_dir: str) -> None:
        super().__init__(data)
        self._given, self._log_dir, self._pid = given, log_dir, os.getpid()
        self._reuse: str | None = None  # what was taken out of TF_GRPC_REUSE_PORT

    def __setitem__(self, key: bytes, value: bytes) -> None:
        super().__setitem__(key, value)
        if key == _KEY:
            self._compare(os.fsdecode(value), "set")

    def __delitem__(self, key: bytes) -> None:
        super().__delitem__(key)
        if key == _KEY:
            self._compare("", "removed")

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)  # a copy is nobody's environment

    def _compare(self, text: str, verb: str) -> None:
        if os.getpid() != self._pid:  # a child of the program has a cluster of its own
            return
        path = os.path.join(self._log_dir, task_files.OTHER_TF_CONFIG)
        try:
            if _essence(text) == _essence(self._given):
                if os.path.exists(path):
                    os.unlink(path)
            else:
                with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
                    file.write(f"{_caller()} {verb} it")
        except OSError:
            pass  # the disk is full, or the directory gone: nothing that the program needs is missing
        try:
            port = own_port(text)
        except (ValueError, LookupError, AttributeError, TypeError):
            return  # it names no port of this task's
        self._share(port in _ports(self._given))

    def _share(self, is_ours: bool) -> None:
        """Have TensorFlow share the port of its task, as the agent holds it, or not."""
        if is_ours and self._reuse is not None:
            os.environ[_REUSE], self._reuse = self._reuse, None
        elif not is_ours and _REUSE in os.environ:
            self._reuse = os.environ.pop(_REUSE)


def _essence(text: str) -> object:
    """What TensorFlow goes by: scripts and platforms add other keys."""
    try:
        config = json.loads(text)
        return config.get("cluster"), config.get("task")
    except (ValueError, AttributeError):
        return text


def _ports(text: str) -> set[int]:
    """The ports of a TF_CONFIG of orch's. A host has many names, so a program may write one of orch's addresses in another way."""
    return {int(address.rpartition(":")[2]) for addresses in json.loads(text)["cluster"].values() for address in addresses}


def _caller() -> str:
    """``train.py:12``: the innermost line that is not the standard library's."""
    frame = sys._getframe(1)
    library = os.path.dirname(os.__file__)
    ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    while frame.f_back is not None:
        name = frame.f_code.co_filename
        is_library = name.startswith(library) and "site-packages" not in name
        if not (is_library or name.startswith(("<frozen", ours))):
            break
        frame = frame.f_back
    name = frame.f_code.co_filename
    here = os.getcwd() + os.sep
    return f"{name.removeprefix(here)}:{frame.f_lineno}"
