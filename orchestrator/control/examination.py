"""`orch doctor`: a start that stops after the facts, with one more order, `Examine`. Nothing is left on any host."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from worker.machine.clock import patience
from worker.protocol.messages import Examine, Hello, HostReady, ProgramEnded
from worker.values.codec import from_json

from ..backends import Backend, Host, Request, interpreters, load_checked
from ..backends.connection.agent_link import AgentLink, LostError, reach
from ..backends.connection.agent_start import NotReachedError
from ..checks.facts import HostReport, Machine, Python, TensorFlow
from ..errors import OrchError
from ..model.cause.exit_status import describe_answer
from . import event_loop

ALLOCATION_S = patience(300.0)
"""How long the hosts are waited for."""
MACHINE_S, SLACK_S = 80.0, 30.0
"""The time of a host for everything but the import. The limits on the host are shorter (worker/host/examination_programs.py)."""
MOST_FRAMES = 12
T = TypeVar("T")


def examine(
    request: Request, order: Examine, run_dir: str, on_begin: Callable[[], None], on_waiting: Callable[[str], None]
) -> list[HostReport]:
    """Examine all hosts of a request at the same time; the reports are in its order. A place that lends hosts lends them for this.

    `order`: the fields that are the same for all hosts. `run_dir`: where this machine keeps runs. `on_begin`: called when from then on a
    Ctrl-C ends all agents in order. `on_waiting`: as in `Backend.allocate`. Raises `UsageError`, and `OrchError` if there are no hosts.
    """
    return event_loop.run(lambda: _examine_all(request, order, run_dir, on_begin, on_waiting))


async def _examine_all(
    request: Request, order: Examine, run_dir: str, on_begin: Callable[[], None], on_waiting: Callable[[str], None]
) -> list[HostReport]:
    backend = load_checked(request.run.spec)
    on_begin()
    if backend.engine(request.run.spec) is not None:  # what an engine lends is examined inside of its allocation
        return await _examine_hosts(request, backend, request.hosts, order, run_dir)
    async with AsyncExitStack() as stack:
        try:
            lent = await asyncio.wait_for(stack.enter_async_context(backend.allocate(request, on_waiting)), ALLOCATION_S)
        except asyncio.TimeoutError:
            raise OrchError(f"there are no hosts after {ALLOCATION_S:g} s; see what they wait for above") from None
        return await _examine_hosts(request, backend, lent, order, run_dir)


async def _examine_hosts(request: Request, backend: Backend, hosts: Sequence[Host], order: Examine, run_dir: str) -> list[HostReport]:
    gate = asyncio.Semaphore(request.reaching.at_once)
    with tempfile.TemporaryDirectory(prefix="orch-doctor-") as logs:
        orders = [replace(order, run_dir=run_dir if host.is_here else "") for host in hosts]
        examinations = [
            asyncio.create_task(_examine_host(request, backend, host, Path(logs, str(number)), orders[number], gate))
            for number, host in enumerate(hosts)
        ]
        # With `return_exceptions`, also a Ctrl-C waits until each has let its agent go.
        await asyncio.gather(*examinations, return_exceptions=True)
    return [examination.result() for examination in examinations]


async def _examine_host(request: Request, backend: Backend, host: Host, log: Path, order: Examine, gate: asyncio.Semaphore) -> HostReport:
    """The facts until the end, the loss of the host, or the end of its time. A host that cannot be reached has none."""
    report = HostReport(host.name, host.python, is_here=host.is_here)
    # On this machine orch's own interpreter runs the agent: the machine is examined even if the interpreter of the tasks is broken.
    transport = interpreters.transport_here(sys.executable) if host.is_here else host.transport
    # On another machine the agent runs in the tasks' own interpreter.
    program = report.program if host.is_here else ""
    limit_s = MACHINE_S + order.import_s + SLACK_S
    link = AgentLink(host, log, lambda *_: None, lambda _: None)
    facts: dict[str, Any] = {}
    try:
        await reach(link, transport, backend.explain, request.reaching, gate)
        await asyncio.wait_for(_request_all(link, order, program, facts), limit_s)
    except NotReachedError as error:
        facts.update(unreached=error.diagnosis.cause, unreached_remedy=error.diagnosis.remedy)
    except LostError as error:
        facts.update(unreached=error.reason, unreached_remedy="ask again; if it happens again, look at the network")
    except asyncio.TimeoutError:
        remedy = "look at its load and its disks, or ask for more with --import-timeout"
        facts.update(unreached=f"it has not sent all facts within {limit_s:g} s", unreached_remedy=remedy)
    finally:
        await link.close()
    return replace(report, **facts)


async def _request_all(link: AgentLink, order: Examine, program: str, facts: dict[str, Any]) -> None:
    """Add to `facts`, the fields of a `HostReport`, one answer after the other."""
    link.keep_alive()
    asked_at = time.monotonic()
    await link.request(Hello("doctor", lost_after_s=link.host.lost_after_s), HostReady)
    facts["clock_ahead_s"] = surely_ahead(link.clock.ahead_s, time.monotonic() - asked_at)
    facts |= _machine_facts(await link.request(replace(order, what="machine"), ProgramEnded))
    facts |= _python_facts(await link.request(replace(order, what="python", program=program), ProgramEnded), order.import_s)


def surely_ahead(ahead_s: float, took_s: float) -> float:
    """Return how far a clock is ahead at least: it seems to be `ahead_s` ahead, by an answer that may have taken `took_s` seconds."""
    return ahead_s if ahead_s > 0 else min(0.0, ahead_s + took_s)


# --- the output of the programs -----------------------------------------------------------------


def _machine_facts(ended: ProgramEnded) -> dict[str, Any]:
    machine = _decode(Machine, ended.out)
    return {"machine": machine, "machine_problem": "" if machine is not None else _describe(ended)}


def _python_facts(ended: ProgramEnded, import_s: float) -> dict[str, Any]:
    first, _, second = ended.out.partition("\n")
    python, tensorflow = _decode(Python, first), _decode(TensorFlow, second)
    if python is None:
        is_started = ended.code is not None or ended.out or ended.err
        return {"python_problem": _describe(ended) + ("; it does not answer as a Python does" if is_started else "")}
    complaints = [line for line in ended.err.splitlines() if line[:1] in ("W", "E") or ": W " in line[:40] or ": E " in line[:40]]
    facts = {"python": python, "tensorflow": tensorflow, "complaints": tuple(complaints[:20])}
    if tensorflow is not None:
        return facts
    stack = _stack(ended.err)
    problem = [f"it has not ended after {import_s:g} s; it was here", *stack] if stack else [_describe(ended)]
    return {**facts, "import_problem": "\n".join(problem)}


def _describe(ended: ProgramEnded) -> str:
    return describe_answer(ended.err, ended.code, ended.reason)


def _stack(text: str) -> tuple[str, ...]:
    """The frames that `faulthandler` has written at the end of the time, the innermost first."""
    _, mark, dump = text.rpartition("Timeout (")
    frames = [line for line in dump.splitlines() if line.startswith("  File ") and "<frozen " not in line]
    return tuple(frames[:MOST_FRAMES]) if mark else ()


def _decode(kind: type[T], text: str) -> T | None:
    try:
        return from_json(kind, json.loads(text))
    except (ValueError, RecursionError):
        return None
