"""The controller's end of a connection: an agent is started, gets orders and requests, and its frames arrive here and nowhere else."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from worker.machine.clock import now
from worker.protocol import messages
from worker.protocol.channel import ChannelError, Decoder, encode
from worker.protocol.messages import FRAMES, Ack, Bye, Ping
from worker.protocol.replay import Replay, goodbye

from ...errors import OrchError
from .. import Host, Reaching, StartFailure, Transport
from .agent_pipes import UNKNOWN, AgentProgram
from .agent_process import StartedAgent, limit_log
from .agent_start import AgentStart, Explain, NotReachedError, read_log
from .incoming_frames import LARGE, Expected, HostClock, shorten_event

if TYPE_CHECKING:
    from .reconnection import Return

ENDING_S = 10.0
"""How long an agent may send nothing, after `Bye`, before it is killed."""
HERE_LOST_S = 60.0
"""The silence that loses an agent on this machine. Only what no signal can wake is silent so long (a dead disk, a frozen cgroup)."""
DUE_LOST_S = 5.0
"""How long an agent may be silent once the end is due: the user has asked twice, or a deadline of the user has passed."""
BEATS = 8
"""How often an agent is asked for a sign of life within the time of silence that loses it."""
SIGN_BYTES = 1024
"""More bytes than a sign of life has: so many of an unfinished frame are output that comes slowly."""
GOODBYE_S = 2.0
"""How long an agent that would wait has to end after a goodbye, before its channel is closed."""
UNREAD_S = 0.1
"""After a standstill of this process, the loop reads for so long what has come meanwhile, before any agent is given up."""


class LostError(OrchError):
    """An agent sends nothing more."""

    def __init__(self, host: str, reason: str, overdue_s: float | None = None, ended_at: float | None = None) -> None:
        super().__init__(f"host {host} cannot be used: {reason}")
        self.host, self.reason, self.overdue_s, self.ended_at = host, reason, overdue_s, ended_at
        """`overdue_s`: for how many seconds the silence of the agent has been more than a pause. The agent may still live behind a broken
        connection; then it counts its controller as lost, and ends. None: the channel has ended. `ended_at`: when, if it took time to find
        out why."""


T = TypeVar("T")
Unasked = messages.HostEvent | messages.TaskEvent | messages.Output | messages.Sampled
"""The frames that an agent sends of its own accord."""
OnFrame = Callable[[str, Unasked, bytes], None]
"""Gets the name of the host, a frame that answers no request, and the data of the frame."""
OnLost = Callable[[LostError], None]


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

    def __init__(self, host: Host, log: Path, on_frame: OnFrame, on_lost: OnLost, started: StartedAgent | None = None) -> None:
        """`started`: the agent, if it was started already."""
        self.host = host
        self.clock = HostClock()
        self.note = ""
        """A line for the user about the warm process, if there is one."""
        self._log, self._on_frame, self._on_lost = log, on_frame, on_lost
        self._process: AgentProgram | None = None
        self.secret = os.urandom(16).hex() if host.transport.returns and host.lost_after_s else ""
        """`Hello.secret`."""
        self._start = AgentStart(host, log, self.secret, started)
        self._sent = Replay() if self.secret else None
        self._received = 0
        """How many bytes of frames have come, since the first channel began."""
        self._decoder = Decoder(FRAMES)
        self._door = ""
        """`HostReady.door`; empty: a cut channel is a lost host."""
        self._cut = ""
        """Why there is no channel now, while the agent may wait for this process to come back; empty: there is one."""
        self._return: Return | None = None
        self.gate = asyncio.Semaphore(1)
        """Admits the links that may begin to connect at one time: `reach` sets the gate of all links."""
        self._is_over = asyncio.Event()
        """The agent is lost or dropped: nobody comes back to it."""
        self._reading: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        """Gives the agent up after too long a silence."""
        self._silence_s = float("inf")
        """The silence that loses the agent."""
        self._heard_at = 0.0
        """When anything came last."""
        self._ended = 0, ""
        """The exit code of the channel's program, and what was wrong with the frames."""
        self._has_answered = self._has_returned = False
        """A frame of an agent has come: the program of the transport has become one. The channel is one that was made again."""
        self._is_leaving = False
        """The controller has let the agent go: the end of the channel is no loss."""
        self._is_dropped = False
        """The controller wants nothing more of the agent."""
        self._foretold: asyncio.Task[Any] | None = None
        """The question to the place why the agent is about to end: soon the place may not know it any more."""
        self._lost: LostError | None = None
        """Set when nothing more comes, also after `close` and `drop`."""
        self._progress_at = 0.0
        """When anything came last that was not only a sign of life."""
        self._expected = Expected()
        self._requests: defaultdict[type, deque[asyncio.Future[Any]]] = defaultdict(deque)
        """By the kind of their answers. An agent answers orders of one kind in their order, but serves one `Try` at a time."""

    async def open(self, transport: Transport, explain: Explain) -> None:
        """Start the agent. Raises `UsageError` for a program that cannot run, `OrchError` if none can, `NotReachedError` without a mark."""
        self._transport, self._explain = transport, explain
        self._process, self.note = await self._start.run(transport, explain)
        self._heard_at = self._progress_at = time.monotonic()
        self._reading = asyncio.create_task(self._read())

    def keep_alive(self) -> None:
        """Send signs of life until the agent ends, and lose the agent once it has sent nothing for too long."""
        self._allow_silence(self.host.lost_after_s or HERE_LOST_S)

    def limit_silence(self) -> None:
        """The end is due: from here on, an agent that gives no sign of life for `DUE_LOST_S` is lost."""
        if self.is_open:
            self._allow_silence(DUE_LOST_S)

    def _allow_silence(self, silence_s: float) -> None:
        """Lose the agent after so many seconds of silence, unless an earlier limit is shorter."""
        if silence_s < self._silence_s:
            self._silence_s = silence_s
            self._stop_watching()
            self._watching = asyncio.create_task(self._watch(silence_s))

    def _stop_watching(self) -> None:
        if self._watching is not None:
            self._watching.cancel()

    async def _watch(self, silence_s: float) -> None:
        """Ask for signs of life until none has come for so many seconds.

        A standstill of this process (Ctrl-Z, a closed laptop) counts as one beat, because this process reads nothing then.
        """
        beat_s, silent_s = silence_s / BEATS, 0.0
        while silent_s < silence_s:
            asked_at = time.monotonic()
            self.order(Ping())
            limit_log(self._log)
            await asyncio.sleep(beat_s)
            silent_s += min(time.monotonic() - asked_at, 1.5 * beat_s)
            if silent_s >= silence_s:
                await asyncio.sleep(UNREAD_S)
            # An agent that has got its `Hello` and has not sent its facts may be too busy to send anything else.
            is_busy = self._requests[messages.HostReady] and not self._is_leaving
            if self._heard_at >= asked_at or is_busy:
                silent_s = 0.0
            elif silent_s >= silence_s / 2 and self._door and not self._cut:
                # The line may be up again, or another may be: TCP tries the old one again in its own time, which doubles.
                self._cut = f"no message from it for {silent_s:.0f} s"
                self._kill_process()
        overdue_s = time.monotonic() - self._heard_at - 1.5 * beat_s
        # In a call of its own, so that the handler of the loop gets the exceptions of `on_lost`.
        reason = f"no message from it for {silence_s:g} s"
        if self._cut and not self._cut.startswith("no message"):
            reason = f"{self._cut}; it could not be reached again for {silence_s:g} s"
        asyncio.get_running_loop().call_soon(self._lose, reason, overdue_s)

    def _lose(self, reason: str, overdue_s: float | None = None, ended_at: float | None = None) -> None:
        """Nothing more comes: report this, unless the controller has let the agent go, and raise it in every request that waits."""
        if self._lost is not None:
            return
        self._lost = LostError(self.host.name, reason, overdue_s, ended_at)
        self._is_over.set()
        self._end_process()
        if not self._is_leaving:
            self._on_lost(self._lost)
        for waiting in (one for queue in self._requests.values() for one in queue):
            if not waiting.done():
                waiting.set_exception(self._lost)
                waiting.exception()  # marks the exception as seen: the caller of `request` may have given up meanwhile

    def order(self, message: Any, data: bytes = b"") -> None:
        """Send an order; nothing to an agent that has ended, which `on_lost` reports."""
        if isinstance(message, messages.StartTasks):
            self._expected.add(message.orders)
        if isinstance(message, Ping | Ack):
            message = replace(message, received=self._received)
        pipe = self._process.stdin if self._process is not None and not self._cut else None
        is_open = pipe is not None and not pipe.is_closing()
        if self._sent is None and not is_open:
            return
        sent = encode(message, data)
        if self._sent is not None:
            self._sent.keep(sent)
        if pipe is not None and is_open:
            pipe.write(sent)
        if isinstance(message, messages.StartTasks) and self._sent is not None:
            self.order(Ping())  # the answer frees the memory of this order, which may be long

    async def request(self, order: Any, answer: type[T]) -> T:
        """Send an order and return its answer, a frame of this type. Raises `LostError` if the agent ends before."""
        if self._lost is not None:
            raise self._lost
        waiting: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._requests[answer].append(waiting)
        self.order(order)
        return await waiting

    async def drain(self) -> None:
        """Wait until the orders are on their way; not for an agent that has ended."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(ConnectionError):
                await self._process.stdin.drain()

    async def close(self, *, keeps_state: bool = False) -> None:
        """Let the agent go, and wait for its end: also while it still sends output, or while the connection stalls.

        `keeps_state`: see `Bye`.
        """
        self._is_leaving = True
        self.order(Bye(keeps_state))
        if self._reading is None:
            return
        if self.host.lost_after_s is None:
            self._allow_silence(ENDING_S)
        while not self._reading.done():
            heard_at, progress_at = self._heard_at, self._progress_at
            self.order(Ping())
            await asyncio.wait([self._reading], timeout=ENDING_S)
            does_nothing = self._heard_at > heard_at and self._progress_at == progress_at  # but answers
            if does_nothing or self._lost is not None:
                await self.kill()
                return

    @property
    def is_open(self) -> bool:
        """Whether the agent can still send anything."""
        return self._reading is not None and not self._reading.done()

    def drop(self) -> None:
        """End the agent at once. Its tasks die with it, and output that it has not sent yet is lost."""
        self._is_leaving = self._is_dropped = True
        self._is_over.set()
        self._end_process()

    async def kill(self) -> None:
        """`drop` the agent, and wait for its end."""
        self.drop()
        if self._reading is not None:
            await asyncio.wait([self._reading], timeout=ENDING_S)

    def _end_process(self) -> None:
        """End what `open` started. An agent that would wait for this process to come back is told that nobody comes."""
        if self._return is not None:
            self._return.made.cancel()
        if (
            self._door
            and not self._cut
            and self._process is not None
            and self._process.stdin is not None
            and self._process.returncode is None
        ):
            self._process.stdin.write(goodbye(self.secret))
            asyncio.get_running_loop().call_later(GOODBYE_S, self._kill_process)
        else:
            self._kill_process()

    def _kill_process(self) -> None:
        if self._process is not None:
            self._process.kill()

    async def _read(self) -> None:
        await self._read_channel()
        ended_at = now()
        while not self._ended[1] and await self._come_back():
            await self._read_channel()
            ended_at = now()
        self._stop_watching()
        if self._transport.explains_end and self._has_answered and not (self._ended[1] or self._is_leaving):
            if self._foretold is not None:
                await asyncio.wait([self._foretold])
            reason = await asyncio.to_thread(self._explain, self.host, self._failure(self._ended[0], had_answered=True))
            self._lose(reason.text, ended_at=ended_at)
        else:
            self._lose("its agent has ended" if self._is_leaving else self._cut or self.describe_end())

    async def _read_channel(self) -> None:
        """Receive what comes until the channel ends."""
        assert self._process is not None
        assert self._process.stdout is not None
        broken = ""
        while not broken and (data := await self._process.stdout.read(1024 * 1024)):
            self._heard_at = time.monotonic()
            self._received += len(data)
            try:
                for frame, payload in self._decoder.feed(data):
                    self._receive(frame if self._decoder.json_size <= LARGE else shorten_event(frame), payload)
            except ChannelError as error:
                broken = str(error)
            except Exception as error:  # a mistake in orch; a controller that silently stops reading would be worse
                broken = f"orch made a mistake: {error}"
                asyncio.get_running_loop().call_exception_handler({"message": broken, "exception": error})
            if self._decoder.unfinished > SIGN_BYTES:
                self._progress_at = self._heard_at
        if broken:
            self._end_process()
        self._ended = await self._process.wait(), broken

    async def _come_back(self) -> bool:
        """The channel has ended. Whether there is a new one, by which the agent goes on; False: there is nothing to come back to."""
        code, is_agents = self._ended[0], self._transport.begin is not None and not self._has_returned  # later: of `return_program`
        if not self._door or self._is_dropped or (self._is_leaving and code == 0) or (is_agents and code != UNKNOWN):
            return False
        from .reconnection import BRIEF_S, NobodyWaitsError, Return, limit_of_try, pauses

        self._cut = self._cut or self.describe_end()
        cut_at, is_told, argv, other = time.monotonic(), False, self._transport.way_back or self._transport.argv, self._transport.argv
        for pause_s in pauses():
            async with self.gate:
                if self._is_over.is_set():
                    return False
                self._return = Return(self._transport, argv, self._log, self._door, self.secret, self._received)
                argv, other = other, argv
                await asyncio.wait([self._return.made], timeout=BRIEF_S)
            made = self._return.made
            is_told = is_told or (not made.done() and not self._is_over.is_set() and self._tell_of_cut())
            await asyncio.wait([made], timeout=limit_of_try(self._transport.limit_s, self._silence_s) - BRIEF_S)
            await self._return.give_up()  # does nothing once the channel is made
            try:
                return self._go_on(*made.result(), cut_at)
            except NobodyWaitsError:
                return False
            except (OSError, EOFError, asyncio.CancelledError):
                failure = self._failure(code, had_answered=True)
                if self._transport.explains_end and not (await asyncio.to_thread(self._explain, self.host, failure)).passing:
                    return False  # the place knows that the host has ended
                is_told = is_told or (not self._is_over.is_set() and self._tell_of_cut())
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._is_over.wait(), pause_s)
            except Exception as error:  # a mistake in orch; the loss of the host tells of it
                self._cut = f"{self._cut}; orch made a mistake on the way back: {error}"
                return False
        return False

    def _tell_of_cut(self) -> bool:
        """Tell the user of a way back that takes time."""
        self._note(f"the connection was cut: {self._cut}; trying to connect again, for {self._silence_s:g} s at most")
        return True

    def _go_on(self, process: AgentProgram, received: int, cut_at: float) -> bool:
        """Use a new channel, whose agent has received so many bytes of orders."""
        assert self._sent is not None
        assert process.stdin is not None
        self._process, self._return, self._has_returned, cut, self._cut = process, None, True, self._cut, ""
        self._heard_at = self._progress_at = time.monotonic()
        try:
            process.stdin.write(self._sent.after(received))
        except ValueError as error:
            self._cut = str(error)
        if self._lost is not None or self._is_dropped or self._cut:
            self._end_process()
            return not self._cut
        self._note(f"the connection was cut: {cut}; it was made again after {self._heard_at - cut_at:.1f} s, and nothing is lost")
        return True

    def _note(self, text: str) -> None:
        self._on_frame(self.host.name, messages.RunNoted(text, now(), self.host.name), b"")

    def _receive(self, frame: messages.Frame, data: bytes) -> None:
        if self._lost is not None:
            return
        self._has_answered = True
        if isinstance(frame, messages.HostReady) and self.secret:
            self._door = frame.door
            if not frame.door:
                self._sent = None
        if isinstance(frame, messages.Pong):
            if self._sent is not None:
                self._sent.forget(frame.received)
        else:
            self._progress_at = self._heard_at
        self._expected.check(frame, data)
        frame = self.clock.translate(frame, self.host.name, now())
        if isinstance(frame, messages.Answer):
            requests = self._requests[type(frame)]
            if requests and not (waiting := requests.popleft()).done():  # no request: the agent answers without one
                waiting.set_result(frame)
        elif not isinstance(frame, messages.Pong):
            if isinstance(frame, messages.RunNoted) and frame.ends and self._transport.explains_end and not self._is_leaving:
                failure = self._failure(0, had_answered=True)
                self._foretold = self._foretold or asyncio.create_task(asyncio.to_thread(self._explain, self.host, failure))
            self._on_frame(self.host.name, frame, data)

    def describe_end(self) -> str:
        """How the channel has ended."""
        code, broken = self._ended
        failure = self._failure(code)
        if self._has_answered or self._transport.brings_worker:
            return broken or failure.text
        told = self._explain(self.host, failure)
        return (replace(told, cause=broken) if broken else told).text

    def _failure(self, code: int, *, had_answered: bool = False) -> StartFailure:
        return StartFailure(self._transport.argv[0], code, read_log(self._log), had_answered=had_answered)


async def reach(link: AgentLink, transport: Transport, explain: Explain, reaching: Reaching, gate: asyncio.Semaphore) -> None:
    """Start the agent of a host, once more where another try may help. `gate` admits `at_once` callers. Raises as `AgentLink.open`."""
    wait_s, link.gate = reaching.first_wait_s, gate
    for left in reversed(range(reaching.tries)):
        async with gate:
            try:
                await link.open(transport, explain)
                return
            except NotReachedError as error:
                if not (error.diagnosis.passing and left):
                    raise
        import random  # most runs need no second try

        await asyncio.sleep(wait_s * random.uniform(0.5, 1.5))  # hosts that were refused together must not try again together
        wait_s *= 2
