"""The agent's end of its templates: who has imported what, and forks from it.

A template serves all tasks whose import-time environment is its own, in every attempt of a run. Whatever it cannot
do safely, or at all, comes back as a refusal with a reason; the task then gets a fresh interpreter.
"""

from __future__ import annotations

import array
import json
import os
import socket
import sys
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from . import environment, processes
from .loop import Loop
from .memory import keep_in_memory
from .template import MESSAGE_BYTES

_START = os.path.join(os.path.dirname(os.path.abspath(__file__)), "template_start.py")


@dataclass(slots=True)
class Fork:
    """A task that a template is asked for. `request`: what `template.py` reads. Exactly one of the two is called, once."""

    request: Mapping[str, Any]
    on_forked: Callable[[int, int], None]
    """With the task's pid and our end of its lifeline."""
    on_refused: Callable[[str], None]
    """With the reason."""


class Template:
    """One template process. It answers forks in the order in which they are asked for, as soon as its imports are done."""

    def __init__(self, loop: Loop, environment_: Mapping[str, str], preload: tuple[str, ...], cwd: str, log: str, owner: Templates) -> None:
        self.preload, self.key = preload, environment.frozen(environment_)
        self.ready = self.gone = False
        self._loop, self._owner, self._log = loop, owner, log
        self._why = ""
        self._waiting: deque[Fork] = deque()
        self._asked: dict[int, tuple[Fork, int]] = {}
        self._tokens = 0
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            argv = (sys.executable, _START, "{fd}", *preload)
            command = processes.Command(argv, cwd, environment_, log, log, order_fd=theirs.fileno())
            self.pid, self._lifeline = processes.spawn(command, owner.limits)
        self._control.setblocking(False)
        loop.on_readable(self._control, self._read)

    def fork(self, fork: Fork) -> None:
        """Ask for a task."""
        if self.gone:
            fork.on_refused(self._why)
        elif self.ready:
            self._ask(fork)
        else:
            self._waiting.append(fork)

    def withdraw(self, fork: Fork) -> bool:
        """Take back a fork that has not been asked for yet. False: it has been, and will be answered."""
        if fork not in self._waiting:
            return False
        self._waiting.remove(fork)
        return True

    def close(self) -> None:
        """Let the template end."""
        if not self.gone:
            self._leave("it was let go")
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1

    def _ask(self, fork: Fork) -> None:
        life_read, life_write = os.pipe()
        request = keep_in_memory(json.dumps(fork.request).encode("ascii"))
        self._tokens += 1
        packed = array.array("i", [request, life_read])
        try:
            self._control.sendmsg([json.dumps({"fork": self._tokens}).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, packed)])
        except BlockingIOError:
            self._waiting.append(fork)  # its queue is full; asked again when it has answered one
            os.close(life_write)
        except OSError:
            os.close(life_write)
            fork.on_refused(self._why or "the template is gone")
        else:
            self._asked[self._tokens] = (fork, life_write)
        finally:
            os.close(request)
            os.close(life_read)

    def _read(self) -> None:
        while not self.gone:
            try:
                data = self._control.recv(MESSAGE_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._leave(self._why or f"the template has died (see {self._log})")
                return
            self._hear(json.loads(data))

    def _hear(self, message: Mapping[str, Any]) -> None:
        if "ended" in message:
            self._owner.on_ended(message["ended"], message["code"])
        elif "forked" in message:
            fork, lifeline = self._asked.pop(message["forked"])
            fork.on_forked(message["pid"], lifeline)
        elif "refused" in message:
            fork, lifeline = self._asked.pop(message["refused"])
            os.close(lifeline)
            fork.on_refused(message["why"])
        elif message.get("ready"):
            self.ready = True
            self._owner.on_imported(self.preload, message["seconds"])
        else:
            self._why = f"importing {', '.join(self.preload)} failed: {message['why']}"
        while self.ready and self._waiting and len(self._asked) < 64:
            self._ask(self._waiting.popleft())

    def _leave(self, why: str) -> None:
        self.gone, self._why = True, why
        self._loop.forget(self._control)
        self._control.close()
        refused = [*self._waiting, *(fork for fork, _ in self._asked.values())]
        for _, lifeline in self._asked.values():
            # Had it been forked unbeknown to us, it ends here: a task is started once.
            os.close(lifeline)
        self._waiting.clear()
        self._asked.clear()
        for fork in refused:
            fork.on_refused(why)


class Templates:
    """All templates of this host, each with an import-time environment of its own."""

    def __init__(
        self,
        loop: Loop,
        limits: tuple[int, int],
        on_ended: Callable[[int, int], None],
        on_imported: Callable[[tuple[str, ...], float], None],
    ) -> None:
        self.limits, self.on_ended, self.on_imported = limits, on_ended, on_imported
        self.directory = ""
        self._loop = loop
        self._templates: list[Template] = []

    @property
    def pids(self) -> set[int]:
        """Our children that are no tasks."""
        return {template.pid for template in self._templates}

    def add(self, env: Mapping[str, str], preload: tuple[str, ...], cwd: str) -> Template | None:
        """Start a template; None if that cannot be done, and then tasks simply get fresh interpreters."""
        log = os.path.join(self.directory, f"template-{len(self._templates) + 1}.log")
        try:
            os.makedirs(self.directory, mode=0o700, exist_ok=True)
            template = Template(self._loop, env, preload, cwd, log, self)
        except (OSError, processes.SpawnError):
            return None
        self._templates.append(template)
        return template

    def find(self, env: Mapping[str, str]) -> Template | None:
        """A living template in which this environment would have imported the same."""
        key = environment.frozen(env)
        return next((template for template in self._templates if template.key == key and not template.gone), None)

    def close(self) -> None:
        for template in self._templates:
            template.close()
