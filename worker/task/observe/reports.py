"""`worker.report`: lines of JSON in the task's log directory. The agent sends the newest line to the controller."""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import operator
import os
import threading
import time
from collections.abc import Mapping
from typing import Any

from ...protocol import task_files
from ..patches.features import REPORTS
from ..patches.guard import guarded
from ..patches.import_hooks import print_once
from . import step_times, time_left

INTERVAL_S = 0.1
EVERY = "ORCH_REPORT_EVERY"
"""With this variable in its environment, a process writes every report."""
LONGEST = 64 * 1024
_MOST_VALUES, _LONGEST_NAME, _LARGEST = 64, 100, 1e300
"""A report of at most so many values, with names of so many characters and numbers below this, is no longer than a line may be. Such a
report becomes text only when it is written: most reports of short steps never are."""


def report(values: Mapping[str, Any]) -> None:
    """Append one line. See `worker.report`."""
    directory = os.environ.get("ORCH_LOG_DIR")
    if directory:
        line = _line(values)
        if not _is_short(line):
            _render(line)  # an error is that of this call
        _writer.add(directory, line)
        step = line.get("step")
        if isinstance(step, (int, float)) and not isinstance(step, bool):
            step_times.mark(step)
            if "of" in line and (said := time_left.follow(step, line["of"])) is not None:
                note(task_files.PROGRESS, said)


def note(key: str, value: Any = True) -> None:
    """Append one line of orch's own about the program: one of `task_files.OWN_KEYS`, which has this value from now on."""
    directory = os.environ.get("ORCH_LOG_DIR")
    if directory:
        with contextlib.suppress(OSError):  # a full disk
            append(os.path.join(directory, task_files.REPORTS), json.dumps({"at": time.time(), key: value}).encode() + b"\n")


class _Writer:
    """Writes at most two lines in any `INTERVAL_S`, each by one `os.write` to an O_APPEND file, so lines are never mixed."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler may report, too
        self._directory = ""
        self._held: dict[str, Any] | None = None
        self._next = -math.inf

    def add(self, directory: str, line: dict[str, Any]) -> None:
        with self._lock:
            now = time.monotonic()
            if now < self._next and directory == self._directory:
                before, self._held = self._held, line  # at once: a signal handler may report in between
                if before is not None and any(word in before.values() for word in task_files.NOT_FINITE):
                    self._write(before)  # a loss that was NaN for one step is not written over
                return
            self.flush()
            self._next = now + (0.0 if EVERY in os.environ else INTERVAL_S)
            self._directory = directory
            self._write(line)

    def flush(self) -> None:
        with self._lock:
            line, self._held = self._held, None
            if line is not None:
                self._write(line)

    def on_fork(self) -> None:
        """In a forked child: the parent will write the line that is held back."""
        self._lock = threading.RLock()
        self._held = None

    def _write(self, line: dict[str, Any]) -> None:
        path = os.path.join(self._directory, task_files.REPORTS)
        try:
            append(path, _render(line))
        except OSError as error:
            text = f"worker.report cannot write to {path}: {error.strerror}; training goes on without reports"
            with contextlib.suppress(OSError, ValueError):  # stderr may be on the same full disk, or closed
                print_once(text, in_each_task=True)


def append(path: str, line: bytes) -> None:
    """Add a line to a file of reports, by one write. Raises OSError."""
    with open(task_files.open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab", buffering=0) as file:
        file.write(line)


_writer = _Writer()
atexit.register(guarded(REPORTS)(_writer.flush))
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_writer.on_fork)


# --- values ------------------------------------------------------------------------------------


def _line(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a line of JSON. Raises TypeError."""
    if "at" in values:
        raise TypeError("worker.report: 'at' is taken, it is the time of the report; give the value another name")
    line: dict[str, Any] = {"at": time.time()}
    try:
        line.update((name, _plain(name, value)) for name, value in values.items())
    except RecursionError:
        raise TypeError("worker.report: a list or dict that contains itself") from None
    return line


def _is_short(line: dict[str, Any]) -> bool:
    """True if a line can be rendered without an error: only numbers, and few."""
    return len(line) <= _MOST_VALUES and all(
        len(name) <= _LONGEST_NAME and (value is None or (isinstance(value, (int, float)) and abs(value) < _LARGEST))
        for name, value in line.items()
    )


def _render(line: dict[str, Any]) -> bytes:
    """Raises ValueError for a line that is too long."""
    data = json.dumps(line).encode("ascii") + b"\n"
    if len(data) > LONGEST:
        raise ValueError(f"worker.report: {len(data)} bytes; a report is limited to {LONGEST}")
    return data


def _plain(name: str, value: Any) -> Any:
    """The value for JSON. Numbers that JSON does not have become texts (`task_files.NOT_FINITE`)."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        number = float.__pos__(value)  # a class of the program may raise where its own method is called
        return number if math.isfinite(number) else repr(number)
    if isinstance(value, (list, tuple)):
        return [_plain(name, item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(name, item) for key, item in value.items()}
    return _plain(name, _unwrap(name, value))


def _unwrap(name: str, value: Any) -> bool | int | float:
    """The number in a scalar of NumPy, TensorFlow, Keras or a similar library."""
    try:
        number = value.numpy() if hasattr(value, "numpy") else value
        number = number.item() if hasattr(number, "item") else number
        if isinstance(number, (bool, int, float)):
            return number
        if hasattr(number, "__index__"):
            return operator.index(number)
        if hasattr(number, "__float__"):  # `float` alone would also parse bytes, such as a tensor of texts has
            return float(number)
        reason = ""
    except Exception as error:  # that of another library, such as PyTorch's for a tensor with a gradient
        reason = f": {error}"
    raise TypeError(f"worker.report: {name} is of type {type(value).__name__}, and not one number, text, list or dict{reason}")
