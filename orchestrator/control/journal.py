"""Writes what happens in a run into its directory: each event, and now and then the state of the run."""

from __future__ import annotations

import errno

from ..model.state.cluster import Cluster
from ..model.state.events import Event
from ..record.run_directory import RunDir
from ..record.run_progress import Snapshots
from ..record.run_store import remedy_for
from ..record.text.timeline import Phases


class Journal:
    """Records one run, until its disk is full."""

    def __init__(self, run: RunDir, *, is_resumed: bool) -> None:
        """`is_resumed`: another controller has recorded the beginning."""
        self._run, self._snapshots = run, Snapshots(run)
        self.is_full = False
        """The run can no longer be recorded."""
        self.phases = Phases()
        """The phases of the start, which the end of the run need not read again."""
        for event in run.read_events(milestones=True) if is_resumed else ():
            self.phases.add(event)

    def record(self, event: Event) -> None:
        """Record an event. Raises `OSError`."""
        self.phases.add(event)
        self._run.record(event)

    def keep(self, cluster: Cluster, at: float) -> None:
        self._snapshots.keep(cluster, at)

    def give_up(self, error: OSError) -> str:
        """The run can no longer be recorded. Returns why, for the user, the first time."""
        if self.is_full:
            return ""
        self.is_full = True
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            self._run.free_reserve()
        return f"the run cannot be recorded in {self._run.path}: {error.strerror or error}; {remedy_for(error)}"
