"""The template: imports once, never computes, and forks tasks.

Importing TensorFlow takes seconds; forking a process that has imported it takes milliseconds. A fork is safe as long as the template
has only imported: one operation starts threads that a fork does not have, and the child then hangs (seen on TensorFlow 2.21;
tensorflow#2448 says that the runtime "is not designed to be fork-safe"). The template checks this before each fork (safety.py), and
refuses if it is not sure. It also refuses if an import has left something that a fork would share with its parent: a process, or an
open file.

Each message on the socket to the agent is one JSON object:

    agent     {"fork": TOKEN}, with two descriptors: the request (in memory, of any length), and the task's end of its lifeline
              {"ping": true}
    template  {"ready": true, "seconds": …} once, or {"ready": false, "why": …} if an import failed
              {"refused": TOKEN, "why": …} if a request cannot be served
              {"pong": true} for each ping
              {"ended": PID, "code": …, "token": TOKEN} when a fork has exited. The template sends this *before* it reaps the fork: if it
              dies in between, the agent, a subreaper, inherits the fork and learns its exit code from the kernel
    a fork    {"forked": TOKEN, "pid": …} when it is a task, or {"refused": TOKEN, "why": …} if it cannot become one

The new process first becomes what a task is (a signal to its group reaches it from then on), announces itself to the agent, and only then
runs the program. If the template has died before, the agent starts the task once more: it closes its ends of the socket and of the
lifeline, so that the fork can no longer announce itself, and ends. Nothing is ever written into a lifeline: Linux signals a pipe's
listeners *after* it has woken its reader (``pipe_write`` in fs/pipe.c), so a process that begins to listen after its read may be killed
for the byte that it has read.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterable
from typing import Any

from ...machine import import_threads
from ...machine.own_process import reseed
from ..processes.process_setup import SetupError, enter, name_process
from . import MESSAGE_BYTES
from .safety import Safety, open_files

_FDS = 2
"""Descriptors that come with a request."""
_REASON_LENGTH = 2000
_NEVER_RAN = 127
"""The exit code of a process that was forked and has not run the program."""


def serve(control_fd: int, directory: str, modules: list[str]) -> dict[str, Any]:
    """Import `modules`, also from `directory`, and fork tasks until the agent is gone. Returns in a task only, with its order."""
    control = socket.socket(fileno=control_fd)
    control.set_inheritable(False)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    own_files = open_files()
    os.environ.pop("ORCH_TASK", None)  # of a task that has started orch, or of the first task that has these variables
    was_there = directory in sys.path
    try:
        seconds, watch = load(modules, directory)
    except BaseException as error:
        show(error)  # first: when the agent reads the message, it kills this process
        _send(control, {"ready": False, "why": describe(error)})
        os._exit(1)
    if not was_there and directory in sys.path:
        sys.path.remove(directory)
    return fork_tasks(control, Safety(directory, own_files, watch), own_files, seconds)


def fork_tasks(control: socket.socket, safety: Safety, own_files: dict[int, str], seconds: float) -> dict[str, Any]:
    """Serve the agent at `control`, as `serve` does. `own_files`: closed in a task; `seconds`: how long the imports took."""
    template = _Template(control, safety, own_files)
    _send(control, {"ready": True, "seconds": seconds})
    return template.run()


def load(modules: Iterable[str], directory: str = "") -> tuple[float, import_threads.ThreadWatch]:
    """Import modules, also from `directory`. Returns the seconds that took, and which started threads. Raises what an import raises."""
    started = time.monotonic()
    thresholds = gc.get_threshold()
    gc.set_threshold(0)  # imports make hardly any garbage, and looking for it would be a fifth of the time of TensorFlow's import
    with import_threads.watched() as watch:
        for name in modules:
            _preload(name, directory)
        _prepare_forks()
    if gc.get_threshold()[0] == 0:  # a module may have set thresholds of its own
        gc.set_threshold(*thresholds)
    gc.collect()
    gc.freeze()  # a collection in a task would otherwise write to, and so copy, every page that the task shares with the template
    return time.monotonic() - started, watch


def _prepare_forks() -> None:
    """Do what each task would otherwise do for itself before its program starts."""
    import fcntl  # noqa: F401 - here, where `Safety` sees it

    from ...task import keras, sigterm  # noqa: F401
    from ...task.observe import meetings, step_times  # noqa: F401

    with contextlib.suppress(Exception):  # a Keras that is made otherwise; each task says so
        keras.prepare_forks()


def _preload(name: str, directory: str) -> None:
    if directory and directory not in sys.path and importlib.util.find_spec(name.partition(".")[0]) is None:
        sys.path.append(directory)
    __import__(name)  # not import_module, whose frames would stand in the traceback of an import that fails


def show(error: BaseException) -> None:
    """Write the traceback of an exception to stderr, from the imported module on."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    error.__traceback__ = trace
    sys.__excepthook__(type(error), error, trace)


