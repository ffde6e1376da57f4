"""Requests the stacks of a task's threads. The task itself writes them on SIGQUIT, into a file that exists as soon as it can do so."""

from __future__ import annotations

import contextlib
import os
import signal
import time

from ..protocol import task_files
from .log_files import TaskOutput
from .processes import process_groups, process_state

PATIENCE_S = 2.0
"""How long after a request the task gets no SIGTERM, which would end the task before its SIGQUIT handler has run."""
QUIET_S = 0.3
"""The stacks are complete when the file has not grown for this long: a task that writes may lose its core, or wait for the disk."""
POLL_S = 0.05
"""How often the size of the file is read."""


class Stacks:
    """The stacks of one attempt of a task, whose first process is `pid`."""

    def __init__(self, output: TaskOutput, pid: int) -> None:
        self._output, self._pid = output, pid
        self._size_at_request = self._size_seen = 0
        """The size of the file at the request, and when it was last read."""
        self._requested_at = self._grew_at = float("-inf")

    @property
    def _path(self) -> str:
        return os.path.join(self._output.directory, task_files.STACKS)

    def request(self) -> None:
        """Send SIGQUIT, if the file exists: without a handler, SIGQUIT would kill the task. Writes the reason if the task cannot answer."""
        if task_files.size(self._path) < 0:
            return
        why_not = process_state.why_no_stacks(self._pid)
        block = process_state.describe_block(self._pid)
        lines = [f"asked at {time.strftime('%Y-%m-%d %H:%M:%S')}", f"is {block}" if block else why_not]
        with contextlib.suppress(OSError), open(task_files.open_regular(self._path, os.O_WRONLY | os.O_APPEND), "a") as file:
            file.writelines(f"orch: {line}\n" for line in lines if line)
        if not why_not:
            self._size_at_request = self._size_seen = self._size()
            self._requested_at = time.monotonic()
            process_groups.signal_process(self._pid, signal.SIGQUIT)

    def resume(self) -> None:
        """Continue a task that was stopped (SIGSTOP) at the request, so that the task can answer."""
        if self.are_pending():
            process_groups.signal_group(self._pid, signal.SIGCONT)
            self._requested_at = time.monotonic()

    def are_pending(self) -> bool:
        """The stacks were requested, and the task has not written all of them."""
        now, size = time.monotonic(), self._size()
        if now - self._requested_at >= PATIENCE_S:
            return False
        if size != self._size_seen:
            self._size_seen, self._grew_at = size, now
        return self._size_seen == self._size_at_request or now - self._grew_at < QUIET_S

    def _size(self) -> int:
        return max(0, task_files.size(self._path))
