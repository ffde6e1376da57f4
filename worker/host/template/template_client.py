"""The agent's end of a template: tasks are asked for, and their ends are heard of.

Whatever a template cannot do safely, or at all, comes back as a refusal with a reason; the task then gets a fresh interpreter.

Its tasks are its children: it alone learns how one has ended. So the agent watches them as well, and a template that is dead,
stopped or stuck is killed: its tasks live on, as the agent's own children, and the kernel tells their exit codes again.
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
from collections.abc import Callable, Mapping
from typing import Any

from ...fast_dataclass import dataclass
from ..loop import Loop
from ..memfd import keep_in_memory
from ..tasks import import_environment, processes
from .template_server import MESSAGE_BYTES

PATIENCE_S = 5.0
"""How long a template may owe an answer. One that is killed for it costs later tasks an import, and nothing else."""
_MOST_ASKED = 8
"""Requests on their way to one template. A socket's queue takes ten (net.unix.max_dgram_qlen)."""
_ROOM = 64
"""Where each fork writes its task's name, for whoever looks at its environment from outside."""
_START = os.path.join(os.path.dirname(os.path.abspath(__file__)), "start_template.py")


@dataclass(slots=True, eq=False)
class Fork:
    """A task that a template is asked for. `request`: what `template_server.py` reads. Exactly one of the two is called, once."""

    request: Mapping[str, Any]
    on_forked: Callable[[int, int], None]
    """With the task's pid and our end of its lifeline."""
    on_refused: Callable[[str], None]
    """With the reason."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A fork that is on its way, our end of its lifeline and our end of the pipe that lets it run."""

    fork: Fork
    lifeline: int
    go: int

    def let_run(self) -> None:
        with contextlib.suppress(BrokenPipeError):  # one that has died meanwhile is a task that has ended
            os.write(self.go, b"!")
        os.close(self.go)

    def give_up(self) -> None:
        """What there is of it never runs, and ends."""
        os.close(self.go)
        os.close(self.lifeline)


@dataclass(frozen=True, slots=True)
class Start:
    """What a template is started with. `directory`: where the program lies."""

    env: Mapping[str, str]
    preload: tuple[str, ...]
    cwd: str
    directory: str


@dataclass(frozen=True, slots=True)
class Running:
    """A template's process, which is our child, our end of its lifeline and our end of its socket."""

    pid: int
    lifeline: int
    control: socket.socket


def spawn(start: Start, log: str, limits: tuple[int, int]) -> Running:
    """Start a template. Raises OSError or `SpawnError`."""
    control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        argv = (sys.executable, _START, "{fd}", start.directory, *start.preload)
        env = {**start.env, "ORCH_TASK": "-" * _ROOM}
        command = processes.Command(argv, start.cwd, env, log, log, order_fd=theirs.fileno())
        try:
            return Running(*processes.spawn(command, limits), control)
        except (OSError, processes.SpawnError):
            control.close()
            raise


def begin(running: Running, start: Start, log: str) -> None:
    """Tell a fork of the warm process what it is the template of (see `warm/warm_fork.py`). Raises OSError."""
    running.control.send(json.dumps({"log": log, "run_id": start.env["ORCH_RUN_ID"]}).encode("ascii") + b"\n")


