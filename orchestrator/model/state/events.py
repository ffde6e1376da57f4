"""The events that go into `lifecycle.step`, and the actions that come out.

Most events are frames of the agents, whose names (`worker.protocol.frames`) are also names of this module; the controller's own events are
here. `events.jsonl` records all events, also those that `lifecycle.step` ignores: people and the timeline use them. Times are seconds since
the epoch, by the controller's clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from worker.protocol.frames import *  # noqa: F403
from worker.protocol.messages import HostEvent as HostEvent
from worker.protocol.messages import HostReady as HostReady
from worker.protocol.messages import TaskEvent as TaskEvent
from worker.values.fast_dataclass import dataclass

from .cluster import Policy

# --- events ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunBegun:
    """The controller has begun. No host is known yet."""

    at: float
    run: str = ""
    policy: Policy = Policy()


@dataclass(frozen=True, slots=True)
class RunResumed:
    """Another controller goes on with the run, after its engine has started the job again. No process of the former attempt is left."""

    at: float
    saved_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Allocated:
    """The hosts of the next attempt are known; their agents are being started."""

    attempt: int
    hosts: tuple[str, ...]
    at: float
    until: float | None = None
    spare_s: float = 0.0


@dataclass(frozen=True, slots=True)
class HostsAwaited:
    """A change of what a run without a plan waits for: the words of an engine, or the hosts that have not answered; empty: unknown."""

    reason: str
    at: float


@dataclass(frozen=True, slots=True)
class Planned:
    """The hosts are ready, there is a plan (`plan.json`), and the attempt begins."""

    attempt: int
    tasks: Mapping[str, str]
    at: float
    places: Mapping[str, str] = field(default_factory=dict)
    addresses: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NotPlanned:
    """No plan can be made: a host cannot be used, or the spec does not fit the hosts."""

    reason: str
    code: int
    at: float


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
    """For a host that is silent, the time from which its silence was too long; or the time of its end, if it took time to find out why."""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class StopRequested:
    """A user requests the end of the run: Ctrl-C (130), SIGTERM or `orch down` (143). A second request means: at once."""

    reason: str
    code: int
    at: float
    saves: bool = False
    """A training that can do so saves itself first."""
    by_signal: bool = False
    """A signal that no one has sent by orch."""


@dataclass(frozen=True, slots=True)
class RestartRequested:
    """A user requests a restart of the whole cluster (`orch restart`)."""

    at: float


@dataclass(frozen=True, slots=True)
class CheckpointSeen:
    """The time of the newest file in the checkpoint directory of the run.

    The controller sends this event if the time has changed, and if a restart may follow: before an exit that is not a success, and
    before each `Tick`.
    """

    at: float


@dataclass(frozen=True, slots=True)
class HostsBack:
    """An elastic cluster runs with fewer workers than it could have, and hosts that it lacks can be reached again."""

    reason: str
    at: float


@dataclass(frozen=True, slots=True)
class Tick:
    """A deadline is reached: see `deadlines.next_deadline`."""

    at: float
    written_at: float = 0.0
    """When a task last wrote, if a deadline depends on it. (Each line of each task would otherwise be an event.)"""
    absent: str = ""
    """Which tasks have not come to a meeting in which others wait, in words; see `stragglers.describe_absent`."""


Event = (
    RunBegun
    | RunResumed
    | Allocated
    | HostsAwaited
    | Planned
    | NotPlanned
    | HostReady
    | HostEvent
    | TaskEvent
    | TaskFirstOutput
    | HostLost
    | StopRequested
    | RestartRequested
    | CheckpointSeen
    | HostsBack
    | Tick
)


# --- actions -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartAttempt:
    """Start these tasks: all of the cluster, or one that restarts alone."""

    attempt: int
    tasks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MakePlan:
    """Get hosts and a plan for this attempt; `Planned` or `NotPlanned` follows."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Stop:
    """SIGTERM to these tasks, SIGKILL after `grace_s`; zero: at once."""

    tasks: tuple[str, ...]
    grace_s: float


@dataclass(frozen=True, slots=True)
class CollectStacks:
    """Collect the stacks of these tasks before they stop."""

    tasks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SaveOrdered:
    """Have these tasks save at the end of this step; None: wait at the end of their step, and say which step this is."""

    tasks: tuple[str, ...]
    step: int | None


Action = StartAttempt | MakePlan | CollectStacks | Stop | SaveOrdered
