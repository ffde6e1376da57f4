"""An agent that is a fork of this user's warm process (`orch warm`), in place of a program that is executed.

Each try has a channel of its own. If the warm process refuses, dies, or does not answer in time, this end of the channel is closed. An
agent that is forked later finds its channel closed, and ends. The run then goes on with an ordinary agent.

As in `connection.agent_process`, `asyncio` is imported only where the agent is connected.
"""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import time
from typing import TYPE_CHECKING, Any

from worker.host.forkserver import warm_socket
from worker.host.forkserver.caller_state import describe_request, read_inherited

from . import Transport
from .connection.agent_pipes import MOST_BYTES, NotUsedError, kill_group, make_protocol

if TYPE_CHECKING:
    import asyncio


class WarmAgent:
    """The agent that was requested. `connect` sets `pid`, the leader of a process group of its own, `stdin` and `stdout`."""

    def __init__(self, transport: Transport, stderr: int, early: warm_socket.EarlyRequest | None = None) -> None:
        """Request the agent, without waiting. `early`: the request, if it was made already. Raises OSError."""
        self.pid = 0
        self.stdin: asyncio.StreamWriter | None = None
        self.stdout: asyncio.StreamReader | None = None
        self.returncode: int | None = None
        assert transport.imports is not None
        wanted = describe_request(transport.argv[0], transport.imports.preload, transport.imports.cwd, transport.imports.env)
        here = {"inherited": read_inherited(), "private_network": transport.imports.private_network}
        self._channel, agents = socket.socketpair()
        with agents:
            self._connection = warm_socket.ask_for_agent({**wanted, **here}, agents.fileno(), stderr, early)

    async def connect(self) -> str:
        """Wait for the agent, and open its channel in the loop that runs now. Returns a line for the user. Raises `NotUsedError`."""
        import asyncio

        loop = asyncio.get_running_loop()
        try:
            answer = await self._answer()
            if "refused" in answer:
                raise NotUsedError(answer["refused"])
            stdout = asyncio.StreamReader(MOST_BYTES)
            channel, protocol = await loop.create_connection(lambda: make_protocol(stdout), sock=self._channel)
        except BaseException:
            self.close()
            raise
        self.pid, self.stdout, self.stdin = answer["pid"], stdout, asyncio.StreamWriter(channel, protocol, stdout, loop)
        return f"tasks are forked from the warm process of {time.strftime('%H:%M:%S', time.localtime(answer['since']))}"

    def kill(self) -> None:
        """See `AgentProgram`. A fork has no pid before it is connected."""
        kill_group(self.pid, self.returncode)

    async def wait(self) -> int:
        """Wait until the agent has ended. Returns the exit code that it has sent; without one it was killed: -n for signal n."""
        if self.returncode is None:
            code = -signal.SIGKILL
            with contextlib.suppress(NotUsedError):
                code = (await self._answer())["code"]
            self.returncode = code
            if self.stdin is not None:
                self.stdin.close()
            self.close()
        return self.returncode

    def close(self) -> None:
        """Close the channel: an agent that is not connected ends."""
        self._channel.close()
        self._connection.close()

    async def _answer(self) -> dict[str, Any]:
        """The next answer of the warm process, or of the agent. Raises `NotUsedError`."""
        import asyncio

        loop = asyncio.get_running_loop()

        async def receive() -> bytes:
            try:
                return await loop.sock_recv(self._connection, warm_socket.MESSAGE_BYTES)
            except ConnectionResetError:  # the description was not read; if it had been refused before, the reason comes next
                return await loop.sock_recv(self._connection, warm_socket.MESSAGE_BYTES)

        try:
            answer = await asyncio.wait_for(receive(), warm_socket.PATIENCE_S)
        except asyncio.TimeoutError:
            raise NotUsedError(f"it has not answered for {warm_socket.PATIENCE_S:g} s; orch warm stop ends it") from None
        except OSError:
            answer = b""
        if not answer:
            raise NotUsedError("it has died")
        found: dict[str, Any] = json.loads(answer)
        return found


def request_agent(transport: Transport, stderr: int, early: warm_socket.EarlyRequest | None = None) -> WarmAgent:
    """Request an agent that fits the transport from the warm process. Raises `NotUsedError`."""
    try:
        return WarmAgent(transport, stderr, early)
    except ConnectionRefusedError:
        raise NotUsedError("its process has died; orch warm start starts a new one, orch warm stop forgets it") from None
    except BlockingIOError:
        raise NotUsedError("it accepts no connection; orch warm stop ends it") from None
    except OSError as error:
        raise NotUsedError(error.strerror or str(error)) from None
