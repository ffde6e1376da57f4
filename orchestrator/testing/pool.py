"""The runs that the clusters of the tests use, kept between tests: one for each cluster that is there at the same time.

Such a run is one of `orchestrator.launch` like any other: a controller, an agent that holds the ports, a task each. Its tasks stay, and
fork (`worker/task/fixture/calls`). What a test calls a cluster is one process forked by each of them, with the TF_CONFIG, the ports and the
devices of that task.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from worker.host.forkserver import import_environment
from worker.protocol import task_files
from worker.protocol.task_id import TaskId
from worker.task.fixture import resident

from ..api import read_spec, start
from ..errors import UsageError
from ..handle import Run
from ..model.settings import ClusterSpec
from ..model.settings.backend_sections import LocalSettings
from ..model.settings.durations import EXAMPLES, seconds_of
from ..model.settings.parse import to_document
from ..model.strategies import STRATEGIES
from ..record import stack_report
from .connections import Connection
from .failures import ClusterLost
from .outcomes import describe_exit
from .session import Session, coverage_of_tasks, environment
from .tasks import Task, read

MOST_IDLE = 4
"""How many runs are kept that no cluster uses; the run that was used longest ago ends first."""
POLL_S = 0.02
"""How often the files of tasks are read, in seconds; messages are read at once."""
STACKS_S = 2.0
"""How long a task may write nothing more of its stack, in seconds."""
START_S = 120.0
DYING_S = 10.0
"""How long a killed process may take to end."""


class PooledRun:
    """One run of the pool. `key`: the settings and the environment that the processes of all its clusters have in common."""

    def __init__(self, session: Session, key: str, spec: ClusterSpec, env: Mapping[str, str]) -> None:
        self.session, self.key, self.spec = session, key, spec
        self.environment = {**env, **session.runtime}
        """The environment in which the run was started."""
        self.own_variables = frozenset(spec.env).union(*(tasks.env for tasks in spec.tasks))
        """The variables that the spec sets; the environment of a test does not change them."""
        preload = [*(spec.preload or ()), "pickle", "inspect", "cloudpickle", *(["pytest"] if "pytest" in sys.modules else [])]
        given = {resident.VARIABLE: session.address, resident.PRELOAD: " ".join(preload)}
        self.handle: Run = start(spec, session.path / "runs", {**self.environment, **given, **coverage_of_tasks()})
        self.residents: dict[str, Connection] = {}
        """The connection to the resident of each task."""
        self.names = [str(TaskId(tasks.type, index)) for tasks in spec.tasks for index in range(tasks.count)]
        for name in self.names:
            session.expected[f"{self.handle.run_id}/{name}"] = partial(self._on_connected, name)
        self.tasks: dict[str, Task] = {}
        """The tasks of the cluster that uses this run, or of the last one, in TensorFlow's order."""
        self.is_in_use = True
        self.keeps_processes = False
        """Whether a cluster with ``reuse`` has left its processes to the next one."""
        self._clusters = itertools.count(1)
        """Numbers for the directories of the clusters."""

    # --- messages ----------------------------------------------------------------------------------

    def _on_connected(self, name: str, connection: Connection) -> None:
        self.residents[name] = connection
        connection.on_message = partial(self._on_message, name)

    def _on_message(self, name: str, message: dict[str, Any]) -> None:
        """A resident tells that the process of its task has ended."""
        self.tasks[name].end_process(message["ended"], message["at"])

    def poll(self, wait_s: float = 0.0) -> None:
        """Wait up to `wait_s` seconds for messages, which change the tasks, and print the output of the tasks."""
        with self.session.mutex:
            self.session.poll(wait_s)
            for name, task in self.tasks.items():
                if task.is_forked and not self.residents[name].is_open:  # the process has ended with its resident
                    task.end_process(-signal.SIGKILL, time.monotonic())
                task.print_output()

    def wait(self, is_over: Callable[[], object], limit_s: float) -> bool:
        """Poll until `is_over`. False: not within `limit_s` seconds, without those that were spent in a debugger."""
        until = self.session.now() + limit_s
        while not is_over():
            if (left_s := until - self.session.now()) < 0:
                return False
            self.poll(min(left_s, POLL_S))
        return True

    def await_residents(self) -> None:
        """Wait until the residents of all tasks have connected. Raises `ClusterLost`."""
        is_in_time = self.wait(lambda: len(self.residents) == len(self.names) or not self.handle.is_running, START_S)
        if not self.handle.is_running:
            raise ClusterLost(f"the cluster could not be started\n{self.handle.wait().report}")
        if not is_in_time:
            raise ClusterLost(f"{', '.join(set(self.names) - self.residents.keys())} did not connect in {START_S:g} s")

    # --- processes ---------------------------------------------------------------------------------

    def keep_tasks(self, reuse: bool) -> bool:
        """Prepare the tasks of a new cluster. True: they keep the processes that a cluster with `reuse` has left."""
        is_kept = reuse and self.keeps_processes and all(task.pid for task in self.tasks.values())
        self.keeps_processes = False
        if is_kept:
            for task in self.tasks.values():
                task.forget_output()
        else:
            self.end_processes(self.tasks.values())
            directory = self.session.path / "clusters" / f"{self.handle.run_id}-{next(self._clusters)}"
            self.tasks = {name: Task(self, name, directory / name) for name in self.names}
        return is_kept

    def fork(self, tasks: Iterable[Task]) -> None:
        """Fork new processes for these tasks. Raises `ClusterLost` if one does not come up."""
        chosen = list(tasks)
        env = {name: value for name, value in os.environ.items() if self.environment.get(name) != value and name not in self.own_variables}
        unset = [name for name in self.environment if name not in os.environ and name not in self.own_variables]
        if "TMPDIR" not in self.own_variables:  # AutoGraph leaves files there, which a process removes that ends by itself
            env["TMPDIR"] = str(self.session.temporary)
        for task in chosen:
            task.begin_process()
            message = {"do": "fork", "cwd": os.getcwd(), "env": env, "unset": unset, "path": sys.path, "directory": str(task.directory)}
            self.residents[task.name].send(message)
        self.wait(lambda: all(task.connection for task in chosen) or not all(task.is_forked for task in chosen), START_S)
        for task in sorted(chosen, key=lambda task: task.is_forked):
            if task.connection is None:
                why = describe_exit(task.exit) if task.exit is not None else f"it did not connect in {START_S:g} s"
                raise ClusterLost(f"{task.name} could not be started: {why}\n{task.logs}".rstrip())

    def end_processes(self, tasks: Iterable[Task]) -> None:
        """Kill the processes of these tasks, and wait for their ends."""
        chosen = [task for task in tasks if task.is_forked]
        for task in chosen:
            task.pass_signal(signal.SIGKILL, "stopped")
        self.await_ends(chosen)

    def await_ends(self, tasks: Sequence[Task]) -> None:
        """Wait until the killed processes of these tasks have ended. Raises `ClusterLost`."""
        if not self.wait(lambda: not any(task.is_forked for task in tasks), DYING_S):
            names = ", ".join(task.name for task in tasks if task.is_forked)
            raise ClusterLost(f"the processes of {names} have not ended {DYING_S:g} s after SIGKILL")

    def stacks(self, tasks: Iterable[Task]) -> dict[str, str]:
        """The stack of each of these tasks, as `faulthandler` writes it; empty for a task that does not answer.

        Tasks without a process are left out.
        """
        self.poll()
        paths = {task.name: task.directory / task_files.STACKS for task in tasks if task.is_forked}
        before = {name: len(read(path)) for name, path in paths.items()}
        for name in paths:
            self.residents[name].send({"do": "signal", "number": int(signal.SIGQUIT)})
        until, found = time.monotonic() + STACKS_S, dict.fromkeys(paths, "")
        while time.monotonic() < until and not all(map(stack_report.is_complete, found.values())):
            self.poll(POLL_S)
            last, found = found, {name: read(path, before[name]).decode(errors="replace") for name, path in paths.items()}
            if found != last:
                until = time.monotonic() + STACKS_S
        return found

    @property
    def is_whole(self) -> bool:
        return self.handle.is_running and all(one.is_open for one in self.residents.values())

    def stop(self) -> None:
        """End the run, and take it out of the pool."""
        runs_of(self.session).remove(self)
        for connection in self.residents.values():
            self.session.close(connection)
        self.handle.stop(now=True)


