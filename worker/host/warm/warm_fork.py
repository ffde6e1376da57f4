"""How a fork of the warm process becomes the agent of a run, and a fork of that one the run's template."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Callable, Mapping
from typing import Any

from ... import clock
from ...fast_dataclass import dataclass
from .. import agent
from ..processes.lifeline import become_subreaper, hold_lifeline
from ..processes.process_setup import redirect, write_env_slot
from ..template import template_server as template
from ..template.safety import Safety, open_files
from ..template.template_link import TemplateProcess
from . import caller_state
from .math_threads import THREADS
from .warm_socket import receive, send


@dataclass(frozen=True, slots=True)
class Threads:
    """``OMP_NUM_THREADS`` during the imports, and what changes the number afterwards (`math_threads`)."""

    during_imports: str
    setters: tuple[Callable[[int], object], ...]


@dataclass(frozen=True, slots=True)
class Fork:
    """A new fork, before it is an agent."""

    connection: socket.socket
    """To the controller, for one answer."""
    go: int
    """A byte comes if the fork may go on; the pipe closes if not."""
    channel: int
    """The agent's end of the run's channel."""
    stderr: int
    """The agent's log."""
    inherited: Mapping[str, Any]
    """What `caller_state.read_inherited` has read in the controller."""
    env: Mapping[str, str]
    """The controller's variables."""
    since: float
    """When the warm process had imported, in seconds since the epoch."""
    kept: set[int]
    """Descriptors that the imports have left open, and that tasks need."""
    safety: Safety
    threads: Threads
    rooms: tuple[tuple[int, int] | None, ...]
    """The memory for the names of the run and the task in the environment that other processes see."""


def become_agent(fork: Fork) -> dict[str, Any] | None:
    """Be the agent until `os._exit`. Returns in a task only, with its order."""
    try:
        os.setsid()
        caller_state.apply_inherited(fork.inherited, fork.env)
        for number in (1, 2):
            os.dup2(fork.stderr, number)
        os.close(fork.stderr)
        become_subreaper()
        clock.reset()
        control, templates = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        life_read, life_write = os.pipe()
        pid = os.fork()
        if pid == 0:
            fork.connection.close()
            for fd in (fork.go, fork.channel, control.detach(), life_write):
                os.close(fd)
            return _serve_as_template(fork, templates, life_read)
        templates.close()
        os.close(life_read)
        if not os.read(fork.go, 1):
            os._exit(0)
        os.close(fork.go)
        send(fork.connection, {"pid": os.getpid(), "since": fork.since})
    except (OSError, ValueError) as error:
        with contextlib.suppress(OSError):
            send(fork.connection, {"refused": str(error)})
        os._exit(1)
    fork.connection.close()
    code = 1
    try:
        code = agent.Agent(fork.channel, os.dup(fork.channel), TemplateProcess(pid, life_write, control)).run()
    finally:
        os._exit(code)


def _serve_as_template(fork: Fork, control: socket.socket, lifeline: int) -> dict[str, Any] | None:
    """Be this run's template, as `template_server.serve` is after its imports, once the agent has sent the log and the run's id."""
    try:
        os.setsid()
        hold_lifeline(lifeline)
        os.close(lifeline)
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        start, _ = receive(control)
        if start is None:
            os._exit(0)  # the run has no use for a template
        redirect(start["log"], start["log"])
        run_room, task_room = fork.rooms
        if run_room is not None:
            write_env_slot(run_room, start["run_id"])
        ours = {fd: path for fd, path in open_files().items() if fd not in fork.kept}
    except (OSError, ValueError, KeyError):
        os._exit(1)
    order = template.fork_tasks(control, fork.safety, ours, task_room, seconds=0.0)
    threads = os.environ.get(THREADS, "")
    if order is not None and threads != fork.threads.during_imports and threads.isdigit():
        for set_threads in fork.threads.setters:
            set_threads(max(1, int(threads)))
    return order
