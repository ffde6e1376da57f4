"""Packs a function and its arguments for a task, and unpacks what the task sends back: for `orchestrator.launch` and for tests.

Lambdas, functions in functions, functions of `__main__`, and all functions of test modules and of `conftest.py` are sent by value, which
means with their code. A task could not import the modules of the tests, and the code that is sent has the asserts that pytest has
rewritten. `launch` also sends the modules next to `__main__` by value. The task imports any other function by its name.
"""

from __future__ import annotations

import base64
import contextlib
import io
import linecache
import os
import pickle
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from .errors import UsageError

HEAVY = ("tensorflow", "keras", "tf_keras")
"""Packages that orch never imports in the test's process, because their import takes long and changes the process."""


_NO_FILE = "<dynamic-code>"
"""What cloudpickle writes in place of the name of a file (`_code_reduce` in cloudpickle/cloudpickle.py)."""
_OWN = (f"{str(__package__).partition('.')[0]}.", "worker.")
"""How the names of orch's own modules begin: pytest rewrites some of them where pip has installed orch as editable."""
MOST_BYTES = 512 * 1024
"""The most that a function and its arguments may take: they are a part of the settings of the run, which are read as a whole."""


def pack(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], *, near: str = "") -> tuple[bytes, set[str]]:
    """The bytes of a call, and the names of the files of the code that they contain. `near`: a directory whose modules are sent by value.

    Raises `UsageError`, which names what cannot be sent.
    """
    cloudpickle = _cloudpickle()
    file, files = io.BytesIO(), set[str]()
    with _by_value(cloudpickle, near):
        try:
            _pickler(cloudpickle, files)(file).dump((function, tuple(args), dict(kwargs)))
        except Exception as error:
            raise UsageError(f"{_find_culprit(cloudpickle, function, args, kwargs)} cannot be sent to a task: {error}") from None
    return file.getvalue(), files


def settings_of(function: Callable[..., Any], args: Sequence[Any]) -> dict[str, str]:
    """The settings of a run of a function: its name (``function`` for a lambda), and the call for `worker.task.sent_function.serve`.

    A host needs neither cloudpickle nor the files. The version of Python stands in front: the code of a function is for this version only.
    Raises `UsageError`.
    """
    name = getattr(function, "__name__", "")
    name = name if str(name).isidentifier() else "function"
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    data, files = pack(function, args, {}, near=os.path.dirname(os.path.abspath(main)) if main else os.getcwd())
    sources = {file: text for file in sorted(files) if (text := "".join(linecache.getlines(file)))}
    library = Path(sys.modules["cloudpickle.cloudpickle"].__file__ or "").read_text(encoding="utf-8")
    packed = zlib.compress(pickle.dumps({"call": data, "sources": sources, "cloudpickle": library}))
    if len(packed) > MOST_BYTES:
        takes = f"{name} and its arguments take {len(packed) // 1024:,} KiB packed, and at most {MOST_BYTES // 1024} are sent"
        raise UsageError(f"{takes}\nfix: load large data inside the function, from a file that each host reads")
    return {"function": name, "call": "{}.{}:{}".format(*sys.version_info[:2], base64.b64encode(packed).decode())}


def unpack(data: bytes) -> Any:
    """A value that a task has sent. Raises `UsageError` if this process would have to import TensorFlow for the class of the value."""
    return _Unpickler(io.BytesIO(data)).load()


def answer(data: bytes) -> dict[str, Any]:
    """Read what a task of `launch(function)` has left: ``value``, or the exception as ``error``; empty if it has left nothing readable."""
    try:
        left = pickle.loads(data)
    except (EOFError, pickle.UnpicklingError):  # the task has ended before, such as by a signal
        return {}
    if left.get("error"):
        with contextlib.suppress(Exception):  # its class may be known in the task only
            return {"error": unpack(left["error"])}
    return {"value": unpack(left["value"])} if "value" in left else {}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        root = module.partition(".")[0]
        if root in HEAVY and root not in sys.modules:
            why = f"{module}.{name} is known only where {root} is imported, and this process has not imported {root}"
            raise UsageError(f"{why}; return numbers or arrays")
        return super().find_class(module, name)


def _cloudpickle() -> Any:
    try:
        import cloudpickle
    except ImportError:
        raise UsageError("orch sends functions to the tasks with cloudpickle, which is not installed: pip install cloudpickle") from None
    return cloudpickle


def _pickler(cloudpickle: Any, files: set[str]) -> Any:
    """A pickler that leaves out fixtures: with a method its whole test class is sent, and no one can call a fixture.

    pytest's object for a fixture (`FixtureFunctionDefinition` in _pytest/fixtures.py, since pytest 8.4) leads to all that the fixture uses.
    Code keeps the name of its file, which cloudpickle leaves out since 3.1.3: tracebacks and AutoGraph show the lines of this file. The
    names are added to `files`.
    """
    definition = getattr(sys.modules.get("_pytest.fixtures"), "FixtureFunctionDefinition", CodeType)

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, item: Any) -> Any:
            if isinstance(item, CodeType):
                files.add(item.co_filename)
                made, arguments = self.dispatch_table[CodeType](item)
                return made, tuple(item.co_filename if argument == _NO_FILE else argument for argument in arguments)
            if type(item) is definition:
                return type(None), ()
            return super().reducer_override(item)

    return Pickler


@contextlib.contextmanager
def _by_value(cloudpickle: Any, near: str) -> Iterator[None]:
    """While this is entered, cloudpickle sends the functions of some modules by value: of those whose asserts pytest has rewritten, and
    of those in the directory `near`."""
    known = cloudpickle.list_registry_pickle_by_value()
    added = [module for name, module in list(sys.modules.items()) if name not in known and _is_sent(name, module, near)]
    for module in added:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in added:
            cloudpickle.unregister_pickle_by_value(module)


def _is_sent(name: str, module: ModuleType, near: str) -> bool:
    """True if a task cannot import this module, as far as orch knows: pip has not installed it, and it is a test or lies in `near`."""
    inside = getattr(module, "__dict__", {})
    file = inside.get("__file__") or ""
    if name == "__main__" or inside.get("__name__") != name or f"{name}.".startswith(_OWN):
        return False
    if "site-packages" in file or "dist-packages" in file or file.startswith(sys.base_prefix + "/lib"):
        return False
    is_test = type(getattr(inside.get("__spec__"), "loader", None)).__name__ == "AssertionRewritingHook"
    return is_test or bool(near and file.startswith(os.path.join(near, "")))


def _find_culprit(cloudpickle: Any, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """The name of the value that cannot be sent."""
    for name, value in (*enumerate(args, 1), *kwargs.items()):
        try:
            cloudpickle.dumps(value)
        except Exception:
            return f"argument {name} (a {type(value).__name__})"
    return f"{getattr(function, '__qualname__', repr(function))}, or a variable that it uses,"
