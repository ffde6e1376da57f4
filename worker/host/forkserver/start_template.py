"""``python start_template.py FD DIRECTORY MODULE…``: a template, whose forks are tasks.

FD is the template's end of the socket to the agent; DIRECTORY is that of the program.

A forked task must not differ from an executed one, so this file is for a forked task what `task/start_task.py` is for an executed one.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # the directory of this file
    package = type(sys)("_orch_worker")
    package.__path__ = [os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))]
    sys.modules[package.__name__] = package
    from _orch_worker.host.forkserver import template_server  # type: ignore[import-not-found]
    from _orch_worker.task import bootstrap  # type: ignore[import-not-found]

    order = template_server.serve(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
    bootstrap.run(order)  # this process is a task now
