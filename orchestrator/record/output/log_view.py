"""The log view: raw output files -> prefixed lines, as the console and ``orch logs`` show them.

`Follower` reads a file of output. `LogView` is pure: bytes in, text out, for example ``worker-0 | step 12 loss 0.34``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Literal

from worker.excerpts import TracebackExcerpt
from worker.words import count_of

from ...errors import OrchError
from ...model.cause import peer_errors
from ...model.run.cluster import Cluster, Outcome, TaskState, Verdict
from ..storage.run_files import open_file
from .keras_bars import KerasBars
from .lines import PROGRESS_S, QUIET_S, RESET, LineSplitter, strip_colors
from .noise import Noise

__all__ = ["Follower", "LineSplitter", "LogView", "tail_offset", "wants_color"]

BLOCK = 1 << 16
"""The bytes of one read. The allocator reuses blocks of this size; a larger block costs a page fault each time."""

MESSAGE_LINES = 500
MESSAGE_CHARACTERS = 1 << 16
"""The most lines and characters of one exception's message that a view with `shorten` shows. The report shows fewer; here, the next lines
of the program may look like a part of the message."""

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


class _Stream:
    """The state of a view for one stream of one task."""

    __slots__ = ("bars", "excerpt", "fed", "noise", "splitter")

    def __init__(self, color: bool, shorten: bool, bars: KerasBars | None, noise: Noise) -> None:
        self.splitter = LineSplitter(color=color)
        self.noise = noise
        self.bars = bars
        self.excerpt = TracebackExcerpt(MESSAGE_LINES, MESSAGE_CHARACTERS) if shorten else None
        self.fed = 0.0

    def has_no_bars(self, now: float) -> bool:
        """Whether nothing has come for `PROGRESS_S`, and no progress of Keras before: a held ``Epoch 1/2`` may be a line of the program."""
        return self.bars is not None and not self.bars.count and now >= self.fed + PROGRESS_S


class LogView:
    """Many streams in, one text out: whole lines, each with the name of its task in front.

    * `tasks`: the names of all tasks. The colour of a name is its place in this order, so each view of a run has the same colours.
    * `color`: write colours.
    * `timestamps`: write the time (HH:MM:SS.mmm) at which the view got the line, in the zone `tz` (default: the local zone).
    * `fold`: hide and count the lines that `noise` describes.
    * `only`: show only these tasks.
    * `grep`: show only lines that match this pattern (without prefix and colours); nothing is folded then.
    * `prefix`: write the name of the task.
    * `shorten`: leave out the middle of long exception messages (`worker.excerpts`).
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
        prefix: bool = True,
        shorten: bool = False,
        behind: Collection[str] = (),
        tz: tzinfo | None = None,
    ) -> None:
        self._color = color
        self._timestamps = timestamps
        self._fold = fold and grep is None
        self._only = None if only is None else frozenset(only)
        self._grep = grep
        self._prefix = prefix
        self._shorten = shorten
        self._ended: frozenset[str] = frozenset()
        self._warnings: set[str] = set()
        self._behind = frozenset(behind if self._fold and only is None else ())
        self._tz = tz
        self._now = 0.0
        self._width = 0
        self._colors: dict[str, str] = {}
        self._heads: dict[tuple[str, str], str] = {}
        self._streams: dict[tuple[str, str], _Stream] = {}
        self._folded = 0
        self._placements = 0
        self._bars = 0
        for task in tasks:
            self._admit(task)

    def on_state(self, cluster: Cluster) -> None:
        """Notes the tasks whose end explains lost connections of other tasks: see `noise`."""
        if cluster.verdict is not None:
            self.on_verdict(cluster.verdict)
            return
        ended = {name for name, task in cluster.tasks.items() if task.state in (TaskState.FAILED, TaskState.LOST, TaskState.STOPPED)}
        leader = peer_errors.leader(cluster.tasks)
        if leader and cluster.tasks[leader].state is TaskState.SUCCEEDED:
            ended.add(leader)
        self._ended = frozenset(ended)

    def on_verdict(self, verdict: Verdict) -> None:
        """The same for a run that is over. In a failed run, only the end of the first cause explains lost connections."""
        if verdict.outcome in (Outcome.SUCCEEDED, Outcome.CANCELLED):
            self._ended = frozenset(self._colors)
        else:
            self._ended = frozenset({verdict.cause.task} if verdict.cause is not None else ())

    def render(self, task: str, stream: str, data: bytes, now: float = 0.0) -> str:
        """The text of the lines that `data`, the next bytes of this stream, completes. `now`: seconds since the epoch."""
        if not self._shows(task):
            return ""
        self._now = now
        key = (task, stream)
        state = self._streams.get(key)
        if state is None:
            self._admit(task)
            bars = KerasBars() if stream == "stdout" and task in self._behind else None
            state = self._streams[key] = _Stream(self._color, self._shorten, bars, Noise(self._warnings))
        state.fed = now
        return self._write(key, state, state.splitter.feed(data, now))

    def idle(self, now: float) -> list[tuple[str, str]]:
        """Unfinished lines that are due (a prompt, a progress bar), and held lines that nothing has explained in time.

        Each as (``stdout`` or ``stderr``, text).
        """
        self._now = now
        return [
            (key[1], text)
            for key, state in self._streams.items()
            for text in self._rest(key, state, state.splitter.idle(now), bars=state.has_no_bars(now), held=now >= state.fed + QUIET_S)
            if text
        ]

    def finish(self, task: str | None = None, now: float | None = None) -> list[tuple[str, str]]:
        """The unfinished and held lines of a task that has ended, or of all tasks, as (stream, text).

        The view then forgets the streams: later bytes belong to the next attempt.
        """
        if now is not None:
            self._now = now
        ended = [(key, state) for key, state in self._streams.items() if task is None or key[0] == task]
        for key, _ in ended:
            del self._streams[key]
        return [
            (key[1], text) for key, state in ended for text in self._rest(key, state, state.splitter.flush(), bars=True, held=True) if text
        ]

    @property
    def folded(self) -> int:
        """The number of hidden lines."""
        return self._folded + self._bars

    @property
    def folded_note(self) -> str:
        """A line with the number of hidden lines, and the option that shows them; empty if none is hidden."""
        counts = {
            "of TensorFlow's own messages folded": self._folded - self._placements,
            "that say where operations ran folded; orch placement sums them up": self._placements,
            "of Keras's progress folded, which repeat the chief's": self._bars,
        }
        parts = [f"{count_of(number, 'line')} {text}" for text, number in counts.items() if number]
        return f"{'; '.join(parts)}; --all shows {'all' if len(parts) > 1 else 'it' if self.folded == 1 else 'them'}" if parts else ""

    def _shows(self, task: str) -> bool:
        return self._only is None or task in self._only

    def _admit(self, task: str) -> None:
        if task in self._colors:
            return
        self._colors[task] = _COLORS[len(self._colors) % len(_COLORS)]
        if self._shows(task) and len(task) > self._width:
            self._width = len(task)
            self._heads.clear()

    def _explains(self, task: str) -> bool:
        """Whether the end of another task explains a lost connection of this task."""
        return not self._ended <= {task}

    def _rest(self, key: tuple[str, str], state: _Stream, lines: list[str], *, bars: bool, held: bool) -> Iterator[str]:
        """The text of the last `lines`, and of the held lines. `bars`: also of a held ``Epoch 1/2``. `held`: also of all others."""
        yield self._write(key, state, lines)
        if bars and state.bars is not None:
            yield self._prefixed(key, state.bars.end())
        if held:
            lost, state.noise.held = state.noise.held, []
            if not self._explains(key[0]):
                self._folded -= len(lost)
                yield self._prefixed(key, lost)
            yield self._prefixed(key, state.excerpt.end() if state.excerpt is not None else [])

    def _write(self, key: tuple[str, str], state: _Stream, lines: list[str]) -> str:
        if self._fold and lines:
            before = state.noise.placements
            state.noise.explained = self._explains(key[0])
            shown = state.noise.fold(lines)
            if shown is not lines:
                self._placements += state.noise.placements - before
                self._folded += len(lines) - len(shown)
                lines = shown
        if state.bars is not None and lines:
            before = state.bars.count
            lines = state.bars.remove(lines)
            self._bars += state.bars.count - before
        if self._grep is not None:
            lines = [line for line in lines if self._grep.search(strip_colors(line))]
        if state.excerpt is not None and lines:
            lines = state.excerpt.feed(lines)
        return self._prefixed(key, lines)

    def _prefixed(self, key: tuple[str, str], lines: list[str]) -> str:
        if not lines:
            return ""
        head = self._head(key)
        return head + ("\n" + head).join(lines) + "\n"

    def _head(self, key: tuple[str, str]) -> str:
        """The text in front of a line of this stream that is shown now."""
        head = self._heads.get(key)
        if head is None:
            head = self._heads[key] = self._name(key[0]) if self._prefix else ""
        if self._timestamps:
            return datetime.fromtimestamp(self._now, self._tz).strftime("%H:%M:%S.%f")[:-3] + " " + head
        return head

    def _name(self, task: str) -> str:
        name = f"{task:<{self._width}} |"
        return f"{self._colors[task]}{name}{RESET} " if self._color else f"{name} "


