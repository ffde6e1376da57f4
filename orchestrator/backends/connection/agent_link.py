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
from collections.abc import Callable, Coroutine
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
from .agent_process import AgentProcess, NotUsedError, private, start, take
from .incoming_frames import HostClock, refuse_strangers

if TYPE_CHECKING:
    from ..warm_agent import WarmAgent

ENDING_S = 10.0
"""How long an agent may send nothing, after `Bye`, before it is killed."""
REACHED_S = 60.0
"""How long an agent that is reached over a network may take to come up."""
BEATS = 8
"""How often a host is asked for a sign of life within the time of silence that loses it."""
HERE_LOST_S = 60.0
"""The silence that loses an agent on this machine. Only what no signal can wake is silent for so long: a dead disk, a frozen cgroup."""
HURRY_S = 5.0
"""How long an agent may be silent once the end is to come now: it was asked for twice, or a deadline of the user's has passed."""
UNREAD_S = 0.1
"""What has come while we stood still is read first, in the loop's next turns, before anybody is given up."""
MOST_NOISE = 1024 * 1024
"""Bytes that a host's shell may print before the agent's mark."""

_NO_PROGRAM = (errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.ENOTDIR)


@dataclass(frozen=True, slots=True)
class Loss:
    """Why nothing more comes from an agent."""

    reason: str
    is_silent: bool = False
    """It may still live, where nobody hears it; it takes its controller for lost then."""
    overdue_s: float = 0.0
    """For how many seconds its silence has been more than a pause."""

    @property
    def text(self) -> str:
        return f"{self.reason}; its agent will stop its tasks" if self.is_silent else self.reason


Unasked = messages.HostEvent | messages.TaskEvent | messages.Grew | messages.Output
"""The frames that an agent sends of its own accord."""
OnFrame = Callable[[str, Unasked, bytes], None]
"""Gets the host's name, a frame that nobody has requested, and its data."""
OnLost = Callable[[str, Loss], None]
"""Gets the host's name and the reason."""
Explain = Callable[[Host, StartFailure], Diagnosis]


def explain_plainly(host: Host, failure: StartFailure) -> Diagnosis:
    """For a program of which nobody knows more."""
    return Diagnosis(failure.text)


class NotReachedError(Exception):
    """An agent did not come up."""

    def __init__(self, diagnosis: Diagnosis) -> None:
        super().__init__(diagnosis.text)
        self.diagnosis = diagnosis


