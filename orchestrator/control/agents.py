"""The agents of a run: the connections to them, the orders, the receipts for their output, and their end."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from worker.protocol import messages
from worker.values.words import few

from ..backends import Host
from ..backends.connection.agent_link import AgentLink, LostError, OnFrame, OnLost
from ..model.state.cluster import Cluster
from ..record.run_directory import RunDir

Ordered = messages.StopTasks | messages.ShowStacks | messages.SignalTasks | messages.SaveTasks | messages.Profile


class Agents:
    """The agents of one run. An attempt that gets new hosts has other agents than the one before."""

    def __init__(self, run: RunDir, on_frame: OnFrame, on_lost: OnLost) -> None:
        self._run, self._on_frame, self._on_lost = run, on_frame, on_lost
        self.links: dict[str, AgentLink] = {}
        self.facts: dict[str, messages.HostReady] = {}
        self.has_lost_any = False
        """A host was lost: processes of its tasks may live on."""
        self._left: dict[str, AgentLink] = {}
        self._stored: dict[str, int] = {}
        """By host, the bytes of output that were stored and are not acknowledged yet."""
        self._unstored: set[str] = set()
        """The hosts whose output could not be stored: their agents would wait for ever to be told that all is stored."""
        self._asked_at_end = False

    def connect(self, host: Host) -> AgentLink:
        """Return the connection to a host, which is still to be opened."""
        link = self.links[host.name] = AgentLink(host, self._run.agent_log(host.name), self._on_frame, self.lose)
        return link

    def lose(self, loss: LostError) -> None:
        """Report a host whose agent sends nothing more."""
        self.has_lost_any = True
        self._on_lost(loss)

    # --- orders --------------------------------------------------------------------------------

    def start(self, host: str, order: messages.StartTasks) -> None:
        self.links[host].order(order)

    def order(self, cluster: Cluster, order: Ordered) -> None:
        """Send an order about tasks to their hosts. Each agent acts on its own tasks, and only while they run."""
        tasks: dict[str, list[str]] = {}
        for name in order.tasks:
            if (task := cluster.tasks.get(name)) is not None:
                tasks.setdefault(task.host, []).append(name)
        for host, names in tasks.items():
            if host in self.links:  # otherwise the attempt is over, and the next one has no hosts yet
                self.links[host].order(replace(order, tasks=tuple(names)))

    # --- output --------------------------------------------------------------------------------

    def acknowledge(self, host: str, size: int) -> None:
        """Tell a host that its output is stored: once for all that comes at one time, because each order is a call of the kernel."""
        if host not in self._stored:
            link = self.links[host]
            asyncio.get_running_loop().call_soon(lambda: link.order(messages.Ack(self._stored.pop(host))))
        self._stored[host] = self._stored.get(host, 0) + size

    def lose_output(self, host: str, *, is_over: bool) -> None:
        """Output of a host could not be stored, and will not be. `is_over`: nothing else is wanted of its agent."""
        self._unstored.add(host)
        if is_over:
            self.drop(host)

    def describe_end(self, host: str) -> str:
        """Return how the last connection to a host has ended."""
        return self._left[host].diagnose_end().cause

    # --- the end -------------------------------------------------------------------------------

    def drop(self, host: str) -> None:
        """End the agent of a host at once, and its tasks with it."""
        self.links[host].drop()

    def limit_silence(self) -> None:
        """The end is due: an agent that gives no sign of life is lost after a short time."""
        for link in self.links.values():
            link.limit_silence()

    async def let_go(self, *, is_due: bool = False, keeps_state: bool = False) -> None:
        """Wait until every agent has sent the remaining output of its tasks and has ended; without a limit as long as output comes.

        `is_due`: see `limit_silence`. `keeps_state`: see `Bye`. An attempt that follows begins without agents.
        """
        if is_due:
            self.limit_silence()
        # An agent without facts holds nothing yet.
        known = self.facts.keys() - self._unstored
        await asyncio.gather(*(link.close(keeps_state=keeps_state) if name in known else link.kill() for name, link in self.links.items()))
        self._left |= self.links
        self.links.clear()
        self.facts.clear()

    async def kill(self) -> None:
        """End all agents at once, and wait for their end."""
        await asyncio.gather(*(link.kill() for link in self.links.values()))

    def leave_output(self) -> str:
        """The user asks for the end of a run that is over: a line about what is waited for; asked again, leave the rest."""
        late = [name for name, link in self.links.items() if link.is_open]
        if late and not self._asked_at_end:
            self._asked_at_end = True
            return f"the run is over; still fetching the output of {few(late)}; Ctrl-C or orch down again leaves the rest there"
        for name in late:
            self.drop(name)
        cut = [name for name in late if not self.links[name].host.sees_run_dir]
        return f"{few(cut)}: the remaining output of the tasks was not fetched" if cut else ""
