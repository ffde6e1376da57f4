"""Asks the tasks' ports whether a runtime listens there yet, by connecting, never by reading logs."""

from __future__ import annotations

import socket
from collections.abc import Callable

from ... import clock
from ...fast_dataclass import dataclass
from ...protocol import messages
from ..link import Link
from ..loop import Loop

FIRST_S, MOST_S = 0.05, 0.5
_TIMEOUT_S = 0.2


@dataclass(slots=True)
class _Awaited:
    order: messages.TaskOrder
    refusal: str = ""
    is_refused: bool = True
    """Nobody listens, as far as is known. Any other refusal may be that of a machine that is too busy to answer."""


class Prober:
    """Sends `TaskUp` for a task when its port answers, and `TaskWaiting` when the reason why it does not has changed."""

    def __init__(self, loop: Loop, link: Link) -> None:
        self._loop, self._link = loop, link
        self.is_running: Callable[[str, int], bool] = lambda name, attempt: False
        self.other_tf_config: Callable[[messages.TaskOrder], str] = lambda order: ""
        self._awaited: list[_Awaited] = []
        self._wait_s = FIRST_S

    def watch(self, order: messages.TaskOrder) -> None:
        """Ask for a task that has just been started, if it has a port, until it answers or ends."""
        if order.port is None:
            return
        self._wait_s = FIRST_S
        self._awaited.append(_Awaited(order))
        if len(self._awaited) == 1:
            self._loop.after(self._wait_s, self._probe)

    def is_closed(self, order: messages.TaskOrder) -> bool:
        """Whether a task has a port, and was refused there whenever it was asked."""
        return any(one.order is order and one.is_refused for one in self._awaited)

    def look(self) -> None:
        """Ask all ports that are awaited once more: their tasks may be ended next."""
        self._awaited = [one for one in self._awaited if not self._is_up(one)]

    def _probe(self) -> None:
        self._awaited = [one for one in self._awaited if self.is_running(one.order.task, one.order.attempt) and not self._is_up(one)]
        if self._awaited:
            self._wait_s = min(MOST_S, self._wait_s * 1.2)
            self._loop.after(self._wait_s, self._probe)

    def _is_up(self, one: _Awaited) -> bool:
        refusal, one.is_refused = _connect(one.order.port or 0)
        if not refusal:
            self._link.send(messages.TaskUp(one.order.task, one.order.attempt, clock.now()))
            return True
        if other := self.other_tf_config(one.order):
            refusal += f"; its TF_CONFIG is not the one that orch gave it: {other}"
        if refusal != one.refusal:
            one.refusal = refusal
            self._link.send(messages.TaskWaiting(one.order.task, one.order.attempt, refusal, clock.now()))
        return False


def _connect(port: int) -> tuple[str, bool]:
    """Why nothing can be reached at this host's `port`, in words, and whether nobody listens there; empty: something was reached."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=_TIMEOUT_S).close()
    except TimeoutError:
        return "timed out", False
    except OSError as error:
        return (error.strerror or str(error)).lower(), isinstance(error, ConnectionRefusedError)
    return "", False
