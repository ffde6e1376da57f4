"""The agent's end of one template (template_server.py): sends requests to fork, and receives how forked tasks have exited.

    importing ──────────► ready ──────────► gone
        │   the imports are done   close(), or the template died, or left MOST_PINGS without an answer and was killed
        └─────────────────────────────────────▲
          an import failed

A template refuses, with a reason, a fork that is not safe or not possible; the launcher then executes the task in a fresh interpreter.

Forked tasks are children of the template: only the template learns how a task has exited. So the agent pings the template (`poll`), and
kills a template that is stopped or stuck. The tasks then become children of the agent, which gets their exit codes from the kernel. Pings
are counted, not seconds: an agent that was stopped itself has sent none.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import Protocol

from ...machine.memfd import keep_in_memory
from ...values.fast_dataclass import dataclass
from ..processes import process_groups
from ..processes.loop import Loop
from ..processes.spawn import Command, SpawnError, spawn
from . import MESSAGE_BYTES, import_environment

MOST_PINGS = 5
"""How many pings, one a second, a template may leave without an answer. If the agent kills a template, only an import is lost."""
_MOST_REQUESTS = 4
"""Requests that may wait for an answer at a time: together with the pings, few enough for the buffer of any socket."""
_START = os.path.join(os.path.dirname(os.path.abspath(__file__)), "start_template.py")


@dataclass(frozen=True, slots=True, eq=False)
class ForkRequest:
    """A task that is to be forked: what `template_server.py` reads before the fork."""

    order: Mapping[str, Any]
    env: Mapping[str, str]
    cwd: str
    stdout: str
    """The path of the task's output file."""
    stderr: str
    limits: tuple[int, int]
    """Of open files (soft, hard)."""
    devices: Mapping[str, Any]
    """See `process_setup.enter`."""
    path: str
    """The program's `sys.path[0]`."""

    def encode(self) -> bytes:
        return json.dumps({name: getattr(self, name) for name in self.__slots__}).encode("ascii")


