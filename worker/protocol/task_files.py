"""The files that a task writes for its agent, in addition to its output. Every task imports this module, so it imports only `os` and
`stat`, which each interpreter has imported at its start.

Any program may write into the directory of its task. So task and agent open these files by `open_regular` only: a named pipe in the place
of such a file would keep both waiting, and a device has no end.
"""

from __future__ import annotations

import _thread
import os
import stat

ERROR = "error.json"
"""A `frames.Failure`: the exception that has ended the program."""
REPORTS = "reports.jsonl"
"""One line for each `worker.report`, and for each count of the input."""
INPUT = "orch_input"
"""The key of the lines that count the input (task/input/input_counter.py)."""
SERVES = "orch_serves"
"""The key of the line that says that the program stands in TensorFlow's `Server.join` (task/strategy/joined_server.py)."""
APART = "orch_trains_apart"
"""The key of the lines that say whether `fit` trains a model that this task has for itself (task/keras/fit.py)."""
PROGRESS = "orch_progress"
"""The key of the lines that say how far the training is (task/observe/time_left.py)."""
SCALE = "orch_scale"
"""The key of the lines that tell where the time of the steps goes (task/observe/step_parts.py)."""
NOT_FINITE = ("nan", "inf", "-inf")
"""The texts of a report for the numbers that JSON does not have."""
OWN_KEYS = frozenset({INPUT, SERVES, APART, PROGRESS, SCALE})
"""A line of `worker.report` has none of these keys."""
SAVING = "saving"
"""What the training says of saves on order (task/checkpoints/save_orders.py): lines of a state of `frames.TaskSaves` and a step."""
SAVE_ORDER = "save_order"
"""The newest order to the training, written by the agent, where there is a file SAVING: `save_order` makes its text."""
SAVED_CODE = 42
"""The exit code by which a program says that it has saved and wants to be started again, as TensorFlow's `PreemptionCheckpointHandler` does
(tensorflow/python/distribute/failure_handling/failure_handling_util.py)."""
ASK, SAVE, STOP = "ask", "save", "stop"
"""The words of an order: say the step and wait; save after this step; the SIGTERM that follows is orch's (task/checkpoints/save_orders)."""
ORDER_BYTES = 32
PACE = "pace.json"
"""How long the task's steps take, written once a second (task/observe/step_times.py)."""
STACKS = "stacks.txt"
PROFILE_ASKED = "profile.asked"
"""The newest request for a profile, which the agent writes: JSON, the fields of `orders.Profile`, with `at` by CLOCK_MONOTONIC."""
PROFILE = "profile.answers"
"""The answers to these requests (task/observe/profiling.py): for each a line of JSON, which says how many bytes of a profile follow."""
VALUE = "value.pickle"
"""What the function of the run has returned or raised in the task (task/sent_function.py)."""
VERIFIED = "verified.json"
"""What the task has trained, for `orch verify` (task/observe/recorder.py)."""
BEGUN = "begun"
"""The time at which the program was started, by CLOCK_MONOTONIC."""
ENDED = "ended"
"""Written when the program is over and the interpreter ends: the exit code, the time, and the word ``unclustered`` if the process certainly
was in no cluster."""
OTHER_TF_CONFIG = "tf_config"
"""The line where the program has set another TF_CONFIG than orch's: ``train.py:12 set it``; empty if it has set orch's again."""
_EPERM = 1
"""Not permitted, as in errno(3): a task does not import `errno` for it."""


def write(log_dir: str, name: str, text: str | bytes) -> None:
    """Write a file for the agent, which never finds half of it. On a full disk there is none: the program goes on without."""
    path = os.path.join(log_dir, name)
    aside = f"{path}.{_thread.get_ident()}~"
    try:
        fd = open_regular(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        with open(fd, "wb") as file:
            file.write(text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape"))
        os.replace(aside, path)  # also if the program has put something else there
    except OSError:
        for each in (aside, path):
            try:  # noqa: SIM105 - contextlib would be one more import before every task
                os.unlink(each)
            except OSError:
                pass


def save_order(word: str, step: int = 0) -> bytes:
    """The text of an order. All have one length: a new one takes the place of the one before by one write."""
    return f"{word} {step}".ljust(ORDER_BYTES - 1).encode("ascii") + b"\n"


def open_regular(path: str, flags: int = os.O_RDONLY) -> int:
    """Open a regular file of this user, without waiting and without following a link in its place. A new file has mode 0600.

    Raises OSError. A file of the owner of its directory is as good as one of this user: a file server may give root's files to another user
    (root_squash, exports(5)).
    """
    fd = os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC, 0o600)
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or (found.st_uid != os.geteuid() and found.st_uid != os.stat(os.path.dirname(path) or ".").st_uid):
        os.close(fd)
        raise PermissionError(_EPERM, "it is not a regular file of this user", path)
    return fd


def read(path: str, start: int = 0, *, most: int) -> bytes:
    """At most `most` bytes of a file from `start` on; none if `open_regular` refuses the file, or the file cannot be read."""
    try:
        fd = open_regular(path)
    except OSError:
        return b""
    try:
        return os.pread(fd, most, start)
    except OSError:
        return b""
    finally:
        os.close(fd)


def size(path: str) -> int:
    """The size of a regular file; -1 if there is no such file."""
    try:
        found = os.lstat(path)
    except OSError:
        return -1
    return found.st_size if stat.S_ISREG(found.st_mode) else -1
