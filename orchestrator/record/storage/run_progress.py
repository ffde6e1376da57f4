"""A run as its events tell it, read on while it goes on."""

from __future__ import annotations

from collections.abc import Iterator

from ...model.run import lifecycle
from ...model.run.cluster import Cluster
from ...model.run.events import Event, RunNoted
from ..text.event_messages import describe_plan, narrate
from . import event_log
from .run_directory import RunDir
from .run_files import open_file


class Progress:
    """Reads the events of a run as they are recorded, and folds them with the same `step` that ran it."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._offset = 0
        self.cluster: Cluster | None = None
        """The run after the last event that was read; None before there is a plan."""
        self.told: list[str] = []
        """What has happened, in the lines that the run's own console shows; whoever shows them takes them away."""

    def advance(self) -> Iterator[Event]:
        """The events that have been recorded since, each once it is folded into `cluster`."""
        for event in event_log.from_lines(self._read_lines()):
            if self.cluster is None:
                self._begin()
            if isinstance(event, RunNoted):
                self._tell(event.line)
            elif self.cluster is not None:
                before = self.cluster
                self.cluster, _ = lifecycle.step(before, event)
                self._tell(narrate(before, self.cluster, event))
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
            self.told += (describe_plan(planned), *planned.notes)

    def _tell(self, text: str | None) -> None:
        if text is not None:
            self.told.append(text)
