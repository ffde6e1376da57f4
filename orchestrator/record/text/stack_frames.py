"""The lines that `faulthandler` writes: the frames of each thread, and which threads are orch's own; and what a user wants of a crash.

At a crash in native code, `faulthandler` writes the stacks of all threads on stderr, and the names of all extension modules that were
imported, in one line of some thousand characters (_Py_DumpTracebackThreads and _Py_DumpExtensionModules in CPython). Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath

from worker.values.fast_dataclass import dataclass

CRASH = "Fatal Python error: "
"""The beginning of what `faulthandler` writes at a crash."""
HEAD = re.compile(r"(?:Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):")
FRAME = re.compile(r'  File "(.*)", line (\d{1,9}|\?\?\?) in (.*)')
START = re.compile(r"(.*?)/(?:task/start_task|host/start_agent|host/forkserver/start_template|host/forkserver/start_warm)\.py")
"""The outermost frame of a task. Its file tells where orch's worker/ is on this host; a user may have a directory of that name too."""
_LIBRARY = re.compile(r"/(?:lib|lib64)/python3[^/]*/|/(?:site|dist)-packages/|^<")
_CURRENT = "Current thread 0x"
_EXTENSIONS = "Extension modules: "
_OF_CRASH = ("  <", "  ...", "Thread 0x", "Current thread", "Python runtime state: ", _EXTENSIONS)


@dataclass(frozen=True, slots=True)
class StackFrame:
    """One call: file, line and function as in faulthandler's output."""

    file: str
    line: str
    function: str

    @property
    def place(self) -> str:
        return f"{PurePath(self.file).name}:{self.line}"

    def is_library(self, worker_dir: str) -> bool:
        """True if the file is installed, or orch's own (in `worker_dir`), and not the user's."""
        ours = (f"{worker_dir}/", f"{worker_dir.rpartition('/')[0]}/orchestrator/")  # a barrier of a test is there
        return _LIBRARY.search(self.file) is not None or (bool(worker_dir) and self.file.startswith(ours))


def frames_of(lines: Sequence[str]) -> list[StackFrame]:
    return [StackFrame(*frame.groups()) for line in lines if (frame := FRAME.match(line))]


def own_directory(frames: Sequence[StackFrame]) -> str:
    """Return where orch's worker/ is on the host of a task, from its main thread; empty: unknown."""
    start = START.fullmatch(frames[-1].file) if frames else None
    return start[1] if start else ""


def is_ours(frames: Sequence[StackFrame], worker_dir: str) -> bool:
    """True if only orch and libraries are in a thread."""
    ours = bool(worker_dir) and any(frame.file.startswith(f"{worker_dir}/") for frame in frames)
    return ours and all(frame.is_library(worker_dir) for frame in frames)


# --- crashes ------------------------------------------------------------------------------------


def belongs_to_crash(line: str, before: str) -> bool:
    """True if a line belongs to what `faulthandler` writes at a crash. `before`: the line before, which does."""
    return (not line or line.startswith(_OF_CRASH) or FRAME.match(line) is not None) and not ends_crash(before)


def ends_crash(line: str) -> bool:
    """True if `faulthandler` writes nothing after this line."""
    return line.startswith(_EXTENSIONS)


def of_crash(lines: Sequence[str]) -> list[str]:
    """The lines of a task's output; of what `faulthandler` has written at a crash only the stack of the thread that has crashed, without
    orch's frames. If that was no thread of Python, the stacks of the program's threads."""
    crash = next((at for at, line in enumerate(lines) if line.startswith(CRASH)), len(lines))
    threads: list[list[str]] = []
    for line in lines[crash + 1 :]:
        if HEAD.fullmatch(line):
            threads.append([])
        if threads and line.startswith((_CURRENT, "Thread 0x", "  ")):
            threads[-1].append(line)
    if not threads:
        return list(lines)
    ours = next(filter(None, (own_directory(frames_of(thread)) for thread in threads)), "")
    current = [thread[1:] for thread in threads if thread[0].startswith(_CURRENT)]
    chosen = current or [thread for thread in threads if not is_ours(frames_of(thread), ours)]
    return [*lines[: crash + 1], *(line for thread in chosen for line in thread if not ours or f'"{ours}/' not in line)]
