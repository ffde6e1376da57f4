"""The agent's end of one template: it asks for forks, and learns from the template how forked tasks have exited.

    importing ──────────► ready ──────────► gone
        │   the imports are done   close(), or the template died, or did not answer for PATIENCE_S and was killed
        └─────────────────────────────────────▲
          an import failed

Whatever a template cannot do safely, or at all, it refuses with a reason; the launcher then executes the task in a fresh interpreter.

Forked tasks are children of the template: it alone learns how one has exited. So the agent watches them as well (pidfd_open(2)), and
kills a template that is stopped or stuck. Its tasks live on as children of the agent, and the kernel tells their exit codes again.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...fast_dataclass import dataclass
from ..loop import Loop
from ..memfd import keep_in_memory
from ..processes import process_groups
from ..processes.spawn import Command, SpawnError, spawn
from ..tasks import import_environment
from ..tasks.task import PendingTask
from . import MESSAGE_BYTES

if TYPE_CHECKING:
    from ..tasks.launcher import Launcher

PATIENCE_S = 5.0
"""How long a template may owe an answer. Killing it costs later tasks an import, and nothing else."""
_MOST_REQUESTS = 8
"""Forks that a template may be asked for at a time. A socket's queue takes ten messages (net.unix.max_dgram_qlen)."""
_NAME_BYTES = 64
"""The length of the value of ORCH_TASK in a template's environment. Each fork writes its task's name there, for other processes to read."""
_START = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "template/start_template.py")


@dataclass(frozen=True, slots=True)
class Preload:
    """What a template imports, and how."""

    modules: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    directory: str
    """The directory of the program: modules that are found nowhere else are imported from there."""


@dataclass(frozen=True, slots=True)
class TemplateProcess:
    """A template, which is a child of this process."""

    pid: int
    lifeline: int
    """The agent's end of the template's lifeline."""
    control: socket.socket
    """The agent's end of the socket on which the template takes requests."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A fork that the template was asked for, and has not answered."""

    task: PendingTask
    lifeline: int
    """The agent's end of the task's lifeline."""
    go: int
    """The agent's end of the pipe that lets the task run."""

    def let_run(self) -> None:
        with contextlib.suppress(BrokenPipeError):  # the task has died already; its exit will be reported
            os.write(self.go, b"!")
        os.close(self.go)

    def give_up(self) -> None:
        """If there is a process, it never runs the program, and ends."""
        os.close(self.go)
        os.close(self.lifeline)


def start_template(preload: Preload, log: str, limits: tuple[int, int]) -> TemplateProcess:
    """Start a template that writes its output to `log`. `limits`: of open files (soft, hard). Raises OSError or `SpawnError`."""
    control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        argv = (sys.executable, _START, "{fd}", preload.directory, *preload.modules)
        env = {**preload.env, "ORCH_TASK": "-" * _NAME_BYTES}
        command = Command(argv, preload.cwd, env, log, log, inherited_fd=theirs.fileno())
        try:
            return TemplateProcess(*spawn(command, limits), control)
        except (OSError, SpawnError):
            control.close()
            raise


def adopt_template(process: TemplateProcess, preload: Preload, log: str) -> None:
    """Tell a fork of the warm process which run it is the template of (see `warm/warm_fork.py`). Raises OSError."""
    process.control.send(json.dumps({"log": log, "run_id": preload.env["ORCH_RUN_ID"]}).encode("ascii") + b"\n")


