"""`events.jsonl`: the events of a run, one JSON object a line, in the order in which the controller received them.

A line is ``{"event": NAME, …fields…}``, an event of `model.state.events`: ``TaskExited(task="worker-0", …)`` is written as
``{"event":"task_exited","task":"worker-0",…}``. Damaged lines and unknown events are skipped.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, get_args

from worker.values.codec import ContractError, from_json, to_json

from ..model.state.events import Event
from .run_files import open_file, read_lines


def _name(cls: type[Any]) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


_BY_NAME: dict[str, type[Any]] = {_name(cls): cls for cls in get_args(Event)}


def to_line(event: Event) -> bytes:
    return json.dumps({"event": _name(type(event)), **to_json(event)}, separators=(",", ":")).encode("ascii") + b"\n"


_REPORT = b'{"event":"task_reported",'
_STEP = re.compile(rb'"step":(\d+)')
_NOT_FINITE = (b"NaN", b"Infinity")


class EventReader:
    """Reads the events of a run as they are recorded."""

    def __init__(self, run: Path) -> None:
        """`run`: the run's directory, which may move."""
        self.run, self.offset = run, 0
        """`offset`: where the events begin that are still to be read, in bytes."""

    def new(self, *, milestones: bool = False, on_report: Callable[[bytes, bytes], None] | None = None) -> Iterator[Event]:
        """The events that were recorded since the last call.

        `milestones`: of the reports, which are most of a long run, only as many as `lifecycle.step` needs for the same state after each
        other event. `on_report` then gets every report: the beginning of its line, which names the task and the attempt, and the line.
        """
        lines = self._new_lines()
        for fields in objects(_telling(lines, on_report) if milestones else lines):
            with contextlib.suppress(ValueError, TypeError, ContractError):
                if cls := _BY_NAME.get(fields.pop("event", "")):
                    yield from_json(cls, fields)

    def _new_lines(self) -> Iterator[bytes]:
        with contextlib.suppress(FileNotFoundError), open_file(self.run / "events.jsonl") as file:
            file.seek(self.offset)
            for line in read_lines(file):
                self.offset += len(line)
                yield line


def _telling(lines: Iterable[bytes], on_report: Callable[[bytes, bytes], None] | None) -> Iterator[bytes]:
    """The lines without most reports, which are left out without being decoded.

    Of each attempt of a task there are the first report; before each other event the newest, and the one with the highest step; and those
    with a number that is not finite.
    """
    begun: set[bytes] = set()
    newest: dict[bytes, bytes] = {}
    highest: dict[bytes, tuple[int, bytes]] = {}
    for line in lines:
        if not line.startswith(_REPORT):
            for key, last in newest.items():
                yield from dict.fromkeys((highest[key][1], last) if key in highest else (last,))
            newest.clear()
            highest.clear()
            yield line
            continue
        key = line.partition(b'"values"')[0]
        if on_report is not None:
            on_report(key, line)
        if key not in begun or any(word in line for word in _NOT_FINITE):
            begun.add(key)
            yield line
            continue
        newest[key] = line
        if (found := _STEP.search(line)) and (step := int(found[1])) > highest.get(key, (-1, b""))[0]:
            highest[key] = step, line
    yield from newest.values()


def objects(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The JSON objects in these lines. A line that is no JSON object is skipped."""
    for line in lines:
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            yield found
