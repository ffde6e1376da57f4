"""What agents say: whether it may be said, when it was in our time, and as what happened. Frames in, values out."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from worker import contract
from worker.channel import ChannelError
from worker.clock import now

from ..errors import OrchError
from ..model import events


def refuse_strangers(frame: Any, ordered: Collection[str]) -> None:
    """Tasks and streams become paths of the run directory: a host names those that it was given. Raises `ChannelError`."""
    task, stream = getattr(frame, "task", None), getattr(frame, "stream", None)
    if task is not None and task not in ordered:
        raise ChannelError(f"it tells of {task!r}, a task that it was not told to start")
    if stream is not None and stream not in (*contract.STREAMS, contract.STACKS):
        raise ChannelError(f"it tells of {stream!r}, a stream that no task has")


DRIFT = 1e-4
"""By how many seconds a second two clocks may come apart; quartz does no worse, and NTP corrects by up to five times that, for minutes."""


class HostClock:
    """By how much a host's clock is ahead of ours, as far as its frames tell.

    Each frame has been under way for a while before we hear of it, so a clock is at least that far ahead as any of them says; the one
    that was fastest tells it best. A single one would put failures of two hosts in the wrong order, if one host was busy just then.
    A machine that stands still for a while, and its clock with it, is told too early from then on, as `DRIFT` is forgotten slowly.
    """

    def __init__(self) -> None:
        self._ahead: float | None = None
        self._heard_at = 0.0

    def hear(self, at: float, here: float) -> None:
        """A frame of `at`, by the host's clock, has come `here`, by ours."""
        if self._ahead is not None:
            self._ahead = max(at - here, self._ahead - DRIFT * (here - self._heard_at))
        else:
            self._ahead = at - here
        self._heard_at = here

    @property
    def ahead_s(self) -> float:
        return self._ahead or 0.0


def in_our_time(frame: Any, ahead: float) -> Any:
    """What an agent says, with its times as our clock would have told them."""
    changes: dict[str, Any] = {}
    if hasattr(frame, "at"):
        changes["at"] = frame.at - ahead
    if getattr(frame, "failure", None) is not None:
        changes["failure"] = replace(frame.failure, at=frame.failure.at - ahead)
    return replace(frame, **changes) if changes else frame


def as_event(host: str, frame: Any) -> events.Event:
    """What an agent says, as what happened."""
    match frame:
        case contract.Started():
            return events.TaskStarted(frame.task, frame.attempt, frame.pid, frame.at)
        case contract.NotStarted():
            return events.TaskNotStarted(frame.task, frame.attempt, frame.reason, frame.at)
        case contract.Up():
            return events.TaskUp(frame.task, frame.attempt, frame.at)
        case contract.Waiting():
            return events.TaskWaiting(frame.task, frame.attempt, frame.reason, now())
        case contract.Report():
            return events.TaskReported(frame.task, frame.attempt, frame.values, frame.at)
        case contract.Exited():
            values = (frame.task, frame.attempt, frame.code, frame.stopped, frame.at, frame.failure)
            return events.TaskExited(*values, frame.killed, frame.evidence)
        case contract.Swept():
            return events.TaskSwept(frame.task, frame.attempt, now(), frame.left)
        case contract.Trouble():
            return events.HostBroken(host, frame.message, frame.at)
    raise OrchError(f"an agent sent {type(frame).__name__}, which nobody awaits")
