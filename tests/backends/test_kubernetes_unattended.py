"""A run whose controller is in a pod: the port to which the other pods dial, and the whole in a real Kubernetes."""

from __future__ import annotations

import asyncio
import fcntl
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from orchestrator.backends import Diagnosis, Host, Transport
from orchestrator.backends.connection import listener
from orchestrator.backends.connection.agent_link import AgentLink
from orchestrator.backends.connection.agent_pipes import make_protocol
from orchestrator.backends.connection.listener import DialledAgent, Listener, SealedReader
from orchestrator.backends.kubernetes import keeper_program
from tests.conftest import ROOT
from tests.live import wait_until
from worker.host.network import dialler, proof
from worker.protocol import messages

TOKEN = "0123456789abcdef" * 4
SECRET = TOKEN.encode()
HELLO = b'{"node": "a", "address": "10.0.0.7", "number": 1}\n'


def greet(line: socket.socket, words: bytes = HELLO) -> proof.Seal:
    """Say these words over a connection, as a pod that knows the token."""
    seal = proof.meet(line, SECRET)
    line.sendall(seal.seal(words))
    return seal


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[Listener, int]]:
    found = Listener(SECRET)
    port = await found.open(0, "127.0.0.1")
    try:
        yield found, port
    finally:
        found.close()
        await asyncio.sleep(0.1)  # connections that are accepted, or aborted, at this moment are closed by the loop


