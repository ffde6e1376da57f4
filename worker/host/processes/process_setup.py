"""Defines what a new process of orch sets for itself: between fork and exec, or instead of an exec where it is forked from a template."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import signal
import sys
from collections.abc import Mapping
from typing import Any

from .lifeline import hold_lifeline

_PR_SET_NAME = 15
_DEFAULT_SIGNALS = (signal.SIGPIPE, signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD)

_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


_SHORT = {errno.EMFILE: "open files (ulimit -n)", errno.ENFILE: "open files (fs.file-max)", errno.EAGAIN: "processes (ulimit -u)"}


def describe(error: OSError | ValueError) -> str:
    """The words of an error, and a remedy if a limit was reached."""
    number = getattr(error, "errno", None)
    remedy = f"; raise the limit of {_SHORT[number]}" if number in _SHORT else ""
    return f"{getattr(error, 'strerror', None) or error}{remedy}"


class SetupError(Exception):
    """A new process cannot be what it should be; the message says why."""


def allow_many_files() -> tuple[int, int]:
    """Raise this process's limit of open files as far as it goes. Returns the limits before (soft, hard), for `enter`."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    return before


def enter(lifeline: int, cwd: str, stdout: str, stderr: str, limits: tuple[int, int], devices: Mapping[str, Any]) -> None:
    """Give this new process a session, the signals that a shell would give it, and these files and limits. Raises `SetupError`.

    `limits`: of open files (soft, hard). `devices`: all device settings of the task, as JSON data: which of them orch applies before the
    program is only known here, and the task gives TensorFlow the others. `cores`: the numbers of the cores on which this thread, and all
    that are yet to be started, may run.
    """
    doing = "the new session"
    try:
        os.setsid()
        hold_lifeline(lifeline)
        for number in _DEFAULT_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        doing = f"the log directory of {stdout}"
        redirect(stdout, stderr)
        doing = f"the working directory {cwd}"
        os.chdir(cwd)
        doing = "the limits"
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        doing = "the devices"
        if devices.get("cores"):
            os.sched_setaffinity(0, devices["cores"])
    except (OSError, ValueError) as error:
        raise SetupError(f"{doing}: {describe(error)}") from None


def redirect(stdout: str, stderr: str) -> None:
    """Open /dev/null as stdin and these files as stdout and stderr."""
    # O_APPEND: the task, its children and a restarted interpreter write one after the other, and never over one another.
    # O_NONBLOCK, O_NOFOLLOW: an earlier task may have put a named pipe or a link there, and the agent waits for this function.
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_NOFOLLOW
    for number, path, mode in ((0, os.devnull, os.O_RDONLY), (1, stdout, flags), (2, stderr, flags)):
        fd = os.open(path, mode, 0o600)
        os.set_blocking(fd, True)
        os.dup2(fd, number)
        os.close(fd)


def name_process(name: str) -> None:
    """Set the name that ``ps -o comm`` and ``top`` show for this process."""
    if _libc is not None:
        _libc.prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def find_env_slot(name: str) -> tuple[int, int] | None:
    """Address and length, in this process's memory, of the value of a variable that the process was started with."""
    if _libc is None:
        return None
    _libc.getenv.restype = ctypes.c_void_p
    address = _libc.getenv(name.encode())
    return (address, len(ctypes.string_at(address))) if address else None


def write_env_slot(slot: tuple[int, int], value: str) -> None:
    """Write a value there for readers of /proc/PID/environ, such as ``orch down``; `os.environ` is a copy."""
    address, size = slot
    ctypes.memmove(address, value.encode()[:size].ljust(size, b"\0"), size)
