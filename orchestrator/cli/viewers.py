"""The two outputs of `orch up`: text for a terminal, and JSON lines for programs."""

from __future__ import annotations

import contextlib
import json
import threading
from dataclasses import asdict
from queue import SimpleQueue
from typing import Any

from worker.clock import now

from ..controller import Ended
from ..errors import OrchError
from ..model.planning.plan import Plan
from ..model.run.cluster import Cluster
from ..model.run.events import Event, RunNoted
from ..record.output.console import ABANDONED_S, Console, Sink
from ..record.output.log_view import LogView
from ..record.storage import event_log
from ..record.storage.run_directory import RunDir
from ..record.text import timeline
from ..signals import release_signals


class Terminal(Console):
    """Text: the output of the tasks (unless `view` is None) and the messages of orch. `verbose`: at the end also the slowest phase."""

    def __init__(self, run: RunDir, sink: Sink, view: LogView | None, *, quiet: bool, verbose: bool) -> None:
        super().__init__(run, sink, quiet=quiet)
        self._shows, self._verbose = view, verbose
        if view is not None:
            self.show_logs(view)

    def refuse(self, error: OrchError, given_up: Ended | None) -> None:
        _release_signals_quietly()
        self.finish(None)

    def end(self, ended: Ended) -> None:
        if ended.is_hurried:
            self.abandon()
        try:
            release_signals()
            self.finish(ended.cluster)
        except KeyboardInterrupt:  # the user wants no more output; only the verdict follows
            self.abandon()
        lines = ended.report()
        if self._shows is not None and self._shows.folded_note:
            lines.insert(0, self._shows.folded_note)
        if self._verbose and ended.cluster is not None:
            lines.insert(0, timeline.slowest(timeline.measure(ended.run.read_events(), ended.cluster)))
        self.conclude("".join(f"orch: {line}\n" for line in lines))


class JsonLines:
    """JSON: a line for each event, and the verdict as the last line.

    A thread writes the lines, so that a slow reader delays nothing.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._lines: SimpleQueue[str | None] = SimpleQueue()
        # An event and not join(), as in `Console`.
        self._ended = threading.Event()
        threading.Thread(target=self._write, name="json", daemon=True).start()

    def planned(self, planned: Plan) -> None:
        self._lines.put(_line({"event": "planned", "run": planned.run_id, "tasks": [str(task.id) for task in planned.tasks]}))
        for note in planned.notes:
            self.noted(RunNoted(note, now()))

    def grew(self, task: str, attempt: int, stream: str, size: int) -> None: ...

    def noted(self, note: RunNoted) -> None:
        self._put(note)

    def happened(self, before: Cluster, after: Cluster, event: Event) -> None:
        self._put(event)

    def _put(self, event: Event) -> None:
        self._lines.put(event_log.to_line(event).decode("ascii"))

    def refuse(self, error: OrchError, given_up: Ended | None) -> None:
        _release_signals_quietly()
        if given_up is not None:
            self.end(given_up)

    def end(self, ended: Ended) -> None:
        """The verdict, as in `result.json`, is the last line."""
        self._lines.put(_line({"event": "verdict", "run": ended.run.run_id, **asdict(ended.verdict)}))
        self._lines.put(None)
        try:
            release_signals()
            self._ended.wait(ABANDONED_S if ended.is_hurried else None)
        except KeyboardInterrupt:  # a reader gets a moment to read the verdict
            self._ended.wait(ABANDONED_S)

    def _write(self) -> None:
        try:
            while (line := self._lines.get()) is not None:
                self._sink.write("stdout", line)
        finally:
            self._ended.set()


def _release_signals_quietly() -> None:
    """Unblocks the signals, and ignores a Ctrl-C that was held back: an error with more information follows."""
    with contextlib.suppress(KeyboardInterrupt):
        release_signals()


def _line(data: dict[str, Any]) -> str:
    return json.dumps(data, separators=(",", ":")) + "\n"
