"""The console of an attached run: a view of the run's files, in a thread of its own.

The output files are the buffer. So a console that is paused, slow or gone delays nothing: the supervisor only sets the size of each file,
and this thread reads, renders and writes when it can.
"""

from __future__ import annotations

import errno
import os
import select
import stat
import threading
from collections.abc import Iterable

from worker.machine.clock import now
from worker.protocol.task_id import STREAMS

from ..errors import OrchError
from ..model.state.cluster import TaskStatus
from .follower import Follower
from .run_directory import RunDir
from .text.event_messages import Messages
from .text.lines import clean
from .text.log_view import LogView

CHUNK = 256 * 1024
IDLE_S = 0.25
"""How often the console checks for unfinished lines to show, in seconds."""
ABANDONED_S = 0.2
"""How long an abandoned console may take to finish its present line, in seconds."""

StreamKey = tuple[str, int, str]


class Sink:
    """Writes text to two descriptors (others in tests)."""

    def __init__(self, out_fd: int = 1, err_fd: int = 2, encoding: str = "utf-8") -> None:
        self._fds = {"stdout": out_fd, "stderr": err_fd}
        self._encoding = encoding

    def write(self, stream: str, text: str) -> None:
        """Blocks as long as the descriptor does. Raises OSError."""
        view = memoryview(text.encode(self._encoding, "backslashreplace"))
        while view:
            try:
                view = view[os.write(self._fds[stream], view) :]
            except BlockingIOError:  # another program has made the terminal non-blocking
                select.select((), (self._fds[stream],), ())

    def has_room(self, stream: str) -> bool:
        """True if a write would not block. A stopped terminal (Ctrl-S) and a full pipe would block."""
        return bool(select.select((), (self._fds[stream],), (), 0)[1])

    def reader_is_gone(self, stream: str, error: OSError) -> bool:
        """True if a write failed because the reader or the terminal of the stream is gone."""
        # A terminal that is gone is no terminal any more for isatty().
        return error.errno == errno.EPIPE or (error.errno == errno.EIO and stat.S_ISCHR(os.fstat(self._fds[stream]).st_mode))


