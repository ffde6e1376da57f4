"""Makes the function that stands in for one of a library: it has that function's name, file and first line.

The filters of TensorFlow and Keras then leave its frame out of tracebacks as one of their own (`traceback_utils` of both).
"""

from __future__ import annotations

from .. import failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

FEATURE = "_orch_feature"
"""An attribute of a function or class that replaces another one: its feature. The ``__wrapped__`` of a function is the replaced one. A
program may import orch's modules a second time, under their own names, so these functions are known by an attribute.
"""

_TEXT = """
def make(ours, real, strip_below):
    def stand_in(*args, **kwargs):
        try:
            return ours(real, *args, **kwargs)
        except BaseException as error:
            raise strip_below(error)
    return stand_in
"""
_makes: list[Any] = []
"""The function ``make`` of `_TEXT`, once it is compiled."""


def make(real: Any, name: str, ours: Callable[..., Any], feature: str) -> Any:
    """The function ``stand_in`` of `_TEXT` for `real`."""
    import functools  # TensorFlow and Keras have imported functools by now

    made = compile_once()(ours, real, failure.strip_below)
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
    """Whether this function, or one that it replaces, is the stand-in of a feature."""
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


def compile_once() -> Any:
    """The function ``make`` of `_TEXT`, compiled with one line as the place of all others. Only the first call takes time."""
    if not _makes:
        import ast  # TensorFlow has imported ast by now

        tree = ast.parse(_TEXT)
        for node in ast.walk(tree):
            if isinstance(node, (ast.stmt, ast.expr, ast.excepthandler, ast.arg)):
                node.lineno = node.end_lineno = 1
                node.col_offset = node.end_col_offset = 0
        namespace: dict[str, Any] = {}
        exec(compile(tree, "", "exec"), namespace)
        _makes.append(namespace["make"])
    return _makes[0]
