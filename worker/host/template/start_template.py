"""``python template/start_template.py FD DIRECTORY MODULE…``: a template. Its forks are tasks; FD is its end of the agent's socket,
DIRECTORY the one in which the program lies.

A fork must be what an exec would have given, so this file stands to a forked task as `task/start_task.py` does to a fresh one.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # our own directory
    package = type(sys)("_orch_worker")
    package.__path__ = [os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))]
    sys.modules[package.__name__] = package
    from _orch_worker.host.template import template_server  # type: ignore[import-not-found]
    from _orch_worker.task import bootstrap  # type: ignore[import-not-found]

    order = template_server.serve(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
    if order is not None:  # we are a task now
        bootstrap.run(order, frozenset(sys.modules))
