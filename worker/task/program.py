"""The user's program, as the interpreter itself would have run it."""

from __future__ import annotations

import os
import sys
from importlib.machinery import SourceFileLoader, SourcelessFileLoader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, ModuleType

_replaced: list[ModuleType | None] = []


def _prepare_script(target: str, args: list[str]) -> Callable[[], None]:
    """``python TARGET ARGS``: pymain_run_python in CPython's Modules/main.c."""
    path = os.path.join(os.getcwd(), target)  # not abspath: the interpreter leaves "./" and ".." alone
    _present([target], args)
    if _is_importable(path):
        _put_first(path)
        return lambda: _run_module("__main__", alter_argv=False)
    _put_first(os.path.dirname(os.path.realpath(path)))
    return lambda: _run_file(path)


def _prepare_module(target: str, args: list[str]) -> Callable[[], None]:
    """``python -m TARGET ARGS``."""
    _present(["-m"], args, shown=["-m", target])
    _put_first(os.getcwd())
    return lambda: _run_module(target, alter_argv=True)


def _prepare_server(target: str, args: list[str]) -> Callable[[], None]:
    """Orch's own `tf.distribute.Server`."""
    _present(["orch-serve"], args)
    _put_first(os.getcwd())

    def run() -> None:
        from .strategy.serve import serve

        serve()

    return run


def _prepare_data_server(target: str, args: list[str]) -> Callable[[], None]:
    """A server of the tf.data service."""
    _present(["orch-data-service"], args)
    _put_first(os.getcwd())

    def run() -> None:
        from .strategy.data_service_server import serve

        serve(*args)

    return run


def _prepare_calls(target: str, args: list[str]) -> Callable[[], None]:
    """Functions of a test, in a fork of a resident task, which has set `sys.path`."""
    _present(["orch-calls"], [])

    def run() -> None:
        from .calls import serve

        serve(*args)

    return run


_PREPARATIONS = {
    "script": _prepare_script,
    "module": _prepare_module,
    "serve": _prepare_server,
    "data_service": _prepare_data_server,
    "calls": _prepare_calls,
}


def prepare(kind: str, target: str, args: list[str]) -> Callable[[], None]:
    """Make `sys.argv` and `sys.path` what the program is to find; returns what runs it. `kind`: see `messages.Program`; or `calls`."""
    return _PREPARATIONS[kind](target, args)


def _present(name: list[str], args: list[str], shown: list[str] | None = None) -> None:
    """`sys.argv`, and `sys.orig_argv` with the interpreter's own options."""
    interpreter = sys.orig_argv[: -len(sys.argv)]
    sys.argv = [*name, *args]
    sys.orig_argv = [*interpreter, *(shown or name), *args]


def _put_first(directory: str) -> None:
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, directory)


def _is_importable(path: str) -> bool:
    """True for a directory or a zip file, which runs by the ``__main__.py`` in it."""
    for hook in sys.path_hooks:
        try:
            hook(path)
        except ImportError:
            continue
        return True
    return False


def forget_shadowed(ours: set[str]) -> None:
    """Unload those of our modules that the user has a file of the same name for: under plain Python it would win."""
    if not sys.path or getattr(sys.flags, "safe_path", False):
        return
    try:
        present = {entry.partition(".")[0] for entry in os.listdir(sys.path[0])}
    except OSError:
        return  # a zip file, or not readable
    shadowed = {name.partition(".")[0] for name in ours} & present
    for name in ours:
        # Built-in and frozen modules come before the path, whatever lies on it.
        origin = getattr(getattr(sys.modules[name], "__spec__", None), "origin", None)
        if name.partition(".")[0] in shadowed and origin not in ("built-in", "frozen"):
            del sys.modules[name]


def _new_main() -> ModuleType:
    """The `__main__` of the program, as the interpreter makes its own (add_main_module in Python/pylifecycle.c)."""
    # The interpreter goes on using the namespace of the one it made, without owning it (pyrun_simple_file in
    # Python/pythonrun.c), after the exception that was the last to hold it has been printed.
    _replaced.append(sys.modules.get("__main__"))
    main = type(sys)("__main__")
    main.__builtins__ = sys.modules["builtins"]  # type: ignore[attr-defined]
    if sys.version_info < (3, 14):
        main.__annotations__ = {}
    sys.modules["__main__"] = main
    return main


def _run_file(path: str) -> None:
    try:
        with open(path, "rb") as file:
            source = file.read()
    except OSError as error:
        # Word for word what the interpreter says, and its exit code.
        print(f"{sys.orig_argv[0]}: can't open file {path!r}: [Errno {error.errno}] {error.strerror}", file=sys.stderr)
        sys.exit(2)
    main = _new_main()
    main.__file__ = path
    main.__cached__ = None  # type: ignore[attr-defined]
    loader = SourcelessFileLoader if path.endswith(".pyc") else SourceFileLoader
    main.__loader__ = loader("__main__", path)
    exec(_compile(source, path), main.__dict__)


def _compile(source: bytes, path: str) -> CodeType:
    if path.endswith(".pyc"):
        import marshal

        code: CodeType = marshal.loads(source[16:])
        return code
    return compile(source, path, "exec", dont_inherit=True)


def _run_module(name: str, alter_argv: bool) -> None:
    # As the interpreter does for -m, for a directory and for a zip file (pymain_run_module in Modules/main.c).
    import runpy

    _new_main()
    runpy._run_module_as_main(name, alter_argv)  # type: ignore[attr-defined]
