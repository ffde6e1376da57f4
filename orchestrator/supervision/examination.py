"""`orch doctor`: a start that stops after the facts, with one more order, `Examine`. Nothing is left on any host."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from worker.protocol.codec import ContractError, from_json
from worker.protocol.messages import Examine, Hello, ProgramEnded

from ..backends import Backend, Host, Transport, interpreters, load_checked
from ..backends.connection.agent_link import AgentLink, LostError, NotReachedError
from ..backends.connection.reach import AT_ONCE, reach
from ..insight.doctor.facts import HostReport, Machine, Python, TensorFlow
from ..model.cause.exit_status import describe_answer
from ..model.spec import ClusterSpec

MACHINE_S, SLACK_S = 80.0, 30.0
"""The time of a host for everything but the import. The limits on the host are shorter (worker/host/examination_programs.py)."""
MOST_FRAMES = 12
"""Lines of a stack that are kept."""
T = TypeVar("T")


def examine(spec: ClusterSpec, order: Examine, run_dir: str, on_begin: Callable[[], None]) -> list[HostReport]:
    """Examine all hosts of a spec at the same time; the reports are in the spec's order.

    `order`: the fields that are the same for all hosts. `run_dir`: where this machine keeps runs. `on_begin`: called when from then on a
    Ctrl-C ends all agents in order. Raises `UsageError`.
    """
    return asyncio.run(_examine_all(spec, order, run_dir, on_begin))


async def _examine_all(spec: ClusterSpec, order: Examine, run_dir: str, on_begin: Callable[[], None]) -> list[HostReport]:
    backend = load_checked(spec)
    gate = asyncio.Semaphore(AT_ONCE)
    on_begin()
    with tempfile.TemporaryDirectory(prefix="orch-doctor-") as logs:
        logs_of = ((host, Path(logs, str(number))) for number, host in enumerate(backend.hosts(spec)))
        examinations = [_Examination(spec, backend, host, log, order, run_dir).run(gate) for host, log in logs_of]
        # With `return_exceptions`, also a Ctrl-C waits until each has let its agent go.
        ends = await asyncio.gather(*examinations, return_exceptions=True)
    for end in ends:
        if isinstance(end, BaseException):
            raise end
    return [end for end in ends if not isinstance(end, BaseException)]


class _Examination:
    """The examination of one host."""

    def __init__(self, spec: ClusterSpec, backend: Backend, host: Host, log: Path, order: Examine, run_dir: str) -> None:
        self._spec, self._backend, self._host = spec, backend, host
        self._order = replace(order, run_dir=run_dir if host.is_here else "")
        self._link = AgentLink(host, log, lambda *_: None, lambda *_: None)
        self._report = HostReport(host.name, backend.python_for(spec, host), is_here=host.is_here)

    async def run(self, gate: asyncio.Semaphore) -> HostReport:
        """The facts until the end, the loss of the host, or the end of its time. A host that cannot be reached has none."""
        limit_s = MACHINE_S + self._order.import_s + SLACK_S
        try:
            await reach(self._link, self._transport(), self._backend.explain, gate)
            await asyncio.wait_for(self._request_all(), limit_s)
        except NotReachedError as error:
            self._fail(error.diagnosis.cause, error.diagnosis.remedy)
        except LostError as error:
            self._fail(error.loss.reason, "ask again; if it happens again, look at the network")
        except asyncio.TimeoutError:
            self._fail(
                f"it has not sent all facts within {limit_s:g} s", "look at its load and its disks, or ask for more with --import-timeout"
            )
        finally:
            await self._link.close()
        return self._report

    def _transport(self) -> Transport:
        # On this machine orch's own interpreter runs the agent: the machine is examined even if the interpreter of the tasks is broken.
        return interpreters.transport_here(sys.executable) if self._host.is_here else self._backend.transport(self._spec, self._host)

    def _fail(self, cause: str, remedy: str) -> None:
        self._report = replace(self._report, unreached=cause, unreached_remedy=remedy)

    async def _request_all(self) -> None:
        self._link.keep_alive()
        asked_at = time.monotonic()
        await self._link.request(Hello("doctor", lost_after_s=self._host.lost_after_s))
        self._report = replace(self._report, clock_ahead_s=surely_ahead(self._link.clock.ahead_s, time.monotonic() - asked_at))
        self._report = _with_machine(self._report, await self._link.request(replace(self._order, what="machine")))
        # On another machine the agent runs in the tasks' own interpreter.
        program = self._report.program if self._host.is_here else ""
        ended = await self._link.request(replace(self._order, what="python", program=program))
        self._report = _with_python(self._report, ended, self._order.import_s)


def surely_ahead(ahead_s: float, took_s: float) -> float:
    """How far a clock is ahead at least: it seems to be `ahead_s` ahead, by an answer that may have taken `took_s` seconds."""
    return ahead_s if ahead_s > 0 else min(0.0, ahead_s + took_s)


# --- the output of the programs -----------------------------------------------------------------


def _with_machine(report: HostReport, ended: ProgramEnded) -> HostReport:
    machine = _decode(Machine, ended.out)
    return replace(report, machine=machine, machine_problem="" if machine is not None else _describe(ended))


def _with_python(report: HostReport, ended: ProgramEnded, import_s: float) -> HostReport:
    first, _, second = ended.out.partition("\n")
    python, tensorflow = _decode(Python, first), _decode(TensorFlow, second)
    if python is None:
        is_started = ended.code is not None or ended.out or ended.err
        return replace(
            report, python_problem=f"{_describe(ended)}; it does not answer as a Python does" if is_started else _describe(ended)
        )
    complaints = [line for line in ended.err.splitlines() if line[:1] in ("W", "E") or ": W " in line[:40] or ": E " in line[:40]]
    report = replace(report, python=python, tensorflow=tensorflow, complaints=tuple(complaints[:20]))
    if tensorflow is not None:
        return report
    stack = _stack(ended.err)
    problem = f"it has not ended after {import_s:g} s; it was here" if stack else _describe(ended)
    return replace(report, import_problem=problem, stack=stack)


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
    except (ValueError, ContractError):
        return None
