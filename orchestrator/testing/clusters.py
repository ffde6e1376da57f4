"""The cluster of a test: real processes of a real cluster, which run functions."""

from __future__ import annotations

import inspect
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from worker.task.fixture import debugger
from worker.task.sent_function import FILLED

from ..errors import UsageError
from ..functions import pack
from ..model.strategies import named
from .failures import ClusterLost, TimedOut
from .jobs import Job
from .outcomes import describe_exit
from .pool import POLL_S, PooledRun, acquire, release, seconds
from .session import Session
from .tasks import Task

if TYPE_CHECKING:
    from .scripts import ScriptRun

TIMEOUT_S = 120.0
GRACE_S = 2.0
DEBUGGER_S = 10.0
"""How long a task may take to stop in the debugger, in seconds."""


class Cluster:
    """A real cluster of TensorFlow on this machine, whose tasks run the functions of a test::

        with cluster(workers=2) as c:
            assert c.run(add, 1.0, 2.0) == {"worker-0": 3.0, "worker-1": 3.0}

    The keywords are those of `orchestrator.launch`, and `settings` are any others of them (``gpus``, ``keras``, ``collectives``, …).
    `cpus`: logical CPU devices of each task. `timeout`: the longest that a function may take in its tasks, in seconds or as ``"10m"``.
    `grace`: how long a function may go on in the other tasks after it has failed in one, in the same forms. `reuse`: leave the processes
    running for the next cluster with the same settings, with all that their functions have left behind; without, each cluster has fresh
    processes.

    Entering the cluster raises `SpecError` for settings that are wrong, and `ClusterLost` if the cluster cannot be started.
    """

    def __init__(
        self,
        *,
        workers: int | None = None,
        ps: int | None = None,
        chief: int | bool | None = None,
        evaluator: int | bool | None = None,
        strategy: str | None = None,
        devices: Mapping[str, Any] | None = None,
        cpus: int | None = None,
        env: Mapping[str, str | int | float] | None = None,
        timeout: float | str = TIMEOUT_S,
        grace: float | str = GRACE_S,
        reuse: bool = False,
        **settings: Any,
    ) -> None:
        counts = {"workers": workers, "ps": ps, "chief": chief, "evaluator": evaluator}
        self._keywords = {**settings, **counts, "strategy": strategy, "devices": devices, "cpus": cpus, "env": env}
        self._reuse = reuse
        self.timeout_s, self.grace_s = seconds("timeout", timeout), seconds("grace", grace)
        self.session = Session.get()
        self.tasks: dict[str, Task] = {}
        """By name, in TensorFlow's order: ``chief-0``, ``worker-0``, ``worker-1``, …"""
        self._run: PooledRun | None = None

    def __repr__(self) -> str:
        return f"<Cluster {', '.join(map(repr, self.tasks.values())) or 'not started'}>"

    @property
    def pooled_run(self) -> PooledRun:
        """The run that the cluster uses. Raises `UsageError` if the cluster has not been started."""
        if self._run is None:
            raise UsageError("the cluster does not run: it does inside `with cluster(…) as c:`")
        return self._run

    def __enter__(self) -> Cluster:
        if self._run is not None:
            raise UsageError("this cluster runs already")
        self.session.recent.append(self)
        run = self._run = acquire(self.session, self._keywords, reuse=self._reuse)
        try:
            is_kept = run.keep_tasks(self._reuse)
            self.tasks = run.tasks
            if not is_kept:
                run.fork(self.tasks.values())
        except BaseException:
            self._reuse = False
            self.close()
            raise
        return self

    def __call__(self, *_: object, **__: object) -> NoReturn:
        """Raises `UsageError`: the fixture `orch_cluster` is a cluster where a marker gives the number of tasks, and else a function."""
        how = "use orch_cluster.run(…), or take the numbers of tasks out of the marker"
        raise UsageError(f"this is a cluster already, and no function: where orch_cluster is the cluster of a marker, {how}")

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serves(self, task: Task) -> bool:
        """True if the task only runs a server under this strategy."""
        return named(self.pooled_run.spec.strategy).role(task.name.rpartition("-")[0]).serves

    def close(self) -> None:
        """End the processes, or keep them for the next test with `reuse`; leaving the ``with`` block calls this."""
        if self._run is None:
            return
        run = self._run
        try:
            run.poll()
            if self._reuse and all(task.connection and task.call is None for task in self.tasks.values()):
                run.keeps_processes = True
            else:
                run.end_processes(self.tasks.values())
        except ClusterLost:
            run.stop()  # no other cluster can use its tasks
            raise
        finally:
            self._run = None
            release(run)

    def poll(self, wait_s: float = 0.0) -> None:
        """Wait up to `wait_s` seconds for messages of the tasks, read the messages, and print the output of the tasks."""
        self.pooled_run.poll(wait_s)

    # --- functions -------------------------------------------------------------------------------

    def run(self, function: Callable[..., Any], *args: Any, on: str | Iterable[str] | None = None, **kwargs: Any) -> dict[str, Any]:
        """Run a function in tasks, and return its values, by task. See `start` for the arguments, and `Job.result` for the exceptions."""
        __tracebackhide__ = True  # pytest shows where the test called
        return self.start(function, *args, on=on, **kwargs).result()

    def start(self, function: Callable[..., Any], *args: Any, on: str | Iterable[str] | None = None, **kwargs: Any) -> Job:
        """Start a function in tasks, and return at once.

        The function may be a lambda, a closure, or a function of the test's module, and may have a parameter ``strategy``, which is the
        cluster's (`worker.strategy`). `on`: the tasks; without it all that run a user's program under this strategy: under
        ``parameter_server`` chief and evaluator, as the others are servers.

        Raises `UsageError` if it is not a function or cannot be sent, for an empty `on`, and for a task that is not there, or busy;
        `TimedOut` for a task that does not take what is sent, such as a large argument while it is paused.
        """
        if not callable(function):
            raise UsageError(f"run() takes a function, not its result: write run(f, 1) and not run(f(1)); this is {function!r:.80}")
        _check_arguments(function, args, kwargs)
        self.pooled_run.poll()
        tasks = self._choose(on)
        for task in tasks:
            self._check_is_free(task)
        data, _ = pack(function, args, kwargs)
        directory = str(self.session.path / "barriers" / str(next(self.session.calls)))
        among = tuple(task.name for task in tasks)
        job = Job(self.pooled_run, tasks, getattr(function, "__name__", repr(function)), timeout_s=self.timeout_s, grace_s=self.grace_s)
        for task in tasks:
            task.begin_call(job.tasks[task.name])
        message = {"function": data, "directory": directory, "tasks": among, "verbosity": _verbosity()}
        try:
            for connection in [task.connection for task in tasks if task.connection is not None]:
                connection.send(message, self.timeout_s)
        except TimeoutError:
            job.time_out()
        return job

    def _choose(self, on: str | Iterable[str] | None) -> list[Task]:
        if on is None:
            return [task for task in self.tasks.values() if not self._serves(task)]
        if not (names := [on] if isinstance(on, str) else list(dict.fromkeys(on))):
            raise UsageError("on= names no task, so the function would run nowhere; leave on= out for all tasks")
        return [self[name] for name in names]

    def _check_is_free(self, task: Task) -> None:
        """Raise `UsageError` if the task cannot run a function now."""
        if task.call is not None:
            raise UsageError(f"{task.name} still runs {task.call.function}; wait for that job first, or leave {task.name} out with on=")
        if task.pid is None:
            ended = f"its process has ended ({describe_exit(task.exit)})" if task.exit is not None else "it has no process"
            raise UsageError(f"{task.name} cannot run anything: {ended}; c.restart({task.name!r}) gives it a new one")

    # --- tasks ------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Task:
        if name not in self.tasks:
            known = f"the tasks are {', '.join(self.tasks)}" if self.tasks else "it has not been started"
            raise UsageError(f"the cluster has no task {name!r}; {known}")
        return self.tasks[name]

    def kill(self, *names: str) -> None:
        """`Task.kill` for each of these."""
        for name in names:
            self[name].kill()

    def pause(self, *names: str) -> None:
        """`Task.pause` for each of these."""
        for name in names:
            self[name].pause()

    def resume(self, *names: str) -> None:
        """`Task.resume` for each of these."""
        for name in names:
            self[name].resume()

    def restart(self, *names: str) -> None:
        """New processes for these tasks, or for all, at the same addresses."""
        chosen = [self[name] for name in names or self.tasks]
        for task in chosen:
            if task.is_alive:
                task.kill()
        self.pooled_run.fork(chosen)

    def run_script(self, script: str | os.PathLike[str], /, *args: str | int | float, **settings: Any) -> ScriptRun:
        """Run a script to its end as `orch up` does, in a second cluster like this one. `settings`: those of `scripts.run_script`.

        How the run ended is the result: `exit_code`, `cause`, `logs`, `events`.
        """
        from .scripts import run_script

        defaults = {"timeout": self.timeout_s, "home": self.session.path / "scripts", **self._keywords}
        env = {**(self._keywords.get("env") or {}), **(settings.get("env") or {})}
        return run_script(script, *args, **{**defaults, **settings, "env": env})

    def debug(self, name: str) -> None:
        """Stop a task at its next line of Python, and connect the terminal to Python's debugger there until the program continues.

        A `breakpoint()` in a function does the same while the test waits for the job.
        """
        self[name].send_signal(debugger.SIGNAL)
        before_s = self.session.debugged_s
        self.pooled_run.wait(lambda: self.session.debugged_s != before_s, DEBUGGER_S)

    def logs(self, name: str) -> str:
        """`Task.logs`."""
        return self[name].logs

    def stacks(self, *names: str) -> dict[str, str]:
        """The stack of each of these tasks, or of all, as `faulthandler` writes it; empty for a task that does not answer.

        Tasks without a process are left out.
        """
        return self.pooled_run.stacks([task for name, task in self.tasks.items() if not names or name in names])

    def wait_for(
        self, name: str, *, report: Mapping[str, Any] | None = None, log: str | None = None, timeout: float | None = None
    ) -> re.Match[str] | dict[str, Any]:
        """Wait until a task has given these values to `worker.report`, or has written a line in which the regular expression `log` is
        found; returns the report, or the match.

        Raises `TimedOut` after `timeout` seconds (those of the cluster), and at once if the task has ended without it.
        """
        if (report is None) == (log is None):
            raise UsageError("wait_for needs report= or log=, and not both")
        task, limit_s = self[name], self.timeout_s if timeout is None else timeout
        until = time.monotonic() + limit_s
        while True:
            alive = task.is_alive  # read first: all that the process has written is then in the files
            found = _find_report(task, report) if report is not None else re.search(log or "", task.logs)
            if found is not None:
                return found
            wanted = f"report {dict(report)}" if report is not None else f"a line like {log!r}"
            if not alive:
                raise TimedOut(name, f"ended ({describe_exit(task.exit or 0)}) without {wanted}", {}, {}, task.logs)
            if time.monotonic() > until:
                raise TimedOut(name, f"no {wanted} after {limit_s:g} s", {}, self.stacks(), task.logs)
            self.poll(POLL_S)


cluster = Cluster


def _find_report(task: Task, wanted: Mapping[str, Any]) -> dict[str, Any] | None:
    return next((found for found in task.reports if all(found.get(name) == value for name, value in wanted.items())), None)


def _verbosity() -> int | None:
    """The verbosity with which pytest explains a failed comparison; None: pytest does not run."""
    config = getattr(sys.modules.get("_pytest.assertion.util"), "_config", None)
    return None if config is None else int(config.get_verbosity("assertions"))


def _check_arguments(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raise `UsageError` where the function cannot be called with these arguments, and with the strategy that a task adds to them."""
    try:
        signature = inspect.signature(function, follow_wrapped=False)  # a decorator may add arguments, as mock.patch does
    except (TypeError, ValueError):  # of C
        return
    given = [one for one in signature.parameters.values() if one.name != FILLED or FILLED in kwargs]
    try:
        signature.replace(parameters=given).bind(*args, **kwargs)
    except TypeError as error:
        name = getattr(function, "__name__", repr(function))
        filled = f"only a parameter with the name {FILLED} gets its value from orch"
        raise UsageError(f"{name}: {error}: give run() the arguments of the function; {filled}") from None
