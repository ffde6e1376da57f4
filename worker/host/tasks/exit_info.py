"""Why a task has exited, beyond its exit code: its exception, the end of its log, how its program ended, the kernel's counters."""

from __future__ import annotations

import json
import os
import signal
import sys

from ... import clock, task_files
from ...excerpts import shorten, shorten_line
from ...fast_dataclass import dataclass
from ...protocol import messages
from ...protocol.codec import ExitCode, from_json
from .. import host_facts
from .oom_kills import OomCounter
from .task import Task

LAST_WORDS = 4096
"""Bytes of the end of a task's stderr that are sent with its exit, if it left no exception."""
LARGEST_FAILURE = 1 << 20
"""Characters that are read of an ``error.json``. The bootstrap never writes a larger one; a larger one is ignored."""
LONGEST_PLACE = 500
"""Characters that are read of a place in a program, a path and a line."""


def gather(task: Task, failure: messages.Failure | None, oom: OomCounter, *, alone: bool) -> messages.Evidence:
    """What is known of the exit of a task beyond its code. `alone`: the task is known to have been in no cluster."""
    order, output = task.order, task.output
    has_failed = task.code != 0 and not task.stopped
    return messages.Evidence(
        condition=task.condition,
        alone=alone,
        tf_config=read_other_tf_config(output.directory),
        failed_first=failure is not None and 0 < failure.at < task.stopped_at,
        out_of_memory=oom.claim() if has_failed and task.code == -signal.SIGKILL else "",
        last_words=_read_end(output.path("stderr")) if has_failed and failure is None else "",
        python=sys.executable if failure is not None else "",
        tensorflow=host_facts.find_tensorflow((order.env,), order.cwd) or "" if failure is not None else "",
    )


def read_failure(directory: str) -> messages.Failure | None:
    """The uncaught exception that the bootstrap has written to ``error.json``; None if there is none."""
    try:
        with open(os.path.join(directory, task_files.ERROR), encoding="utf-8", errors="surrogateescape") as file:
            failure = from_json(messages.Failure, json.loads(file.read(LARGEST_FAILURE)))
        # Any program may write into its task's directory, so the file may hold anything.
        kind, message, trace = shorten_line(failure.type), shorten(failure.message), shorten(failure.traceback)
        return messages.Failure(kind, message, trace, clock.from_system(failure.at))
    except (OSError, ValueError, RecursionError):
        return None


@dataclass(frozen=True, slots=True)
class Ending:
    """How a Python program ended, before the teardown of its interpreter."""

    code: ExitCode
    at: float
    """In seconds since the epoch."""
    alone: bool = False
    """The process is known to have been in no cluster."""


def read_ending(directory: str) -> Ending | None:
    """The end of the program, which the bootstrap has written to the file ``ended``; None: there is no such file."""
    try:
        with open(os.path.join(directory, task_files.ENDED), "rb", buffering=0) as file:
            code, at, *alone = file.read().split()
            return from_json(Ending, {"code": int(code), "at": clock.from_system(float(at)), "alone": alone == [b"alone"]})
    except (OSError, ValueError):
        return None


def read_other_tf_config(directory: str) -> str:
    """Where the program has set another TF_CONFIG than orch gave it, such as ``train.py:12 set it``; empty if it has not."""
    try:
        with open(os.path.join(directory, task_files.OTHER_TF_CONFIG), encoding="utf-8", errors="replace") as file:
            return file.read(LONGEST_PLACE)
    except OSError:
        return ""


def _read_end(path: str) -> str:
    """The last `LAST_WORDS` bytes of a file, from the first whole line on."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - LAST_WORDS))
            data = file.read(LAST_WORDS)
    except OSError:
        return ""
    return (data if size <= LAST_WORDS else data.partition(b"\n")[2]).decode("utf-8", "surrogateescape")