class Console(Messages):
    """Shows a run while it goes on: the output of the tasks, rendered by `view`, and the messages of orch. `quiet`: neither of the two.

    All methods but `finish` and `conclude` return at once. Raises `OrchError` if no thread can be started.
    """

    def __init__(self, run: RunDir, sink: Sink, view: LogView, *, quiet: bool = False) -> None:
        self._run, self._sink, self._view, self._quiet = run, sink, view, quiet
        self._gone: set[str] = set()
        """The streams that can no longer be written."""
        self._grown: set[StreamKey] = set()
        """The files that may have bytes that are not shown yet."""
        self._followers: dict[StreamKey, Follower] = {}
        self._unreadable: set[StreamKey] = set()
        self._attempts: dict[str, int] = {}
        self._texts: list[tuple[str, str]] = []
        self._changed = threading.Condition()
        self._ending = self._abandoned = False
        # An event and not join(): a join() that Ctrl-C interrupts marks the thread as ended (bpo-45274).
        self._ended = threading.Event()
        # A daemon thread: a blocked console must not keep orch from exiting.
        try:
            threading.Thread(target=self._run_thread, name="console", daemon=True).start()
        except RuntimeError as error:
            raise OrchError(f"orch cannot show the run: {error}", "raise the limit of processes (ulimit -u)") from None

    # --- called by the supervisor --------------------------------------------------------------

    def on_output(self, task: str, attempt: int, stream: str, size: int = 0) -> None:
        if not self._quiet:
            with self._changed:
                self._grown.add((task, attempt, stream))
                self._changed.notify()

    def say(self, text: str) -> None:
        if not self._quiet:
            self.write("stderr", f"orch: {clean(text)}\n")

    def write(self, stream: str, text: str) -> None:
        """Writes a text as it is, also if the console is quiet."""
        with self._changed:
            self._texts.append((stream, text))
            self._changed.notify()

    # --- the end -------------------------------------------------------------------------------

    def finish(self, tasks: Iterable[TaskStatus] = ()) -> None:
        """Shows all output of these tasks, and ends the thread. Blocks as long as the descriptors do, unless `abandon` was called."""
        for task in tasks:
            for stream in STREAMS:
                self.on_output(task.name, task.attempt, stream)
        with self._changed:
            self._ending = True
            self._changed.notify()
        # Again and again: a signal that comes just before such a wait begins is acted on only when the wait ends.
        while not self._ended.wait(ABANDONED_S) and not self._abandoned:
            pass

    def conclude(self, text: str) -> None:
        """Writes the report on stderr, unless the console was abandoned and stderr blocks too."""
        if self._abandoned and not self._ended.is_set() and not self._sink.has_room("stderr"):
            return
        self._write_all([("stderr", text)])

    def abandon(self) -> None:
        """Shows nothing more, and lets `finish` return even if the thread is blocked in a write."""
        with self._changed:
            self._abandoned = self._ending = True
            self._changed.notify()

    # --- the thread ----------------------------------------------------------------------------

    def _run_thread(self) -> None:
        try:
            while self._show_next():
                pass
        finally:
            self._ended.set()

    def _show_next(self) -> bool:
        """Waits until there is something to show, and shows some of it. Returns False at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._texts or self._ending or self._grown, IDLE_S)
            texts, self._texts = self._texts, []
            ending, abandoned = self._ending, self._abandoned
            grown = self._take_grown()
        if texts and not abandoned:
            self._write_all(self._view.complete())
        self._write_all(texts)
        if abandoned:
            return False
        for key in grown:
            self._show_some(key)
        if grown:
            self._write_all(self._view.overdue(now()))
            return True
        self._write_all(self._view.finish() if ending else self._view.idle(now()))
        return not ending

    def _write_all(self, texts: Iterable[tuple[str, str]]) -> None:
        """Writes the texts to their streams. A stream that cannot be written gets no more text, and the run goes on.

        A line on stderr says so of a stdout whose reader or terminal is still there, as on a full or broken disk.
        """
        for stream, text in texts:
            if stream in self._gone:
                continue
            try:
                self._sink.write(stream, text)
            except OSError as error:
                self._gone.add(stream)
                if stream == "stdout":
                    is_gone = self._sink.reader_is_gone(stream, error)
                    why = "no one reads standard output any more" if is_gone else f"standard output cannot be written: {error.strerror}"
                    self._write_all([("stderr", f"orch: {why}; the run goes on, and orch logs shows what its tasks write\n")])

    def _take_grown(self) -> list[StreamKey]:
        """The files with new bytes, stdout before stderr: so the output before a traceback is shown before the traceback.

        Of each task only the files of its oldest attempt: they are shown before those of the next attempt.
        """
        oldest = {task: attempt for task, attempt, _ in sorted(self._grown, reverse=True)}
        taken = sorted((key for key in self._grown if key[1] == oldest[key[0]]), key=lambda key: (key[2] == "stderr", key))
        self._grown.difference_update(taken)
        return taken

    def _show_some(self, key: StreamKey) -> None:
        task, attempt, stream = key
        if self._attempts.setdefault(task, attempt) != attempt:
            self._attempts[task] = attempt
            self._write_all(self._view.finish(task))
        path = self._run.log_path(*key)
        if (follower := self._followers.get(key)) is None:
            follower = self._followers[key] = Follower(path)
        follower.path = path  # the run's directory may have been moved
        try:
            data = follower.read(CHUNK)
        except (OSError, OrchError) as error:
            if key not in self._unreadable:
                self._unreadable.add(key)
                self._write_all([("stderr", f"orch: {clean(str(error))}; its lines are shown once it can be read\n")])
            return
        if data:
            if stream == "stdout":  # a traceback that came before is shown before
                self._write_all(self._view.complete(task))
            self._write_all([(stream, self._view.render(task, stream, data, now()))])
        if len(data) == CHUNK:  # there may be more
            self.on_output(task, attempt, stream)
