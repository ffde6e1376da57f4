"""Reads `stacks.txt`: at which line of code each task was, with the tasks at the same line in one row.

The file holds the output of `faulthandler` for SIGQUIT (_Py_DumpTracebackThreads in CPython's Python/traceback.c): the youngest thread
first, so the main thread last; in each thread the innermost call first. The heading "Current thread" means nothing here: the kernel may
give the signal to any thread, also to one of TensorFlow. Lines that begin with ``orch: `` are from the agent
(worker/host/task_stacks.py): the time of the request, and why a task will not answer.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from worker.protocol import task_files
from worker.values.fast_dataclass import dataclass

from ..errors import OrchError
from ..model.planning.plan import Plan
from ..model.state.cluster import Cluster
from ..model.task_names import group_tasks
from .run_directory import RunDir
from .run_files import open_file, size_of
from .run_view import RunView
from .text.stack_frames import FRAME, HEAD, START, StackFrame, frames_of, is_ours, own_directory

GIVE_UP_S = 10.0
"""How long `collect` waits for Python programs, in seconds."""
QUIET_S = 2.0
"""A stack whose end is not recognised counts as written when its file has not grown for so many seconds."""
SOURCE_BYTES = 4 * 1024 * 1024
"""The most that is read of a source file, and of the stacks of a task."""

ASKED = "orch: asked at "
CUT = "its stack is not complete"
_NOTE = "orch: "
_ENDS = ("...", "  ...", "  <no Python frame>")
"""The last line where faulthandler leaves out threads or frames, or the main thread runs no Python."""
_WRAPPERS = frozenset({"error_handler", "wrapper", "wrapped", "inner", "op_dispatch_handler"})
"""Names of the functions with which TensorFlow, Keras and other libraries wrap a function that users call."""
_CALLS = "/tensorflow/python/ops/script_ops.py"
"""Where TensorFlow calls functions of a program, in a thread of its own."""
_CALL = re.compile(r"(?<!def )\b(?!(?:if|while|for|in|and|or|not|return|print|await|yield|with|assert|lambda)\b)([A-Za-z_][\w.]*)\s*\(")


@dataclass(frozen=True, slots=True)
class StackAnswer:
    """The last answer of a task, or of its agent."""

    frames: tuple[StackFrame, ...] = ()
    """The frames of the main thread, the innermost first."""
    called: tuple[StackFrame, ...] = ()
    """Those of a thread in which TensorFlow has called a function of the program, such as a generator or that of a `py_function`."""
    note: str = ""
    """The agent's reason why the task does not answer."""

    def __bool__(self) -> bool:
        return bool(self.frames or self.note)


def read_line(file: str, line: str) -> str:
    """The source line of a frame, if this machine has the file (which may have changed meanwhile).

    The name of the file is from the output of a task, so the name may be that of any file: opening a device can have effects.
    """
    if line.isdigit() and os.path.isfile(file):
        with contextlib.suppress(OSError, OrchError), open_file(file) as source:
            lines = source.read(SOURCE_BYTES).splitlines()
            return lines[int(line) - 1].decode(errors="replace") if 0 < int(line) <= len(lines) else ""
    return ""


def parse(text: str) -> StackAnswer:
    """The last answer in `text`."""
    return _parse(text)[0]


def _parse(text: str) -> tuple[StackAnswer, list[tuple[StackFrame, ...]]]:
    """The last answer in `text`, and the frames of each thread, the main thread last."""
    threads: list[list[StackFrame]] = [[]]
    note = ""
    lines = text[max(0, text.rfind(ASKED)) :].splitlines(keepends=True)
    if lines and (HEAD.match(lines[-1]) or not lines[-1].endswith("\n")):
        return StackAnswer(note=CUT), []  # even the frames that are there may be those of another thread
    for line in (line.rstrip("\r\n") for line in lines):
        if HEAD.match(line):
            threads.append([])
        elif frame := FRAME.match(line):
            threads[-1].append(StackFrame(*frame.groups()))
        elif line.startswith(_NOTE) and not line.startswith(ASKED):
            note = line.removeprefix(_NOTE)
    called = next((frames for frames in threads[:-1] if any(frame.file.endswith(_CALLS) for frame in frames)), [])
    return StackAnswer(tuple(threads[-1]), tuple(called), note), [tuple(frames) for frames in threads if frames]


def threads_of(text: str) -> list[list[str]]:
    """The lines of each thread of the last answer in `text`, the main thread last."""
    threads: list[list[str]] = []
    for line in text[max(0, text.rfind(ASKED)) :].splitlines():
        if HEAD.match(line):
            threads.append([])
        if threads:
            threads[-1].append(line)
    return threads


def in_order(text: str, *, is_brief: bool = False) -> list[str]:
    """The lines of the last answer in `text` for a reader: first what the agent says, then the main thread, the other threads of the
    program, and orch's own. Of an answer that is not complete, the lines as they stand.

    `is_brief`: for a narrow screen. Without orch's own threads, and a call is ``train.py:41 in step``.
    """
    lines, threads = text[max(0, text.rfind(ASKED)) :].splitlines(), threads_of(text)
    if not threads or not is_complete(text):
        return lines
    frames = [frames_of(thread) for thread in threads]
    worker_dir = own_directory(frames[-1])
    ours = [is_ours(each, worker_dir) for each in frames]
    found = lines[: next(place for place, line in enumerate(lines) if HEAD.match(line))]
    for place in sorted(range(len(threads)), key=lambda place: (place != len(threads) - 1, ours[place])):
        if is_brief and ours[place]:
            continue
        found += [_brief(line) if is_brief else line for line in threads[place] if line] + [""]
    return found[:-1]


