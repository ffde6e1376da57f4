"""Sends the output of the tasks to the controller: the sizes of the files if the controller sees the files, otherwise the bytes."""

from __future__ import annotations

import contextlib
import socket
from typing import Any

from ... import clock
from ...directory import Directory
from ...protocol import messages
from ...protocol.codec import ContractError, from_json
from ...protocol.task_id import STACKS, STREAMS
from ..host_facts import free_bytes
from ..link import Link
from ..loop import Loop
from .log_files import LogWatcher, TaskOutput

FLUSH_S = 0.02
"""The shortest time between two reports of growth."""
POLL_S = 0.05
"""How often sizes are read where the kernel does not report growth."""
REPORT_S = 0.5
"""How often a task's newest report is sent."""
CREDIT = 1024 * 1024
"""Bytes of output that may be on the way to the controller without its having stored them."""
DISK_FULL_BYTES = 64 * 1024
"""Free space at which the disk counts as full."""


class LogForwarder:
    """Follows the files of the tasks that were added. A controller that does not read costs no memory: the files are the buffer."""

    def __init__(self, loop: Loop, link: Link) -> None:
        self._loop, self._link = loop, link
        self._watcher = LogWatcher()
        self._dirty: dict[int, TaskOutput] = {}
        """Files that may have grown since the last report to the controller, by `id`."""
        self._reports: dict[int, tuple[TaskOutput, dict[str, Any]]] = {}
        """Reports to be sent, by the `id` of the task's files."""
        self._has_report_timer = False
        self._credit = CREDIT
        """Bytes that may be sent before the controller has acknowledged more."""
        self._listening = False
        self._disk_full = False
        self._root: Directory | None = None
        self._shared = True
        link.on_room = self.flush
        self._listen()

    def begin(self, root: Directory, *, shared: bool) -> None:
        """`root`: the directory that holds the output of all tasks. `shared`: the controller sees this directory."""
        self._root, self._shared = root, shared

    @property
    def is_idle(self) -> bool:
        """All output so far has been handed to the channel."""
        return not self._dirty

    def add(self, output: TaskOutput) -> None:
        """Follow the files of a task. To be called before the task starts, or its first bytes would be noticed late."""
        if not self._shared:
            output.sent.setdefault(STACKS, 0)
        self._watcher.add(output)
        if self._watcher.is_blind and self._listening:  # the kernel has run out of watches
            self._loop.forget(self._watcher)
            self._listening = False
            self._poll()

    def remove(self, output: TaskOutput) -> None:
        """Follow the files of a task no longer; what they hold is still handed on."""
        self._watcher.remove(output)
        self.announce(output)

    def announce(self, output: TaskOutput) -> None:
        """Hand on what the files hold by now, ahead of any frame that is sent later (if the channel has room)."""
        self._dirty[id(output)] = output
        self._send_begin(output)
        self._read_report(output)
        self._send_reports()
        self.flush()

    def acknowledge(self, size: int) -> None:
        """The controller has stored `size` bytes more."""
        self._credit += size
        self.flush()

    def flush(self) -> None:
        """Hand on what the files hold, as far as the channel has room."""
        hand_on = self._send_sizes if self._shared else self._send_bytes
        while self._dirty and not self._link.is_full and (self._shared or self._credit > 0):
            key = next(iter(self._dirty))
            output = self._dirty.pop(key)
            if hand_on(output):  # the others come first: a task that never stops writing must not keep them waiting
                self._dirty[key] = output

    def check_disk(self) -> None:
        """Send HostBroken, once, if there is no space left for the tasks' output."""
        if self._root is None or self._disk_full:
            return
        directory = self._root.path
        free = free_bytes(directory)
        if free is not None and free < DISK_FULL_BYTES:
            self._disk_full = True
            place = "" if self._shared else f" on {socket.gethostname()}"
            remedy = "name another directory with --run-dir" if self._shared else "set TMPDIR in setup:"
            text = f"no space left for the tasks' output in {directory}{place}; make room, or {remedy}"
            self._link.send(messages.HostBroken(text, clock.now()))

    def close(self) -> None:
        self._watcher.close()

    def _listen(self) -> None:
        self._listening = not self._watcher.is_blind
        if self._listening:
            self._loop.on_readable(self._watcher, self._on_growth)
        else:
            self._loop.after(POLL_S, self._poll)

    def _on_growth(self) -> None:
        # The next event is read after FLUSH_S: a task that writes in a loop must not keep the agent busy.
        self._loop.forget(self._watcher)
        self._listening = False
        self._poll(FLUSH_S)

    def _poll(self, again_s: float = 0.0) -> None:
        for output in self._watcher.changed():
            self._dirty[id(output)] = output
            self._send_begin(output)
            self._read_report(output)
        self._send_reports_later()
        self.flush()
        self._loop.after(again_s, self._listen)

    def _send_sizes(self, output: TaskOutput) -> bool:
        """Returns whether there is more, which is never the case."""
        for stream in STREAMS:
            size = output.size(stream)
            if size > output.sent[stream]:
                output.sent[stream] = size
                self._link.send(messages.Grew(output.task, output.attempt, stream, size))
        return False

    def _send_bytes(self, output: TaskOutput) -> bool:
        """Send a piece of each stream. Returns whether there may be more."""
        has_sent = False
        for stream in output.sent:
            if self._credit <= 0 or self._link.is_full:
                return True
            offset, data = output.read(stream, self._credit)
            if data:
                has_sent = True
                self._credit -= len(data)
                self._link.send(messages.Output(output.task, output.attempt, stream, offset), data)
        return has_sent

    def _send_begin(self, output: TaskOutput) -> None:
        at = output.begun_at()
        if at is not None:
            # The task wrote the time, and may have a clock of its own (time_namespaces(7)); a time in the future is not believed.
            begun = clock.from_monotonic(at)
            self._link.send(messages.TaskBegan(output.task, output.attempt, begun if begun <= clock.now() else clock.now()))

    def _read_report(self, output: TaskOutput) -> None:
        report = output.last_report()
        if report is not None:
            self._reports[id(output)] = (output, report)

    def _send_reports_later(self) -> None:
        """At once, and then not before REPORT_S have passed."""
        if self._reports and not self._has_report_timer:
            self._has_report_timer = True
            self._send_reports()
            self._loop.after(REPORT_S, self._on_report_timer)

    def _on_report_timer(self) -> None:
        self._has_report_timer = False
        self._send_reports_later()

    def _send_reports(self) -> None:
        for output, report in self._reports.values():
            at = report.pop("at", None)
            when = clock.from_system(at) if isinstance(at, float) else clock.now()
            with contextlib.suppress(ContractError):  # any program may write into the file of its reports
                fields = {"task": output.task, "attempt": output.attempt, "at": when, "values": report}
                self._link.send(from_json(messages.TaskReported, fields))
        self._reports.clear()
