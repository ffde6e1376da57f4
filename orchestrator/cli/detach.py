"""A controller that goes on alone: `orch up -d` returns when its tasks are started, or says why they are not.

Between the two is a pipe: a JSON object a line, ``{"said": TEXT}`` as often as there is something to say, then the answer.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
from typing import IO, Any

import click

from ..errors import BROKEN, OrchError
from ..model import events
from ..model.cluster import Cluster, Outcome
from ..model.plan import Plan
from ..record.lines import clean
from ..record.narrate import describe_plan, headline, narrate
from ..record.rundir import RunDir
from ..signals import release_signals
from .shows import Ended, in_orchs_words

SAID_BYTES = 32 * 1024
"""The most that is said through the pipe: the half of what it usually holds, so that nobody waits for a parent that is stopped (Ctrl-Z)."""


def fork(run: RunDir, *, quiet: bool) -> dict[str, Any] | Answering:
    """In the parent: the controller's answer, once it has one. In the controller, which leads a session of its own: who gives it.

    Both have held the signals back until now, so that a Ctrl-C ends no controller that is not yet in its own session.
    `quiet`: what is said until then is not shown.
    """
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read_fd)
        os.setsid()
        _redirect(run)
        return Answering(run, write_fd)
    os.close(write_fd)
    run.lock.release()  # the controller holds it
    try:
        release_signals()
        with os.fdopen(read_fd, "rb") as pipe:
            answer = _hear(pipe, quiet)
    except KeyboardInterrupt:  # it leads its own session and has not heard the Ctrl-C
        os.kill(pid, signal.SIGTERM)
        raise
    return answer or {"error": f"the controller of {run.run_id} died at once; see {run.path / 'controller.log'}", "code": BROKEN}


def _hear(pipe: IO[bytes], quiet: bool) -> dict[str, Any] | None:
    """Show what is said until there is an answer. None: there is none."""
    for line in pipe:
        with contextlib.suppress(ValueError):  # it died in the middle of a line
            found: dict[str, Any] = json.loads(line)
            if "said" not in found:
                return found
            if not quiet:
                _write([found["said"]])
    return None


def _redirect(run: RunDir) -> None:
    log = os.open(run.path / "controller.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    for fd, number in ((null, 0), (log, 1), (log, 2)):
        os.dup2(fd, number)
    os.close(log)
    os.close(null)


class Answering:
    """A `Show` for the waiting parent: tells it what happens until all are started, or why they are not. `controller.log` has it all."""

    def __init__(self, run: RunDir, answer_fd: int) -> None:
        self._run, self._answer_fd = run, answer_fd
        self._room = SAID_BYTES

    def planned(self, planned: Plan) -> None:
        for text in (describe_plan(planned), *planned.notes):
            self.said(text)

    def grew(self, task: str, attempt: int, stream: str, size: int) -> None: ...

    def said(self, text: str) -> None:
        _write([clean(text)])
        line = _line({"said": clean(text)})
        if self._answer_fd >= 0 and len(line) <= min(self._room, select.PIPE_BUF):  # or half of it might be written
            self._room -= len(line)
            with contextlib.suppress(OSError):  # whoever asked is gone, or the pipe is full; the run goes on
                os.set_blocking(self._answer_fd, False)
                os.write(self._answer_fd, line)

    def happened(self, before: Cluster, after: Cluster, event: events.Event) -> None:
        text = narrate(before, after, event)
        if text is not None:
            self.said(text)
        if self._answer_fd >= 0 and all(task.pid is not None for task in after.tasks.values()):
            self._answer({"run": self._run.run_id})

    def refuse(self, error: OrchError, given_up: Ended | None) -> None:
        self._answer({"error": str(error), "code": error.exit_code})

    def end(self, ended: Ended) -> None:
        """That the run is over is only news if not all of its tasks were ever started."""
        verdict = ended.verdict
        if verdict.outcome is Outcome.SUCCEEDED:  # without a task that nobody waits for
            self._answer({"run": self._run.run_id})
        else:
            what = headline(verdict.cause) if verdict.cause else verdict.outcome.value
            hint = f"; orch logs {self._run.run_id} shows what was written" if verdict.cause and verdict.cause.code is not None else ""
            self._answer({"error": f"{self._run.run_id}: {what}{hint}", "code": verdict.exit_code})
        _write(ended.report())

    def _answer(self, answer: dict[str, Any]) -> None:
        if self._answer_fd >= 0:
            with contextlib.suppress(OSError):
                os.set_blocking(self._answer_fd, True)
                os.write(self._answer_fd, _line(answer))
            os.close(self._answer_fd)
            self._answer_fd = -1


def _write(lines: list[str]) -> None:
    """Write to standard error, which is the controller's `controller.log`. A full disk ends the run where its events are recorded, not
    here; and the answer is more than what the parent can no longer show."""
    with contextlib.suppress(OSError):
        click.echo(in_orchs_words(lines), nl=False, err=True)


def _line(data: dict[str, Any]) -> bytes:
    return json.dumps(data).encode() + b"\n"
