"""Answers `orch doctor` on a host: survey.py for the machine, task/examine.py for the interpreter of the tasks.

It is started as an agent is, with the same channel (see start.py and arrive.py). Both programs are processes of their own, one after the
other, with a time limit and bounded output, since what is asked may hang, die, or be no Python at all. They end with us, and we with
the channel.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from .. import contract
from .link import Link
from .loop import Loop
from .question import Ending, Question

SURVEY_S = 60.0
ANSWER_S = 20.0
"""An interpreter that has not said within this time which Python it is, is taken for none."""
_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
Answer = Callable[[contract.Told], None]


class Inquirer:
    """Serves one controller. `orders_fd` and `frames_fd` are the two ends of the channel."""

    def __init__(self, orders_fd: int, frames_fd: int) -> None:
        self._loop = Loop()
        self._link = Link(self._loop, orders_fd, frames_fd, self._obey, self._leave)
        self._asked: Question | None = None
        self._is_over = False

    def run(self) -> int:
        """Until the controller says `Bye` or its channel closes. Returns the exit code."""
        self._loop.on_signals((signal.SIGTERM,), lambda _: self._leave())
        try:
            self._loop.run(lambda: self._is_over)
        finally:
            if self._asked is not None:
                self._asked.end()
        return 0

    def _leave(self) -> None:
        self._is_over = True

    def _obey(self, order: Any, data: bytes) -> None:
        if isinstance(order, contract.Ping):
            self._link.send(contract.Pong())
        elif isinstance(order, contract.Bye):
            self._leave()
        elif isinstance(order, contract.Inquiry):
            self._link.send(contract.Told("clock", time.time()))
            self._look_at_machine(order)

    def _look_at_machine(self, inquiry: contract.Inquiry) -> None:
        def go_on(told: contract.Told) -> None:
            self._link.send(told)
            self._look_at_python(inquiry)

        question = json.dumps({"run_dir": inquiry.run_dir or tempfile.gettempdir(), "ports": inquiry.ports})
        # In our own interpreter, so that with a broken one the machine is looked at all the same.
        argv = [sys.executable, "-I", os.path.join(_ROOT, "host", "start.py"), "survey", question]
        self._ask("machine", argv, os.environ, (SURVEY_S, SURVEY_S), go_on)

    def _look_at_python(self, inquiry: contract.Inquiry) -> None:
        argv = [inquiry.program or sys.executable, os.path.join(_ROOT, "task", "examine.py"), str(inquiry.import_s)]
        limits = ANSWER_S, inquiry.import_s + ANSWER_S
        self._ask("python", argv, {**os.environ, **inquiry.env}, limits, self._link.send)

    def _ask(
        self, what: Literal["machine", "python"], argv: Sequence[str], env: Mapping[str, str], limits: tuple[float, float], answer: Answer
    ) -> None:
        def tell(ending: Ending) -> None:
            answer(contract.Told(what, time.time(), ending.out, ending.err, ending.code, ending.reason))

        try:
            self._asked = Question(self._loop, argv, env, limits, tell)
        except (OSError, ValueError) as error:
            reason = f"it cannot be run: {getattr(error, 'strerror', None) or error}"
            answer(contract.Told(what, time.time(), code=None, reason=reason))


def main() -> int:
    """Serve the controller at the other end of stdin and stdout."""
    frames_fd = os.dup(1)
    os.dup2(2, 1)  # a stray print must not end up among the frames
    return Inquirer(0, frames_fd).run()
