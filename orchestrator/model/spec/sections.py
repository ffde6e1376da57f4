"""What the user wants: one frozen value, complete and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from worker.contract import DATA_SERVICE, CollectiveSettings, DeviceSettings, Program
from worker.records import dataclass

PROGRAM_KINDS: tuple[Literal["script", "module", "command"], ...] = ("script", "module", "command")
"""The keys that say what runs; a spec has one of them."""

DEFAULT_PRELOAD = ("tensorflow",)
DEFAULT_COLLECTIVES = CollectiveSettings(heartbeat_s=5.0)
"""TensorFlow's own heartbeat is 10 seconds; the others are its own (see docs/tensorflow-knobs.md)."""


def trains(task_type: str) -> bool:
    """Whether such tasks are in the training cluster: neither the evaluator nor a server of the tf.data service is."""
    return task_type not in ("evaluator", *DATA_SERVICE)


@dataclass(frozen=True, slots=True)
class GpuWish:
    """The GPUs that a task asks for: `count` of them, or those in `ids` (indices, UUIDs); neither: its share of the host's.

    `share`: they may be other tasks' as well.
    """

    count: int | None = None
    ids: tuple[str, ...] = ()
    share: bool = False

    @property
    def is_auto(self) -> bool:
        return self.count is None and not self.ids


@dataclass(frozen=True, slots=True)
class TaskDevices:
    """What one task asks of its devices: which GPUs, how it is set up on them, and whether it is tied to cores of its own."""

    settings: DeviceSettings = DeviceSettings()
    gpus: GpuWish = GpuWish()
    affinity: bool = False


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """All tasks of one type. `args` None: the cluster's own arguments. `overrides`: all that is said of single tasks, by index."""

    type: str
    count: int
    args: tuple[str, ...] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    devices: TaskDevices = TaskDevices()
    overrides: Mapping[int, TaskDevices] = field(default_factory=dict)

    def devices_of(self, index: int) -> TaskDevices:
        """What the task of this index asks for."""
        return self.overrides.get(index, self.devices)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds. None: no limit.

    `start_s`: until every task is up, in each attempt; `hang_s`: without a word of any task; `run_s`: the whole run, with all its
    attempts; `grace_s`: from SIGTERM to SIGKILL.
    """

    start_s: float | None = None
    hang_s: float | None = None
    run_s: float | None = None
    grace_s: float = 5.0


@dataclass(frozen=True, slots=True)
class Restart:
    """What may be started again after a failure.

    `max`: how often, in the whole run. `backoff_s`: the pause before the first restart, doubled for each further one up to
    `backoff_max_s`. `without_progress`: after so many attempts in a row that made none, the run ends, whatever is left of `max`; 0: never.
    `progress_s`: an attempt of which neither reports nor checkpoints tell anything has made progress if it lasted so long.
    """

    max: int = 0
    backoff_s: float = 1.0
    backoff_max_s: float = 60.0
    without_progress: int = 3
    progress_s: float = 600.0


@dataclass(frozen=True, slots=True)
class HostSpec:
    """A host that the user has named. What is empty or None is left to ssh's configuration, or found out.

    `slots`: how many tasks it takes. `address`: a number or a name, for the other hosts. `setup`: lines for its shell; None: the
    backend's.
    """

    name: str
    slots: int | None = None
    address: str = ""
    interface: str = ""
    user: str = ""
    port: int | None = None
    python: str = ""
    setup: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class BackendSpec:
    """Where the hosts come from.

    `code`: ``shared`` (the hosts have the working directory, which is compared), ``ship`` (they get it) or ``unchecked``. `ssh`: the
    program and its options. `lost_after_s`: seconds of silence after which a host counts as lost, and after which its tasks end.
    """

    type: str = "local"
    hosts: tuple[HostSpec, ...] = ()
    code: Literal["shared", "ship", "unchecked"] = "shared"
    code_limit_mb: float = 100.0
    setup: tuple[str, ...] = ()
    ssh: tuple[str, ...] = ("ssh",)
    lost_after_s: float = 20.0


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """A cluster as the user wants it.

    `workdir`: the tasks' working directory, absolute. `python`: the interpreter of the tasks and of the
    agent, as given (a path, or a name for PATH); empty means the one that runs orch, or ``python3`` on a host that has a `setup` or gets
    the code by ``ship``: what it has may lie elsewhere. `ports`: first and last port
    that may be used; None leaves the choice to the kernel. `preload`: modules that each host imports once, for its tasks to be
    forked from; empty turns that off, None means `DEFAULT_PRELOAD` for programs that seem to use it.
    """

    name: str
    strategy: str
    program: Program
    tasks: tuple[TaskSpec, ...]
    workdir: str
    python: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    serve: bool = False
    preload: tuple[str, ...] | None = None
    ports: tuple[int, int] | None = None
    timeouts: Timeouts = Timeouts()
    collectives: CollectiveSettings = DEFAULT_COLLECTIVES
    restart: Restart = Restart()
    backend: BackendSpec = BackendSpec()

    @property
    def counts(self) -> dict[str, int]:
        """How many tasks there are of each type, in TensorFlow's order of types."""
        return {tasks.type: tasks.count for tasks in self.tasks}

    @property
    def size(self) -> int:
        """How many tasks there are in all."""
        return sum(tasks.count for tasks in self.tasks)

    @property
    def data_workers(self) -> int:
        """How many of them make input for a tf.data service; 0: there is none."""
        return sum(tasks.count for tasks in self.tasks if tasks.type == "data_worker")


def works(task_type: str, spec: ClusterSpec) -> bool:
    """Whether such tasks run the training themselves. What only serves it may write a line now and then while the training hangs."""
    serves = task_type == "ps" or (task_type == "worker" and spec.serve)
    return trains(task_type) and not serves
