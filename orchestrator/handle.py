"""The handle of a run, for Python programs: its result, its events and output, and requests to it."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from html import escape
from pathlib import Path
from signal import SIGKILL, valid_signals
from typing import Any, Literal, TypeVar

from worker.protocol.task_id import STREAMS, VALUE, TaskId
from worker.values.excerpts import shorten_line
from worker.values.fast_dataclass import dataclass

from .control.requests import ask_restart, ask_running, ask_stop
from .errors import BROKEN, OrchError, UsageError
from .model.policy import not_finite
from .model.settings import works
from .model.settings.durations import EXAMPLES, seconds_of
from .model.state.cluster import Cause, Cluster, TaskStatus
from .model.state.progress import describe_report
from .model.task_names import group_tasks
from .record import event_log, stack_report
from .record.follower import Follower
from .record.report import report
from .record.run_directory import RunDir
from .record.run_files import read_file
from .record.run_progress import Progress
from .record.run_view import RunView
from .record.text.lines import LineSplitter

STOPPED = "stopped by the program that launched it"
POLL_S = 0.02
"""Seconds between two checks of a file or a process."""

LONGEST_REASON = 400
"""Characters of the text of a `Result`."""

Stream = Literal["stdout", "stderr"]
K = TypeVar("K")


@dataclass(frozen=True)
class Task:
    """One task of a run, in its latest attempt."""

    name: str
    """Such as ``worker-0``."""
    host: str
    state: str
    """``pending``, ``started``, ``up`` (its port is open), ``succeeded``, ``failed``, ``stopped`` or ``lost`` (with its host)."""
    attempt: int
    pid: int | None
    """The process on the host of the task; None until the task is started."""
    exit_code: int | None
    """128 + n for signal n; None until the task has ended."""
    report: Mapping[str, Any]
    """The last values that the task passed to `worker.report`; while the task runs, those of a few seconds ago."""


@dataclass(frozen=True)
class Line:
    """A line that a task has written, without the newline."""

    task: str
    stream: str
    text: str


class RunFailed(OrchError):
    """A run did not succeed. The text is the report that `orch up` prints at the end; `result` has its parts."""

    def __init__(self, result: Result) -> None:
        super().__init__(result.report)
        self.result = result
        self.exit_code = result.exit_code


@dataclass(frozen=True, repr=False)
class Result:
    """Tells how a run ended."""

    run_id: str
    run_dir: Path
    outcome: str
    """``succeeded``, ``failed``, ``cancelled``, ``timed_out``, ``broken`` (orch or a host), or ``lost``: its controller was killed."""
    exit_code: int
    """The exit code of `orch up` for such a run; see docs/exit-codes.md."""
    cause: Cause | None
    """The first failure: `task`, `host`, `what`, `code`, `failure` (its `type`, `message`, `traceback`), `remedy`; or None."""
    tasks: Mapping[str, Task]
    durations: Mapping[str, Any]
    """Seconds of each phase of the start, by task, as in `result.json`."""
    report: str = field(repr=False)
    """The lines that `orch up` prints at the end."""

    @property
    def values(self) -> dict[str, Any]:
        """The values that the function of the run has returned, by task. They are pickles: a hostile host can run code here by its value.

        Raises the exception of the first failure, from a `RunFailed` with its lines; `RunFailed` itself if the exception cannot be sent;
        `UsageError` for a run of a script, for a run of another user, and for the copy of a run.
        """
        from . import functions  # most runs have none
        from .record.engine_files import has_call_seal

        run = RunDir(self.run_dir)
        spec = run.read_spec()
        if not spec.call:
            raise UsageError(f"{self.run_id} has run no function, so it has no values: reports has the last worker.report of each task")
        if not (run.is_ours and has_call_seal(run.path)):
            raise UsageError(f"this user has not made {run.path} here: its values are not read, for they may contain any code")
        left = dict.fromkeys((name for name in self.tasks if works(TaskId.parse(name).type, spec)), b"")
        for name in left:
            with contextlib.suppress(OSError, OrchError):
                left[name] = read_file(run.log_path(name, self.tasks[name].attempt, VALUE))
        if not self.exit_code:
            return {name: functions.answer(data).get("value") for name, data in left.items()}
        error = functions.answer(left.get(self.cause.task, b"")).get("error") if self.cause is not None else None
        if error is not None:
            raise error from RunFailed(self)
        raise RunFailed(self)

    def __repr__(self) -> str:
        """The reason in a line: a failing ``assert run.exit_code == 0`` shows this text."""
        ended = f"{self.outcome}, exit code {self.exit_code}"
        if self.cause is not None:
            failure = self.cause.failure
            ended += f": {self.cause.task} {f'{failure.type}: {failure.message}' if failure else self.cause.what}"
        return f"<{type(self).__name__} of {self.run_id}: {shorten_line(' '.join(ended.split()), LONGEST_REASON)}>"

    def _repr_html_(self) -> str:
        """The tasks as a table, which a notebook shows in place of the text."""
        lines = [(task.name, task.host, task.state, describe_report(task.report)) for task in self.tasks.values()]
        rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in line)}</tr>" for line in lines)
        head = "".join(f"<th>{name}</th>" for name in ("task", "host", "state", "last report"))
        return f"<p>{escape(repr(self)[1:-1])}</p><table><tr>{head}</tr>{rows}</table>"

    @property
    def reports(self) -> dict[str, Mapping[str, Any]]:
        """The last values that each task passed to `worker.report`; empty for a task without a report."""
        return {name: task.report for name, task in self.tasks.items()}

    def check(self) -> Result:
        """Return this result if the run succeeded, else raise `RunFailed`."""
        if self.exit_code:
            raise RunFailed(self)
        return self


class Run:
    """The handle of a run: `launch` returns one for the run that it starts, and `find` one for a run that any program has started.

    All methods can be called from any thread, and while an event loop runs; all times are in seconds. At the end of a ``with`` block a
    run that is still running is stopped. A run ends with the program that launched it, unless its controller is a job of an engine.
    """

    def __init__(self, run: RunDir, process: subprocess.Popen[bytes] | None = None) -> None:
        """`process`: the controller, if this program has started it."""
        self._run, self._process, self._maker = run, process, os.getpid()
        with contextlib.suppress(OSError):  # the directory cannot be held: a move is not followed
            run.hold()
        self._progress = Progress(run)
        self._lock = threading.RLock()
        self._ended: Result | None = None

    def __repr__(self) -> str:
        return f"<Run {self.run_id}: {self._word()}>"

    def _word(self) -> str:
        """``running``, the outcome, or ``lost`` if the controller died without a verdict."""
        if self._ended is not None:
            return self._ended.outcome
        with contextlib.suppress(OrchError):  # a notebook shows the handle also of a run whose files are damaged
            if self.is_running:
                return "running"
            verdict = self._run.read_verdict()
            return verdict.outcome.value if verdict else "lost"
        return "over"

    @property
    def run_id(self) -> str:
        """The name of the run, by which the commands of orch know it."""
        return self._run.run_id

    @property
    def run_dir(self) -> Path:
        """The directory of the run; docs/files.md lists its files."""
        return self._run.path

    # --- the end -------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """True if the run is running, is being started, or waits in the queue of its engine."""
        # A forked child is not the parent of the controller, and sees its end by the lock alone.
        is_parent = self._process is not None and os.getpid() == self._maker
        return self._process.poll() is None if is_parent and self._process is not None else self._run.is_alive()

    def wait(self, timeout: float | str | None = None) -> Result:
        """Wait until the run has ended and no process of it is left. Returns the result.

        Raises `TimeoutError` after `timeout` (seconds, or a text such as ``"10m"``); the run continues. Raises `UsageError` if
        `timeout` is not a time.
        """
        limit_s = math.inf if timeout is None else _seconds(timeout)
        try:
            if self._process is not None and os.getpid() == self._maker:
                self._process.wait(None if timeout is None else limit_s)
            for _ in self._view().looks(limit_s):
                pass
        except (subprocess.TimeoutExpired, TimeoutError):
            raise TimeoutError(f"{self.run_id} is still running after {limit_s:g} s") from None
        return self._result()

    async def finished(self) -> Result:
        """`wait`, for a program with an event loop. If the caller is cancelled, such as by `asyncio.wait_for`, the run continues."""
        view = self._view()
        while self.is_running:
            await asyncio.sleep(view.pause_s)
        return self._result()

    def stop(self, now: bool = False) -> Result:
        """End the run: its tasks get SIGTERM, and SIGKILL after the grace period (`now`: at once). Returns when no process is left.

        On a file system without named pipes, `now` has no effect. Raises `OrchError` if the controller of a run that another program has
        started cannot be reached.
        """
        is_asked = False
        try:
            is_asked = ask_stop(self._run, STOPPED, now=now)
        except OrchError:
            if self._process is None:
                raise
        if not is_asked and self._process is not None:  # the run is over, or the file system has no named pipes
            self._process.terminate()
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
                self._ended = _read_result(self._run, self.tasks, self._cluster())
                self._run.let_go()
            return self._ended

    # --- events and output --------------------------------------------------------------------------

    @property
    def tasks(self) -> dict[str, Task]:
        """The present state of each task; empty until the hosts have answered."""
        return {name: _task(status) for name, status in self._cluster().tasks.items()}

    def _cluster(self) -> Cluster:
        with self._lock:
            self._run.renew()
            return self._progress.read()

    @property
    def events(self) -> Iterator[dict[str, Any]]:
        """The objects of `events.jsonl`, from the first; ends with the run. `values` of a `task_reported` may lack the script's own."""
        rest = b""
        for _, data in self._follow(lambda _: {"": self._run.path / "events.jsonl"}):
            *lines, rest = (rest + data).split(b"\n")
            yield from event_log.objects(lines)

    def lines(self, *names: str, stream: Stream | None = None) -> Iterator[Line]:
        """The lines that these tasks write (default: all tasks), from the first line of the first attempt; ends with the run.

        The lines of one stream are in order. Lines of different streams are not ordered by time.
        """
        splitters: defaultdict[tuple[str, int, str], LineSplitter] = defaultdict(LineSplitter)

        def find(view: RunView) -> dict[tuple[str, int, str], Path]:
            return {key: path for key, path in view.outputs(_streams(stream)).items() if not names or key[0] in names}

        for (task, attempt, one), data in self._follow(find):
            yield from (Line(task, one, line) for line in splitters[task, attempt, one].feed(data))
        for (task, _, one), splitter in splitters.items():
            yield from (Line(task, one, line) for line in splitter.flush())

    def _view(self) -> RunView:
        return RunView(self._run, POLL_S, lambda: self.is_running)

    def _follow(self, find: Callable[[RunView], Mapping[K, Path]]) -> Iterator[tuple[K, bytes]]:
        """Return what is written into some files, until the run is over. `find` gives the present paths of the files."""
        view = self._view()
        for _ in view.looks():
            for key, follower in view.grown(find(view)):
                yield from ((key, data) for data in follower.read_present())

    def logs(self, task: str, stream: Stream | None = None, attempt: int | None = None) -> str:
        """The output of a task until now, in its latest attempt or in `attempt`; without `stream`: its stdout, then its stderr.

        Empty while the run has no tasks yet.
        """
        if not self.tasks and self.is_running:
            return ""
        status = self._status(task)  # which also renews the record
        paths = [self._run.log_path(task, attempt or status.attempt, one) for one in _streams(stream)]
        return "".join(b"".join(Follower(path).read_present()).decode("utf-8", "replace") for path in paths)

    # --- requests ----------------------------------------------------------------

    def kill(self, task: str, signal: int = SIGKILL) -> None:
        """Send a signal to the processes of a task, on any host. If the task ends by the signal, this counts as its own failure.

        Raises `UsageError` if there is no such task or signal, or if the task does not run.
        """
        if signal not in valid_signals():
            raise UsageError(f"{signal!r} is no signal of this system")
        status = self._status(task)
        if status.pid is None or status.has_ended:
            raise UsageError(f"{task} does not run: it is {status.state.value}")
        ask_running(self._run, "signal", task=task, number=int(signal))

    def restart(self) -> None:
        """Stop all tasks and start them again, as the next attempt. This restart does not count against `max_restarts`.

        Raises `UsageError` if the run has no tasks yet, or is ending or over.
        """
        ask_restart(self._run)

    def stacks(self) -> dict[str, str]:
        """The place in its Python code of each running task, such as ``in all_reduce (train.py:41)``. Waits for slow answers."""
        cluster, planned = self._cluster(), self._run.read_plan()
        if planned is None:
            return {}
        try:
            texts = stack_report.collect(self._run, planned, cluster, lambda: ask_running(self._run, "stacks"))
        except UsageError:  # the run has ended meanwhile
            return {}
        answers = {name: stack_report.parse(text) for name, text in texts.items()}
        return {name: stack_report.place(answer) if answer else "no answer" for name, answer in answers.items()}

    def _status(self, task: str) -> TaskStatus:
        cluster = self._cluster()
        if task not in cluster.tasks:
            known = f"tasks: {group_tasks(cluster.tasks)}" if cluster.tasks else "it has no tasks yet"
            raise UsageError(f"{self.run_id} has no task {task!r}; {known}")
        return cluster.tasks[task]


