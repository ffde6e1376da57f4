"""Runs a coroutine in an event loop of its own, or says in words why this machine lets no program have one."""

from __future__ import annotations

import asyncio
import selectors
import socket
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ..errors import OrchError

T = TypeVar("T")


def run(begin: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run the coroutine that `begin` makes. Raises `OrchError` if there can be no event loop, of which asyncio prints a traceback."""
    try:
        with selectors.DefaultSelector():
            for end in socket.socketpair():
                end.close()
    except OSError as error:
        remedy = "raise the limit of open files (ulimit -n), or let the sandbox of this machine allow socketpair"
        raise OrchError(f"orch cannot wait for anything: {error.strerror or error}", remedy) from None
    return asyncio.run(begin())
