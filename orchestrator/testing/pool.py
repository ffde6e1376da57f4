"""The runs that the clusters of the tests use, kept between tests: one for each cluster that is there at the same time.

Such a run is one of `orchestrator.launch` like any other: a controller, an agent that holds the ports, a task each. Its tasks stay, and
fork (`worker/task/calls`). What a test calls a cluster is one process forked by each of them, with the TF_CONFIG, the ports and the
devices of that task.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from worker.host.template import import_environment
from worker.protocol.task_id import TaskId
from worker.task.calls import resident

from ..api import read_spec, start
from ..errors import UsageError
from ..handle import Run
from ..model.spec import ClusterSpec
from ..model.spec.parse import to_document
from .connections import Connection
from .failures import ClusterLost
from .jobs import describe_exit
from .partitions import Network
from .session import Session, coverage_of_tasks, environment
from .tasks import Task

MOST_IDLE = 4
"""How many runs are kept that no cluster uses; the run that was used longest ago ends first."""
START_S = 120.0
ANSWER_S = 10.0
"""How long a resident may take to answer."""


class PooledRun:
    """One run of the pool. `key`: the settings and the environment that the processes of all its clusters have in common."""

    def __init__(self, session: Session, key: str, spec: ClusterSpec, env: Mapping[str, str]) -> None:
        self.session, self.key, self.spec = session, key, spec
        self.environment = dict(env)
        """The environment in which the run was started."""
        self.names = tuple(str(TaskId(tasks.type, index)) for tasks in spec.tasks for index in range(tasks.count))
        """The tasks of the run, in TensorFlow's order."""
        self.own_variables = frozenset(spec.env).union(*(tasks.env for tasks in spec.tasks))
        """The variables that the spec sets; the environment of a test does not change them."""
        given = {
            "XDG_RUNTIME_DIR": str(session.path),
            resident.VARIABLE: session.address,
            resident.PRELOAD: " ".join(_preload(spec)),
        }
        self.handle: Run = start(spec, session.path / "runs", {**env, **given, **coverage_of_tasks()})
        self.residents: dict[str, Connection] = {}
        """The connection to the resident of each task."""
        self._answers: dict[str, deque[dict[str, Any] | None]] = {name: deque() for name in self.names}
        self.tasks: dict[str, Task] = {}
        """The tasks of the cluster that uses this run, or of the last one; their `on_exited` is called when their processes end."""
        self.network: Network | None = None
        """The network between the tasks, if it can be cut."""
        self.is_in_use = True
        self.kept_for: bool | str = False
        """The `reuse` of the cluster that was left with its processes; False: no cluster was."""
        self._forks = 0
        """How often processes were forked; the processes have this number."""

    def await_residents(self) -> None:
        """Wait until the residents of all tasks have connected. Raises `ClusterLost`."""

        def check() -> None:
            if not self.handle.is_running:
                raise ClusterLost(f"the cluster could not be started\n{self.handle.wait().report}")

        until = time.monotonic() + START_S
        for name in self.names:
            self.residents[name] = connection = self.session.wait_greeting(self.handle.run_id, name, 0, check, until)
            connection.on_message = functools.partial(self._on_message, name)

    def request(self, name: str, message: dict[str, Any]) -> dict[str, Any]:
        """Send a message to the resident of a task, and return the answer. Raises `ClusterLost` if no answer comes."""
        self.residents[name].send(message)
        until = time.monotonic() + ANSWER_S
        while not self._answers[name]:
            if time.monotonic() > until:
                raise ClusterLost(f"{name} does not answer")
            self.session.poll(0.05)
        answer = self._answers[name].popleft()
        if answer is None:
            raise ClusterLost(f"{name} has ended")
        return answer

    def _on_message(self, name: str, message: dict[str, Any] | None) -> None:
        """A resident has sent this; None: the resident has ended, and the process that it has forked ends with it."""
        if message is not None and "ended" not in message:
            self._answers[name].append(message)
            return
        if message is None:
            self._answers[name].append(None)
        # The process is the task's present one: `end_processes` and `Task.kill` wait for this message before the task gets a new process.
        if name in self.tasks:
            self.tasks[name].on_exited(-signal.SIGKILL if message is None else message["code"])

    def keep_tasks(self, reuse: bool | str) -> bool:
        """Prepare the tasks of a new cluster. True: they keep the processes that a cluster with this `reuse` has left."""
        is_kept = bool(reuse) and reuse == self.kept_for and all(task.pid for task in self.tasks.values())
        self.kept_for = False
        if is_kept:
            for task in self.tasks.values():
                task.forget_output()
        else:
            self.end_processes()
            self.tasks = {name: Task(self, name) for name in self.names}
        return is_kept

    def fork(self, names: Iterable[str]) -> None:
        """Fork new processes for these tasks. Raises `ClusterLost` if one does not come up."""
        self._forks += 1
        chosen = [self.tasks[name] for name in names]
        env, unset = self._find_changes()
        for task in chosen:
            directory = self.session.path / "clusters" / f"{self.handle.run_id}-{self._forks}" / task.name
            task.on_forked(directory)
            given = {"directory": str(directory), "number": self._forks, "cwd": os.getcwd(), "env": env, "unset": unset, "path": sys.path}
            self.residents[task.name].send({"do": "fork", **given})

        def check() -> None:
            for task in chosen:
                if task.exit is not None or not self.residents[task.name].is_open:
                    raise ClusterLost(f"{task.name} could not be started: {describe_exit(task.exit or 0)}\n{task.logs}".rstrip())

        until = time.monotonic() + START_S
        for task in chosen:
            task.on_connected(self.session.wait_greeting(self.handle.run_id, task.name, self._forks, check, until))

    def _find_changes(self) -> tuple[dict[str, str], list[str]]:
        """The variables that the test has set since the run was started, and the names of those that it has removed."""
        env = {name: value for name, value in os.environ.items() if self.environment.get(name) != value and name not in self.own_variables}
        unset = [name for name in self.environment if name not in os.environ and name not in self.own_variables]
        runtime = os.environ.get("XDG_RUNTIME_DIR")
        return (env, [*unset, "XDG_RUNTIME_DIR"]) if runtime is None else ({**env, "XDG_RUNTIME_DIR": runtime}, unset)

    def end_processes(self, names: Collection[str] | None = None) -> None:
        """Kill the processes of these tasks, or of all, and wait for their ends. The test's own process goes on."""
        chosen = [task for name, task in self.tasks.items() if (names is None or name in names) and task.pid != os.getpid()]
        for task in chosen:
            task.stop()
        for task in chosen:
            if self.residents[task.name].is_open:
                task.await_end()

    @property
    def is_whole(self) -> bool:
        return self.handle.is_running and len(self.residents) == len(self.names) and all(one.is_open for one in self.residents.values())

    def stop(self) -> None:
        for connection in self.residents.values():
            self.session.close(connection)
        self.handle.stop(now=True)


