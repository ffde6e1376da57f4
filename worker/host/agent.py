"""The agent: orch's one process on a host.

It holds the ports, starts the tasks, watches their output and their ports, and says when one has ended.
It dies when its channel closes, and takes its tasks with it. One thread, one loop; events wake it.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import tempfile
from dataclasses import dataclass
from typing import Any

from .. import clock, contract
from . import look, ports, processes
from .link import Link
from .loop import Loop
from .probe import Prober
from .relay import Relay
from .tasks import TaskTable
from .template.client import Running
from .warm import place

DISK_LOOK_S = 1.0
DISK_FULL_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Arrival:
    """What an agent begins with that does not begin with nothing: orders that were read already, a line for the user, a template."""

    seed: bytes = b""
    note: str = ""
    template: Running | None = None


class Agent:
    """Serves one controller. `orders_fd` and `frames_fd` are the two ends of the channel."""

    def __init__(self, orders_fd: int, frames_fd: int, arrival: Arrival = Arrival()) -> None:
        self._loop = Loop()
        self._link = Link(self._loop, orders_fd, frames_fd, self._obey, self._lose_owner, arrival.seed)
        self._note = arrival.note
        self._relay = Relay(self._loop, self._link)
        self._prober = Prober(self._loop, self._link)
        self._tasks = TaskTable(self._loop, self._link, self._relay, self._prober.watch, self._check_disk, arrival.template)
        self._prober.is_running = self._tasks.is_running
        self._held: list[socket.socket] = []
        self._hello: contract.Hello | None = None
        self._root = ""
        self._leaving = self._said_gone = False
        self._owner_lost = False
        self._disk_full = False

    def run(self) -> int:
        """Until the controller says `Bye` or its channel closes. Returns the exit code."""
        self._loop.on_signals((signal.SIGCHLD, signal.SIGTERM), self._on_signals)
        for number in (signal.SIGINT, signal.SIGHUP):  # the terminal's, for the controller to deal with
            signal.signal(number, signal.SIG_IGN)
        try:
            self._loop.run(self._is_over)
        finally:
            self._give_back()
        return 1 if self._owner_lost else 0

    def _is_over(self) -> bool:
        """Nothing is left to be done; says so to the controller once, after all output."""
        if self._tasks or not self._leaving:
            return False
        if self._owner_lost:
            return True
        if self._relay.is_idle and not self._said_gone:
            self._said_gone = True
            self._link.send(contract.Gone())
        return self._said_gone and self._link.is_empty

    def _on_signals(self, numbers: bytes) -> None:
        if signal.SIGTERM in numbers:
            self._link.send(contract.Trouble("note", "the agent was told to end (SIGTERM)", clock.now()))
            self._lose_owner()
        self._check_disk()  # first: a task that a full disk has ended must not be taken for the cause
        self._tasks.reap()

    def _obey(self, order: Any) -> None:
        if isinstance(order, contract.Hello):
            self._greet(order)
        elif isinstance(order, contract.StartTasks):
            self._tasks.start(order)
        elif isinstance(order, contract.StopTasks):
            self._tasks.stop(order.grace_s, order.tasks)
        elif isinstance(order, contract.ShowStacks):
            self._tasks.show_stacks(order.tasks)
        elif isinstance(order, contract.Ack):
            self._relay.acknowledge(order.size)
        elif isinstance(order, contract.Bye):
            self._leave(grace_s=0.0)

    def _greet(self, hello: contract.Hello) -> None:
        trouble = None
        try:
            self._held = ports.hold(hello.ports, hello.port_range)
            self._root = hello.shared_dir or tempfile.mkdtemp(prefix="orch-agent-")
        except (ports.PortsExhaustedError, OSError) as error:
            trouble = str(error)
        self._hello = hello
        self._relay.shared = hello.shared_dir is not None
        self._tasks.run_id, self._tasks.root = hello.run_id, self._root
        problems = look.find_problems(hello.programs, hello.cwd)
        cores = look.count_cores()
        if hello.template is not None and not (trouble or problems) and look.mentions(hello.template, hello.programs, hello.cwd):
            self._tasks.warm_up(hello.template, hello.programs, hello.cwd)
        facts = contract.Facts(
            hostname=socket.gethostname(),
            pid=os.getpid(),
            python=sys.executable,
            python_version=look.python_version(),
            cores=cores,
            memory_bytes=look.measure_memory(),
            ports=tuple(sock.getsockname()[1] for sock in self._held),
            problems=tuple(problems),
            gpus=look.find_gpus(os.environ),
            trouble=trouble,
            at=clock.now(),
        )
        self._link.send(facts)
        if self._note:
            self._link.send(contract.Trouble("note", self._note, clock.now()))
        self._look_at_disk()

    def _look_at_disk(self) -> None:
        self._check_disk()
        self._tasks.look_at_memory()
        self._loop.after(DISK_LOOK_S, self._look_at_disk)

    def _check_disk(self) -> None:
        free = look.free_bytes(self._root) if self._root else None
        if free is not None and free < DISK_FULL_BYTES and not self._disk_full:
            self._disk_full = True
            text = f"no space left for the tasks' output in {self._root}; make room, or name another directory with --run-dir"
            self._link.send(contract.Trouble("disk_full", text, clock.now()))

    def _lose_owner(self) -> None:
        self._owner_lost = True
        if not self._leaving:
            self._leave(self._hello.owner_grace_s if self._hello else 0.0)

    def _leave(self, grace_s: float) -> None:
        self._leaving = True
        self._tasks.stop(grace_s)

    def _give_back(self) -> None:
        self._tasks.close()
        self._relay.close()
        for sock in self._held:
            sock.close()
        if self._root and self._hello is not None and self._hello.shared_dir is None:
            shutil.rmtree(self._root, ignore_errors=True)


def main() -> int:
    """Serve the controller at the other end of stdin and stdout."""
    frames_fd = os.dup(1)
    os.dup2(2, 1)  # a stray print must not end up among the frames
    arrival = Arrival()
    if place.is_there():
        from .warm import client  # most runs need nothing of it

        came = client.move(0, frames_fd)
        if isinstance(came, int):
            return came
        arrival = Arrival(came.seed, came.note)
    processes.become_subreaper()
    return Agent(0, frames_fd, arrival).run()
