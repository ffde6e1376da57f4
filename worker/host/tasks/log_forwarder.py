"""Tells the controller what the tasks write: sizes if it sees the files itself, the bytes if it does not."""

from __future__ import annotations

import contextlib
from typing import Any

from ... import clock
from ...protocol import messages
from ..link import Link
from ..loop import Loop
from .log_files import TaskOutput, Watch

FLUSH_S = 0.02
"""How long a stream that has just been announced may grow before it is announced again."""
LOOK_S = 0.05
"""How often files are looked at where the kernel does not tell when they grow."""
REPORT_S = 0.5
CREDIT = 1024 * 1024
"""Bytes of output that may be on the way to a controller that has not stored them yet."""


class Relay:
    """Follows the outputs that were added. A controller that does not read costs nothing: the files are the buffer."""

    def __init__(self, loop: Loop, link: Link) -> None:
        self._loop, self._link = loop, link
        self._watch = Watch()
        self._dirty: dict[int, TaskOutput] = {}
        self._reports: dict[int, tuple[TaskOutput, dict[str, Any]]] = {}
        self._reporting = False
        self._credit = CREDIT
        self._listening = False
        self.shared = True
        link.on_room = self.flush
        self._listen()

    @property
    def is_idle(self) -> bool:
        """All output so far has been handed to the channel."""
        return not self._dirty

    def add(self, output: TaskOutput) -> None:
        """Before the task starts, or its first bytes would go unnoticed."""
        if not self.shared:
            output.told.setdefault(messages.STACKS, 0)
        self._watch.add(output)
        if self._watch.is_blind and self._listening:  # the kernel has run out of watches
            self._loop.forget(self._watch)
            self._listening = False
            self._look()

    def remove(self, output: TaskOutput) -> None:
        """Nothing will be written any more; what has been is still handed on."""
        self._watch.remove(output)
        self.announce(output)

    def announce(self, output: TaskOutput) -> None:
        """Hand on what `output` holds by now, ahead of any frame that is sent later (if the channel has room)."""
        self._dirty[id(output)] = output
        self._tell_begin(output)
        self._take_report(output)
        self._send_reports()
        self.flush()

    def acknowledge(self, size: int) -> None:
        """The controller has stored `size` bytes more."""
        self._credit += size
        self.flush()

    def flush(self) -> None:
        """Hand on what is there, as far as there is room."""
        hand_on = self._tell_sizes if self.shared else self._send_bytes
        while self._dirty and not self._link.is_full and (self.shared or self._credit > 0):
            key = next(iter(self._dirty))
            output = self._dirty.pop(key)
            if hand_on(output):  # it goes behind the others: one that never stops writing must not keep them waiting
                self._dirty[key] = output

    def close(self) -> None:
        self._watch.close()

    def _listen(self) -> None:
        self._listening = not self._watch.is_blind
        if self._listening:
            self._loop.on_readable(self._watch, self._hear)
        else:
            self._loop.after(LOOK_S, self._look)

    def _hear(self) -> None:
        # Listened to again only after FLUSH_S: a task that writes in a loop must not keep us busy.
        self._loop.forget(self._watch)
        self._listening = False
        self._look(FLUSH_S)

    def _look(self, again_s: float = 0.0) -> None:
        for output in self._watch.changed():
            self._dirty[id(output)] = output
            self._tell_begin(output)
            self._take_report(output)
        self._send_reports_later()
        self.flush()
        self._loop.after(again_s, self._listen)

    def _tell_sizes(self, output: TaskOutput) -> bool:
        """Returns whether there is more: never."""
        for stream in messages.STREAMS:
            size = output.size(stream)
            if size > output.told[stream]:
                output.told[stream] = size
                self._link.send(messages.Grew(output.task, output.attempt, stream, size))
        return False

    def _send_bytes(self, output: TaskOutput) -> bool:
        """A piece of each stream. Returns whether there may be more."""
        has_sent = False
        for stream in output.told:
            if self._credit <= 0 or self._link.is_full:
                return True
            offset, data = output.read(stream, self._credit)
            if data:
                has_sent = True
                self._credit -= len(data)
                self._link.send(messages.Output(output.task, output.attempt, stream, offset), data)
        return has_sent

    def _tell_begin(self, output: TaskOutput) -> None:
        at = output.begun_at()
        if at is not None:
            # The task has told it, which may have a clock of its own (time_namespaces(7)); ours goes by what we send.
            begun = clock.from_monotonic(at)
            self._link.send(messages.TaskBegan(output.task, output.attempt, begun if begun <= clock.now() else clock.now()))

    def _take_report(self, output: TaskOutput) -> None:
        report = output.last_report()
        if report is not None:
            self._reports[id(output)] = (output, report)

    def _send_reports_later(self) -> None:
        if self._reports and not self._reporting:
            self._reporting = True
            self._send_reports()
            self._loop.after(REPORT_S, self._reports_may_go)

    def _reports_may_go(self) -> None:
        self._reporting = False
        self._send_reports_later()

    def _send_reports(self) -> None:
        for output, report in self._reports.values():
            at = report.pop("at", None)
            when = clock.from_system(at) if isinstance(at, float) else clock.now()
            with contextlib.suppress(messages.ContractError):  # the program itself may have written into the file
                words = {"task": output.task, "attempt": output.attempt, "at": when, "values": report}
                self._link.send(messages.from_json(messages.TaskReported, words))
        self._reports.clear()
