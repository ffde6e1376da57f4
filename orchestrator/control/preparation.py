"""From hosts to a plan: connect to each host, ship the code, get the facts, try the addresses, plan, hold the GPUs.

No task exists yet. Anything that is wrong on any host ends the run here, with one message for all hosts; but an elastic cluster goes on
without that host, if the others suffice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from worker.machine.clock import now
from worker.protocol import messages
from worker.values.fast_dataclass import dataclass
from worker.values.words import few

from ..backends import Diagnosis, Host, slots_of
from ..backends.code_sync import COPIES, WorkingDirectory, collect, describe_workdir
from ..backends.connection.agent_link import AgentLink, reach
from ..backends.connection.agent_start import NotReachedError
from ..errors import OrchError, Problem, SpecError, UsageError
from ..model import slots
from ..model.cause import version_mismatch
from ..model.planning import addresses, elastic, plan
from ..model.planning.facts_of_hosts import HostFacts
from ..model.planning.plan import Plan
from ..model.settings import ClusterSpec
from ..model.state.events import Allocated
from ..model.strategies import Strategy, named
from .agents import Agents
from .starting import RunStart

MOST_PLANS = 5
"""How often a plan is made, if each time another run takes the GPUs first."""


@dataclass(frozen=True, slots=True)
class Placed:
    """Holds the tasks of an attempt on hosts, and the code that they run."""

    spec: ClusterSpec
    """The spec with as many workers as these hosts take."""
    assignment: slots.Assignment
    hosts: Mapping[str, Host]
    code: WorkingDirectory | None
    """The files for the hosts that get a copy of the working directory."""
    workdir: messages.WorkdirState | None
    """The state of the working directory, for the hosts that share a disk."""


@dataclass(frozen=True, slots=True)
class Prepared:
    plan: Plan
    notes: tuple[str, ...]
    """Unusual facts about the hosts, which may be intended."""
    changes: tuple[str, ...]
    """What is not as the spec, or the attempt before, has it, such as fewer workers."""
    missing: tuple[Host, ...]
    """The hosts that an elastic cluster does without."""
    code: WorkingDirectory | None


class Preparation:
    """Prepares one attempt: ``prepared = await Preparation(start, agents, on_event).prepare(1, hosts)``."""

    def __init__(self, start: RunStart, agents: Agents, on_event: Callable[[Allocated | messages.HostReady], None]) -> None:
        self._start, self._run, self._agents, self._on_event = start, start.run, agents, on_event
        self._placed: Placed | None = None
        self._trying: set[str] = set()
        """The hosts that still try which others they reach."""

    async def prepare(
        self, attempt: int, hosts: Sequence[Host], broken: Mapping[str, str] | None = None, code: WorkingDirectory | None = None
    ) -> Prepared:
        """The plan of an attempt, whose GPUs are held. `broken`: hosts to do without. `code`: of the attempt before. Raises `OrchError`."""
        full, every = self._start.spec, {host.name: host for host in hosts}
        room = elastic.capacity(full, slots_of(hosts))

        def fit(without: Mapping[str, str]) -> ClusterSpec | None:
            return elastic.fit(full, sum(room[name] for name in every if name not in without)) if full.least_workers else None

        reasons = {name: why for name, why in (broken or {}).items() if name in every}
        reasons = reasons if fit(reasons) else {}
        missing: tuple[Host, ...] = ()
        changes: list[str] = []
        is_given = tuple(hosts) == self._start.request.hosts
        while True:
            there = {name: host for name, host in every.items() if name not in reasons}
            placed = self._place(attempt, fit(reasons) or full, there, code, is_given=is_given and not missing)
            code, self._placed = placed.code, placed
            failures = await self._start_agents(placed)
            verbs = {name: "used" if why.is_mistake else "reached" for name, why in failures.items()}
            unfit = {name: f"host {name} cannot be {verbs[name]}: {why.cause}" for name, why in failures.items()}
            try:
                if unfit:
                    # In a restart a file system may not be mounted again yet.
                    kind = UsageError if attempt == 1 and all(why.is_mistake for why in failures.values()) else OrchError
                    raise kind(_tell(unfit, failures), more=next((why.about for why in failures.values() if why.about), ""))
                self._refuse_problems(placed)
                found = await self._find_addresses(placed)
                break
            except OrchError as error:
                unfit = unfit or self._find_unfit(placed, error)
                if not (unfit and fit({**reasons, **unfit})):
                    raise
            missing += tuple(every[name] for name in unfit)
            reasons |= unfit
            await self._agents.let_go()
        changes += _describe_size(full, placed.spec, reasons)
        facts = [self._host_facts(host, found[host.name]) for host in placed.hosts.values()]
        planned = await self._plan_and_hold(placed, facts)
        return Prepared(planned, tuple(self._notes(placed)), tuple(changes), missing, placed.code)

    def _place(
        self, attempt: int, spec: ClusterSpec, hosts: Mapping[str, Host], code: WorkingDirectory | None, *, is_given: bool
    ) -> Placed:
        """Choose the hosts of the tasks, and look at the working directory. `code`: of the attempt before. `is_given`: by the spec."""
        try:
            assignment = {name: tasks for name, tasks in plan.place(spec, slots_of(hosts.values())).items() if tasks}
        except SpecError as error:
            if is_given:
                raise
            raise OrchError(f"the hosts that were lent do not suffice: {error}") from None
        chosen = {name: hosts[name] for name in assignment}
        until = min((host.until for host in chosen.values() if host.until is not None), default=None)
        spare_s = min((host.spare_s for host in chosen.values()), default=0.0)
        self._on_event(Allocated(attempt, tuple(chosen), now(), until, spare_s))
        try:
            return Placed(spec, assignment, chosen, *self._describe_directory(spec, chosen, code))
        except OSError as error:
            raise OrchError(f"the working directory {spec.workdir} cannot be read: {error}") from None

    def _describe_directory(
        self, spec: ClusterSpec, hosts: Mapping[str, Host], code: WorkingDirectory | None
    ) -> tuple[WorkingDirectory | None, messages.WorkdirState | None]:
        """The files to copy, which are those of the attempt before if there was one, and the state to compare."""
        ways = {host.workdir.way: host.workdir for host in hosts.values()}
        if "ship" in ways and code is None:
            way, runs, copies = ways["ship"], self._run.path.parent, self._run.path / COPIES
            code = collect(spec.workdir, way.limit_mb, runs=runs, needed=spec.program.file, secrets=way.secrets, copies=copies)
        return code, describe_workdir(spec.workdir, spec.program) if "shared" in ways else None

    async def _start_agents(self, placed: Placed) -> dict[str, Diagnosis]:
        """Start all agents and get their facts. Returns why hosts cannot be used, by name."""
        gate = asyncio.Semaphore(self._start.request.reaching.at_once)
        links = [self._agents.connect(host) for host in placed.hosts.values()]
        ends = await asyncio.gather(*(self._start_agent(link, placed, gate) for link in links), return_exceptions=True)
        for end in ends:
            if isinstance(end, BaseException) and not isinstance(end, NotReachedError):
                raise end
        return {name: end.diagnosis for name, end in zip(placed.hosts, ends, strict=True) if isinstance(end, NotReachedError)}

    async def _start_agent(self, link: AgentLink, placed: Placed, gate: asyncio.Semaphore) -> None:
        """Connect to a host, send the code if the host gets a copy, and get the facts."""
        reaching = self._start.request.reaching
        await reach(link, link.host.transport, self._start.backend.explain, reaching, gate)
        link.keep_alive()
        if placed.code is not None and link.host.workdir.way == "ship":
            await placed.code.send(link)
        try:
            facts = await asyncio.wait_for(link.request(self._hello(link, placed), messages.HostReady), reaching.answer_s)
        except asyncio.TimeoutError:
            where = f"messages of the agent: agents/{link.host.name}.log in the run's directory"
            remedy = f"is that machine overloaded, or its disk stuck? {where}"
            what = f"its agent has started and has not answered for {reaching.answer_s:g} s"
            raise NotReachedError(Diagnosis(what, remedy)) from None
        wanted, there = placed.spec.call.partition(":")[0], facts.python_version
        if wanted and not there.startswith(f"{wanted}."):
            why = f"the function is code of Python {wanted}, and {facts.python} is Python {there}; choose another Python with python="
            facts = replace(facts, problems=(*facts.problems, why))
        self._agents.facts[link.host.name] = facts
        self._on_event(facts)

    def _hello(self, link: AgentLink, placed: Placed) -> messages.Hello:
        spec, host, tasks = placed.spec, link.host, placed.assignment[link.host.name]
        preload, strategy = spec.imported_ahead, named(spec.strategy)
        template = messages.TemplateOrder(preload, slots.count_computing(tasks), spec.env, spec.preload is not None, link.note)
        return messages.Hello(
            run_id=self._run.run_id,
            ports=slots.ports_needed(tasks, strategy) + (bool(spec.tensorboard) and host.name == slots.first_host(placed.assignment)),
            port_range=spec.ports,
            programs=plan.programs(spec),
            cwd=host.cwd or spec.workdir,
            shared_dir=str(self._run.path) if host.sees_run_dir else None,
            run_dir=str(self._run.path),
            template=template if preload else None,
            term_grace_s=spec.timeouts.grace_s,
            lost_after_s=host.lost_after_s,
            compare=placed.workdir if host.workdir.way == "shared" else None,
            word=self._word(host.name) if len(placed.hosts) > 1 else "",
            search_envs=plan.search_envs(spec),
            has_servers=spec.counts.get("ps", 0) > 0,
            has_replicas=_has_replicas(spec, strategy),
            saves=spec.checkpoints.fit,
            saves_to="" if "://" in spec.checkpoints.dir else spec.checkpoints.dir,
            private_network=spec.network == "private",
            escapes=host.transport.forwards_lines,
            secret=link.secret,
        )

    def _word(self, host: str) -> str:
        """The text that the agent of a host sends to the other hosts when they try to reach it. No other agent anywhere sends this text."""
        return f"{self._run.run_id} {host}"

    # --- what the hosts have found -------------------------------------------------------------

    def _refuse_problems(self, placed: Placed) -> None:
        """Raise one error for everything that is wrong on any host."""
        found = self._agents.facts
        troubles = [f"host {host}: {found[host].trouble}" for host in placed.hosts if found[host].trouble]
        if troubles:
            raise OrchError("\n".join(troubles))
        if problems := self._places(placed, lambda facts: facts.problems):
            raise SpecError(*(Problem(place, problem) for problem, place in problems.items()))

    def _find_unfit(self, placed: Placed, error: OrchError) -> dict[str, str]:
        """The hosts because of which the error was raised, each with a sentence; empty if it is about no host."""
        if isinstance(error, addresses.UnconnectedError):
            lines = str(error).splitlines()
            of_host = {name: next((line for line in lines if name in line), lines[0]) for name in error.worst()}
            return {name: f"host {name} cannot be used: {line}" for name, line in of_host.items()}
        facts = self._agents.facts
        whys = {name: "; ".join(filter(None, (facts[name].trouble, *facts[name].problems))).partition("\n")[0] for name in placed.hosts}
        return {name: f"host {name} cannot be used: {why}" for name, why in whys.items() if why}

    def _notes(self, placed: Placed) -> list[str]:
        """Unusual facts about the hosts, which may be intended."""
        odd = [": ".join(filter(None, (place, note))) for note, place in self._places(placed, lambda facts: facts.notes).items()]
        odd += filter(None, [addresses.describe_partners(len(placed.hosts))])
        odd += placed.code.describe("are copied to the hosts", "a variable (--env NAME)") if placed.code is not None else ()
        return [*odd, *version_mismatch.compare({name: self._agents.facts[name] for name in placed.hosts})]

    def _places(self, placed: Placed, texts: Callable[[messages.HostReady], Sequence[str]]) -> dict[str, str]:
        """Each of these texts of the hosts' facts, with the hosts in words; no words if the run has one host only."""
        hosts: dict[str, list[str]] = {}
        for name in placed.hosts:
            for text in texts(self._agents.facts[name]):
                hosts.setdefault(text, []).append(name)
        if len(placed.hosts) == 1:
            return dict.fromkeys(hosts, "")
        return {text: f"host {names[0]}" if len(names) == 1 else f"hosts {few(names)}" for text, names in hosts.items()}

    def _host_facts(self, host: Host, address: str) -> HostFacts:
        facts = self._agents.facts[host.name]
        return HostFacts(
            host.name,
            address,
            facts.cores,
            facts.ports,
            run_dir=str(self._run.path) if host.sees_run_dir or facts.sees_run_dir else None,
            gpus=facts.gpus,
            interface=host.interface,
            workdir=facts.workdir or host.cwd or None,
            taken=facts.taken,
            is_here=host.is_here,
        )

    def describe_awaited(self) -> str:
        """Return which hosts are waited for, and why; empty if none is known."""
        if (placed := self._placed) is None or all(host.is_here for host in placed.hosts.values()):
            return ""
        count = len(placed.hosts)
        if late := [name for name in placed.hosts if name not in self._agents.facts]:
            what = "to connect" if placed.code is None else "to connect and to receive the code"
            return f"waiting for {few(late)} {what} ({count - len(late)} of {count} hosts are ready)"
        late = [name for name in placed.hosts if name in self._trying]
        return f"waiting for {few(late)}: the hosts try each other's addresses ({count - len(late)} of {count} have tried)" if late else ""

    # --- addresses -----------------------------------------------------------------------------

    async def _find_addresses(self, placed: Placed) -> dict[str, str]:
        """The address of each host that all others have reached, at each port of the host. Raises `OrchError`."""
        hosts, facts = placed.hosts, self._agents.facts
        if len(hosts) == 1:
            return {name: host.address or "127.0.0.1" for name, host in hosts.items()}
        known = {name: addresses.candidates(name, facts[name], host.address, host.interface) for name, host in hosts.items()}
        chosen = addresses.choose(known, await self._try_all(known, slice(1)), facts)
        if any(len(one.ports) > 1 for one in facts.values()):
            # A firewall may let some ports through only. The other addresses of the hosts need no second try.
            known = {name: (address,) for name, address in chosen.items()}
            addresses.choose(known, await self._try_all(known, slice(1, None)), facts)
        return chosen

    async def _try_all(self, known: Mapping[str, tuple[str, ...]], ports: slice) -> addresses.Refusals:
        """Have every host try to reach its partners at these addresses and at these of their ports; what was not reached."""
        refusals: dict[tuple[str, str, int], dict[str, str]] = {}
        partners, facts = addresses.partners(list(known), self._run.run_id), self._agents.facts

        async def try_from(name: str) -> None:
            # A task reaches its neighbour on the same host by the same address.
            others = [*partners[name], *([name] if len(facts[name].ports) > 1 else [])]
            targets = tuple(messages.Target(other, facts[other].ports[ports], self._word(other), known[other]) for other in others)
            for refused in (await self._agents.links[name].request(messages.Try(targets), messages.Tried)).refused:
                if refused.host in known:
                    refusals.setdefault((name, refused.host, refused.port), {})[refused.address] = refused.refusal
            self._trying.discard(name)

        self._trying = set(known)
        await asyncio.gather(*map(try_from, known))
        return refusals

    # --- GPUs ----------------------------------------------------------------------------------

    async def _plan_and_hold(self, placed: Placed, hosts: list[HostFacts]) -> Plan:
        """The plan, whose GPUs are held for this run. If another run was faster, a new plan is made without its GPUs."""
        holding: set[str] = set()
        for _ in range(MOST_PLANS):
            planned = plan.make(self._run.run_id, placed.spec, placed.assignment, hosts)
            in_the_way = await self._hold_gpus(planned, holding)
            if not in_the_way:
                return planned
            hosts = [replace(host, taken=in_the_way.get(host.name, host.taken)) for host in hosts]
        raise OrchError(f"other runs have taken this one's GPUs {MOST_PLANS} times while it was about to start; start it again")

    async def _hold_gpus(self, planned: Plan, holding: set[str]) -> dict[str, tuple[messages.GpuHolder, ...]]:
        """Hold the GPUs of the plan alone. Returns, by host, those that faster runs hold; empty: all are held."""
        links = self._agents.links
        for name in holding.difference(planned.claims):
            await links[name].request(messages.TakeGpus(), messages.GpusTaken)
        # One host after the other, in an order that all runs share: of two runs that want all hosts, one wins the first host, and so all.
        for name, claim in sorted(planned.claims.items(), key=lambda item: min((*item[1].alone, *item[1].shared))):
            holding.add(name)
            holders = (await links[name].request(claim, messages.GpusTaken)).holders
            if holders:
                return {name: holders}
        return {}


def _tell(unfit: Mapping[str, str], failures: Mapping[str, Diagnosis]) -> str:
    """Return the lines about hosts that cannot be used: above each remedy the hosts that need it."""
    by_remedy: dict[str, list[str]] = {}
    for name, why in failures.items():
        by_remedy.setdefault(why.remedy, []).append(unfit[name])
    return "\n".join(line for remedy, lines in by_remedy.items() for line in (*lines, *([f"fix: {remedy}"] if remedy else [])))


def _has_replicas(spec: ClusterSpec, strategy: Strategy) -> bool:
    in_step = sum(count for kind, count in spec.counts.items() if strategy.role(kind).synchronous)
    return spec.keras.mode != "off" and strategy.mends_fit and (strategy.one_process or in_step > 1)


def _describe_size(full: ClusterSpec, spec: ClusterSpec, reasons: Mapping[str, str]) -> list[str]:
    """A line about an elastic cluster that has fewer workers than it could have."""
    most, count = full.counts.get("worker", 0), spec.counts.get("worker", 0)
    if count == most:
        return []
    why = "; ".join(reasons.values())
    return [f"elastic: {count} of {most} workers{f': {why}' if why else ''}"]
