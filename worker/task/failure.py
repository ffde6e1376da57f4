"""The exception that ends a task: shown as plain Python shows it, and kept in ``error.json``.

`error.json` holds a `frames.Failure`. Its traceback is what Python's own hook prints, without colours, and without the middle of a very
long one (`excerpts`). A program with a `sys.excepthook` of its own may print another text on stderr.
"""

from __future__ import annotations

import io
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
    """Write ``error.json``. Never raises: the user's own traceback must be printed next."""
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
    """A `frames.Failure` as JSON data."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    return {"type": name, "message": shorten(_message(error)), "traceback": shorten(_render(error)), "at": at}


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:
        return "<exception str() failed>"


# --- as Python prints it -----------------------------------------------------------------------


def _render(error: BaseException) -> str:
    # Python's module `traceback` would import others, and the program may have a file with the name of one of them.
    real, whole = sys.stderr, error.__traceback__
    sys.stderr = paper = io.StringIO()
    try:
        trace = error.__traceback__ = strip(whole)
        _strip_earlier(error)
        sys.__excepthook__(type(error), error, trace)
    finally:
        sys.stderr = real
        error.__traceback__ = whole
    text = paper.getvalue()
    if "\x1b" in text:
        import re  # rarely needed

        text = re.sub(r"\x1b\[[0-9;]*m", "", text)  # FORCE_COLOR has Python 3.13 write colours into any file
    return text


def strip(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without orch's frames that other frames follow: those that start the program, and those around functions of TensorFlow
    and Keras. None if all frames are orch's. Frames of orch at the end stay, because the exception was raised there."""
    parts = []
    while trace is not None:
        parts.append(trace)
        trace = trace.tb_next
    kept: TracebackType | None = None
    is_followed = False
    for part in reversed(parts):
        is_own = part.tb_frame.f_code.co_filename.startswith(_PACKAGE)
        is_followed = is_followed or not is_own
        if not (is_own and is_followed):
            kept = type(part)(kept, part.tb_frame, part.tb_lasti, part.tb_lineno)
    return kept if is_followed else None


def calling_line(*, in_packages: bool) -> str:
    """``train.py:12``: the innermost line outside orch and the standard library. `in_packages`: the line may be an installed package's."""
    library, packages = os.path.dirname(os.__file__), f"{os.sep}site-packages{os.sep}"
    frame = sys._getframe(1)
    while frame.f_back is not None:
        name = frame.f_code.co_filename
        is_package = packages in name
        if not (name.startswith(("<", _PACKAGE)) or (is_package and not in_packages) or (name.startswith(library) and not is_package)):
            break
        frame = frame.f_back
    return f"{frame.f_code.co_filename.removeprefix(os.getcwd() + os.sep)}:{frame.f_lineno}"


def _strip_earlier(error: BaseException) -> None:
    """Strip the tracebacks of the causes and contexts of an exception."""
    done = {id(error)}
    pending = [error.__cause__, error.__context__]
    while pending:
        earlier = pending.pop()
        if earlier is not None and id(earlier) not in done:
            done.add(id(earlier))
            earlier.__traceback__ = strip(earlier.__traceback__)
            pending += [earlier.__cause__, earlier.__context__]


def hide_own_frames() -> None:
    """Have the user's `sys.excepthook` show the exception that leaves `__main__` without orch's frames."""
    hook = getattr(sys, "excepthook", sys.__excepthook__)

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        sys.excepthook = hook
        trace = error.__traceback__ = sys.last_traceback = strip(trace)
        _strip_earlier(error)
        hook(kind, error, trace)

    sys.excepthook = show
    _kept.append(show)  # a reference: the function removes itself from `sys` while the interpreter runs it
