"""The files that a task writes for its agent, beside its output. Every task imports this module, so it imports nothing more than `os`."""

from __future__ import annotations

import os

ERROR = "error.json"
"""A `frames.Failure`: the exception that has ended the program."""
REPORTS = "reports.jsonl"
"""One line for each `worker.report`, and for each count of the input."""
INPUT = "orch_input"
"""The key of the lines that count the input (task/input/input_counter.py). A line of `worker.report` does not have this key."""
STACKS = "stacks.txt"
"""The Python stacks, added at each request."""
BEGUN = "begun"
"""The time at which the program was started, by CLOCK_MONOTONIC."""
ENDED = "ended"
"""Written when the program is over and the interpreter ends: the exit code, the time, and the word ``alone`` if the process certainly was
in no cluster."""
OTHER_TF_CONFIG = "tf_config"
"""The line where the program has set another TF_CONFIG than orch's: ``train.py:12 set it``; empty if it has set orch's again."""


def write(log_dir: str, name: str, text: str) -> None:
    """Write a file for the agent; no file if this fails: the disk is full, or the directory is removed. The program does not need it."""
    path = os.path.join(log_dir, name)
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            file.write(text.encode("utf-8", "surrogateescape"))
    except OSError:
        try:  # noqa: SIM105 - contextlib would be one more import before every task
            os.unlink(path)
        except OSError:
            pass