def describe(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__


class _Template:
    """The loop of the template. In a forked task, `run` returns, so that the task's program runs at the top level of the process."""

    def __init__(self, control: socket.socket, safety: Safety, own_files: dict[int, str]) -> None:
        self._control, self._safety, self._own_files = control, safety, own_files
        self._tokens: dict[int, int] = {}
        self._wake, self._feeder = socket.socketpair()
        for sock in (self._wake, self._feeder):
            sock.setblocking(False)
        signal.set_wakeup_fd(self._feeder.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: None)  # the agent decides when the template ends

    def run(self) -> dict[str, Any]:
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while True:
            for fd, _ in poll.poll():
                if fd == self._wake.fileno():
                    self._wake.recv(4096)
                    self._reap()
                    continue
                message, fds = _receive(self._control)
                if message is None:
                    # The agent is gone. No teardown: nothing that was imported was ever used.
                    os._exit(0)
                if "ping" in message:
                    _send(self._control, {"pong": True})
                    continue
                order = self._fork(message["fork"], *fds)
                if order is not None:
                    return order

    def _fork(self, token: int, order_fd: int, lifeline: int) -> dict[str, Any] | None:
        with os.fdopen(order_fd, "rb") as file:
            request: dict[str, Any] = json.loads(file.read())
        why = self._safety.find_danger(request["path"])
        if why is None:
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.flush()
            try:
                pid = os.fork()
            except OSError as error:
                why = f"it could not be forked: {error.strerror}"
            else:
                if pid == 0:
                    self._become_task(token, request, lifeline)
                    order: dict[str, Any] = request["order"]
                    return order
                self._tokens[pid] = token
        if why is not None:
            _send(self._control, {"refused": token, "why": why})
        os.close(lifeline)
        return None

    def _become_task(self, token: int, request: dict[str, Any], lifeline: int) -> None:
        """In the child: set all that an exec would have set, and announce the task. Ends the process if something goes wrong."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        try:
            self._wake.close()
            self._feeder.close()
            for fd in self._own_files:  # one of them is the template's own lifeline
                if fd > 2 and fd != self._control.fileno():
                    with contextlib.suppress(OSError):
                        os.close(fd)
            enter(lifeline, request["cwd"], request["stdout"], request["stderr"], tuple(request["limits"]), request["devices"])
            os.close(lifeline)
            signal.signal(signal.SIGINT, signal.default_int_handler)  # as in a fresh interpreter
            signal.signal(signal.SIGPIPE, signal.SIG_IGN)
            os.environ.clear()
            os.environ.update(request["env"])
            name_process(request["order"]["task"])
        except (SetupError, OSError, ValueError) as error:
            # The launcher executes the task instead, which fails in the same way and gives the message that the user sees.
            _send(self._control, {"refused": token, "why": str(error)[:_REASON_LENGTH]})
            os._exit(_NEVER_RAN)
        _send(self._control, {"forked": token, "pid": os.getpid()})
        self._control.close()
        finder = sys.path_importer_cache.pop(request["path"], None)
        if finder is not None and hasattr(finder, "invalidate_caches"):
            finder.invalidate_caches()  # Python keeps the names in a zip file apart from the finder; they may be out of date
        reseed()

    def _reap(self) -> None:
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if found is None:
                return
            killed = found.si_code in (os.CLD_KILLED, os.CLD_DUMPED)
            code = -found.si_status if killed else found.si_status
            _send(self._control, {"ended": found.si_pid, "code": code, "token": self._tokens.pop(found.si_pid, 0)})
            os.waitpid(found.si_pid, 0)


def _send(control: socket.socket, message: dict[str, Any]) -> None:
    try:
        control.send(json.dumps(message).encode("ascii"))
    except OSError:
        os._exit(0)  # the agent is gone; the tasks end by their lifelines


def _receive(control: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    try:
        data, fds, _, _ = socket.recv_fds(control, MESSAGE_BYTES, _FDS)
    except OSError:
        return None, []
    return (json.loads(data) if data else None), fds
