"""The bytes to and from one agent: by one program, or by one after the other, if the agent waits for this process to come back."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from worker.protocol.channel import encode
from worker.protocol.messages import Ack, Ping
from worker.protocol.replay import Replay, goodbye

from .agent_pipes import AgentProgram

if TYPE_CHECKING:
    from .reconnection import Return

GOODBYE_S = 2.0
"""How long an agent that would wait has to end after a goodbye, before its channel is closed."""


class AgentChannel:
    """Holds what this process sends over the channel, and the state of the channel."""

    def __init__(self, secret: str) -> None:
        """`secret`: `Hello.secret`; empty: the agent waits for no one."""
        self.secret = secret
        self.process: AgentProgram | None = None
        self.received = 0
        """How many bytes of frames have come, since the first channel began."""
        self.door = ""
        """`HostReady.door`; empty: a cut channel is a lost host."""
        self.cut = ""
        """Why there is no channel now, while the agent may wait for this process to come back; empty: there is one."""
        self.ended = 0, ""
        """The exit code of the channel's program, and what was wrong with the frames."""
        self.has_returned = False
        """The channel is one that was made again."""
        self.returning: Return | None = None
        """The try to come back that runs."""
        self.is_over = asyncio.Event()
        """The agent is lost or dropped: no one comes back to it."""
        self.gate = asyncio.Semaphore(1)
        """Admits the links that may begin to connect at one time."""
        self._sent = Replay() if secret else None

    def write(self, message: Any, data: bytes = b"") -> None:
        """Send an order; nothing to an agent that has ended."""
        if isinstance(message, Ping | Ack):
            message = replace(message, received=self.received)
        pipe = self.process.stdin if self.process is not None and not self.cut else None
        is_open = pipe is not None and not pipe.is_closing()
        if self._sent is None and not is_open:
            return
        sent = encode(message, data)
        if self._sent is not None:
            self._sent.keep(sent)
        if pipe is not None and is_open:
            pipe.write(sent)

    async def drain(self) -> None:
        """Wait until the orders are on their way; not for an agent that has ended."""
        if self.process is not None and self.process.stdin is not None:
            with contextlib.suppress(ConnectionError):
                await self.process.stdin.drain()

    def open_door(self, door: str) -> None:
        """The agent has said where it would wait; empty: nowhere."""
        if self.secret:
            self.door = door
            self._sent = self._sent if door else None

    @property
    def keeps_orders(self) -> bool:
        """True if orders are kept until the agent says that it has got them."""
        return self._sent is not None

    def forget(self, received: int) -> None:
        """The agent has got so many bytes of orders."""
        if self._sent is not None:
            self._sent.forget(received)

    def go_on(self, process: AgentProgram, received: int) -> str:
        """Use a new channel, whose agent has received so many bytes of orders. Returns why the former one was cut."""
        assert self._sent is not None
        assert process.stdin is not None
        was, self.process, self.returning, self.has_returned, self.cut = self.cut, process, None, True, ""
        try:
            process.stdin.write(self._sent.after(received))
        except ValueError as error:
            self.cut = str(error)
        return was

    def end(self) -> None:
        """End the program. An agent that would wait for this process to come back is told that no one comes."""
        if self.returning is not None:
            self.returning.made.cancel()
        process = self.process
        if self.door and not self.cut and process is not None and process.stdin is not None and process.returncode is None:
            process.stdin.write(goodbye(self.secret))
            asyncio.get_running_loop().call_later(GOODBYE_S, self.kill)
        else:
            self.kill()

    def kill(self) -> None:
        """End the program at once."""
        if self.process is not None:
            self.process.kill()
