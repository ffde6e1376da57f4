"""What `stacks.txt` says: where each task was when somebody asked, tasks that were at the same place put together.

The file holds what `faulthandler` writes when a task gets SIGQUIT (_Py_DumpTracebackThreads in CPython's Python/traceback.c):
the youngest thread first, so the main thread last; in each the innermost call first. Which thread is headed "Current thread" says
nothing: the kernel may give the signal to any of them, also to one of TensorFlow's that Python does not know. Lines that begin with
``orch: `` are the agent's (worker/host/tasks/task_stacks.py): when it asked, and why a task will not answer.
"""

from __future__ import annotations

import linecache
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from pathlib import Path, PurePath

from worker.fast_dataclass import dataclass

from ...model.planning.plan import Plan
from ...model.run.cluster import Cluster
from ...model.run.readiness import group_tasks
from ..storage.run_directory import RunDir
from ..storage.run_files import size_of

LOOK_S = 0.1
GIVE_UP_S = 10.0
"""How long Python programs that do not answer are waited for: they, or the controller, may be put off."""

ASKED = "orch: asked at "
_NOTE = "orch: "
_HEAD = re.compile(r"(?:Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):")
_FRAME = re.compile(r'  File "(.*)", line (\d+|\?\?\?) in (.*)')
_LIBRARY = re.compile(r"/(?:lib|lib64)/python3[^/]*/|/(?:site|dist)-packages/|^<")
_START = re.compile(r"(.*?)/(?:task/start_task|host/start_agent|host/template/start_template|host/warm/start_warm)\.py")
"""Where a task begins, in whatever directory orch's worker/ lies on its host. A user's own may have that name as well."""
_WRAPPERS = frozenset({"error_handler", "wrapper", "wrapped", "inner", "op_dispatch_handler"})
"""What TensorFlow, Keras and others put around a function that a user calls."""
_CALL = re.compile(r"(?<!def )\b(?!(?:if|while|for|in|and|or|not|return|print|await|yield|with|assert|lambda)\b)([A-Za-z_][\w.]*)\s*\(")


@dataclass(frozen=True, slots=True)
class Frame:
    """One call: file, line and function as faulthandler has them."""

    file: str
    line: str
    function: str

    @property
    def place(self) -> str:
        return f"{PurePath(self.file).name}:{self.line}"

    def is_library(self, ours: str) -> bool:
        """Not the user's own code, but installed, or below the directory `ours`."""
        return _LIBRARY.search(self.file) is not None or (bool(ours) and self.file.startswith(f"{ours}/"))


@dataclass(frozen=True, slots=True)
class Answer:
    """What a task said when it was last asked, or its agent for it.

    `frames`: the main thread's, innermost first. `note`: why it is silent.
    """

    frames: tuple[Frame, ...] = ()
    note: str = ""

    def __bool__(self) -> bool:
        return bool(self.frames or self.note)


def read_line(file: str, line: str) -> str:
    """The source of a frame, if this machine has it; it may have changed since the task read it."""
    return linecache.getline(file, int(line)) if line.isdigit() else ""


def parse(text: str) -> Answer:
    """The last answer in `text`."""
    frames: list[Frame] = []
    note = ""
    for line in text[max(0, text.rfind(ASKED)) :].splitlines():
        if _HEAD.match(line):
            frames = []
        elif frame := _FRAME.match(line):
            frames.append(Frame(*frame.groups()))
        elif line.startswith(_NOTE) and not line.startswith(ASKED):
            note = line.removeprefix(_NOTE)
    return Answer(tuple(frames), note)


def place(answer: Answer, source: Callable[[str, str], str] = read_line) -> str:
    """Where that is, for people: ``in all_reduce (train.py:41)``, the innermost line of the user's own code and the call that it is in."""
    where = _place(answer.frames, source) if answer.frames else ""
    if where and answer.note:
        return f"{where}; {answer.note}"
    return where or answer.note or "nowhere in Python"


def _place(frames: tuple[Frame, ...], source: Callable[[str, str], str]) -> str:
    start = _START.fullmatch(frames[-1].file)
    ours = start[1] if start else ""
    own = next((number for number, frame in enumerate(frames) if not frame.is_library(ours)), None)
    if own is None:
        return f"in {frames[0].function} ({frames[0].place})"
    called = next((frame.function for frame in reversed(frames[:own]) if frame.function not in _WRAPPERS), "")
    if called == "__next__":
        called = "next"
    if not called or called.startswith("_"):
        # A call of C code has no frame, and one of an object is named after the class: the line says it better, if there is but one in it.
        calls = _CALL.findall(source(frames[own].file, frames[own].line))
        called = calls[0] if len(calls) == 1 else frames[0].function
    return f"in {called} ({frames[own].place})"


def summarise(answers: Mapping[str, Answer]) -> list[str]:
    """``worker-0..2: in all_reduce (train.py:41)``: a line a place, the rarest last, and one that is alone among its like named."""
    by_place: dict[str, list[str]] = {}
    for task, answer in answers.items():
        by_place.setdefault(place(answer), []).append(task)
    groups = sorted(by_place.items(), key=lambda item: -len(item[1]))
    return [f"{group_tasks(tasks)}: {where}{_is_odd(tasks, groups)}" for where, tasks in groups]


def _is_odd(tasks: list[str], groups: list[tuple[str, list[str]]]) -> str:
    """Of three or more of one type, the only one that is not where all the others are."""
    if len(tasks) != 1:
        return ""
    kind = tasks[0].rpartition("-")[0]
    sizes = Counter(number for number, (_, names) in enumerate(groups) for name in names if name.rpartition("-")[0] == kind)
    return ", the odd one out" if len(sizes) == 2 and max(sizes.values()) > 1 else ""


# --- asking ------------------------------------------------------------------------------------


def collect(run: RunDir, planned: Plan, cluster: Cluster, ask: Callable[[], None]) -> dict[str, str]:
    """What each task that runs writes into its `stacks.txt` after `ask` has asked the controller; empty: it gave no answer in time."""
    files = {name: run.stacks_path(name, task.attempt) for name, task in cluster.tasks.items() if not task.has_ended}
    before = {name: size_of(path) for name, path in files.items()}
    ask()
    never = {str(task.id) for task in planned.tasks if task.order.program.kind == "command"}
    _wait_until_still(files, before, files.keys() - never)
    return {name: _read_from(path, before[name]) for name, path in files.items()}


def _wait_until_still(files: Mapping[str, Path], before: Mapping[str, int], awaited: Collection[str]) -> None:
    """Until those in `awaited` have answered and no file grows any more, or `GIVE_UP_S` has passed."""
    deadline = time.monotonic() + GIVE_UP_S
    last: dict[str, int] = {}
    while time.monotonic() < deadline:
        time.sleep(LOOK_S)
        sizes = {name: size_of(path) for name, path in files.items()}
        if sizes == last and all(parse(_read_from(files[name], before[name])) for name in awaited):
            return
        last = sizes


def _read_from(path: Path, offset: int) -> str:
    try:
        return path.read_bytes()[offset:].decode(errors="replace")
    except OSError:
        return ""
