"""Describes how a task has exited, beyond its exit code: its exception, the end of its log, how its program ended, the kernel's
counters."""

from __future__ import annotations

import json
import os
import signal
import sys

from ..machine import clock
from ..protocol import messages, task_files
from ..values.codec import ExitCode, from_json
from ..values.excerpts import shorten, shorten_line
from ..values.fast_dataclass import dataclass
from . import pace_file
from .facts import host_facts
from .log_files import TaskOutput
from .oom_kills import OomCounter
from .task import StartedTask

LAST_WORDS = 4096
"""Bytes of the end of a task's stderr that are sent with its exit, if it left no exception."""
LARGEST_FAILURE = 1 << 20
"""Bytes that are read of an ``error.json``. The bootstrap never writes a larger one; a larger one is ignored."""
LONGEST_PLACE = 500
"""Bytes that are read of a place in a program (a path and a line), and of the file ``ended``."""


def describe(task: StartedTask, code: int, oom: OomCounter, *, unclustered: bool) -> messages.TaskExited:
    """All that is known of the exit of a task. `unclustered`: the task is known to have been in no cluster."""
    order, directory = task.order, task.output.directory
    failure = _read_failure(directory)
    has_failed = code != 0 and not task.stopped
    evidence = messages.Evidence(
        condition=task.condition,
        unclustered=unclustered,
        tf_config=read_other_tf_config(directory),
        failed_first=failure is not None and 0 < failure.at < task.stopped_at,
        out_of_memory=oom.claim() if has_failed and code == -signal.SIGKILL else "",
        last_words=_read_end(task.output) if has_failed and failure is None else "",
        python=sys.executable if failure is not None else "",
        tensorflow=host_facts.find_tensorflow((order.env,), order.cwd, asks=False) or "" if failure is not None else "",
        has_trained=pace_file.has_trained(directory),
    )
    shown = code if code >= 0 else 128 - code
    return messages.TaskExited(order.task, order.attempt, shown, task.stopped, clock.now(), failure, code < 0, evidence)


def _read_failure(directory: str) -> messages.Failure | None:
    """The uncaught exception that the bootstrap has written to ``error.json``; None if there is none."""
    # Any program may write into its task's directory, so the file may hold anything.
    try:
        failure = from_json(messages.Failure, json.loads(_read(directory, task_files.ERROR, LARGEST_FAILURE)))
    except (ValueError, RecursionError):
        return None
    kind, message, trace = shorten_line(failure.type), shorten(failure.message), shorten(failure.traceback)
    hides, near = shorten_line(failure.hides), shorten_line(failure.near)
    return messages.Failure(kind, message, trace, clock.from_system(failure.at), hides, near)


@dataclass(frozen=True, slots=True)
class Ending:
    """Tells how a Python program ended, before the teardown of its interpreter."""

    code: ExitCode
    at: float
    """In seconds since the epoch."""
    unclustered: bool = False
    """The process is known to have been in no cluster."""


def read_ending(directory: str) -> Ending | None:
    """The end of the program, which the bootstrap has written to the file ``ended``; None: there is no such file."""
    if not os.access(os.path.join(directory, task_files.ENDED), os.F_OK):  # asked for each task in each second: no exception, no file
        return None
    try:
        code, at, *words = _read(directory, task_files.ENDED, LONGEST_PLACE).split()
        return from_json(Ending, {"code": int(code), "at": clock.from_system(float(at)), "unclustered": words == ["unclustered"]})
    except ValueError:
        return None


def read_other_tf_config(directory: str) -> str:
    """Return where the program has set another TF_CONFIG than orch gave it, such as ``train.py:12 set it``; empty if it has not."""
    return _read(directory, task_files.OTHER_TF_CONFIG, LONGEST_PLACE)


def _read(directory: str, name: str, most: int) -> str:
    """The first `most` bytes of a file as text; empty if the file cannot be read."""
    return task_files.read(os.path.join(directory, name), most=most).decode("utf-8", "surrogateescape")


def _read_end(output: TaskOutput) -> str:
    """The last `LAST_WORDS` bytes of the task's stderr, from the first whole line on."""
    size = output.size("stderr")
    data = task_files.read(output.path("stderr"), max(0, size - LAST_WORDS), most=LAST_WORDS)
    return (data if size <= LAST_WORDS else data.partition(b"\n")[2]).decode("utf-8", "surrogateescape")
