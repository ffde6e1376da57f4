"""Nodes on each of which an engine, or a person, has started the same command: node 0 takes the controller, the others dial it.

What an engine tells a process is the table of model/joining.py. `meeting` is how the nodes find node 0, `guest` the program of the others.

May import: orchestrator.__version__, orchestrator.backends, orchestrator.backends.connection, orchestrator.errors, orchestrator.model,
    worker.host.network.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from worker.values.words import count_of, few

from ... import __version__
from ...errors import USAGE, OrchError, Problem, SpecError, UsageError
from ...model import joining
from ...model.policy.restarts import PREEMPTED
from ...model.settings import ClusterSpec, JoinSettings
from .. import (
    Backend,
    Cleanup,
    Diagnosis,
    Host,
    Reaching,
    Request,
    RunFacts,
    StartFailure,
    Transport,
    Workdir,
    interpreters,
    local,
    remote_worker,
)
from ..connection.listener import NAME, DialledAgent, DialledLine, Listener
from .meeting import TELL_S, Meeting, here, meet, new_ticket

REACHING = Reaching(at_once=64, tries=1)
START_S = 90.0
BACK_S = 60.0
"""How long a node that was lost has to dial again, where a restart needs it."""
ASK_S = 30.0
"""How long Slurm may take to answer."""
_MISSING = {
    "nodes": ("the number of nodes is not known here", "--nodes N"),
    "node_index": ("which of the nodes this is, is not known here", "--node-index I, from 0 on; node 0 controls the run"),
}


def inside(env: Mapping[str, str]) -> tuple[Mapping[str, Any], str]:
    """See `allocations.use_allocation`."""
    seat, _ = here()
    facts = {"nodes": seat.nodes, "node_index": seat.index, "slots": seat.slots, "job": seat.job.replace("#", "-")}
    return {key: value for key, value in facts.items() if value not in (None, "")}, ""


def _settings(spec: ClusterSpec) -> JoinSettings:
    assert isinstance(spec.backend, JoinSettings)
    return spec.backend


def _problems(settings: JoinSettings) -> list[Problem]:
    seat, _ = here()
    if seat.advice:
        return [Problem("--join", f"{seat.engine}: {seat.advice}")]
    by = f"{seat.engine} does not tell it" if seat.engine else "no engine is recognised here"
    missing = ((what, how) for key, (what, how) in _MISSING.items() if getattr(settings, key) is None)
    found = [Problem("--join", f"{what} ({by})\nfix: {how}") for what, how in missing]
    if not found and not seat.engine and (settings.node_index or 0) >= (settings.nodes or 1):
        found.append(Problem("--node-index", f"there is no node {settings.node_index} of {settings.nodes}\nfix: count from 0"))
    return found


class Join(Backend):
    """See `Backend`. One object serves one run: the nodes meet once, and dial again for each attempt."""

    def __init__(self) -> None:
        self._listener: Listener | None = None
        self._meeting: Meeting | None = None
        self._settings = JoinSettings()
        self._hosts: tuple[Host, ...] = ()

    def problems(self, spec: ClusterSpec) -> Sequence[Problem]:
        settings = _settings(spec)
        if settings.node_index:
            return (Problem("--node-index", f"node {settings.node_index} does not take the run\nfix: start orch up --join there"),)
        return _problems(settings)

    def request(self, run: RunFacts) -> Request:
        """This node, and stand-ins for the others."""
        settings, python = _settings(run.spec), interpreters.find(run.spec)
        first = Host("node-0", "", True, settings.slots, python=python, transport=interpreters.transport_here(python, run.spec))
        others = (
            Host(
                f"node-{number}",
                "",
                sees_run_dir=False,
                slots=settings.slots,
                lost_after_s=settings.lost_after_s,
                is_here=False,
                workdir=Workdir("shared"),
                transport=Transport((), brings_worker=True, limit_s=START_S),
            )
            for number in range(1, settings.nodes or 1)
        )
        return Request(run, (first, *others), reaching=REACHING)

    @asynccontextmanager
    async def allocate(self, request: Request, on_waiting: Callable[[str], None]) -> AsyncIterator[tuple[Host, ...]]:
        """All nodes, once they are here. For a further attempt they are the same, also those that were lost meanwhile."""
        if not self._hosts:
            self._settings = _settings(request.run.spec)
            listener = await self._open(os.path.dirname(os.path.dirname(request.run.directory)), on_waiting)
            self._hosts = await self._wait(listener, request, on_waiting)
        yield self._hosts

    async def _open(self, home: str, on_waiting: Callable[[str], None]) -> Listener:
        loop = asyncio.get_running_loop()

        def say(text: str) -> None:
            loop.call_soon_threadsafe(on_waiting, text)

        meeting = meet(self._settings, home, say)
        self._listener = listener = Listener(meeting.secret.encode(), self._judge, lambda: os.kill(os.getpid(), signal.SIGTERM))
        try:
            port = await listener.open(meeting.port)
            on_waiting(f"the nodes meet {meeting.words}")
            await asyncio.to_thread(meeting.publish, new_ticket(meeting, port))
        except OSError as error:
            raise OrchError(f"the nodes cannot meet {meeting.words}: {error.strerror or error}") from None
        self._meeting = meeting
        return listener

    def _judge(self, facts: Mapping[str, Any], former: DialledLine | None) -> Mapping[str, Any] | None:
        """Why a node that has dialled cannot join; None: it can. `former`: a connection of a node with this index."""
        settings, (seat, _) = self._settings, here()
        node, name = str(facts.get("node")), str(facts.get("name"))
        mine = {"version": __version__, "nodes": settings.nodes, "job": settings.job, "attempt": seat.attempt}
        words = {"version": "orch {}", "nodes": "a run of {} nodes", "job": "the job {!r}", "attempt": "the start {!r} of this job"}
        for key, own in mine.items():
            if facts.get(key) != own:
                says = words[key].format(facts.get(key)), words[key].format(own)
                return {"refused": f"this node has {says[0]}, and node 0 ({socket.gethostname()}) has {says[1]}", "code": USAGE}
        if node == "0" or (former is not None and former.facts.get("session") != facts.get("session")):
            where = socket.gethostname() if former is None else former.facts.get("name")
            return {"refused": f"the index {node} is here already, from {where}: no two nodes may have the same", "code": USAGE}
        if not (facts.get("waits") or node.isdecimal()) or not NAME.fullmatch(name):
            return {"refused": "this node has no index, or no name", "code": USAGE}
        return None

    async def _wait(self, listener: Listener, request: Request, on_waiting: Callable[[str], None]) -> tuple[Host, ...]:
        wanted, began, told_at, told = self._settings.nodes or 1, time.monotonic(), 0.0, -1

        def are_here() -> bool:
            nonlocal told_at, told
            lines, waited_s = _nodes(listener), time.monotonic() - began
            if len(lines) + 1 >= wanted:
                return True
            if waited_s > self._settings.wait_s:
                raise OrchError(f"after {self._settings.wait_s:g} s (wait_s) {_describe(lines, wanted)}")
            if len(lines) != told or waited_s > told_at + TELL_S:
                told, told_at = len(lines), waited_s
                text = _describe(lines, wanted) + (f" (after {waited_s:.0f} s)" if waited_s >= 1 else "")
                on_waiting(text)
                listener.tell_all(state=text)
            return False

        await listener.until(are_here)
        text = f"all {count_of(wanted, 'node')} are here: the run is on {socket.gethostname()}, in {request.run.directory}"
        listener.tell_all(state=text)
        lines = _nodes(listener)
        names = [socket.gethostname(), *(str(line.facts["name"]) for line in lines)]
        several = {name for name, count in Counter(names).items() if count > 1}
        unique = [f"{name}-{index}" if name in several else name for index, name in enumerate(names)]
        own = request.hosts[0]
        others = (_host(listener, request.hosts[-1], name, line) for name, line in zip(unique[1:], lines, strict=True))
        hosts = (replace(own, name=unique[0]), *others)
        unlike = sorted({host.slots or 1 for host in hosts})
        if len(unlike) > 1 and request.run.spec.size > sum(host.slots or 1 for host in hosts):
            slots = few([f"{host.name}:{host.slots or 1}" for host in hosts], 8)
            raise UsageError(f"the nodes have unlike numbers of slots ({slots})", "give the number of workers, -n N", "join")
        return hosts

    async def end(self, code: int) -> None:
        if self._listener is not None:
            await self._listener.end(over=self._settings.exit_code(code))
        if self._meeting is not None:
            self._meeting.withdraw()
        job = here()[1].get("SLURM_JOB_ID", "")
        if code == PREEMPTED and self._settings.requeue_code == "scontrol" and job:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                _requeue(job)

    def explain(self, host: Host, failure: StartFailure) -> Diagnosis:
        told = local.explain(failure) if host.is_here else remote_worker.explain(host.name, failure, by="its orch")
        return replace(told, about="join")

    def cancel(self, run: RunFacts) -> Cleanup:
        others = tuple(host.name for host in self._hosts[1:])
        return Cleanup(local.kill_tasks(run.run_id), others, "an agent ends its tasks and itself once its connection closes")


def _nodes(listener: Listener) -> list[DialledLine]:
    """The nodes that are here, in their order; without the further processes of each."""
    return sorted((line for line in listener.lines.values() if not line.facts.get("waits")), key=lambda line: int(line.node))


def _host(listener: Listener, model: Host, name: str, line: DialledLine) -> Host:
    facts, begin = line.facts, partial(DialledAgent, listener, line.node, back_s=BACK_S)
    slots = facts.get("slots") if isinstance(facts.get("slots"), int) else None
    transport = replace(model.transport, argv=("dial", name), begin=begin)
    return replace(model, name=name, slots=slots, python=str(facts.get("python")), cwd=str(facts.get("cwd")), transport=transport)


def _requeue(job: str) -> None:
    """Let Slurm start this job again, unless somebody has cancelled it. Raises OSError or TimeoutExpired.

    `scontrol requeue` takes a cancelled job, too. Slurm calls a job COMPLETING that it is ending, and says no more, for `scancel` as for
    the time limit. A job that only got a signal is RUNNING.
    """
    words = ("squeue", "-h", "-j", job, "-o", "%T %L")
    asked = subprocess.run(words, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ASK_S)
    state, _, left = asked.stdout.strip().partition(" ")
    if state != "COMPLETING" or left in ("0:00", "INVALID"):
        subprocess.run(("scontrol", "requeue", job), check=False, stdin=subprocess.DEVNULL, timeout=ASK_S)


def _describe(lines: Sequence[DialledLine], wanted: int) -> str:
    here_now = {0, *(int(line.node) for line in lines)}
    missing = [str(index) for index in range(wanted) if index not in here_now]
    named = f"; missing: index {few(missing, 8)}" if here_now <= {*range(wanted)} and not here()[0].is_rank else ""
    return f"{len(here_now)} of {count_of(wanted, 'node')} {'is' if len(here_now) == 1 else 'are'} here{named}"


def make() -> Backend:
    return Join()


def serve(spec: ClusterSpec, home: str) -> int | None:
    """Serve the run of another node, and return its exit code; None: this node takes the run. Raises `OrchError`."""
    from . import guest

    settings, (seat, _) = _settings(spec), here()
    if problems := _problems(settings):
        raise SpecError(*problems)
    for name in joining.stripped(os.environ):
        del os.environ[name]
    if settings.node_index == 0 and not seat.local_rank:
        return None
    return guest.serve(spec, settings, seat, home)


def describe(spec: ClusterSpec, home: str) -> tuple[Sequence[str], bool]:
    """What is known of this node, in lines, and whether it can join."""
    settings, (seat, _) = _settings(spec), here()
    lines = [f"engine       {seat.engine or 'none is recognised'}"]
    for label, fact, value in (
        ("nodes", "nodes", settings.nodes),
        ("this node", "index", settings.node_index),
        ("node 0", "first", settings.join_at or seat.first),
        ("slots", "slots", settings.slots),
        ("job", "job", settings.job),
        ("start", "attempt", seat.attempt),
        ("process here", "local_rank", seat.local_rank),
    ):
        given = value not in (None, "") and value != getattr(seat, fact) and not (fact == "job" and seat.job)
        source = "given" if given else seat.sources.get(fact, "")
        lines.append(f"{label:<12} {'-' if value in (None, '') else value}{f'  ({source})' if source else ''}")
    problems = [str(problem) for problem in _problems(settings)]
    try:
        lines.append(f"meeting      {meet(settings, home, print).words}")
    except UsageError as error:
        problems.append(str(error))
    if seat.requeue:
        lines.append(f"42, again    {seat.requeue}")
    lines += ["error    " + problem.replace("\n", "\n         ") for problem in problems]
    return [*lines, *(["         more: orch help join"] if problems else [])], not problems
