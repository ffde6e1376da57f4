"""The state of a run: its tasks, its cluster and its end. These are values only; `lifecycle.step` makes the next value.

A task:     PENDING -> STARTED -> UP -> SUCCEEDED | FAILED | STOPPED | LOST
A cluster:  ALLOCATING -> CONNECTING -> [PREPARING ->] STARTING -> RUNNING -> STOPPING -> DONE
            (no host is   (agents start, (hosts are     (started)   (formed)   (one end is decided: success, failure, cancel, deadline)
             known yet)    then a plan)   prepared)                                     -> RESTARTING -> STARTING
                                                                                           (a pause before the next attempt)

A cluster exists from the first moment of a run, and may end in any state. It has tasks from its first plan on: `events.Planned`, of which
each attempt may have another, with other hosts and another number of tasks.

The attempts of a run have numbers: 1, 2, …. A task that restarts alone gets the next number too. So a number and a task name one process
and one directory. All times are seconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from enum import Enum
from typing import Any

from worker.protocol.messages import Evidence, Failure
from worker.protocol.task_id import PREPARE, TENSORBOARD
from worker.values.fast_dataclass import dataclass

from ..planning.input_counts import InputCounts
from ..settings import Restart, Timeouts, trains
from ..strategies import Role, named
from .progress import STALE_S, STALE_STEPS, Progress


class TaskState(str, Enum):
    """Tells where a task is in its life."""

    PENDING = "pending"
    STARTED = "started"
    UP = "up"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    LOST = "lost"


class Phase(str, Enum):
    """Tells where the cluster is in its life."""

    ALLOCATING = "allocating"
    CONNECTING = "connecting"
    PREPARING = "preparing"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    RESTARTING = "restarting"
    DONE = "done"


class Outcome(str, Enum):
    """Tells how a run ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """One task, in its latest attempt."""

    name: str
    host: str
    attempt: int = 1
    state: TaskState = TaskState.PENDING
    pid: int | None = None
    started_at: float | None = None
    up_at: float | None = None
    ended_at: float | None = None
    code: int | None = None
    """The exit code; 128 + n for signal n."""
    killed: bool = False
    """A signal ended the process."""
    swept: bool = False
    """No process of the task is left."""
    waiting: str = ""
    """Why the task is not up yet, such as ``connection refused``."""
    report: Mapping[str, Any] = field(default_factory=dict)
    reported_at: float | None = None
    not_finite: Mapping[str, str] = field(default_factory=dict)
    """The values of the report that are NaN or infinite, each with the words ``nan by epoch 2``."""
    input: InputCounts | None = None
    progress: Progress | None = None
    serves: bool = False
    """The program stands in `Server.join` of TensorFlow, which never returns."""
    trains_apart: bool = False
    """The last `fit` has trained a model that was made outside of the scope of the strategy."""
    saves: bool = False
    """The training can save on order."""
    failure: Failure | None = None
    restart_at: float | None = None
    """When the failed task restarts alone; None: it does not."""
    evidence: Evidence = Evidence()

    @property
    def type(self) -> str:
        return self.name.rpartition("-")[0]

    @property
    def has_ended(self) -> bool:
        return self.ended_at is not None

    @property
    def trains(self) -> bool:
        return trains(self.type)

    @property
    def is_aside(self) -> bool:
        """The training goes on without the task, whatever its end: no cluster waits for it, and its failure is no cause."""
        return self.type in ("evaluator", TENSORBOARD)

    @property
    def prepares(self) -> bool:
        """The task is the command that prepares a host, and not a member of the cluster."""
        return self.type == PREPARE


