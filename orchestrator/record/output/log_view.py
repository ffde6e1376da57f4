"""The log view: raw output files -> prefixed lines, as the console and ``orch logs`` show them.

`LogView` is pure: bytes in, text out, for example ``worker-0 | step 12 loss 0.34``.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial
from itertools import groupby
from typing import Literal

from worker.excerpts import shorten_line
from worker.words import count_of

from .lines import RESET, LineSplitter, strip_colors

MOST_CHARACTERS = 4096
"""The most characters of a line of stderr that a view with `shorten` shows: the message of an exception may contain a whole tensor."""
MOST_ROWS = 200
"""The most rows of numbers, one after the other, that a view with `shorten` shows of stderr: the rows of a tensor in a message."""
ROWS_SHOWN = 20
"""The rows that such a view shows of more, at the beginning and at the end."""
_is_row = re.compile(r"[\s\[\]\d.,+\-einfa]*").fullmatch  # also 1e-05, inf, nan, and the empty lines between matrices

LineFilter = Callable[[list[str]], list[str]]
"""Gets the next lines of a stream, and returns those that are shown."""
Stream = tuple[LineSplitter, tuple[LineFilter, ...]]
"""The state of a view for one stream of one task."""

_FOLDED = {
    "noise": "of TensorFlow's own messages folded",
    "losses": "about lost connections folded",
    "placements": "that say where operations ran folded; orch placement sums them up",
    "bars": "of Keras's progress folded, which repeat the chief's",
}
"""The kinds of hidden lines, as `Noise` and `fold_bars` count them, and what the note says about each kind."""

# Cyan, yellow, green, magenta, blue, and their bright forms. Red stands for errors; black and white may be the background.
_COLORS = tuple(f"\x1b[{code}m" for code in (36, 33, 32, 35, 34, 96, 93, 92, 95, 94))


def wants_color(flag: Literal["auto", "always", "never"], isatty: bool, environ: Mapping[str, str]) -> bool:
    """Whether to write colours: by the flag; for ``auto`` by the environment, then by the terminal.

    ``NO_COLOR`` (no-color.org) and ``FORCE_COLOR`` (force-color.org) count if they are not empty; ``FORCE_COLOR=0``
    forces nothing. ``NO_COLOR`` wins. A terminal with ``TERM=dumb`` gets none.
    """
    if flag != "auto":
        return flag == "always"
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR", "0") not in ("", "0"):
        return True
    return isatty and environ.get("TERM") != "dumb"


class LogView:
    """Many streams in, one text out: whole lines, each with the name of its task in front.

    * `tasks`: the names of all tasks. The colour of a name is its place in this order, so each view of a run has the same colours.
    * `color`: write colours.
    * `timestamps`: write the time (HH:MM:SS.mmm) at which the view got the line, in the local zone.
    * `fold`: hide and count the lines that `noise` describes.
    * `only`: show only these tasks.
    * `grep`: show only lines that match this pattern (without prefix and colours); nothing is folded then.
    * `shorten`: leave out the middle of lines of stderr with more than `MOST_CHARACTERS`, and of more than `MOST_ROWS` rows of numbers.
    * `as_json`: write each line as a JSON object, for programs.
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
        as_json: bool = False,
        behind: Collection[str] = (),
    ) -> None:
        self._color = color
        self._timestamps = timestamps
        self._fold = fold and grep is None
        self._only = None if only is None else frozenset(only)
        self._grep = grep
        self._shorten = shorten
        self.as_json = as_json
        self._warnings: set[str] = set()
        self._behind = frozenset(behind if self._fold and only is None else ())
        self._now = 0.0
        self._width = 0
        self._colors: dict[str, str] = {}
        self._streams: dict[tuple[str, str], Stream] = {}
        self._folded = Counter[str]()
        for task in tasks:
            self._admit(task)

    def render(self, task: str, stream: str, data: bytes, now: float = 0.0) -> str:
        """The text of the lines that `data`, the next bytes of this stream, completes. `now`: seconds since the epoch."""
        if not self._shows(task):
            return ""
        self._now = now
        key = (task, stream)
        if key not in self._streams:
            self._admit(task)
            self._streams[key] = (LineSplitter(color=self._color), tuple(self._filters(task, stream)))
        splitter, filters = self._streams[key]
        return self._rendered(key, filters, splitter.feed(data, now))

    def idle(self, now: float) -> list[tuple[str, str]]:
        """Unfinished lines that are due (a prompt, a progress bar), each as (``stdout`` or ``stderr``, text)."""
        self._now = now
        texts = [(key[1], self._rendered(key, filters, splitter.idle(now))) for key, (splitter, filters) in self._streams.items()]
        return [(stream, text) for stream, text in texts if text]

    def finish(self, task: str | None = None, now: float | None = None) -> list[tuple[str, str]]:
        """The unfinished lines of a task that has ended, or of all tasks, as (stream, text).

        The view then forgets the streams: later bytes belong to the next attempt.
        """
        if now is not None:
            self._now = now
        ended = {key: self._streams.pop(key) for key in list(self._streams) if task is None or key[0] == task}
        texts = [(key[1], self._rendered(key, filters, splitter.flush())) for key, (splitter, filters) in ended.items()]
        return [(stream, text) for stream, text in texts if text]

    @property
    def folded_note(self) -> str:
        """A line with the number of hidden lines, and the option that shows them; empty if none is hidden."""
        parts = [f"{count_of(self._folded[kind], 'line')} {text}" for kind, text in _FOLDED.items() if self._folded[kind]]
        return "; ".join([*parts, "--all shows all lines"]) if parts else ""

    def _shows(self, task: str) -> bool:
        return self._only is None or task in self._only

    def _admit(self, task: str) -> None:
        self._colors.setdefault(task, _COLORS[len(self._colors) % len(_COLORS)])
        if self._shows(task):
            self._width = max(self._width, len(task))

    def _filters(self, task: str, stream: str) -> Iterator[LineFilter]:
        if self._fold:
            # Imported with the first output: their regular expressions need not hold up the start of a run.
            from .keras_bars import fold_bars
            from .noise import Noise

            yield Noise(self._folded, self._warnings).fold
            if stream == "stdout" and task in self._behind:
                yield partial(fold_bars, folded=self._folded)
        if self._grep is not None:
            search = self._grep.search
            yield lambda lines: [line for line in lines if search(strip_colors(line))]
        if self._shorten and stream == "stderr":
            yield _fold_rows
            yield _shortened

    def _rendered(self, key: tuple[str, str], filters: Iterable[LineFilter], lines: list[str]) -> str:
        for line_filter in filters:
            lines = line_filter(lines)
        task, stream = key
        if self.as_json:
            return "".join([json.dumps({"task": task, "stream": stream, "line": line}) + "\n" for line in lines])
        head = f"{task:<{self._width}} |"
        head = f"{self._colors[task]}{head}{RESET} " if self._color else f"{head} "
        if self._timestamps:
            head = f"{datetime.fromtimestamp(self._now).strftime('%H:%M:%S.%f')[:-3]} {head}"
        return head + ("\n" + head).join(lines) + "\n" if lines else ""


def _fold_rows(lines: list[str]) -> list[str]:
    """Leave out the middle of long runs of rows of numbers. Other lines are never left out."""
    if len(lines) <= MOST_ROWS or not any(map(_is_row, lines[::MOST_ROWS])):  # a long run has one of these lines
        return lines
    shown: list[str] = []
    for is_row, run in groupby(lines, lambda line: _is_row(line) is not None):
        rows = list(run)
        if is_row and len(rows) > MOST_ROWS:
            rows[ROWS_SHOWN:-ROWS_SHOWN] = [f"… {len(rows) - 2 * ROWS_SHOWN} rows of numbers more; orch logs shows them"]
        shown += rows
    return shown


def _shortened(lines: list[str]) -> list[str]:
    return [shorten_line(line, MOST_CHARACTERS) for line in lines]
