"""The log view: raw output files -> prefixed lines, as the console and ``orch logs`` show them.

`LogView` is pure: bytes in, text out, for example ``worker-0 | step 12 loss 0.34``.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime, timezone
from itertools import cycle
from typing import TYPE_CHECKING, Literal

from worker.protocol.task_id import STREAMS
from worker.values.excerpts import shorten_line
from worker.values.words import count_of

from ...model.task_names import group_tasks
from .lines import RESET, LineSplitter, strip_colors

if TYPE_CHECKING:
    from .noise import Noise
    from .same_lines import SameLines, SharedLine
    from .tracebacks import Tracebacks

    Stream = tuple[LineSplitter, Noise | None]

MOST_CHARACTERS = 4096
"""The most characters of a line of stderr that a view with `shorten` shows: the message of an exception may contain a whole tensor."""
# Cyan, yellow, green, magenta, blue, and their bright forms. Red stands for errors; black and white may be the background.
_COLORS = tuple(f"\x1b[{code}m" for code in (36, 33, 32, 35, 34, 96, 93, 92, 95, 94))


def wants_color(flag: Literal["auto", "always", "never"]) -> bool:
    """True if to write colours on stdout: by the flag; for ``auto`` by the environment, then by the terminal.

    ``NO_COLOR`` (no-color.org) and ``FORCE_COLOR`` (force-color.org) count if they are not empty; ``FORCE_COLOR=0``
    forces nothing. ``NO_COLOR`` wins. A terminal with ``TERM=dumb`` gets none.
    """
    if flag != "auto":
        return flag == "always"
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR", "0") not in ("", "0"):
        return True
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


class LogView:
    """Many streams in, one text out: whole lines, each with the name of its task in front.

    * `tasks`: the names of all tasks; others are not shown. The place of a name gives its colour, the same in each view of a run.
    * `color`: write colours.
    * `timestamps`: write the time (HH:MM:SS.mmm) at which the view got the line, in the local zone.
    * `fold`: hide and count the lines that `noise` and `tracebacks` describe.
    * `only`: show only these tasks.
    * `grep`: show only lines that match this pattern (without prefix and colours); nothing is folded then.
    * `shorten`: leave out the middle of lines of stderr with more than `MOST_CHARACTERS`.
    * `prefix`: begin each line with the name of its task.
    * `as_json`: write each line as a JSON object, for programs.
    * `once_s`: show a line that several tasks write once, with the names of the tasks: the tasks write the line within so many seconds, and
      the line is held so long. None: show the line of each task.
    * `behind`: tasks that train in step with a chief. With `fold` and without `only`, Keras's progress lines of these tasks are hidden.

    The text has whole lines only, so the texts of several views can be written to one terminal in any order.
    """

    def __init__(
        self,
        tasks: Iterable[str],
        *,
        color: bool = False,
        timestamps: bool = False,
        fold: bool = True,
        only: Collection[str] | None = None,
        grep: re.Pattern[str] | None = None,
        shorten: bool = False,
        prefix: bool = True,
        as_json: bool = False,
        once_s: float | None = None,
        behind: Collection[str] = (),
    ) -> None:
        self.color, self.timestamps, self._shorten, self.as_json = color, timestamps, shorten, as_json
        self._fold, self._grep = fold and grep is None, grep
        self._behind = frozenset(behind if self._fold and only is None else ())
        self._warnings: set[str] = set()
        self._shown_tracebacks: dict[int, str] = {}
        self._tracebacks: dict[str, Tracebacks] = {}
        self._now = 0.0
        self._folded = 0
        self._streams: dict[tuple[str, str], Stream] = {}
        colors = dict(zip(tasks, cycle(_COLORS), strict=False))
        shown = [task for task in colors if only is None or task in only]
        self._once: dict[str, SameLines] = {}
        if once_s is not None:
            from .same_lines import SameLines

            self._once = {stream: SameLines(shown, once_s) for stream in STREAMS}
        width = max(map(len, [*shown, group_tasks(shown) if self._once else ""]), default=0)
        self._width, self._colors = (width, colors) if prefix else (-1, colors)
        self._heads = {task: self._head(task, task) for task in shown}

    def render(self, task: str, stream: str, data: bytes, now: float = 0.0) -> str:
        """The text of the lines that `data`, the next bytes of this stream, completes. `now`: seconds since the epoch."""
        if task not in self._heads:
            return ""
        self._now = now
        if (task, stream) not in self._streams:
            # Imported with the first output: its regular expressions need not hold up the start of a run.
            from .noise import Noise
            from .tracebacks import Tracebacks

            if self._fold and stream == "stderr":
                self._tracebacks.setdefault(task, Tracebacks(task, self._shown_tracebacks))
            self._streams[task, stream] = LineSplitter(color=self.color), Noise(self._warnings) if self._fold else None
        splitter, noise = self._streams[task, stream]
        return self._rendered(task, stream, noise, splitter.feed(data, now))

    def idle(self, now: float) -> list[tuple[str, str]]:
        """Unfinished lines that are due (a prompt, a progress bar), and tracebacks, each as (``stdout`` or ``stderr``, text)."""
        self._now = now
        return (
            self._rendered_all(self._streams, lambda splitter: splitter.idle(now))
            + self.overdue(now)
            + self._shared(lambda held: held.due(now))
        )

    def overdue(self, now: float) -> list[tuple[str, str]]:
        """The tracebacks that have been held until now and are due."""
        self._now = now
        return self._released(None, lambda held: held.overdue(now))

    def complete(self, task: str | None = None) -> list[tuple[str, str]]:
        """The tracebacks of this task, or of all, whose exception has come: something is to be shown that comes after them."""
        return self._released(task, lambda held: held.complete())

    def finish(self, task: str | None = None) -> list[tuple[str, str]]:
        """Forget the streams of a task that has ended, or of all, and return their unfinished lines as (stream, text)."""
        ended = {key: self._streams.pop(key) for key in list(self._streams) if task is None or key[0] == task}
        texts = self._rendered_all(ended, LineSplitter.flush) + self._released(task, lambda held: held.release())
        return texts if task is not None else texts + self.release_shared()

    def release_shared(self) -> list[tuple[str, str]]:
        """The lines that are held because other tasks may write them, too: something is to be shown that comes after them."""
        return self._shared(lambda held: held.release())

    @property
    def folded_note(self) -> str:
        """A line with the number of hidden lines, and the option that shows them; empty if none is hidden."""
        if not self._folded:
            return ""
        repeated = sum(held.folded for held in self._tracebacks.values())
        what = ["of TensorFlow's own messages"] * (self._folded > repeated) + ["of tracebacks"] * (repeated > 0)
        return f"{count_of(self._folded, 'line')} {' and '.join(what)} folded; --all shows all lines"

    def _shared(self, read: Callable[[SameLines], list[SharedLine]]) -> list[tuple[str, str]]:
        texts = [(stream, "".join(map(self._text_of_shared, read(held)))) for stream, held in self._once.items()]
        return [(stream, text) for stream, text in texts if text]

    def _rendered_all(self, streams: Mapping[tuple[str, str], Stream], read: Callable[[LineSplitter], list[str]]) -> list[tuple[str, str]]:
        texts = [(stream, self._rendered(task, stream, noise, read(splitter))) for (task, stream), (splitter, noise) in streams.items()]
        return [(stream, text) for stream, text in texts if text]

    def _released(self, task: str | None, read: Callable[[Tracebacks], list[str]]) -> list[tuple[str, str]]:
        """Tracebacks that were held, so far counted as folded."""
        read_now = {one: read(held) for one, held in self._tracebacks.items() if task in (None, one)}
        self._folded -= sum(map(len, read_now.values()))
        return [("stderr", self._text(one, "stderr", lines)) for one, lines in read_now.items() if lines]

    def _rendered(self, task: str, stream: str, noise: Noise | None, lines: list[str]) -> str:
        if noise is not None:
            shown = noise.fold(lines)
            if stream == "stdout" and task in self._behind:
                from .keras_bars import without_bars

                shown = without_bars(shown)
            if stream == "stderr":
                shown = self._tracebacks[task].fold(shown, self._now)
            self._folded += len(lines) - len(shown)
            lines = shown
        return self._text(task, stream, lines)

    def _text(self, task: str, stream: str, lines: list[str]) -> str:
        if self._grep is not None:
            lines = [line for line in lines if self._grep.search(strip_colors(line))]
        if self._shorten and stream == "stderr":
            lines = [shorten_line(line, MOST_CHARACTERS) for line in lines]
        if self._once:
            return "".join(map(self._text_of_shared, self._once[stream].add(task, lines, self._now)))
        if self.as_json:
            at = {"at": datetime.fromtimestamp(self._now, timezone.utc).isoformat(timespec="milliseconds")} if self.timestamps else {}
            return "".join([json.dumps({"task": task, "stream": stream, "line": line, **at}) + "\n" for line in lines])
        head = self._stamped(self._heads[task], self._now)
        return head + ("\n" + head).join(lines) + "\n" if lines else ""

    def _text_of_shared(self, line: SharedLine) -> str:
        name, first = group_tasks(line.tasks), line.tasks[0]
        return f"{self._stamped(self._head(name, first), line.at)}{line.text}\n"

    def _head(self, name: str, first: str) -> str:
        """The prefix of a line of these tasks, in the colour of `first`."""
        if self._width < 0:
            return ""
        return f"{self._colors[first]}{name:<{self._width}} |{RESET} " if self.color else f"{name:<{self._width}} | "

    def _stamped(self, head: str, at: float) -> str:
        return f"{datetime.fromtimestamp(at).strftime('%H:%M:%S.%f')[:-3]} {head}" if self.timestamps else head
