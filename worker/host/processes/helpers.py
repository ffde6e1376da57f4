"""The processes that an agent starts for itself, so that its loop waits for no disk, search or driver. They belong to no task."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from ...machine.memfd import keep_in_memory
from ...machine.own_process import die_with_parent
from . import process_groups
from .loop import Loop
from .process_setup import describe

if TYPE_CHECKING:
    from typing import Protocol

    class Helper(Protocol):
        """A process that the agent has started for itself."""

        pid: int
        """0: it could not be started."""

        @property
        def pids(self) -> set[int]:
            """The processes that have not ended."""

        def poll(self) -> None:
            """If the process has ended, take its exit code from the kernel."""

        def end(self) -> None:
            """Kill the process; its result is needed no more."""


LOOK_S = 0.02
"""The pause between two looks for the end of a process; an agent also looks when the kernel tells it that a child has ended."""


class Helpers:
    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._all: list[Helper] = []

    def add(self, helper: Helper | None) -> None:
        """A helper was started; None: it was not."""
        if helper is not None:
            self._all = [one for one in self._all if one.pids]
            self._all.append(helper)

    def call(self, function: Callable[[], Any], on_ended: Callable[[Any, str], None]) -> ForkedCall:
        started = ForkedCall(self._loop, function, on_ended)
        self.add(started)
        return started

    @property
    def pids(self) -> set[int]:
        """The processes that belong to no task, and have not ended."""
        return {pid for helper in self._all for pid in helper.pids}

    def collect(self, pid: int) -> bool:
        """A child of this process has ended: whether it was a helper, which has then taken its exit code from the kernel."""
        found = next((helper for helper in self._all if helper.pid == pid), None)
        if found is not None:
            found.poll()
        return found is not None

    def end(self) -> None:
        for helper in self._all:
            helper.end()


class ForkedCall:
    """Calls a function in a fork of this process, while the loop goes on.

    `on_ended` is called once, unless `end` is called before: with the function's result, which must be JSON data, and an empty text; or
    with None, and the text of the exception.
    """

    def __init__(self, loop: Loop, function: Callable[[], Any], on_ended: Callable[[Any, str], None]) -> None:
        self._loop, self._on_ended = loop, on_ended
        self.pid, self._is_over = 0, False
        self._answer = keep_in_memory(b"")
        try:
            caller = os.getpid()
            self.pid = os.fork()
        except OSError as error:
            reason = f"no process can be started: {describe(error)}"
            loop.after(0.0, lambda: self._finish({"error": reason}))
            return
        if self.pid == 0:
            _answer(function, self._answer, caller)
        loop.after(LOOK_S, self._look)

    @property
    def pids(self) -> set[int]:
        return set() if self._is_over or not self.pid else {self.pid}

    def poll(self) -> None:
        with contextlib.suppress(ChildProcessError):
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid and not self._is_over:
                self._finish(self._read(os.waitstatus_to_exitcode(status)))

    def end(self) -> None:
        if not self._is_over:
            self._is_over = True
            os.close(self._answer)
            if self.pid:
                process_groups.signal_process(self.pid, signal.SIGKILL)

    def _look(self) -> None:
        if not self._is_over:
            self.poll()
        if not self._is_over:
            self._loop.after(LOOK_S, self._look)

    def _read(self, code: int) -> dict[str, Any]:
        if code:
            return {"error": f"the process that does this has ended with code {code}"}
        with open(self._answer, "rb", closefd=False) as file:
            file.seek(0)
            answer: dict[str, Any] = json.load(file)
        return answer

    def _finish(self, answer: dict[str, Any]) -> None:
        if self._is_over:
            return
        self._is_over = True
        os.close(self._answer)
        self._on_ended(answer.get("value"), answer.get("error", ""))


def _answer(function: Callable[[], Any], into: int, caller: int) -> NoReturn:
    """In the fork: call the function, and write the answer to the descriptor `into`."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        die_with_parent(caller)
        # The ends of the lifelines and of the channel, too: their other ends must notice the agent's death.
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.closerange(3, into)
        os.closerange(into + 1, os.sysconf("SC_OPEN_MAX"))
        try:
            answer = {"value": function()}
        except Exception as error:
            answer = {"error": str(error) or type(error).__name__}
        with open(into, "wb") as file:
            file.write(json.dumps(answer).encode("ascii"))
        code = 0
    finally:
        os._exit(code)
