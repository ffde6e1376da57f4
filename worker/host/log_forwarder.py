"""Sends the output of the tasks to the controller: the sizes of the files if the controller sees the files, otherwise the bytes."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Collection, Iterator

from ..machine import clock
from ..machine.directory import Directory
from ..protocol import messages, task_files
from ..protocol.task_id import FETCHED, file_of
from ..values.codec import ContractError, from_json
from .facts.host_facts import free_bytes
from .log_files import Inotify, TaskOutput
from .network.link import Link
from .processes.loop import Loop

FLUSH_S, QUIET_S, MOST_FLUSH_S, SPARING = 0.02, 0.1, 0.25, 300
"""The shortest time between two looks at what has grown, the shortest after a look that has found no output, and the longest. Between these
it is so many times what the look took of a core: then many tasks that write all the time cost about a third of a hundredth of a core."""
REPORT_S = 4.0
"""The shortest time between two reports of one task: each is recorded, and a hundred tasks may report all day."""
CREDIT = 1024 * 1024
"""Bytes of output that may be on the way to the controller without its having stored them."""
TURNS = 5
"""A file whose growth the kernel reports is looked at without a report, too, but only in each fifth second."""
DISK_FULL_BYTES = 64 * 1024


class LogForwarder:
    """Follows the files of the tasks that were added. A controller that does not read costs no memory: the files are the buffer."""

    def __init__(self, loop: Loop, link: Link) -> None:
        self._loop, self._link = loop, link
        self._inotify = Inotify()
        self._watches: dict[TaskOutput, int] = {}
        """The files that are followed, each with the number of the kernel's watch."""
        self._dirty: dict[TaskOutput, set[str]] = {}
        """The streams that may have grown since the last report to the controller, by task, in the order of the tasks' turns."""
        self._held: set[TaskOutput] = set()
        """Tasks with reports that came before the next one was due."""
        self._turn = 0
        self._credit = CREDIT
        """Bytes that may be sent before the controller has acknowledged more."""
        self._disk_full = False
        self._root: Directory | None = None
        self._shared = True
        link.on_room = self.flush
        if self._inotify.fileno() >= 0:
            self._listen()

    def begin(self, root: Directory, *, shared: bool) -> None:
        """`root`: the directory that holds the output of all tasks. `shared`: the controller sees this directory."""
        self._root, self._shared = root, shared

    @property
    def is_idle(self) -> bool:
        """The controller has all output so far: it sees the files, or it has stored the bytes.

        Bytes that have only been handed to the channel may still be lost there: `srun` has ended before the last half megabyte was through.
        """
        return not self._dirty and (self._shared or self._credit >= CREDIT)

    def add(self, output: TaskOutput) -> None:
        """Follow the files of a task. To be called before the task starts, or its first bytes would be noticed late."""
        if not self._shared:
            output.sent |= dict.fromkeys(FETCHED, 0)
        self._watches[output] = self._inotify.add(output.directory)

    def remove(self, output: TaskOutput) -> None:
        """Follow the files of a task no longer; what they hold is still handed on."""
        self._inotify.remove(self._watches.pop(output))
        self.announce(output)
        self._held.discard(output)

    def sizes(self, output: TaskOutput) -> dict[str, int]:
        """Return how many bytes the controller is to get of each stream of a task; nothing if it sees the files."""
        return {} if self._shared else {stream: size for stream in output.sent if (size := output.size(stream))}

    def announce(self, output: TaskOutput) -> None:
        """Hand on what the files hold by now, ahead of any frame that is sent later (if the channel has room)."""
        output.next_report_at = 0.0
        self._look(output)
        self.flush()

    def acknowledge(self, size: int) -> None:
        """The controller has stored `size` bytes more."""
        self._credit += size
        self.flush()

    def flush(self) -> None:
        """Hand on what the files hold, as far as the channel has room."""
        with self._looking():
            while self._dirty and not self._link.is_full and (self._shared or self._credit > 0):
                output = next(iter(self._dirty))
                grown = self._dirty.pop(output)
                streams = [stream for stream in output.sent if stream in grown]
                if self._shared:
                    self._send_sizes(output, streams)
                elif self._send_bytes(output, streams):  # the others come first: a task that never stops writing must not keep them waiting
                    self._dirty[output] = grown

    def poll(self) -> None:
        """To be called about once a second: looks at the free space, at the files that the kernel does not watch, and in turns at all."""
        self.check_disk()
        self._turn += 1
        with self._looking():
            for place, (output, watch) in enumerate(self._watches.items(), self._turn):
                if watch < 0 or place % TURNS == 0:
                    self._look(output)
                elif output in self._held:
                    self._send_report(output)
            self.flush()

    def check_disk(self) -> None:
        """Send HostBroken, once, if there is no space left for the tasks' output."""
        if self._root is None or self._disk_full:
            return
        directory = self._root.path
        if free_bytes(directory) < DISK_FULL_BYTES:
            self._disk_full = True
            place = "" if self._shared else f" on {socket.gethostname()}"
            remedy = "name another directory with --home" if self._shared else "set TMPDIR in setup:"
            text = f"no space left for the tasks' output in {directory}{place}; make room, or {remedy}"
            self._link.send(messages.HostBroken(text, clock.now()))

    def _listen(self) -> None:
        self._loop.on_readable(self._inotify, self._on_growth)

    def _on_growth(self) -> None:
        # The next growth is noticed some time later: a task that writes in a loop must not keep the agent busy.
        self._loop.forget(self._inotify)
        used = time.process_time()
        grown, lost = self._inotify.read()
        with self._looking():
            for output, watch in self._watches.items():
                if lost or watch in grown:
                    self._look(output, None if lost else grown[watch])
            least = FLUSH_S if self._dirty else QUIET_S
            self.flush()
        used = time.process_time() - used
        self._loop.after(min(MOST_FLUSH_S, max(least, SPARING * used)), self._listen)

    @contextlib.contextmanager
    def _looking(self) -> Iterator[None]:
        """A look at the files of many tasks: where they are is found out once, and what they hold is sent together."""
        with self._link.gathered(), self._root.settled() if self._root is not None else contextlib.nullcontext():
            yield

    def _look(self, output: TaskOutput, grown: Collection[str] | None = None) -> None:
        """Take in what a task has written; `flush` hands the output on. `grown`: the names of the files that have grown; None: unknown."""
        if streams := [stream for stream in output.sent if grown is None or file_of(stream) in grown]:
            self._dirty.setdefault(output, set()).update(streams)
        if (grown is None or task_files.BEGUN in grown) and (begin := output.read_begin()) is not None:
            self._link.send(begin)
        if grown is None or task_files.SAVING in grown:
            for frame in output.read_saving():
                self._link.send(frame)
        if grown is None or task_files.REPORTS in grown:
            self._send_report(output)

    def _send_sizes(self, output: TaskOutput, streams: Collection[str]) -> None:
        for stream in streams:
            size = output.size(stream)
            if size > output.sent[stream]:
                output.sent[stream] = size
                self._link.send(messages.Output(output.task, output.attempt, stream, size))

    def _send_bytes(self, output: TaskOutput, streams: Collection[str]) -> bool:
        """Send a piece of each of these streams. Returns whether there may be more."""
        has_sent = False
        for stream in streams:
            offset, data = output.read(stream, self._credit)
            if data:
                has_sent = True
                self._credit -= len(data)
                self._link.send(messages.Output(output.task, output.attempt, stream, offset), data)
        return has_sent

    def _send_report(self, output: TaskOutput) -> None:
        # The first report comes at once: from which step on an attempt trains tells what the attempt before has lost.
        if time.monotonic() < output.next_report_at and not output.begins_to_report():
            self._held.add(output)
            return
        self._held.discard(output)
        for report in output.last_reports():
            output.next_report_at = time.monotonic() + REPORT_S
            at = report.pop("at")
            when = clock.from_system(at) if isinstance(at, float) else clock.now()
            with contextlib.suppress(ContractError):  # any program may write into the file of its reports
                fields = {"task": output.task, "attempt": output.attempt, "at": when, "values": report}
                self._link.send(from_json(messages.TaskReported, fields))
