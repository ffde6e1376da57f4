"""``python start_task.py FD TASK PROGRAM``: the first code of a task. FD holds its `messages.BootstrapOrder`.

The other two words are for whoever reads `ps`. Nothing may be imported here that the interpreter has
not imported already: what the user's script finds must be what plain Python would have given it.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    loaded = frozenset(sys.modules)
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # our own directory
    # The package goes by a private name, and without running its __init__: a user's own `worker` stays possible.
    package = type(sys)("_orch_worker")
    package.__path__ = [os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]
    sys.modules[package.__name__] = package
    from _orch_worker.task import bootstrap  # type: ignore[import-not-found]

    bootstrap.main(int(sys.argv[1]), loaded)
