"""Checks whether the other hosts reach a task that listens. Its own agent sees the port open; a firewall is seen only from outside.

Before the start every host has tried every other host, at one port. Here each task's own port is tried, at the address in TF_CONFIG, as
soon as the task listens. A task counts as up when all hosts have reached it. Until then `TaskWaiting` names the hosts that cannot reach it,
and why. A check costs one round trip; a cluster on one host has none.
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
from .agent_link import AgentLink, LostError
from .keep_alive import reporting_mistakes

AGAIN_S = 1.0
"""After so long, a host tries again to reach a task."""


@dataclass(slots=True)
class _Check:
    """The check of a task that listens."""

    task: PlannedTask
    up: TaskUp
    unreached: dict[str, str] = field(default_factory=dict)
    """The hosts that have not reached the task, each with the reason; an empty reason: the host has not answered yet."""


class PeerChecks:
    """The checks of one run. `on_event` gets a `TaskUp` when all hosts have reached a task, and a `TaskWaiting` while some have not.

    `is_running(task, attempt)` returns whether an attempt of a task still goes on.
    """

    def __init__(
        self,
        plan: Plan,
        links: Mapping[str, AgentLink],
        on_event: Callable[[TaskUp | TaskWaiting], None],
        is_running: Callable[[str, int], bool],
    ) -> None:
        self._links, self._on_event, self._is_running = links, on_event, is_running
        # No other task connects to an evaluator, or to a task without a cluster.
        members = [task for task in plan.tasks if task.order.cluster is not None and task.id.type != "evaluator"]
        self._tasks = {str(task.id): task for task in members if task.order.port is not None}
        self._hosts = tuple(dict.fromkeys(task.host for task in members))
        self._checks: dict[str, _Check] = {}
        self._queued: dict[str, dict[str, _Check]] = {host: {} for host in self._hosts}
        self._trying: dict[str, asyncio.Task[None]] = {}
        """The hosts whose request is not answered yet."""

    def on_up(self, up: TaskUp) -> None:
        """The agent of a task has seen the port of the task open."""
        task = self._tasks.get(up.task)
        others = [host for host in self._hosts if task is not None and host != task.host]
        if task is None or not others:
            self._on_event(up)
            return
        key = f"{up.task}, attempt {up.attempt}"
        self._checks[key] = _Check(task, up, dict.fromkeys(others, ""))
        self._on_event(TaskWaiting(up.task, up.attempt, describe_unreached(task.host, task.address, {}), up.at))
        self._try_from(others, key)

    def _try_from(self, hosts: Iterable[str], key: str) -> None:
        """Have these hosts try to reach a task, unless its check is over."""
        for host in hosts:
            if key in self._checks:
                self._queued[host][key] = self._checks[key]
                if host not in self._trying:
                    self._trying[host] = reporting_mistakes(self._try_queued(host))

    async def _try_queued(self, host: str) -> None:
        """Send one request at a time; the tasks that come up meanwhile are together in the next one."""
        queued = self._queued[host]
        with contextlib.suppress(LostError):  # the loss of a host is an event of its own
            while queued:
                targets = tuple(_target(name, one.task) for name, one in queued.items())
                queued.clear()
                for result in (await self._links[host].request(Try(targets))).results:
                    self._on_result(host, result)
        del self._trying[host]

    def _on_result(self, host: str, result: Reached) -> None:
        check = self._checks.get(result.host)
        if check is None or host not in check.unreached:
            return
        if result.refusal:
            self._on_refused(host, result.host, check, result.refusal)
        else:
            self._on_reached(host, result.host, check)

    def _on_refused(self, host: str, key: str, check: _Check, refusal: str) -> None:
        up, task = check.up, check.task
        if not self._is_running(up.task, up.attempt):
            del self._checks[key]
            return
        if check.unreached[host] != refusal:
            check.unreached[host] = refusal
            self._on_event(TaskWaiting(up.task, up.attempt, describe_unreached(task.host, task.address, check.unreached), now()))
        asyncio.get_running_loop().call_later(AGAIN_S, self._try_from, [host], key)

    def _on_reached(self, host: str, key: str, check: _Check) -> None:
        up, task = check.up, check.task
        had_failed = check.unreached.pop(host)
        if not check.unreached:
            del self._checks[key]
            self._on_event(up)
        elif had_failed:
            self._on_event(TaskWaiting(up.task, up.attempt, describe_unreached(task.host, task.address, check.unreached), now()))


def _target(name: str, task: PlannedTask) -> Target:
    """The address and the port of a task, whose address is ``10.0.0.1:41000`` or ``[fd00::1]:41000``."""
    address = task.address.rpartition(":")[0].strip("[]")
    return Target(name, task.order.port or 0, "", (address,))
