"""The state of a run, from its recorded events."""

from __future__ import annotations

from ...model.run import lifecycle
from ...model.run.cluster import Cluster
from .event_log import EventReader
from .run_directory import RunDir


class Progress:
    """Keeps the state of a run with the same `step` that the controller uses, while the run goes on."""

    def __init__(self, run: RunDir) -> None:
        self._run, self._events = run, EventReader(run)
        self._cluster: Cluster | None = None
        self.at = 0.0
        """The time of the last event."""

    def read(self) -> Cluster | None:
        """The state after all events that are recorded now; None before there is a plan. Raises as `RunDir.read_plan` does."""
        if self._cluster is None:
            planned = self._run.read_plan()
            if planned is None:
                return None
            self._cluster = lifecycle.of_plan(planned)
        for event in self._events.new():
            (self._cluster, _), self.at = lifecycle.step(self._cluster, event), event.at
        return self._cluster
