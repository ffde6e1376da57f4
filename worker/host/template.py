"""The template: imports once, never computes, and forks tasks.

Importing TensorFlow takes seconds; forking a process that has imported it takes milliseconds. That is safe as long as the
template has only imported: one operation starts threads that a fork does not have, and the child then hangs (seen on
TensorFlow 2.21; tensorflow#2448 says that the runtime "is not designed to be fork-safe"). So that is checked before each
fork, and a template that cannot be sure says no.

One message on the socket to the agent is one JSON object. The agent asks ``{"fork": TOKEN}`` with two descriptors, the order
(in memory, of any length) and the task's end of its lifeline. The template says ``{"ready": …}`` once,
``{"forked": TOKEN, "pid": …}`` or ``{"refused": TOKEN, "why": …}`` for each, and ``{"ended": PID, "code": …}`` when a task's
first process is done. It says so *before* it reaps: if it dies in between, the agent, a subreaper, inherits the process and
learns its status from the kernel.
"""

from __future__ import annotations

import array
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
from typing import Any

from . import processes

MESSAGE_BYTES = 64 * 1024
_FDS = 2


def serve(control_fd: int, modules: list[str]) -> dict[str, Any] | None:
    """Import `modules` and fork tasks until the agent is gone. Returns the task's order in a task, None in the template."""
    control = socket.socket(fileno=control_fd)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    started = time.monotonic()
    threads = 1
    try:
        for name in modules:
            threads = _preload(name, threads)
    except BaseException as error:
        _send(control, {"ready": False, "why": f"{type(error).__name__}: {error}"})
        raise
    gc.collect()
    gc.freeze()  # a collection in a task must not touch, and so copy, every page that it shares with us
    _send(control, {"ready": True, "seconds": time.monotonic() - started})
    return _Template(control, threads).run()


def _preload(name: str, threads: int) -> int:
    """Import one module; returns how many threads are there by rights."""
    if name.partition(".")[0] in ("tensorflow", "keras", "tf_keras"):
        # NumPy comes with it. OpenBLAS keeps helper threads, stops them before a fork and starts them after it
        # (pthread_atfork in its driver/others/memory.c), so those that are there once it is imported do no harm.
        importlib.import_module("numpy")
        threads = max(threads, _count_threads())
    importlib.import_module(name)
    return threads


class _Template:
    """The loop. In a forked task it is left through `run`'s return, so that the task's code runs at the top level."""

    def __init__(self, control: socket.socket, threads: int) -> None:
        self._control, self._threads = control, threads
        self._wake, self._feeder = socket.socketpair()
        for sock in (self._wake, self._feeder):
            sock.setblocking(False)
        signal.set_wakeup_fd(self._feeder.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: None)  # the agent decides when we end
        self._names = _importable(sys.modules)

    def run(self) -> dict[str, Any] | None:
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
                    # Without the teardown of everything that was imported: nothing of it was ever used.
                    os._exit(0)
                order = self._fork(message["fork"], *fds)
                if order is not None:
                    return order

    def _fork(self, token: int, order_fd: int, lifeline: int) -> dict[str, Any] | None:
        request = json.loads(_read_all(order_fd))
        why = self._find_danger(request)
        if why is not None:
            _send(self._control, {"refused": token, "why": why})
        else:
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:
                    stream.flush()
            pid = os.fork()
            if pid == 0:
                self._become_task(request, lifeline)
                order: dict[str, Any] = request["order"]
                return order
            _send(self._control, {"forked": token, "pid": pid})
        os.close(lifeline)
        return None

    def _find_danger(self, request: dict[str, Any]) -> str | None:
        """Why a fork would not be what a fresh interpreter is."""
        if _count_threads() > self._threads:
            return "an import has started a thread"
        context = sys.modules.get("tensorflow.python.eager.context")
        made = getattr(context, "context_safe", lambda: None)()
        if made is not None and getattr(made, "_initialized", True):
            return "an import has started TensorFlow's runtime"
        if any(target.startswith("/dev/nvidia") for target in _open_files()):
            return "an import has opened a GPU"
        shadowing = self._names & _importable_files(request["path"])
        if shadowing:
            return f"{min(shadowing)} beside the script is a name that {', '.join(request['preload'])} has imported as well"
        return None

    def _become_task(self, request: dict[str, Any], lifeline: int) -> None:
        """In the child: everything that an exec would have given. Whatever goes wrong here ends the task, and is seen on its stderr."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for sock in (self._control, self._wake, self._feeder):
            sock.close()
        os.setsid()
        processes.hold_lifeline(lifeline)
        os.close(lifeline)
        processes.redirect(request["stdout"], request["stderr"])
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["env"])
        processes.restore_signals()
        signal.signal(signal.SIGINT, signal.default_int_handler)  # as in a fresh interpreter
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        processes.restore_limits(tuple(request["limits"]))
        processes.name_process(request["order"]["task"])
        _reseed()

    def _reap(self) -> None:
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if found is None:
                return
            killed = found.si_code in (os.CLD_KILLED, os.CLD_DUMPED)
            code = 128 + found.si_status if killed else found.si_status
            _send(self._control, {"ended": found.si_pid, "code": code})
            os.waitpid(found.si_pid, 0)


def _reseed() -> None:
    # Python reseeds `random` after a fork by itself; NumPy's legacy generator would be the same in every task.
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()


def _count_threads() -> int:
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return 1


def _open_files() -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            continue
    return found


def _importable(modules: dict[str, Any]) -> set[str]:
    """Top-level names of modules that came from files: those that a file beside the script would hide."""
    found = set()
    for name, module in list(modules.items()):
        origin = getattr(getattr(module, "__spec__", None), "origin", None)
        if "." not in name and origin not in (None, "built-in", "frozen"):
            found.add(name)
    return found


def _importable_files(directory: str) -> set[str]:
    try:
        with os.scandir(directory) as entries:
            return {_module_name(entry) for entry in entries} - {""}
    except OSError:
        return set()


def _module_name(entry: os.DirEntry[str]) -> str:
    name, dot, suffix = entry.name.partition(".")
    if dot:
        return name if suffix.endswith(("py", "pyc", "so")) else ""
    return name if os.path.isfile(os.path.join(entry.path, "__init__.py")) else ""


def _read_all(fd: int) -> bytes:
    with os.fdopen(fd, "rb") as file:
        file.seek(0)
        return file.read()


def _send(control: socket.socket, message: dict[str, Any]) -> None:
    try:
        control.send(json.dumps(message).encode("ascii"))
    except OSError:
        os._exit(0)  # the agent is gone, and so will be the tasks


def _receive(control: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    size = array.array("i").itemsize
    try:
        data, ancillary, _, _ = control.recvmsg(MESSAGE_BYTES, socket.CMSG_SPACE(_FDS * size))
    except OSError:
        return None, []
    fds = array.array("i")
    for level, kind, packed in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(packed[: len(packed) - len(packed) % size])
    return (json.loads(data) if data else None), list(fds)
