"""What the tasks of a run write: kept if it came over a connection, and told to those who show or record it. The files are the truth."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable

from worker.clock import now
from worker.protocol import messages

from ..model.run.cluster import TaskStatus
from ..model.run.events import TaskFirstOutput
from ..model.spec import ClusterSpec, works
from ..record.output.log_index import Marks
from ..record.storage.run_directory import RunDir


class Outputs:
    """Made for one run. `happen` gets an event for each task's first output; `show` gets how far a file has grown."""

    def __init__(
        self, spec: ClusterSpec, rundir: RunDir, happen: Callable[[TaskFirstOutput], None], show: Callable[[str, int, str, int], None]
    ) -> None:
        self._spec, self._rundir, self._happen, self._show = spec, rundir, happen, show
        self._marks = Marks(rundir)
        self._spoken: set[tuple[str, int]] = set()
        self.heard_at = 0.0
        """When a task that does the training last wrote anything; the others live on while it hangs."""

    def on_output(self, frame: messages.Output, data: bytes) -> None:
        """Store bytes that a host has sent. Raises `OSError`."""
        size = self._rundir.append_output(frame.task, frame.attempt, frame.stream, frame.offset, data)
        if frame.stream in messages.STREAMS:
            self.on_grew(messages.Grew(frame.task, frame.attempt, frame.stream, size))

    def on_grew(self, frame: messages.Grew) -> None:
        """The file of a stream has grown."""
        task, attempt, stream, size = frame.task, frame.attempt, frame.stream, frame.size
        if (task, attempt) not in self._spoken:
            self._spoken.add((task, attempt))
            self._happen(TaskFirstOutput(task, attempt, now()))
        if works(messages.TaskId.parse(task).type, self._spec):
            self.heard_at = now()
        due_s = self._marks.grew(task, attempt, stream, size)
        if due_s is not None:
            asyncio.get_running_loop().call_later(due_s, self.write_marks)
        self._show(task, attempt, stream, size)

    def write_marks(self) -> None:
        """Note how far the files have grown by now."""
        self._marks.write(now())

    def cut(self, tasks: Iterable[TaskStatus]) -> None:
        """Nobody wanted to wait for what their hosts had still to send: say in their logs where they end."""
        for task in tasks:
            path = self._rundir.log_path(task.name, task.attempt, "stderr")
            words = f"orch: the output ends here: the rest was left on {task.host}\n".encode()
            with contextlib.suppress(OSError):
                size = path.stat().st_size if path.exists() else 0
                self._rundir.append_output(task.name, task.attempt, "stderr", size, b"\n" * bool(size) + words)
