"""Runs whose tasks stay and fork (`worker/task/calls`), kept between tests: one for each cluster that is there at the same time.

A bed is a run of `orchestrator.launch` like any other: a controller, an agent that holds the ports, a task each. What a test calls a
cluster is one process forked by each of its tasks, with the TF_CONFIG, the ports and the devices of that task.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from worker.host.tasks import import_environment
from worker.protocol.messages import TaskId
from worker.task.calls import resident

from ..api import read_spec, start
from ..handle import Run
from ..model.spec import ClusterSpec
from ..model.spec.parse import to_document
from .failures import ClusterLost
from .measuring import measured
from .network import Network
from .session import Line, Session

if TYPE_CHECKING:
    from .tasks import Task

MOST_IDLE = 4
"""How many beds are kept that no test uses; the one that was used longest ago goes first."""
START_S = 120.0
ANSWER_S = 10.0
"""How long a resident may take to answer."""


class Bed:
    """One run. `key`: what its processes have in common; `names`: its tasks, in TensorFlow's order."""

    def __init__(self, session: Session, key: str, spec: ClusterSpec, env: Mapping[str, str]) -> None:
        self.session, self.key, self.spec = session, key, spec
        self.base = dict(env)
        self.names = tuple(str(TaskId(tasks.type, index)) for tasks in spec.tasks for index in range(tasks.count))
        self.own_variables = frozenset(spec.env).union(*(tasks.env for tasks in spec.tasks))
        told = {"XDG_RUNTIME_DIR": str(session.runtime_dir), resident.VARIABLE: session.address, resident.PRELOAD: " ".join(_preload(spec))}
        self.run: Run = start(spec, session.path / "runs", {**env, **told, **measured()})
        self.doors: dict[str, Line] = {}
        """The way to each task's resident."""
        self.residents: dict[str, int] = {}
        """Their pids."""
        self._answers: dict[str, deque[dict[str, Any] | None]] = {name: deque() for name in self.names}
        self.tasks: dict[str, Task] = {}
        """Those of the cluster that uses this run; they are told when their processes end."""
        self.network: Network | None = None
        """The network between the tasks, if it can be cut."""
        self.numbers = 0
        self.is_used = True
        self.parked: Any = None
        """The cluster that has been left with `reuse`, with its processes."""
        self.parked_for: bool | str = False
        """Its `reuse`."""

    def await_residents(self) -> None:
        """Until all tasks are there. Raises `ClusterLost`."""
        until = time.monotonic() + START_S
        while len(self.doors) < len(self.names):
            self.session.pump(0.05)
            for name in self.names:
                door = self.session.greetings.pop((self.run.run_id, name, 0), None)
                if door is not None:
                    self.doors[name] = door
                    door.hear = lambda message, name=name: self._hear(name, message)  # type: ignore[misc]
                    self.residents[name] = self.session.pids.pop((self.run.run_id, name, 0))
            if not self.run.is_running:
                raise ClusterLost(f"the cluster could not be started\n{self.run.wait().report}")
            if time.monotonic() > until:
                raise ClusterLost(f"the cluster has not started after {START_S:g} s: {self.run.stop(now=True).report}")

    def ask(self, name: str, what: dict[str, Any]) -> dict[str, Any]:
        """What the resident of a task answers. Raises `ClusterLost` if it does not."""
        self.doors[name].send(what)
        until = time.monotonic() + ANSWER_S
        while not self._answers[name]:
            if time.monotonic() > until:
                raise ClusterLost(f"{name} does not answer")
            self.session.pump(0.05)
        answer = self._answers[name].popleft()
        if answer is None:
            raise ClusterLost(f"{name} has ended")
        return answer

    def _hear(self, name: str, message: dict[str, Any] | None) -> None:
        """A resident has said something, or (None) has ended."""
        if message is not None and "ended" not in message:
            self._answers[name].append(message)
            return
        if message is None:
            self._answers[name].append(None)
        if name in self.tasks:
            self.tasks[name].end(-signal.SIGKILL if message is None else message["code"])

    @property
    def is_whole(self) -> bool:
        return self.run.is_running and len(self.doors) == len(self.names) and all(door.is_open for door in self.doors.values())

    def stop(self) -> None:
        for door in self.doors.values():
            self.session.hang_up(door)
        self.run.stop(now=True)


class Beds:
    """All of a session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._beds: list[Bed] = []
        self._specs: dict[str, tuple[ClusterSpec, Any]] = {}
        session.on_end.append(self.stop)

    def take(self, keywords: Mapping[str, Any], env: Mapping[str, str], *, reuse: bool | str, partitions: bool = False) -> Bed:
        """A bed that nobody uses, and that fits; if there is none, a new one. `env`: the environment of the test's process."""
        spec, document = self._read(keywords)
        key = json.dumps([document, sorted(import_environment.frozen({**env, **spec.env}, ("tensorflow",))), partitions])
        with self._session.mutex:
            for bed in list(self._beds):
                if not bed.is_used and not bed.is_whole:
                    self._discard(bed)
            idle = [bed for bed in reversed(self._beds) if bed.key == key and not bed.is_used]
            idle.sort(key=lambda bed: bed.parked_for != reuse)
            if idle:
                bed = idle[0]
                bed.is_used = True
                self._beds.remove(bed)
                self._beds.append(bed)
                return bed
            self._session.import_for(spec, env)
            bed = Bed(self._session, key, spec, env)
            self._beds.append(bed)
        try:
            bed.await_residents()
            bed.network = Network(bed) if partitions else None
        except BaseException:
            self._discard(bed)
            raise
        return bed

    def _read(self, keywords: Mapping[str, Any]) -> tuple[ClusterSpec, Any]:
        """The spec that the keywords mean, and the spec as data. Most tests of a suite want a cluster that another test has had."""
        level = os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2")
        given = repr((keywords, level, os.getcwd()))
        if given not in self._specs:
            spec = _spec(keywords, level, str(self._session.path))
            self._specs[given] = spec, to_document(spec)
        return self._specs[given]

    def give_back(self, bed: Bed) -> None:
        """It is used no longer."""
        bed.is_used = False
        with self._session.mutex:
            idle = [bed for bed in self._beds if not bed.is_used]
            for old in idle[: max(0, len(idle) - MOST_IDLE)]:
                self._discard(old)

    def _discard(self, bed: Bed) -> None:
        self._beds.remove(bed)
        bed.stop()

    def stop(self) -> None:
        for bed in self._beds:
            for door in bed.doors.values():
                self._session.hang_up(door)
        while self._beds:
            self._discard(self._beds[0])


def beds_of(session: Session) -> Beds:
    """The beds of a session."""
    with session.mutex:
        if session.beds is None:
            session.beds = Beds(session)
        return session.beds


def _preload(spec: ClusterSpec) -> list[str]:
    """What each process would have to import: TensorFlow, where no template can be forked, and what carries functions and asserts."""
    return [
        *(spec.preload or ()),
        "pickle",
        "inspect",
        "cloudpickle",
        *(("_pytest.assertion.rewrite", "pytest") if "_pytest" in sys.modules else ()),
    ]


def _spec(keywords: Mapping[str, Any], level: str, workdir: str) -> ClusterSpec:
    given = dict(keywords)
    env = {"TF_CPP_MIN_LOG_LEVEL": level, **(given.pop("env", None) or {})}
    script = os.path.abspath(resident.__file__)
    ours = {"env": env, "python": sys.executable, "script": script, "workdir": workdir}  # each fork goes to the test's own directory
    return read_spec(None, {"preload": ["tensorflow"], "name": "test", **given, **ours})
