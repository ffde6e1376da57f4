"""A controller that goes on alone: `orch up -d` returns when its tasks are started, or says why they are not."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from typing import Any

import click

from ..errors import BROKEN, OrchError
from ..model import events
from ..model.cluster import Cluster, Outcome
from ..model.plan import Plan
from ..record.narrate import headline
from ..record.rundir import RunDir
from .shows import Ended, in_orchs_words


def fork(run: RunDir) -> dict[str, Any] | Answering:
    """In the parent: the controller's answer, once it has one. In the controller, which leads a session of its own: who gives it."""
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read_fd)
        os.setsid()
        _redirect(run)
        return Answering(run, write_fd)
    os.close(write_fd)
    try:
        with os.fdopen(read_fd, "rb") as pipe:
            text = pipe.read()
    except KeyboardInterrupt:  # it leads its own session and has not heard the Ctrl-C
        os.kill(pid, signal.SIGTERM)
        raise
    if not text:
        return {"error": f"the controller of {run.run_id} died at once; see {run.path / 'controller.log'}", "code": BROKEN}
    found: dict[str, Any] = json.loads(text)
    return found


def _redirect(run: RunDir) -> None:
    log = os.open(run.path / "controller.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    for fd, number in ((null, 0), (log, 1), (log, 2)):
        os.dup2(fd, number)
    os.close(log)
    os.close(null)


class Answering:
    """A `Show` for nobody but the waiting parent: tells it once that all tasks are started, or why they are not."""

    def __init__(self, run: RunDir, answer_fd: int) -> None:
        self._run, self._answer_fd = run, answer_fd

    def planned(self, planned: Plan) -> None: ...

    def grew(self, task: str, attempt: int, stream: str, size: int) -> None: ...

    def said(self, text: str) -> None: ...

    def happened(self, before: Cluster, after: Cluster, event: events.Event) -> None:
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
        click.echo(in_orchs_words(ended.report()), nl=False, err=True)  # which is controller.log

    def _answer(self, answer: dict[str, Any]) -> None:
        if self._answer_fd >= 0:
            with contextlib.suppress(OSError):  # whoever asked is gone; the run goes on
                os.write(self._answer_fd, json.dumps(answer).encode())
            os.close(self._answer_fd)
            self._answer_fd = -1
