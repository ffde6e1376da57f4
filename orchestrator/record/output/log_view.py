"""The log view: raw output files -> prefixed lines, as the console and ``orch logs`` show them.

Tasks write their output into files, without prefixes, and wait for nobody. A view reads these files, as fast
or as slowly as its own output takes them. `LogView` is pure: bytes in, text out. `Follower` reads.
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
from .lines import PROGRESS_S, QUIET_S, LineSplitter
from .noise import Noise

__all__ = ["Follower", "LineSplitter", "LogView", "tail_offset", "wants_color"]

BLOCK = 1 << 16
"""Bytes read at a time; the allocator reuses blocks of this size, which larger ones cost a page fault each."""

MESSAGE_LINES = 500
MESSAGE_CHARACTERS = 1 << 16
"""Lines and characters of one exception's message that a view which shortens them shows. More than the report does: where an exception was
only logged, what the program says next may be taken for a part of its message."""

_SGR = re.compile(r"\x1b\[[0-9;:]*m")
_RESET = "\x1b[0m"
# Cyan, yellow, green, magenta, blue, and their bright forms. Red is left to errors, black and white to the background.
_COLORS = tuple(f"\x1b[{code}m" for code in (36, 33, 32, 35, 34, 96, 93, 92, 95, 94))


def wants_color(flag: Literal["auto", "always", "never"], isatty: bool, environ: Mapping[str, str]) -> bool:
    """Whether to write colours: what the flag says, and for ``auto`` the environment, then the terminal.

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
    """What a view remembers of one stream of one task."""

    __slots__ = ("bars", "excerpt", "fed", "noise", "splitter")

    def __init__(self, color: bool, shorten: bool, bars: KerasBars | None, noise: Noise) -> None:
        self.splitter = LineSplitter(color=color)
        self.noise = noise
        self.bars = bars
        self.excerpt = TracebackExcerpt(MESSAGE_LINES, MESSAGE_CHARACTERS) if shorten else None
        self.fed = 0.0

    def has_no_bars(self, now: float) -> bool:
        """Nothing has come for long, and no progress of Keras's before that: an epoch that was announced may be the program's own."""
        return self.bars is not None and not self.bars.count and now >= self.fed + PROGRESS_S


