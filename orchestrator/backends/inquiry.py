"""Asking every host of a spec what it is like, all at once: reached as `orch up` reaches them, and nothing is left there."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from worker.contract import Inquiry, Told
from worker.records import dataclass

from ..model.spec import ClusterSpec
from . import Diagnosis, Host, load_checked
from .agents import AgentLink, Loss, NotReachedError
from .reach import AT_ONCE, reach

MACHINE_S, SLACK_S = 80.0, 30.0
"""What a host has for everything but the import: its own limits are shorter (worker/host/inquiry.py), so they speak first."""
_LAST = "python"


@dataclass(frozen=True, slots=True)
class Answers:
    """What a host has told, by `Told.what`. `program`: the interpreter that was asked for.

    `asked_at`, `answered_at`: our clock before and after the host told its own. `failure`: why it has not told all.
    """

    name: str
    program: str
    is_here: bool
    told: Mapping[str, Told] = field(default_factory=dict)
    asked_at: float = 0.0
    answered_at: float = 0.0
    failure: Diagnosis | None = None


def inquire(spec: ClusterSpec, inquiry: Inquiry) -> list[Answers]:
    """Ask them all, and wait for each until it has told all, cannot be reached, or its time is over. In the spec's order.

    `inquiry.program` is filled in. Raises `UsageError`.
    """
    return asyncio.run(_inquire(spec, inquiry))


async def _inquire(spec: ClusterSpec, inquiry: Inquiry) -> list[Answers]:
    backend = load_checked(spec)
    with tempfile.TemporaryDirectory(prefix="orch-doctor-") as logs:
        asked = {
            host.name: _Conversation(host, backend.python_for(spec, host), inquiry, Path(logs, str(number)))
            for number, host in enumerate(backend.hosts(spec))
        }
        try:
            gate = asyncio.Semaphore(AT_ONCE)

            async def ask(one: _Conversation) -> None:
                try:
                    await reach(backend, spec, one.link, gate, "inquiry")
                except NotReachedError as error:
                    one.fail(error.diagnosis)
                else:
                    one.begin()

            await asyncio.gather(*map(ask, asked.values()))
            await asyncio.gather(*(one.is_over.wait() for one in asked.values()))
        finally:
            await asyncio.gather(*(one.link.close() for one in asked.values()))
        return [one.answers for one in asked.values()]


class _Conversation:
    """With one host."""

    def __init__(self, host: Host, program: str, inquiry: Inquiry, log: Path) -> None:
        self.host = host
        self.link = AgentLink(host, log, self._receive, self._lose)
        self.answers = Answers(host.name, program, host.is_here)
        # On another machine the interpreter that answers is the tasks' own, and the run directory is not there.
        self._inquiry = replace(inquiry, program=self.answers.program) if host.is_here else replace(inquiry, run_dir="")
        self.is_over = asyncio.Event()
        self._told: dict[str, Told] = {}

    def begin(self) -> None:
        """It has been reached."""
        self.link.keep_alive()
        seconds = MACHINE_S + self._inquiry.import_s + SLACK_S
        problem = Diagnosis(
            f"it has not told all for {seconds:g} s", "look at its load and its disks, or ask for more with --import-timeout"
        )
        asyncio.get_running_loop().call_later(seconds, self.fail, problem)
        self.answers = replace(self.answers, asked_at=time.time(), told=self._told)
        self.link.order(self._inquiry)

    def fail(self, diagnosis: Diagnosis) -> None:
        """It tells no more, for this reason; nothing, if it has told all."""
        if not self.is_over.is_set():
            self.answers = replace(self.answers, failure=diagnosis)
            self.is_over.set()

    def _receive(self, name: str, frame: Any, data: bytes) -> None:
        if isinstance(frame, Told):
            if frame.what == "clock":
                self.answers = replace(self.answers, answered_at=time.time())
            self._told[frame.what] = frame
            if frame.what == _LAST:
                self.is_over.set()

    def _lose(self, name: str, loss: Loss) -> None:
        self.fail(Diagnosis(loss.reason, "ask again; if it happens again, look at the network"))
