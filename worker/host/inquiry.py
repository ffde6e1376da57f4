"""Answers `orch doctor` on a host: survey.py for the machine, task/examine.py for the interpreter of the tasks.

It is started as an agent is, with the same channel (see start.py and arrive.py). Both programs are processes of their own, one after the
other, with a time limit and bounded output, since what is asked may hang, die, or be no Python at all. They end with us, and we with
the channel.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, Literal

from .. import contract
from .link import Link
from .loop import Loop

SURVEY_S = 60.0
ANSWER_S = 20.0
"""An interpreter that has not said within this time which Python it is, is taken for none."""
MOST_BYTES = 1 << 20
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
        try:
            self._asked = Question(self._loop, what, argv, env, limits, answer)
        except (OSError, ValueError) as error:
            reason = f"it cannot be run: {getattr(error, 'strerror', None) or error}"
            answer(contract.Told(what, time.time(), code=None, reason=reason))


class Question:
    """Put to a program that knows when to end. Its group is killed after the first limit of seconds, or the second once it has said a
    line; or if it talks too much. `answer` is called once, unless it is ended. Raises OSError if it cannot be started."""

    def __init__(
        self,
        loop: Loop,
        what: Literal["machine", "python"],
        argv: Sequence[str],
        env: Mapping[str, str],
        limits: tuple[float, float],
        answer: Answer,
    ) -> None:
        self._loop, self._what, self._answer = loop, what, answer
        self._process = subprocess.Popen(
            argv, env=dict(env), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._out, self._err = self._process.stdout, self._process.stderr
        self._heard = {self._out: bytearray(), self._err: bytearray()}
        self._open = set(self._heard)
        for stream in self._heard:
            loop.on_readable(stream, lambda stream=stream: self._read(stream))  # type: ignore[misc]
        first_s, then_s = limits
        loop.after(first_s, lambda: self._stop_unless_talking(first_s))
        loop.after(then_s, lambda: self._stop(f"it has not answered for {then_s:g} s"))

    def _stop_unless_talking(self, seconds: float) -> None:
        if b"\n" not in self._heard[self._out]:
            self._stop(f"it has not answered for {seconds:g} s")

    def _read(self, stream: IO[bytes]) -> None:
        if stream not in self._open:
            return  # stopped in this same wake-up
        data = os.read(stream.fileno(), 65536)
        self._heard[stream] += data
        if not data:
            self._forget(stream)
            if not self._open:
                self._finish("")
        elif sum(map(len, self._heard.values())) > MOST_BYTES:
            self._stop("it never stops talking")

    def _forget(self, stream: IO[bytes]) -> None:
        self._open.discard(stream)
        self._loop.forget(stream)
        stream.close()

    def _stop(self, reason: str) -> None:
        if self._open:
            self.end()
            for stream in tuple(self._open):
                self._forget(stream)
            self._finish(reason)

    def _finish(self, reason: str) -> None:
        out, err = (bytes(self._heard[stream]).decode(errors="replace") for stream in (self._out, self._err))
        code = self._process.wait()
        self._answer(contract.Told(self._what, time.time(), out, err, None if reason else code, reason))

    def end(self) -> None:
        """Kill what is left of it."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def main() -> int:
    """Serve the controller at the other end of stdin and stdout."""
    frames_fd = os.dup(1)
    os.dup2(2, 1)  # a stray print must not end up among the frames
    return Inquirer(0, frames_fd).run()