class ForkServer:
    """Forks tasks from one template, in the order in which they are asked for, as soon as its imports are done.

    What the template says is passed on to the launcher: `on_imported`, `on_started` or `on_refused` for each fork, `on_exited`.
    """

    def __init__(self, loop: Loop, launcher: Launcher, preload: Preload, log: str, process: TemplateProcess) -> None:
        self.preload = preload
        self.key = import_environment.frozen(preload.env, preload.modules)
        """The variables that the imports may have looked at. A task can be forked if its own are the same."""
        self.ready = self.gone = False
        self.why_gone = ""
        self.pid, self._lifeline, self._control = process.pid, process.lifeline, process.control
        self._loop, self._launcher, self._log = loop, launcher, log
        self._waiting: deque[PendingTask] = deque()
        """The tasks that the template has not been asked for."""
        self._asked: dict[int, _Asked] = {}
        """By the token of the request."""
        self._tokens = 0
        self._watched: dict[int, int] = {}
        """A pidfd for each running task, by the task's pid."""
        self._departed: set[int] = set()
        """The tasks that have exited, with an exit code that only the template knows and has not told."""
        self._heard_at = 0.0
        """When the template last said something, or began to owe an answer; by the monotonic clock."""
        self._has_timer = False
        self._control.setblocking(False)
        loop.on_readable(self._control, self._read)

    def fork(self, task: PendingTask) -> None:
        """Ask the template for a task."""
        if self.gone:
            self._launcher.on_refused(task, self.why_gone)
        else:
            self._waiting.append(task)
            self._send_requests()

    def withdraw(self, task: PendingTask) -> bool:
        """Take back a request. False: the template has it already, and will answer it."""
        if task not in self._waiting:
            return False
        self._waiting.remove(task)
        return True

    def close(self) -> None:
        """End the template. Its tasks go on."""
        if not self.gone:
            self._close("the template was let go")

    def on_process_exited(self) -> None:
        """The launcher has reaped the template. A process that an import has started may hold the template's end of the socket open."""
        self._read()  # what the template said last
        if not self.gone:
            self._on_death()

    # --- requests ----------------------------------------------------------------------------

    def _send_requests(self) -> None:
        while self.ready and self._waiting and len(self._asked) < _MOST_REQUESTS:
            task = self._waiting[0]
            try:
                if not self._send_request(task):
                    return
            except OSError as error:
                why = f"the template cannot be asked: {error.strerror or error}"
            else:
                why = ""
            self._waiting.popleft()
            if why:
                self._launcher.on_refused(task, why)

    def _send_request(self, task: PendingTask) -> bool:
        """False: the template's queue is full, and the next answer is the time to try again; or it died, which `_read` will notice.

        Raises OSError, for example if there are too many open files.
        """
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            request = keep_in_memory(task.fork_request(self._launcher.limits))
            theirs.callback(os.close, request)
            pipes = []
            for _ in range(2):
                pipes.append(os.pipe())
                theirs.callback(os.close, pipes[-1][0])
                ours.callback(os.close, pipes[-1][1])
            (life_read, life_write), (go_read, go_write) = pipes
            try:
                socket.send_fds(self._control, [json.dumps({"fork": self._tokens + 1}).encode()], [request, life_read, go_read])
            except (BlockingIOError, ConnectionError):
                return False
            ours.pop_all()
        self._expect_answer()
        self._tokens += 1
        self._asked[self._tokens] = _Asked(task, life_write, go_write)
        return True

    # --- answers -----------------------------------------------------------------------------

    def _read(self) -> None:
        while not self.gone:
            try:
                data = self._control.recv(MESSAGE_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._on_death()
                return
            self._on_message(json.loads(data))

    def _on_message(self, message: Mapping[str, Any]) -> None:
        self._heard_at = time.monotonic()
        if "ended" in message:
            self._unwatch(message["ended"])
            self._departed.discard(message["ended"])
            self._launcher.on_exited(message["ended"], message["code"])
        elif "forked" in message:
            asked = self._asked.pop(message["forked"])
            asked.let_run()  # from here on the task counts as started, and must not be started a second time
            self._watch(message["pid"])
            self._launcher.on_started(asked.task, message["pid"], asked.lifeline)
        elif "refused" in message:
            asked = self._asked.pop(message["refused"])
            asked.give_up()
            self._launcher.on_refused(asked.task, message["why"])
        elif message.get("ready"):
            self.ready = True
            self._launcher.on_imported(self.preload.modules, message["seconds"])
        else:
            self._close(f"importing {', '.join(self.preload.modules)} failed: {message['why']} (see {self._log})")
        self._send_requests()

    def _on_death(self) -> None:
        self._close(self.why_gone or f"the template has died (see {self._log})")

    def _close(self, why: str) -> None:
        self.gone, self.why_gone = True, why
        self._loop.forget(self._control)
        self._control.close()
        # The template itself may be alive, having only closed its end of the socket; so may processes that its imports have started.
        process_groups.signal_group(self.pid, signal.SIGKILL)
        os.close(self._lifeline)
        for pid in list(self._watched):
            self._unwatch(pid)
        refused = [*(asked.task for asked in self._asked.values()), *self._waiting]
        for asked in self._asked.values():
            asked.give_up()  # the template may have forked the task and died before it could say so (see template_server.py)
        self._waiting.clear()
        self._asked.clear()
        for task in refused:
            self._launcher.on_refused(task, why)

    # --- does the template still answer? -----------------------------------------------------

    def _watch(self, pid: int) -> None:
        """Notice when a task exits; the template has to tell how."""
        try:
            self._watched[pid] = fd = os.pidfd_open(pid)
        except (AttributeError, OSError):
            return  # this platform has no pidfd_open, or there are too many open files
        self._loop.on_readable(fd, lambda: self._on_task_exited(pid))

    def _on_task_exited(self, pid: int) -> None:
        if self._unwatch(pid):
            self._expect_answer()
            self._departed.add(pid)

    def _unwatch(self, pid: int) -> bool:
        fd = self._watched.pop(pid, None)
        if fd is None:
            return False
        self._loop.forget(fd)
        os.close(fd)
        return True

    def _expect_answer(self) -> None:
        if not (self._asked or self._departed):
            self._heard_at = time.monotonic()
        if not self._has_timer:
            self._has_timer = True
            self._loop.after(PATIENCE_S, self._check_for_silence)

    def _check_for_silence(self) -> None:
        self._has_timer = False
        if self.gone or not (self._asked or self._departed):
            return
        silent_s = time.monotonic() - self._heard_at
        if silent_s >= PATIENCE_S:
            self.why_gone = f"the template did not answer for {PATIENCE_S:.0f} s and was killed"
            process_groups.signal_process(self.pid, signal.SIGKILL)
        self._has_timer = True
        self._loop.after(max(PATIENCE_S - silent_s, 0.1), self._check_for_silence)
