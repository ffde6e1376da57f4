"""The agent's reactor and its end of the channel, with real descriptors."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time

import pytest

from tests.live import PATIENCE_S
from tests.worker.agent_double import ROOT
from worker.host.network.link import Link
from worker.host.processes.loop import Loop
from worker.protocol import messages
from worker.protocol.channel import encode


@pytest.mark.parametrize("is_replaced", [False, True])
def test_who_is_forgotten_in_a_wake_up_is_not_called_in_it(is_replaced: bool) -> None:
    """Two are ready at once, and whichever comes first has the other forgotten, or another action put in its place."""
    loop = Loop()
    pipes = [os.pipe(), os.pipe()]
    called: list[str] = []

    def act(other: int) -> None:
        called.append("first")
        loop.forget(other)
        if is_replaced:
            loop.on_readable(other, lambda: called.append("new"))

    for (reader, writer), (other, _) in zip(pipes, reversed(pipes), strict=True):
        os.write(writer, b"x")
        loop.on_readable(reader, lambda other=other: act(other))
    is_over = iter((False, True))
    loop.run(lambda: next(is_over))
    assert called == ["first"]
    loop._selector.close()
    for fd in (fd for ends in pipes for fd in ends):
        os.close(fd)


@pytest.mark.parametrize("is_sane", [True, False])
def test_an_order_that_cannot_be_obeyed_is_no_broken_channel(is_sane: bool, capfd: pytest.CaptureFixture[str]) -> None:
    """It is a mistake of ours, which must be seen; what cannot be read is the channel's."""
    loop, pipe, frames = Loop(), os.pipe(), os.open(os.devnull, os.O_WRONLY)
    lost: list[str] = []

    def obey(order: object, data: bytes) -> None:
        raise OSError(24, "Too many open files")

    Link(loop, pipe[0], frames, obey, lambda: lost.append("lost"))
    os.write(pipe[1], encode(messages.Ping()) if is_sane else b"what a shell says")
    if is_sane:
        with pytest.raises(OSError, match="Too many open files"):
            loop.run(lambda: bool(lost))
    else:
        loop.run(lambda: bool(lost))
        assert "expected orch's frames" in capfd.readouterr().err
    assert bool(lost) is not is_sane
    loop._selector.close()
    for fd in (*pipe, frames):
        os.close(fd)


def test_what_has_come_while_we_stood_still_is_read_before_a_deadline_passes() -> None:
    """An answer that lies there would otherwise count as none."""
    loop = Loop()
    answers, busy = os.pipe(), os.pipe()
    seen: list[str] = []

    def stand_still() -> None:
        loop.forget(busy[0])
        time.sleep(0.2)
        os.write(answers[1], b"x")

    loop.on_readable(busy[0], stand_still)
    loop.on_readable(answers[0], lambda: seen.append(os.read(answers[0], 1).decode()))
    loop.after(0.1, lambda: seen.append("too late"))
    os.write(busy[1], b"x")
    loop.run(lambda: len(seen) == 2)
    assert seen == ["x", "too late"]
    loop._selector.close()
    for fd in (*answers, *busy):
        os.close(fd)


def test_a_thousand_signals_at_once_hide_no_other() -> None:
    text = """
        import signal, sys
        sys.path.insert(0, sys.argv[1])
        from worker.host.processes.loop import Loop
        loop, seen = Loop(), set()
        loop.on_signals((signal.SIGCHLD, signal.SIGTERM), lambda numbers: seen.update(numbers))
        for _ in range(1000):
            signal.raise_signal(signal.SIGCHLD)
        signal.raise_signal(signal.SIGTERM)
        loop.run(lambda: signal.SIGTERM in seen)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(text), ROOT], check=True, timeout=PATIENCE_S)