class Template:
    """One template process. It answers forks in the order in which they are asked for, as soon as its imports are done."""

    def __init__(
        self,
        loop: Loop,
        start: Start,
        log: str,
        on_ended: Callable[[int, int], None],
        on_imported: Callable[[tuple[str, ...], float], None],
        running: Running,
    ) -> None:
        """`on_ended` gets the pid and the code of each task that has ended, -n for signal n; `on_imported` what and in how many seconds."""
        self.preload, self.key = start.preload, import_environment.frozen(start.env, start.preload)
        self.ready = self.gone = False
        self.why = ""
        """Why it is gone."""
        self._loop, self._log, self._on_ended, self._on_imported = loop, log, on_ended, on_imported
        self._waiting: deque[Fork] = deque()
        self._asked: dict[int, _Asked] = {}
        self._tokens = 0
        self._watched: dict[int, int] = {}
        self._departed: set[int] = set()
        self._heard_at, self._is_watching = 0.0, False
        self.pid, self._lifeline, self._control = running.pid, running.lifeline, running.control
        self._control.setblocking(False)
        loop.on_readable(self._control, self._read)

    def fork(self, fork: Fork) -> None:
        """Ask for a task."""
        if self.gone:
            fork.on_refused(self.why)
        else:
            self._waiting.append(fork)
            self._ask_next()

    def withdraw(self, fork: Fork) -> bool:
        """Take back a fork that has not been asked for yet. False: it has been, and will be answered."""
        if fork not in self._waiting:
            return False
        self._waiting.remove(fork)
        return True

    def close(self) -> None:
        """End the template."""
        if not self.gone:
            self._leave("the template was let go")

    def _ask_next(self) -> None:
        while self.ready and self._waiting and len(self._asked) < _MOST_ASKED:
            fork = self._waiting[0]
            try:
                if not self._ask(fork):
                    return
            except OSError as error:
                why = f"the template cannot be asked: {error.strerror or error}"
            else:
                why = ""
            self._waiting.popleft()
            if why:
                fork.on_refused(why)

    def _ask(self, fork: Fork) -> bool:
        """False: its queue is full, and there is another time when it has answered; or it is dead, and we are about to read that.

        Raises OSError, such as for too many open files.
        """
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            request = keep_in_memory(json.dumps(fork.request).encode("ascii"))
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
        self._asked[self._tokens] = _Asked(fork, life_write, go_write)
        return True

    def _read(self) -> None:
        while not self.gone:
            try:
                data = self._control.recv(MESSAGE_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._leave_the_dead()
                return
            self._hear(json.loads(data))

    def has_ended(self) -> None:
        """Its process is reaped. What an import has started may hold its end of the socket all the same."""
        self._read()  # what it has said last
        if not self.gone:
            self._leave_the_dead()

    def _leave_the_dead(self) -> None:
        self._leave(self.why or f"the template has died (see {self._log})")

    def _hear(self, message: Mapping[str, Any]) -> None:
        self._heard_at = time.monotonic()
        if "ended" in message:
            self._unwatch(message["ended"])
            self._departed.discard(message["ended"])
            self._on_ended(message["ended"], message["code"])
        elif "forked" in message:
            asked = self._asked.pop(message["forked"])
            asked.let_run()  # from here on it is no longer ours to start anew
            self._watch(message["pid"])
            asked.fork.on_forked(message["pid"], asked.lifeline)
        elif "refused" in message:
            asked = self._asked.pop(message["refused"])
            asked.give_up()
            asked.fork.on_refused(message["why"])
        elif message.get("ready"):
            self.ready = True
            self._on_imported(self.preload, message["seconds"])
        else:
            self._leave(f"importing {', '.join(self.preload)} failed: {message['why']} (see {self._log})")
        self._ask_next()

    def _leave(self, why: str) -> None:
        self.gone, self.why = True, why
        self._loop.forget(self._control)
        self._control.close()
        processes.signal_group(self.pid, signal.SIGKILL)  # itself, if it has only closed its end, and what its imports have started
        os.close(self._lifeline)
        for pid in list(self._watched):
            self._unwatch(pid)
        refused = [*(asked.fork for asked in self._asked.values()), *self._waiting]
        for asked in self._asked.values():
            asked.give_up()  # it may have been forked without our being told (see template_server.py)
        self._waiting.clear()
        self._asked.clear()
        for fork in refused:
            fork.on_refused(why)

    # --- is it still there? --------------------------------------------------------------------

    def _watch(self, pid: int) -> None:
        """See a task's end ourselves; how it has ended, the template has to tell."""
        try:
            self._watched[pid] = fd = os.pidfd_open(pid)
        except (AttributeError, OSError):
            return  # no such thing here, or too many open files
        self._loop.on_readable(fd, lambda: self._notice_end(pid))

    def _notice_end(self, pid: int) -> None:
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
        if not self._is_watching:
            self._is_watching = True
            self._loop.after(PATIENCE_S, self._look)

    def _look(self) -> None:
        self._is_watching = False
        if self.gone or not (self._asked or self._departed):
            return
        silent_s = time.monotonic() - self._heard_at
        if silent_s >= PATIENCE_S:
            self.why = f"the template did not answer for {PATIENCE_S:.0f} s and was killed"
            processes.signal_one(self.pid, signal.SIGKILL)
        self._is_watching = True
        self._loop.after(max(PATIENCE_S - silent_s, 0.1), self._look)
