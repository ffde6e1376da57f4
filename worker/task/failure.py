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

from ..protocol import task_files
from ..values.excerpts import shorten

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import CodeType, TracebackType
    from typing import Any

stand_ins: set[CodeType] = set()
"""The code of functions that stand in for those of a library (`patches.replace`)."""
_kept: list[object] = []
_MOST_ENTRIES = 200
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def record(error: BaseException, log_dir: str) -> None:
    """Write ``error.json``. Never raises: the user's own traceback must be printed next."""
    try:  # noqa: SIM105 - contextlib would be one more import before every task
        task_files.write(log_dir, task_files.ERROR, json.dumps(describe(error, time.time())))
    except BaseException:
        pass


def end_process(error: BaseException, log_dir: str) -> None:
    """End the process because of a mistake that orch has found. An exception might be caught by the program, which would then go on."""
    if log_dir:
        record(error, log_dir)
    print(f"orch: {error}", file=sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(1)


def describe(error: BaseException, at: float) -> dict[str, Any]:
    """A `frames.Failure` as JSON data."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    told = {"type": name, "message": shorten(message(error)), "traceback": shorten(_render(error)), "at": at}
    return told | {"hides": _find_hidden(error), "near": _find_near(error)}


def _find_hidden(error: BaseException) -> str:
    """The module in which a name was not found, because a file of the program has the name of this module; empty: there is none."""
    try:
        for one in chain(error):
            asked = one.name or "" if isinstance(one, ImportError) else getattr(getattr(one, "obj", None), "__name__", "")
            name = str(asked).partition(".")[0]
            here, base = os.path.split(getattr(sys.modules.get(name), "__file__", None) or "")
            if name == "__main__" or base != f"{name}.py" or here.endswith("-packages") or here == os.path.dirname(os.__file__):
                continue
            rest = [path for path in sys.path if os.path.abspath(path) != here]
            # Not by `importlib`: the program may have a file of this name.
            if sys.modules["_frozen_importlib_external"].PathFinder.find_spec(name, rest) is not None:
                return name
    except Exception:  # any object may stand in `sys.modules` and in `sys.path`
        pass
    return ""


def _find_near(error: BaseException) -> str:
    """The path of a file that the program has looked for in the directory above; empty: there is none."""
    try:
        if type(error).__name__ not in ("FileNotFoundError", "NotFoundError"):
            return ""
        # TensorFlow's error has no attribute with the path.
        said = message(error).removeprefix("Could not find directory ").partition("; No such file or directory")[0]
        here, rest = os.path.abspath(getattr(error, "filename", None) or said), list[str]()
        while not os.path.isdir(here):
            here, name = os.path.split(here)
            rest.insert(0, name)
        with os.scandir(here) as entries:
            for _, entry in zip(range(_MOST_ENTRIES), entries, strict=False):
                if os.path.exists(path := os.path.join(entry.path, *rest)):
                    return path
    except Exception:  # anything may stand in an exception
        pass
    return ""


def message(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:
        return "<exception str() failed>"


def keep_lines(sources: Mapping[str, str]) -> None:
    """Show the lines of code that has no file here, by its name, in tracebacks and to AutoGraph, as Python 3.13 does by itself."""
    import linecache  # while the program's own files do not hide them
    import traceback

    # Without a time, no one looks for the file.
    linecache.cache.update({name: (len(text), None, text.splitlines(keepends=True), name) for name, text in sources.items()})
    sys.__excepthook__ = sys.excepthook = traceback.print_exception


# --- as Python prints it -----------------------------------------------------------------------


def _render(error: BaseException) -> str:
    # Python's module `traceback` would import others, and the program may have a file with the name of one of them.
    real = sys.stderr
    sys.stderr = paper = io.StringIO()
    try:
        strip_all(error)
        sys.__excepthook__(type(error), error, error.__traceback__)
    finally:
        sys.stderr = real
    text = paper.getvalue()
    return _without_colours(text) if "\x1b" in text else text  # FORCE_COLOR has Python 3.13 write colours into any file


def _without_colours(text: str) -> str:
    """Not by `re`: the program may have a file of this name."""
    first, *parts = text.split("\x1b[")
    for part in parts:
        colour, end, rest = part.partition("m")
        first += rest if end and not colour.strip("0123456789;") else f"\x1b[{part}"
    return first


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
        code = part.tb_frame.f_code
        is_own = code.co_filename.startswith(PACKAGE) or code in stand_ins
        is_followed = is_followed or not is_own
        if not (is_own and is_followed):
            kept = type(part)(kept, part.tb_frame, part.tb_lasti, part.tb_lineno)
    return kept if is_followed else None


def strip_below(error: BaseException) -> BaseException:
    """The exception that the calling function has caught, with the stripped traceback of what the function has called."""
    below = error.__traceback__.tb_next if error.__traceback__ is not None else None
    return error.with_traceback(strip(below) or below)


def strip_all(error: BaseException) -> None:
    """Strip the tracebacks of an exception, and of its causes and contexts."""
    for one in chain(error):
        one.__traceback__ = strip(one.__traceback__)


def chain(error: BaseException) -> Iterator[BaseException]:
    """An exception, its causes and its contexts, each once."""
    done: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        one = pending.pop()
        if one is not None and id(one) not in done:
            done.add(id(one))
            yield one
            pending += [one.__cause__, one.__context__]


def calling_line() -> str:
    """``train.py:12``: the innermost line outside orch, the standard library, installed packages, and what autograph makes of a function.

    ``the function f`` in a thread of a replica, where autograph's is the only one, or ``the code of a replica``, where all are packages'.
    """
    outside, generated = ("<", PACKAGE, os.path.dirname(os.__file__)), ""
    frame: Any = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if "__autograph_generated_file" in name:
            generated = generated or frame.f_code.co_name.partition("tf__")[2]
        elif not (name.startswith(outside) or f"{os.sep}site-packages{os.sep}" in name):
            break
        last, frame = frame, frame.f_back
    if frame is None and (generated or os.path.basename(last.f_code.co_filename) == "threading.py"):
        return f"the function {generated}" if generated else "the code of a replica"
    found = frame or last
    return f"{found.f_code.co_filename.removeprefix(os.getcwd() + os.sep)}:{found.f_lineno}"


def caller() -> Any:
    """The frame that has called a replaced function: the innermost one that is none of orch's. None: there is none."""
    frame: Any = sys._getframe(1)
    while frame is not None and (frame.f_code in stand_ins or frame.f_code.co_filename.startswith(PACKAGE)):
        frame = frame.f_back
    return frame


def hide_own_frames() -> None:
    """Have the user's `sys.excepthook` show the exception that leaves `__main__` without orch's frames."""
    hook = getattr(sys, "excepthook", sys.__excepthook__)

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        sys.excepthook = hook
        strip_all(error)
        sys.last_traceback = error.__traceback__
        hook(kind, error, error.__traceback__)

    sys.excepthook = show
    _kept.append(show)  # a reference: the function removes itself from `sys` while the interpreter runs it
