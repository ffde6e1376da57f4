"""Asks a host for its facts: worker/host/survey.py for the machine, worker/task/examine.py for the interpreter of the tasks.

Both are started as processes of their own, with a time limit and bounded output, since what is asked may hang, die, or be no
Python at all. The first runs in our own interpreter here, so that a broken one still gets its machine looked at.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import worker.contract
from worker.contract import ContractError, from_json

from .facts import HostFacts, Machine, Python, TensorFlow

SURVEY_S = 60.0
ANSWER_S = 20.0
"""An interpreter that has not said within this time which Python it is, is taken for none."""
MOST_BYTES = 1 << 20
MOST_FRAMES = 12
_WORKER = Path(worker.contract.__file__).parent
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Asked:
    """How a process that was asked has ended. `code` None: it was stopped, for the `reason`."""

    out: str
    err: str
    code: int | None
    reason: str = ""

    @property
    def ending(self) -> str:
        """In words, with its last ones."""
        last = next((line.strip() for line in reversed(self.err.splitlines()) if line.strip()), "")
        how = (
            self.reason
            if self.code is None
            else f"it was killed by {_signal(-self.code)}"
            if self.code < 0
            else f"it ended with exit code {self.code}"
        )
        return f"{how}: {last[:300]}" if last else how


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def look_at_machine(facts: HostFacts, run_dir: str, ports: tuple[int, int] | None) -> HostFacts:
    """`facts` with what this machine is like."""
    question = json.dumps({"run_dir": run_dir, "ports": ports})
    asked_at = time.time()
    asked = ask([sys.executable, "-I", str(_WORKER / "host" / "survey.py"), question], os.environ, SURVEY_S)
    facts = replace(facts, asked_at=asked_at, answered_at=time.time())
    machine = _decode(Machine, asked.out)
    return replace(facts, machine=machine, machine_problem="" if machine else asked.ending)


def look_at_python(facts: HostFacts, env: Mapping[str, str], import_s: float) -> HostFacts:
    """`facts` with what its `program` is, and the TensorFlow that it imports, for at most `import_s` seconds."""
    command = [facts.program, str(_WORKER / "task" / "examine.py"), str(import_s)]
    try:
        asked = ask(command, {**os.environ, **env}, ANSWER_S, then_s=import_s + ANSWER_S)
    except OSError as error:
        return replace(facts, python_problem=f"it cannot be run: {error.strerror or error}")
    first, _, second = asked.out.partition("\n")
    python, tensorflow = _decode(Python, first), _decode(TensorFlow, second)
    if python is None:
        return replace(facts, python_problem=_not_python(asked))
    complaints = tuple(line for line in asked.err.splitlines() if line[:1] in ("W", "E") or ": W " in line[:40] or ": E " in line[:40])
    facts = replace(facts, python=python, tensorflow=tensorflow, complaints=complaints[:20])
    if tensorflow is not None:
        return facts
    stack = _stack(asked.err)
    problem = f"it has not ended after {import_s:g} s; it was here" if stack else asked.ending
    return replace(facts, import_problem=problem, stack=stack)


def _not_python(asked: Asked) -> str:
    return f"{asked.ending}; it does not answer as a Python does"


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


def ask(argv: Sequence[str], env: Mapping[str, str], limit_s: float, then_s: float | None = None) -> Asked:
    """Run a program that knows when to end. Its group is killed after `limit_s` seconds, or `then_s` once it has said a line; or if
    it talks too much. Raises OSError if it cannot be started."""
    process = subprocess.Popen(
        argv, env=dict(env), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    reason = ""
    with process, selectors.DefaultSelector() as selector:
        heard = {stream: bytearray() for stream in (process.stdout, process.stderr)}
        for stream in heard:
            selector.register(stream, selectors.EVENT_READ)
        began = time.monotonic()
        try:
            while selector.get_map() and not reason:
                limit = then_s if then_s is not None and b"\n" in heard[process.stdout] else limit_s
                ready = selector.select(max(0.0, began + limit - time.monotonic()))
                if not ready:
                    reason = f"it has not answered for {limit:g} s"
                for key, _ in ready:
                    data = os.read(key.fd, 65536)
                    heard[key.fileobj] += data  # type: ignore[index]
                    if not data:
                        selector.unregister(key.fileobj)
                    elif sum(map(len, heard.values())) > MOST_BYTES:
                        reason = "it never stops talking"
        finally:
            if reason or selector.get_map():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
        out, err = (bytes(heard[stream]).decode(errors="replace") for stream in heard)
        code = process.wait()
    return Asked(out, err, None if reason else code, reason)
