"""Defines what all kinds of agents have in common: their methods, the pipes to an agent, and the error of one that cannot be had."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    import asyncio

MOST_BYTES = 1024 * 1024
"""How much is read ahead of a program's stdout, and how much a shell may print before an agent's mark."""


UNKNOWN = 255
"""The exit code of a program in another place of which only the end of its connection is known."""


class AgentProgram(Protocol):
    """Holds what becomes an agent: a process of this machine, a fork of the warm process, or a program at the end of a connection."""

    stdin: asyncio.StreamWriter | None
    stdout: asyncio.StreamReader | None
    """Both from `connect` on."""

    @property
    def returncode(self) -> int | None:
        """The exit code, -n for signal n; None: `wait` has not seen the end."""
        ...

    async def connect(self) -> str:
        """Open both in the loop that runs now. Returns a line for the user, or an empty one. Raises `NotUsedError`."""
        ...

    async def wait(self) -> int:
        """Wait for the end of the program, which has closed its stdout or was killed. Returns its exit code."""
        ...

    def kill(self) -> None:
        """End the program at once, with its children; does nothing after its end."""
        ...


class StartedAgent(NamedTuple):
    """An agent that was started, or requested from the warm process, and is not connected yet."""

    process: AgentProgram
    note: str = ""
    """A line for the user; empty: there is none."""


class EarlyAgent:
    """Holds the agent of a host that was started ahead, for the first try to reach that host. Another try starts another agent."""

    def __init__(self, agent: StartedAgent) -> None:
        self._agents = [agent]

    def take(self) -> StartedAgent | None:
        """Return the agent, once."""
        return self._agents.pop() if self._agents else None


def make_protocol(reader: asyncio.StreamReader, on_guest: Callable[..., Any] | None = None) -> asyncio.StreamReaderProtocol:
    """The protocol of a pipe or socket of an agent. `on_guest`: gets reader and writer of a connection that was accepted."""
    import asyncio

    class Protocol(asyncio.StreamReaderProtocol):
        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(None)  # an agent that has not read all of its orders has ended, and `wait` returns how

    return Protocol(reader, on_guest)


def kill_group(leader: int, code: int | None) -> None:
    """SIGKILL to a group of processes whose leader has not ended. `code`: the exit code of the leader, if it is known."""
    if leader and code is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGKILL)


class NotUsedError(Exception):
    """A warm process exists and cannot be used; the message, a line for the user, says why."""

    def __init__(self, why: str) -> None:
        super().__init__(f"the warm process is not used: {why}")
