"""orch: starts, watches and explains TensorFlow clusters.

Importing this costs nothing; `launch` and what it gives are imported when they are first used (docs/python.md).
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from .api import launch as launch
    from .errors import OrchError as OrchError
    from .errors import SpecError as SpecError
    from .errors import UsageError as UsageError
    from .handle import Line as Line
    from .handle import Result as Result
    from .handle import Run as Run
    from .handle import RunFailed as RunFailed
    from .handle import Task as Task
    from .model.run.cluster import Cause as Cause
    from .model.spec import ClusterSpec as ClusterSpec

__version__ = "0.1.0"

_HOMES = {
    "launch": "api",
    **dict.fromkeys(("OrchError", "SpecError", "UsageError"), "errors"),
    **dict.fromkeys(("Line", "Result", "Run", "RunFailed", "Task"), "handle"),
    "Cause": "model.run.cluster",
    "ClusterSpec": "model.spec",
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


def import_own_worker() -> None:
    """Import orch's package `worker`, whatever else of that name is found first, such as a user's worker.py on PYTHONPATH.

    For the programs that are orch's own. A user's program that imports this package may have its own module `worker`.
    """
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    sys.path.insert(0, home)
    try:
        import worker  # noqa: F401
    finally:
        sys.path.remove(home)


def end_process(code: int) -> NoReturn:
    """End this process with this exit code, without the interpreter's teardown, which takes as long as all of a small run but its imports.

    For the programs that are orch's own, once every thread that has something to show has shown it. Functions that were registered with
    `atexit` are called: whoever measures coverage saves it there.
    """
    import atexit
    import contextlib

    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # it was closed, or nobody reads it any more
            stream.flush()
    os._exit(code)


def _explain(error: ImportError) -> ImportError:
    """A module of the user's may have the name of orch's own package `worker`."""
    import worker

    if hasattr(worker, "context"):
        return error
    place = getattr(worker, "__file__", "another module")
    return ImportError(f"orchestrator needs its package 'worker', but 'import worker' gives {place}: give that another name")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
