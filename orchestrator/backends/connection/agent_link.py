"""The controller's end of a connection: an agent is started, gets orders and requests, and its frames arrive here and nowhere else."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import time
import traceback
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from worker.clock import now
from worker.fast_dataclass import dataclass
from worker.protocol import messages
from worker.protocol.channel import ChannelError, Decoder, encode
from worker.protocol.messages import ANSWERS, FRAMES, Bye, Ping

from ...errors import OrchError, UsageError
from .. import Diagnosis, Host, StartFailure, Transport
from .agent_process import AgentProcess, NotUsedError, pop_started, start
from .incoming_frames import HostClock, refuse_strangers
from .keep_alive import KeepAlive

if TYPE_CHECKING:
    from ..warm_agent import WarmAgent

ENDING_S = 10.0
"""How long an agent may send nothing, after `Bye`, before it is killed."""
REACHED_S = 60.0
"""How long an agent that is reached over a network may take to come up."""
HERE_LOST_S = 60.0
"""The silence that loses an agent on this machine. Only what no signal can wake is silent so long (a dead disk, a frozen cgroup)."""
DUE_LOST_S = 5.0
"""How long an agent may be silent once the end is due: the user has asked twice, or a deadline of the user has passed."""
MOST_NOISE = 1024 * 1024
"""Bytes that a host's shell may print before the agent's mark."""

_NO_PROGRAM = (errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.ENOTDIR)


@dataclass(frozen=True, slots=True)
class Loss:
    """Why an agent sends nothing more."""

    reason: str
    is_silent: bool = False
    """The agent may still live behind a broken connection. Then it counts its controller as lost, and ends."""
    overdue_s: float = 0.0
    """For how many seconds the silence of the agent has been more than a pause."""

    @property
    def text(self) -> str:
        return f"{self.reason}; its agent will stop its tasks" if self.is_silent else self.reason


Unasked = messages.HostEvent | messages.TaskEvent | messages.Grew | messages.Output
"""The frames that an agent sends of its own accord."""
OnFrame = Callable[[str, Unasked, bytes], None]
"""Gets the name of the host, a frame that answers no request, and the data of the frame."""
OnLost = Callable[[str, Loss], None]
"""Gets the name of the host and the reason."""
Explain = Callable[[Host, StartFailure], Diagnosis]


def explain_plainly(host: Host, failure: StartFailure) -> Diagnosis:
    """Explains a program about which orch knows nothing more."""
    return Diagnosis(failure.text)


class NotReachedError(Exception):
    """An agent did not come up."""

    def __init__(self, diagnosis: Diagnosis) -> None:
        super().__init__(diagnosis.text)
        self.diagnosis = diagnosis


class LostError(OrchError):
    """The agent has ended before it answered a request."""

    def __init__(self, host: str, loss: Loss) -> None:
        super().__init__(f"host {host} cannot be used: {loss.text}")
        self.loss = loss


class State(Enum):
    """The life of a connection::

        NEW --open()--> STARTED --a frame--> ANSWERING --close(), drop()--> LEAVING --the channel ends--> ENDED
                           |                     |
                           +---------------------+--the channel ends: `on_lost`--> ENDED

    STARTED may be left by close() and drop() as well.
    """

    NEW = "new"
    STARTED = "started"
    """The program of the transport runs, and no frame of an agent has come yet."""
    ANSWERING = "answering"
    LEAVING = "leaving"
    """The controller has let the agent go: the end of the channel is no loss."""
    ENDED = "ended"


class AgentLink:
    """The connection to an agent that this process has started::

        link = AgentLink(host, log, on_frame, on_lost)
        await link.open(transport, explain)
        facts = await link.request(Hello(run_id, ...))
        link.order(StartTasks(...))  # its frames go to `on_frame`
        await link.close()

    An answer goes to the `request` that it belongs to, and nowhere else. `on_frame` gets all other frames. `on_lost` gets the reason when
    the channel ends before `close`; requests that are not answered by then raise `LostError`.
    """

    def __init__(self, host: Host, log: Path, on_frame: OnFrame, on_lost: OnLost) -> None:
        self.host = host
        self._log = log
        self._on_frame, self._on_lost = on_frame, on_lost
        self._state = State.NEW
        self.clock = HostClock()
        self.note = ""
        """A line for the user about the warm process, if there is one."""
        self._process: AgentProcess | WarmAgent | None = None
        self._reading: asyncio.Task[None] | None = None
        self._alive = KeepAlive(lambda: self.order(Ping()), self._is_finding_facts, self._on_silent)
        self._progress_at = 0.0
        """When a frame came last that was not only a sign of life."""
        self._ordered: set[str] = set()
        """The tasks that the agent got orders to start."""
        self._requests: defaultdict[type, deque[asyncio.Future[Any]]] = defaultdict(deque)
        """By the kind of their answers; the oldest is answered first."""
        self._loss: Loss | None = None

    async def open(self, transport: Transport, explain: Explain = explain_plainly) -> None:
        """Start the agent. Raises `UsageError` for a program that cannot run, `OrchError` if none can, `NotReachedError` without a mark."""
        self._transport, self._explain = transport, explain
        with open(self._log, "ab") as stderr:
            log_size = stderr.tell()
            try:
                self._process = await self._start(transport, stderr.fileno())
            except OSError as error:
                raise self._refuse_start(error) from None
        first = b""
        if transport.mark:
            assert self._process.stdin is not None
            self._process.stdin.write(transport.first)
            first = await self._await_mark(transport, log_size)
        self._alive.received_at = self._progress_at = time.monotonic()
        self._state = State.STARTED
        self._reading = asyncio.create_task(self._read(first))

    async def _start(self, transport: Transport, stderr: int) -> AgentProcess | WarmAgent:
        """The agent that was started ahead, or one that is started now. Raises OSError."""
        process, self.note = pop_started(self._log) or start(transport, stderr)
        if not isinstance(process, AgentProcess):
            try:
                self.note = await process.connect()
                return process
            except NotUsedError as error:
                process, self.note = AgentProcess(transport.argv, stderr), str(error)
        connecting = asyncio.create_task(process.connect())
        try:
            await asyncio.shield(connecting)
        except asyncio.CancelledError:
            await connecting
            self._process = process
            await self._reap()
            raise
        return process

    async def _await_mark(self, transport: Transport, log_size: int) -> bytes:
        """Returns the bytes after the mark, as far as they have come."""
        try:
            data = await asyncio.wait_for(self._read_mark(transport, log_size), REACHED_S)
        except asyncio.TimeoutError:
            await self._reap()
            raise NotReachedError(
                Diagnosis(f"no agent answers after {REACHED_S:g} s", "check the address, the firewall and the load")
            ) from None
        except (NotReachedError, asyncio.CancelledError):
            await self._reap()
            raise
        noise, _, rest = data.partition(transport.mark)
        if noise.strip():
            with open(self._log, "ab") as log:
                log.write(b"its shell printed: " + noise.strip()[:1000] + b"\n")
        return rest

    async def _read_mark(self, transport: Transport, log_size: int) -> bytes:
        assert self._process is not None
        assert self._process.stdout is not None
        data = b""
        while transport.mark not in data:
            part = await self._process.stdout.read(64 * 1024)
            if not part:
                code = await self._process.wait()
                said = self._log.read_bytes()[log_size:].decode(errors="replace")
                raise NotReachedError(self._explain(self.host, StartFailure(transport.argv[0], code, said)))
            data += part
            if len(data) > MOST_NOISE:
                raise NotReachedError(Diagnosis(f"its shell prints without end: {data[:80]!r}"))
        return data

    async def _reap(self) -> None:
        self._end_process()
        if self._process is not None:
            await self._process.wait()

    def keep_alive(self) -> None:
        """Send signs of life until the agent ends, and lose the agent once it has sent nothing for too long."""
        self._alive.start(self.host.lost_after_s or HERE_LOST_S)

    def limit_silence(self) -> None:
        """The end is due: from here on, an agent that gives no sign of life for `DUE_LOST_S` is lost."""
        if self.is_open:
            self._alive.limit(DUE_LOST_S)

    def _is_finding_facts(self) -> bool:
        """The agent has got its `Hello` and has not sent its facts: it may be too busy to send anything else."""
        return self._state is not State.LEAVING and any(not waiting.done() for waiting in self._requests[messages.HostReady])

    def _on_silent(self, silence_s: float) -> None:
        loss = Loss(f"no message from it for {silence_s:g} s", is_silent=True, overdue_s=self._alive.overdue_s)
        was_leaving, self._state = self._state is State.LEAVING, State.LEAVING
        self._end_process()
        if not was_leaving:
            self._lose(loss)

    def _lose(self, loss: Loss) -> None:
        self._loss = loss
        self._on_lost(self.host.name, loss)
        self._refuse_requests()

    def _refuse_requests(self) -> None:
        """Raise `LostError` in every request that waits for an answer."""
        error = LostError(self.host.name, self._loss or Loss("its agent has ended"))
        for waiting in (one for queue in self._requests.values() for one in queue):
            if not waiting.done():
                waiting.set_exception(error)
                waiting.exception()  # marks the exception as seen: the caller of `request` may have given up meanwhile

    def order(self, message: Any, data: bytes = b"") -> None:
        """Send an order; nothing to an agent that has ended, which `on_lost` reports."""
        if isinstance(message, messages.StartTasks):
            self._ordered.update(order.task for order in message.orders)
        pipe = self._process.stdin if self._process is not None else None
        if pipe is not None and not pipe.is_closing():
            pipe.write(encode(message, data))

    @overload
    async def request(self, order: messages.Hello) -> messages.HostReady: ...
    @overload
    async def request(self, order: messages.Try) -> messages.Tried: ...
    @overload
    async def request(self, order: messages.Code) -> messages.CodeWanted: ...
    @overload
    async def request(self, order: messages.TakeGpus) -> messages.GpusTaken: ...
    @overload
    async def request(self, order: messages.Examine) -> messages.ProgramEnded: ...

    async def request(self, order: Any) -> Any:
        """Send an order and return its answer. Raises `LostError` if the agent ends before."""
        waiting: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._requests[ANSWERS[type(order)]].append(waiting)
        self.order(order)
        if self._state is State.ENDED or self._loss is not None:
            self._refuse_requests()
        return await waiting

    async def drain(self) -> None:
        """Wait until the orders are on their way; not for an agent that has ended."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(ConnectionError):
                await self._process.stdin.drain()

    async def close(self) -> None:
        """Let the agent go, and wait for its end: also while it still sends output, or while the connection stalls."""
        self._leave()
        self.order(Bye())
        self._progress_at = time.monotonic()
        while self._reading is not None and not self._reading.done():
            if self._alive.overdue_s > 0:
                self._progress_at = time.monotonic()  # a connection that stalls has all of its time once it goes on
            progress_at = self._progress_at
            left_s = progress_at + ENDING_S - time.monotonic()
            await asyncio.wait([self._reading], timeout=min(max(left_s, 0.1), 0.5))
            if left_s <= 0 and self._progress_at == progress_at:
                await self.kill()
                break

    @property
    def is_open(self) -> bool:
        """Whether the agent can still send anything."""
        return self._reading is not None and not self._reading.done()

    def drop(self) -> None:
        """End the agent at once. Its tasks die with it, and output that it has not sent yet is lost."""
        self._leave()
        self._end_process()

    def _leave(self) -> None:
        if self._state is not State.ENDED:
            self._state = State.LEAVING

    async def kill(self) -> None:
        """`drop` the agent, and wait for its end."""
        self.drop()
        self._alive.stop()
        if self._reading is not None:
            await asyncio.wait([self._reading], timeout=ENDING_S)

    def _end_process(self) -> None:
        """SIGKILL to what `open` started, with its children: an interpreter's wrapper script may not have exec'ed it."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def _read(self, data: bytes) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        decoder = Decoder(FRAMES)
        broken = ""
        while not broken:
            data = data or await self._process.stdout.read(1024 * 1024)
            if not data:
                break
            self._alive.received_at = time.monotonic()
            try:
                for frame, payload in decoder.feed(data):
                    self._receive(frame, payload)
                data = b""
            except ChannelError as error:
                broken = str(error)
                self._end_process()
            except Exception as error:
                # A mistake in orch. A controller that silently stops reading would be worse.
                traceback.print_exc()
                broken = f"orch made a mistake: {type(error).__name__}: {error}"
                self._end_process()
        code = await self._process.wait()
        self._alive.stop()
        before, self._state = self._state, State.ENDED
        if before is not State.LEAVING:
            self._lose(Loss(self._describe_end(code, broken, has_answered=before is State.ANSWERING)))
        self._refuse_requests()

    def _receive(self, frame: messages.Frame, data: bytes) -> None:
        if self._state is State.STARTED:
            self._state = State.ANSWERING
        if not isinstance(frame, messages.Pong):
            self._progress_at = self._alive.received_at
        refuse_strangers(frame, self._ordered)
        frame = self.clock.translate(frame, self.host.name, now())
        if isinstance(frame, messages.Answer):
            self._on_answer(frame)
        elif not isinstance(frame, messages.Gone | messages.Pong):
            self._on_frame(self.host.name, frame, data)

    def _on_answer(self, answer: messages.Answer) -> None:
        requests = self._requests[type(answer)]
        if requests:  # none: the agent answers without a request
            waiting = requests.popleft()
            if not waiting.done():
                waiting.set_result(answer)

    def _describe_end(self, code: int, broken: str, *, has_answered: bool) -> str:
        try:
            said = self._log.read_text(errors="replace").strip()
        except OSError:
            said = ""
        failure = StartFailure(self._transport.argv[0], code, said)
        if has_answered or self._transport.mark:
            return broken or failure.text
        diagnosis = self._explain(self.host, failure)
        return replace(diagnosis, cause=broken or diagnosis.cause).text

    def _refuse_start(self, error: OSError) -> OrchError:
        """The error says whether the program is the wrong one, or this machine is short of something."""
        failure = StartFailure(self._transport.argv[0], error=error)
        if error.errno in _NO_PROGRAM:
            return UsageError(self._explain(self.host, failure).text)
        remedy = "this machine is short of open files (ulimit -n), of processes (ulimit -u) or of memory: raise the limit"
        return OrchError(f"{failure.text}; {remedy}")
