"""The two outputs of `orch up`: text for a terminal, and JSON lines for programs."""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import asdict
from typing import Any

from ..control.signals import release_signals
from ..controller import Ended
from ..errors import UsageError
from ..model.state.cluster import Cluster
from ..model.state.events import Event
from ..record import event_log
from ..record.console import Console, Sink
from ..record.run_directory import RunDir
from ..record.text.format import iso_times, json_text
from ..record.text.lines import RESET
from ..record.text.log_view import LogView

_RED = "\x1b[1;31m"
_MARKS = {"  first failure:": _RED, "  fix:": "\x1b[1m"}
"""How lines of a report of a failure begin that are to catch the eye."""


class Terminal(Console):
    """Text: the output of the tasks and the messages of orch. `quiet`: only the end."""

    def __init__(self, run: RunDir, view: LogView, *, quiet: bool) -> None:
        super().__init__(run, Sink(encoding=sys.stdout.encoding), view, quiet=quiet)

    def end(self, ended: Ended) -> None:
        _finish(self, ended)
        if ended.error is not None:  # the error, on stderr, says all
            return
        lines = ended.report()
        if self._view.folded_note:
            lines.insert(0, self._view.folded_note)
        marks = _MARKS if self._view.color and ended.verdict.exit_code else {}
        marks = {**marks, f"{ended.run.run_id} ": _RED} if marks else {}
        styles = (next((style for begin, style in marks.items() if line.startswith(begin)), "") for line in lines)
        shown = (f"{style}orch: {line}{RESET if style else ''}\n" for style, line in zip(styles, lines, strict=True))
        self.conclude("".join(shown))


class JsonLines(Console):
    """JSON: a line for each event, and the verdict as the last line. The console shows no output, so its view is not used."""

    def __init__(self, run: RunDir) -> None:
        super().__init__(run, Sink(), LogView(()), quiet=True)

    def on_event(self, before: Cluster, after: Cluster, event: Event) -> None:
        self._write_line(json.loads(event_log.to_line(event)))

    def end(self, ended: Ended) -> None:
        """The verdict, as in `result.json`, is the last line. A spec that was refused has none: the error, on stderr, says all."""
        if not isinstance(ended.error, UsageError):
            self._write_line({"event": "verdict", "run": ended.run.run_id, **asdict(ended.verdict)})
        _finish(self, ended)

    def _write_line(self, data: dict[str, Any]) -> None:
        self.write("stdout", json_text(iso_times(data), separators=(",", ":")) + "\n")


def _finish(console: Console, ended: Ended) -> None:
    """Shows all that is still to be shown, unless the user has asked twice for the end, or presses Ctrl-C now or pressed it before."""
    if ended.cluster.stop_repeated:
        console.abandon()
    try:
        release_signals()
        console.finish(ended.cluster.tasks.values())
    except KeyboardInterrupt:
        console.abandon()
        with contextlib.suppress(KeyboardInterrupt):
            console.finish()
