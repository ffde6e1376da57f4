"""From hosts to a plan: every agent is reached and greeted, says what its host is like, and the plan is made of facts.

Nothing of a run's tasks exists yet; whatever is wrong is said for all hosts at once, and ends it here.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from worker import contract

from .backends import Backend, Host
from .backends.agents import AgentLink, Lose, Receive
from .backends.code import WorkingDirectory, collect
from .backends.network import Network
from .backends.reach import reach
from .errors import OrchError, Problem, SpecError
from .model import plan, versions
from .model.plan import HostFacts, Placement, Plan
from .model.spec import DEFAULT_PRELOAD, ClusterSpec
from .record.rundir import RunDir

ANSWER_S = 60.0
"""How long an agent that is up may take to its first frame."""
OVERDUE_S = 5.0
"""When hosts that have not answered are first named."""


class Preparation:
    """Made for one run; `links` and `facts` stay in use while it lasts. `hosts`: those that get tasks."""

    def __init__(
        self, spec: ClusterSpec, backend: Backend, rundir: RunDir, receive: Receive, lose: Lose, say: Callable[[str], None]
    ) -> None:
        self._spec, self._backend, self._rundir = spec, backend, rundir
        self._receive, self._lose, self._say = receive, lose, say
        every = {host.name: host for host in backend.hosts(spec)}
        placement = plan.place(spec, list(every))
        self.hosts = {name: host for name, host in every.items() if placement[name]}
        self._placement: Placement = {name: placement[name] for name in self.hosts}
        self._network = Network(self.hosts)
        self.links: dict[str, AgentLink] = {}
        self.facts: dict[str, contract.Facts] = {}
        self._step: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._given_up: Exception | None = None
        self._directory = WorkingDirectory(Path(spec.workdir), ())
        self._sending: set[asyncio.Task[None]] = set()

    async def make_plan(self) -> Plan:
        """Raises `OrchError`, or what `give_up` was given."""
        ships = self._spec.backend.code == "ship"
        is_compared = self._spec.backend.code == "shared" and self._spec.program.kind in ("script", "module")
        if (ships or is_compared) and not all(host.is_here for host in self.hosts.values()):
            limit_mb = self._spec.backend.code_limit_mb if ships else math.inf
            program = self._spec.program
            is_file = program.kind == "script" or (program.kind == "command" and "/" in program.target)
            needed = program.target if ships and is_file else ""
            self._directory = collect(self._spec.workdir, limit_mb, only=None if ships else program.target, needed=needed)
        connecting, reminding = asyncio.create_task(self._connect()), asyncio.create_task(self._remind())
        try:
            await asyncio.shield(self._step)
        finally:
            for task in (connecting, reminding, *self._sending):
                task.cancel()
            await asyncio.wait([connecting])
        self._refuse_late()
        self._refuse_problems()
        self._step = asyncio.get_running_loop().create_future()
        found = await self._network.find_addresses(self.links, self.facts, self._step)
        if not self._step.done():  # one host alone tries nobody
            self._step.set_result(None)
        self._refuse_late()
        hosts = [self._host_facts(host, found[host.name]) for host in self.hosts.values()]
        return plan.make(self._rundir.run_id, self._spec, self._placement, hosts)

    def hear(self, host: str, frame: Any) -> None:
        """`Facts`, `Tried` or `CodeWanted` of a host."""
        if isinstance(frame, contract.Tried):
            self._network.hear(host, frame)
            return
        if isinstance(frame, contract.CodeWanted):
            sending = asyncio.create_task(self._send_code(host, frame))
            self._sending.add(sending)
            sending.add_done_callback(self._sending.discard)
            return
        self.facts[host] = frame
        if len(self.facts) == len(self.hosts) and not self._step.done():
            self._step.set_result(None)

    def give_up(self, reason: Exception) -> None:
        """There will be no cluster; the first reason counts."""
        if not self._step.done():
            self._step.set_exception(reason)
        elif self._given_up is None:
            self._given_up = reason  # all have answered, and `make_plan` is about to go on

    def _refuse_late(self) -> None:
        """A reason to give up that came in the same turn of the loop as the last answer."""
        if self._given_up is not None:
            raise self._given_up

    def notes(self) -> list[str]:
        """What is odd about the hosts, and may be right."""
        return versions.compare({name: self.facts[name] for name in self.hosts})

    async def _connect(self) -> None:
        """Reach all hosts and greet them. What keeps the run from starting goes to `give_up`, for all hosts at once."""
        try:
            for name, host in self.hosts.items():
                self.links[name] = AgentLink(host, self._rundir.agent_log(name), self._receive, self._lose)
            transports = [(link, self._backend.transport(self._spec, link.host)) for link in self.links.values()]
            failures = await reach(transports, self._greet)
            if failures:
                raise OrchError("\n".join(f"host {name} cannot be reached: {diagnosis.text}" for name, diagnosis in failures.items()))
            quiet_s = 0.0
            while quiet_s < ANSWER_S:
                await asyncio.sleep(1.0)
                quiet_s = 0.0 if self._sending else quiet_s + 1.0
            raise refuse_silence([name for name in self.hosts if name not in self.facts], ANSWER_S)
        except (OrchError, OSError) as error:
            self.give_up(error)

    async def _remind(self) -> None:
        """Name those hosts that are waited for; again only when that changes."""
        if all(host.is_here for host in self.hosts.values()):
            return
        await asyncio.sleep(OVERDUE_S)
        said = ""
        while True:
            late = [name for name in self.hosts if name not in self.facts]
            what = "the connection and the code" if self._spec.backend.code == "ship" else "the connection"
            text = f"waiting for {contract.few(late)}: {what} ({len(self.facts)} of {len(self.hosts)} hosts have answered)"
            if late and text != said:
                said = text
                self._say(text)
            await asyncio.sleep(1)

    def _greet(self, link: AgentLink) -> None:
        if self._ships_to(link.host):
            link.order(self._directory.order)
        else:
            link.order(self._hello(link.host))
        link.beat()

    def _ships_to(self, host: Host) -> bool:
        return self._spec.backend.code == "ship" and not host.is_here

    async def _send_code(self, host: str, wanted: contract.CodeWanted) -> None:
        if wanted.trouble:
            self.give_up(OrchError(f"host {host}: {wanted.trouble}"))
            return
        link = self.links[host]
        try:
            for part, data in self._directory.parts(wanted):
                link.order(part, data)
                await link.drain()  # or all of it would stand in memory, once for each host
        except OrchError as error:
            self.give_up(error)
            return
        link.order(self._hello(link.host))

    def _hello(self, host: Host) -> contract.Hello:
        spec = self._spec
        preload = DEFAULT_PRELOAD if spec.preload is None else spec.preload
        sharing = plan.count_computing(self._placement[host.name])
        template = contract.TemplateOrder(preload, sharing, spec.env, always=spec.preload is not None)
        return contract.Hello(
            run_id=self._rundir.run_id,
            ports=plan.ports_needed(spec, self._placement, host.name),
            port_range=spec.ports,
            programs=plan.programs(spec),
            cwd=spec.workdir,
            shared_dir=str(self._rundir.path) if host.sees_run_dir else None,
            run_dir=str(self._rundir.path),
            template=template if preload else None,
            lost_after_s=host.lost_after_s,
            compare=() if host.is_here or self._ships_to(host) else self._directory.files,
            word=self._network.words[host.name],
        )

    def _refuse_problems(self) -> None:
        """Say everything that is wrong on any host before anything starts."""
        troubles = [f"host {host}: {self.facts[host].trouble}" for host in self.hosts if self.facts[host].trouble]
        if troubles:
            raise OrchError("\n".join(troubles))
        places: dict[str, list[str]] = {}
        for host in self.hosts:
            for problem in self.facts[host].problems:
                places.setdefault(problem, []).append(host)
        if places:
            raise SpecError(*(Problem(self._place(hosts), problem) for problem, hosts in places.items()))

    def _place(self, hosts: list[str]) -> str:
        """Where something is wrong; nowhere in particular if there is one host only."""
        if len(self.hosts) == 1:
            return ""
        return f"host {hosts[0]}" if len(hosts) == 1 else f"hosts {contract.few(hosts)}"

    def _host_facts(self, host: Host, address: str) -> HostFacts:
        facts = self.facts[host.name]
        run_dir = str(self._rundir.path) if host.sees_run_dir or facts.sees_run_dir else None
        return HostFacts(host.name, address, facts.cores, facts.ports, run_dir, facts.gpus, host.interface, facts.workdir)


def refuse_silence(hosts: Sequence[str], seconds: float) -> OrchError:
    """The error for agents that have started and say nothing."""
    where, log = (hosts[0], hosts[0]) if len(hosts) == 1 else (f"each of {contract.few(hosts)}", "HOST")
    return OrchError(
        f"the agent on {where} has started and has not answered for {seconds:g} s; is that machine overloaded, or its disk stuck? "
        f"what the agent complained of: agents/{log}.log in the run's directory"
    )
