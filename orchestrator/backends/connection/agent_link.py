"""The controller's end of a connection: an agent is started, gets orders and requests, and its frames arrive here and nowhere else."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import os
import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from worker.machine.clock import now
from worker.protocol import messages
from worker.protocol.channel import ChannelError
from worker.protocol.messages import Bye, Ping

from ...errors import OrchError
from .. import Diagnosis, Host, Reaching, Transport
from .agent_channel import AgentChannel
from .agent_pipes import UNKNOWN, AgentProgram
from .agent_process import limit_log
from .agent_start import AgentStart, Explain, NotReachedError
from .incoming_frames import HostClock, Incoming
from .liveness import Liveness

ENDING_S = 10.0
"""How long an agent may send nothing, after `Bye`, before it is killed."""
HERE_LOST_S = 60.0
"""The silence that loses an agent on this machine. Only what no signal can wake is silent so long (a dead disk, a frozen cgroup)."""
DUE_LOST_S = 5.0
"""How long an agent may be silent once the end is due: the user has asked twice, or a deadline of the user has passed."""
SIGN_BYTES = 1024
"""More bytes than a sign of life has: so many of an unfinished frame are output that comes slowly."""


class LostError(OrchError):
    """An agent sends nothing more."""

    def __init__(self, host: str, reason: str, overdue_s: float | None = None, ended_at: float | None = None, remedy: str = "") -> None:
        super().__init__(f"host {host} cannot be used: {reason}", remedy)
        self.host, self.reason, self.overdue_s, self.ended_at, self.remedy = host, reason, overdue_s, ended_at, remedy
        """`overdue_s`: for how many seconds the silence of the agent has been more than a pause. The agent may still live behind a broken
        connection; then it counts its controller as lost, and ends. None: the channel has ended. `ended_at`: when, if it took time to find
        out why."""


T = TypeVar("T")
Unasked = messages.HostEvent | messages.TaskEvent | messages.Output | messages.Sampled
"""The frames that an agent sends without being asked."""
OnFrame = Callable[[str, Unasked, bytes], None]
"""Gets the name of the host, a frame that answers no request, and the data of the frame."""
OnLost = Callable[[LostError], None]


class LinkState(enum.IntEnum):
    """Tells how far a link has come. It never goes back."""

    OPENED = 0
    """The program of the transport may have become no agent yet."""
    ANSWERED = 1
    """A frame of an agent has come."""
    LEAVING = 2
    """The controller has let the agent go: the end of the channel is no loss."""
    DROPPED = 3
    """The controller wants nothing more of the agent."""


class PendingRequests:
    """The requests to an agent that wait, by the kind of their answers. An agent answers orders of one kind in their order, but serves one
    `Try` at a time."""

    def __init__(self) -> None:
        self._waiting: defaultdict[type, deque[asyncio.Future[Any]]] = defaultdict(deque)

    def add(self, answer: type[T]) -> asyncio.Future[T]:
        """Return what will have the next answer of this kind."""
        waiting: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting[answer].append(waiting)
        return waiting

    def have(self, answer: type) -> bool:
        """True if an answer of this kind is missing."""
        return bool(self._waiting[answer])

    def answer(self, frame: messages.Answer) -> None:
        """Give an answer to the request that waits for it; to none, if the agent answers without one."""
        waiting = self._waiting[type(frame)]
        if waiting and not (first := waiting.popleft()).done():
            first.set_result(frame)

    def fail(self, error: Exception) -> None:
        """Raise an error in each request that waits."""
        for waiting in (one for queue in self._waiting.values() for one in queue):
            if not waiting.done():
                waiting.set_exception(error)
                waiting.exception()  # marks the exception as seen: the caller of `request` may have given up meanwhile


class AgentLink:
    """The connection to an agent that this process has started::

        link = AgentLink(host, log, on_frame, on_lost)
        await link.open(transport, explain)
        facts = await link.request(Hello(run_id, ...), HostReady)
        link.order(StartTasks(...))  # its frames go to `on_frame`
        await link.close()

    An answer goes to the `request` that it belongs to, and nowhere else. `on_frame` gets all other frames. `on_lost` gets the reason when
    the channel ends before `close` or `drop`; requests that are not answered by then raise `LostError`.
    """

    def __init__(self, host: Host, log: Path, on_frame: OnFrame, on_lost: OnLost) -> None:
        self.host, self._on_frame, self._on_lost = host, on_frame, on_lost
        self._state = LinkState.OPENED
        self._channel = AgentChannel(os.urandom(16).hex() if host.transport.returns and host.lost_after_s else "")
        self._start = AgentStart(host, log, self.secret)
        self._live = Liveness(self._ask, self._is_excused, self._doubt, self._lose_for_silence)
        self._incoming = Incoming(host.name)
        self._requests = PendingRequests()
        self._reading: asyncio.Task[None] | None = None
        self._foretold: asyncio.Task[Any] | None = None
        """The question to the place why the agent is about to end: soon the place may not know it any more."""
        self._lost: LostError | None = None
        """Set when nothing more comes, also after `close` and `drop`."""

    @property
    def secret(self) -> str:
        return self._channel.secret

    @property
    def clock(self) -> HostClock:
        return self._incoming.clock

    @property
    def note(self) -> str:
        """A line for the user about the warm process, if there is one."""
        return self._start.note

    @property
    def is_open(self) -> bool:
        """True if the agent can still send anything."""
        return self._reading is not None and not self._reading.done()

    async def open(self, transport: Transport, explain: Explain, gate: asyncio.Semaphore | None = None) -> None:
        """Start the agent. Raises `UsageError` for a program that cannot run, `OrchError` if none can, `NotReachedError` without a mark.

        `gate`: admits the links that may begin to connect again at one time.
        """
        self._channel.gate = gate or self._channel.gate
        self._channel.process = await self._start.run(transport, explain)
        self._live.begin()
        self._reading = asyncio.create_task(self._read())

    # --- orders and requests -----------------------------------------------------------------------

    def order(self, message: Any, data: bytes = b"") -> None:
        """Send an order; nothing to an agent that has ended, which `on_lost` reports."""
        if isinstance(message, messages.StartTasks):
            self._incoming.expected.add(message.orders)
        self._channel.write(message, data)
        if isinstance(message, messages.StartTasks) and self._channel.keeps_orders:
            self.order(Ping())  # the answer frees the memory of this order, which may be long

    async def request(self, order: Any, answer: type[T]) -> T:
        """Send an order and return its answer, a frame of this type. Raises `LostError` if the agent ends before."""
        if self._lost is not None:
            raise self._lost
        waiting = self._requests.add(answer)
        self.order(order)
        return await waiting

    async def drain(self) -> None:
        """Wait until the orders are on their way; not for an agent that has ended."""
        await self._channel.drain()

    # --- the end -----------------------------------------------------------------------------------

    def _advance(self, state: LinkState) -> None:
        self._state = max(self._state, state)

    @property
    def _is_leaving(self) -> bool:
        return self._state >= LinkState.LEAVING

    async def close(self, *, keeps_state: bool = False) -> None:
        """Let the agent go, and wait for its end, also while it sends output or the connection stalls. `keeps_state`: see `Bye`."""
        self._advance(LinkState.LEAVING)
        self.order(Bye(keeps_state))
        if self._reading is None:
            return
        if self.host.lost_after_s is None:
            self._live.allow_silence(ENDING_S)
        while not self._reading.done():
            heard_at, progress_at = self._live.heard_at, self._live.progress_at
            self.order(Ping())
            await asyncio.wait([self._reading], timeout=ENDING_S)
            does_nothing = self._live.heard_at > heard_at and self._live.progress_at == progress_at  # but answers
            if does_nothing or self._lost is not None:
                await self.kill()
                return

    def drop(self) -> None:
        """End the agent at once. Its tasks die with it, and output that it has not sent yet is lost."""
        self._advance(LinkState.DROPPED)
        self._channel.is_over.set()
        self._channel.end()

    async def kill(self) -> None:
        """`drop` the agent, and wait for its end."""
        self.drop()
        if self._reading is not None:
            await asyncio.wait([self._reading], timeout=ENDING_S)

    def _lose(self, reason: str, overdue_s: float | None = None, ended_at: float | None = None, remedy: str = "") -> None:
        """Nothing more comes: report this, unless the controller has let the agent go, and raise it in every request that waits."""
        if self._lost is not None:
            return
        self._lost = LostError(self.host.name, reason, overdue_s, ended_at, remedy)
        self._channel.is_over.set()
        self._channel.end()
        if not self._is_leaving:
            self._on_lost(self._lost)
        self._requests.fail(self._lost)

    def diagnose_end(self) -> Diagnosis:
        """Return how the channel has ended."""
        code, broken = self._channel.ended
        failure = self._start.failure(code)
        if self._state >= LinkState.ANSWERED or self._start.transport.brings_worker:
            return Diagnosis(broken or failure.text)
        told = self._start.explain(self.host, failure)
        return replace(told, cause=broken) if broken else told

    # --- signs of life -----------------------------------------------------------------------------

    def keep_alive(self) -> None:
        """Send signs of life until the agent ends, and lose the agent once it has sent nothing for too long."""
        self._live.allow_silence(self.host.lost_after_s or HERE_LOST_S)

    def limit_silence(self) -> None:
        """The end is due: from here on, an agent that gives no sign of life for `DUE_LOST_S` is lost."""
        if self.is_open:
            self._live.allow_silence(DUE_LOST_S)

    def _ask(self) -> None:
        self.order(Ping())
        limit_log(self._start.log)

    def _is_excused(self) -> bool:
        """An agent that has got its `Hello` and has not sent its facts may be too busy to send anything else."""
        return self._requests.have(messages.HostReady) and not self._is_leaving

    def _doubt(self, silent_s: float) -> None:
        """The line may be up again, or another may be: TCP tries the old one again in its own time, which doubles."""
        if self._channel.door and not self._channel.cut:
            self._channel.cut = f"no message from it for {silent_s:.0f} s"
            self._channel.kill()

    def _lose_for_silence(self, silence_s: float, overdue_s: float) -> None:
        reason, cut = f"no message from it for {silence_s:g} s", self._channel.cut
        if cut and not cut.startswith("no message"):
            reason = f"{cut}; it could not be reached again for {silence_s:g} s"
        self._lose(reason, overdue_s)

    # --- what comes --------------------------------------------------------------------------------

    async def _read(self) -> None:
        await self._read_channel()
        ended_at: float | None = now()
        channel = self._channel
        while not channel.ended[1] and await self._come_back():
            await self._read_channel()
            ended_at = now()
        self._live.stop()
        if self._start.transport.explains_end and self._state == LinkState.ANSWERED and not channel.ended[1]:
            if self._foretold is not None:
                await asyncio.wait([self._foretold])
            told = await self._start.ask_why(channel.ended[0])
        else:
            ended_at, cut = None, "its agent has ended" if self._is_leaving else channel.cut
            told = Diagnosis(cut) if cut else self.diagnose_end()
        self._lose(told.cause, ended_at=ended_at, remedy=told.remedy)

    async def _read_channel(self) -> None:
        process, broken = self._channel.process, ""
        assert process is not None
        assert process.stdout is not None
        while not broken and (data := await process.stdout.read(1024 * 1024)):
            self._live.hear()
            self._channel.received += len(data)
            try:
                for frame, payload in self._incoming.feed(data):
                    self._receive(frame, payload)
            except ChannelError as error:
                broken = str(error)
            except Exception as error:  # a mistake in orch; a controller that silently stops reading would be worse
                broken = f"orch made a mistake: {error}"
                asyncio.get_running_loop().call_exception_handler({"message": broken, "exception": error})
            if self._incoming.unfinished > SIGN_BYTES:
                self._live.progress()
        if broken:
            self._channel.end()
        self._channel.ended = await process.wait(), broken

    def _receive(self, frame: messages.Frame, data: bytes) -> None:
        if self._lost is not None:
            return
        self._advance(LinkState.ANSWERED)
        if isinstance(frame, messages.Pong):
            self._channel.forget(frame.received)
            return
        self._live.progress()
        if isinstance(frame, messages.HostReady):
            self._channel.open_door(frame.door)
        if isinstance(frame, messages.Answer):
            self._requests.answer(frame)
            return
        if isinstance(frame, messages.RunNoted) and frame.ends and self._start.transport.explains_end and not self._is_leaving:
            self._foretold = self._foretold or asyncio.create_task(self._start.ask_why(0))
        self._on_frame(self.host.name, frame, data)

    # --- the way back ------------------------------------------------------------------------------

    async def _come_back(self) -> bool:
        """The channel has ended. Whether there is a new one, by which the agent goes on; False: there is nothing to come back to."""
        channel, transport = self._channel, self._start.transport
        code, is_agents = channel.ended[0], transport.begin is not None and not channel.has_returned  # later: of `return_program`
        is_over = self._state == LinkState.DROPPED or (self._is_leaving and code == 0)
        if not channel.door or is_over or (is_agents and code != UNKNOWN):
            return False
        from .reconnection import BRIEF_S, NobodyWaitsError, Return, limit_of_try, pauses

        channel.cut = channel.cut or self.diagnose_end().cause
        cut_at, is_told, argv, other = time.monotonic(), False, transport.way_back or transport.argv, transport.argv
        for pause_s in pauses():
            async with channel.gate:
                if channel.is_over.is_set():
                    return False
                channel.returning = Return(transport, argv, self._start.log, channel.door, self.secret, channel.received)
                argv, other = other, argv
                await asyncio.wait([channel.returning.made], timeout=BRIEF_S)
            made = channel.returning.made
            is_told = is_told or (not made.done() and self._tell_of_cut())
            await asyncio.wait([made], timeout=limit_of_try(transport.limit_s, self._live.silence_s) - BRIEF_S)
            await channel.returning.give_up()  # does nothing once the channel is made
            try:
                return self._go_on(*made.result(), cut_at)
            except NobodyWaitsError:
                return False
            except (OSError, EOFError, asyncio.CancelledError):
                if transport.explains_end and not (await self._start.ask_why(code)).passing:
                    return False  # the place knows that the host has ended
                is_told = is_told or self._tell_of_cut()
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(channel.is_over.wait(), pause_s)
            except Exception as error:  # a mistake in orch; the loss of the host tells of it
                channel.cut = f"{channel.cut}; orch made a mistake on the way back: {error}"
                return False
        return False

    def _tell_of_cut(self) -> bool:
        """Tell the user of a way back that takes time. Returns whether there is still one."""
        if self._channel.is_over.is_set():
            return False
        self._note(f"the connection was cut: {self._channel.cut}; trying to connect again, for {self._live.silence_s:g} s at most")
        return True

    def _go_on(self, process: AgentProgram, received: int, cut_at: float) -> bool:
        """Use a new channel, whose agent has received so many bytes of orders."""
        channel = self._channel
        cut = channel.go_on(process, received)
        self._live.begin()
        if self._lost is not None or self._state == LinkState.DROPPED or channel.cut:
            channel.end()
            return not channel.cut
        after_s = self._live.heard_at - cut_at
        self._note(f"the connection was cut: {cut}; it was made again after {after_s:.1f} s, and nothing is lost")
        return True

    def _note(self, text: str) -> None:
        self._on_frame(self.host.name, messages.RunNoted(text, now(), self.host.name), b"")


async def reach(link: AgentLink, transport: Transport, explain: Explain, reaching: Reaching, gate: asyncio.Semaphore) -> None:
    """Start the agent of a host, once more where another try may help. `gate` admits `at_once` callers. Raises as `AgentLink.open`."""
    wait_s = reaching.first_wait_s
    for left in reversed(range(reaching.tries)):
        async with gate:
            try:
                await link.open(transport, explain, gate)
                return
            except NotReachedError as error:
                if not (error.diagnosis.passing and left):
                    raise
        import random  # most runs need no second try

        await asyncio.sleep(wait_s * random.uniform(0.5, 1.5))  # hosts that were refused together must not try again together
        wait_s *= 2