_runs: WeakKeyDictionary[Session, list[PooledRun]] = WeakKeyDictionary()


def runs_of(session: Session) -> list[PooledRun]:
    """The pool of a session, in the order of the last use."""
    if session not in _runs:
        runs = _runs[session] = []
        session.at_end.append(lambda: [run.handle.stop(now=True) for run in runs])
    return _runs[session]


def acquire(session: Session, keywords: Mapping[str, Any], *, reuse: bool) -> PooledRun:
    """A run with these settings that no cluster uses; a new run if there is none. With `reuse`, a run that has kept processes goes first.

    Raises `SpecError` for keywords that are wrong, and `ClusterLost`.
    """
    env = environment()
    spec = _spec(keywords, str(session.path), session.log_level)
    key = json.dumps([to_document(spec), sorted(import_environment.frozen({**env, **spec.env}, ("tensorflow",)))])
    with session.mutex:
        runs = runs_of(session)
        for run in [run for run in runs if not run.is_in_use and not run.is_whole]:
            run.stop()
        idle = [run for run in reversed(runs) if run.key == key and not run.is_in_use]
        if idle:
            run = next((run for run in idle if run.keeps_processes == reuse), idle[0])  # the one that was used last, of each kind
            run.is_in_use = True
            runs.remove(run)
            runs.append(run)
            return run
        if spec.preload:
            session.warm_up({**env, **spec.env})
        run = PooledRun(session, key, spec, env)
        runs.append(run)
    try:
        run.await_residents()
    except BaseException:
        run.stop()
        raise
    return run


