"""``notify:`` a command of the user's that is told what happens in a run: one JSON object on stdin, one event at a time.

The commands run in a thread, so no event of the run waits for them. None changes how the run ends: a command that fails, hangs or is
missing is a line of `notify.log`, and the first one also a note on the screen.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Callable
from dataclasses import asdict
from typing import IO, Any

from worker.machine.clock import now, patience

from ..model.state import events
from ..model.state.cluster import Cause, Cluster, Phase, Verdict
from ..record.run_files import private_opener
from ..record.text.event_messages import describe_outcome, headline
from ..record.text.format import iso_times
from .signals import ENDINGS
from .starting import RunStart

COMMAND_S = patience(30.0)
"""How long a command may take; then it is killed with its process group."""
LAST_S = patience(10.0)
"""How long the end of the run may wait for the commands that are left."""
MOST_WAITING = 20
"""The most events that wait for their turn; further ones but the last are left out."""
LOG = "notify.log"


class Notices:
    """What a run with ``notify:`` tells. The commands run in the order of the events. `say`: shows the user a line, in any thread."""

    def __init__(self, start: RunStart, say: Callable[[str], None]) -> None:
        self._run, self._spec, self._say = start.run, start.spec, say
        self._waiting: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        """The events that have no command yet; None behind the last one."""
        self._has_told = False
        """Whether the user has seen that something went wrong."""
        self._thread = threading.Thread(target=self._serve, name="orch-notify", daemon=True)
        self._thread.start()

    def on_event(self, before: Cluster, after: Cluster, event: events.Event) -> None:
        if len(after.past) > len(before.past):
            past = after.past[-1]
            self._put("attempt_failed", past.attempt, event.at, headline(past.cause) if past.cause else "", past.cause)
        elif before.word != Phase.RUNNING.value and after.word == Phase.RUNNING.value:
            self._put("started", after.attempt, event.at, "")
        elif isinstance(event, events.RunNoted) and (event.ends or after.word == Phase.RUNNING.value):
            self._put("preempted" if event.ends else "note", after.attempt, event.at, event.text)

    def on_end(self, verdict: Verdict) -> None:
        """Send the last event, and wait for the commands, at most `LAST_S` seconds."""
        text = f"{describe_outcome(verdict.outcome)}{f': {headline(verdict.cause)}' if verdict.cause else ''}"
        ended = {"outcome": verdict.outcome.value, "exit_code": verdict.exit_code}
        self._put("ended", verdict.attempt, verdict.ended_at, text, verdict.cause, **ended)
        self._waiting.put(None)
        self._thread.join(LAST_S)
        if self._thread.is_alive():
            self._note(f"the last commands had not ended {LAST_S:g} s after the run")

    def _put(self, kind: str, attempt: int, at: float, text: str, cause: Cause | None = None, **more: Any) -> None:
        if self._waiting.qsize() >= MOST_WAITING and kind != "ended":
            self._note(f"{MOST_WAITING} events wait already, so {kind} was left out")
            return
        found: dict[str, Any] = {"event": kind, "run": self._run.run_id, "name": self._spec.name, "attempt": attempt, "at": at or now()}
        found |= {"text": " ".join(text.split()), "directory": str(self._run.path), **({"cause": asdict(cause)} if cause else {})}
        self._waiting.put(iso_times(found | more))

    # --- in the thread -------------------------------------------------------------------------

    def _serve(self) -> None:
        while (event := self._waiting.get()) is not None:
            try:
                code = self._execute(event)
            except OSError as error:
                self._note(f"it cannot be run: {error}")
                continue
            what = f"had not ended after {COMMAND_S:g} s, and was killed" if code in (-9, 137) else f"ended with exit code {code}"
            if code:
                self._note(f"{self._spec.notify.partition(' ')[0]} {what} (event {event['event']}; output: {LOG})")

    def _execute(self, event: dict[str, Any]) -> int:
        """The exit code of the command. `timeout` ends it with all that it has started, also if orch has ended meanwhile."""
        with self._log() as log:
            return subprocess.run(
                ("timeout", "-s", "KILL", f"{COMMAND_S:g}", "sh", "-c", self._spec.notify),
                input=json.dumps(event).encode() + b"\n",
                cwd=self._spec.workdir if os.path.isdir(self._spec.workdir) else None,
                env={**os.environ, "ORCH_EVENT": event["event"]},
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDINGS),  # the end of a run holds them back
                check=False,
            ).returncode

    def _note(self, text: str) -> None:
        # Where the disk is full, or the directory is gone, the note on the screen remains.
        with contextlib.suppress(OSError), self._log() as log:
            log.write(f"orch: --notify: {text}\n".encode(errors="replace"))
        if not self._has_told:
            self._has_told = True
            self._say(f"note: --notify: {text}")

    def _log(self) -> IO[bytes]:
        return open(self._run.path / LOG, "ab", opener=private_opener)
