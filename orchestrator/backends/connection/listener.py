"""The port of a controller to which the other nodes of its run dial (worker/host/network/dialler.py).

Anyone who has reached the port can send what he wants: until somebody has proved that he knows the secret of the run, he is sent nothing
but random bytes, nothing is read but as many bytes as a proof has, and the time and the number of such connections are bounded. A crowd of
strangers keeps no node out, because a new connection takes the place of one of the crowd.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import socket
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from worker.host.network import proof
from worker.host.network.dialler import START, keep_alive
from worker.values.fast_dataclass import dataclass

from .. import Diagnosis
from .agent_pipes import MOST_BYTES, UNKNOWN, make_protocol
from .agent_start import NotReachedError

PORT = 7468
HELLO_S = 10.0
"""How long a connection may take to prove itself, and to send its line."""
MOST_STRANGERS = 256
"""How many connections may be open that have not sent their line yet. A further one takes the place of the `_first_to_go`."""
LINE_BYTES = 16384
END_S = 5.0
"""How long after the end of a connection the word may come how its program ended."""
FAREWELL_S = 5.0
"""How long nodes that dial again are waited for at the end of the run."""
MOST_ENDS = 4096
NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_ADDRESS = re.compile(r"[0-9a-fA-F:.]{0,45}")


class SealedReader(asyncio.StreamReader):
    """Reads the data of the records of a connection, once `seal` is set."""

    seal: proof.Seal | None = None
    abort: Callable[[], None]
    """Ends the connection. Set before `seal`."""
    raw = 0
    """How many bytes have come without a seal."""

    def feed_data(self, data: Any) -> None:
        if self.seal is None:
            self.raw += len(data)
            super().feed_data(data)
            return
        try:
            for part in self.seal.open(data):
                super().feed_data(part)
        except ValueError:
            self.abort()


class SealedWriter(asyncio.StreamWriter):
    """Writes records."""

    def __init__(self, writer: asyncio.StreamWriter, seal: proof.Seal) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(writer.transport, writer.transport.get_protocol(), None, loop)
        self._seal, self._writer = seal, writer  # kept: the end of a writer closes its transport

    def write(self, data: bytes | bytearray | memoryview) -> None:
        super().write(self._seal.seal(bytes(data)))


@dataclass(frozen=True, slots=True)
class DialledLine:
    """A connection of a node that waits for a program, or has become one."""

    node: str
    address: str
    """By which other nodes reach this one; empty: it has not said so."""
    number: int
    facts: Mapping[str, Any]
    """What else the node has told."""
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @property
    def is_open(self) -> bool:
        return not (self.reader.at_eof() or self.writer.is_closing())

    def tell(self, **words: Any) -> None:
        """See `Listener.tell_all`."""
        self.writer.write(json.dumps(words).encode("ascii") + b"\n")


class Listener:
    """`open` it, wait `until` there are enough `lines`, start programs by `take`, and `close` it.

    `judge` returns the words with which a node is refused, by its first line and the open connection that it had before; None: it is
    welcome. `on_signal` is called when a node was told to end the run.
    """

    def __init__(
        self,
        secret: bytes,
        judge: Callable[[Mapping[str, Any], DialledLine | None], Mapping[str, Any] | None] = lambda *_: None,
        on_signal: Callable[[], None] = lambda: None,
    ) -> None:
        self._secret, self._judge, self._on_signal = secret, judge, on_signal
        self._server: asyncio.Server | None = None
        self._strangers: dict[asyncio.Task[None], tuple[str, asyncio.StreamWriter]] = {}
        """The connections that have not sent their line yet, in the order in which they came, with their addresses."""
        self._lines: dict[str, DialledLine] = {}
        self._taken: dict[str, DialledLine] = {}
        """The newest connection of each node that has become a program."""
        self._ends: dict[tuple[str, int], tuple[int, str]] = {}
        """How the programs of connections have ended: the code, and the end of what was written to stderr."""
        self._over: Mapping[str, Any] | None = None
        self._changed = asyncio.Event()

    async def open(self, port: int = PORT, host: str | None = None) -> int:
        """Listen, at all addresses or at one. Returns the port. Raises OSError."""
        loop = asyncio.get_running_loop()
        both = host is None and socket.has_dualstack_ipv6()  # one socket: two would have two ports, if the kernel chooses
        family = socket.AF_INET6 if both else socket.AF_INET
        listening = socket.create_server((host or "", port), family=family, dualstack_ipv6=both)
        self._server = await loop.create_server(lambda: make_protocol(SealedReader(MOST_BYTES), self._on_guest), sock=listening)
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

    async def end(self, **words: Any) -> None:
        """Tell all nodes that the run is over, and close. A node that has just lost its line dials again, and is waited for."""
        self._over = {"over": 0, **words}
        self.tell_all(**self._over)

        def is_told(node: str) -> bool:
            return node in self._lines and not self._lines[node].is_open  # a node that has heard closes its line

        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.until(lambda: all(map(is_told, {*self._lines, *self._taken})), 0.02), FAREWELL_S)
        self.close()

    @property
    def lines(self) -> dict[str, DialledLine]:
        """The connections that wait, by node."""
        return {name: line for name, line in self._lines.items() if line.is_open}

    def tell_all(self, **words: Any) -> None:
        """Send a line to each node that waits for a program."""
        for line in self.lines.values():
            line.tell(**words)

    async def take(self, node: str) -> DialledLine:
        """The next connection of a node, which from now on belongs to the caller, and to a program."""
        await self.until(lambda: node in self.lines)
        line = self._taken[node] = self._lines.pop(node)
        line.writer.write(START)
        return line

    async def end_of(self, line: DialledLine, limit_s: float = END_S) -> tuple[int, str]:
        """Return the code and the last words of the program of a connection; `UNKNOWN`: the node has not told of its end in this time."""
        key = line.node, line.number
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.until(lambda: key in self._ends), limit_s)
        return self._ends.pop(key, (UNKNOWN, f"the connection to {line.node} has ended, and it says nothing more"))

    async def until(self, is_so: Callable[[], bool], look_s: float = 1.0) -> None:
        """Wait until something is so. Look when a connection comes, when a node tells of an end, and every `look_s` seconds."""
        while not is_so():  # without `asyncio.wait_for`, which may lose a cancellation before Python 3.12
            timer = asyncio.get_running_loop().call_later(look_s, self._tell)
            await self._changed.wait()
            timer.cancel()

    def _tell(self) -> None:
        """Wake all that wait; each of them looks again."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    # --- those who come -------------------------------------------------------------------------

    def _on_guest(self, reader: SealedReader, writer: asyncio.StreamWriter) -> None:
        if self._server is not None and not self._server.is_serving():  # it came while the port was closed
            writer.transport.abort()
            return
        if len(self._strangers) >= MOST_STRANGERS:
            self._send_away(self._first_to_go())
        stranger = asyncio.get_running_loop().create_task(self._admit(reader, writer))
        self._strangers[stranger] = (writer.get_extra_info("peername") or ("",))[0], writer
        stranger.add_done_callback(lambda _: self._strangers.pop(stranger, None))

    def _first_to_go(self) -> asyncio.Task[None]:
        """The oldest stranger of the address that has the most of them: anyone who opens many connections closes his own."""
        crowd = Counter(address for address, _ in self._strangers.values()).most_common(1)[0][0]
        return next(stranger for stranger, (address, _) in self._strangers.items() if address == crowd)

    def _send_away(self, stranger: asyncio.Task[None]) -> None:
        _, writer = self._strangers.pop(stranger)
        writer.transport.abort()  # by itself: a task that is cancelled before its first step does nothing
        stranger.cancel()

    async def _admit(self, reader: SealedReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer, found = await asyncio.wait_for(self._read(reader, writer), HELLO_S)
        except (OSError, EOFError, ValueError, asyncio.TimeoutError, asyncio.LimitOverrunError, RecursionError):
            writer.transport.abort()
            return
        if "ended" in found:
            writer.close()
            match found:
                case {"node": str(node), "ended": int(number), "code": int(code), "said": str(said)} if len(self._ends) < MOST_ENDS:
                    self._ends[node, number] = max(-64, min(code, 255)), said
        elif "signal" in found:
            writer.close()
            self._on_signal()
        else:
            self._keep(found, reader, writer)
        self._tell()

    async def _read(self, reader: SealedReader, writer: asyncio.StreamWriter) -> tuple[SealedWriter, dict[str, Any]]:
        """The words of a connection that knows the secret. Raises ValueError for any other, and EOFError."""
        nonce = os.urandom(proof.NONCE_BYTES)
        writer.write(nonce)
        answer, seal = proof.admit(self._secret, nonce, await reader.readexactly(proof.GREETING_BYTES))
        if reader.raw > proof.GREETING_BYTES:
            raise ValueError("a node waits for the answer")
        reader.abort, reader.seal = writer.transport.abort, seal
        writer.write(answer)
        sealed = SealedWriter(writer, seal)
        line = await reader.readuntil(b"\n")
        found = json.loads(line) if len(line) <= LINE_BYTES else None
        if not isinstance(found, dict):
            raise ValueError("no words of a node")
        return sealed, found

    def _keep(self, found: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        match found:
            case {"node": str(node), "address": str(address), "number": int(number)} if (
                NAME.fullmatch(node) and _ADDRESS.fullmatch(address) and type(number) is int
            ):
                with contextlib.suppress(OSError, AttributeError):
                    keep_alive(writer.get_extra_info("socket"))
                line = DialledLine(node, address, number, found, reader, writer)
                before = (one for one in (self._lines.get(node), self._taken.get(node)) if one is not None and one.is_open)
                if refusal := self._judge(found, next(before, None)):
                    line.tell(**refusal)
                    writer.close()
                    return
                former = self._lines.pop(node, None)
                if former is not None:
                    former.writer.close()
                self._lines[node] = line
                if self._over is not None:
                    line.tell(**self._over)
            case _:
                writer.transport.abort()


class DialledAgent:
    """The program at the end of a connection that a node has made. See `AgentProgram`."""

    def __init__(self, listener: Listener, node: str, stderr: int, back_s: float | None = None) -> None:
        """`stderr`: the descriptor of a file that gets what the node tells of the program's stderr. `back_s`: how long a node that has no
        connection now may take to make one."""
        self._listener, self._node, self._back_s = listener, node, back_s
        self._stderr = os.dup(stderr)
        self._line: DialledLine | None = None
        self._is_killed = False
        self.stdin: asyncio.StreamWriter | None = None
        self.stdout: asyncio.StreamReader | None = None
        self.returncode: int | None = None

    async def connect(self) -> str:
        try:
            self._line = await asyncio.wait_for(self._listener.take(self._node), self._back_s)
        except asyncio.TimeoutError:
            why = f"it has not dialled again for {self._back_s:g} s"
            raise NotReachedError(Diagnosis(why, "its orch has ended, or it does not reach this machine")) from None
        self.stdin, self.stdout = self._line.writer, self._line.reader
        return ""

    async def wait(self) -> int:
        if self.returncode is None:
            code = UNKNOWN
            if self._line is not None and not self._is_killed:
                self._line.writer.close()
                code, said = await self._listener.end_of(self._line)
                with contextlib.suppress(OSError):
                    os.write(self._stderr, said.encode(errors="replace"))
            os.close(self._stderr)
            self.returncode = code
        return self.returncode

    def kill(self) -> None:
        """No one can kill a program on another node, but an agent ends with its connection."""
        self._is_killed = True
        if self._line is not None:
            self._line.writer.transport.abort()
