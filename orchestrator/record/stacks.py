"""What `stacks.txt` says: where each task was when somebody asked, tasks that were at the same place put together.

The file holds what `faulthandler` writes when a task gets SIGQUIT (_Py_DumpTracebackThreads in CPython's Python/traceback.c):
the youngest thread first, so the main thread last; in each the innermost call first. Which thread is headed "Current thread" says
nothing: the kernel may give the signal to any of them, also to one of TensorFlow's that Python does not know.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath

from ..model.formation import group_tasks

_HEAD = re.compile(r"(?:Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):")
_FRAME = re.compile(r'  File "(.*)", line (\d+|\?\?\?) in (.*)')
_LIBRARY = re.compile(r"/(lib|lib64)/python3[^/]*/|^<|/worker/task/|/worker/host/")


@dataclass(frozen=True, slots=True)
class Frame:
    """One call: file, line and function as faulthandler has them."""

    file: str
    line: str
    function: str

    def __str__(self) -> str:
        return f"{PurePath(self.file).name}:{self.line} in {self.function}"

    @property
    def is_library(self) -> bool:
        return _LIBRARY.search(self.file) is not None


def parse(text: str) -> tuple[Frame, ...]:
    """The main thread's calls of the last dump in `text`, innermost first; empty if there is no whole dump."""
    frames: list[Frame] = []
    for line in text.splitlines():
        if _HEAD.match(line):
            frames = []
        elif frame := _FRAME.match(line):
            frames.append(Frame(*frame.groups()))
    return tuple(frames)


def place(frames: tuple[Frame, ...]) -> str:
    """Where that is, for people: the innermost line of the user's own code, and the library call that it is in."""
    if not frames:
        return "nowhere in Python"
    own = next((frame for frame in frames if not frame.is_library), None)
    if own is None or own is frames[0]:
        return str(own or frames[0])
    return f"{own}, inside {frames[0].function} ({PurePath(frames[0].file).name})"


def summarise(dumps: Mapping[str, str]) -> list[str]:
    """``worker-0..2: train.py:41 in step, inside quick_execute (execute.py)``: a line a place, the rarest last."""
    by_place: dict[str, list[str]] = {}
    for task, text in dumps.items():
        by_place.setdefault(place(parse(text)), []).append(task)
    return [f"{group_tasks(tasks)}: {where}" for where, tasks in sorted(by_place.items(), key=lambda item: -len(item[1]))]