@dataclass(frozen=True, slots=True)
class Policy:
    """The part of a spec that decides the next step."""

    strategy: str = "none"
    timeouts: Timeouts = Timeouts()
    opens_ports: bool = True
    """A task is up when its runtime listens. If false, as for a command without `start_s`, a task is up when it has started."""
    restart: Restart = Restart()
    fail_on_nan: bool = False

    is_command: bool = False
    """The program is no Python file: a shell, which exits with 143 if SIGTERM has ended what it ran, or any other."""
    is_lent: bool = False
    """The hosts are lent by an engine, which takes them away with SIGTERM to whatever runs there: agents, and a controller."""
    requeues: bool = False
    """The engine starts the job of the controller again, if the run ends because its allocation does."""
    is_everywhere: bool = False
    """An engine has started the same command on each host: a signal there is the engine's, which itself knows what was cancelled."""

    workers: int = 0
    """The most workers of an elastic cluster; 0: their number does not change."""

    @property
    def survives_hosts(self) -> bool:
        """Another attempt may follow the loss of a host."""
        return self.restart.lost_host == "retry"

    def role(self, task: TaskStatus) -> Role:
        """Return what the strategy expects of a task."""
        return named(self.strategy).role(task.type)


@dataclass(frozen=True, slots=True)
class Secondary:
    """A task that failed because it lost another task."""

    task: str
    at: float
    code: int | None = None
    lost: str = ""
    """The lost task and the reason, in words; empty if the error names none."""


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a run, or an attempt, did not succeed."""

    what: str
    """A sentence without its subject, which is the task: ``failed``."""
    at: float
    task: str = ""
    """Empty if the cause is not a task."""
    host: str = ""
    code: int | None = None
    failure: Failure | None = None
    killed: bool = False
    """A signal ended the task; `code` is 128 plus the number of the signal."""
    attempt: int = 1
    """The attempt of `task`."""
    suspect: str = ""
    """The peer that `task` lost, if orch does not know that this peer failed."""
    remedy: str = ""
    """What to do, if orch knows."""
    about: str = ""
    """The heading of docs/why.md about the remedy, which `orch help` prints."""
    secondary: tuple[Secondary, ...] = ()


@dataclass(frozen=True, slots=True)
class PastAttempt:
    """An attempt that failed: a restart followed, or could have followed."""

    attempt: int
    started_at: float
    ended_at: float
    cause: Cause | None = None
    task: str = ""
    """The task that failed alone; empty: the whole cluster."""
    free: bool = False
    """The restart does not count against the limit."""
    progressed: bool = False
    """The attempt advanced the training."""
    reached: float | None = None
    """`Cluster.reached` at the end of the attempt."""
    saved_at: float = 0.0
    """`Cluster.saved_at` at the end of the attempt."""
    workers: int = 0
    """The number of workers of an elastic cluster; 0: their number does not change."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The end of a run."""

    outcome: Outcome
    exit_code: int
    attempt: int
    """The last attempt."""
    started_at: float
    ended_at: float
    cause: Cause | None = None
    past: tuple[PastAttempt, ...] = ()
    """The failures before."""
    gave_up: str = ""
    """Why no restart followed the last failure."""
    remains: tuple[str, ...] = ()
    """Processes that SIGKILL has not ended, in words."""
    warning: str = ""
    """What is odd about a success."""
    input: Mapping[str, InputCounts] = field(default_factory=dict)
    """What each training task has read, by name."""
    reports: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The last report of each training task, by name."""
    remarks: tuple[str, ...] = ()
    """What is odd about `input` and about the last reports, one line each."""
    saved: int | None = None
    """The step at which the training has saved itself, because the run was to end; None: it has not, or it was over."""


@dataclass(frozen=True, slots=True)
class Saving:
    """A save on order that has begun; see `save_order.begin`."""

    ending: Verdict
    """How the attempt ends then."""
    again: bool
    """Another attempt follows."""
    until: float | None
    """When the attempt ends in any case; None: the save may take any time."""
    code: int
    """The exit code of the run, if the save succeeds."""
    waits: Mapping[str, int] = field(default_factory=dict)
    """The step at whose end each training waits, or has waited."""
    waits_since: float | None = None
    step: int | None = None
    """The step that was named."""
    saved: int | None = None
    """The step of a save that is on the disk."""


UNLIKE = "unlike the others"
"""In each line of the controller about a link between hosts, see `policy.links`."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A run in progress; without any field, a run of which nothing has happened yet."""

    policy: Policy = Policy()
    tasks: Mapping[str, TaskStatus] = field(default_factory=dict)
    """Empty before the first plan."""
    attempt: int = 1
    """The newest number of an attempt."""
    phase: Phase = Phase.ALLOCATING
    waiting: str = ""
    """What a run without a plan waits for, in words; empty if this is not known."""
    began_at: float = 0.0
    """When the run began."""
    started_at: float = 0.0
    """When the hosts were ready and the first attempt began; before that, when the run began."""
    attempt_at: float = 0.0
    """When the whole cluster last started; in `PREPARING`, when the preparation began."""
    formed_at: float | None = None
    """When the cluster waited for no task any more."""
    ending: Verdict | None = None
    """While tasks stop: the verdict, as far as it is known. `ended_at` is the time at which it was decided."""
    saving: Saving | None = None
    """The training saves itself, and then the attempt ends."""
    again: bool = False
    """Another attempt may follow `ending`."""
    needs_hosts: bool = False
    """A host was lost: the next attempt acquires hosts again, and has a plan of its own."""
    until: float | None = None
    """When the run has to end, because its allocation ends soon after; None: the hosts can be used for any time."""
    spare_s: float = 0.0
    """How long a training may then take to save itself, if that is longer than the grace of the user."""
    resume_at: float | None = None
    """When the next attempt begins."""
    active_at: float = 0.0
    """When a task last wrote, reported, started or came up, as far as `step` knows."""
    reached: float | None = None
    """The highest step reported in the run."""
    saved_at: float = 0.0
    """The time of the newest checkpoint file, by the clock of its file system."""
    past: tuple[PastAttempt, ...] = ()
    notes: tuple[str, ...] = ()
    """What the hosts have noted about the program before its start."""
    stop_repeated: bool = False
    """The user has requested the end a second time."""
    is_due: bool = False
    """The attempt should have ended by now: a deadline of the user has passed, or the user has requested the end twice. The supervisor does
    not wait for silent agents any more."""
    verdict: Verdict | None = None
    remains: tuple[str, ...] = ()
    """Processes of all attempts that SIGKILL has not ended, in words."""
    run: str = ""
    """The id of the run; different ids give different pauses before restarts."""
    places: Mapping[str, str] = field(default_factory=dict)
    """``host:port`` of each task; empty with one host."""
    addresses: Mapping[str, str] = field(default_factory=dict)
    """The host of each address of an interface, and of each by which the others reach it; empty with one host."""
    odd_link: str = ""
    """The newest line of this attempt with `UNLIKE` in it."""

    @property
    def is_over(self) -> bool:
        return self.verdict is not None

    @property
    def word(self) -> str:
        """The phase in a word for users. A run is running once all its tasks have begun: a program without TensorFlow forms no cluster."""
        has_begun = self.phase is Phase.STARTING and self.members and all(task.started_at is not None for task in self.members)
        return (Phase.RUNNING if has_begun else self.phase).value

    @property
    def workers(self) -> int:
        """The number of workers."""
        return sum(task.type == "worker" for task in self.tasks.values())

    @property
    def is_shrunk(self) -> bool:
        """True if an elastic cluster has fewer workers than it could have."""
        return 0 < self.workers < self.policy.workers

    @property
    def awaits_plan(self) -> bool:
        """The attempt has no plan yet."""
        return self.phase in (Phase.ALLOCATING, Phase.CONNECTING)

    @property
    def reports(self) -> dict[str, Mapping[str, Any]]:
        """The last report of each training task that has reported, by name."""
        return {task.name: task.report for task in self.tasks.values() if task.trains and task.report}

    def progress(self, now: float) -> Progress | None:
        """The progress of the first training task that knows it; None: none does. A silent one has no time left: it may hang."""
        for task in self.tasks.values():
            if self.verdict is None and task.trains and not task.has_ended and (found := task.progress) is not None:
                is_silent = now - (task.reported_at or now) > max(STALE_S, STALE_STEPS * found.step_s)
                return replace(found, left_s=None, hedge="") if is_silent else found
        return None

    @property
    def members(self) -> list[TaskStatus]:
        """All tasks but those that prepare a host."""
        return [task for task in self.tasks.values() if not task.prepares]

    def active(self, at: float) -> Cluster:
        """The cluster after a task has been active: the limit `hang_s` counts from `at`."""
        return replace(self, active_at=max(self.active_at, at))
