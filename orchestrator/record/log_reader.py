"""Reads the files of output of a run for a view, and follows them: from attempt to attempt, task by task or in the order of time."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from worker.machine.clock import now

from .console import Sink
from .follower import BLOCK, Follower
from .log_index import KeptMarks
from .run_directory import RunDir
from .run_files import size_of
from .run_progress import read_cluster
from .text.event_messages import describe_attempt
from .text.log_view import LogView
from .text.time_order import LogPiece, LogStretch, in_order


class LogReader:
    """Shows the output of `tasks` by `view`, both streams on this process's stdout, which grep and less read; orch's own lines on stderr.

    After an attempt of a task, its next attempt follows.

    `attempt`: only this attempt. `tail`: the last lines of each stream. `since`: begin at the time of these marks, also in older attempts.
    `until`: leave out what was written later, in seconds since the epoch.
    `follows`: more output is to come. Without `attempt` and `since`, the output begins with the newest attempt of each task.
    """

    def __init__(
        self,
        run: RunDir,
        tasks: Sequence[str],
        view: LogView,
        streams: Sequence[str],
        *,
        attempt: int | None = None,
        tail: int | None = None,
        since: KeptMarks | None = None,
        until: float | None = None,
        follows: bool = False,
    ) -> None:
        self._run, self._asked, self._view, self._streams, self._follows = run, attempt, view, streams, follows
        self._until = until
        self._marks = KeptMarks(run) if view.timestamps or until is not None else None
        self._sink = Sink(encoding=sys.stdout.encoding)
        self._merges = False
        newest = run.last_attempts()
        self._attempts: dict[str, int] = {}
        self._said: set[str] = set()
        self._followers: dict[str, dict[str, Follower]] = {}
        for task in tasks:
            self._open(task, attempt or self._first_attempt(task, newest.get(task, 1), since), tail)
            if since is not None:
                for stream, follower in self._followers[task].items():
                    follower.offset = max(follower.offset, since.offset(task, self._attempts[task], stream))

    def merge(self) -> None:
        """From now on the lines are shown in the order of time (`time_order`)."""
        self._merges = True
        self._marks = KeptMarks(self._run)

    def _first_attempt(self, task: str, newest: int, since: KeptMarks | None) -> int:
        if since is None:
            return newest
        late = (number for number in self._run.attempts() if any(since.last_time(task, number, one) >= since.at for one in self._streams))
        return next(late, newest)

    def _open(self, task: str, attempt: int, tail: int | None = None) -> None:
        self._attempts[task] = attempt
        self._followers[task] = {stream: Follower(self._run.log_path(task, attempt, stream), tail=tail) for stream in self._streams}

    def write(self, texts: Iterable[tuple[str, str]]) -> None:
        for _, text in texts:
            self._sink.write("stdout", text)

    def show(self) -> bool:
        """Prints the present output of each task, up to its newest attempt. Returns False if nothing is new."""
        newest = {} if self._asked else self._run.last_attempts()  # read first: an attempt gets no more output once the next one exists
        return self._show_merged(newest) if self._merges else self._show_by_task(newest)

    def _show_by_task(self, newest: dict[str, int]) -> bool:
        is_new = False
        for task in self._followers:
            is_new |= self._show_attempt(task)
            while newest.get(task, 0) > self._attempts[task]:
                self._begin_attempt(task, self._attempts[task] + 1)
                is_new |= self._show_attempt(task)
        return is_new

    def _show_merged(self, newest: dict[str, int]) -> bool:
        for followers in self._followers.values():
            for follower in followers.values():
                follower.present_end()  # a file may have become shorter
        stretches = [
            LogStretch(task, attempt, stream, self._offset(task, attempt, stream), size_of(path), self._marks_of(task, attempt, stream))
            for task, present in self._attempts.items()
            for attempt in range(present, max(present, newest.get(task, 0)) + 1)
            for stream in self._streams
            for path in [self._run.log_path(task, attempt, stream)]
        ]
        is_new = False
        for piece in in_order(stretches):
            while piece.attempt > self._attempts[piece.task]:
                self._begin_attempt(piece.task, self._attempts[piece.task] + 1)
            self._show_piece(piece)
            is_new = True
        for task, number in newest.items():
            while task in self._attempts and number > self._attempts[task]:  # no output of these yet
                self._begin_attempt(task, self._attempts[task] + 1)
        if not (is_new and self._follows):
            self.write(self._view.complete())
        return is_new

    def _offset(self, task: str, attempt: int, stream: str) -> int:
        return self._followers[task][stream].offset if attempt == self._attempts[task] else 0

    def _marks_of(self, task: str, attempt: int, stream: str) -> Sequence[tuple[float, int]]:
        return self._marks.of(task, attempt, stream) if self._marks else ()

    def _show_piece(self, piece: LogPiece) -> None:
        follower = self._followers[piece.task][piece.stream]
        while follower.offset < piece.end and (data := follower.read(min(BLOCK, piece.end - follower.offset))):
            self._show_data(piece.task, piece.stream, data, piece.at)

    def _show_data(self, task: str, stream: str, data: bytes, at: float | None) -> None:
        if self._until is not None and (at if at is not None else self._newest(task, stream)) > self._until:
            return
        if stream == "stdout":
            self.write(self._view.complete(task))
        self.write([(stream, self._view.render(task, stream, data, now() if at is None else at))])

    def _newest(self, task: str, stream: str) -> float:
        """The time of output that no mark has yet: now; 0, as old as the run, where there are no marks at all."""
        return now() if self._marks_of(task, self._attempts[task], stream) else 0.0

    def _begin_attempt(self, task: str, attempt: int) -> None:
        self.write(self._view.finish(task))
        self._open(task, attempt)
        self._say_attempt(task)

    def _say_attempt(self, task: str) -> None:
        """Says once why there is a new attempt. The JSON objects have the number of the attempt."""
        is_others = not self._run.task_dir(task, self._attempts[task]).exists()  # another task was restarted alone
        if self._view.as_json or is_others:
            return
        line = describe_attempt(read_cluster(self._run), self._attempts[task], task)
        if line and line not in self._said:
            self._said.add(line)
            self.write(self._view.release_shared())
            self._sink.write("stderr", f"orch: {line}\n")

    def _show_attempt(self, task: str) -> bool:
        is_new = False
        for stream, follower in self._followers[task].items():
            for data in follower.read_present():
                attempt, end = self._attempts[task], follower.offset
                for part, at in self._marks.split(task, attempt, stream, data, end) if self._marks else [(data, None)]:
                    self._show_data(task, stream, part, at)
                is_new = True
        if not (is_new and self._follows):  # no more of a traceback is to come, so the next task's lines need not come first
            self.write(self._view.complete(task))
        return is_new
