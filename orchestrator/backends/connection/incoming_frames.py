"""What the controller's end of a connection does with each frame before anybody else sees it: it is checked, gets the name of its host, and
its times are moved to the controller's clock. Frames in, frames out.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from worker.protocol import messages
from worker.protocol.channel import ChannelError

DRIFT = 1e-4
"""By how many seconds a second two clocks may come apart; quartz does no worse, and NTP corrects by up to five times that, for minutes."""


def refuse_strangers(frame: messages.Frame, ordered: Collection[str]) -> None:
    """Tasks and streams become paths of the run directory: a host names those that it was given. Raises `ChannelError`."""
    if isinstance(frame, messages.TaskEvent | messages.Grew | messages.Output) and frame.task not in ordered:
        raise ChannelError(f"it tells of {frame.task!r}, a task that it was not told to start")
    if isinstance(frame, messages.Grew | messages.Output) and frame.stream not in (*messages.STREAMS, messages.STACKS):
        raise ChannelError(f"it tells of {frame.stream!r}, a stream that no task has")


class HostClock:
    """By how much a host's clock is ahead of the controller's, as far as its frames tell.

    Each frame has been under way for a while when it arrives, so a clock is at least that far ahead as any frame says; the frame
    that was fastest tells it best. A single one would put failures of two hosts in the wrong order, if one host was busy just then.
    A machine that stands still for a while, and its clock with it, is told too early from then on, as `DRIFT` is forgotten slowly.
    """

    def __init__(self) -> None:
        self._ahead: float | None = None
        self._compared_at = 0.0

    def compare(self, at: float, here: float) -> None:
        """A frame of `at`, by the host's clock, has arrived `here`, by the controller's."""
        if self._ahead is not None:
            self._ahead = max(at - here, self._ahead - DRIFT * (here - self._compared_at))
        else:
            self._ahead = at - here
        self._compared_at = here

    @property
    def ahead_s(self) -> float:
        """Seconds; zero before the first frame."""
        return self._ahead or 0.0

    def translate(self, frame: messages.Frame, host: str, here: float) -> messages.Frame:
        """The frame with the name of its host, and its times as the controller's clock would have told them; it has arrived `here`."""
        if isinstance(frame, messages.HostReady | messages.HostEvent):
            self.compare(frame.at, here)
            return replace(frame, host=host, at=frame.at - self.ahead_s)
        if isinstance(frame, messages.TaskExited) and frame.failure is not None:
            self.compare(frame.at, here)
            failure = replace(frame.failure, at=frame.failure.at - self.ahead_s)
            return replace(frame, failure=failure, at=frame.at - self.ahead_s)
        if isinstance(frame, messages.TaskEvent):
            self.compare(frame.at, here)
            return replace(frame, at=frame.at - self.ahead_s)
        return frame
