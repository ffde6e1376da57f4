"""Follows a run by its recorded events, while the run goes on."""

from __future__ import annotations

from collections.abc import Iterator

from ...model.run import lifecycle
from ...model.run.cluster import Cluster
from ...model.run.events import Event, RunNoted
from ..text.event_messages import describe_event, describe_plan
from . import event_log
from .run_directory import RunDir
from .run_files import open_file


class Progress:
    """Reads the events of a run, and keeps its state with the same `step` that the controller uses."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._offset = 0
        self.cluster: Cluster | None = None
        """The state after the last event that was read; None before there is a plan."""
        self.messages: list[str] = []
        """The lines that the console of the run shows for the events so far. The caller removes the lines that it has printed."""

    def advance(self) -> Iterator[Event]:
        """Yields each event that was recorded since the last call; `cluster` is then the state after this event."""
        for event in event_log.from_lines(self._read_lines()):
            if self.cluster is None:
                self._begin()
            if isinstance(event, RunNoted):
                self.messages.append(event.line)
            elif self.cluster is not None:
                before = self.cluster
                self.cluster, _ = lifecycle.step(before, event)
                if message := describe_event(before, self.cluster, event):
                    self.messages.append(message)
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

    def _begin(self) -> None:
        planned = self._run.read_plan()
        if planned is not None:
            self.cluster = lifecycle.of_plan(planned)
            self.messages += (describe_plan(planned), *planned.notes)
