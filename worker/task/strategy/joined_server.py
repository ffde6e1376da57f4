"""Tells the agent that the program stands in `Server.join` of TensorFlow, which never returns: the task then serves others, for ever.

Where all tasks do so, as in a script for parameter servers whose run has no chief, no one gives them work (`readiness.describe_serving`).
"""

from __future__ import annotations

import os

from ...protocol import task_files
from .. import patches
from ..observe import profiling
from ..patches.features import SERVING

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def watch(log_dir: str) -> None:
    """Add a line to the task's reports when this process calls `Server.join` in its main thread."""
    patches.after(SERVING, "tensorflow.python.training.server_lib", lambda module: _watch(log_dir))


def _watch(log_dir: str) -> None:
    pid = os.getpid()

    def join(real: Any, self: Any) -> Any:
        import threading  # TensorFlow has imported threading by now
        import time

        # A program may serve in a thread or in a child, and train at the same time.
        if os.getpid() == pid and threading.current_thread() is threading.main_thread():
            profiling.begin(log_dir)
            line = f'{{"at": {time.time()!r}, "{task_files.SERVES}": true}}\n'
            try:
                fd = task_files.open_regular(os.path.join(log_dir, task_files.REPORTS), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
                with open(fd, "ab", buffering=0) as file:
                    file.write(line.encode())
            except OSError:
                pass  # the log directory is removed or full: the task can still serve
        return real(self)

    patches.replace(SERVING, "Server.join", join)
