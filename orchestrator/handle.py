"""A run that a Python program has launched: what becomes of it, what it writes, and what can be done to it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, Literal, TypeVar

from worker import task_files
from worker.fast_dataclass import dataclass
from worker.protocol.messages import STREAMS

from .errors import BROKEN, OrchError, UsageError
from .model.run.cluster import Cause, Cluster, TaskStatus
from .model.run.readiness import group_tasks
from .record.output.log_view import Follower, LogView
from .record.storage.run_directory import RunDir
from .record.storage.run_progress import Progress
from .record.storage.run_store import NO_TASKS_YET
from .record.text import stack_report
from .record.text.report import report

LOOK_S = 0.02
"""The time between two looks at a file or a process that is waited for."""

Stream = Literal["stdout", "stderr"]
T = TypeVar("T")


@dataclass(frozen=True)
class Task:
    """One task of a run, in its latest attempt."""

    name: str
    """As ``worker-0``."""
    host: str
    state: str
    """``pending``, ``started``, ``up`` (its runtime listens), ``succeeded``, ``failed``, ``stopped`` or ``lost`` (with its host)."""
    attempt: int
    pid: int | None
    """Its process on its host; None until it is started."""
    exit_code: int | None
    """128 + n for signal n; None until it has ended."""
    report: Mapping[str, Any]
    """The last values that it gave to `worker.report`."""


@dataclass(frozen=True)
class Line:
    """A line that a task has written, without its end."""

    task: str
    stream: str
    text: str


class RunFailed(OrchError):
    """A run did not succeed. Its text is the report that `orch up` ends with; `result` has the parts."""

    def __init__(self, result: Result) -> None:
        super().__init__(result.report)
        self.result = result
        self.exit_code = result.exit_code


@dataclass(frozen=True)
class Result:
    """How a run ended."""

    run_id: str
    run_dir: Path
    outcome: str
    """``succeeded``, ``failed``, ``cancelled``, ``timed_out``, ``broken`` (orch or a host), or ``lost``: its controller was killed."""
    exit_code: int
    """The code that `orch up` would have ended with; see docs/exit-codes.md."""
    cause: Cause | None
    """What went wrong first: `task`, `host`, `what`, `code`, `failure` (its `type`, `message`, `traceback`), `remedy`; None: nothing."""
    tasks: Mapping[str, Task]
    durations: Mapping[str, Any]
    """Seconds that the phases of the start took, by task, as in `result.json`."""
    report: str = field(repr=False)
    """How it ended, in the lines that `orch up` ends with."""

    @property
    def reports(self) -> dict[str, Mapping[str, Any]]:
        """The last values that each task gave to `worker.report`; empty for a task that gave none."""
        return {name: task.report for name, task in self.tasks.items()}

    def check(self) -> Result:
        """This result itself, if the run succeeded. Raises `RunFailed`."""
        if self.exit_code:
            raise RunFailed(self)
        return self


class Run:
    """A run that `launch` has started. All methods can be called from any thread, and beside a running event loop.

    As a context manager it stops, when it is left, what still runs. A run ends with the program that launched it in any case.
    """

    def __init__(self, run: RunDir, process: subprocess.Popen[bytes]) -> None:
        self._run, self._process = run, process
        self._progress = Progress(run)
        self._lock = threading.RLock()
        self._ended: Result | None = None
        for other in list(_ALIVE):  # a copy: other threads launch runs, too
            if not other.is_running:
                other._result()
        _ALIVE.add(self)

    def __repr__(self) -> str:
        return f"<Run {self.run_id}: {self._ended.outcome if self._ended else 'running'}>"

    @property
    def run_id(self) -> str:
        return self._run.run_id

    @property
    def run_dir(self) -> Path:
        """Where everything is kept; docs/how-it-works.md has the files."""
        return self._run.path

    # --- the end -------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait(self, timeout: float | None = None) -> Result:
        """How the run ended, once it has and nothing of it is left.

        Raises `TimeoutError` if it has not ended after `timeout` seconds; it goes on then.
        """
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{self.run_id} is still running after {timeout:g} s") from None
        return self._result()

    async def finished(self) -> Result:
        """`wait`, for a program with an event loop. Given up, such as by `asyncio.wait_for`, it leaves the run as it is."""
        while self.is_running:
            await asyncio.sleep(LOOK_S)
        return self._result()

    def stop(self, now: bool = False) -> Result:
        """End the run: SIGTERM to its tasks, SIGKILL after its grace period, or at once. Returns when nothing is left."""
        self._ask(ask="stop", now=now)
        return self.wait()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_running:
            self.stop()
        self._result()

    def _result(self) -> Result:
        with self._lock:
            if self._ended is None:
                with contextlib.suppress(OSError):  # a request may be left in its buffer
                    if self._process.stdin is not None:
                        self._process.stdin.close()
                self._ended = _read_result(self._run, self.tasks, self._cluster())
                _ALIVE.discard(self)
            return self._ended

    # --- what happens --------------------------------------------------------------------------

    @property
    def tasks(self) -> dict[str, Task]:
        """Each task as it is now; empty as long as the hosts have not answered."""
        cluster = self._cluster()
        return {} if cluster is None else {name: self._task(status) for name, status in cluster.tasks.items()}

    def _cluster(self) -> Cluster | None:
        with self._lock:
            for _ in self._progress.advance():
                pass
            return self._progress.cluster

    def _task(self, status: TaskStatus) -> Task:
        found = self._read_report(status)
        return Task(status.name, status.host, status.state.value, status.attempt, status.pid, status.code, found)

    def _read_report(self, status: TaskStatus) -> Mapping[str, Any]:
        """The last report in the task's own file; the run's events have one every few seconds, and all there is from other hosts."""
        try:
            lines = (self._run.task_dir(status.name, status.attempt) / task_files.REPORTS).read_bytes().splitlines(keepends=True)
        except OSError:
            return status.report
        for line in reversed(lines):
            with contextlib.suppress(ValueError):
                values: dict[str, Any] = json.loads(line)
                values.pop("at", None)
                if task_files.INPUT not in values:
                    return values
        return status.report

    @property
    def events(self) -> Iterator[dict[str, Any]]:
        """What has happened, from the beginning, and then what happens, until the run is over: the objects of `events.jsonl`."""
        follower, rest = Follower(self._run.path / "events.jsonl"), b""
        for data in self._until_over(follower.read):
            *lines, rest = (rest + data).split(b"\n")
            yield from (json.loads(line) for line in lines)

    def lines(self, *names: str, stream: Stream | None = None) -> Iterator[Line]:
        """What these tasks, or all, have written and write, line by line, until the run is over. All attempts, each stream in its order.

        Lines of different tasks and streams come as they are found, not by their times.
        """
        followed: dict[tuple[str, int, str], tuple[Follower, LogView]] = {}

        def read() -> list[Line]:
            found: list[Line] = []
            for task, newest in self._run.last_attempts().items():
                for attempt in range(1, newest + 1) if not names or task in names else ():
                    for one in (stream,) if stream else STREAMS:
                        path = self._run.log_path(task, attempt, one)
                        new = (Follower(path), LogView([task], fold=False, prefix=False))
                        follower, view = followed.setdefault((task, attempt, one), new)
                        found += _lines(task, one, view.render(task, one, follower.read()))
            return found

        for found in self._until_over(read):
            yield from found
        for (task, _, one), (_, view) in followed.items():
            for _, text in view.finish():
                yield from _lines(task, one, text)

    def logs(self, task: str, stream: Stream | None = None, attempt: int | None = None) -> str:
        """What a task has written until now, in its latest attempt or that one; without `stream` its stdout, then its stderr."""
        status = self._status(task)
        paths = [self._run.log_path(task, attempt or status.attempt, one) for one in ((stream,) if stream else STREAMS)]
        return "".join(path.read_bytes().decode("utf-8", "replace") for path in paths if path.exists())

    def _until_over(self, read: Callable[[], T]) -> Iterator[T]:
        """What `read` gives, as long as that is anything or the run goes on."""
        while True:
            is_over = not self.is_running  # asked first: whatever it has written is then there
            found = read()
            if found:
                yield found
            elif is_over:
                return
            else:
                time.sleep(LOOK_S)

    # --- what can be done to it ----------------------------------------------------------------

    def kill(self, task: str, signal: int = signal.SIGKILL) -> None:
        """Send a signal to the processes of a task, on whatever host. What comes of it is the task's own end, not one that was asked for.

        Raises `UsageError` if there is no such task, or if it does not run.
        """
        status = self._status(task)
        if status.pid is None or status.has_ended:
            raise UsageError(f"{task} does not run: it is {status.state.value}")
        self._ask(ask="signal", task=task, number=int(signal))

    def restart(self) -> None:
        """Stop all tasks and start them again, as the next attempt. Costs none of the restarts that are allowed.

        Raises `UsageError` if the run has no tasks yet.
        """
        if self.is_running and self._cluster() is None:
            raise UsageError(f"{self.run_id} has {NO_TASKS_YET}; try again when it has some")
        self._ask(ask="restart")

    def stacks(self) -> dict[str, str]:
        """Where in its Python code each running task is, as ``in all_reduce (train.py:41)``. One that does not answer is waited for."""
        cluster, planned = self._cluster(), self._run.read_plan()
        if cluster is None or planned is None:
            return {}
        texts = stack_report.collect(self._run, planned, cluster, lambda: self._ask(ask="stacks"))
        answers = {name: stack_report.parse(text) for name, text in texts.items()}
        return {name: stack_report.place(answer) if answer else "no answer" for name, answer in answers.items()}

    def _status(self, task: str) -> TaskStatus:
        cluster = self._cluster()
        if cluster is None or task not in cluster.tasks:
            known = f"tasks: {group_tasks(cluster.tasks)}" if cluster is not None else "it has no tasks yet"
            raise UsageError(f"{self.run_id} has no task {task!r}; {known}")
        return cluster.tasks[task]

    def _ask(self, **request: object) -> None:
        """See `requests`. A controller that has ended gets nothing."""
        pipe = self._process.stdin
        with self._lock, contextlib.suppress(OSError, ValueError):
            if pipe is not None:
                pipe.write(json.dumps(request).encode() + b"\n")
                pipe.flush()


_ALIVE: set[Run] = set()
"""The runs that nobody has seen end: one whose handle is dropped goes on, and its controller would end with the pipe to it."""


def _lines(task: str, stream: str, text: str) -> list[Line]:
    return [Line(task, stream, line) for line in text.split("\n")[:-1]]


def _read_result(run: RunDir, tasks: Mapping[str, Task], cluster: Cluster | None) -> Result:
    verdict = run.read_verdict()
    if verdict is None:
        what = f"the controller of {run.run_id} died before it could say how the run ended; logs: {run.path}"
        return Result(run.run_id, run.path, "lost", BROKEN, Cause(what, time.time()), tasks, {}, what)
    durations = (run.read_result() or {}).get("durations", {})
    text = report(verdict, run, cluster)
    return Result(run.run_id, run.path, verdict.outcome.value, verdict.exit_code, verdict.cause, tasks, durations, text)
