"""Whether the other hosts get through to a task that has come up: its own agent sees its port open, and that says nothing of a firewall.

Before the start every host has tried every other one, at one port. Here each task's own port is tried, at the address that stands
in TF_CONFIG, once it listens. A task counts as up when all have reached it; until then it is waited for, with who cannot reach it
and why. It costs a round trip, and a cluster on one host nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field

from worker import contract
from worker.records import dataclass

from ..model import events
from ..model.addresses import describe_unreached
from ..model.plan import Plan, PlannedTask
from .agents import AgentLink

AGAIN_S = 1.0
"""After how long a host tries again what it has not reached."""


@dataclass(slots=True)
class _Visited:
    """A task that listens. `unreached`: the hosts that have not reached it, each with the reason; empty: it has not answered yet."""

    task: PlannedTask
    up: contract.Up
    unreached: dict[str, str] = field(default_factory=dict)


class Visits:
    """Those of one run. `tell` gets a `TaskUp` when all hosts have reached a task, and a `TaskWaiting` while some have not.

    `is_awaited` says whether an attempt of a task still goes on.
    """

    def __init__(
        self, plan: Plan, links: Mapping[str, AgentLink], tell: Callable[[events.Event], None], is_awaited: Callable[[str, int], bool]
    ) -> None:
        self._links, self._tell, self._is_awaited = links, tell, is_awaited
        # An evaluator is alone in its cluster; without a cluster, nobody looks for anybody.
        members = [task for task in plan.tasks if task.order.cluster is not None and task.id.type != "evaluator"]
        self._tasks = {str(task.id): task for task in members if task.order.port is not None}
        self._hosts = tuple(dict.fromkeys(task.host for task in members))
        self._visited: dict[str, _Visited] = {}
        self._queued: dict[str, dict[str, _Visited]] = {host: {} for host in self._hosts}
        self._busy: set[str] = set()

    def begin(self, up: contract.Up) -> None:
        """A task's own agent has seen its port open."""
        task = self._tasks.get(up.task)
        others = [host for host in self._hosts if task is not None and host != task.host]
        if task is None or not others:
            self._tell(events.TaskUp(up.task, up.attempt, up.at))
            return
        key = f"{up.task}, attempt {up.attempt}"
        self._visited[key] = _Visited(task, up, dict.fromkeys(others, ""))
        self._tell(events.TaskWaiting(up.task, up.attempt, describe_unreached(task.host, task.address, {}), up.at))
        self._ask(others, key)

    def hear(self, host: str, frame: contract.Tried) -> None:
        """What one host has reached, and what not. One that was not asked has nothing to say."""
        if host not in self._busy:
            return
        self._busy.remove(host)
        for result in frame.results:
            visited = self._visited.get(result.host)
            if visited is None or host not in visited.unreached:
                continue
            if result.refusal:
                self._put_off(host, result.host, visited, result.refusal)
            else:
                self._settle(host, result.host, visited)
        self._ask([host])

    def _put_off(self, host: str, key: str, visited: _Visited, refusal: str) -> None:
        up, task = visited.up, visited.task
        if not self._is_awaited(up.task, up.attempt):
            del self._visited[key]
            return
        if visited.unreached[host] != refusal:
            visited.unreached[host] = refusal
            self._tell(events.TaskWaiting(up.task, up.attempt, describe_unreached(task.host, task.address, visited.unreached), up.at))
        asyncio.get_running_loop().call_later(AGAIN_S, self._ask, [host], key)

    def _settle(self, host: str, key: str, visited: _Visited) -> None:
        up, task = visited.up, visited.task
        had_failed = visited.unreached.pop(host)
        if not visited.unreached:
            del self._visited[key]
            self._tell(events.TaskUp(up.task, up.attempt, up.at))
        elif had_failed:
            self._tell(events.TaskWaiting(up.task, up.attempt, describe_unreached(task.host, task.address, visited.unreached), up.at))

    def _ask(self, hosts: Iterable[str], key: str = "") -> None:
        """One order at a time for each host; what comes up meanwhile goes together into the next."""
        for host in hosts:
            queued = self._queued[host]
            if key in self._visited:
                queued[key] = self._visited[key]
            if queued and host not in self._busy:
                self._busy.add(host)
                targets = tuple(_target(name, one.task) for name, one in queued.items())
                queued.clear()
                self._links[host].order(contract.Try(targets))


def _target(name: str, task: PlannedTask) -> contract.Target:
    """Where a task is to be found: ``10.0.0.1:41000``, ``[fd00::1]:41000``."""
    address = task.address.rpartition(":")[0].strip("[]")
    return contract.Target(name, task.order.port or 0, "", (address,))
