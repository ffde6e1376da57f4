"""Executes a program in a session and process group of its own, tied to the agent's life by a lifeline (lifeline.py)."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from ...machine.own_process import die_with_parent
from ...values.fast_dataclass import dataclass
from .lifeline import keep_across_exec
from .process_setup import SetupError, describe, enter


class SpawnError(Exception):
    """A program could not be started; the message says why."""


@dataclass(frozen=True, slots=True)
class Command:
    argv: tuple[str, ...]
    """One word may be ``{fd}``: the number of the inherited descriptor stands in its place."""
    cwd: str
    env: Mapping[str, str]
    stdout: str
    """A path; the program's output is appended to this file."""
    stderr: str
    inherited_fd: int | None = None
    devices: Mapping[str, Any] = field(default_factory=dict)


def spawn(command: Command, limits: tuple[int, int]) -> tuple[int, int]:
    """Start a program with these limits of open files. Returns its pid and the agent's end of its lifeline. Raises `SpawnError`."""
    agent = os.getpid()
    fds: list[int] = []
    try:
        fds += os.pipe()
        fds += os.pipe()
        pid = os.fork()
    except OSError as error:
        for fd in fds:
            os.close(fd)
        raise SpawnError(f"no process can be started: {describe(error)}") from None
    life_read, life_write, error_read, error_write = fds
    if pid == 0:
        _execute(command, agent, limits, life_read, error_write)
    os.close(life_read)
    os.close(error_write)
    with os.fdopen(error_read, "rb") as pipe:
        report = pipe.read()  # an exec closes the pipe; an error is written into it
    if report:
        os.waitpid(pid, 0)
        os.close(life_write)
        raise SpawnError(os.fsdecode(report))
    return pid, life_write


def _execute(command: Command, agent: int, limits: tuple[int, int], lifeline: int, error_fd: int) -> None:
    """Runs in the child, between fork and exec. Never returns: it writes into `error_fd` why the program cannot be started."""
    try:
        enter(lifeline, command.cwd, command.stdout, command.stderr, limits, command.devices)
        die_with_parent(agent)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores SIGXFSZ, and an exec would pass that on
        argv = list(command.argv)
        if command.inherited_fd is not None:
            argv[argv.index("{fd}")] = str(keep_across_exec(command.inherited_fd))
        os.execvpe(argv[0], argv, dict(command.env))
    except SetupError as error:
        os.write(error_fd, os.fsencode(str(error)))
    except (OSError, ValueError) as error:  # ValueError: Python refuses a null byte, or "=" in a variable's name, before it asks the kernel
        why = getattr(error, "strerror", None) or error
        if getattr(error, "errno", None) == errno.E2BIG:
            why = "an argument or variable is longer than the kernel takes (128 KiB), or all together are"
        os.write(error_fd, os.fsencode(f"{command.argv[0]}: {why}"))
    finally:
        os._exit(127)
