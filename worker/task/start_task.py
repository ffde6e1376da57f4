"""``python start_task.py FD TASK PROGRAM``: the first code of a task. FD holds its `orders.BootstrapOrder`.

TASK and PROGRAM are only for readers of `ps`. This module imports only what the interpreter has imported already, because the user's script
must find the same modules as under plain Python.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    loaded = frozenset(sys.modules)
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # the directory of this file
    # The package has a private name, and its __init__ does not run: the user may have a module `worker`.
    package = type(sys)("_orch_worker")
    package.__path__ = [os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]
    sys.modules[package.__name__] = package
    from _orch_worker.task import bootstrap  # type: ignore[import-not-found]

    bootstrap.main(int(sys.argv[1]), loaded)
