"""Runs the user's program as the interpreter itself would."""

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
    run = _prepare_notebook(path) if path.endswith(".ipynb") else lambda: _run_file(path)
    _put_first(os.path.dirname(os.path.realpath(path)))
    return run


def _prepare_notebook(path: str) -> Callable[[], None]:
    """The cells of a notebook as one program, each under a name of its own, such as ``/w/guide.ipynb cell 3``."""
    from ..values import notebook_cells
    from . import failure

    failure.keep_lines({})  # its imports, before the directory of the notebook is in `sys.path`

    def run() -> None:
        with open(path, "rb") as file:
            cells = {f"{path} {cell.name}": cell for cell in notebook_cells.parts(path, file.read())}
        failure.keep_lines({name: cell.source.decode("utf-8", "replace") for name, cell in cells.items()})
        main = new_main()
        main.__file__ = path
        main.display = print  # type: ignore[attr-defined]  # a function of Jupyter
        for name, cell in cells.items():
            if cell.file:  # in one step, because another task may import the file
                with open(f"{cell.file}.{os.getpid()}", "w", encoding="utf-8") as written:
                    written.write(cell.text)
                os.replace(written.name, cell.file)
            exec(compile(cell.source, name, "exec", dont_inherit=True), main.__dict__)

    return run


def _prepare_module(target: str, args: list[str]) -> Callable[[], None]:
    """``python -m TARGET ARGS``."""
    _present(["-m"], args, shown=["-m", target])
    _put_first(os.getcwd())
    return lambda: _run_module(target, alter_argv=True)


_OWN = {
    "serve": "strategy.servers:serve",
    "data_service": "strategy.servers:serve_data",
    "tensorboard": "strategy.servers:serve_tensorboard",
    "calls": "fixture.calls:serve",
    "function": "sent_function:serve",
}
"""orch's own programs, by kind: a module of this package, and its function that is the program."""


def _prepare_own(kind: str, args: list[str]) -> Callable[[], None]:
    is_call = kind == "calls"  # functions of a test, in a fork of a resident task, which has set `sys.path`
    _present([f"orch-{kind.replace('_', '-')}"], args if kind in ("data_service", "tensorboard") else [])
    if not is_call:
        _put_first(os.getcwd())

    def run() -> None:
        from importlib import import_module

        module, _, function = _OWN[kind].partition(":")
        getattr(import_module(f"{__package__}.{module}"), function)(*args)

    return run


def prepare(kind: str, target: str, args: list[str]) -> Callable[[], None]:
    """Set `sys.argv` and `sys.path`; returns the function that runs the program. `kind`: as in `orders.Program`, or ``calls``."""
    if kind in _OWN:
        return _prepare_own(kind, args)
    return _prepare_script(target, args) if kind == "script" else _prepare_module(target, args)


def _present(name: list[str], args: list[str], shown: list[str] | None = None) -> None:
    """Set `sys.argv`, and `sys.orig_argv` with the interpreter's own options."""
    interpreter = sys.orig_argv[: -len(sys.argv)]
    sys.argv = [*name, *args]
    sys.orig_argv = [*interpreter, *(shown or name), *args]


def _put_first(directory: str) -> None:
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, directory)


def _is_importable(path: str) -> bool:
    """True if the path is a directory or a zip file, of which ``__main__.py`` is run."""
    for hook in sys.path_hooks:
        try:
            hook(path)
        except ImportError:
            continue
        return True
    return False


def unload_shadowed(loaded: set[str]) -> None:
    """Unload modules for which the user has a file of the same name: plain Python would import the user's file."""
    library = os.path.dirname(os.__file__)
    present: set[str] = set()
    for directory in sys.path[: sys.path.index(library) if library in sys.path else 1]:
        try:
            present.update(entry.partition(".")[0] for entry in os.listdir(directory or "."))
        except OSError:
            continue  # a zip file, not there, or not readable
    shadowed = {name.partition(".")[0] for name in loaded} & present
    for name in loaded:
        # Built-in and frozen modules come before all files.
        origin = getattr(getattr(sys.modules[name], "__spec__", None), "origin", None)
        if name.partition(".")[0] in shadowed and origin not in ("built-in", "frozen"):
            del sys.modules[name]


def new_main() -> ModuleType:
    """The `__main__` of the program, as the interpreter makes its own (add_main_module in Python/pylifecycle.c)."""
    # The interpreter uses the namespace of its own `__main__` until the end, without a reference (pyrun_simple_file in
    # Python/pythonrun.c). `_replaced` keeps that namespace alive.
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
        # The interpreter's own message and exit code.
        print(f"{sys.orig_argv[0]}: can't open file {path!r}: [Errno {error.errno}] {error.strerror}", file=sys.stderr)
        sys.exit(2)
    main = new_main()
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
    # As in the interpreter for -m, for a directory and for a zip file (pymain_run_module in Modules/main.c).
    import runpy

    new_main()
    runpy._run_module_as_main(name, alter_argv)  # type: ignore[attr-defined]
