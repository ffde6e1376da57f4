"""Whether the other hosts get through to a task that has come up: its own agent sees its port open, and that says nothing of a firewall.

Before the start every host has tried every other one, at one port. Here each task's own port is tried, at the address that stands
in TF_CONFIG, once it listens. A task counts as up when all have reached it; until then it is waited for, with who cannot reach it
and why. It costs a round trip, and a cluster on one host nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field

from worker.clock import now
from worker.fast_dataclass import dataclass
from worker.protocol.messages import Reached, Target, TaskUp, TaskWaiting, Try

from ...model.planning.addresses import describe_unreached
from ...model.planning.plan import Plan, PlannedTask
from .agent_link import AgentLink, LostError, reporting_mistakes

AGAIN_S = 1.0
"""After how long a host tries again what it has not reached."""


@dataclass(slots=True)
class _Visited:
    """A task that listens. `unreached`: the hosts that have not reached it, each with the reason; empty: it has not answered yet."""

    task: PlannedTask
    up: TaskUp
    unreached: dict[str, str] = field(default_factory=dict)


class PeerChecks:
    """Those of one run. `happen` gets a `TaskUp` when all hosts have reached a task, and a `TaskWaiting` while some have not.

    `is_awaited(task, attempt)` says whether an attempt of a task still goes on.
    """

    def __init__(
        self,
        plan: Plan,
        links: Mapping[str, AgentLink],
        happen: Callable[[TaskUp | TaskWaiting], None],
        is_awaited: Callable[[str, int], bool],
    ) -> None:
        self._links, self._happen, self._is_awaited = links, happen, is_awaited
        # An evaluator is alone in its cluster; without a cluster, nobody looks for anybody.
        members = [task for task in plan.tasks if task.order.cluster is not None and task.id.type != "evaluator"]
        self._tasks = {str(task.id): task for task in members if task.order.port is not None}
        self._hosts = tuple(dict.fromkeys(task.host for task in members))
        self._visited: dict[str, _Visited] = {}
        self._queued: dict[str, dict[str, _Visited]] = {host: {} for host in self._hosts}
        self._trying: dict[str, asyncio.Task[None]] = {}
        """The hosts that are trying to reach something now."""

    def on_up(self, up: TaskUp) -> None:
        """A task's own agent has seen its port open."""
        task = self._tasks.get(up.task)
        others = [host for host in self._hosts if task is not None and host != task.host]
        if task is None or not others:
            self._happen(up)
            return
        key = f"{up.task}, attempt {up.attempt}"
        self._visited[key] = _Visited(task, up, dict.fromkeys(others, ""))
        self._happen(TaskWaiting(up.task, up.attempt, describe_unreached(task.host, task.address, {}), up.at))
        self._try_from(others, key)

    def _try_from(self, hosts: Iterable[str], key: str) -> None:
        """Have these hosts try to reach a task, unless it is settled meanwhile."""
        for host in hosts:
            if key in self._visited:
                self._queued[host][key] = self._visited[key]
                if host not in self._trying:
                    self._trying[host] = reporting_mistakes(self._try_queued(host))

    async def _try_queued(self, host: str) -> None:
        """One request at a time; what comes up meanwhile goes together into the next."""
        queued = self._queued[host]
        with contextlib.suppress(LostError):  # the loss of a host is an event of its own
            while queued:
                targets = tuple(_target(name, one.task) for name, one in queued.items())
                queued.clear()
                for result in (await self._links[host].request(Try(targets))).results:
                    self._on_result(host, result)
        del self._trying[host]

    def _on_result(self, host: str, result: Reached) -> None:
        visited = self._visited.get(result.host)
        if visited is None or host not in visited.unreached:
            return
        if result.refusal:
            self._on_refused(host, result.host, visited, result.refusal)
        else:
            self._on_reached(host, result.host, visited)

    def _on_refused(self, host: str, key: str, visited: _Visited, refusal: str) -> None:
        up, task = visited.up, visited.task
        if not self._is_awaited(up.task, up.attempt):
            del self._visited[key]
            return
        if visited.unreached[host] != refusal:
            visited.unreached[host] = refusal
            self._happen(TaskWaiting(up.task, up.attempt, describe_unreached(task.host, task.address, visited.unreached), now()))
        asyncio.get_running_loop().call_later(AGAIN_S, self._try_from, [host], key)

    def _on_reached(self, host: str, key: str, visited: _Visited) -> None:
        up, task = visited.up, visited.task
        had_failed = visited.unreached.pop(host)
        if not visited.unreached:
            del self._visited[key]
            self._happen(up)
        elif had_failed:
            self._happen(TaskWaiting(up.task, up.attempt, describe_unreached(task.host, task.address, visited.unreached), now()))


def _target(name: str, task: PlannedTask) -> Target:
    """Where a task is to be found: ``10.0.0.1:41000``, ``[fd00::1]:41000``."""
    address = task.address.rpartition(":")[0].strip("[]")
    return Target(name, task.order.port or 0, "", (address,))
