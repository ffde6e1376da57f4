"""The agent's reactor, with real descriptors."""

from __future__ import annotations

import os

import pytest

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