@contextmanager
def started(argv: list[str], **env: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(argv, env={**os.environ, **env}) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def dialling(port: int, token: Path, before_s: float = 60, after_s: float = 60) -> Iterator[subprocess.Popen[bytes]]:
    token.write_text(TOKEN)
    argv = [sys.executable, "-I", dialler.__file__, "127.0.0.1", str(port), str(token), str(before_s), str(after_s)]
    env = {dialler.POD: "a", dialler.ADDRESS: "10.0.0.7"}
    with started(argv, **env) as process:
        yield process


async def line_of(found: Listener) -> listener.DialledLine:
    await found.until(lambda: "a" in found.lines)
    return found.lines["a"]


async def run_program(found: Listener, log: Path, program: str) -> tuple[bytes, int]:
    """The output and the exit code of a program in the pod."""
    with open(log, "ab") as stderr:
        agent = DialledAgent(found, "a", stderr.fileno())
    await agent.connect()
    assert agent.stdin is not None
    assert agent.stdout is not None
    agent.stdin.write(program.encode() + b"\n")
    return await agent.stdout.read(), await agent.wait()


def test_programs_are_started_in_a_pod_that_dials_one_after_the_other_and_at_the_same_time(tmp_path: Path) -> None:
    async def use() -> None:
        async with listening() as (found, port):
            with dialling(port, tmp_path / "token"):
                line = await line_of(found)
                assert (line.node, line.address) == ("a", "10.0.0.7")
                both = (
                    run_program(found, tmp_path / "log", f"print({n});import sys;sys.stderr.write('e{n}');sys.exit({n})") for n in (3, 4)
                )
                assert sorted(await asyncio.gather(*both)) == [(b"3\n", 3), (b"4\n", 4)]
                assert sorted((tmp_path / "log").read_text()) == sorted("e3e4")
                out, code = await run_program(found, tmp_path / "log", "import os;os.kill(os.getpid(), 9)")
                assert (out, code) == (b"", -9)
                out, code = await run_program(found, tmp_path / "log", "import os;print('DIALLER_POD' in os.environ)")
                assert (out, code) == (b"False\n", 0)

    asyncio.run(use())


def test_a_pod_dials_again_when_the_controller_listens_again_and_ends_with_the_controller(tmp_path: Path) -> None:
    async def use() -> None:
        first = Listener(SECRET)
        port = await first.open(0, "127.0.0.1")
        with dialling(port, tmp_path / "token", after_s=3) as pod:
            await line_of(first)
            first.close()
            second = Listener(SECRET)
            await second.open(port, "127.0.0.1")
            await line_of(second)
            second.close()
            assert await asyncio.to_thread(pod.wait) == 0

    asyncio.run(use())


def test_a_pod_that_never_reaches_a_controller_fails_so_that_another_one_is_made(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with dialling(port, tmp_path / "token", before_s=0.5) as pod:
        assert pod.wait() == 1


def test_sigterm_goes_to_the_agents_of_a_pod_and_then_the_pod_ends(tmp_path: Path) -> None:
    async def use() -> None:
        async with listening() as (found, port):
            with dialling(port, tmp_path / "token") as pod:
                await line_of(found)
                program = "import signal,os,time;signal.signal(15,lambda *_:(print('saved'),os._exit(5)) if os.write(1,b'bye') else 0);"
                program += "os.write(1,b'up');time.sleep(600)"
                running = asyncio.create_task(run_program(found, tmp_path / "log", program))
                await asyncio.sleep(0)
                await found.until(lambda: "a" in found.lines and found.lines["a"].number > 1)
                await asyncio.to_thread(wait_until, lambda: _has_child(pod.pid), "program")
                await asyncio.sleep(0.5)
                pod.send_signal(signal.SIGTERM)
                assert await running == (b"upbye", 5)
                assert await asyncio.to_thread(pod.wait) == 143, "the Job makes another pod for it"

    asyncio.run(use())


def test_a_program_that_cannot_be_started_is_told_and_the_pod_goes_on(tmp_path: Path) -> None:
    async def use() -> None:
        async with listening() as (found, port):
            (tmp_path / "token").write_text(TOKEN)
            refusing = "import os,runpy,sys\nprogram, sys.argv[1:] = sys.argv[1], sys.argv[2:]\n"
            refusing += "def refuse(*_, **__): raise OSError(11, 'no process more')\nos.posix_spawn = refuse\n"
            refusing += "runpy.run_path(program, run_name='__main__')"
            argv = [sys.executable, "-c", refusing, dialler.__file__, "127.0.0.1", str(port), str(tmp_path / "token"), "60", "60"]
            with started(argv, **{dialler.POD: "a", dialler.ADDRESS: "10.0.0.7"}):
                for _ in range(2):
                    out, code = await run_program(found, tmp_path / "log", "print('never')")
                    assert (out, code) == (b"", dialler.NOT_STARTED)
                assert (tmp_path / "log").read_text().count("cannot start a program: [Errno 11] no process more") == 2

    asyncio.run(use())


def test_a_connection_that_comes_while_the_port_is_closed_is_closed_too() -> None:
    async def use() -> None:
        async with listening() as (found, _):
            pass
        here, there = socket.socketpair()
        with there:
            loop = asyncio.get_running_loop()
            await loop.connect_accepted_socket(lambda: make_protocol(SealedReader(), found._on_guest), sock=here)
            there.settimeout(0.0)
            assert await asyncio.wait_for(loop.sock_recv(there, 100), 20.0) == b""

    asyncio.run(use())


def test_an_agent_outlives_two_cuts_of_its_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first, the program that the pod tells of is no agent but the one that has brought the new connection."""
    monkeypatch.setattr(Listener.end_of, "__defaults__", (1.0,))
    lost: list[str] = []
    notes: list[str] = []

    async def use() -> None:
        async with listening() as (found, port):
            with dialling(port, tmp_path / "token"):
                transport = Transport(
                    ("dial", "a"), brings_worker=True, returns=True, begin=partial(DialledAgent, found, "a"), limit_s=30.0
                )
                host = Host("a", "10.0.0.7", sees_run_dir=False, lost_after_s=30.0, is_here=False, transport=transport)

                def hear(_: str, frame: Any, __: bytes) -> None:
                    notes.extend([frame.text] if isinstance(frame, messages.RunNoted) else [])

                link = AgentLink(host, tmp_path / "log", hear, lambda loss: lost.append(loss.reason))
                await link.open(transport, lambda *_: Diagnosis("not reached"))
                hello = messages.Hello("run", cwd=str(tmp_path), lost_after_s=30.0, secret=link.secret)
                assert (await link.request(hello, messages.HostReady)).door
                link.keep_alive()
                for number in (1, 2, 3):
                    assert link._channel.process is not None
                    assert link._channel.process.stdin is not None
                    link._channel.process.stdin.transport.abort()
                    while sum("nothing is lost" in note for note in notes) < number and not lost:
                        await asyncio.sleep(0.05)
                    assert not lost
                assert (await link.request(messages.Try(()), messages.Tried)).refused == ()
                await link.close()

    asyncio.run(use())


def _has_child(pid: int) -> bool:
    return bool(Path(f"/proc/{pid}/task/{pid}/children").read_text())


def test_the_keeper_tells_the_pods_of_the_run_alone_that_it_is_over(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "orch").symlink_to(ROOT)
    with open(tmp_path / "alive", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        words = (keeper_program.__file__, str(tmp_path), str(tmp_path / "token"), str(port), "600")
        with started([sys.executable, "-I", *words]) as keeper, dialling(port, tmp_path / "token") as pod:
            with pytest.raises(subprocess.TimeoutExpired):
                pod.wait(2 * keeper_program.LOOK_S)
            lock.close()  # the end of the controller
            assert pod.wait() == 0
            for said in (b"", b"x" * 64, TOKEN.encode()[:63], b"\0" * 5000):
                assert len(asyncio.run(said_to(port, said))) in (0, proof.NONCE_BYTES)
            keeper.send_signal(signal.SIGTERM)
            assert keeper.wait() == 0


# --- strangers -----------------------------------------------------------------------------------


async def said_to(port: int, data: bytes) -> bytes:
    """What a stranger gets who sends this."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        writer.write_eof()
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


def test_nobody_without_the_token_is_answered_or_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand byte strings, of which many are almost right, get nothing but random bytes and change nothing."""
    monkeypatch.setattr(listener, "HELLO_S", 5.0)
    monkeypatch.setattr(os, "urandom", lambda size: b"\1" * size)  # so that an answer of before would fit again
    rng = random.Random(30)
    right, _ = proof.greet(SECRET, b"\1" * proof.NONCE_BYTES)

    def mutant() -> bytes:
        data = bytearray(right)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(right))] = rng.randrange(256)
        return bytes(data) if data != right else b""

    async def use() -> None:
        async with listening() as (found, port):
            for _ in range(20):
                tries = [mutant() if rng.random() < 0.7 else rng.randbytes(rng.randrange(200)) for _ in range(50)]
                assert set(await asyncio.gather(*(said_to(port, data) for data in tries))) <= {b"", b"\1" * proof.NONCE_BYTES}
            assert not found.lines
            assert await said_to(port, right + HELLO) in (b"", b"\1" * proof.NONCE_BYTES), "who waits for no answer has not made the proof"
            with socket.create_connection(("127.0.0.1", port)) as line:
                await asyncio.to_thread(greet, line)
                assert (await line_of(found)).node == "a"

    asyncio.run(use())


@pytest.mark.parametrize(
    "words",
    [
        "", "[]", "{", '{"node": 1}', '{"node": "A/../b", "address": "1.1.1.1", "number": 1}',
        '{"node": "a", "address": "$(x)", "number": 1}',
        '{"node": "a", "address": "1.1.1.1", "number": true}', "[" * 100_000, '{"node": "' + "a" * 20_000 + '"}', '{"ended": "x"}',
    ],
)  # fmt: skip
def test_words_with_the_token_that_no_pod_sends_are_dropped(words: str) -> None:
    async def use() -> None:
        async with listening() as (found, port):
            with socket.create_connection(("127.0.0.1", port)) as line:
                await asyncio.to_thread(greet, line, words.encode() + b"\n")
                assert await asyncio.to_thread(_end_of, line) == b""
            assert not found.lines

    asyncio.run(use())


def test_strangers_are_bounded_in_number_time_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "HELLO_S", 0.5)
    monkeypatch.setattr(listener, "MOST_STRANGERS", 8)

    async def use() -> None:
        async with listening() as (found, port):
            lines = [await asyncio.open_connection("127.0.0.1", port) for _ in range(30)]
            for reader, writer in lines:  # all are closed, though none of them says anything
                assert len(await _until_end(reader)) in (0, proof.NONCE_BYTES)
                writer.close()
            assert not found._strangers
            monkeypatch.setattr(listener, "HELLO_S", 1e6)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"x" * proof.GREETING_BYTES)  # no more is waited for
            assert len(await _until_end(reader)) in (0, proof.NONCE_BYTES)
            writer.close()

    asyncio.run(use())


def test_a_crowd_of_strangers_keeps_no_pod_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a pod that is there before the crowd and slow, nor one that comes after it. All places are taken, and no time frees them."""
    monkeypatch.setattr(listener, "HELLO_S", 1e6)
    monkeypatch.setattr(listener, "MOST_STRANGERS", 8)

    async def use() -> None:
        with ExitStack() as lines:

            def come(address: str) -> socket.socket:
                return lines.enter_context(socket.create_connection(("127.0.0.1", port), source_address=(address, 0)))

            async with listening() as (found, port):
                slow = come("127.0.0.1")
                for _ in range(30):
                    come("127.0.0.2")
                    await asyncio.sleep(0.01)
                await asyncio.to_thread(greet, slow)
                await line_of(found)
                come("127.0.0.2")
                await asyncio.to_thread(greet, come("127.0.0.1"), HELLO.replace(b'"a"', b'"b"'))
                await found.until(lambda: "b" in found.lines)
                assert 7 <= len(found._strangers) <= 8

    asyncio.run(use())


def _end_of(line: socket.socket) -> bytes:
    with suppress(ConnectionError):
        return line.recv(100)
    return b""


async def _until_end(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionError:
        return b""
