"""orch: starts, watches and explains TensorFlow clusters.

The import of this package costs nothing: `launch` and its results are imported at their first use (docs/python.md).
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from .api import find as find
    from .api import launch as launch
    from .errors import OrchError as OrchError
    from .errors import SpecError as SpecError
    from .errors import UsageError as UsageError
    from .handle import Line as Line
    from .handle import Result as Result
    from .handle import Run as Run
    from .handle import RunFailed as RunFailed
    from .handle import Task as Task
    from .model.settings import ClusterSpec as ClusterSpec
    from .model.state.cluster import Cause as Cause

__version__ = "0.1.0"

_HOMES = {
    **dict.fromkeys(("find", "launch"), "api"),
    **dict.fromkeys(("OrchError", "SpecError", "UsageError"), "errors"),
    **dict.fromkeys(("Line", "Result", "Run", "RunFailed", "Task"), "handle"),
    "Cause": "model.state.cluster",
    "ClusterSpec": "model.settings",
}
__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        found = globals()[name] = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    except ImportError as error:
        raise _explain(error) from None
    return found


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext orchestrator``, in a notebook: from then on ``%%orch`` runs a cell in a cluster (docs/python.md)."""
    from importlib import import_module

    shell.register_magic_function(import_module(".cell_magic", __name__).run_cell, "cell", "orch")


def forget_working_directory() -> None:
    """Take out of `sys.path` the entry that Python put first for a program: the working directory (``-m``), or the program's directory.

    A user's own ``worker.py`` may lie in the first, and the second has no top-level modules. Only orch's own programs call this function.
    """
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if not getattr(sys.flags, "safe_path", False) and sys.path[0] != home:
        del sys.path[0]


def import_own_worker() -> None:
    """Import orch's package `worker`, also where Python would find another module of that name first, such as a user's worker.py.

    Only orch's own programs call this function. A user's program that imports this package may have its own module `worker`.
    """
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    sys.path.insert(0, home)
    try:
        import worker  # noqa: F401
    finally:
        sys.path.remove(home)


def import_asyncio() -> None:
    """Import `asyncio` without `ssl`, for which orch has no use, and which takes a third of the time of that import.

    Only orch's own programs call this function.
    """
    if "ssl" in sys.modules:
        return
    sys.modules["ssl"] = None  # type: ignore[assignment]  # an import of ssl is now an ImportError, which asyncio expects
    try:
        import asyncio  # noqa: F401
    finally:
        del sys.modules["ssl"]


def end_process(code: int) -> NoReturn:
    """End this process with the exit code, without the teardown of the interpreter, which would take as long as a small run.

    Only orch's own programs call this function, after every thread has shown its output. Functions that are registered with `atexit` are
    called: `coverage` saves its data in one.
    """
    import atexit
    import contextlib

    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # the stream was closed, or its reader has ended
            stream.flush()
    os._exit(code)


def _explain(error: ImportError) -> ImportError:
    """The error with a remedy, if a module of the user has the name of orch's own package `worker`."""
    import worker

    if hasattr(worker, "context"):
        return error
    place = getattr(worker, "__file__", "another module")
    return ImportError(f"orchestrator needs its package 'worker', but 'import worker' gives {place}: give that another name")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
