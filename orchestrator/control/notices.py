"""``notify:`` a command of the user's that is told what happens in a run: one JSON object on stdin, one event at a time.

The commands run in a thread, so no event of the run waits for them. None changes how the run ends: a command that fails, hangs or is
missing is a line of `notify.log`, and the first one also a note on the screen.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shlex
import signal
import subprocess
import threading
from typing import IO, Any

from worker.machine.clock import now

from ..model.state import events
from ..model.state.cluster import Cause, Cluster, Phase, Verdict
from ..record.run_files import private_opener
from ..record.text.event_messages import Messages, describe_outcome, headline
from ..record.text.format import iso_times
from .signals import ENDINGS
from .starting import RunStart

COMMAND_S = 30.0
"""How long a command may take; then it is killed with its process group."""
LAST_S = 10.0
"""How long the end of the run may wait for the commands that are left."""
MOST_WAITING = 20
"""The most events that wait for their turn; further ones but the last are left out."""
LOG = "notify.log"


class Notices(Messages):
    """The viewer of a run with ``notify:``, around the viewer that shows the run. The commands run in the order of the events."""

    def __init__(self, start: RunStart, viewer: Messages) -> None:
        self._run, self._spec, self._viewer = start.run, start.spec, viewer
        self._words = shlex.split(start.spec.notify)
        self._waiting: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        """The events that have no command yet; None behind the last one."""
        self._process: subprocess.Popen[bytes] | None = None
        self._is_late = False
        self._problem, self._has_told = "", False
        """The first thing that went wrong, and whether the user has seen it."""
        self._thread = threading.Thread(target=self._serve, name="orch-notify", daemon=True)
        self._thread.start()

    def say(self, text: str) -> None:
        self._viewer.say(text)

    def on_output(self, task: str, attempt: int, stream: str, size: int) -> None:
        self._viewer.on_output(task, attempt, stream, size)

    def on_event(self, before: Cluster, after: Cluster, event: events.Event) -> None:
        self._viewer.on_event(before, after, event)
        self._tell_problem()
        if kind := _kind_of(before, after, event):
            cause = after.past[-1].cause if kind == "attempt_failed" else None
            text = event.text if isinstance(event, events.RunNoted) else headline(cause) if cause else ""
            self._put(kind, after.attempt if kind != "attempt_failed" else after.past[-1].attempt, event.at, cause, text=text)

    def end(self, verdict: Verdict) -> None:
        """The run is over: send the last event, and wait for the commands, at most `LAST_S` seconds."""
        text = f"{describe_outcome(verdict.outcome)}{f': {headline(verdict.cause)}' if verdict.cause else ''}"
        ended = {"outcome": verdict.outcome.value, "exit_code": verdict.exit_code}
        self._put("ended", verdict.attempt, verdict.ended_at, verdict.cause, text=text, **ended)
        self._waiting.put(None)
        self._thread.join(LAST_S)
        if self._thread.is_alive():
            self._is_late = True
            self._note(f"--notify: the last commands had not ended {LAST_S:g} s after the run")
            self._kill()
        self._tell_problem()

    def _put(self, kind: str, attempt: int, at: float, cause: Cause | None, **more: Any) -> None:
        text = " ".join(str(more.pop("text")).split())
        found: dict[str, Any] = {"event": kind, "run": self._run.run_id, "name": self._spec.name, "attempt": attempt, "at": at or now()}
        if cause is not None:
            failure = cause.failure and {"type": cause.failure.type, "message": cause.failure.message}
            more["cause"] = {"task": cause.task, "host": cause.host, "what": cause.what, "code": cause.code, "failure": failure}
        if self._waiting.qsize() >= MOST_WAITING and kind != "ended":
            self._note(f"--notify: {MOST_WAITING} events wait already, so {kind} was left out")
        else:
            self._waiting.put(iso_times(found | {"text": text, "directory": str(self._run.path)} | more))

    # --- in the thread -------------------------------------------------------------------------

    def _serve(self) -> None:
        while (event := self._waiting.get()) is not None and not self._is_late:
            try:
                with open(self._run.path / LOG, "ab", opener=private_opener) as log:
                    self._execute(event, log)
            except OSError as error:
                self._note(f"--notify: {self._words[0]} cannot be run: {error.strerror or error}")

    def _execute(self, event: dict[str, Any], log: IO[bytes]) -> None:
        self._process = subprocess.Popen(
            self._words,
            cwd=self._spec.workdir if os.path.isdir(self._spec.workdir) else None,
            env={**os.environ, "ORCH_EVENT": event["event"]},
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDINGS),  # the end of a run holds them back
        )
        what = ""
        try:
            self._process.communicate(json.dumps(event).encode() + b"\n", timeout=COMMAND_S)
        except subprocess.TimeoutExpired:
            what = f"had not ended after {COMMAND_S:g} s, and was killed"
        finally:
            self._kill()
        code = self._process.wait()
        if what or code:
            self._note(f"--notify: {self._words[0]} {what or f'ended with exit code {code}'} (event {event['event']}; output: {LOG})")

    def _kill(self) -> None:
        """End the command and what it has started."""
        if (process := self._process) is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)

    def _note(self, text: str) -> None:
        self._problem = self._problem or text
        # Where the disk is full, or the directory is gone, the note on the screen remains.
        with contextlib.suppress(OSError), open(self._run.path / LOG, "ab", opener=private_opener) as log:
            log.write(f"orch: {text}\n".encode(errors="replace"))

    def _tell_problem(self) -> None:
        if self._problem and not self._has_told:
            self._has_told = True
            self._viewer.say(f"note: {self._problem}")


def _kind_of(before: Cluster, after: Cluster, event: events.Event) -> str:
    """The kind of the event for a user; empty: there is nothing to tell."""
    if len(after.past) > len(before.past):
        return "attempt_failed"
    if before.word != Phase.RUNNING.value and after.word == Phase.RUNNING.value:
        return "started"
    if isinstance(event, events.RunNoted):
        return "preempted" if event.ends else "note" if after.word == Phase.RUNNING.value else ""
    return ""
