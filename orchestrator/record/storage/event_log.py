"""`events.jsonl`: the events of a run, one JSON object a line, in the order in which the controller received them.

A line is ``{"event": NAME, …fields…}``, an event of `model.run.events`: ``TaskExited(task="worker-0", …)`` is written as
``{"event":"task_exited","task":"worker-0",…}``. Damaged lines and unknown events are skipped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from itertools import takewhile
from typing import Any, get_args

from worker.protocol.codec import ContractError, from_json, to_json

from ...model.run.events import Event, TaskReported

REPORTS_S = 5.0
"""The least time between two recorded reports of a task, in seconds. Without this limit, a hundred tasks would record millions a day."""


class ReportLimit:
    """Limits a task's reports in `events.jsonl` to one in `REPORTS_S` seconds.

    The latest report is recorded before any other event, so replaying the file gives the same decisions. Call `flush` `REPORTS_S` seconds
    after `holds` becomes true.
    """

    def __init__(self) -> None:
        self._held: dict[str, TaskReported] = {}
        self._recorded_at: dict[str, float] = {}

    def due(self, event: Event) -> list[Event]:
        """The events to record now that `event` has happened."""
        if not isinstance(event, TaskReported):
            return [*self.flush(), event]
        if event.at - self._recorded_at.get(event.task, -REPORTS_S) < REPORTS_S:
            self._held[event.task] = event
            return []
        self._held.pop(event.task, None)
        self._recorded_at[event.task] = event.at
        return [event]

    @property
    def holds(self) -> bool:
        """Whether a report is not recorded yet."""
        return bool(self._held)

    def flush(self) -> list[TaskReported]:
        """The reports to record now."""
        held = list(self._held.values())
        self._held.clear()
        self._recorded_at.update((event.task, event.at) for event in held)
        return held


def _name(cls: type[Any]) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


_BY_NAME: dict[str, type[Any]] = {_name(cls): cls for cls in get_args(Event)}


def to_line(event: Event) -> bytes:
    """The line of an event, with its newline."""
    return json.dumps({"event": _name(type(event)), **to_json(event)}, separators=(",", ":")).encode("ascii") + b"\n"


def from_lines(lines: Iterable[bytes]) -> Iterator[Event]:
    """The events in these lines. A last line without a newline is still being written, and is skipped."""
    for fields in objects(takewhile(lambda line: line.endswith(b"\n"), lines)):
        try:
            cls = _BY_NAME.get(fields.pop("event", ""))
            if cls is not None:
                yield from_json(cls, fields)
        except (ValueError, TypeError, ContractError):
            continue


def objects(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The JSON objects in these lines. A line that is no JSON object is skipped."""
    for line in lines:
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            yield found
