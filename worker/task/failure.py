"""The exception that ends a task: shown as plain Python shows it, and kept in ``error.json``.

`error.json` holds a `messages.Failure`. The text of the traceback is Python's own, taken from the hook that
prints it, so both always say the same, but for the middle of a very long one (`excerpts`).
"""

from __future__ import annotations

import _thread
import json
import os
import sys
import time

from .. import task_files
from ..excerpts import shorten

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

_kept: list[Any] = []
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def record(error: BaseException, log_dir: str) -> None:
    """Write ``error.json``. Never raises: the user's own traceback comes next, and nothing may stand in its way."""
    at = time.time()
    path = os.path.join(log_dir, task_files.ERROR)
    temporary = f"{path}.{os.getpid()}"
    try:
        try:
            data = json.dumps(describe(error, at)).encode("ascii")
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with open(fd, "wb") as file:
                file.write(data)
            os.replace(temporary, path)
        except OSError:
            os.unlink(temporary)
    except BaseException:
        pass


def describe(error: BaseException, at: float) -> dict[str, Any]:
    """A `messages.Failure` as JSON data."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    return {"type": name, "message": shorten(_message(error)), "traceback": shorten(_render(error)), "at": at}


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:
        return "<exception str() failed>"


# --- as Python prints it -----------------------------------------------------------------------


class _Paper:
    """Stands in for `sys.stderr` while a traceback is rendered; other threads go on writing to the real one."""

    encoding = "utf-8"
    errors = "surrogatepass"

    def __init__(self, real: Any) -> None:
        self.parts: list[str] = []
        self._real = real
        self._thread = _thread.get_ident()

    def write(self, text: str) -> int:
        if _thread.get_ident() == self._thread:
            self.parts.append(text)
        elif self._real is not None:
            self._real.write(text)
        return len(text)

    def flush(self) -> None:
        if self._real is not None:
            self._real.flush()


def _render(error: BaseException) -> str:
    real = sys.stderr
    paper = _Paper(real)
    whole = error.__traceback__
    sys.stderr = paper
    try:
        trace = error.__traceback__ = strip(whole)
        _strip_earlier(error)
        sys.__excepthook__(type(error), error, trace)
    finally:
        sys.stderr = real
        error.__traceback__ = whole
    return "".join(paper.parts)


def strip(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames of ours that others follow: of what has started the program, and of what stands in TensorFlow's or
    Keras's place. None if all frames are ours. Frames of ours at the end stay, for there the exception was raised."""
    parts = []
    while trace is not None:
        parts.append(trace)
        trace = trace.tb_next
    kept: TracebackType | None = None
    is_followed = False
    for part in reversed(parts):
        is_ours = part.tb_frame.f_code.co_filename.startswith(_PACKAGE)
        is_followed = is_followed or not is_ours
        if not (is_ours and is_followed):
            kept = type(part)(kept, part.tb_frame, part.tb_lasti, part.tb_lineno)
    return kept if is_followed else None


def _strip_earlier(error: BaseException) -> None:
    """The same for the exceptions that this one came from."""
    done = {id(error)}
    pending = [error.__cause__, error.__context__]
    while pending:
        earlier = pending.pop()
        if earlier is not None and id(earlier) not in done:
            done.add(id(earlier))
            earlier.__traceback__ = strip(earlier.__traceback__)
            pending += [earlier.__cause__, earlier.__context__]


def hide_our_frames() -> None:
    """The exception that now leaves `__main__` is shown by the user's `sys.excepthook`, without our frames."""
    hook = getattr(sys, "excepthook", None)

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if hook is not None:
            sys.excepthook = hook
        else:
            del sys.excepthook
        trace = error.__traceback__ = sys.last_traceback = strip(trace)
        _strip_earlier(error)
        _call(hook, kind, error, trace)

    sys.excepthook = show
    _kept.append(show)  # it takes itself out of `sys` while the interpreter, which does not own it, runs it


def _call(hook: Any, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    # What _PyErr_PrintEx in CPython's Python/pythonrun.c does with a hook, word for word.
    if hook is None:
        sys.stderr.write("sys.excepthook is missing\n")
        sys.__excepthook__(kind, error, trace)
        return
    try:
        hook(kind, error, trace)
    except SystemExit:
        raise
    except BaseException as second:
        second.__traceback__ = strip(second.__traceback__)
        sys.stderr.write("Error in sys.excepthook:\n")
        sys.__excepthook__(type(second), second, second.__traceback__)
        sys.stderr.write("\nOriginal exception was:\n")
        sys.__excepthook__(kind, error, trace)
