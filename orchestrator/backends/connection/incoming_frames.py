"""The first step of the controller with each frame: the frame is checked, gets the name of its host, and its times are moved to the
controller's clock. Bytes in, frames out."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

from worker.machine.clock import now
from worker.protocol import messages
from worker.protocol.channel import ChannelError, Decoder
from worker.protocol.task_id import FETCHED, STREAMS
from worker.values.excerpts import shorten

DRIFT = 1e-4
"""Seconds per second by which two clocks may come apart. Quartz is no worse; NTP corrects by up to five times as much, for minutes."""


class Expected:
    """Holds what an agent may tell of: the tasks that it was told to start, in their attempts, and their output without a gap.

    Tasks, attempts and streams become paths of the run directory, and an offset becomes the size of a file there.
    """

    def __init__(self) -> None:
        self._attempts: set[tuple[str, int]] = set()
        self._sizes: dict[tuple[str, int, str], int] = {}
        """How many bytes of each stream have come."""

    def add(self, orders: Collection[messages.TaskOrder]) -> None:
        """The agent has got these orders."""
        self._attempts.update((order.task, order.attempt) for order in orders)

    def check(self, frame: messages.Frame, data: bytes) -> None:
        """Raises `ChannelError` for a frame about anything else."""
        if isinstance(frame, messages.Sampled):
            for use in frame.tasks:
                self._check_task(use.task, use.attempt)
        if not isinstance(frame, messages.TaskEvent | messages.Output):
            return
        self._check_task(frame.task, frame.attempt)
        if not isinstance(frame, messages.Output):
            return
        if frame.stream not in (*STREAMS, *FETCHED):
            raise ChannelError(f"a frame for {frame.stream!r}, a stream that no task has")
        if data:
            key = (frame.task, frame.attempt, frame.stream)
            if frame.offset != self._sizes.get(key, 0):
                raise ChannelError(f"it sends {frame.stream} of {frame.task!r} from byte {frame.offset} on, not from the next one")
            self._sizes[key] = frame.offset + len(data)

    def _check_task(self, task: str, attempt: int) -> None:
        if (task, attempt) not in self._attempts:
            raise ChannelError(f"a frame for task {task!r} in attempt {attempt}, which it was not ordered to start")


LARGE = 256 * 1024
"""Bytes of JSON from which on an event is shortened: it is recorded, shown, and read again by each `orch ps`."""
MOST_VALUES = 100
LARGEST_VALUE = 1000
"""How many values of such a report stay, and how long a value may be, in characters of JSON."""


def shorten_event(frame: Any) -> Any:
    """A frame of more than `LARGE` bytes, without most of its long texts and values; an answer to an order as it is."""
    if isinstance(frame, messages.TaskReported):
        few = list(frame.values.items())[: 10 * MOST_VALUES]
        kept = [(key, value) for key, value in few if len(key) + len(json.dumps(value)) <= LARGEST_VALUE]
        kept = kept[:MOST_VALUES]
        return replace(frame, values={**dict(kept), "values left out": len(frame.values) - len(kept)})
    return _shortened(frame) if isinstance(frame, messages.HostEvent | messages.TaskEvent) else frame


def _shortened(value: Any) -> Any:
    if isinstance(value, str):
        return shorten(value)
    if isinstance(value, tuple):
        return tuple(map(_shortened, value[:MOST_VALUES]))
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{field.name: _shortened(getattr(value, field.name)) for field in fields(value)})
    return value


_OF_LINES = frozenset({"problems", "message", "traceback", "last_words", "out", "err", "values"})
"""The fields whose texts may have several lines."""


def on_one_line(value: Any) -> Any:
    """A frame whose other texts have one line each: a host must not write lines between those of orch, such as a fix to paste."""
    if isinstance(value, str):
        return " ".join(value.splitlines())
    if isinstance(value, tuple):
        return tuple(map(on_one_line, value))
    if isinstance(value, dict):
        return {on_one_line(key): on_one_line(item) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        found = {field.name: getattr(value, field.name) for field in fields(value) if field.name not in _OF_LINES}
        changed = {name: new for name, item in found.items() if (new := on_one_line(item)) != item}
        return replace(value, **changed) if changed else value
    return value


class HostClock:
    """Tells how far the clock of a host is ahead of the controller's clock, as far as the frames of the host show.

    A frame takes some time to arrive, so the clock is at least as far ahead as each frame shows; the fastest frame shows it best. A single
    frame would not be enough: if its host was busy, the failures of two hosts would be in the wrong order. If a host stands still for a
    while, and its clock with it, its times are too early afterwards; this error shrinks by `DRIFT` only.
    """

    def __init__(self) -> None:
        self._ahead: float | None = None
        self._compared_at = 0.0

    def compare(self, at: float, here: float) -> None:
        """A frame that was sent `at` this time, by the clock of the host, has arrived `here`, by the controller's clock."""
        ahead = at - here
        if self._ahead is not None:
            ahead = max(ahead, self._ahead - DRIFT * (here - self._compared_at))
        self._ahead, self._compared_at = ahead, here

    @property
    def ahead_s(self) -> float:
        """Seconds; zero before the first frame."""
        return self._ahead or 0.0

    def translate(self, frame: messages.Frame, host: str, here: float) -> messages.Frame:
        """The frame with the name of its host, and with its times by the controller's clock; it has arrived `here`."""
        if not isinstance(frame, messages.HostReady | messages.HostEvent | messages.TaskEvent | messages.Sampled):
            return frame
        self.compare(frame.at, here)
        changed: dict[str, Any] = {"at": frame.at - self.ahead_s}
        if not isinstance(frame, messages.TaskEvent):
            changed["host"] = host
        elif isinstance(frame, messages.TaskExited) and frame.failure is not None:
            changed["failure"] = replace(frame.failure, at=frame.failure.at - self.ahead_s)
        return replace(frame, **changed)


class Incoming:
    """The frames of one agent, checked, and by the controller's clock."""

    def __init__(self, host: str) -> None:
        self.clock, self.expected = HostClock(), Expected()
        self._host, self._decoder = host, Decoder(messages.FRAMES)

    def feed(self, data: bytes) -> Iterator[tuple[messages.Frame, bytes]]:
        """The frames that end in these bytes, with their data. Raises `ChannelError`."""
        for frame, payload in self._decoder.feed(data):
            short = frame if self._decoder.json_size <= LARGE else shorten_event(frame)
            short = short if isinstance(short, messages.Output | messages.Pong) else on_one_line(short)
            self.expected.check(short, payload)
            yield self.clock.translate(short, self._host, now()), payload

    @property
    def unfinished(self) -> int:
        """The bytes of a frame that has not ended."""
        return self._decoder.unfinished
