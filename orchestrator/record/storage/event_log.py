"""`events.jsonl`: the events of a run, one JSON object a line, in the order in which the controller received them.

A line is ``{"event": NAME, …fields…}``, an event of `model.run.events`: ``TaskExited(task="worker-0", …)`` is written as
``{"event":"task_exited","task":"worker-0",…}``. Damaged lines and unknown events are skipped.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, get_args

from worker.values.codec import ContractError, from_json, to_json

from ...model.run.events import Event
from .run_files import open_file


def _name(cls: type[Any]) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


_BY_NAME: dict[str, type[Any]] = {_name(cls): cls for cls in get_args(Event)}


def to_line(event: Event) -> bytes:
    """The line of an event, with its newline."""
    return json.dumps({"event": _name(type(event)), **to_json(event)}, separators=(",", ":")).encode("ascii") + b"\n"


_REPORT = b'{"event":"task_reported",'


class EventReader:
    """Reads the events of a run as they are recorded."""

    def __init__(self, run: Path) -> None:
        """`run`: the run's directory, which may move."""
        self.run, self.offset = run, 0
        """`offset`: where the events begin that are still to be read, in bytes."""

    def new(self, *, milestones: bool = False) -> Iterator[Event]:
        """The events that were recorded since the last call. `milestones`: of the reports only the first of each attempt of a task."""
        lines = self._new_lines()
        for fields in objects(_first_reports(lines) if milestones else lines):
            with contextlib.suppress(ValueError, TypeError, ContractError):
                if cls := _BY_NAME.get(fields.pop("event", "")):
                    yield from_json(cls, fields)

    def _new_lines(self) -> Iterator[bytes]:
        with contextlib.suppress(FileNotFoundError), open_file(self.run / "events.jsonl") as file:
            file.seek(self.offset)
            for line in file:
                if line.endswith(b"\n"):  # otherwise the line is still being written
                    self.offset += len(line)
                    yield line


def _first_reports(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The lines without the later reports of an attempt, which are most of a long run: they are left out without being decoded."""
    seen: set[bytes] = set()
    for line in lines:
        if line.startswith(_REPORT):
            task_and_attempt = line.partition(b'"values"')[0]
            if task_and_attempt in seen:
                continue
            seen.add(task_and_attempt)
        yield line


def objects(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The JSON objects in these lines. A line that is no JSON object is skipped."""
    for line in lines:
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            yield found