if TYPE_CHECKING:

    class ForkListener(Protocol):
        """Gets the answers of a template: `on_forked` or `on_refused` for each request."""

        def on_imported(self, modules: tuple[str, ...], seconds: float) -> None: ...

        def on_forked(self, request: ForkRequest, pid: int, lifeline: int) -> None: ...

        def on_refused(self, request: ForkRequest, why: str) -> None: ...

        def on_exited(self, pid: int, code: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Preload:
    modules: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    directory: str
    """The directory of the program: modules that are found nowhere else are imported from there."""


@dataclass(frozen=True, slots=True)
class TemplateProcess:
    pid: int
    lifeline: int
    """The agent's end of the template's lifeline."""
    control: socket.socket
    """The agent's end of the socket on which the template takes requests."""


def start_template(preload: Preload, log: str, limits: tuple[int, int]) -> TemplateProcess:
    """Start a template that writes its output to `log`. `limits`: of open files (soft, hard). Raises OSError or `SpawnError`."""
    control, templates = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with templates:
        argv = (sys.executable, _START, "{fd}", preload.directory, *preload.modules)
        command = Command(argv, preload.cwd, preload.env, log, log, inherited_fd=templates.fileno())
        try:
            return TemplateProcess(*spawn(command, limits), control)
        except (OSError, SpawnError):
            control.close()
            raise


def adopt_template(process: TemplateProcess, preload: Preload, log: str) -> None:
    """Make a fork of the warm process the template of this run (see `warm_server.py`). Raises OSError."""
    process.control.send(json.dumps({"log": log, "run_id": preload.env["ORCH_RUN_ID"]}).encode("ascii") + b"\n")


class TemplateLink:
    """Sends requests to one template, in the order in which they come, as soon as its imports are done. `listener` gets the answers."""

    def __init__(self, loop: Loop, listener: ForkListener, preload: Preload, log: str, process: TemplateProcess) -> None:
        self.preload = preload
        self.key = import_environment.frozen(preload.env, preload.modules)
        """The variables that the imports may have read. A task can be forked if its own variables have the same values."""
        self.ready = self.gone = False
        self.why_gone = ""
        self.pid, self._lifeline, self._control = process.pid, process.lifeline, process.control
        self._loop, self._listener, self._log = loop, listener, log
        self._waiting: deque[ForkRequest] = deque()
        """The requests that are not sent yet."""
        self._sent: dict[int, tuple[ForkRequest, int]] = {}
        """The requests without an answer, by token, each with the agent's end of the task's lifeline."""
        self._tokens = 0
        self._pings = 0
        """How many pings were sent since the last message of the template."""
        self._control.setblocking(False)
        loop.on_readable(self._control, self.read)

    def fork(self, request: ForkRequest) -> None:
        if self.gone:
            self._listener.on_refused(request, self.why_gone)
        else:
            self._waiting.append(request)
            self._send_requests()

    def withdraw(self, request: ForkRequest) -> bool:
        """Withdraw a request. False: the template has received the request, and will answer."""
        if request not in self._waiting:
            return False
        self._waiting.remove(request)
        return True

    def close(self) -> None:
        """End the template. Its tasks go on."""
        if not self.gone:
            self._close("the template was let go")

    def poll(self) -> None:
        """To be called about once a second: kills a template that does not answer."""
        if self.gone or not self.ready:
            return
        if self._pings >= MOST_PINGS:
            self.why_gone = f"the template did not answer for {MOST_PINGS} s and was killed"
            process_groups.signal_process(self.pid, signal.SIGKILL)
        self._pings += 1
        with contextlib.suppress(OSError):  # its queue is full, or `read` will notice its death
            self._control.send(b'{"ping": true}')

    # --- requests ----------------------------------------------------------------------------

    def _send_requests(self) -> None:
        while self.ready and self._waiting and len(self._sent) < _MOST_REQUESTS:
            request = self._waiting.popleft()
            self._tokens += 1
            try:
                self._sent[self._tokens] = request, self._send(request, self._tokens)
            except ConnectionError:
                self._waiting.appendleft(request)  # `read` will notice that the template has died
                return
            except OSError as error:  # there are too many open files
                self._listener.on_refused(request, f"the template cannot be asked: {error.strerror or error}")

    def _send(self, request: ForkRequest, token: int) -> int:
        """Returns the agent's end of the task's lifeline. Raises OSError."""
        theirs = [keep_in_memory(request.encode())]
        try:
            life_read, life_write = os.pipe()
            theirs.append(life_read)
            try:
                socket.send_fds(self._control, [json.dumps({"fork": token}).encode("ascii")], theirs)
            except OSError:
                os.close(life_write)
                raise
        finally:
            for fd in theirs:
                os.close(fd)
        return life_write

    # --- answers -----------------------------------------------------------------------------

    def read(self, *, has_ended: bool = False) -> None:
        """Read the messages of the template. `has_ended`: these are the last, even if a process that an import has started holds the
        template's end of the socket open."""
        while not self.gone:
            try:
                data = self._control.recv(MESSAGE_BYTES)
            except BlockingIOError:
                if not has_ended:
                    return
                data = b""
            except ConnectionResetError:
                continue  # the template has left requests unread; what came before its end comes next
            if not data:
                self._close(self.why_gone or f"the template has died (see {self._log})")
                return
            self._on_message(json.loads(data))

    def _on_message(self, message: Mapping[str, Any]) -> None:
        self._pings = 0
        if "ended" in message:
            self._refuse(message["token"], "it died as soon as it was forked")  # if it was neither announced nor refused
            self._listener.on_exited(message["ended"], message["code"])
        elif "forked" in message:
            request, lifeline = self._sent.pop(message["forked"])
            self._listener.on_forked(request, message["pid"], lifeline)
        elif "refused" in message:
            self._refuse(message["refused"], message["why"])
        elif message.get("ready"):
            self.ready = True
            self._listener.on_imported(self.preload.modules, message["seconds"])
        elif "why" in message:
            self._close(f"importing {', '.join(self.preload.modules)} failed: {message['why']} (see {self._log})")
        self._send_requests()

    def _close(self, why: str) -> None:
        self.gone, self.why_gone = True, why
        self._loop.forget(self._control)
        self._control.close()
        # The template itself may be alive, having only closed its end of the socket; so may processes that its imports have started.
        process_groups.signal_group(self.pid, signal.SIGKILL)
        os.close(self._lifeline)
        # A fork may be there, and may have announced itself a moment ago: its lifeline ends it before the same task is started once more.
        refused = [*(request for request, _ in self._sent.values()), *self._waiting]
        for _, lifeline in self._sent.values():
            os.close(lifeline)
        self._sent.clear()
        self._waiting.clear()
        for request in refused:
            self._listener.on_refused(request, why)

    def _refuse(self, token: int, why: str) -> None:
        """The request with this token gets no task; nothing if it was answered before."""
        if token in self._sent:
            request, lifeline = self._sent.pop(token)
            os.close(lifeline)
            self._listener.on_refused(request, why)
