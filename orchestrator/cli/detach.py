"""A controller that goes on alone: `orch up -d` returns when its tasks are started, or says why they are not."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from typing import Any

from ..errors import BROKEN, OrchError
from ..model import events
from ..model.cluster import Cluster, Outcome, Verdict
from ..model.plan import Plan
from ..record import render
from ..record.rundir import RunDir

_answer_fd = -1


def fork(run: RunDir) -> dict[str, Any] | None:
    """In the parent: the controller's answer, once it has one. In the controller, which leads a session of its own: None."""
    global _answer_fd
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read_fd)
        _answer_fd = write_fd
        os.setsid()
        _redirect(run)
        return None
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
    """A `Viewer` for nobody but the waiting parent: tells it once that all tasks are started."""

    def __init__(self, run: RunDir) -> None:
        self._run = run

    def planned(self, planned: Plan) -> None: ...

    def grew(self, task: str, attempt: int, stream: str, size: int) -> None: ...

    def said(self, text: str) -> None: ...

    def happened(self, before: Cluster, after: Cluster, event: events.Event) -> None:
        if _answer_fd >= 0 and all(task.pid is not None for task in after.tasks.values()):
            self._answer({"run": self._run.run_id})

    def end(self, verdict: Verdict) -> None:
        """The run is over; this is only news if not all of its tasks were ever started."""
        if verdict.outcome is Outcome.SUCCEEDED:  # without a task that nobody waits for
            self._answer({"run": self._run.run_id})
            return
        what = render.headline(verdict.cause) if verdict.cause else verdict.outcome.value
        hint = f"; orch logs {self._run.run_id} shows what was written" if verdict.cause and verdict.cause.code is not None else ""
        self._answer({"error": f"{self._run.run_id}: {what}{hint}", "code": verdict.exit_code})

    def refuse(self, error: OrchError) -> None:
        """The run could not be started."""
        self._answer({"error": str(error), "code": error.exit_code})

    def _answer(self, answer: dict[str, Any]) -> None:
        global _answer_fd
        if _answer_fd >= 0:
            with contextlib.suppress(OSError):  # whoever asked is gone; the run goes on
                os.write(_answer_fd, json.dumps(answer).encode())
            os.close(_answer_fd)
            _answer_fd = -1
