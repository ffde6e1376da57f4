"""How orch changes a program's libraries: it replaces a function by one of the same name, right after the import of the function's module.

The program may import the module at any time, and from any code. Lines on stderr tell what was changed, or could not be changed.
"""

from __future__ import annotations

import os
import sys

from . import failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any


def after(name: str, change: Callable[[ModuleType], None], what: str) -> None:
    """Call `change` with the module `name`: now if the process or its template has imported it, or else once it is imported.

    A library of another version must still work as by hand: if `change` fails, a line on stderr says that `what` stays as it was.
    """

    def try_to_change(module: ModuleType) -> None:
        attempt(lambda: change(module), what, name)

    present = sys.modules.get(name)
    if present is not None:
        try_to_change(present)
    else:
        sys.meta_path.insert(0, _Finder(name, try_to_change))


def attempt(change: Callable[[], None], what: str, name: str) -> None:
    """Call `change`, which changes `what` of the library `name`. If `change` fails, say so."""
    try:
        change()
    except Exception as error:
        print(f"orch: {what} stays as {name} has it: {type(error).__name__}: {error}", file=sys.stderr)


REPLACES = "_orch_replaces"
"""An attribute of a function that replaces another one: its `__wrapped__` is the replaced function. A program may import orch's modules a
second time, under their own names, so these functions are known by an attribute.
"""


def replace(owner: Any, name: str, ours: Callable[..., Any]) -> None:
    """Replace a function of a class or of a module by `ours`, which gets the replaced function first, then the arguments of the call.

    In a traceback that the program prints, the call stands as one of the library's function, without the frames of orch below the call.
    """
    import functools  # TensorFlow and Keras have imported functools by now

    real = getattr(owner, name)
    stand_in = functools.wraps(real)(_stand_in(real, name, ours))
    setattr(stand_in, REPLACES, True)
    setattr(owner, name, stand_in)


_STAND_IN = """
def make(ours, real, strip_below):
    def stand_in(*args, **kwargs):
        try:
            return ours(real, *args, **kwargs)
        except BaseException as error:
            raise strip_below(error)
    return stand_in
"""
_makes: list[Any] = []
"""The function ``make`` of `_STAND_IN`, once it is compiled."""


def compile_stand_in() -> Any:
    """The function ``make`` of `_STAND_IN`, compiled with one line as the place of all others. Only the first call takes time."""
    if not _makes:
        import ast  # TensorFlow has imported ast by now

        tree = ast.parse(_STAND_IN)
        for node in ast.walk(tree):
            if isinstance(node, (ast.stmt, ast.expr, ast.excepthandler, ast.arg)):
                node.lineno = node.end_lineno = 1
                node.col_offset = node.end_col_offset = 0
        namespace: dict[str, Any] = {}
        exec(compile(tree, "", "exec"), namespace)
        _makes.append(namespace["make"])
    return _makes[0]


def _stand_in(real: Any, name: str, ours: Any) -> Any:
    """The function ``stand_in`` of `_STAND_IN`, which has the name of the replaced function, its file, and in every line its first line.

    The filters of TensorFlow and Keras then leave the frame out as one of their own (`traceback_utils` of both).
    """
    made = compile_stand_in()(ours, real, failure.strip_below)
    while hasattr(real, "__wrapped__"):
        real = real.__wrapped__
    code = getattr(real, "__code__", _stand_in.__code__)
    made.__code__ = made.__code__.replace(co_filename=code.co_filename, co_firstlineno=code.co_firstlineno, co_name=name)
    failure.stand_ins.add(made.__code__)
    return made


def hide_own_frames() -> None:
    """Leave orch's files out of what TensorFlow and Keras show of a stack.

    Both leave out of an exception the frames of some files: `_EXCLUDED_PATHS` of their `traceback_utils`. The stacks of a graph's nodes,
    for ``Detected at node … defined at``, have filters for each thread; the first, `SentinelFilter` in
    tensorflow/python/util/tf_stack.py, leaves out none.
    """
    after("tensorflow.python.util.tf_stack", _change_first_filter, "the list of frames of an operation")
    for name in ("tensorflow.python.util", "keras.src.utils", "tf_keras.src.utils"):
        after(f"{name}.traceback_utils", _exclude_own_files, "the filter of tracebacks")


_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def _exclude_own_files(module: ModuleType) -> None:
    module._EXCLUDED_PATHS = (*module._EXCLUDED_PATHS, _ROOT + os.sep)  # type: ignore[attr-defined]


def _change_first_filter(module: ModuleType) -> None:
    own = frozenset(os.path.join(place, name) for place, _, names in os.walk(_ROOT) for name in names if name.endswith(".py"))

    class OwnFilter(module.SentinelFilter):  # type: ignore[name-defined, misc]
        def get_filtered_filenames(self) -> frozenset[str]:
            return own

    def first() -> list[Any]:
        found = OwnFilter()
        found.update()
        return [found]

    module._source_filter_stacks.default_factory = first
    module._source_filter_stacks.clear()  # no graph is being made: TensorFlow is imported at this moment, or was by the template


class _Finder:
    """A finder that lets the other finders find the module, and calls `then` once the module is loaded."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self._name, self._then = name, then

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != self._name:
            return None
        # Only the finders after this one: another `_Finder` for the same module would call this one again.
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find is not None else None
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    self._follow(spec.loader)
                return spec
        return None

    def _follow(self, loader: Any) -> None:
        """Call `then` after the loader has run the module. The import may fail and be tried again, and a loader may have other modules."""
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            if module.__name__ != self._name:
                execute(module)
                return
            loader.exec_module = execute
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self._then(module)

        try:  # noqa: SIM105 - contextlib would be one more import before every task
            loader.exec_module = exec_module
        except (AttributeError, TypeError):  # an import without `then` is better than none
            pass


_printed: set[str] = set()


def print_once(text: str, *, in_each_task: bool = False) -> None:
    """Print a line on stderr, once in this process. Without `in_each_task`, only in the first task of each type: the other tasks would
    print the same.
    """
    is_first = in_each_task or os.environ.get("ORCH_TASK", "-0").endswith("-0")
    if is_first and text not in _printed and sys.stderr is not None:
        _printed.add(text)
        print(f"orch: {text}", file=sys.stderr)
