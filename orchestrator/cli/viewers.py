"""Who is shown a run of `orch up`, from its plan to its last line: a terminal, or a program that reads JSON."""

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
    """The tasks' output and what happens, for a person. `view` None: only what happens. `verbose`: the slowest phase at the end."""

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
        except KeyboardInterrupt:  # nobody reads the console; the verdict is what is left to say
            self.abandon()
        lines = ended.report()
        if self._shows is not None and self._shows.folded_note:
            lines.insert(0, self._shows.folded_note)
        if self._verbose and ended.cluster is not None:
            lines.insert(0, timeline.slowest(timeline.measure(ended.run.read_events(), ended.cluster)))
        self.conclude(in_orchs_words(lines))


class JsonLines:
    """Each event as a line of JSON, the verdict last.

    A thread writes the lines, so that a reader that is slow or gone holds up nobody.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._lines: SimpleQueue[str | None] = SimpleQueue()
        # Waited for by this and not by join, as in `Console`.
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
        except KeyboardInterrupt:  # nobody reads; whoever does has a moment to get the verdict
            self._ended.wait(ABANDONED_S)

    def _write(self) -> None:
        try:
            while (line := self._lines.get()) is not None:
                self._sink.write("stdout", line)
        finally:
            self._ended.set()


def _release_signals_quietly() -> None:
    """Before an error is shown that says more than a Ctrl-C that was held back until now."""
    with contextlib.suppress(KeyboardInterrupt):
        release_signals()


def in_orchs_words(lines: list[str]) -> str:
    """Lines of orch's own."""
    return "".join(f"orch: {line}\n" for line in lines)


def _line(data: dict[str, Any]) -> str:
    return json.dumps(data, separators=(",", ":")) + "\n"
