"""The memory in which the tasks of this host leave snapshots of their training, and what becomes of these when another attempt begins.

The agent makes the files in memory before a task starts, so they outlive every task; the kernel frees them with the agent. A task opens
them by their paths in /proc. They are written to the disk when the next attempt begins, and so no verdict waits for them, and nothing is
written if no restart follows. Meanwhile the new tasks start; they wait with the choice of a save (`snapshot_memory.is_busy`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable

from ..formats import snapshot_memory
from ..protocol import messages
from ..protocol.task_id import TaskId
from .processes import process_state
from .processes.helpers import Helpers
from .processes.loop import Loop

TOLD_S = 5.0
"""The time between two lines about a save that takes long."""
_TRAINS = frozenset({"chief", "worker", "evaluator"})


class SnapshotKeeper:
    """The memory of all tasks of this host. `note`: takes a line for the user."""

    def __init__(self, loop: Loop, helpers: Helpers, note: Callable[[str], None]) -> None:
        self._loop, self._helpers, self._note = loop, helpers, note
        self._fds: dict[str, tuple[int, ...]] = {}
        """The files of each task, by its name."""
        self._writing = 0
        """How many processes write saves."""
        self._waiting: list[int] = []
        """The files by which new tasks learn when all is written. Duplicates: the tasks may end, and their files be closed, before."""

    @property
    def is_writing(self) -> bool:
        return self._writing > 0

    def begin(self, start: messages.StartTasks) -> dict[str, str]:
        """Tasks are about to start: write what their attempts before have left. Returns the variable of each task that gets memory."""
        orders = [order for order in start.orders if TaskId.parse(order.task).type in _TRAINS]
        wanted = [order.task for order in orders if start.may_restart and order.settings.checkpoints.snapshots]
        made = dict[str, tuple[int, ...]]()
        if _is_possible():
            with contextlib.suppress(OSError):  # a sandbox may refuse such files
                made = {name: _make() for name in wanted}
        self._write(order.task for order in orders)
        if self._writing:
            self._keep_waiting(fds[0] for fds in made.values())
        self._fds |= made
        # An empty variable: the task tells the others that they can have no snapshots without it.
        return {name: ":".join(map(_path, made.get(name, ()))) for name in wanted}

    def write_all(self) -> None:
        """This agent is about to end: write what its tasks have left."""
        self._write(list(self._fds))

    def _keep_waiting(self, fds: Iterable[int]) -> None:
        """New tasks choose no save before all is written: also what an attempt before the last one has left may still be on its way."""
        for fd in map(os.dup, fds):
            snapshot_memory.set_busy(fd, busy=True)
            self._waiting.append(fd)

    def _write(self, names: Iterable[str]) -> None:
        """Write what these tasks have left, in a process of its own."""
        before = [fds for name in names if (fds := self._fds.pop(name, None)) is not None]
        paths = [tuple(map(_path, fds)) for fds in before]
        if not any(snapshot_memory.is_begun(path) for each in paths for path in each):
            _close(before)
            return
        self._writing += 1

        def end(lines: list[str] | None, trouble: str) -> None:
            self._writing -= 1
            _close(before)
            while self._waiting and not self._writing:
                snapshot_memory.set_busy(self._waiting[-1], busy=False)
                os.close(self._waiting.pop())
            for line in lines or ([f"checkpoints: the snapshots in memory are not saved: {trouble}"] if trouble else []):
                self._note(line)

        def write() -> list[str]:
            from ..formats.snapshot_files import write_saves

            return write_saves(paths)

        self._helpers.call(write, end)
        self._loop.after(TOLD_S, self._tell)

    def _tell(self) -> None:
        """A large training takes a while; the controller must not take this agent for one that does nothing."""
        if self._writing:
            self._note("the training is saved from the memory of this host, which is not done yet")
            self._loop.after(TOLD_S, self._tell)


def _is_possible() -> bool:
    """True if this system has files in memory, with paths under which tasks find them."""
    return hasattr(os, "memfd_create") and process_state.shows_this_namespace()


def _make() -> tuple[int, ...]:
    return tuple(os.memfd_create("orch-snapshot") for _ in range(snapshot_memory.FILES))


def _path(fd: int) -> str:
    return f"/proc/{os.getpid()}/fd/{fd}"


def _close(files: list[tuple[int, ...]]) -> None:
    for fds in files:
        for fd in fds:
            os.close(fd)
