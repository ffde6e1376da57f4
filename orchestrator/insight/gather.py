"""What hosts have told -> their facts. worker/host/inquiry.py on a host has asked: survey.py about the machine, task/examine.py about
the interpreter of the tasks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from worker.contract import ContractError, Told, from_json

from ..model.endings import describe_answer
from .facts import HostReport, Machine, Python, TensorFlow

MOST_FRAMES = 12
T = TypeVar("T")


def gather(facts: HostReport, told: Mapping[str, Told], import_s: float) -> HostReport:
    """`facts` with what the host has told. `import_s`: the seconds that TensorFlow's import had."""
    if "machine" in told:
        facts = _with_machine(facts, told["machine"], told["clock"].at)
    return _with_python(facts, told["python"], import_s) if "python" in told else facts


def _with_machine(facts: HostReport, told: Told, at: float) -> HostReport:
    """`at`: what its clock said when it was asked for the time alone; the survey itself may take long."""
    machine = _decode(Machine, told.out)
    if machine is None:
        return replace(facts, machine_problem=_ending(told))
    return replace(facts, machine=replace(machine, clock=replace(machine.clock, at=at)))


def _with_python(facts: HostReport, told: Told, import_s: float) -> HostReport:
    first, _, second = told.out.partition("\n")
    python, tensorflow = _decode(Python, first), _decode(TensorFlow, second)
    if python is None:
        is_started = told.code is not None or told.out or told.err
        return replace(facts, python_problem=f"{_ending(told)}; it does not answer as a Python does" if is_started else _ending(told))
    complaints = tuple(line for line in told.err.splitlines() if line[:1] in ("W", "E") or ": W " in line[:40] or ": E " in line[:40])
    facts = replace(facts, python=python, tensorflow=tensorflow, complaints=complaints[:20])
    if tensorflow is not None:
        return facts
    stack = _stack(told.err)
    problem = f"it has not ended after {import_s:g} s; it was here" if stack else _ending(told)
    return replace(facts, import_problem=problem, stack=stack)


def _ending(told: Told) -> str:
    return describe_answer(told.err, told.code, told.reason)


def _stack(text: str) -> tuple[str, ...]:
    """The frames that `faulthandler` wrote when the time was over, the innermost first."""
    _, mark, dump = text.rpartition("Timeout (")
    frames = [line for line in dump.splitlines() if line.startswith("  File ") and "<frozen " not in line]
    return tuple(frames[:MOST_FRAMES]) if mark else ()


def _decode(kind: type[T], text: str) -> T | None:
    try:
        data: Any = json.loads(text)
        return from_json(kind, data)
    except (ValueError, ContractError):
        return None
