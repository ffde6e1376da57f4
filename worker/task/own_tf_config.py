"""Notices a program that replaces orch's TF_CONFIG by its own.

Without orch, such a program works, or TensorFlow fails at once with "Could not start gRPC server", because two tasks have one address.
Under orch, a task may wait for addresses at which no process listens. So this module writes down for the agent where the program has set
the variable, and stops the sharing of ports that are not orch's. While the variable is removed, nothing else changes: TensorFlow's tutorial
on several workers removes it and sets it again.
"""

from __future__ import annotations

import json
import os

from ..protocol import task_files
from . import failure, patches
from .observe.membership import own_port
from .patches.features import OTHER_TF_CONFIG

_KEY = b"TF_CONFIG"
_REUSE = "TF_GRPC_REUSE_PORT"


def watch(given: str, log_dir: str) -> None:
    """Write to `log_dir` where the program sets or removes TF_CONFIG, if its cluster or task differs from those of `given`."""
    data = getattr(os.environ, "_data", None)
    if type(data) is dict:  # CPython's own, whose keys are bytes
        # Both `environ` and `environb` are views of one dictionary (`environb = _Environ(environ._data, …)` in CPython's Lib/os.py).
        os.environ._data = os.environb._data = _Variables(data, given, log_dir)  # type: ignore[attr-defined]


class _Variables(dict[bytes, bytes]):
    """The dictionary in `os.environ`, which notices changes of one key."""

    def __init__(self, data: dict[bytes, bytes], given: str, log_dir: str) -> None:
        super().__init__(data)
        self._given, self._log_dir, self._pid = given, log_dir, os.getpid()

    def __setitem__(self, key: bytes, value: bytes) -> None:
        super().__setitem__(key, value)
        if key == _KEY:
            self._compare(os.fsdecode(value), "set")

    def __delitem__(self, key: bytes) -> None:
        super().__delitem__(key)
        if key == _KEY:
            self._compare("", "removed")

    def __reduce__(self) -> tuple[object, ...]:
        return dict, (dict(self),)  # a copy is no environment

    @patches.guarded(OTHER_TF_CONFIG)
    def _compare(self, text: str, verb: str) -> None:
        if os.getpid() != self._pid:  # a child of the program may have a cluster of its own
            return
        is_given = _essence(text) == _essence(self._given)
        place = "" if is_given else f"{failure.calling_line()} {verb} it"
        task_files.write(self._log_dir, task_files.OTHER_TF_CONFIG, place)
        try:
            port = own_port(text)
        except (ValueError, LookupError, AttributeError, TypeError):
            return  # the text names no port of this task
        if port in _ports(self._given):
            os.environ[_REUSE] = "true"  # TensorFlow shares the port with the agent, which holds the port
        else:
            os.environ.pop(_REUSE, None)


def _essence(text: str) -> object:
    """The parts that TensorFlow reads. Scripts and platforms add other keys."""
    try:
        config = json.loads(text)
        return config.get("cluster"), config.get("task")
    except (ValueError, AttributeError):
        return text


def _ports(text: str) -> set[int]:
    """The ports of orch's TF_CONFIG. Hosts are not compared: a program may write another name of the same host."""
    return {int(address.rpartition(":")[2]) for addresses in json.loads(text)["cluster"].values() for address in addresses}
