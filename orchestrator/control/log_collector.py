"""The output of the tasks: stored if a host sent it, and reported to the viewer and to the index of times. The files are the truth."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from worker.machine.clock import now
from worker.protocol import messages
from worker.protocol.task_id import STREAMS, TaskId
from worker.values.words import count_of, few

from ..model.settings import ClusterSpec, works
from ..model.state.events import TaskFirstOutput
from ..record.log_index import Marks
from ..record.run_directory import RunDir


class LogCollector:
    """Made for one run. `on_event` gets the first output of each attempt; `show` task, attempt, stream and size of what grew."""

    def __init__(
        self, spec: ClusterSpec, rundir: RunDir, on_event: Callable[[TaskFirstOutput], None], show: Callable[[str, int, str, int], None]
    ) -> None:
        self._spec, self._rundir, self._on_event, self._show = spec, rundir, on_event, show
        self._marks = Marks(rundir)
        self._begun: set[int] = set()
        """The attempts whose tasks were started."""
        self._spoken: set[tuple[str, int]] = set()
        self._came: dict[tuple[str, int, str], int] = {}
        self._written: dict[tuple[str, int, str], tuple[int, str]] = {}
        """How many bytes of each stream have come from its host; and how many the task has written, as this host has told."""
        self.written_at = 0.0
        """When a task that trains last wrote anything. The other tasks do not count: they go on while the training hangs."""

    def on_output(self, frame: messages.Output, data: bytes) -> None:
        """The file of a stream has grown, or is to grow by bytes that its host has sent. Raises `OSError`."""
        task, attempt, stream, size = frame.task, frame.attempt, frame.stream, frame.offset
        if data:
            size = self._came[task, attempt, stream] = self._rundir.append_output(task, attempt, stream, frame.offset, data)
        if stream not in STREAMS:
            return
        if (task, attempt) not in self._spoken:
            self._spoken.add((task, attempt))
            self._on_event(TaskFirstOutput(task, attempt, now()))
        if works(TaskId.parse(task).type, self._spec):
            self.written_at = now()
        due_s = self._marks.grew(task, attempt, stream, size)
        if due_s is not None:
            asyncio.get_running_loop().call_later(due_s, self.write_marks)
        self._show(task, attempt, stream, size)

    def expect(self, swept: messages.TaskSwept, host: str) -> None:
        """A task writes nothing more, and its host has told how much it has written."""
        for stream, size in swept.written.items():
            self._written[swept.task, swept.attempt, stream] = size, host

    def begin(self, attempt: int) -> None:
        self._begun.add(attempt)

    def describe_gone(self, end_of: Callable[[str], str]) -> list[str]:
        """A line about output that was removed while the run went on, which no task notices; and one for each stream whose last bytes have
        not come. `end_of`: how the channel of a host has ended."""
        lines = []
        names = [f"attempt-{number}" for number in sorted(self._begun.difference(self._rundir.attempts()))] or self._missing()
        if names:
            lines.append(f"{few(names)} was removed while the run went on: output of its tasks is lost")
        for (task, attempt, stream), (size, host) in self._written.items():
            if (lost := size - self._came.get((task, attempt, stream), 0)) > 0:
                where = f"attempt-{attempt}/{task}: the last {count_of(lost, 'byte')} of its {stream}"
                lines.append(f"{where} did not come from host {host}: {end_of(host)}")
        return lines

    def _missing(self) -> list[str]:
        """The directories, below the run's own, of output that has come and is not there any more."""
        streams = {(task, attempt): [self._rundir.log_path(task, attempt, stream) for stream in STREAMS] for task, attempt in self._spoken}
        return sorted(f"attempt-{attempt}/{task}" for (task, attempt), paths in streams.items() if not any(map(os.path.lexists, paths)))

    def write_marks(self) -> None:
        """Write the present sizes of the files into the index of times."""
        self._marks.write(now())
