"""Finds out whether a task's runtime listens at its port, by connecting to the port, never by reading logs."""

from __future__ import annotations

import socket
from collections.abc import Callable

from ...machine import clock
from ...protocol import messages
from ...values.fast_dataclass import dataclass
from ..processes.loop import Loop
from .link import Link

FIRST_S, MOST_S = 0.05, 0.5
EACH_S = 0.03
"""Many ports are tried less often: each try takes some 50 µs of a core."""
_TIMEOUT_S = 0.2


@dataclass(slots=True)
class _Awaited:
    order: messages.TaskOrder
    find_other_tf_config: Callable[[], str]
    refusal: str = messages.NO_PORT
    """Why the port did not answer at the last try. After a time-out, for one, the machine may only be too busy to answer."""
    told: str = ""
    """The reason that the controller was told last."""


class Prober:
    """Sends `TaskUp` for a task when its port answers, and `TaskWaiting` when the reason why it does not has changed."""

    def __init__(self, loop: Loop, link: Link) -> None:
        self._loop, self._link = loop, link
        self._awaited: list[_Awaited] = []
        self._wait_s = FIRST_S
        self._has_timer = False

    def watch(self, order: messages.TaskOrder, find_other_tf_config: Callable[[], str]) -> None:
        """Try the port of a new task, if it has one, until it answers. `find_other_tf_config`: where the program replaced TF_CONFIG."""
        if order.port is None:
            return
        self._wait_s = FIRST_S
        self._awaited.append(_Awaited(order, find_other_tf_config))
        if not self._has_timer:
            self._has_timer = True
            self._loop.after(FIRST_S, self._probe)

    def forget(self, order: messages.TaskOrder) -> None:
        self._awaited = [one for one in self._awaited if one.order is not order]

    def is_closed(self, order: messages.TaskOrder) -> bool:
        """True if a task has a port, and the connection was refused there whenever it was tried."""
        return any(one.order is order and one.refusal == messages.NO_PORT for one in self._awaited)

    def poll(self) -> None:
        """Try all ports at which a task was not seen to listen: the tasks may be stopped next."""
        self._awaited = [one for one in self._awaited if not self._is_up(one)]

    def _probe(self) -> None:
        self.poll()
        self._wait_s = min(max(MOST_S, EACH_S * len(self._awaited)), self._wait_s * 1.2)
        self._has_timer = bool(self._awaited)
        if self._has_timer:
            self._loop.after(self._wait_s, self._probe)

    def _is_up(self, one: _Awaited) -> bool:
        one.refusal = _connect(one.order.port or 0)
        if not one.refusal:
            self._link.send(messages.TaskUp(one.order.task, one.order.attempt, clock.now()))
            return True
        other = one.find_other_tf_config()
        reason = f"{one.refusal}; its TF_CONFIG is not the one that orch gave it: {other}" if other else one.refusal
        if reason != one.told:
            one.told = reason
            self._link.send(messages.TaskWaiting(one.order.task, one.order.attempt, reason, clock.now()))
        return False


def _connect(port: int) -> str:
    """Why nothing can be reached at this host's `port`, in words; empty: the connection was made."""
    try:
        with socket.socket() as client:  # socket.create_connection would ask the resolver's files, which costs as much again
            client.settimeout(_TIMEOUT_S)
            client.connect(("127.0.0.1", port))
    except ConnectionRefusedError:
        return messages.NO_PORT
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return ""
