"""How a run is shown: the options of `orch up` and `orch logs`, and the view for programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..errors import UsageError
from ..model import events
from ..model.cluster import Cluster, Verdict
from ..model.plan import Plan
from ..record import journal
from ..record.rundir import RunDir

if TYPE_CHECKING:
    from ..record.console import Sink

F = TypeVar("F", bound=Callable[..., Any])


def view_options(command: F) -> F:
    """``--only --quiet --timestamps``, and `color_options`."""
    decorators = (
        click.option("--only", multiple=True, metavar="TASK", help="Show only this task's output; may be repeated."),
        click.option("-q", "--quiet", envvar="ORCH_QUIET", is_flag=True, help="Show no output of the tasks, only the verdict."),
        click.option(
            "-v", "--verbose", is_flag=True, envvar="ORCH_VERBOSE", help="Say at the end which phase of the start was the slowest."
        ),
        click.option("--timestamps", envvar="ORCH_TIMESTAMPS", is_flag=True, help="Begin each line with the time."),
        color_options,
    )
    for decorate in reversed(decorators):
        command = decorate(command)
    return command


def color_options(command: F) -> F:
    """``--color --all``."""
    everything = click.option("--all", "everything", is_flag=True, help="Show TensorFlow's start-up noise too.")
    return color_option(everything(command))


def color_option(command: F) -> F:
    """``--color``."""
    choices = click.Choice(["auto", "always", "never"])
    return click.option("--color", envvar="ORCH_COLOR", type=choices, default="auto", help="Colours: auto, always or never.")(command)


def only_tasks(names: Sequence[str], known: Sequence[str]) -> set[str] | None:
    """The tasks that are asked for; None: all. A type stands for all of its tasks. Raises `UsageError`."""
    if not names:
        return None
    found: set[str] = set()
    for name in names:
        matching = [task for task in known if name in (task, task.rpartition("-")[0])]
        if not matching:
            raise UsageError(f"there is no task {name!r}{_nearest(name, known)}")
        found.update(matching)
    return found


def _nearest(name: str, known: Sequence[str]) -> str:
    import difflib

    from ..model.formation import group_tasks

    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; tasks: {group_tasks(known)}"


class JsonLines:
    """A `Viewer` for programs: each event as a line of JSON, the verdict last.

    A thread writes the lines, so that a reader that is slow or gone holds up nobody.
    """

    def __init__(self, sink: Sink) -> None:
        import threading
        from queue import SimpleQueue

        self._sink = sink
        self._lines: SimpleQueue[str | None] = SimpleQueue()
        self._abandoned = False
        # Waited for by this and not by join, as in `Console`.
        self._ended = threading.Event()
        threading.Thread(target=self._write, name="json", daemon=True).start()

    def planned(self, planned: Plan) -> None:
        self._lines.put(_line({"event": "planned", "run": planned.run_id, "tasks": [str(task.id) for task in planned.tasks]}))

    def grew(self, task: str, attempt: int, stream: str, size: int) -> None: ...

    def said(self, text: str) -> None: ...

    def happened(self, before: Cluster, after: Cluster, event: events.Event) -> None:
        self._lines.put(journal.to_line(event).decode("ascii"))

    def conclude(self, run: RunDir, verdict: Verdict) -> None:
        """The verdict, as in `result.json`, is the last line."""
        self._lines.put(_line({"event": "verdict", "run": run.run_id, **asdict(verdict)}))
        self._lines.put(None)

    def finish(self) -> None:
        """Return when all lines are written. Blocks as long as the reader does, unless it was abandoned."""
        from ..record.console import ABANDONED_S

        self._ended.wait(ABANDONED_S if self._abandoned else None)

    def abandon(self) -> None:
        """Lets `finish` return even if the reader is stuck."""
        self._abandoned = True

    def _write(self) -> None:
        try:
            while (line := self._lines.get()) is not None:
                self._sink.write("stdout", line)
        finally:
            self._ended.set()


def _line(data: dict[str, Any]) -> str:
    import json

    return json.dumps(data, separators=(",", ":")) + "\n"
