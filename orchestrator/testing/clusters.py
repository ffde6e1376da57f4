"""The cluster of a test: real processes of a real cluster, which run functions."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from worker.protocol import task_files
from worker.task import calls
from worker.task.calls import barriers, debugger
from worker.task.strategy import strategy_builder

from ..errors import UsageError
from ..model.strategies import named
from .failures import ClusterLost, TimedOut
from .jobs import POLL_S, Job, describe_exit
from .partitions import Network
from .pickling import pack
from .pool import PooledRun, acquire, release
from .session import Session
from .tasks import Task, read

if TYPE_CHECKING:
    from .scripts import ScriptRun

TIMEOUT_S = 120.0
GRACE_S = 2.0
STACKS_S = 2.0
"""How long a task may take to write its stack, in seconds."""
DEBUGGER_S = 10.0
"""How long a task may take to stop in the debugger, in seconds."""


class Cluster:
    """A real cluster on this machine, for a ``with`` statement.

    The keywords are those of `orchestrator.launch`, and `settings` are any others of them (``gpus``, ``keras``,
    ``collectives``, …). `timeout`: seconds that a function may take in its tasks. `grace`: how long, in seconds, a function may go on
    in other tasks after it has failed in one. `reuse`: leave the processes running for the next cluster with the same settings, with
    all that their functions have left behind; without, each cluster has fresh processes. `in_process`: the task, such as ``"chief"`` or
    ``"worker-0"``, that is the test's own process: what is started there runs when the job is waited for, where any debugger works.
    `partitions`: give each task a network namespace of its own, so that `Cluster.partition` can cut the network between two of them; this
    takes Linux, iproute2 and root, and the tasks then reach each other and nothing else.

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
        timeout: float = TIMEOUT_S,
        grace: float = GRACE_S,
        reuse: bool = False,
        in_process: str | None = None,
        partitions: bool = False,
        **settings: Any,
    ) -> None:
        if in_process and partitions:
            raise UsageError("in_process= and partitions= exclude each other: the test's own process stays on the network of the machine")
        counts = {"workers": workers, "ps": ps, "chief": chief, "evaluator": evaluator}
        self._keywords = {**settings, **counts, "strategy": strategy, "devices": devices, "cpus": cpus, "env": env}
        self._reuse, self._partitions = reuse, partitions
        self.timeout_s, self.grace_s = timeout, grace
        self.session = Session.get()
        self.tasks: dict[str, Task] = {}
        """By name, in TensorFlow's order: ``chief-0``, ``worker-0``, ``worker-1``, …"""
        self._own_task = f"{in_process}-0" if in_process in ("chief", "evaluator") else in_process
        """The name of the task that is the test's own process."""
        self._own_env: dict[str, str] = {}
        """The variables that this task sets in the test's process while a function runs there."""
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
        run = self._run = acquire(self.session, self._keywords, reuse=self._reuse, partitions=self._partitions)
        try:
            is_kept = run.keep_tasks(self._reuse)
            self.tasks = run.tasks
            if not is_kept:
                if self._own_task is not None:
                    self._join(self[self._own_task])
                run.fork(task for task in self.tasks.values() if not task.is_own)
        except BaseException:
            self._reuse = False
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _join(self, task: Task) -> None:
        """Make the test's process this task, as far as a running process can become one."""
        if self._serves(task):
            raise UsageError(f"in_process: {task.name} is a server under this strategy and runs no functions; name the chief")
        run = self.pooled_run
        found = run.request(task.name, {"do": "environment"})["environment"]
        self._own_env = {name: found[name] for name in found if run.environment.get(name) != found[name]}
        self._own_env["ORCH_LOG_DIR"] = str(self.session.path)
        task.is_own = True

    def _serves(self, task: Task) -> bool:
        """Whether the task only runs a server under this strategy."""
        return named(self.pooled_run.spec.strategy).role(task.name.rpartition("-")[0]).serves

    def close(self) -> None:
        """End the processes, or keep them for the next test with `reuse`; leaving the ``with`` block calls this."""
        if self._run is None:
            return
        run = self._run
        try:
            run.poll()
            if run.network is not None and run.is_whole:
                run.network.mend()
            if self._own_env:
                strategy_builder.forget()  # which belongs to this cluster
            if self._reuse and all(task.connection and task.job is None for task in self.tasks.values()):
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

        Raises `UsageError` for what cannot be sent, for an empty `on`, and for a task that is not there, or busy; `TimedOut` for a task
        that does not take what is sent, such as a large argument while it is paused.
        """
        self.pooled_run.poll()
        tasks = self._choose(on)
        for task in tasks:
            self._check_is_free(task)
        remote = [task for task in tasks if not task.is_own]
        data = pack(function, args, kwargs) if remote else b""
        directory = str(self.session.path / "barriers" / str(next(self.session.calls)))
        among = tuple(task.name for task in tasks)
        job = Job(self, among, getattr(function, "__name__", repr(function)))
        if len(remote) < len(tasks):
            job.own_part = lambda: self._call_here(directory, among, function, args, kwargs)
        for task in remote:
            task.begin_job(job)
        message = {"function": data, "directory": directory, "tasks": among, "verbosity": _verbosity()}
        try:
            for connection in [task.connection for task in remote if task.connection is not None]:
                connection.send(message, self.timeout_s)
        except TimeoutError:
            job.time_out()
        return job

    def _call_here(self, directory: str, among: tuple[str, ...], function: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        """Run a function in the test's own process as its task would run it, with the variables of the task, and return the value."""
        before = {name: os.environ[name] for name in self._own_env if name in os.environ}
        os.environ.update(self._own_env)
        try:
            barriers.enter_call(directory, os.environ["ORCH_TASK"], among)
            return function(*calls.fill(function, args, kwargs), **kwargs)
        finally:
            barriers.enter_call("", "", ())  # the test itself is no function of a cluster
            for name in self._own_env:
                os.environ.pop(name, None)
            os.environ.update(before)

    def _choose(self, on: str | Iterable[str] | None) -> list[Task]:
        if on is None:
            return [task for task in self.tasks.values() if not self._serves(task)]
        if not (names := [on] if isinstance(on, str) else list(dict.fromkeys(on))):
            raise UsageError("on= names no task, so the function would run nowhere; leave on= out for all tasks")
        return [self[name] for name in names]

    def _check_is_free(self, task: Task) -> None:
        """Raise `UsageError` if the task cannot run a function now."""
        if task.job is not None:
            raise UsageError(f"{task.name} still runs {task.job.name}; wait for that job first, or leave {task.name} out with on=")
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

    def partition(self, one: str, other: str) -> None:
        """Cut the network between two tasks of a cluster with ``partitions=True``: all that one sends to the other is lost.

        Neither task gets an error: connections stay open and become silent, and new ones get no answer. The network stays cut, also for
        a task that is restarted, until `heal` or the end of the cluster.
        """
        network, names = self._network(), [self[name].name for name in (one, other)]
        if one == other:
            raise UsageError(f"partition needs two tasks, not {one!r} twice")
        network.cut(*names)

    def heal(self, *names: str) -> None:
        """End the partition of these tasks, or all. TCP sends the lost data again, after a pause about as long as the partition."""
        self._network().mend(*[self[name].name for name in names])

    def _network(self) -> Network:
        if self.pooled_run.network is None:
            raise UsageError("the tasks share the network of this machine; cluster(partitions=True) gives each one of its own")
        return self.pooled_run.network

    def run_script(self, script: str | os.PathLike[str], /, *args: str | int | float, **settings: Any) -> ScriptRun:
        """Run a script to its end as `orch up` does, beside this cluster and in one like it. `settings`: those of `scripts.run_script`.

        How the run ended is the result: `exit_code`, `cause`, `logs`, `events`.
        """
        from .scripts import run_script

        defaults = {"timeout": self.timeout_s, "home": self.session.path / "scripts", **self._keywords}
        env = {**(self._keywords.get("env") or {}), **(settings.get("env") or {})}
        return run_script(script, *args, **{**defaults, **settings, "env": env})

    def debug(self, name: str) -> None:
        """Stop a task at its next line of Python, and connect the terminal to Python's debugger there until the program goes on.

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

        The test's own process and tasks without a process are left out.
        """
        self.poll()
        asked = [task for name, task in self.tasks.items() if task.is_forked and (not names or name in names)]
        paths = {task.name: task.directory / task_files.STACKS for task in asked}
        before = {name: len(read(path)) for name, path in paths.items()}
        for name in paths:
            self.pooled_run.residents[name].send({"do": "signal", "number": int(signal.SIGQUIT)})
        until, last, found = time.monotonic() + STACKS_S, None, dict.fromkeys(paths, "")
        while time.monotonic() < until and (found != last or not all(found.values())):
            self.pooled_run.poll(POLL_S)
            last, found = found, {name: read(path, before[name]).decode(errors="replace") for name, path in paths.items()}
        return found

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