def release(run: PooledRun) -> None:
    """The cluster of this run has been left."""
    run.is_in_use = False
    with run.session.mutex:
        idle = [one for one in runs_of(run.session) if not one.is_in_use]
        for old in idle[: max(0, len(idle) - MOST_IDLE)]:
            old.stop()


OWN = ("timeout", "grace", "reuse")
"""The keywords of a `Cluster` that are no settings of a run."""


def seconds(name: str, value: float | str) -> float:
    """The seconds of a keyword: a number, or a text with a unit (``10m``). Raises `UsageError`."""
    found = seconds_of(value) if isinstance(value, str) else value
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise UsageError(f"launch({name}=…): must be a time ({EXAMPLES}), not {value!r}")
    return float(found)


def find_mistakes(keywords: Mapping[str, Any], where: str, *, for_cluster: bool) -> str:
    """Return what is wrong with the keywords of a marker, which has the name `where`; empty if nothing is. Without numbers of tasks they
    are defaults, so the tasks that the strategy needs are not missing."""
    strategy = STRATEGIES.get(str(keywords.get("strategy")))
    needed = {kind: 1 for kind, role in strategy.roles.items() if role.required} if strategy is not None else {}
    settings = {name: value for name, value in keywords.items() if name not in OWN}
    if not {"workers", "ps", "chief", "evaluator", "tasks"}.intersection(settings):
        settings = {**needed, **settings}
    try:
        for name in ("timeout", "grace"):
            seconds(name, keywords.get(name) or 0)
        if not isinstance(keywords.get("reuse", False), bool):
            raise UsageError(f"launch(reuse=…): must be true or false, not {keywords['reuse']!r}")
        if for_cluster:
            _spec(settings, os.getcwd())
        else:
            read_spec("script.py", settings)
    except UsageError as error:
        return str(error).replace("launch(", f"{where}(")
    return ""


def _spec(keywords: Mapping[str, Any], workdir: str, env: Mapping[str, str] = {}) -> ClusterSpec:
    """The spec that the keywords mean. Raises `UsageError` for settings about servers that a task of a script starts, and no resident."""
    given = {"preload": ["tensorflow"], "name": "test", **keywords, "env": {**env, **(keywords.get("env") or {})}}
    script = os.path.abspath(resident.__file__)
    # Each fork goes to the test's own directory.
    spec = read_spec(None, {**given, "python": sys.executable, "script": script, "workdir": workdir})
    if not isinstance(spec.backend, LocalSettings):
        raise UsageError("the tasks of a test run on this machine: leave hosts= and backend= out")
    for name, value in (("data_workers", spec.data_workers), ("start_timeout", spec.timeouts.start_s)):
        if value:
            why = "whose tasks start no data service, and listen only once a function uses TensorFlow"
            raise UsageError(f"{name}= is not for clusters of tests, {why}; test a script with orch_run, or use timeout=")
    return spec