class LostError(OrchError):
    """The agent has gone before it answered a request."""

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
        link.order(StartTasks(...))  # what comes of it goes to `on_frame`
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
        self._beating: asyncio.Task[None] | None = None
        self._hurrying: asyncio.Task[None] | None = None
        self._heard_at = self._moved_at = self._pause_s = 0.0
        """When any frame came last, and when one came that was not only a sign of life."""
        self._ordered: set[str] = set()
        """The tasks that it was told to start."""
        self._requests: defaultdict[type, deque[asyncio.Future[Any]]] = defaultdict(deque)
        """By the kind of their answers; the oldest is answered first."""
        self._loss: Loss | None = None

    async def open(self, transport: Transport, explain: Explain = explain_plainly) -> None:
        """Start the agent. Raises `UsageError` for a program that cannot run, `OrchError` if none can, `NotReachedError` without a mark."""
        self._transport, self._explain = transport, explain
        with open(self._log, "ab", opener=private) as stderr:
            said_before = stderr.tell()
            try:
                self._process = await self._start(transport, stderr.fileno())
            except OSError as error:
                raise self._refuse_start(error) from None
        first = b""
        if transport.mark:
            assert self._process.stdin is not None
            self._process.stdin.write(transport.first)
            first = await self._await_mark(transport, said_before)
        self._heard_at = self._moved_at = time.monotonic()
        self._state = State.STARTED
        self._reading = asyncio.create_task(self._read(first))

    async def _start(self, transport: Transport, stderr: int) -> AgentProcess | WarmAgent:
        """The agent that was started ahead, or one that is started now. Raises OSError."""
        process, self.note = take(self._log) or start(transport, stderr)
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

    async def _await_mark(self, transport: Transport, said_before: int) -> bytes:
        """What follows the mark, as far as it has come."""
        try:
            data = await asyncio.wait_for(self._read_mark(transport, said_before), REACHED_S)
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
            with open(self._log, "ab", opener=private) as log:
                log.write(b"its shell printed: " + noise.strip()[:1000] + b"\n")
        return rest

    async def _read_mark(self, transport: Transport, said_before: int) -> bytes:
        assert self._process is not None
        assert self._process.stdout is not None
        data = b""
        while transport.mark not in data:
            part = await self._process.stdout.read(64 * 1024)
            if not part:
                code = await self._process.wait()
                said = self._log.read_bytes()[said_before:].decode(errors="replace")
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
        """Send signs of life until the agent ends, and lose it once it has sent nothing for too long."""
        silence_s = self.host.lost_after_s or HERE_LOST_S
        self._pause_s = 1.5 * silence_s / BEATS
        self._beating = reporting_mistakes(self._beat(silence_s))

    @property
    def _overdue_s(self) -> float:
        """For how many seconds its silence has been more than a pause; zero or less: it has not."""
        return time.monotonic() - self._heard_at - self._pause_s if self._beating is not None else 0.0

    async def _beat(self, silence_s: float) -> None:
        while not await self._is_silent_for(silence_s):
            pass
        self._abandon(silence_s)

    async def _is_silent_for(self, silence_s: float) -> bool:
        """Ask for signs of life. False: one has come; True: none within so many seconds.

        Those in which we stood still (the terminal's Ctrl-Z, a closed laptop) count as one look: nobody has listened.
        """
        began_at, silent_s, look_s = time.monotonic(), 0.0, silence_s / BEATS
        while silent_s < silence_s:
            asked_at = time.monotonic()
            self.order(Ping())
            await asyncio.sleep(look_s)
            if self._is_looking_around or self._heard_at >= began_at:
                return False
            silent_s += min(time.monotonic() - asked_at, 1.5 * look_s)
        await asyncio.sleep(UNREAD_S)
        return self._heard_at < began_at

    @property
    def _is_looking_around(self) -> bool:
        """The agent has got its `Hello` and has not sent its facts: it may be too busy to send anything else."""
        return self._state is not State.LEAVING and any(not waiting.done() for waiting in self._requests[messages.HostReady])

    def _abandon(self, silence_s: float) -> None:
        loss = Loss(f"no message from it for {silence_s:g} s", is_silent=True, overdue_s=self._overdue_s)
        was_leaving, self._state = self._state is State.LEAVING, State.LEAVING
        self._end_process()
        if not was_leaving:
            self._lose(loss)

    def _lose(self, loss: Loss) -> None:
        self._loss = loss
        self._on_lost(self.host.name, loss)
        self._refuse_requests()

    def _refuse_requests(self) -> None:
        """Nothing answers them any more."""
        error = LostError(self.host.name, self._loss or Loss("its agent has ended"))
        for waiting in (one for queue in self._requests.values() for one in queue):
            if not waiting.done():
                waiting.set_exception(error)
                waiting.exception()  # whoever has waited may have given up meanwhile

    def hurry(self) -> None:
        """The end is to come now: from here on, an agent that gives no sign of life for `HURRY_S` is lost."""
        if self.is_open and self._hurrying is None:
            self._hurrying = reporting_mistakes(self._beat(HURRY_S))

    def order(self, message: Any, data: bytes = b"") -> None:
        """Send an order. To an agent that is gone: nothing, `on_lost` tells."""
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
        """Wait until what was ordered is on its way. To an agent that is gone: nothing."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(ConnectionError):
                await self._process.stdin.drain()

    async def close(self) -> None:
        """Let the agent go, and see it end. One that still has output to send is waited for, and so is a link that stalls."""
        self._leave()
        self.order(Bye())
        self._moved_at = time.monotonic()
        while self._reading is not None and not self._reading.done():
            if self._overdue_s > 0:
                self._moved_at = time.monotonic()  # a link that stalls has all its time once it goes on
            moved_at = self._moved_at
            left_s = moved_at + ENDING_S - time.monotonic()
            await asyncio.wait([self._reading], timeout=min(max(left_s, UNREAD_S), 0.5))
            if left_s <= 0 and self._moved_at == moved_at:
                await self.kill()
                break

    @property
    def is_open(self) -> bool:
        """Whether anything can still come from the agent."""
        return self._reading is not None and not self._reading.done()

    def drop(self) -> None:
        """End the agent at once; its tasks die with it, and what it has not sent yet is lost."""
        self._leave()
        self._end_process()

    def _leave(self) -> None:
        if self._state is not State.ENDED:
            self._state = State.LEAVING

    async def kill(self) -> None:
        """`drop` it, and see it end."""
        self.drop()
        self._stop_listening()
        if self._reading is not None:
            await asyncio.wait([self._reading], timeout=ENDING_S)

    def _stop_listening(self) -> None:
        for listening in (self._beating, self._hurrying):
            if listening is not None:
                listening.cancel()

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
            self._heard_at = time.monotonic()
            try:
                for frame, payload in decoder.feed(data):
                    self._receive(frame, payload)
                data = b""
            except ChannelError as error:
                broken = str(error)
                self._end_process()
            except Exception as error:
                # A mistake of our own. A controller that no longer listens, and does not say so, would be worse.
                traceback.print_exc()
                broken = f"orch made a mistake: {type(error).__name__}: {error}"
                self._end_process()
        code = await self._process.wait()
        self._stop_listening()
        before, self._state = self._state, State.ENDED
        if before is not State.LEAVING:
            self._lose(Loss(self._describe_end(code, broken, has_answered=before is State.ANSWERING)))
        self._refuse_requests()

    def _receive(self, frame: messages.Frame, data: bytes) -> None:
        if self._state is State.STARTED:
            self._state = State.ANSWERING
        if isinstance(frame, messages.Pong):
            return
        self._moved_at = self._heard_at
        refuse_strangers(frame, self._ordered)
        frame = self.clock.translate(frame, self.host.name, now())
        if isinstance(frame, messages.Answer):
            self._on_answer(frame)
        elif not isinstance(frame, messages.Gone | messages.Pong):
            self._on_frame(self.host.name, frame, data)

    def _on_answer(self, answer: messages.Answer) -> None:
        requests = self._requests[type(answer)]
        if requests:  # or nobody has asked
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
        """Whether the program is the wrong one, or this machine is short of something."""
        failure = StartFailure(self._transport.argv[0], error=error)
        if error.errno in _NO_PROGRAM:
            return UsageError(self._explain(self.host, failure).text)
        remedy = "this machine is short of open files (ulimit -n), of processes (ulimit -u) or of memory: raise the limit"
        return OrchError(f"{failure.text}; {remedy}")


def reporting_mistakes(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """A task whose result nobody takes: an exception in it goes to the loop's exception handler, and so ends the run."""

    def report(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            task.get_loop().call_exception_handler({"message": "a host is no longer watched", "exception": task.exception()})

    task = asyncio.create_task(work)
    task.add_done_callback(report)
    return task
