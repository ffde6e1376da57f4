"""The stacks of a task: it writes them itself, when SIGQUIT asks it, into a file that is there once it can."""

from __future__ import annotations

import os
import signal
import time

from ... import task_files
from . import exit_info, process_state, processes
from .log_files import TaskOutput

PATIENCE_S = 2.0
"""How long at most a task that was asked is left alone: a SIGTERM that came at once would end it before its handler has run."""
QUIET_S = 0.3
"""They are all there when nothing was added for so long: a task may be put off, or wait for the disk, in the middle of them."""
LOOK_S = 0.05
"""How often to look."""


class Stacks:
    """Those of one attempt of a task. `output`: its files; `pid`: its first process."""

    def __init__(self, output: TaskOutput, pid: int) -> None:
        self._output, self._pid = output, pid
        self._asked = self._seen = 0
        self._asked_at = self._grew_at = float("-inf")
        self._held = ""

    @property
    def _path(self) -> str:
        return os.path.join(self._output.directory, task_files.STACKS)

    def ask(self) -> None:
        """If it is ready for it: SIGQUIT kills any other program. Of one that will not answer, the file says why."""
        if not os.path.exists(self._path):
            return
        exit_info.append(self._path, f"orch: asked at {time.strftime('%Y-%m-%d %H:%M:%S')}\n")
        deaf = process_state.why_deaf(self._pid)
        self._held = process_state.what_holds(self._pid)
        if self._held or deaf:
            exit_info.append(self._path, f"orch: {f'is {self._held}' if self._held else deaf}\n")
        if not deaf:
            self._asked = self._seen = self._size()
            self._asked_at = time.monotonic()
            processes.signal_one(self._pid, signal.SIGQUIT)

    def wake(self) -> None:
        """SIGCONT to one that was asked while it was stopped, and could not answer."""
        if self.are_coming():
            processes.signal_group(self._pid, signal.SIGCONT)
            self._asked_at = time.monotonic()

    def are_coming(self) -> bool:
        """It was asked, and has not answered in full."""
        now, size = time.monotonic(), self._size()
        if now - self._asked_at >= PATIENCE_S:
            return False
        if size != self._seen:
            self._seen, self._grew_at = size, now
        return self._seen == self._asked or now - self._grew_at < QUIET_S

    def what_holds(self) -> str:
        """What keeps the task from doing anything; see `conditions`. One that writes its stacks waits for the disk, for a moment."""
        return self._held if self.are_coming() else process_state.what_holds(self._pid)

    def _size(self) -> int:
        try:
            return os.path.getsize(self._path)
        except OSError:
            return 0
