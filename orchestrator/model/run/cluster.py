"""What a run is: the states of its tasks, of the cluster, and how it can end. Values only; `lifecycle` moves them.

a task:     PENDING -> STARTED -> UP -> SUCCEEDED | FAILED | STOPPED | LOST
a cluster:  [PREPARING ->] STARTING -> RUNNING -> STOPPING -> DONE
             (hosts are    (started)   (formed)   (one end is decided: success, failure, cancel, deadline)
              prepared)                                    -> RESTARTING -> STARTING
                                                              (the next attempt is waited for)

Attempts are numbered through the run. A task that is started again alone has a number of its own, so each number and task is one
process, with one directory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import Enum
from typing import Any

from worker.fast_dataclass import dataclass
from worker.protocol.messages import PREPARE, Evidence, Failure, Seconds, Size

from ..spec import Restart, trains


class TaskState(str, Enum):
    """Where a task is in its life."""

    PENDING = "pending"
    STARTED = "started"
    UP = "up"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    LOST = "lost"


INPUT_WATCHED_S = 5.0
"""So many seconds must have been watched before a share of them says anything: the first steps wait for buffers to fill."""
ENDED = frozenset({TaskState.SUCCEEDED, TaskState.FAILED, TaskState.STOPPED, TaskState.LOST})


class Phase(str, Enum):
    """Where the cluster is in its life."""

    PREPARING = "preparing"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    RESTARTING = "restarting"
    DONE = "done"


class Outcome(str, Enum):
    """How a run ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class InputCounts:
    """What one task was given of its distributed datasets, in its attempt. The tuples have a place for each of its replicas.

    `steps`: how often it was given a batch for each replica, empty ones included; `batches`: those that were not empty. `bytes`: as the
    tensors lie in memory; texts are left out. `seconds`: of the time in which there were steps, as far as it was watched;
    `waiting_s`: what the task waited for input in them.
    """

    steps: Size
    batches: tuple[Size, ...]
    elements: tuple[Size, ...]
    bytes: tuple[Size, ...]
    seconds: Seconds = 0.0
    waiting_s: Seconds = 0.0

    @property
    def waiting(self) -> float:
        """The share of the time that the task waited for input."""
        return min(1.0, self.waiting_s / self.seconds) if self.seconds else 0.0

    @property
    def can_tell_waiting(self) -> bool:
        """Whether `waiting` was watched for long enough to say anything."""
        return self.seconds >= INPUT_WATCHED_S


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """One task, in its latest attempt. Times are seconds since the epoch.

    `restart_at`: it has failed and is started again then, alone. `step_before`, `saved_before`: `Cluster.reached` and
    `Cluster.saved_at` when it was started.
    """

    name: str
    host: str
    attempt: int = 1
    state: TaskState = TaskState.PENDING
    pid: int | None = None
    started_at: float | None = None
    up_at: float | None = None
    ended_at: float | None = None
    code: int | None = None
    killed: bool = False
    swept: bool = False
    waiting: str = ""
    report: Mapping[str, Any] = field(default_factory=dict)
    reported_at: float | None = None
    input: InputCounts | None = None
    failure: Failure | None = None
    restart_at: float | None = None
    step_before: float | None = None
    saved_before: float = 0.0
    evidence: Evidence = Evidence()

    @property
    def type(self) -> str:
        return self.name.rpartition("-")[0]

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED

    @property
    def trains(self) -> bool:
        return trains(self.type)

    @property
    def prepares(self) -> bool:
        """It is the command that prepares a host, and no member of the cluster."""
        return self.type == PREPARE


@dataclass(frozen=True, slots=True)
class Policy:
    """The part of a spec that decides what happens next. Seconds; None: no limit.

    `opens_ports`: its tasks are up when their runtimes listen; otherwise, as for a program that is not Python and has no `start_s`, when
    they are started.
    """

    strategy: str
    start_s: float | None = None
    run_s: float | None = None
    grace_s: float = 5.0
    opens_ports: bool = True
    hang_s: float | None = None
    restart: Restart = Restart()
    prepare_s: float | None = None


