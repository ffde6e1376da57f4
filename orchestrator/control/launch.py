"""Gets the hosts of the attempts of a run, and their plans; looks whether hosts are back that an elastic cluster lacks."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from worker.machine.clock import now
from worker.protocol import messages
from worker.values.words import few

from ..backends import Host
from ..backends.code_sync import COPIES
from ..backends.connection.agent_link import AgentLink, reach
from ..backends.connection.agent_start import NotReachedError
from ..errors import OrchError
from ..model.planning import elastic
from ..model.policy import lifecycle, restarts
from ..model.policy import save_order as saves
from ..model.state import events
from ..model.state.cluster import Cluster, Verdict
from .agents import Agents
from .preparation import Preparation, Prepared
from .starting import RunStart

if TYPE_CHECKING:
    from .trackers import Trackers


class Launch:
    """Made for one run: `prepare` for each attempt that needs hosts and a plan."""

    def __init__(self, start: RunStart, agents: Agents, cluster: Callable[[], Cluster], on_event: Callable[[events.Event], None]) -> None:
        """Prepare to start the tasks; nothing is allocated yet. `cluster`: returns the present state."""
        self._start, self._agents, self._cluster, self._on_event = start, agents, cluster, on_event
        self._allocation = contextlib.AsyncExitStack()
        self._preparation = Preparation(start, agents, on_event)
        self._prepared: Prepared | None = None
        """Of the newest attempt that has a plan."""
        self._trackers: Trackers | None = None
        self._back_s, self._taken_in_at = elastic.BACK_S, 0
        """The pause before an elastic cluster looks for hosts that it lacks, and its workers when one was last taken in; 0: not yet."""

    async def prepare(self) -> None:
        """Get the hosts, make the plan of the attempt, and begin the attempt. Raises `OrchError`, `OSError`."""
        cluster, start = self._cluster(), self._start
        attempt = cluster.attempt
        if self._trackers is None and (start.spec.mlflow or start.spec.wandb):
            from .trackers import Trackers  # most runs have none

            self._trackers = Trackers(start)
            for note in await asyncio.to_thread(self._trackers.begin):
                self._on_event(events.RunNoted(note, now()))
        if attempt > 1:
            await self._agents.let_go(is_due=cluster.is_due, keeps_state=True)
            await self.release()
            self._preparation = Preparation(start, self._agents, self._on_event)
        hosts = await self._allocation.enter_async_context(start.backend.allocate(start.request, self._wait))
        code = self._prepared.code if self._prepared is not None else None
        broken = restarts.broken_hosts(self._cluster().past)
        self._prepared = prepared = await self._preparation.prepare(attempt, hosts, broken, code)
        start.run.write_plan(prepared.plan)
        self._on_event(lifecycle.begin(prepared.plan, attempt, now()))
        notes = (*prepared.plan.notes, *prepared.notes) if attempt == 1 else ()
        for note in (*notes, *prepared.changes):
            self._on_event(events.RunNoted(note, now()))

    def orders(self, attempt: int, tasks: Collection[str], since: int) -> Iterator[tuple[str, messages.StartTasks]]:
        """Return what starts these tasks, by host. `since`: the oldest attempt whose tasks run."""
        assert self._prepared is not None
        for host, orders in self._prepared.plan.all_orders(attempt, tasks, since=since):
            yield host, self._trackers.add(orders) if self._trackers is not None else orders

    async def end_trackers(self, verdict: Verdict) -> list[str]:
        """The run is over: close what trackers have opened. Returns what is odd."""
        return await asyncio.to_thread(self._trackers.end, verdict) if self._trackers is not None else []

    def describe_awaited(self) -> str:
        """Return which hosts are waited for, and why; empty if none is known."""
        return self._preparation.describe_awaited()

    async def await_missing(self) -> None:
        """Look now and then whether hosts that an elastic cluster lacks are back, and take them in."""
        hosts = self._prepared.missing if self._prepared is not None else ()
        if self._taken_in_at:
            self._back_s = elastic.pause_after(self._back_s, self._taken_in_at, self._cluster().workers)
            self._taken_in_at = 0
        while hosts:
            await asyncio.sleep(self._back_s)
            if self._cluster().is_shrunk and saves.is_possible(self._cluster()):
                found = await asyncio.gather(*map(self._is_back, hosts))
                back = [host.name for host, is_back in zip(hosts, found, strict=True) if is_back]
                if back and saves.is_possible(self._cluster()):  # otherwise the training has begun to save itself meanwhile
                    self._taken_in_at = self._cluster().workers
                    self._on_event(events.HostsBack(f"host {few(back)} is back", now()))

    async def _is_back(self, host: Host) -> bool:
        """True if an agent can be started on a host that could not be reached. It is ended at once."""
        start = self._start
        link = AgentLink(host, start.run.agent_log(host.name), lambda *_: None, lambda _: None)
        try:
            await reach(link, host.transport, start.backend.explain, replace(start.request.reaching, tries=1), asyncio.Semaphore(1))
        except NotReachedError:
            return False
        finally:
            await link.kill()
        return True

    def _wait(self, reason: str) -> None:
        """The backend waits for hosts, in its words: a run that waits can be looked at."""
        self._start.run.make_latest()
        self._on_event(events.HostsAwaited(reason, now()))

    async def end(self) -> None:
        """The run is over: give the hosts back, and remove the copies of the files that they got."""
        await self.release()
        shutil.rmtree(self._start.run.path / COPIES, ignore_errors=True)

    async def release(self) -> None:
        """Give the hosts back."""
        try:
            await self._allocation.aclose()
        except OrchError as error:
            self._on_event(events.RunNoted(f"the hosts were not given back: {error.line}", now()))
