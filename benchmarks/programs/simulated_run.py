"""``orch up`` whose hosts are those of `simulated_hosts`: ``python simulated_run.py SOCKET,SOCKET,… WORDS-OF-ORCH``.

Only the start of an agent's program is replaced, which is a connection to one of the sockets here. All else is orch's own.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys

from orchestrator import import_own_worker

import_own_worker()

from orchestrator.backends import Transport  # noqa: E402
from orchestrator.backends.connection import agent_start  # noqa: E402
from orchestrator.backends.connection.agent_pipes import MOST_BYTES, make_protocol  # noqa: E402

SOCKETS = sys.argv[1].split(",")
NUMBERS = itertools.count(1)


class SimulatedAgent:
    """A connection in the place of an `AgentProcess`."""

    pid = 0
    returncode: int | None = None

    def __init__(self, transport: Transport) -> None:
        self._transport, self._number = transport, next(NUMBERS)
        self.stdin: asyncio.StreamWriter | None = None
        self.stdout: asyncio.StreamReader | None = None

    async def connect(self) -> str:
        """Tell the simulator which host this is."""
        socket = SOCKETS[self._number % len(SOCKETS)]
        loop, stdout = asyncio.get_running_loop(), asyncio.StreamReader(MOST_BYTES)
        channel, protocol = await loop.create_unix_connection(lambda: make_protocol(stdout), socket)
        self.stdout, self.stdin = stdout, asyncio.StreamWriter(channel, protocol, stdout, loop)
        greeting = {"host": self._transport.argv[-2], "number": self._number}
        self.stdin.write(json.dumps(greeting).encode("ascii") + b"\n")
        return ""

    async def wait(self) -> int:
        """The end of the connection is the end of the agent."""
        if self.stdin is not None:
            self.stdin.close()
        self.returncode = 0
        return 0

    def kill(self) -> None:
        """Close the connection."""
        if self.stdin is not None:
            self.stdin.close()


def start(transport: Transport, stderr: int, early: object = None, secret: str = "") -> tuple[SimulatedAgent, str]:
    """In the place of `agent_process.start`."""
    return SimulatedAgent(transport), ""


agent_start.start = start  # type: ignore[assignment]

if __name__ == "__main__":
    from orchestrator.cli import main

    main(sys.argv[2:])
