"""Tells errors of orch's own code, wherever a program or a library calls it, from errors of the program.

Each feature is of one of two sorts (`sort` in `table`). An error of orch's own in what measures turns the feature off, with one line,
and the program goes on. An error of orch's own in what changes numbers or saves ends all workers together, as orch's `Fault`: a program
that caught it would go on with half of what orch changes. Errors of the program, and those that orch tells it (`refusal`), pass unchanged.

What comes out of the replaced function, or out of a function that orch calls by `theirs`, is an error of the program or of the library.
"""

from __future__ import annotations

import os
import sys

from .. import failure
from ..shared import shared
from . import import_hooks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any, TypeVar

    E = TypeVar("E", bound=BaseException)
    F = TypeVar("F", bound=Callable[..., Any])

off: set[str] = shared("features off", set)
"""The features that measure and have failed in this process."""
_tasks: list[tuple[str, int]] = shared("task", list)
"""The directory of the logs, and the process, of the task that a fault ends. Empty: a fault is raised, such as in a script without orch."""
_REFUSAL = "_orch_refusal"
_FOREIGN = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}", os.path.dirname(os.__file__) + os.sep)
_MISTAKES = (AttributeError, NameError, LookupError, AssertionError, ImportError)
"""What a library raises because its caller is wrong about it, and not about data."""


class Fault(RuntimeError):
    """An error of orch's own code in what changes numbers or saves."""


Fault.__module__ = "orch"


def end_at_fault(log_dir: str) -> None:
    """This process is a task of a run: a fault ends it at once, and orch ends the other tasks."""
    _tasks[:] = [(log_dir, os.getpid())]