@dataclass(frozen=True, slots=True)
class Secondary:
    """A task that failed because it lost another one. `lost`: who and how, in words; empty if it does not say."""

    task: str
    at: float
    code: int | None = None
    lost: str = ""


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a run, or an attempt, did not succeed. `task` is empty when it was no task. `what`: one sentence without the task's name.

    `attempt`: the one that `task` was in. `killed`: a signal ended it, and `code` is 128 plus its number. `suspect`: the task
    that it lost, if that is not known to have failed. `remedy`: what to do, if that is known. `instead`: whose end was seen before
    its own, and why that one is not the cause, such as ``worker-1, whose end was seen first: its error is about a lost peer, …``.
    """

    what: str
    at: float
    task: str = ""
    host: str = ""
    code: int | None = None
    failure: Failure | None = None
    killed: bool = False
    attempt: int = 1
    suspect: str = ""
    remedy: str = ""
    secondary: tuple[Secondary, ...] = ()
    instead: str = ""


@dataclass(frozen=True, slots=True)
class PastAttempt:
    """A failure that was followed by a new start, or that might have been. `task`: the one that failed alone; empty: the whole cluster.

    `free`: it does not count against the restarts that are allowed. `progressed`: it brought the training forward.
    """

    attempt: int
    started_at: float
    ended_at: float
    cause: Cause | None = None
    task: str = ""
    free: bool = False
    progressed: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """The end of a run. `attempt`: its last. `past`: the failures before; `gave_up`: why this one was not followed by another start;
    `remains`: processes that are still there, because not even SIGKILL has ended them, in words; `warning`: what is odd about a success.
    `input`: what the training tasks have read, by name; `remarks`: what is odd about that, a line each."""

    outcome: Outcome
    exit_code: int
    attempt: int
    started_at: float
    ended_at: float
    cause: Cause | None = None
    past: tuple[PastAttempt, ...] = ()
    gave_up: str = ""
    remains: tuple[str, ...] = ()
    warning: str = ""
    input: Mapping[str, InputCounts] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Cluster:
    """A run in progress.

    `began_at`: when the run did; `started_at`: when its hosts were ready, and the first attempt began. `attempt`: the newest number;
    `attempt_at`: when the whole cluster was last started; in
    `PREPARING`, when that began. `ending` is the verdict to come, as far as it is
    known while tasks are being stopped; `again`: unless there is another attempt. `resume_at`: when that begins. `alone`: the tasks that
    wait to be started again alone. `heard_at`: when any task last wrote or reported something, was started or came up, as far as it has
    been told. `reached`: the highest step reported in this attempt; `furthest`: in those before. `saved_at`: the time of the newest
    checkpoint's file, as told, by a clock that may be another than ours; `saved_before`: the same when the attempt began.
    `remains`: processes of any attempt that nothing ends, in words. `seed` makes the pauses of different runs differ. `places`: each task's
    ``host:port``, where there are several hosts. `missing`, `left`, `undecided`: how many tasks are still to come up, to be swept, and to
    succeed; kept, for counting them at each event would take minutes in a cluster of thousands.
    """

    policy: Policy
    tasks: Mapping[str, TaskStatus]
    attempt: int = 1
    phase: Phase = Phase.STARTING
    began_at: float = 0.0
    started_at: float = 0.0
    attempt_at: float = 0.0
    formed_at: float | None = None
    stopping_at: float | None = None
    ending: Verdict | None = None
    again: bool = False
    resume_at: float | None = None
    alone: tuple[str, ...] = ()
    heard_at: float = 0.0
    reached: float | None = None
    furthest: float | None = None
    saved_at: float = 0.0
    saved_before: float = 0.0
    past: tuple[PastAttempt, ...] = ()
    hurried: bool = False
    is_due: bool = False
    """It should have ended by now (see `events.Hurry`)."""
    verdict: Verdict | None = None
    remains: tuple[str, ...] = ()
    seed: str = ""
    places: Mapping[str, str] = field(default_factory=dict)
    missing: int = 0
    left: int = 0
    undecided: int = 0

    @property
    def is_over(self) -> bool:
        return self.verdict is not None

    @property
    def members(self) -> list[TaskStatus]:
        """All tasks but those that prepare a host."""
        return [task for task in self.tasks.values() if not task.prepares]
