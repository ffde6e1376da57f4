"""The state of a run, from its recorded events.

A run of a hundred tasks records two million reports a day. So the controller now and then writes the state into `progress.json`, with
the size that `events.jsonl` had by then: anyone who wants the present state only reads what was recorded since. The events stay the only
source of truth: a run without that file, or with a damaged one, is read from the first event on.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace

from worker.machine.clock import now
from worker.values.codec import Size, from_json, to_json
from worker.values.fast_dataclass import dataclass

from ..errors import OrchError
from ..model.policy import lifecycle
from ..model.settings import Restart
from ..model.state.cluster import Cluster, Phase
from ..model.state.events import Event, HostLost, RunResumed
from .event_log import EventReader
from .run_directory import RunDir
from .run_files import read_file, size_of

EVERY_BYTES = 256 * 1024
"""How many bytes of events are recorded between two snapshots: about two thousand reports."""
BYTES_OF_TASK = 1024
"""The same, for each task: the snapshot of a large cluster takes its time."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a run after the first `size` bytes of its events."""

    size: Size
    at: float
    """The time of the last event."""
    cluster: Cluster


class Snapshots:
    """Writes the state of a run into `progress.json`. If the disk is full, there is an older one or none, without further effect."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._due = 0

    def keep(self, cluster: Cluster, at: float) -> None:
        """The state after all events that are recorded now, the last of which has the time `at`."""
        size = self._run.recorded_bytes
        if size < self._due:
            return
        if self._due:  # most runs are over before the first is due
            with contextlib.suppress(OSError):
                self._run.write("progress.json", json.dumps(to_json(Snapshot(size, at, cluster))))
        self._due = size + max(EVERY_BYTES, BYTES_OF_TASK * len(cluster.tasks))


class Progress:
    """Keeps the state of a run with the same `step` that the controller uses, while the run goes on."""

    def __init__(self, run: RunDir) -> None:
        self._run, self._events = run, EventReader(run.path)
        self.at = 0.0
        """The time of the last event."""
        self._cluster = self._begin() or Cluster()

    @property
    def cluster(self) -> Cluster:
        """The state after the events that were given out; what was recorded since is for the next call of `steps`."""
        return self._cluster

    def steps(self) -> Iterator[tuple[Cluster, Cluster, Event]]:
        """The events that were recorded since the last call, each with the state before and after."""
        self._events.run = self._run.path
        for event in self._events.new():
            before = self._cluster
            try:
                (self._cluster, _), self.at = lifecycle.step(before, event), event.at
            except (LookupError, ValueError, ArithmeticError) as error:  # such as a strategy of a later orch
                raise unreadable(self._run, error) from error
            yield before, self._cluster, event

    def read(self) -> Cluster:
        """The state after all events that are recorded now."""
        for _ in self.steps():
            pass
        return self._cluster

    def _begin(self) -> Cluster | None:
        """The state in the snapshot, with the events after the snapshot still to be read; None: there is no snapshot to begin with."""
        with contextlib.suppress(OSError, ValueError, RecursionError, OrchError):
            kept = from_json(Snapshot, json.loads(read_file(self._run.path / "progress.json")))
            if kept.size <= size_of(self._run.path / "events.jsonl"):
                self._events.offset, self.at = kept.size, kept.at
                return kept.cluster
        return None


def unreadable(run: RunDir, error: Exception) -> OrchError:
    what = f"{type(error).__name__}: {error}"
    return OrchError(f"the events of {run.run_id} do not fit this orch ({what}): another version has written them; logs: {run.path}")


def resume(run: RunDir) -> Cluster | None:
    """The state in which another controller left the run that this process holds, and goes on with. None: nothing had happened yet."""
    with contextlib.suppress(OSError):
        run.take_up()
    cluster = Progress(run).read()
    return cluster if cluster.run else None


def read_cluster(run: RunDir) -> Cluster:
    """The state of a run after all recorded events."""
    lives = run.is_alive()  # read before the events: a controller writes its last event before it releases the lock
    progress = Progress(run)
    cluster = progress.read()
    if lives and run.is_submitted and not run.lock.is_held():
        return _await_engine(run, cluster, progress.at)
    if not cluster.is_over and not lives:
        # The controller died without a verdict; its agents have ended with it, and the tasks with them. No attempt follows.
        cluster = replace(cluster, policy=replace(cluster.policy, restart=Restart()))
        for host in dict.fromkeys(task.host for task in cluster.tasks.values()):
            cluster, _ = lifecycle.step(cluster, HostLost(host, "its controller died", progress.at))
        if run.is_submitted and (verdict := run.read_verdict()):
            cluster = replace(cluster, phase=Phase.DONE, verdict=verdict)
    return cluster


def _await_engine(run: RunDir, cluster: Cluster, at: float) -> Cluster:
    """The state of a run whose job waits in the queue of its engine, or has just begun. `at`: the time of the last event."""
    heard = run.heard()
    if heard.word.state == "waiting" and cluster.run and at < heard.at:  # again: the next controller begins so
        cluster, _ = lifecycle.step(cluster, RunResumed(heard.since))
    return replace(cluster, waiting=cluster.waiting or heard.describe(now())) if cluster.awaits_plan else cluster
