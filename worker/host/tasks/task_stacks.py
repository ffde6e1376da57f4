"""Asks a task for the stacks of its threads. The task writes them itself on SIGQUIT, into a file that exists as soon as it can do so."""

from __future__ import annotations

import contextlib
import os
import signal
import time

from ... import task_files
from ..processes import process_groups, process_state
from .log_files import TaskOutput

PATIENCE_S = 2.0
"""How long a task that was asked is not sent SIGTERM, which would end it before its SIGQUIT handler has run."""
QUIET_S = 0.3
"""The stacks are complete when nothing was added for this long: a task may lose its core, or wait for the disk, in the middle of them."""
POLL_S = 0.05
"""How often the size of the file is read."""


class Stacks:
    """The stacks of one attempt of a task, whose first process is `pid`."""

    def __init__(self, output: TaskOutput, pid: int) -> None:
        self._output, self._pid = output, pid
        self._size_asked = self._size_seen = 0
        """Of the file: when the task was asked, and when it was last examined."""
        self._asked_at = self._grew_at = float("-inf")
        """By the monotonic clock."""
        self._block = ""
        """What kept the task from acting when it was asked; see `process_state.describe_block`."""

    @property
    def _path(self) -> str:
        return os.path.join(self._output.directory, task_files.STACKS)

    def request(self) -> None:
        """Ask the task, if its file exists: without a handler, SIGQUIT would kill it. If it cannot answer, the file gets the reason."""
        if not os.path.exists(self._path):
            return
        self._append(f"orch: asked at {time.strftime('%Y-%m-%d %H:%M:%S')}\n")
        why_not = process_state.why_no_stacks(self._pid)
        self._block = process_state.describe_block(self._pid)
        if self._block or why_not:
            self._append(f"orch: {f'is {self._block}' if self._block else why_not}\n")
        if not why_not:
            self._size_asked = self._size_seen = self._size()
            self._asked_at = time.monotonic()
            process_groups.signal_process(self._pid, signal.SIGQUIT)

    def resume(self) -> None:
        """Continue a task that was asked while it was stopped (SIGSTOP), so that it can answer."""
        if self.are_coming():
            process_groups.signal_group(self._pid, signal.SIGCONT)
            self._asked_at = time.monotonic()

    def are_coming(self) -> bool:
        """The task was asked, and has not written all of its stacks."""
        now, size = time.monotonic(), self._size()
        if now - self._asked_at >= PATIENCE_S:
            return False
        if size != self._size_seen:
            self._size_seen, self._grew_at = size, now
        return self._size_seen == self._size_asked or now - self._grew_at < QUIET_S

    def describe_block(self) -> str:
        """What keeps the task from acting; see `process_state.describe_block`. While it writes its stacks: what did when it was asked."""
        return self._block if self.are_coming() else process_state.describe_block(self._pid)

    def _append(self, text: str) -> None:
        with contextlib.suppress(OSError), open(self._path, "a") as file:
            file.write(text)

    def _size(self) -> int:
        try:
            return os.path.getsize(self._path)
        except OSError:
            return 0
