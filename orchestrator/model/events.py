"""What happens to a run, and what is done about it: what goes into `lifecycle.step` and what comes out.

Times are seconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from worker.contract import Evidence, Failure
from worker.records import dataclass

from .cluster import Verdict

# --- what happened -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Launched:
    """The attempt begins: its tasks are to be started. `began_at`: when the run did, which has reached its hosts since."""

    attempt: int
    at: float
    began_at: float | None = None


@dataclass(frozen=True, slots=True)
class TaskStarted:
    task: str
    attempt: int
    pid: int
    at: float


@dataclass(frozen=True, slots=True)
class TaskNotStarted:
    task: str
    attempt: int
    reason: str
    at: float


@dataclass(frozen=True, slots=True)
class TaskUp:
    task: str
    attempt: int
    at: float


@dataclass(frozen=True, slots=True)
class TaskWaiting:
    """Why a task's port does not answer yet."""

    task: str
    attempt: int
    reason: str
    at: float


@dataclass(frozen=True, slots=True)
class TaskReported:
    task: str
    attempt: int
    values: Mapping[str, Any]
    at: float


@dataclass(frozen=True, slots=True)
class TaskExited:
    """`stopped`: its agent had been told to stop it, or had lost its owner, before it ended."""

    task: str
    attempt: int
    code: int
    stopped: bool
    at: float
    failure: Failure | None = None
    killed: bool = False
    """By a signal; `code` is then 128 plus its number."""
    evidence: Evidence = Evidence()


@dataclass(frozen=True, slots=True)
class TaskSwept:
    """Nothing that the task started is left but `left`: processes, in words, which SIGKILL does not end. One may be the task itself."""

    task: str
    attempt: int
    at: float
    left: str = ""


@dataclass(frozen=True, slots=True)
class HostLost:
    """The agent of a host is gone, and with it the host's tasks.

    `overdue_at`: when its silence was first more than a pause, if it is by silence that it was lost.
    """

    host: str
    reason: str
    at: float
    overdue_at: float | None = None


@dataclass(frozen=True, slots=True)
class HostBroken:
    """A host can no longer do its work, such as for a full disk. Its agent still answers."""

    host: str
    reason: str
    at: float


@dataclass(frozen=True, slots=True)
class StopAsked:
    """Somebody wants the run to end: Ctrl-C (130), SIGTERM or `orch down` (143). Asked again: now."""

    reason: str
    code: int
    at: float


@dataclass(frozen=True, slots=True)
class RestartAsked:
    """Somebody wants the cluster to be started anew (`orch restart`)."""

    at: float


@dataclass(frozen=True, slots=True)
class Heard:
    """Some task has written or reported something; told when it matters to a deadline."""

    at: float


@dataclass(frozen=True, slots=True)
class CheckpointSeen:
    """The newest file in the run's checkpoint directory is of this time.

    Told where progress matters, if there is a newer one than was told: before an exit that is no success, and before each `Tick`.
    """

    at: float


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; sent when `next_deadline` is due."""

    at: float


Event = (
    Launched
    | TaskStarted
    | TaskNotStarted
    | TaskUp
    | TaskWaiting
    | TaskReported
    | TaskExited
    | TaskSwept
    | HostLost
    | HostBroken
    | StopAsked
    | RestartAsked
    | Heard
    | CheckpointSeen
    | Tick
)


# --- what to do --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartAttempt:
    """Start these tasks: all of them, or one that goes on alone."""

    attempt: int
    tasks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Stop:
    """SIGTERM to these tasks, SIGKILL after `grace_s`; zero: at once."""

    tasks: tuple[str, ...]
    grace_s: float


@dataclass(frozen=True, slots=True)
class CollectStacks:
    """Have these tasks say where they are, before they are stopped."""

    tasks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Hurry:
    """Wait for no agent that gives no sign of life: a deadline of the user's has passed, or the end was asked for twice."""


@dataclass(frozen=True, slots=True)
class Finish:
    """The run is over; nothing is left."""

    verdict: Verdict


Action = StartAttempt | CollectStacks | Stop | Hurry | Finish
