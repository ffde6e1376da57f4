"""The cluster of a test: real processes of a real cluster, which run functions."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from worker import task_files
from worker.task.calls import debugger

from ..errors import UsageError
from ..model.strategies import named
from .beds import Bed, beds_of
from .failures import ClusterLost, TimedOut
from .jobs import LOOK_S, Job, describe_exit, refuse_busy
from .measuring import unmeasured
from .network import Network
from .parcels import pack
from .session import Session
from .tasks import DYING_S, Task, read

if TYPE_CHECKING:
    from .scripts import ScriptRun

TIMEOUT_S = 120.0
GRACE_S = 2.0
STACKS_S = 2.0
"""How long a task may take to say where it is."""


def cluster(
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
    reuse: bool | str = False,
    in_process: str | None = None,
    partitions: bool = False,
    **settings: Any,
) -> Cluster:
    """A real cluster on this machine, for a ``with`` statement.

    The keywords say what `orchestrator.launch` would be told, and `settings` are any others of its keywords (``gpus``, ``keras``,
    ``collectives``, …). `timeout`: seconds that a function may take in its tasks. `grace`: how long, in seconds, a function may go on
    in other tasks after it has failed in one. `reuse`: leave the processes running for the next cluster with the same settings, with
    all that their functions have left behind; without, each cluster has fresh processes. `in_process`: the task, such as ``"chief"`` or
    ``"worker-0"``, that is the test's own process: what is started there runs when the job is waited for, where any debugger works.
    `partitions`: give each task a network namespace of its own, so that `Cluster.partition` can cut the network between two of them; this
    takes Linux, iproute2 and root, and the tasks then reach each other and nothing else.

    Raises `SpecError` for settings that are wrong, at once; entering it raises `ClusterLost` if it cannot be started.
    """
    keywords = {
        **settings,
        "workers": workers,
        "ps": ps,
        "chief": chief,
        "evaluator": evaluator,
        "strategy": strategy,
        "devices": devices,
        "cpus": cpus,
        "env": env,
    }
    return Cluster(
        {name: value for name, value in keywords.items() if value is not None}, timeout, grace, reuse, in_process or "", partitions
    )


class Cluster:
    """What `cluster` gives. `session`, `bed`: what it stands on."""

    def __init__(
        self, keywords: Mapping[str, Any], timeout_s: float, grace_s: float, reuse: bool | str, in_process: str, partitions: bool
    ) -> None:
        if in_process and partitions:
            raise UsageError("in_process= and partitions= exclude each other: the test's own process stays on the network of the machine")
        self.session = Session.get()
        self._keywords, self._reuse, self._partitions = keywords, reuse, partitions
        self.timeout_s, self.grace_s = timeout_s, grace_s
        self.tasks: dict[str, Task] = {}
        """By name, in TensorFlow's order: ``chief-0``, ``worker-0``, ``worker-1``, …"""
        self.in_process = f"{in_process}-0" if in_process in ("chief", "evaluator") else in_process
        """The task that is the test's own process; empty: none is."""
        self._own_env: dict[str, str] = {}
        self._calls = 0
        self._bed: Bed | None = None

    def __repr__(self) -> str:
        return f"<Cluster {', '.join(map(repr, self.tasks.values())) or 'not started'}>"

    @property
    def bed(self) -> Bed:
        if self._bed is None:
            raise UsageError("the cluster does not run: it does inside `with cluster(…) as c:`")
        return self._bed

    def __enter__(self) -> Cluster:
        self.start_up()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start_up(self) -> None:
        """What entering the ``with`` block does."""
        if self._bed is not None:
            raise UsageError("this cluster runs already")
        self.session.recent.append(self)
        self._bed = beds_of(self.session).take(self._keywords, unmeasured(os.environ), reuse=self._reuse, partitions=self._partitions)
        try:
            parked, self._bed.parked = self._bed.parked, None
            parked_for, self._bed.parked_for = self._bed.parked_for, False
            if parked is not None and self._reuse and self._reuse == parked_for and all(task.pid for task in parked.values()):
                self._adopt(parked)
                for task in parked.values():
                    task.forget()
                return
            self.tasks = parked or {name: Task(self, name) for name in self._bed.names}
            self._adopt(self.tasks)
            self._end_processes()
            for task in self.tasks.values():
                task.directories.clear()
                task.forget()
            if self.in_process:
                self._be_task(self[self.in_process])
            self.fork(name for name in self.tasks if name != self.in_process)
        except BaseException:
            self._reuse = False
            self.close()
            raise

    def _adopt(self, tasks: dict[str, Task]) -> None:
        self.tasks = self.bed.tasks = tasks
        for task in tasks.values():
            task._cluster = self

    def _be_task(self, task: Task) -> None:
        """Be this task, as far as a process can that was not started as it."""
        from . import here

        told = self.bed.ask(task.name, {"do": "tell"})["environment"]
        self._own_env = {name: value for name, value in told.items() if self.bed.base.get(name) != value and name != "XDG_RUNTIME_DIR"}
        self._own_env["ORCH_LOG_DIR"] = str(self.session.path)
        here.check(task.name, self._own_env)
        task.pid = os.getpid()

    def close(self) -> None:
        """What leaving the ``with`` block does: its processes end, or wait for the next test with `reuse`."""
        if self._bed is None:
            return
        self.look()
        bed = self._bed
        if bed.network is not None and bed.is_whole:
            bed.network.mend()
        if self._own_env:
            from . import here

            here.forget()
            self[self.in_process].pid = None
        if self._reuse and all(task.pid and task.job is None for task in self.tasks.values()):
            bed.parked, bed.parked_for = self.tasks, self._reuse
        else:
            self._end_processes()
        for task in self.tasks.values():
            task.show()
        self._bed = None
        beds_of(self.session).give_back(bed)

    def _end_processes(self) -> None:
        for task in self.tasks.values():
            task.stop()
        for task in self.tasks.values():
            if self.bed.doors[task.name].is_open:
                task.await_end()

    def fork(self, names: Iterable[str]) -> None:
        """Fresh processes for these tasks. Raises `ClusterLost` if one does not come up."""
        bed, names = self.bed, list(names)
        bed.numbers += 1
        number = bed.numbers
        env, unset = _changes(bed)
        for name in names:
            directory = self.session.path / "clusters" / f"{bed.run.run_id}-{number}" / name
            self.tasks[name].begin(number, directory)
            told = {"directory": str(directory), "number": number, "cwd": os.getcwd(), "env": env, "unset": unset, "path": sys.path}
            bed.doors[name].send({"do": "fork", **told})
        until = time.monotonic() + self.timeout_s
        waiting = list(names)
        while waiting:
            for name in list(waiting):
                who = (bed.run.run_id, name, number)
                line = self.session.greetings.pop(who, None)
                task = self.tasks[name]
                if line is not None:
                    task.meet(line, self.session.pids.pop(who))
                    waiting.remove(name)
                elif task.exit is not None or not bed.doors[name].is_open:
                    raise ClusterLost(f"{name} could not be started: {describe_exit(task.exit or 0)}\n{task.logs}".rstrip())
            if waiting:
                if time.monotonic() > until:
                    raise ClusterLost(f"{', '.join(waiting)} did not come up within {self.timeout_s:g} s")
                self.session.pump(LOOK_S)

    def look(self, wait_s: float = 0.0) -> None:
        """Hear what the tasks say, print what they have written."""
        if self._bed is not None:
            self.session.pump(wait_s)
            for task in self.tasks.values():
                task.show()

    # --- functions -------------------------------------------------------------------------------

    def run(self, function: Callable[..., Any], *args: Any, on: str | Iterable[str] | None = None, **kwargs: Any) -> dict[str, Any]:
        """Run a function in tasks, and return what it returned, by task. `start` says what is sent, and `Job.result` what is raised."""
        __tracebackhide__ = True  # pytest shows where the test called
        return self.start(function, *args, on=on, **kwargs).result()

    def start(self, function: Callable[..., Any], *args: Any, on: str | Iterable[str] | None = None, **kwargs: Any) -> Job:
        """Start a function in tasks, and return at once.

        It may be a lambda, a closure, or a function of the test's module, and may have a parameter ``strategy``, which is the cluster's
        (`worker.strategy`). `on`: the tasks; without it all that run a user's program under this strategy: under ``parameter_server``
        chief and evaluator, as the others are servers.

        Raises `UsageError` for what cannot be sent, for an empty `on`, and for a task that is not there, or busy; `TimedOut` for a task
        that does not take what is sent, such as a large argument while it is paused.
        """
        tasks = {name: self[name] for name in self._choose(on)}
        self.look()
        for name, task in tasks.items():
            if task.job is not None:
                raise refuse_busy(name, task.job)
            if name != self.in_process and (task.pid is None or task.line is None):
                ended = f"its process has ended ({describe_exit(task.exit)})" if task.exit is not None else "it has no process"
                raise UsageError(f"{name} cannot run anything: {ended}; c.restart({name!r}) gives it a new one")
        remote = {name: task for name, task in tasks.items() if name != self.in_process}
        data = pack(function, args, kwargs) if remote else b""
        self._calls += 1
        directory, parties = str(self.session.path / "meetings" / f"{self.bed.run.run_id}-{self._calls}"), tuple(tasks)
        job = Job(self, tasks, getattr(function, "__name__", repr(function)), self.timeout_s)
        if self.in_process in tasks:
            from . import here

            job.here = lambda: here.call(self._own_env, directory, parties, function, args, kwargs)
        told = {"do": "call", "call": self._calls, "directory": directory, "parties": parties, "verbosity": _verbosity()}
        lines = [task.line for task in remote.values() if task.line is not None]
        for task in remote.values():
            task.take(job)
        until = time.monotonic() + self.timeout_s
        for line in lines:
            try:
                line.send({**told, "function": data}, max(0.01, until - time.monotonic()))
            except TimeoutError:
                job.time_out()
        return job

    def _choose(self, on: str | Iterable[str] | None) -> list[str]:
        if isinstance(on, str):
            return [on]
        if on is not None:
            if not (names := list(on)):
                raise UsageError("on= names no task, so the function would run nowhere; leave on= out for all tasks")
            return names
        row = named(self.bed.spec.strategy)
        return [name for name in self.tasks if not row.role(name.rpartition("-")[0]).serves]

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
        self.fork([task.name for task in chosen])

    def partition(self, one: str, other: str) -> None:
        """Cut the network between two tasks of a cluster with ``partitions=True``: all that one sends to the other is lost.

        Neither is told: connections stay open and go silent, and a new connection is waited for. The network stays cut, also for a task
        that is restarted, until `heal` or the end of the cluster.
        """
        network, names = self._network(), [self[name].name for name in (one, other)]
        if one == other:
            raise UsageError(f"partition needs two tasks, not {one!r} twice")
        network.cut(*names)

    def heal(self, *names: str) -> None:
        """Take back `partition` between these tasks, or between all. TCP sends again what was lost, after a pause that has grown with
        the time of the partition: about as long as that was."""
        self._network().mend(*[self[name].name for name in names])

    def _network(self) -> Network:
        if self.bed.network is None:
            raise UsageError("the tasks share the network of this machine; cluster(partitions=True) gives each one of its own")
        return self.bed.network

    def run_script(self, script: str | os.PathLike[str], /, *args: str | int | float, **settings: Any) -> ScriptRun:
        """Run a script to its end as `orch up` does, beside this cluster and in one like it. `settings`: those of `scripts.run_script`.

        How the run ended is the result: `exit_code`, `cause`, `logs`, `events`.
        """
        from .scripts import run_script

        ours = {"timeout": self.timeout_s, "home": self.session.path / "scripts", **self._keywords}
        env = {**(self._keywords.get("env") or {}), **(settings.get("env") or {})}
        return run_script(script, *args, **{**ours, **settings, "env": env})

    def debug(self, name: str) -> None:
        """Stop a task at its next line of Python, and sit at Python's debugger there, at the terminal, until that line goes on.

        A `breakpoint()` in a function does the same by itself, when the job is waited for.
        """
        self[name].send_signal(debugger.SIGNAL)
        began, sat_s = time.monotonic(), self.session.debugged_s
        while self.session.debugged_s == sat_s and time.monotonic() - began < DYING_S:
            self.look(LOOK_S)

    def logs(self, name: str) -> str:
        """`Task.logs`."""
        return self[name].logs

    def stacks(self) -> dict[str, str]:
        """Where each living task is, as `faulthandler` writes it; empty for one that does not answer."""
        self.look()
        return self.collect_stacks([name for name, task in self.tasks.items() if task.pid])

    def collect_stacks(self, names: Iterable[str]) -> dict[str, str]:
        """`stacks` of these."""
        asked = {name: self[name].directories[-1] / task_files.STACKS for name in names}
        before = {name: len(read(path)) for name, path in asked.items()}
        for name in asked:
            self.bed.doors[name].send({"do": "signal", "number": int(signal.SIGQUIT)})
        until, last, found = time.monotonic() + STACKS_S, None, dict.fromkeys(asked, "")
        while time.monotonic() < until and (found != last or not all(found.values())):
            self.session.pump(LOOK_S)
            last, found = found, {name: read(path)[before[name] :] for name, path in asked.items()}
        return found

    def stop_tasks(self, names: Iterable[str]) -> None:
        """End these, for another has failed, or the time is over."""
        chosen = [self[name] for name in names]
        for task in chosen:
            task.stop()
        for task in chosen:
            task.await_end()

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
            alive = task.is_alive  # asked first: what it wrote last is then there
            found = _find_report(task, report) if report is not None else re.search(log or "", task.logs)
            if found is not None:
                return found
            wanted = f"report {dict(report)}" if report is not None else f"a line like {log!r}"
            if not alive:
                raise TimedOut(name, f"ended ({describe_exit(task.exit or 0)}) without {wanted}", {}, {}, task.logs)
            if time.monotonic() > until:
                raise TimedOut(name, f"no {wanted} after {limit_s:g} s", {}, self.stacks(), task.logs)
            self.look(LOOK_S)


def _find_report(task: Task, wanted: Mapping[str, Any]) -> dict[str, Any] | None:
    return next((found for found in task.reports if all(found.get(name) == value for name, value in wanted.items())), None)


def _changes(bed: Bed) -> tuple[dict[str, str], list[str]]:
    """What the test has changed in its environment since the bed was started: set, and removed."""
    env = {name: value for name, value in os.environ.items() if bed.base.get(name) != value and name not in bed.own_variables}
    unset = [name for name in bed.base if name not in os.environ and name not in bed.own_variables]
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return (env, [*unset, "XDG_RUNTIME_DIR"]) if runtime is None else ({**env, "XDG_RUNTIME_DIR": runtime}, unset)


def _verbosity() -> int | None:
    """How much pytest says of a failed comparison; None: no test of pytest's is running."""
    config = getattr(sys.modules.get("_pytest.assertion.util"), "_config", None)
    return None if config is None else int(config.get_verbosity("assertions"))
