"""Packs a function and its arguments for a task.

Lambdas, functions in functions, functions of `__main__`, and all functions of test modules and of `conftest.py` are sent by value, which
means with their code. A task could not import the modules of the tests, and the code that is sent has the asserts that pytest has
rewritten. The task imports any other function by its name, with the `sys.path` of the test.
"""

from __future__ import annotations

import contextlib
import io
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, ModuleType
from typing import Any

from ..errors import UsageError

HEAVY = ("tensorflow", "keras", "tf_keras")
"""Packages that orch never imports in the test's process, because their import takes long and changes the process."""


_NO_FILE = "<dynamic-code>"
"""What cloudpickle writes in place of the name of a file (`_code_reduce` in cloudpickle/cloudpickle.py)."""
_OWN = (f"{str(__package__).partition('.')[0]}.", "worker.")
"""How the names of orch's own modules begin: pytest rewrites some of them where pip has installed orch as editable."""


def pack(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
    """The bytes of a call. Raises `UsageError`, which names the value that cannot be sent."""
    cloudpickle = _cloudpickle()
    file = io.BytesIO()
    with _by_value(cloudpickle):
        try:
            _pickler(cloudpickle)(file).dump((function, args, dict(kwargs)))
        except Exception as error:
            raise UsageError(f"{_find_culprit(cloudpickle, function, args, kwargs)} cannot be sent to a task: {error}") from None
    return file.getvalue()


def unpack(data: bytes) -> Any:
    """A value that a task has sent. Raises `UsageError` if this process would have to import TensorFlow for the class of the value."""
    return _Unpickler(io.BytesIO(data)).load()


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        root = module.partition(".")[0]
        if root in HEAVY and root not in sys.modules:
            raise UsageError(
                f"{module}.{name} is known only where {root} is imported, and this test has not imported {root}; return numbers or arrays"
            )
        return super().find_class(module, name)


def _cloudpickle() -> Any:
    try:
        import cloudpickle
    except ImportError:
        raise UsageError(
            "orch sends functions to the tasks with cloudpickle, which is not installed: pip install 'orch-tf[testing]'"
        ) from None
    return cloudpickle


def _pickler(cloudpickle: Any) -> Any:
    """A pickler that leaves out fixtures: with a method its whole test class is sent, and no one can call a fixture.

    pytest's object for a fixture (`FixtureFunctionDefinition` in _pytest/fixtures.py, since pytest 8.4) leads to all that the fixture uses.
    Code keeps the name of its file, which cloudpickle leaves out since 3.1.3: tracebacks and AutoGraph show the lines of this file.
    """
    import _pytest.fixtures

    definition = getattr(_pytest.fixtures, "FixtureFunctionDefinition", None)

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, item: Any) -> Any:
            if type(item) is definition:
                return type(None), ()
            if isinstance(item, CodeType):
                made, arguments = self.dispatch_table[CodeType](item)
                return made, tuple(item.co_filename if argument == _NO_FILE else argument for argument in arguments)
            return super().reducer_override(item)

    return Pickler


@contextlib.contextmanager
def _by_value(cloudpickle: Any) -> Iterator[None]:
    """While this is entered, cloudpickle sends the functions of the test modules by value: of those whose asserts pytest has rewritten."""
    known = cloudpickle.list_registry_pickle_by_value()
    added = [module for name, module in list(sys.modules.items()) if name not in known and _is_test_module(name, module)]
    for module in added:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in added:
            cloudpickle.unregister_pickle_by_value(module)


def _is_test_module(name: str, module: ModuleType) -> bool:
    """True if pytest has rewritten the asserts of this module, and pip has not installed it: a task can import installed plugins."""
    loader = getattr(getattr(module, "__dict__", {}).get("__spec__"), "loader", None)
    if type(loader).__name__ != "AssertionRewritingHook" or module.__name__ != name or f"{name}.".startswith(_OWN):
        return False
    file = getattr(module, "__file__", None) or ""
    return not ("site-packages" in file or "dist-packages" in file or file.startswith(sys.base_prefix + "/lib"))


def _find_culprit(cloudpickle: Any, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """The name of the value that cannot be sent."""
    for name, value in (*enumerate(args, 1), *kwargs.items()):
        try:
            cloudpickle.dumps(value)
        except Exception:
            return f"argument {name} (a {type(value).__name__})"
    return f"{getattr(function, '__qualname__', repr(function))}, or a variable that it uses,"
