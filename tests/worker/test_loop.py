"""The agent's reactor and its end of the channel, with real descriptors."""

from __future__ import annotations

import os

import pytest

from worker import contract
from worker.channel import encode
from worker.host.link import Link
from worker.host.loop import Loop


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
        loop.on_readable(reader, lambda other=other: act(other))  # type: ignore[misc]
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
    os.write(pipe[1], encode(contract.Ping()) if is_sane else b"what a shell says")
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
