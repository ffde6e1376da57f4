"""Follows a run by its recorded events, while the run goes on."""

from __future__ import annotations

from collections.abc import Iterator

from ...model.run import lifecycle
from ...model.run.cluster import Cluster
from ...model.run.events import Event, RunNoted
from ..text.event_messages import Messages
from . import event_log
from .run_directory import RunDir
from .run_files import open_file


class Progress:
    """Reads the events of a run, and keeps its state with the same `step` that the controller uses. `messages`: gets to know all."""

    def __init__(self, run: RunDir, messages: Messages | None = None) -> None:
        self._run, self._messages = run, messages
        self._offset = 0
        self.cluster: Cluster | None = None
        """The state after the last event that was read; None before there is a plan."""

    def advance(self) -> Iterator[Event]:
        """Yields each event that was recorded since the last call; `cluster` is then the state after this event."""
        for event in event_log.from_lines(self._read_lines()):
            if self.cluster is None and (planned := self._run.read_plan()) is not None:
                self.cluster = lifecycle.of_plan(planned)
                if self._messages is not None:
                    self._messages.on_plan(planned)
            before = self.cluster
            if before is not None:
                self.cluster, _ = lifecycle.step(before, event)
            if self._messages is not None:
                if isinstance(event, RunNoted):
                    self._messages.on_note(event)
                elif before is not None and self.cluster is not None:
                    self._messages.on_event(before, self.cluster, event)
            yield event

    def _read_lines(self) -> list[bytes]:
        try:
            with open_file(self._run.path / "events.jsonl") as file:
                file.seek(self._offset)
                whole, newline, _ = file.read().rpartition(b"\n")
        except FileNotFoundError:
            return []
        self._offset += len(whole) + len(newline)
        return (whole + newline).splitlines(keepends=True)
