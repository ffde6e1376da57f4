"""Defines what the kernel does to a process when its owner dies, and what wakes an agent that was stopped.

Every task leads its own session and process group. Three things end it when the agent dies in any way, ``kill -9`` included:

* the *lifeline*: the task inherits the read end of a pipe whose only write end is the agent's. The pipe is set to send SIGKILL to the
  task's process group when the write end closes (``F_SETSIG``, ``F_SETOWN``, ``O_ASYNC``; see fcntl(2)). The kernel sends the signal,
  so the task needs no thread for it and cannot block it;
* ``PR_SET_PDEATHSIG`` for the first process of an executed task. A forked task has none: its parent is the template, and the task must
  survive the template;
* the agent is a subreaper (``PR_SET_CHILD_SUBREAPER``, prctl(2)): a process that a task leaves behind, even in a session of its own,
  becomes the agent's child, and the agent finds and ends it (leftovers.py).

All functions do nothing where the platform is not Linux, except that `hold_lifeline` keeps the descriptor.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import signal
import sys

from ...machine.own_process import OWN_FDS_FROM

_F_SETSIG = 10  # not in the fcntl module; include/uapi/asm-generic/fcntl.h
_PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def become_subreaper() -> None:
    """Make orphans among this process's descendants its children."""
    if _libc is not None:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def hold_lifeline(fd: int) -> None:
    """Have the kernel send SIGKILL to this process's group when the other end of the pipe `fd` closes. The caller leads its group.

    Ends the process if the other end is closed already. The caller may close `fd`: a copy is kept.
    """
    kept = keep_across_exec(fd)
    if _libc is None:
        return
    _send_on_input(kept, signal.SIGKILL, -os.getpid())
    poll = select.poll()
    poll.register(kept, 0)
    if poll.poll(0):  # the other end closed before the kernel was asked to watch it
        os._exit(127)


def keep_across_exec(fd: int) -> int:
    """A copy of `fd` that an executed program inherits, with a number that the program will not use for its own files."""
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD, OWN_FDS_FROM)
    except OSError:  # the limit of open files is lower than that number
        return fcntl.fcntl(fd, fcntl.F_DUPFD, 3)


def continue_on_input(fd: int) -> None:
    """Have the kernel continue this process (SIGCONT) whenever data arrive on `fd`, or its other end closes.

    So an agent that was stopped (SIGSTOP) still ends with its controller; otherwise its tasks would outlive the controller.
    """
    if _libc is None:
        return
    with contextlib.suppress(OSError):  # only pipes, sockets and terminals send signals
        _send_on_input(fd, signal.SIGCONT, os.getpid())


def _send_on_input(fd: int, number: int, receiver: int) -> None:
    """Have the kernel send a signal when data arrive on `fd`, or its other end closes. `receiver`: a pid, or the negative of a group."""
    fcntl.fcntl(fd, _F_SETSIG, number)
    fcntl.fcntl(fd, fcntl.F_SETOWN, receiver)
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)
