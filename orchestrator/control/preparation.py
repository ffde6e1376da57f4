"""From hosts to a plan, in a straight line: connect to each host, ship the code, get the facts, try the addresses, plan, hold the GPUs.

No task exists yet. Anything that is wrong on any host ends the run here, with one message for all hosts; but an elastic cluster goes on
without that host, if the others suffice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from worker.machine.clock import now
from worker.protocol import messages
from worker.values.words import few

from ..backends import Backend, Diagnosis, Host, Request, slots_of
from ..backends.code_sync import WorkingDirectory, collect, describe_workdir
from ..backends.connection.agent_link import AgentLink, OnFrame, OnLost, reach
from ..backends.connection.agent_process import StartedAgent
from ..backends.connection.agent_start import NotReachedError
from ..errors import OrchError, Problem, SpecError, UsageError
from ..model import slots
from ..model.cause import version_mismatch
from ..model.planning import addresses, elastic, plan
from ..model.planning.facts_of_hosts import HostFacts
from ..model.planning.plan import Plan
from ..model.state.events import Allocated
from ..model.strategies import Strategy, named
from ..record.run_directory import RunDir

MOST_PLANS = 5
"""How often a plan is made, if each time another run takes the GPUs first."""


class Preparation:
    """Prepares one run: ``plan = await preparation.make_plan(hosts)``. Its links and facts are in use until the run is over."""

    def __init__(
        self,
        backend: Backend,
        request: Request,
        rundir: RunDir,
        on_frame: OnFrame,
        on_lost: OnLost,
        on_event: Callable[[Allocated | messages.HostReady], None],
        started: StartedAgent | None = None,
    ) -> None:
        """`started`: the agent of the only host, if it was started already."""
        self._spec, self._backend, self._reaching, self._rundir = request.run.spec, backend, request.reaching, rundir
        self._full = self._spec
        """The spec with all workers of an elastic cluster."""
        self.missing: dict[str, Host] = {}
        """The hosts that an elastic cluster does without."""
        self.reasons: dict[str, str] = {}
        """Why, by name, in a sentence."""
        self._broken: frozenset[str] = frozenset()
        """The hosts on which no task is started any more."""
        self._expected = request.hosts
        self._on_frame, self._on_lost, self._on_event, self._started = on_frame, on_lost, on_event, started
        self._assignment: slots.Assignment = {}
        self.hosts: dict[str, Host] = {}
        """The hosts that get tasks."""
        self.links: dict[str, AgentLink] = {}
        """The connections to the agents."""
        self.facts: dict[str, messages.HostReady] = {}
        """The answers to `Hello`."""
        self._trying: set[str] = set()
        """The hosts that still try which others they reach."""
        self._holding: set[str] = set()
        """The hosts that have held GPUs for this run."""
        self._code: WorkingDirectory | None = None
        self._edited = ""
        """What has changed in the working directory since it was copied to the hosts."""
        """The files for the hosts that get a copy of the working directory."""
        self._workdir: messages.WorkdirState | None = None
        """The state of the working directory, for the hosts that share a disk."""

    async def make_plan(self, attempt: int, hosts: Sequence[Host], broken: Mapping[str, str] | None = None) -> Plan:
        """The plan of an attempt on these hosts, whose GPUs are held for this run. Raises `OrchError`.

        `broken`: the hosts that an elastic cluster does without if it can, each with the reason.
        """
        every = {host.name: host for host in hosts}
        room = elastic.capacity(self._full, slots_of(hosts))
        broken = {name: why for name, why in (broken or {}).items() if name in every}
        if self._full.least_workers and broken and elastic.fit(self._full, sum(room[name] for name in every if name not in broken)):
            self.reasons |= broken
            self._broken = frozenset(broken)
        while True:
            there = {name: host for name, host in every.items() if name not in self.missing and name not in self._broken}
            self._spec = elastic.fit(self._full, sum(room[name] for name in there)) or self._full
            failures = await self._reach(attempt, there, is_expected=tuple(hosts) == self._expected)
            unfit = {name: f"host {name} cannot be {'used' if why.is_mistake else 'reached'}: {why.text}" for name, why in failures.items()}
            try:
                if unfit:
                    # In a restart a file system may not be mounted again yet.
                    kind = UsageError if attempt == 1 and all(why.is_mistake for why in failures.values()) else OrchError
                    raise kind("\n".join(unfit.values()))
                self._refuse_problems()
                found = await self._find_addresses()
                break
            except OrchError as error:
                unfit = unfit or self._find_unfit(error)
                left = sum(room[name] for name in there if name not in unfit)
                if not (unfit and self._full.least_workers and elastic.fit(self._full, left)):
                    raise
            self.missing |= {name: every[name] for name in unfit}
            self.reasons |= unfit
            await asyncio.gather(*(link.close() if name in self.facts else link.kill() for name, link in self.links.items()))
            self.links.clear()
            self.facts.clear()
        return await self._plan_and_hold([self._host_facts(host, found[host.name]) for host in self.hosts.values()])

    async def _reach(self, attempt: int, hosts: Mapping[str, Host], *, is_expected: bool) -> dict[str, Diagnosis]:
        """Place the tasks on these hosts, and start the agents. Returns why hosts cannot be used, by name."""
        try:
            self._place(hosts)
        except SpecError as error:
            if is_expected and not self.missing:
                raise
            raise OrchError(f"the hosts that were lent do not suffice: {error}") from None
        until = min((host.until for host in self.hosts.values() if host.until is not None), default=None)
        spare_s = min((host.spare_s for host in self.hosts.values()), default=0.0)
        self._on_event(Allocated(attempt, tuple(self.hosts), now(), until, spare_s))
        try:
            self._describe_directory()
        except OSError as error:
            raise OrchError(f"the working directory {self._spec.workdir} cannot be read: {error}") from None
        return await self._start_agents()

    def describe_size(self) -> list[str]:
        """A line about an elastic cluster that has fewer workers than it could have."""
        most, count = self._full.counts.get("worker", 0), self._spec.counts.get("worker", 0)
        if count == most:
            return []
        why = "; ".join(self.reasons.values())
        return [f"elastic: {count} of {most} workers{f': {why}' if why else ''}"]

    async def is_back(self, host: Host) -> bool:
        """True if an agent can be started on a host that could not be reached. It is ended at once."""
        link = AgentLink(host, self._rundir.agent_log(host.name), lambda *_: None, lambda _: None)
        try:
            await reach(link, host.transport, self._backend.explain, replace(self._reaching, tries=1), asyncio.Semaphore(1))
        except NotReachedError:
            return False
        finally:
            await link.kill()
        return True

    def _place(self, every: Mapping[str, Host]) -> None:
        """Choose the hosts of the tasks."""
        self._assignment = {name: tasks for name, tasks in plan.place(self._spec, slots_of(every.values())).items() if tasks}
        self.hosts = {name: every[name] for name in self._assignment}
        for name, host in self.hosts.items():
            self.links[name] = AgentLink(host, self._rundir.agent_log(name), self._on_frame, self._on_lost, self._started)
            self._started = None

    def _describe_directory(self) -> None:
        spec = self._spec
        ways = {host.workdir.way: host.workdir for host in self.hosts.values()}
        # Each attempt runs the code of the first one, unless that is gone: a new host could not get it.
        edited = self._code.edited() if "ship" in ways and self._code is not None else []
        if edited:
            self._edited = (
                f"{few(edited)} {'was' if len(edited) == 1 else 'were'} edited since the run began: all tasks run the edited files"
            )
        if "ship" in ways and (self._code is None or edited):
            is_file = spec.program.kind == "script" or (spec.program.kind == "command" and "/" in spec.program.target)
            needed = spec.program.target if is_file else ""
            way = ways["ship"]
            self._code = collect(spec.workdir, way.limit_mb, runs=self._rundir.path.parent, needed=needed, secrets=way.secrets)
        if "shared" in ways:
            self._workdir = describe_workdir(spec.workdir, spec.program)

    async def _start_agents(self) -> dict[str, Diagnosis]:
        """Start all agents and get their facts. Returns why hosts cannot be used, by name."""
        gate = asyncio.Semaphore(self._reaching.at_once)
        ends = await asyncio.gather(*(self._start_agent(link, gate) for link in self.links.values()), return_exceptions=True)
        for end in ends:
            if isinstance(end, BaseException) and not isinstance(end, NotReachedError):
                raise end
        return {name: end.diagnosis for name, end in zip(self.links, ends, strict=True) if isinstance(end, NotReachedError)}

    async def _start_agent(self, link: AgentLink, gate: asyncio.Semaphore) -> None:
        """Connect to a host, send the code if the host gets a copy, and get the facts."""
        await reach(link, link.host.transport, self._backend.explain, self._reaching, gate)
        link.keep_alive()
        if self._code is not None and link.host.workdir.way == "ship":
            await self._code.send(link)
        try:
            facts = await asyncio.wait_for(link.request(self._hello(link.host), messages.HostReady), self._reaching.answer_s)
        except asyncio.TimeoutError:
            where = f"messages of the agent: agents/{link.host.name}.log in the run's directory"
            remedy = f"is that machine overloaded, or its disk stuck? {where}"
            what = f"its agent has started and has not answered for {self._reaching.answer_s:g} s"
            raise NotReachedError(Diagnosis(what, remedy)) from None
        self.facts[link.host.name] = facts
        self._on_event(facts)

    def _hello(self, host: Host) -> messages.Hello:
        spec, tasks = self._spec, self._assignment[host.name]
        preload, strategy = spec.imported_ahead, named(spec.strategy)
        template = messages.TemplateOrder(
            preload, slots.count_computing(tasks), spec.env, spec.preload is not None, self.links[host.name].note
        )
        return messages.Hello(
            run_id=self._rundir.run_id,
            ports=slots.ports_needed(tasks, strategy) + (bool(spec.tensorboard) and host.name == slots.first_host(self._assignment)),
            port_range=spec.ports,
            programs=plan.programs(spec),
            cwd=spec.workdir,
            shared_dir=str(self._rundir.path) if host.sees_run_dir else None,
            run_dir=str(self._rundir.path),
            template=template if preload else None,
            term_grace_s=spec.timeouts.grace_s,
            lost_after_s=host.lost_after_s,
            compare=self._workdir if host.workdir.way == "shared" else None,
            word=self._word(host.name) if len(self.hosts) > 1 else "",
            search_envs=plan.search_envs(spec),
            no_fit_under=strategy.no_fit_under,
            replicas_under=self._replicas_under(strategy),
            saves=spec.checkpoints.fit,
            log_limit=spec.log_limit,
            private_network=spec.network == "private",
            escapes=host.transport.forwards_lines,
            secret=self.links[host.name].secret,
        )

    def _replicas_under(self, strategy: Strategy) -> str:
        in_step = sum(count for kind, count in self._spec.counts.items() if strategy.role(kind).synchronous)
        may_have_replicas = strategy.one_process or in_step > 1
        return strategy.replicas_under if may_have_replicas and self._spec.keras.mode != "off" else ""

    def _word(self, host: str) -> str:
        """The text that the agent of a host sends to the other hosts when they try to reach it. No other agent anywhere sends this text."""
        return f"{self._rundir.run_id} {host}"

    # --- what the hosts have found -------------------------------------------------------------

    def _refuse_problems(self) -> None:
        """Raise one error for everything that is wrong on any host."""
        troubles = [f"host {host}: {self.facts[host].trouble}" for host in self.hosts if self.facts[host].trouble]
        if troubles:
            raise OrchError("\n".join(troubles))
        if problems := self._places(lambda facts: facts.problems):
            raise SpecError(*(Problem(place, problem) for problem, place in problems.items()))

    def _find_unfit(self, error: OrchError) -> dict[str, str]:
        """The hosts because of which the error was raised, each with a sentence; empty if it is about no host."""
        if isinstance(error, addresses.UnconnectedError):
            lines = str(error).splitlines()
            of_host = {name: next((line for line in lines if name in line), lines[0]) for name in error.worst()}
            return {name: f"host {name} cannot be used: {line}" for name, line in of_host.items()}
        whys = {name: "; ".join(filter(None, (self.facts[name].trouble, *self.facts[name].problems))) for name in self.hosts}
        return {name: f"host {name} cannot be used: {why}" for name, why in whys.items() if why}

    def notes(self) -> list[str]:
        """Unusual facts about the hosts, which may be intended."""
        odd = [": ".join(filter(None, (place, note))) for note, place in self._places(lambda facts: facts.notes).items()]
        odd += filter(None, [addresses.describe_partners(len(self.hosts))])
        odd += [self._edited] if self._edited else []
        odd += self._code.describe("are copied to the hosts", "a variable (--env NAME)") if self._code is not None else ()
        return [*odd, *version_mismatch.compare({name: self.facts[name] for name in self.hosts})]

    def _places(self, texts: Callable[[messages.HostReady], Sequence[str]]) -> dict[str, str]:
        """Each of these texts of the hosts' facts, with the hosts in words; no words if the run has one host only."""
        hosts: dict[str, list[str]] = {}
        for name in self.hosts:
            for text in texts(self.facts[name]):
                hosts.setdefault(text, []).append(name)
        if len(self.hosts) == 1:
            return dict.fromkeys(hosts, "")
        return {text: f"host {names[0]}" if len(names) == 1 else f"hosts {few(names)}" for text, names in hosts.items()}

    def _host_facts(self, host: Host, address: str) -> HostFacts:
        facts = self.facts[host.name]
        return HostFacts(
            host.name,
            address,
            facts.cores,
            facts.ports,
            run_dir=str(self._rundir.path) if host.sees_run_dir or facts.sees_run_dir else None,
            gpus=facts.gpus,
            interface=host.interface,
            workdir=facts.workdir,
            taken=facts.taken,
            is_here=host.is_here,
        )

    def describe_awaited(self) -> str:
        """Return which hosts are waited for, and why; empty if none is known."""
        if all(host.is_here for host in self.hosts.values()):
            return ""
        late = [name for name in self.hosts if name not in self.facts]
        if late:
            what = "to connect" if self._code is None else "to connect and to receive the code"
            return f"waiting for {few(late)} {what} ({len(self.facts)} of {len(self.hosts)} hosts are ready)"
        late = [name for name in self.hosts if name in self._trying]
        done = f"{len(self.hosts) - len(late)} of {len(self.hosts)} have tried"
        return f"waiting for {few(late)}: the hosts try each other's addresses ({done})" if late else ""

    # --- addresses -----------------------------------------------------------------------------

    async def _find_addresses(self) -> dict[str, str]:
        """The address of each host that all others have reached, at each port of the host. Raises `OrchError`."""
        if len(self.hosts) == 1:
            return {name: host.address or "127.0.0.1" for name, host in self.hosts.items()}
        known = {name: addresses.candidates(name, self.facts[name], host.address, host.interface) for name, host in self.hosts.items()}
        chosen = addresses.choose(known, await self._try_all(known, slice(1)), self.facts)
        if any(len(facts.ports) > 1 for facts in self.facts.values()):
            # A firewall may let some ports through only. The other addresses of the hosts need no second try.
            known = {name: (address,) for name, address in chosen.items()}
            addresses.choose(known, await self._try_all(known, slice(1, None)), self.facts)
        return chosen

    async def _try_all(self, known: Mapping[str, tuple[str, ...]], ports: slice) -> addresses.Refusals:
        """Have every host try to reach its partners at these addresses and at these of their ports; what was not reached."""
        refusals: dict[tuple[str, str, int], dict[str, str]] = {}
        partners = addresses.partners(list(self.hosts), self._rundir.run_id)

        async def try_from(name: str) -> None:
            # A task reaches its neighbour on the same host by the same address.
            others = [*partners[name], *([name] if len(self.facts[name].ports) > 1 else [])]
            targets = tuple(messages.Target(other, self.facts[other].ports[ports], self._word(other), known[other]) for other in others)
            for refused in (await self.links[name].request(messages.Try(targets), messages.Tried)).refused:
                if refused.host in known:
                    refusals.setdefault((name, refused.host, refused.port), {})[refused.address] = refused.refusal
            self._trying.discard(name)

        self._trying = set(self.hosts)
        await asyncio.gather(*map(try_from, self.hosts))
        return refusals

    # --- GPUs ----------------------------------------------------------------------------------

    async def _plan_and_hold(self, hosts: list[HostFacts]) -> Plan:
        """The plan, whose GPUs are held for this run. If another run was faster, a new plan is made without its GPUs."""
        for _ in range(MOST_PLANS):
            planned = plan.make(self._rundir.run_id, self._spec, self._assignment, hosts)
            in_the_way = await self._hold_gpus(planned)
            if not in_the_way:
                return planned
            hosts = [replace(host, taken=in_the_way.get(host.name, host.taken)) for host in hosts]
        raise OrchError(f"other runs have taken this one's GPUs {MOST_PLANS} times while it was about to start; start it again")

    async def _hold_gpus(self, planned: Plan) -> dict[str, tuple[messages.GpuHolder, ...]]:
        """Hold the GPUs of the plan, and release all others.

        Returns, by host, the GPUs that other runs hold where they were faster; empty: all GPUs of the plan are held.
        """
        for name in self._holding.difference(planned.claims):
            await self.links[name].request(messages.TakeGpus(), messages.GpusTaken)
        # One host after the other, in an order that all runs share: of two runs that want all hosts, one wins the first host, and so all.
        for name, claim in sorted(planned.claims.items(), key=lambda item: min((*item[1].alone, *item[1].shared))):
            self._holding.add(name)
            holders = (await self.links[name].request(claim, messages.GpusTaken)).holders
            if holders:
                return {name: holders}
        return {}
