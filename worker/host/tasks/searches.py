"""Searches for the files of ``prepare.once_for``, each in a process of its own: ``**`` searches all directories, which takes its time."""

from __future__ import annotations

from collections.abc import Callable, Collection

from ...machine import clock
from ...protocol import messages
from ...values.fast_dataclass import dataclass
from ..connection.link import Link
from ..helpers import ForkedCall, Helpers
from ..loop import Loop

TOLD_S = 2.0
"""How long a search takes before the user is told of it."""


@dataclass(frozen=True, slots=True)
class _Search:
    process: ForkedCall
    on_stopped: Callable[[], None]


class Searches:
    """The searches on which tasks wait: to be started, or to be done with."""

    def __init__(self, loop: Loop, link: Link, helpers: Helpers) -> None:
        self._loop, self._link, self._helpers = loop, link, helpers
        self._running: dict[str, _Search] = {}
        """By the names of the tasks."""

    def __len__(self) -> int:
        return len(self._running)

    def begin(
        self,
        order: messages.TaskOrder,
        search: Callable[[], str],
        on_ended: Callable[[str, str], None],
        on_stopped: Callable[[], None],
    ) -> None:
        """Call `search` in another process, then `on_ended` with its result and why there is none; or `on_stopped`, if it is stopped."""

        def end(found: str | None, trouble: str) -> None:
            del self._running[order.task]
            on_ended(found or "", trouble)

        def tell() -> None:
            if self._running.get(order.task) is mine:
                self._link.send(messages.TaskWaiting(order.task, order.attempt, "searching the files of prepare.once_for", clock.now()))

        mine = self._running[order.task] = _Search(self._helpers.call(search, end), on_stopped)
        self._loop.after(TOLD_S, tell)

    def stop(self, names: Collection[str] | None) -> None:
        """Stop all searches, or those of the tasks that are named."""
        for name in [name for name in self._running if names is None or name in names]:
            search = self._running.pop(name)
            search.process.end()
            search.on_stopped()
