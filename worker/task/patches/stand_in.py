"""Makes the function that stands in for one of a library: it has that function's name, file and first line. `guard` judges its errors.

The filters of TensorFlow and Keras then leave its frame out of tracebacks as one of their own (`traceback_utils` of both).
"""

from __future__ import annotations

from .. import failure
from . import guard

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

FEATURE = "_orch_feature"
"""An attribute of a function or class that replaces another one: its feature. The ``__wrapped__`` of a function is the replaced one. A
program may import orch's modules a second time, under their own names, so these functions are known by an attribute."""

_TEXT = """
def that_changes(ours, real, feature, failure, guard):
    def stand_in(*args, **kwargs):
        try:
            return ours(real, *args, **kwargs)
        except BaseException as error:
            if guard.is_misuse(error, real, args, kwargs):
                raise
            raise failure.strip_below(guard.judge(feature, error))
    return stand_in

def that_measures(ours, real, feature, failure, guard):
    def stand_in(*args, **kwargs):
        if feature in guard.off:
            return real(*args, **kwargs)
        call = guard.Call(real)
        try:
            return ours(call, *args, **kwargs)
        except BaseException as error:
            if error is call.error or guard.is_other(error) or guard.is_misuse(error, real, args, kwargs):
                call.error = None
                raise failure.strip_below(error)
            guard.turn_off(feature, error)
        if call.error is not None:
            raise call.error
        return call.results[0] if call.results else real(*args, **kwargs)
    return stand_in
"""
_makes: dict[str, Any] = {}
"""The functions of `_TEXT`, once they are compiled."""


def make(real: Any, name: str, ours: Callable[..., Any], feature: str, *, measures: bool = False) -> Any:
    """The function ``stand_in`` of `_TEXT` for `real`. `measures`: the sort of the feature. If orch's code fails, the stand-in of what
    measures gives what the replaced function has given, and calls it if it was not called yet."""
    import functools  # TensorFlow and Keras have imported functools by now

    make_it = compile_once()["that_measures" if measures else "that_changes"]
    made = make_it(ours, real if measures else guard.as_theirs(real), feature, failure, guard)
    innermost = real
    while hasattr(innermost, "__wrapped__"):
        innermost = innermost.__wrapped__
    code = getattr(innermost, "__code__", make.__code__)
    made.__code__ = made.__code__.replace(co_filename=code.co_filename, co_firstlineno=code.co_firstlineno, co_name=name)
    failure.stand_ins.add(made.__code__)
    made = functools.wraps(real)(made)
    setattr(made, FEATURE, feature)
    return made


def is_of(function: Any, feature: str) -> bool:
    """True if this function, or one that it replaces, is the stand-in of a feature."""
    while hasattr(function, FEATURE):
        if getattr(function, FEATURE) == feature:
            return True
        function = function.__wrapped__
    return False


def original(function: Any) -> Any:
    """The library's own function below all stand-ins."""
    while hasattr(function, FEATURE):
        function = function.__wrapped__
    return function


def compile_once() -> dict[str, Any]:
    """The functions of `_TEXT`, compiled with one line as the place of all others. Only the first call takes time."""
    if not _makes:
        import ast  # TensorFlow has imported ast by now

        tree = ast.parse(_TEXT)
        for node in ast.walk(tree):
            if isinstance(node, (ast.stmt, ast.expr, ast.excepthandler, ast.arg)):
                node.lineno = node.end_lineno = 1
                node.col_offset = node.end_col_offset = 0
        exec(compile(tree, "", "exec"), _makes)
    return _makes