def theirs(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function of the program, or of a library with what the program has given: an error of it is none of orch's."""
    return function(*args, **kwargs)


def as_theirs(function: Any) -> Any:
    """A function that is called by `theirs` each time."""
    import functools  # TensorFlow and Keras have imported functools by now

    def call_theirs(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    _theirs.add(call_theirs.__code__)
    return functools.wraps(function)(call_theirs)


_theirs = {theirs.__code__}


class Call:
    """The replaced function in one call of a stand-in that measures: whether it was called, and what came of it."""

    __slots__ = ("error", "function", "results")

    def __init__(self, function: Any) -> None:
        self.function = function
        self.error: BaseException | None = None
        self.results: tuple[Any, ...] = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            found = self.function(*args, **kwargs)
        except BaseException as error:
            self.error = error
            raise
        self.results = (found,)
        return found


def is_misuse(error: BaseException, real: Any, args: Any, kwargs: Any) -> bool:
    """True if the program has called a function with arguments that neither orch's function nor the replaced one takes."""
    if not isinstance(error, TypeError) or error.__traceback__ is None or error.__traceback__.tb_next is not None:
        return False
    import inspect

    try:
        inspect.signature(real).bind(*args, **kwargs)
    except (TypeError, ValueError):  # the second one: Python knows no arguments of it
        return True
    return False


def refusal(error: E) -> E:
    """An error for the program: orch does what it should, and the message says what is wrong."""
    setattr(error, _REFUSAL, True)
    return error


def is_other(error: BaseException) -> bool:
    """True if an error in what measures is none of its own: the end of the program, or the fault of a feature that changes numbers."""
    return not isinstance(error, Exception) or hasattr(error, _REFUSAL)


def guarded(feature: str) -> Callable[[F], F]:
    """A decorator for each function of orch's that a program or a library calls, and that replaces none: a hook of a callback, the function
    of a thread, an import hook, a remark. It returns None once a feature that measures is off."""
    import functools

    def decorate(function: F) -> F:
        def call(*args: Any, **kwargs: Any) -> Any:
            if feature in off:
                return None
            try:
                return function(*args, **kwargs)
            except Exception as error:
                if (judged := judge(feature, error)) is error:
                    raise
                if judged is not None:
                    raise judged from error
            return None

        made: Any = functools.wraps(function)(call)
        return made  # type: ignore[no-any-return]

    return decorate


def guard_hooks(feature: str, kind: type) -> None:
    """Guard the functions of a class of callbacks that a library calls."""
    for name, function in list(vars(kind).items()):
        if name.startswith("on_"):
            setattr(kind, name, guarded(feature)(function))


def judge(feature: str, error: BaseException) -> BaseException | None:
    """The error to be raised: the same one if it is none of orch's, or a `Fault`, unless that ends the task. None: the feature is off."""
    if not isinstance(error, Exception) or hasattr(error, _REFUSAL) or _is_theirs(error):
        return error
    # The end of data or of a disk, a peer that is gone, an overflow: what the program would get, too.
    if not _measures(feature) and (
        isinstance(error, (StopIteration, OSError, MemoryError)) or hasattr(error, "error_code") or _is_of_data(error)
    ):
        return error
    return fail(feature, error)


def attempt(feature: str, change: Callable[[], None]) -> None:
    """Call `change`, a part of a feature that is applied to no data of the program yet: an error of it is orch's."""
    try:
        change()
    except Exception as error:
        if hasattr(error, _REFUSAL):  # a fault of another feature
            raise
        if (fault := fail(feature, error)) is not None:
            raise fault from error


def fail(feature: str, error: Exception) -> Fault | None:
    """Orch's own code has failed: turn off what measures; or end the task, or give the `Fault` to be raised where there is none."""
    if _measures(feature):
        turn_off(feature, error)
        return None
    fault = refusal(Fault(f"{feature}: orch's own code has failed: {_described(error)}"))
    fault.__cause__ = error
    if _tasks and _tasks[0][1] == os.getpid():
        if sys.stderr is not None:
            sys.__excepthook__(type(error), error, error.__traceback__)
        failure.end_process(fault, _tasks[0][0])
    return fault


def _measures(feature: str) -> bool:
    from .table import FEATURES

    return feature in FEATURES and FEATURES[feature].sort == "measures"


def turn_off(feature: str, error: BaseException) -> None:
    """Turn off what measures, with one line."""
    from .table import FEATURES

    off.add(feature)
    why = f"off from here on, because orch's own code has failed ({_described(error)}); without it, {FEATURES[feature].lost}"
    import_hooks.print_once(f"{feature}: {why}. The program goes on", in_each_task=True)


def _described(error: BaseException) -> str:
    """``KeyError: 'x' (optimizer.py:123)``: an error, and the last line of orch's that it has passed."""
    own = [part for part in _parts(error.__traceback__) if part.tb_frame.f_code.co_filename.startswith(failure.PACKAGE)]
    place = f" ({os.path.basename(own[-1].tb_frame.f_code.co_filename)}:{own[-1].tb_lineno})" if own else ""
    return f"{type(error).__name__}: {failure.message(error).partition(chr(10))[0]:.300}{place}"


def _is_theirs(error: BaseException) -> bool:
    return any(part.tb_frame.f_code in _theirs or part.tb_frame.f_code == Call.__call__.__code__ for part in _parts(error.__traceback__))


def _is_of_data(error: BaseException) -> bool:
    """True if a library that orch calls refuses what it is given, data and models of the program as a rule, or calls a function of the
    program which fails."""
    below: list[bool] = []
    """Whether each of the frames below the last one of orch is a library's."""
    for part in _parts(error.__traceback__):
        code = part.tb_frame.f_code
        if code in failure.stand_ins or code.co_filename.startswith(failure.PACKAGE):
            below.clear()
        else:
            below.append(any(place in code.co_filename for place in _FOREIGN))
    if not below or not below[0]:  # orch's own code has raised it
        return False
    return not all(below) or not isinstance(error, _MISTAKES)


def _parts(trace: TracebackType | None) -> list[TracebackType]:
    found = []
    while trace is not None:
        found.append(trace)
        trace = trace.tb_next
    return found
