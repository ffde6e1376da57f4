"""What a run is: the states of its tasks, of the cluster, and how it can end. Values only; `lifecycle` moves them.

a task:     PENDING -> STARTED -> UP -> SUCCEEDED | FAILED | STOPPED | LOST
a cluster:  STARTING -> RUNNING -> STOPPING -> DONE
            (started)   (formed)   (one end is decided: success, failure, cancel, deadline)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from worker.contract import Failure


class TaskState(str, Enum):
    """Where a task is in its life."""

    PENDING = "pending"
    STARTED = "started"
    UP = "up"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    LOST = "lost"


ENDED = frozenset({TaskState.SUCCEEDED, TaskState.FAILED, TaskState.STOPPED, TaskState.LOST})


class Phase(str, Enum):
    """Where the cluster is in its life."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    DONE = "done"


class Outcome(str, Enum):
    """How a run ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """One task of the current attempt. Times are seconds since the epoch."""

    name: str
    host: str
    state: TaskState = TaskState.PENDING
    pid: int | None = None
    started_at: float | None = None
    up_at: float | None = None
    ended_at: float | None = None
    code: int | None = None
    swept: bool = False
    waiting: str = ""
    report: Mapping[str, Any] = field(default_factory=dict)
    reported_at: float | None = None
    failure: Failure | None = None

    @property
    def type(self) -> str:
        return self.name.rpartition("-")[0]

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED


@dataclass(frozen=True, slots=True)
class Policy:
    """The part of a spec that decides what happens next. Seconds; None: no limit.

    `opens_ports`: its tasks are up when their runtimes listen; otherwise, as for a program that is not Python, when they are started.
    """

    strategy: str
    start_s: float | None = None
    run_s: float | None = None
    grace_s: float = 5.0
    opens_ports: bool = True


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a run did not succeed. `task` is empty when it was no task. `what`: one sentence without the task's name."""

    what: str
    at: float
    task: str = ""
    host: str = ""
    code: int | None = None
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The end of a run."""

    outcome: Outcome
    exit_code: int
    attempt: int
    started_at: float
    ended_at: float
    cause: Cause | None = None


@dataclass(frozen=True, slots=True)
class Cluster:
    """A run in progress. `ending` is the verdict to come, as far as it is known while tasks are being stopped."""

    policy: Policy
    tasks: Mapping[str, TaskStatus]
    attempt: int = 1
    phase: Phase = Phase.STARTING
    started_at: float = 0.0
    formed_at: float | None = None
    stopping_at: float | None = None
    ending: Verdict | None = None
    hurried: bool = False
    verdict: Verdict | None = None

    @property
    def is_over(self) -> bool:
        return self.verdict is not None
