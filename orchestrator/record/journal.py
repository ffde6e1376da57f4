"""`events.jsonl`: what happened in a run, one JSON object a line, in the order in which the controller heard of it.

A line is ``{"event": NAME, …fields…}``. Most are the events of `model.events`; the others are
kept for people and for the timeline only. Lines that are damaged, or of another kind, are skipped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, get_args

from worker.contract import ContractError, from_json, to_json
from worker.records import dataclass

from ..model import events, lifecycle
from ..model.cluster import Cluster


@dataclass(frozen=True, slots=True)
class RunBegun:
    """The controller has begun; nothing is started yet."""

    at: float


@dataclass(frozen=True, slots=True)
class HostReady:
    """A host's agent has answered."""

    host: str
    pid: int
    python: str
    python_version: str
    cores: int
    at: float


@dataclass(frozen=True, slots=True)
class TemplateReady:
    """A host has imported `modules`, in `seconds`, and can fork tasks."""

    host: str
    modules: tuple[str, ...]
    seconds: float
    at: float


@dataclass(frozen=True, slots=True)
class TaskBegan:
    """A task's program has come to its first line."""

    task: str
    attempt: int
    at: float


@dataclass(frozen=True, slots=True)
class TaskSpoke:
    """The controller has heard of a task's first output."""

    task: str
    attempt: int
    at: float


@dataclass(frozen=True, slots=True)
class RunNoted:
    """Something worth keeping that changes nothing."""

    text: str
    at: float


REPORTS_S = 5.0
"""So many seconds lie between two reports of a task that are recorded: a day of a hundred tasks would otherwise be millions."""


class Pace:
    """Which events are to be recorded when. All of them, but of a task's reports one now and then, and the last before anything is
    decided: so that folding what was recorded decides the same. Where nothing is, `take` is to be called `REPORTS_S` later."""

    def __init__(self) -> None:
        self._held: dict[str, events.TaskReported] = {}
        self._told_at: dict[str, float] = {}

    def due(self, event: RunEvent) -> list[RunEvent]:
        """What to record now that `event` has happened."""
        if not isinstance(event, events.TaskReported):
            return [*self.take(), event]
        if event.at - self._told_at.get(event.task, -REPORTS_S) < REPORTS_S:
            self._held[event.task] = event
            return []
        self._held.pop(event.task, None)
        self._told_at[event.task] = event.at
        return [event]

    @property
    def holds(self) -> bool:
        """Some task's last report is not recorded yet."""
        return bool(self._held)

    def take(self) -> list[events.TaskReported]:
        """What is held, to be recorded now."""
        held = list(self._held.values())
        self._held.clear()
        self._told_at.update((event.task, event.at) for event in held)
        return held


RunEvent = events.Event | RunBegun | HostReady | TemplateReady | TaskBegan | TaskSpoke | RunNoted


def _name(cls: type[Any]) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


_BY_NAME: dict[str, type[Any]] = {_name(cls): cls for cls in get_args(RunEvent)}


def to_line(event: RunEvent) -> bytes:
    """An event as its line, newline included."""
    return json.dumps({"event": _name(type(event)), **to_json(event)}, separators=(",", ":")).encode("ascii") + b"\n"


def from_lines(lines: Iterable[bytes]) -> Iterator[RunEvent]:
    """The events in these lines. A last line without its newline is still being written, and is left out."""
    for line in lines:
        if not line.endswith(b"\n"):
            return
        try:
            fields = json.loads(line)
            cls = _BY_NAME.get(fields.pop("event", ""))
            if cls is not None:
                yield from_json(cls, fields)
        except (ValueError, AttributeError, TypeError, ContractError):
            continue


def replay(cluster: Cluster, event: RunEvent) -> Cluster:
    """The cluster after this event, by the same `step` that ran it."""
    return lifecycle.step(cluster, event)[0] if isinstance(event, events.Event) else cluster