class Follower:
    """Reads one log file as it grows, from `offset` on, or from its last `tail` lines on.

    The file need not exist. If it was moved, `path` may be set to its new place. Each read opens the file: a run of 300 tasks has 600
    files, and a process often may open no more than 1024. Raises `OrchError` if the file cannot be read.
    """

    __slots__ = ("_note", "offset", "path")

    def __init__(self, path: Path | str, *, offset: int = 0, tail: int | None = None) -> None:
        self.path = path
        self._note: str | None = None
        self.offset = offset if tail is None else tail_offset(path, tail)
        """The offset of the next read, in bytes."""

    def read(self, limit: int = BLOCK) -> bytes:
        """The next bytes, at most `limit`; empty if there are none yet."""
        try:
            with open_file(self.path) as file:
                size = os.fstat(file.fileno()).st_size
                if size < self.offset:
                    self._note = f"{self.path} became shorter ({self.offset} to {size} bytes); what follows is what is added from here on"
                    self.offset = size
                file.seek(self.offset)
                data = file.read(limit)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise _unreadable(self.path, error) from error
        self.offset += len(data)
        return data

    def pop_note(self) -> str | None:
        """A message for the user, once, if the file became shorter."""
        note, self._note = self._note, None
        return note


def tail_offset(path: Path | str, lines: int) -> int:
    """The offset of the last `lines` lines of a file, in bytes; 0 if the file has no more lines, or does not exist.

    Reads backwards, `BLOCK` bytes at a time. A last line without a line end counts.
    """
    try:
        with open_file(path) as file:
            size = position = file.seek(0, os.SEEK_END)
            if lines <= 0:
                return size
            while position:
                start = max(0, position - BLOCK)
                file.seek(start)
                block = file.read(position - start)
                found = len(block)
                if position == size and block.endswith(b"\n"):
                    found -= 1  # this is the end of the last line, not of the line before
                while (found := block.rfind(b"\n", 0, found)) >= 0:
                    lines -= 1
                    if not lines:
                        return start + found + 1
                position = start
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise _unreadable(path, error) from error
    return 0


def _unreadable(path: Path | str, error: OSError) -> OrchError:
    return OrchError(f"{path}: cannot read this log: {error.strerror or error}")
