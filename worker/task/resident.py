"""A task that stays and forks processes which run a test's functions (`orchestrator.testing`).

Such a task has ``ORCH_CALLS`` in its environment: the path of a Unix socket on which the test's process listens. The task connects, sends
its name, and then does what is requested. It has imported what its template has imported, TensorFlow as a rule, and never computes: so
each fork of it is a fresh process of that task, in some milliseconds. The fork goes on as any task does (`bootstrap.run`: devices,
collectives, Keras), with a directory of its own for what it leaves behind, and then runs functions (`calls`).

A message is eight bytes, its length, and a dictionary as `pickle` has it. To the task: ``{"do": "fork", …}``, ``{"do": "signal",
"number": …}``. From it: ``{"ended": CODE, "at": MONOTONIC}`` when a fork has ended, negative for a signal. When the connection closes,
the task ends with 0.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import socket
import sys
import time
from typing import Any

from ..machine.own_process import die_with_parent, move_own_fd, reseed
from . import task_coverage

VARIABLE = "ORCH_CALLS"
PRELOAD = "ORCH_CALLS_PRELOAD"
"""Names of modules, with spaces between: the forks find them imported, besides those of the template."""
_LENGTH = 8
_POLL_MS: float | None = 20
"""How often the parent checks whether the child has ended, in milliseconds, where the kernel has no pidfd."""


def fork_for_calls(order: dict[str, Any]) -> dict[str, Any]:
    """Serve the test's process. Returns in a fork only, with the order of that fork."""
    address = os.environ.pop(VARIABLE)
    _import(os.environ.pop(PRELOAD, "").split())
    task_coverage.prepare()
    connection = connect(address, f"{os.environ['ORCH_RUN_ID']}/{order['task']}")
    child = 0
    while True:
        if child and not _wait_for_message(connection, child):
            send(connection, {"at": time.monotonic(), "ended": _reap(child)})
            child = 0
            continue
        request = receive(connection)
        if request is None:
            os._exit(0)
        if request["do"] == "signal" and child:
            _signal(child, request["number"])
        elif request["do"] == "fork":
            resident = os.getpid()
            child = os.fork()
            if child == 0:
                connection.close()
                return _become(order, request, address, resident)
            _lead_group(child)  # here as well as in the child: whichever comes first


def _import(names: list[str]) -> None:
    """Import these modules. A module that fails is left out: a process that needs it imports it itself, and gets the error."""
    import gc
    import importlib

    for name in names:
        try:
            importlib.import_module(name)
        except Exception:
            continue
    gc.freeze()


def connect(address: str, name: str) -> socket.socket:
    """A connection to the test's process. The greeting tells the name of this process: the first message of each connection."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    connection = socket.socket(fileno=move_own_fd(connection.detach()))
    send(connection, {"who": name, "pid": os.getpid()})
    return connection


def send(connection: socket.socket, message: dict[str, Any]) -> None:
    """Raises OSError if the other side has closed the connection."""
    data = pickle.dumps(message)
    connection.sendall(len(data).to_bytes(_LENGTH, "big") + data)


def receive(connection: socket.socket) -> dict[str, Any] | None:
    """The next message; None: the other side has closed the connection."""
    data = bytearray()
    while (message := pop_message(data)) is None:
        wanted = int.from_bytes(data[:_LENGTH], "big") + _LENGTH if len(data) >= _LENGTH else _LENGTH
        try:
            part = connection.recv(min(wanted - len(data), 1 << 20))
        except ConnectionError:
            return None
        if not part:
            return None
        data += part
    return message


def pop_message(data: bytearray) -> dict[str, Any] | None:
    """Remove the first message from `data` and return it; None: the message is not complete."""
    end = int.from_bytes(data[:_LENGTH], "big") + _LENGTH
    if len(data) < end:
        return None
    message: dict[str, Any] = pickle.loads(data[_LENGTH:end])
    del data[:end]
    return message


# --- the child, seen from its parent -----------------------------------------------------------


def _wait_for_message(connection: socket.socket, child: int) -> bool:
    """True: there is a message; False: the child has ended."""
    fds, wait_ms = [connection.fileno()], _POLL_MS
    with contextlib.suppress(AttributeError, OSError):  # a kernel without pidfds
        fds.append(os.pidfd_open(child))
        wait_ms = None
    poll = select.poll()  # select.select fails in a process with 1,024 open files
    for fd in fds:
        poll.register(fd, select.POLLIN)
    try:
        while True:
            ready = dict(poll.poll(wait_ms))
            if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                return False  # the end first: a request to a child that has ended is too late
            if connection.fileno() in ready:
                return True
    finally:
        for pidfd in fds[1:]:
            os.close(pidfd)


def _reap(child: int) -> int:
    _signal(child, signal.SIGKILL)  # ends the processes that the child has started, too
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def _signal(child: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, number)


def _lead_group(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.setpgid(pid, pid)


# --- the child itself --------------------------------------------------------------------------


def _become(order: dict[str, Any], request: dict[str, Any], address: str, resident: int) -> dict[str, Any]:
    """Give this fork a group, output, directory, environment and import path of its own; returns its order."""
    _lead_group(0)
    die_with_parent(resident)  # the kernel's signal to the group of the resident does not reach this group (docs/how-it-works.md)
    directory = request["directory"]
    os.makedirs(directory, mode=0o700, exist_ok=True)
    output = os.open(os.path.join(directory, "output.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for number in (1, 2):
        os.dup2(output, number)
    os.close(output)
    os.chdir(request["cwd"])
    for name in request["unset"]:
        os.environ.pop(name, None)
    os.environ.update(request["env"])
    os.environ["ORCH_LOG_DIR"] = directory
    if "tempfile" in sys.modules:  # imported with the modules of the template, under another TMPDIR
        vars(sys.modules["tempfile"])["tempdir"] = None
    sys.path[:] = request["path"]
    reseed()
    return {**order, "log_dir": directory, "program": {"kind": "calls", "args": [address]}}