class Pool:
    """The runs of a session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._runs: list[PooledRun] = []
        """In the order of their last use."""
        self._specs: dict[str, tuple[ClusterSpec, Any]] = {}
        session.on_end.append(self.stop)

    def acquire(self, keywords: Mapping[str, Any], *, reuse: bool | str, partitions: bool) -> PooledRun:
        """A run with these settings that no cluster uses; a new run if there is none. A run that was left with this `reuse` goes first.

        Raises `SpecError` for keywords that are wrong, and `ClusterLost`.
        """
        env = environment()
        spec, document = self._read(keywords)
        key = json.dumps([document, sorted(import_environment.frozen({**env, **spec.env}, ("tensorflow",))), partitions])
        with self._session.mutex:
            for run in list(self._runs):
                if not run.is_in_use and not run.is_whole:
                    self._discard(run)
            idle = [run for run in reversed(self._runs) if run.key == key and not run.is_in_use]
            if idle:
                run = next((run for run in idle if run.kept_for == reuse), idle[0])  # the one that was used last, of each kind
                run.is_in_use = True
                self._runs.remove(run)
                self._runs.append(run)
                return run
            self._session.import_for(spec, env)
            run = PooledRun(self._session, key, spec, env)
            self._runs.append(run)
        try:
            run.await_residents()
            run.network = Network(run) if partitions else None
        except BaseException:
            self._discard(run)
            raise
        return run

    def _read(self, keywords: Mapping[str, Any]) -> tuple[ClusterSpec, Any]:
        """The spec that the keywords mean, and the spec as data. Both are kept: most tests of a suite use the settings of another test."""
        level = os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2")
        given = repr((keywords, level, os.getcwd()))
        if given not in self._specs:
            spec = _spec(keywords, level, str(self._session.path))
            _refuse_servers(spec)
            self._specs[given] = spec, to_document(spec)
        return self._specs[given]

    def release(self, run: PooledRun) -> None:
        """The cluster of this run has been left."""
        run.is_in_use = False
        with self._session.mutex:
            idle = [one for one in self._runs if not one.is_in_use]
            for old in idle[: max(0, len(idle) - MOST_IDLE)]:
                self._discard(old)

    def _discard(self, run: PooledRun) -> None:
        self._runs.remove(run)
        run.stop()

    def stop(self) -> None:
        for run in self._runs:
            for connection in run.residents.values():
                self._session.close(connection)
        while self._runs:
            self._discard(self._runs[0])


def pool_of(session: Session) -> Pool:
    """The pool of a session."""
    with session.mutex:
        if session.pool is None:
            session.pool = Pool(session)
        return session.pool


def _preload(spec: ClusterSpec) -> list[str]:
    """The modules that each process would have to import: TensorFlow where there is no template, and those for functions and asserts."""
    return [
        *(spec.preload or ()),
        "pickle",
        "inspect",
        "cloudpickle",
        *(("_pytest.assertion.rewrite", "pytest") if "_pytest" in sys.modules else ()),
    ]


def _refuse_servers(spec: ClusterSpec) -> None:
    """Raises `UsageError` for settings about servers that each task of a script starts, which a resident does not start."""
    if spec.data_workers:
        raise UsageError("data_workers= is not for clusters of tests, whose tasks run no data service; test a script with orch_run")
    if spec.timeouts.start_s is not None:
        raise UsageError(
            "start_timeout= is not for clusters of tests, whose tasks listen only once a function uses TensorFlow; use timeout="
        )


def _spec(keywords: Mapping[str, Any], level: str, workdir: str) -> ClusterSpec:
    given = dict(keywords)
    env = {"TF_CPP_MIN_LOG_LEVEL": level, **(given.pop("env", None) or {})}
    script = os.path.abspath(resident.__file__)
    fixed = {"env": env, "python": sys.executable, "script": script, "workdir": workdir}  # each fork goes to the test's own directory
    return read_spec(None, {"preload": ["tensorflow"], "name": "test", **given, **fixed})