class LogView:
    """Many streams in, one readable text out: whole lines, each with its task's name in front.

    `tasks`: the names of all tasks, in order; a name's colour is its place in this order, so it is the same in
    every view of a run. Names that come up later are taken in, and widen the column from then on.
    `color`, `timestamps` (HH:MM:SS.mmm of the time the view got the line, in the zone `tz`, by default the local one).
    `fold`: hide what `noise` describes, and count it. `only`: show these tasks; the rest is dropped unseen.
    `grep`: show the lines in which this pattern is found; it looks at the text without prefix and colours, and at
    every line, so nothing is folded. `prefix`: off for the plain text of one stream. `shorten`: leave out the middle of an exception's long
    message (`worker.excerpts`), which `idle` and `finish` take to be over. `behind`: tasks that train in step with a chief, whose progress
    is theirs: with `fold`, what Keras draws of it is shown of them only if they are asked for, by `only`.

    The text never holds half a line, so views of several streams can be written to one terminal in any order.
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

    def heed(self, cluster: Cluster) -> None:
        """Take note of the tasks whose end explains connections that the others have lost: see `noise`."""
        if cluster.verdict is not None:
            self.heed_verdict(cluster.verdict)
            return
        ended = {name for name, task in cluster.tasks.items() if task.state in (TaskState.FAILED, TaskState.LOST, TaskState.STOPPED)}
        leader = peer_errors.leader(cluster.tasks)
        if leader and cluster.tasks[leader].state is TaskState.SUCCEEDED:
            ended.add(leader)
        self._ended = frozenset(ended)

    def heed_verdict(self, verdict: Verdict) -> None:
        """The same for a run that is over. The one connection that nothing explains is that of its cause."""
        if verdict.outcome in (Outcome.SUCCEEDED, Outcome.CANCELLED):
            self._ended = frozenset(self._colors)
        else:
            self._ended = frozenset({verdict.cause.task} if verdict.cause is not None else ())

    def render(self, task: str, stream: str, data: bytes, now: float = 0.0) -> str:
        """The lines that `data`, the next bytes of this stream, completes: text ready to be written, or "".

        `now`: seconds since the epoch.
        """
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
        """Unfinished lines whose time has come (a prompt, a progress bar), and what was held back in vain, as (stream, text).

        The stream is ``stdout`` or ``stderr``.
        """
        self._now = now
        return [
            *self._each((key, state, state.splitter.idle(now)) for key, state in self._streams.items()),
            *self._unexplained((key, state) for key, state in self._streams.items() if state.has_no_bars(now)),
            *self._held((key, state) for key, state in self._streams.items() if now >= state.fed + QUIET_S),
            *self._rest((key, state) for key, state in self._streams.items() if now >= state.fed + QUIET_S),
        ]

    def finish(self, task: str | None = None, now: float | None = None) -> list[tuple[str, str]]:
        """The unfinished lines of a task that has ended, or of all tasks, as (stream, text).

        The streams are forgotten: bytes that come later begin anew, as those of the next attempt do.
        """
        if now is not None:
            self._now = now
        ended = [key for key in self._streams if task is None or key[0] == task]
        states = [(key, self._streams.pop(key)) for key in ended]
        return [
            *self._each((key, state, state.splitter.flush()) for key, state in states),
            *self._unexplained(states),
            *self._held(states),
            *self._rest(states),
        ]

    @property
    def folded(self) -> int:
        """How many lines have been hidden."""
        return self._folded + self._bars

    @property
    def folded_note(self) -> str:
        """One line that says how many lines were hidden and how to see them; "" if none were."""
        noise, said = self._folded - self._placements, []
        if noise:
            said.append(f"{count_of(noise, 'line')} of TensorFlow's own messages folded")
        if self._placements:
            said.append(f"{count_of(self._placements, 'line')} that say where operations ran folded; orch placement sums them up")
        if self._bars:
            said.append(f"{count_of(self._bars, 'line')} of Keras's progress folded, which repeat the chief's")
        return f"{'; '.join(said)}; --all shows {'all' if len(said) > 1 else 'it' if self.folded == 1 else 'them'}" if said else ""

    def _shows(self, task: str) -> bool:
        return self._only is None or task in self._only

    def _admit(self, task: str) -> None:
        if task in self._colors:
            return
        self._colors[task] = _COLORS[len(self._colors) % len(_COLORS)]
        if self._shows(task) and len(task) > self._width:
            self._width = len(task)
            self._heads.clear()

    def _each(self, found: Iterable[tuple[tuple[str, str], _Stream, list[str]]]) -> Iterator[tuple[str, str]]:
        for key, state, lines in found:
            text = self._write(key, state, lines)
            if text:
                yield key[1], text

    def _explains(self, task: str) -> bool:
        """Whether the end of another task explains a connection that this task has lost."""
        return not self._ended <= {task}

    def _held(self, quiet: Iterable[tuple[tuple[str, str], _Stream]]) -> Iterator[tuple[str, str]]:
        """The lines about lost connections that nothing has explained."""
        for key, state in quiet:
            held = state.noise.held
            state.noise.held = []
            if held and not self._explains(key[0]):
                self._folded -= len(held)
                yield key[1], self._prefixed(key, held)

    def _unexplained(self, found: Iterable[tuple[tuple[str, str], _Stream]]) -> Iterator[tuple[str, str]]:
        """What may have been the beginning of Keras's progress, had more of it followed."""
        for key, state in found:
            lines = state.bars.end() if state.bars is not None else []
            if lines:
                yield key[1], self._prefixed(key, lines)

    def _rest(self, ended: Iterable[tuple[tuple[str, str], _Stream]]) -> Iterator[tuple[str, str]]:
        """What was held back of exceptions' messages, which are over."""
        for key, state in ended:
            lines = state.excerpt.end() if state.excerpt is not None else []
            if lines:
                yield key[1], self._prefixed(key, lines)

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
            lines = state.bars.without(lines)
            self._bars += state.bars.count - before
        if self._grep is not None:
            search = self._grep.search
            lines = [line for line in lines if search(_SGR.sub("", line) if "\x1b" in line else line)]
        if state.excerpt is not None and lines:
            lines = state.excerpt.feed(lines)
        return self._prefixed(key, lines) if lines else ""

    def _prefixed(self, key: tuple[str, str], lines: list[str]) -> str:
        head = self._head(key)
        return head + ("\n" + head).join(lines) + "\n"

    def _head(self, key: tuple[str, str]) -> str:
        """What stands in front of a line of this stream, now."""
        head = self._heads.get(key)
        if head is None:
            head = self._heads[key] = self._name(key[0]) if self._prefix else ""
        if self._timestamps:
            return datetime.fromtimestamp(self._now, self._tz).strftime("%H:%M:%S.%f")[:-3] + " " + head
        return head

    def _name(self, task: str) -> str:
        name = f"{task:<{self._width}} |"
        return f"{self._colors[task]}{name}{_RESET} " if self._color else f"{name} "


class Follower:
    """Reads one log file as it grows, from `offset` on, or from its last `tail` lines on.

    The file may not exist yet, and may go away; if it was moved, `path` may be set to its new place. It is opened for each read: a run of
    300 tasks has 600 files, and a process may often have no more than 1024 open. Raises `OrchError` if the file is there but not readable.
    """

    __slots__ = ("_note", "offset", "path")

    def __init__(self, path: Path | str, *, offset: int = 0, tail: int | None = None) -> None:
        self.path = path
        self._note: str | None = None
        self.offset = offset if tail is None else tail_offset(path, tail)
        """Where the next read begins, in bytes."""

    def read(self, limit: int = BLOCK) -> bytes:
        """The next bytes, at most `limit`; empty if there are none for now."""
        try:
            with open_file(self.path) as file:
                size = os.fstat(file.fileno()).st_size
                if size < self.offset:
                    self._note = f"{self.path} became shorter ({self.offset} to {size} bytes); what follows is what is added from here on"
                    self.offset = size
                file.seek(self.offset)
                data = file.read(limit) or b""
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise _unreadable(self.path, error) from error
        self.offset += len(data)
        return data

    def take_note(self) -> str | None:
        """What the user should know about the file, once: that it became shorter under the reader."""
        note, self._note = self._note, None
        return note


def tail_offset(path: Path | str, lines: int) -> int:
    """Where the last `lines` lines of a file begin, in bytes; 0 if it has no more, or does not exist.

    Reads backwards, `BLOCK` bytes at a time. A last line without its end counts as a line.
    """
    try:
        with open_file(path) as file:
            size = position = file.seek(0, os.SEEK_END)
            if lines <= 0:
                return size
            while position:
                start = max(0, position - BLOCK)
                file.seek(start)
                block = (file.read(position - start) or b"")[: position - start]
                found = len(block)
                if position == size and block.endswith(b"\n"):
                    found -= 1  # the end of the last line, not of the one before it
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
