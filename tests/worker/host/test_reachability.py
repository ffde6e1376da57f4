"""Trying to reach other hosts, with real sockets; only the resolver is ours."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.live import PATIENCE_S, wait_for_file
from worker.host.network import reachability
from worker.host.processes.loop import Loop
from worker.protocol.messages import Refused, Target

REAL = socket.getaddrinfo


def tried(loop: Loop, *targets: Target) -> dict[str, str]:
    """Why each host was not reached; empty: it was."""
    results: list[tuple[Refused, ...]] = []
    reachability.try_to_reach(loop, targets, results.append)
    loop.run(lambda: bool(results))
    return {**{target.host: "" for target in targets}, **{result.host: result.refusal for result in results[0]}}


@contextmanager
def answering(loop: Loop) -> Iterator[int]:
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(("0.0.0.0", 0))
        listener = reachability.ProbeListener(loop, holder.getsockname()[1], "word")
        with contextlib.closing(listener):
            yield holder.getsockname()[1]


def test_names_are_looked_up_beside_each_other_while_the_loop_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The resolver answers only when the loop has done something else, and when as many ask as may at a time."""
    loop, went_on = Loop(), tmp_path / "went on"
    all_ask = threading.Barrier(reachability.AT_ONCE)

    def resolve(name: str, port: int, **options: Any) -> Any:
        if name in ("127.0.0.1", "localhost"):
            return REAL(name, port, family=socket.AF_INET, **options)
        if name == "first":
            all_ask.wait(PATIENCE_S)
        wait_for_file(went_on)
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    loop.after(0, went_on.touch)
    with answering(loop) as port:
        dead = [
            Target(f"dead-{number}", (port,), "word", ("first" if number < reachability.AT_ONCE else "later",)) for number in range(100)
        ]
        refusals = tried(loop, *dead, Target("number", (port,), "word", ("127.0.0.1",)), Target("name", (port,), "word", ("localhost",)))
    assert refusals.pop("number") == refusals.pop("name") == ""
    assert len(refusals) == 100
    assert set(refusals.values()) == {"temporary failure in name resolution"}


def test_a_name_that_no_resolver_takes_is_a_refusal() -> None:
    refusals = tried(Loop(), Target("dead", (1,), "word", ("a" * 64 + ".example",)))
    assert "label" in refusals["dead"]


def test_a_connection_that_is_lost_is_tried_again_from_another_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first goes to a server whose queue is full: the kernel drops it, as a path does that loses connections."""
    monkeypatch.setattr(reachability, "TRY_S", 0.5)
    connected: list[Any] = []

    class Socket(socket.socket):
        def connect(self, address: Any) -> None:
            connected.append(address)
            super().connect(full.getsockname() if len(connected) == 1 else address)

    loop = Loop()
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, socket.create_connection(full.getsockname()), answering(loop) as port:
        monkeypatch.setattr(socket, "socket", Socket)
        assert tried(loop, Target("host", (port,), "word", ("127.0.0.1",))) == {"host": ""}


def test_a_host_that_answers_no_connection_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reachability, "TRY_S", 0.1)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, socket.create_connection(full.getsockname()):
        assert tried(Loop(), Target("host", (full.getsockname()[1],), "word", ("127.0.0.1",))) == {"host": "timed out"}


def test_a_host_that_is_reached_may_take_its_time_to_say_its_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its agent is busy: the kernel has taken the connection long before."""
    monkeypatch.setattr(reachability, "TRY_S", 0.1)
    loop = Loop()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            peer, _ = server.accept()
            with peer:
                peer.send(b"word")

        loop.after(reachability.TRY_S * 5, answer)
        assert tried(loop, Target("host", (server.getsockname()[1],), "word", ("127.0.0.1",))) == {"host": ""}


def test_a_host_that_is_reached_and_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reachability, "WORD_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        refusals = tried(Loop(), Target("host", (server.getsockname()[1],), "word", ("127.0.0.1",)))
    assert refusals == {"host": "it is reached, and says nothing for 0.1 s"}


def test_a_child_that_fails_is_a_refusal_with_a_traceback(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    refusals = tried(Loop(), Target("host", (1,), "word", ("127.0.0.1",)))
    assert refusals == {"host": "could not be tried: the process that tries to connect has ended early"}
    assert "RuntimeError: can't start new thread" in capfd.readouterr().err


def test_a_child_that_cannot_be_forked_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def fork() -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", fork)
    refusals = tried(Loop(), Target("host", (1,), "word", ("127.0.0.1",)))
    assert refusals == {"host": "could not be tried: Resource temporarily unavailable"}


def test_a_few_threads_try_all_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may have tried all targets before another one is started in vain."""
    start, started = threading.Thread.start, list[threading.Thread]()

    def start_two(thread: threading.Thread) -> None:
        if len(started) == 2:
            for one in started:
                one.join()
            raise RuntimeError("can't start new thread")
        start(thread)
        started.append(thread)

    monkeypatch.setattr(threading.Thread, "start", start_two)
    loop = Loop()
    with answering(loop) as port:
        assert tried(loop, *(Target(f"host-{n}", (port,), "word", ("127.0.0.1",)) for n in range(5))) == {f"host-{n}": "" for n in range(5)}


def test_a_resolver_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reachability, "LOOKUP_S", 1.0)

    def resolve(name: str, port: int, **options: Any) -> Any:
        if name == "127.0.0.1":
            return REAL(name, port, **options)
        threading.Event().wait()
        return None

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    loop = Loop()
    with answering(loop) as port:
        refusals = tried(loop, Target("number", (port,), "word", ("127.0.0.1",)), Target("name", (port,), "word", ("name",)))
    assert refusals == {"number": "", "name": "the look-up of names does not answer for 1 s"}
