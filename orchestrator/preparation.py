"""From hosts to a plan: every agent is reached and greeted, says what its host is like, and the plan is made of facts.

Nothing of a run's tasks exists yet; whatever is wrong is said for all hosts at once, and ends it here.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

from worker import contract

from .backends import Backend, Host, likeness
from .backends.agents import AgentLink, Lose, Receive
from .backends.code import WorkingDirectory, collect
from .backends.network import Network
from .backends.reach import reach
from .errors import OrchError, Problem, SpecError
from .model import plan, slots, versions
from .model.plan import HostFacts, Plan
from .model.slots import Assignment
from .model.spec import DEFAULT_PRELOAD, ClusterSpec
from .record.rundir import RunDir

ANSWER_S = 60.0
"""How long an agent that is up may take to its first frame."""
UNANSWERED_S, UNTRIED_S = 5.0, 3.0
"""When those are first named that have not answered, and those that are still trying to reach the others."""
MOST_PLANS = 5
"""How often a plan is made whose GPUs another run takes before this one can."""


class Preparation:
    """Made for one run; `links` and `facts` stay in use while it lasts. `hosts`: those that get tasks."""

    def __init__(
        self, spec: ClusterSpec, backend: Backend, rundir: RunDir, receive: Receive, lose: Lose, say: Callable[[str], None]
    ) -> None:
        self._spec, self._backend, self._rundir = spec, backend, rundir
        self._receive, self._lose, self._say = receive, lose, say
        every = {host.name: host for host in backend.hosts(spec)}
        assignment = plan.place(spec, list(every))
        self.hosts = {name: host for name, host in every.items() if assignment[name]}
        self._assignment: Assignment = {name: assignment[name] for name in self.hosts}
        self._network = Network(self.hosts)
        self.links: dict[str, AgentLink] = {}
        self.facts: dict[str, contract.Facts] = {}
        self._step: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._given_up: Exception | None = None
        self._directory = WorkingDirectory(Path(spec.workdir), ())
        self._likeness = ""
        self._sending: set[asyncio.Task[None]] = set()
        self._awaited: set[str] = set()
        self._refused: dict[str, tuple[contract.GpuHolder, ...]] = {}
        """What hosts have answered that were to hold GPUs which other runs have taken meanwhile."""

    async def make_plan(self) -> Plan:
        """Raises `OrchError`, or what `give_up` was given."""
        ships = self._spec.backend.code == "ship"
        is_here = all(host.is_here for host in self.hosts.values())
        program = self._spec.program
        if ships and not is_here:
            is_file = program.kind == "script" or (program.kind == "command" and "/" in program.target)
            needed = program.target if is_file else ""
            runs = self._rundir.path.parent
            self._directory = collect(self._spec.workdir, self._spec.backend.code_limit_mb, runs=runs, needed=needed)
        elif self._spec.backend.code == "shared" and not is_here:
            self._likeness = likeness.describe(self._spec.workdir, program).pack()
        await self._await_answers()
        self._refuse_late()
        self._refuse_problems()
        self._step = asyncio.get_running_loop().create_future()
        found = await self._find_addresses()
        if not self._step.done():  # one host alone tries nobody
            self._step.set_result(None)
        self._refuse_late()
        hosts = [self._host_facts(host, found[host.name]) for host in self.hosts.values()]
        return await self._make_with_gpus(hosts)

    async def _await_answers(self) -> None:
        connecting = asyncio.create_task(self._connect())
        reminding = asyncio.create_task(self._remind(self._describe_unanswered, UNANSWERED_S))
        try:
            await asyncio.wait([self._step, connecting], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (connecting, reminding, *self._sending):
                task.cancel()
            await asyncio.wait([connecting])
        mistake = None if connecting.cancelled() else connecting.exception()
        if mistake is not None:
            traceback.print_exception(mistake)
            raise OrchError(f"a mistake of orch's own: {mistake}; please report it") from mistake
        self._step.result()

    async def _find_addresses(self) -> dict[str, str]:
        reminding = asyncio.create_task(self._remind(self._describe_untried, UNTRIED_S))
        try:
            return await self._network.find_addresses(self.links, self.facts, self._step)
        finally:
            reminding.cancel()

    async def _make_with_gpus(self, hosts: list[HostFacts]) -> Plan:
        """The plan, once its GPUs are held for this run. If another run was faster, it is made anew, without those."""
        held: set[str] = set()
        for _ in range(MOST_PLANS):
            planned = plan.make(self._rundir.run_id, self._spec, self._assignment, hosts)
            # Two runs that want all of several hosts meet at the first of them, where one wins, and do not take half of them each.
            order = sorted(planned.claims, key=lambda name: min((*planned.claims[name].alone, *planned.claims[name].shared)))
            given_up = sorted(held.difference(order))
            for batch in filter(None, (given_up, order[:1], order[1:])):
                await self._claim({name: planned.claims.get(name, contract.TakeGpus()) for name in batch})
                held.update(batch)
                if self._refused:
                    break
            if not self._refused:
                return planned
            hosts = [replace(host, taken=self._refused.pop(host.name, host.taken)) for host in hosts]
        raise OrchError(f"other runs have taken this one's GPUs {MOST_PLANS} times while it was about to start; start it again")

    async def _claim(self, orders: dict[str, contract.TakeGpus]) -> None:
        self._step = asyncio.get_running_loop().create_future()
        self._awaited = set(orders)
        for name, order in orders.items():
            self.links[name].order(order)
        await self._step
        self._refuse_late()

    def hear(self, host: str, frame: Any) -> None:
        """`Facts`, `Tried`, `CodeWanted` or `GpusTaken` of a host."""
        if isinstance(frame, contract.GpusTaken):
            self._awaited.discard(host)
            if frame.holders:
                self._refused[host] = frame.holders
            if not self._awaited and not self._step.done():
                self._step.set_result(None)
            return
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
        places: dict[str, list[str]] = {}
        for host in self.hosts:
            for note in self.facts[host].notes:
                places.setdefault(note, []).append(host)
        odd = [": ".join(filter(None, (self._place(hosts), note))) for note, hosts in places.items()]
        return [*odd, *versions.compare({name: self.facts[name] for name in self.hosts})]

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

    async def _remind(self, describe: Callable[[], str], after_s: float) -> None:
        """Say what is waited for, if anything; again only when that changes."""
        await asyncio.sleep(after_s)
        said = ""
        while True:
            text = describe()
            if text and text != said:
                said = text
                self._say(text)
            await asyncio.sleep(1)

    def describe_awaited(self) -> str:
        """Who is waited for, and for what; empty if it cannot be told."""
        return self._describe_unanswered() or self._describe_untried()

    def _describe_unanswered(self) -> str:
        late = [name for name in self.hosts if name not in self.facts]
        if not late or all(host.is_here for host in self.hosts.values()):
            return ""
        what = "the connection and the code" if self._spec.backend.code == "ship" else "the connection"
        return f"waiting for {contract.few(late)}: {what} ({len(self.facts)} of {len(self.hosts)} hosts have answered)"

    def _describe_untried(self) -> str:
        late = self._network.awaited
        done = f"{len(self.hosts) - len(late)} of {len(self.hosts)} have tried"
        return f"waiting for {contract.few(late)}: the hosts try each other's addresses ({done})" if late else ""

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
        sharing = slots.count_computing(self._assignment[host.name])
        template = contract.TemplateOrder(preload, sharing, spec.env, always=spec.preload is not None)
        return contract.Hello(
            run_id=self._rundir.run_id,
            ports=slots.ports_needed(self._assignment[host.name], spec.strategy),
            port_range=spec.ports,
            programs=plan.programs(spec),
            cwd=spec.workdir,
            shared_dir=str(self._rundir.path) if host.sees_run_dir else None,
            run_dir=str(self._rundir.path),
            template=template if preload else None,
            lost_after_s=host.lost_after_s,
            compare="" if host.is_here else self._likeness,
            word=self._network.words[host.name],
            search_envs=plan.search_envs(spec),
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
            raise SpecError(*(Problem(self._place(hosts), problem, self._hint(problem)) for problem, hosts in places.items()))

    def _hint(self, problem: str) -> str:
        """For who takes the working directory's key for the one that says how hosts get at it."""
        word = PurePath(self._spec.workdir).name
        if word not in ("ship", "shared") or not (problem.startswith("the working directory") and problem.endswith("does not exist")):
            return ""
        return f"how hosts get at it is another key: --set backend.code={word}"

    def _place(self, hosts: list[str]) -> str:
        """Where something is wrong; nowhere in particular if there is one host only."""
        if len(self.hosts) == 1:
            return ""
        return f"host {hosts[0]}" if len(hosts) == 1 else f"hosts {contract.few(hosts)}"

    def _host_facts(self, host: Host, address: str) -> HostFacts:
        facts = self.facts[host.name]
        run_dir = str(self._rundir.path) if host.sees_run_dir or facts.sees_run_dir else None
        return HostFacts(host.name, address, facts.cores, facts.ports, run_dir, facts.gpus, host.interface, facts.workdir, facts.taken)


def refuse_silence(hosts: Sequence[str], seconds: float) -> OrchError:
    """The error for agents that have started and say nothing."""
    where, log = (hosts[0], hosts[0]) if len(hosts) == 1 else (f"each of {contract.few(hosts)}", "HOST")
    return OrchError(
        f"the agent on {where} has started and has not answered for {seconds:g} s; is that machine overloaded, or its disk stuck? "
        f"what the agent complained of: agents/{log}.log in the run's directory"
    )