def _seconds(time: float | str) -> float:
    """A time that a program has given: a number of seconds, or a text with units. Raises `UsageError`."""
    found: Any = seconds_of(time) if isinstance(time, str) else time
    if isinstance(found, bool) or not hasattr(found, "__float__") or math.isnan(float(found)):  # NumPy's numbers are times, too
        raise UsageError(f"timeout must be a time, not {time!r}; write seconds, or a time with units: {EXAMPLES}")
    return float(found)


def _streams(stream: Stream | None) -> tuple[str, ...]:
    return (stream,) if stream else STREAMS


def _task(status: TaskStatus) -> Task:
    report = not_finite.as_numbers(status.report)
    return Task(status.name, status.host, status.state.value, status.attempt, status.pid, status.code, report)


def _read_result(run: RunDir, tasks: Mapping[str, Task], cluster: Cluster) -> Result:
    verdict = run.read_verdict()
    if verdict is None:
        what = f"the controller of {run.run_id} died before it could say how the run ended; logs: {run.path}"
        return Result(run.run_id, run.path, "lost", BROKEN, Cause(what, time.time()), tasks, {}, what)
    durations = (run.read_result() or {}).get("durations", {})
    text = report(verdict, run, cluster)
    return Result(run.run_id, run.path, verdict.outcome.value, verdict.exit_code, verdict.cause, tasks, durations, text)
