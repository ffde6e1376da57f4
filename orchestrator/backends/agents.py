"""Our end of a channel: an agent is started, gets orders, and its frames are handed on, as events of our time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from worker import contract
from worker.channel import ChannelError, Decoder, encode
from worker.clock import now
from worker.contract import FRAMES, Bye

from ..errors import OrchError, UsageError
from ..model import events
from . import Host, Transport

ENDING_S = 10.0
"""How long an agent may take to end after `Bye` before it is killed. It has nothing left to wait for then."""

Receive = Callable[[str, Any, bytes], None]
Lose = Callable[[str, str], None]


class AgentLink:
    """A running agent. `receive` gets each frame with its data; `lose` gets the reason when the channel ends before `close`."""

    def __init__(self, host: Host, log: Path, receive: Receive, lose: Lose) -> None:
        self.host = host
        self._log = log
        self._receive, self._lose = receive, lose
        self._closing = self._heard = False

    async def open(self, transport: Transport) -> None:
        """Start the agent. Raises `UsageError` if its program cannot be run."""
        self._program = transport.argv[0]
        with open(self._log, "ab", opener=_private) as stderr:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *transport.argv,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=stderr,
                    limit=1024 * 1024,
                    start_new_session=True,  # the terminal's Ctrl-C is ours to act on, not the agent's
                )
            except OSError as error:
                raise UsageError(f"{transport.argv[0]!r} cannot be run: {error.strerror or error}; set python: or --python") from None
        self._reading = asyncio.create_task(self._read())

    def order(self, message: Any) -> None:
        """Send an order. To an agent that is gone: nothing, `lose` tells."""
        pipe = self._process.stdin
        if pipe is not None and not pipe.is_closing():
            pipe.write(encode(message))

    async def close(self) -> None:
        """Let the agent go, and see it end."""
        self._closing = True
        self.order(Bye())
        try:
            await asyncio.wait_for(self._reading, ENDING_S)
        except asyncio.TimeoutError:
            await self.kill()

    async def kill(self) -> None:
        """End the agent at once; its tasks die with it."""
        self._closing = True
        self._end_process()
        await asyncio.wait([self._reading], timeout=ENDING_S)

    def _end_process(self) -> None:
        """SIGKILL to what `open` started, with its children: an interpreter's wrapper script may not have exec'ed it."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def _read(self) -> None:
        assert self._process.stdout is not None
        decoder = Decoder(FRAMES)
        broken = ""
        while not broken:
            data = await self._process.stdout.read(1024 * 1024)
            if not data:
                break
            try:
                for frame, payload in decoder.feed(data):
                    self._heard = True
                    self._receive(self.host.name, frame, payload)
            except ChannelError as error:
                broken = str(error)
                self._end_process()
            except Exception as error:
                # A mistake of our own. A controller that no longer listens, and does not say so, would be worse.
                traceback.print_exc()
                broken = f"orch made a mistake: {type(error).__name__}: {error}"
                self._end_process()
        code = await self._process.wait()
        if not self._closing:
            reason = broken or self._explain(code)
            # Something else was started in the place of an agent, such as --python /bin/cat.
            self._lose(self.host.name, reason if self._heard else f"{reason}; is {self._program!r} a Python? set python: or --python")

    def _explain(self, code: int) -> str:
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        try:
            complaint = self._log.read_text(errors="replace").strip().splitlines()[-1:]
        except OSError:
            complaint = []
        return f"its agent {how}" + "".join(f": {line}" for line in complaint)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def refuse_silence(host: Host, seconds: float) -> OrchError:
    """The error for an agent that has started and says nothing."""
    return OrchError(f"the agent on {host.name} has not answered for {seconds:g} s")


def in_our_time(frame: Any, ahead: float) -> Any:
    """What an agent says, with its times as our clock would have told them."""
    changes: dict[str, Any] = {}
    if hasattr(frame, "at"):
        changes["at"] = frame.at - ahead
    if getattr(frame, "failure", None) is not None:
        changes["failure"] = replace(frame.failure, at=frame.failure.at - ahead)
    return replace(frame, **changes) if changes else frame


def as_event(host: str, frame: Any) -> events.Event:
    """What an agent says, as what happened."""
    match frame:
        case contract.Started():
            return events.TaskStarted(frame.task, frame.attempt, frame.pid, frame.at)
        case contract.NotStarted():
            return events.TaskNotStarted(frame.task, frame.attempt, frame.reason, frame.at)
        case contract.Up():
            return events.TaskUp(frame.task, frame.attempt, frame.at)
        case contract.Waiting():
            return events.TaskWaiting(frame.task, frame.attempt, frame.reason, now())
        case contract.Report():
            return events.TaskReported(frame.task, frame.attempt, frame.values, frame.at)
        case contract.Exited():
            values = (frame.task, frame.attempt, frame.code, frame.stopped, frame.at, frame.failure)
            return events.TaskExited(*values, frame.killed, frame.evidence)
        case contract.Swept():
            return events.TaskSwept(frame.task, frame.attempt, now())
        case contract.Trouble():
            return events.HostBroken(host, frame.message, frame.at)
    raise OrchError(f"an agent sent {type(frame).__name__}, which nobody awaits")