def _brief(line: str) -> str:
    frame = FRAME.match(line)
    if frame is None:
        return line
    called = StackFrame(*frame.groups())
    return f"  {called.place} in {called.function}"


def to_json(text: str) -> dict[str, Any] | None:
    """The last answer as data; None: there is none. The main thread comes first, orch's own threads last."""
    answer, threads = _parse(text)
    if not answer:
        return None
    worker_dir = own_directory(threads[-1] if threads else ())
    found = [
        {
            "thread": "main" if number == len(threads) - 1 else "orch" if is_ours(frames, worker_dir) else "other",
            "frames": [
                {"file": frame.file, "line": int(frame.line) if frame.line.isdigit() else None, "function": frame.function}
                for frame in frames
            ],
        }
        for number, frames in enumerate(threads)
    ]
    order = ("main", "other", "orch")
    found.sort(key=lambda one: order.index(str(one["thread"])))
    return {"place": place(answer), "note": answer.note, "threads": found}


def is_complete(text: str) -> bool:
    """True if the last answer in `text` has come to its end: the outermost frame of the main thread, which is the last one, or a note.

    A task writes its stack in many small pieces, between which a busy machine may do something else for long.
    """
    *_, last = ("", *text[max(0, text.rfind(ASKED)) :].splitlines())
    frame = FRAME.match(last)
    is_end = last in _ENDS or (last.startswith(_NOTE) and not last.startswith(ASKED)) or (frame and START.fullmatch(frame[1]))
    return bool(is_end) and text.endswith("\n")


def place(answer: StackAnswer, source: Callable[[str, str], str] = read_line) -> str:
    """The innermost line of the user's code, and its call: ``in all_reduce (train.py:41)``."""
    where = _place(answer.frames, source) if answer.frames else ""
    if where and "/tensorflow/" in answer.frames[0].file:  # the main thread waits
        worker_dir = own_directory(answer.frames)
        if not all(frame.is_library(worker_dir) for frame in answer.called):
            where += f"; its generator or py_function is {_place(answer.called, source, worker_dir)}"
    if where and answer.note:
        return f"{where}; {answer.note}"
    return where or answer.note or "nowhere in Python"


def _place(frames: tuple[StackFrame, ...], source: Callable[[str, str], str], worker_dir: str = "") -> str:
    worker_dir = worker_dir or own_directory(frames)
    own = next((number for number, frame in enumerate(frames) if not frame.is_library(worker_dir)), None)
    if own is None:
        return f"in {frames[0].function} ({frames[0].place})"
    called = next((frame.function for frame in reversed(frames[:own]) if frame.function not in _WRAPPERS), "")
    if called == "__next__":
        called = "next"
    if not called or called.startswith("_"):
        # A call of C code has no frame, and a callable object's frame has the class's name: use the source line if it has one call.
        calls = _CALL.findall(source(frames[own].file, frames[own].line))
        called = calls[0] if len(calls) == 1 else frames[0].function
    return f"in {called} ({frames[own].place})"


def summarise(answers: Mapping[str, StackAnswer], source: Callable[[str, str], str] = read_line) -> list[str]:
    """A line for each place, the rarest last: ``worker-0..2: in all_reduce (train.py:41)``. A task that alone is elsewhere is marked."""
    by_place: dict[str, list[str]] = {}
    for task, answer in answers.items():
        by_place.setdefault(place(answer, source), []).append(task)
    groups = sorted(by_place.items(), key=lambda item: -len(item[1]))
    return [f"{group_tasks(tasks)}: {where}{_is_odd(tasks, groups)}" for where, tasks in groups]


def _is_odd(tasks: list[str], groups: list[tuple[str, list[str]]]) -> str:
    """The mark of a task that alone is elsewhere, while all others of its type, at least two, are at one place."""
    if len(tasks) != 1:
        return ""
    kind = tasks[0].rpartition("-")[0]
    sizes = Counter(number for number, (_, names) in enumerate(groups) for name in names if name.rpartition("-")[0] == kind)
    return ", the odd one out" if len(sizes) == 2 and max(sizes.values()) > 1 else ""


# --- collecting --------------------------------------------------------------------------------


def collect(run: RunDir, planned: Plan, cluster: Cluster, request: Callable[[], object]) -> dict[str, str]:
    """The stacks of running tasks after `request`, once complete, or after `GIVE_UP_S`; empty for a task without an answer."""
    files = {name: run.stacks_path(name, task.attempt) for name, task in cluster.tasks.items() if not task.has_ended}
    before = {name: size_of(path) for name, path in files.items()}
    awaited = files.keys() - {str(task.id) for task in planned.tasks if task.order.program.kind == "command"}
    request()
    grew_at = time.monotonic()
    deadline, texts = grew_at + GIVE_UP_S, dict.fromkeys(files, "")
    view = RunView(run)
    while True:
        view.rest()
        now, last, texts = time.monotonic(), texts, {name: read_from(path, before[name]) for name, path in files.items()}
        grew_at = grew_at if texts == last else now
        is_quiet = now - grew_at >= QUIET_S
        have_ended = all(is_complete(texts[name]) or (is_quiet and parse(texts[name])) for name in awaited)
        if now >= deadline or (texts == last and have_ended):
            return texts


def read_from(path: Path, offset: int = 0) -> str:
    """The text of `stacks.txt` from `offset` on; empty if the file cannot be read."""
    return task_files.read(str(path), offset, most=SOURCE_BYTES).decode(errors="replace")
