"""What happens to a run, and what is done about it: what goes into `lifecycle.step` and what comes out.

Most events come from the agents, and are the frames of `worker.protocol.messages` as they are. The others are the controller's own, and
are here.
All of them are recorded in `events.jsonl`; some are kept for people and for the timeline only, and `lifecycle.step` changes nothing for
them. Times are seconds since the epoch, by the controller's clock.
"""

from __future__ import annotations

from worker.fast_dataclass import dataclass
from worker.protocol.messages import HostBroken as HostBroken
from worker.protocol.messages import HostEvent as HostEvent
from worker.protocol.messages import HostReady as HostReady
from worker.protocol.messages import RunNoted as RunNoted
from worker.protocol.messages import TaskBegan as TaskBegan
from worker.protocol.messages import TaskEvent as TaskEvent
from worker.protocol.messages import TaskExited as TaskExited
from worker.protocol.messages import TaskNotStarted as TaskNotStarted
from worker.protocol.messages import TaskReported as TaskReported
from worker.protocol.messages import TaskStarted as TaskStarted
from worker.protocol.messages import TaskSwept as TaskSwept
from worker.protocol.messages import TaskUp as TaskUp
from worker.protocol.messages import TaskWaiting as TaskWaiting
from worker.protocol.messages import TemplateReady as TemplateReady

from .cluster import Verdict

# --- what happened -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunBegun:
    """The controller has begun; nothing is started yet."""

    at: float


@dataclass(frozen=True, slots=True)
class Launched:
    """The attempt begins: its tasks are to be started. `began_at`: when the run did, which has reached its hosts since."""

    attempt: int
    at: float
    began_at: float | None = None


@dataclass(frozen=True, slots=True)
class TaskSpoke:
    """The controller has got a task's first output."""

    task: str
    attempt: int
    at: float


@dataclass(frozen=True, slots=True)
class HostLost:
    """The agent of a host is gone, and with it the host's tasks."""

    host: str
    reason: str
    at: float
    overdue_at: float | None = None
    """When its silence was first more than a pause, if the host was lost by silence."""


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
    RunBegun
    | Launched
    | HostReady
    | HostEvent
    | TaskEvent
    | TaskSpoke
    | HostLost
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
