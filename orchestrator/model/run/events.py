"""The events that go into `lifecycle.step`, and the actions that come out.

Most events are frames of the agents, whose names (`worker.protocol.frames`) are also names of this module; the controller's own events are
here. `events.jsonl` records all events, also those that `lifecycle.step` ignores: people and the timeline use them. Times are seconds since
the epoch, by the controller's clock.
"""

from __future__ import annotations

from worker.protocol.frames import *  # noqa: F403
from worker.protocol.messages import HostEvent as HostEvent
from worker.protocol.messages import HostReady as HostReady
from worker.protocol.messages import TaskEvent as TaskEvent
from worker.values.fast_dataclass import dataclass

# --- events ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunBegun:
    """The controller has begun. No task has started."""

    at: float


@dataclass(frozen=True, slots=True)
class Launched:
    """The hosts are ready, and the attempt begins."""

    attempt: int
    at: float
    began_at: float | None = None
    """When the run began."""


@dataclass(frozen=True, slots=True)
class TaskFirstOutput:
    """The controller has received the first output of a task."""

    task: str
    attempt: int
    at: float


@dataclass(frozen=True, slots=True)
class HostLost:
    """The agent of a host is gone, and so are the tasks of the host."""

    host: str
    reason: str
    at: float
    overdue_at: float | None = None
    """For a host that is silent: the time from which its silence was too long."""


@dataclass(frozen=True, slots=True)
class StopRequested:
    """A user requests the end of the run: Ctrl-C (130), SIGTERM or `orch down` (143). A second request means: at once."""

    reason: str
    code: int
    at: float


@dataclass(frozen=True, slots=True)
class RestartRequested:
    """A user requests a restart of the whole cluster (`orch restart`)."""

    at: float


@dataclass(frozen=True, slots=True)
class CheckpointSeen:
    """The time of the newest file in the checkpoint directory of the run.

    The controller sends this event if the time has changed: before an exit that is not a success, and before each `Tick`.
    """

    at: float


@dataclass(frozen=True, slots=True)
class Tick:
    """A deadline is reached: see `deadlines.next_deadline`."""

    at: float
    written_at: float = 0.0
    """When a task last wrote, if a deadline depends on it. (Each line of each task would otherwise be an event.)"""


Event = (
    RunBegun
    | Launched
    | HostReady
    | HostEvent
    | TaskEvent
    | TaskFirstOutput
    | HostLost
    | StopRequested
    | RestartRequested
    | CheckpointSeen
    | Tick
)


# --- actions -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartAttempt:
    """Start these tasks: all of the cluster, or one that restarts alone."""

    attempt: int
    tasks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Stop:
    """SIGTERM to these tasks, SIGKILL after `grace_s`; zero: at once."""

    tasks: tuple[str, ...]
    grace_s: float


@dataclass(frozen=True, slots=True)
class CollectStacks:
    """Collect the stacks of these tasks before they stop."""

    tasks: tuple[str, ...]


Action = StartAttempt | CollectStacks | Stop
