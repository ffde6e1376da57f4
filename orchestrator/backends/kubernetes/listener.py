"""The port of a controller in a pod, to which the other pods of its run dial (worker/host/network/dialler.py).

Anyone who has reached the port can send what he wants: until the token of the run has come, nothing is read but as many bytes as the token
has, nothing is sent, and the time and the number of such connections are bounded. A crowd of strangers keeps no pod out, because a new
connection takes the place of one of the crowd.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import os
import re
import socket
from collections.abc import Iterable
from typing import Any

from worker.values.fast_dataclass import dataclass

from ...model.settings.pod_section import LABEL
from ..connection.agent_pipes import MOST_BYTES, UNKNOWN, make_protocol
from .keeper_program import first_to_go

PORT = 7468
TOKEN_BYTES = 64
HELLO_S = 10.0
"""How long a connection may take to send its token, and its line."""
MOST_STRANGERS = 256
"""How many connections may be open that have not sent their line yet. A further one takes the place of the `first_to_go`."""
LINE_BYTES = 16384
END_S = 5.0
"""How long after the end of a connection the word may come how its program ended."""
MOST_ENDS = 4096
_POD = re.compile(LABEL)
_ADDRESS = re.compile(r"[0-9a-fA-F:.]{2,45}")


@dataclass(frozen=True, slots=True)
class DialledLine:
    """A connection of a pod that waits for a program, or has become one."""

    pod: str
    address: str
    """By which other pods reach this one."""
    number: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @property
    def is_open(self) -> bool:
        return not (self.reader.at_eof() or self.writer.is_closing())


@dataclass(frozen=True, slots=True)
class End:
    """Tells how a program has ended, and the end of what it has written to stderr."""

    pod: str
    number: int
    code: int
    said: str


class Listener:
    """`open` it, wait `until_changed` until there are enough `lines`, start programs by `take`, and `close` it."""

    def __init__(self, token: str) -> None:
        self._token = token.encode("ascii")
        self._server: asyncio.Server | None = None
        self._strangers: dict[asyncio.Task[None], tuple[str, asyncio.StreamWriter]] = {}
        """The connections that have not sent their line yet, in the order in which they came, with their addresses."""
        self._lines: dict[str, DialledLine] = {}
        self._ends: dict[tuple[str, int], End] = {}
        self._changed = asyncio.Event()

    async def open(self, port: int = PORT, host: str | None = None) -> int:
        """Listen, at all addresses or at one. Returns the port. Raises OSError."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: make_protocol(asyncio.StreamReader(MOST_BYTES), self._on_guest), host, port)
        found: int = self._server.sockets[0].getsockname()[1]
        return found

    def close(self) -> None:
        """Close the port, and the connections that wait."""
        if self._server is not None:
            self._server.close()
        for stranger in list(self._strangers):
            self._send_away(stranger)
        for line in self._lines.values():
            line.writer.close()
        self._lines.clear()

    @property
    def lines(self) -> dict[str, DialledLine]:
        """The connections that wait, by pod."""
        return {name: line for name, line in self._lines.items() if line.is_open}

    async def take(self, pod: str) -> DialledLine:
        """The next connection of a pod, which from now on belongs to the caller."""
        while pod not in self.lines:
            await self.until_changed()
        return self._lines.pop(pod)

    async def end_of(self, line: DialledLine, limit_s: float = END_S) -> End:
        """Return how the program of a connection has ended that is over; code `UNKNOWN`: the pod has not said so in this time."""
        key = line.pod, line.number
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._until_ended(key), limit_s)
        said = f"the connection to the pod has ended, and the pod says nothing more: kubectl describe pod {line.pod} tells more"
        return self._ends.pop(key, End(line.pod, line.number, UNKNOWN, said))

    async def _until_ended(self, key: tuple[str, int]) -> None:
        while key not in self._ends:
            await self.until_changed()

    async def until_changed(self) -> None:
        """Wait until a connection has come, or a word how a program has ended."""
        await self._changed.wait()

    def _tell(self) -> None:
        """Wake all that wait; each of them looks again."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    # --- those who come -------------------------------------------------------------------------

    def _on_guest(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._strangers) >= MOST_STRANGERS:
            self._send_away(first_to_go({stranger: address for stranger, (address, _) in self._strangers.items()}))
        stranger = asyncio.get_running_loop().create_task(self._admit(reader, writer))
        self._strangers[stranger] = (writer.get_extra_info("peername") or ("",))[0], writer
        stranger.add_done_callback(lambda _: self._strangers.pop(stranger, None))

    def _send_away(self, stranger: asyncio.Task[None]) -> None:
        _, writer = self._strangers.pop(stranger)
        writer.transport.abort()  # by itself: a task that is cancelled before its first step does nothing
        stranger.cancel()

    async def _admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            found = await asyncio.wait_for(self._read(reader), HELLO_S)
        except (OSError, EOFError, ValueError, asyncio.TimeoutError, asyncio.LimitOverrunError, RecursionError):
            writer.transport.abort()
            return
        if "ended" in found:
            writer.close()
            end = read_end(found)
            if end is not None and len(self._ends) < MOST_ENDS:
                self._ends[end.pod, end.number] = end
        else:
            self._keep(found, reader, writer)
        self._tell()

    async def _read(self, reader: asyncio.StreamReader) -> dict[str, Any]:
        """The words of a connection that knows the token. Raises ValueError for any other, and EOFError."""
        token = await reader.readexactly(TOKEN_BYTES)
        if not hmac.compare_digest(token, self._token):
            raise ValueError("no pod of this run")
        line = await reader.readuntil(b"\n")
        found = json.loads(line) if len(line) <= LINE_BYTES else None
        if not isinstance(found, dict):
            raise ValueError("no words of a pod")
        return found

    def _keep(self, found: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        match found:
            case {"pod": str(pod), "address": str(address), "number": int(number)} if (
                _POD.fullmatch(pod) and _ADDRESS.fullmatch(address) and type(number) is int
            ):
                _keep_alive(writer)
                former = self._lines.pop(pod, None)
                if former is not None:
                    former.writer.close()
                self._lines[pod] = DialledLine(pod, address, number, reader, writer)
            case _:
                writer.transport.abort()


def read_end(found: dict[str, Any]) -> End | None:
    """The words of a pod about the end of a program; None: they are none."""
    match found:
        case {"pod": str(pod), "ended": int(number), "code": int(code), "said": str(said)} if type(number) is type(code) is int:
            return End(pod, number, max(-64, min(code, 255)), said)
    return None


def _keep_alive(writer: asyncio.StreamWriter) -> None:
    """Let the kernel find out that a pod is gone whose connection only waits."""
    found = writer.get_extra_info("socket")
    with contextlib.suppress(OSError, AttributeError):
        found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3)):
            found.setsockopt(socket.IPPROTO_TCP, option, value)


class DialledAgent:
    """The program at the end of a connection that a pod has made. See `AgentProgram`."""

    def __init__(self, listener: Listener, pod: str, stderr: int) -> None:
        """`stderr`: the descriptor of a file that gets what the pod tells of the program's stderr."""
        self._listener, self._pod = listener, pod
        self._stderr = os.dup(stderr)
        self._line: DialledLine | None = None
        self._is_killed = False
        self.stdin: asyncio.StreamWriter | None = None
        self.stdout: asyncio.StreamReader | None = None
        self.returncode: int | None = None

    async def connect(self) -> str:
        self._line = await self._listener.take(self._pod)
        self.stdin, self.stdout = self._line.writer, self._line.reader
        return ""

    async def wait(self) -> int:
        if self.returncode is None:
            code = UNKNOWN
            if self._line is not None and not self._is_killed:
                self._line.writer.close()
                end = await self._listener.end_of(self._line)
                code = end.code
                with contextlib.suppress(OSError):
                    os.write(self._stderr, end.said.encode(errors="replace"))
            os.close(self._stderr)
            self.returncode = code
        return self.returncode

    def kill(self) -> None:
        """No one can kill a program in another pod, but an agent ends with its connection."""
        self._is_killed = True
        if self._line is not None:
            self._line.writer.transport.abort()


def sorted_lines(lines: Iterable[DialledLine]) -> list[DialledLine]:
    """In the order of the names of the pods."""
    return sorted(lines, key=lambda line: line.pod)
