"""An agent that is a fork of this user's warm process (`orch warm`), in place of a program that is executed.

Each try has a channel of its own. If the warm process refuses, dies, or does not answer in time, this end of the channel is closed, and
nothing that may come of the try later can live: its channel has ended. The run then goes on with an ordinary agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import time
from typing import TYPE_CHECKING, Any

from worker.host.warm import warm_socket

if TYPE_CHECKING:
    from . import Imports

MOST_BYTES = 1024 * 1024
_ANSWER_BYTES = 64 * 1024
_NOT_USED = "the warm template is not used: "


class NotUsedError(Exception):
    """A warm process exists and cannot be used; the message says why."""


class WarmAgent:
    """As much of `asyncio.subprocess.Process` as `AgentLink` uses. The agent leads its own process group, `pid`."""

    def __init__(self, pid: int, stdout: asyncio.StreamReader, stdin: asyncio.StreamWriter, parent: socket.socket) -> None:
        self.pid, self.stdout, self.stdin = pid, stdout, stdin
        self._parent = parent
        self.returncode: int | None = None

    async def wait(self) -> int:
        """Wait until the agent, whose channel has closed or which was killed, has ended. Returns its exit code, -n for signal n.

        The warm process is its parent and alone knows the code. Without an answer, SIGKILL is the likely end.
        """
        if self.returncode is None:
            code = -signal.SIGKILL
            with contextlib.suppress(asyncio.TimeoutError, NotUsedError, OSError, ValueError):
                code = (await _answer(self._parent))["code"]
            self.returncode = code
            self._parent.close()
            self.stdin.close()
        return self.returncode


class _Protocol(asyncio.StreamReaderProtocol):
    def connection_lost(self, exc: Exception | None) -> None:
        """The end of the channel, also if the agent was killed before it had read all (ECONNRESET)."""
        super().connection_lost(None)


async def ask(python: str, imports: Imports, log_fd: int) -> tuple[WarmAgent | None, str]:
    """The agent, and a line for the user. Without an agent none can be had here; without a line either there is no warm process.

    `python`: the program of the interpreter that the tasks want. `log_fd`: takes the agent's stderr.
    """
    try:
        connection = _connect()
        if connection is None:
            return None, ""
        try:
            agent, since = await _ask(connection, python, imports, log_fd)
        except BaseException:
            connection.close()
            raise
    except NotUsedError as error:
        return None, f"{_NOT_USED}{error}"
    return agent, f"tasks are forked from the warm template of {time.strftime('%H:%M:%S', time.localtime(since))}"


def _connect() -> socket.socket | None:
    try:
        place = warm_socket.find(warm_socket.directory(os.environ))
        if place is None:
            return None
        with place:
            try:
                return place.connect()
            except ConnectionRefusedError:
                if place.lock():  # and so nobody else is about to start one
                    place.clear()
                raise NotUsedError("its process has died; orch warm start starts a new one") from None
    except warm_socket.UntrustedError as error:
        raise NotUsedError(str(error)) from None
    except OSError as error:
        raise NotUsedError(f"it does not answer ({error.strerror or error}); orch warm stop ends it") from None


async def _ask(connection: socket.socket, python: str, imports: Imports, log_fd: int) -> tuple[WarmAgent, float]:
    """The agent, and when the warm process had imported."""
    from worker.host.warm.caller_state import describe_request, inherit

    ours, agents = socket.socketpair()
    try:
        with agents:
            wanted = describe_request(python, imports.preload, imports.cwd, imports.env)
            request = warm_socket.encode({"ask": "agent", **wanted, "inherited": inherit()})
            sent = socket.send_fds(connection, [request], [agents.fileno(), log_fd])
        answer = await _answer(connection, request[sent:])
        stdout = asyncio.StreamReader(MOST_BYTES)
        protocol = _Protocol(stdout)
        loop = asyncio.get_running_loop()
        channel, _ = await loop.create_connection(lambda: protocol, sock=ours)
    except asyncio.TimeoutError:
        ours.close()
        raise NotUsedError(f"it has not answered for {warm_socket.PATIENCE_S:g} s; orch warm stop ends it") from None
    except (OSError, ValueError) as error:
        ours.close()
        raise NotUsedError(f"it does not answer as it should ({error})") from None
    except BaseException:
        ours.close()
        raise
    return WarmAgent(answer["pid"], stdout, asyncio.StreamWriter(channel, protocol, stdout, loop), connection), answer["since"]


async def _answer(connection: socket.socket, request: bytes = b"") -> dict[str, Any]:
    """The next answer, after the rest of a request was sent. Raises `NotUsedError`, asyncio.TimeoutError, OSError or ValueError."""
    loop = asyncio.get_running_loop()

    async def exchange() -> bytes:
        if request:
            await loop.sock_sendall(connection, request)
        return await loop.sock_recv(connection, _ANSWER_BYTES)

    data = await asyncio.wait_for(exchange(), warm_socket.PATIENCE_S)
    if not data:
        raise NotUsedError("it has died")
    found: dict[str, Any] = json.loads(data)
    if found.get("refused"):
        ended = "; it has ended, and orch warm start starts a new one" if found.get("stale") else ""
        raise NotUsedError(f"{found['refused']}{ended}")
    return found
