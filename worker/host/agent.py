"""The agent: orch's one process on a host.

The agent holds the ports, starts the tasks, watches their output and their ports, and reports the end of each task.
The agent dies when its channel closes, and its tasks with it; where a channel may be cut while the controller lives, the agent waits for
the controller to come back, for a limited time. It has one thread and one loop.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import signal
import socket
import sys
import time
from typing import TYPE_CHECKING

from ..machine import clock
from ..machine.cpu_cores import count_cores
from ..machine.directory import Directory
from ..protocol import messages
from .facts import gpu_driver, host_facts, program_checks
from .facts.gpu_locks import GpuLocks
from .facts.program_checks import Checks
from .forkserver.template_link import TemplateProcess
from .launcher import Launcher
from .log_forwarder import LogForwarder
from .network import held_ports
from .network.link import Link
from .network.listen_probe import Prober
from .processes.helpers import Helpers
from .processes.lifeline import become_subreaper
from .processes.loop import Loop

# Some modules are imported where they are used: most agents do not need them, and would start later.
if TYPE_CHECKING:
    from .code_store import CodeStore
    from .network.door import Door
    from .network.reachability import ProbeListener
    from .sampler import Sampler

POLL_S = 1.0
SAMPLED_AFTER_S = 1.0
"""How long after the first start of tasks the agent begins to measure what they use."""


class Examination:
    """Holds what the agent finds out about its host, in this order; the answer of the GPUs' driver completes it."""

    checks: Checks
    facts: messages.HostReady

    def __init__(self, hello: messages.Hello) -> None:
        self.hello = hello


class Agent:
    """Serves one controller. `orders_fd` and `frames_fd` are the channel; `template`: the first template, if it exists already."""

    def __init__(self, orders_fd: int, frames_fd: int, template: TemplateProcess | None = None) -> None:
        self._loop = Loop()
        self._link = Link(self._loop, orders_fd, frames_fd, self._on_order, self._lose_owner)
        self._forwarder = LogForwarder(self._loop, self._link)
        self._prober = Prober(self._loop, self._link)
        self._helpers = Helpers(self._loop)
        self._launcher = Launcher(self._loop, self._link, self._forwarder, self._prober, self._helpers, template)
        self._held: list[socket.socket] = []
        self._listeners: list[ProbeListener] = []
        self._owner_grace_s = 0.0
        self._term_grace_s = 1.0
        self._scratch = ""
        """The directory of the output on a host that does not see the run directory; empty: there is none."""
        self._leaving = False
        self._owner_lost = False
        self._keeps_state = False
        """The training may continue with another agent: what the tasks have left in memory is written before the end."""
        self._door: Door | None = None
        """Where the controller may come back; None: it does not come back after a cut of the channel."""
        self._gpu_locks = GpuLocks()
        self._code: CodeStore | None = None
        self._sampler: Sampler | None = None
        self._samples_soon = self._has_gpus = False

    def run(self) -> int:
        """Serve until the controller sends `Bye` or has ended. Returns the exit code."""
        self._loop.on_signals((signal.SIGCHLD, signal.SIGTERM), self._on_signals)
        for number in (signal.SIGINT, signal.SIGHUP):  # of the terminal; only the controller acts on them
            signal.signal(number, signal.SIG_IGN)
        try:
            self._loop.run(self._is_over)
        finally:
            self._close()
        return 1 if self._owner_lost else 0

    def _is_over(self) -> bool:
        if self._launcher.has_tasks or not self._leaving:
            return False
        if self._keeps_state:
            self._keeps_state = False
            self._launcher.snapshots.write_all()
        if self._launcher.snapshots.is_writing:
            return False
        return self._owner_lost or (self._forwarder.is_idle and self._link.is_empty)

    def _on_signals(self, numbers: bytes) -> None:
        if signal.SIGTERM in numbers:
            self._link.send(messages.RunNoted("the agent received SIGTERM", clock.now(), ends=True))
            if self._launcher.saves:  # the controller lets the trainings save, and then ends this agent
                self._loop.after(self._term_grace_s, lambda: self._lose_owner(0.0))
            else:
                self._lose_owner(self._term_grace_s)
        self._launcher.reap()

    def _on_order(self, order: messages.Order, data: bytes) -> None:
        match order:
            case messages.Hello():
                self._on_hello(order)
            case messages.Try():  # the controller awaits the answer before it sends another one
                from .network.reachability import try_to_reach

                try_to_reach(self._loop, order.targets, lambda refused: self._link.send(messages.Tried(refused)))
            case messages.Code():
                self._on_code(order)
            case messages.CodePart() if self._code is not None:
                self._code.add_part(order.digest, data, last=order.last)
            case messages.TakeGpus():
                self._link.send(messages.GpusTaken(self._gpu_locks.acquire(self._launcher.run_id, order)))
                self._note(self._gpu_locks.problem)
            case messages.Examine():
                from . import examination_programs

                self._helpers.add(examination_programs.begin(self._loop, order, self._link.send))
            case messages.StartTasks():
                while self._listeners:  # from here on, the kernel must give connections to the tasks alone
                    self._listeners.pop().close()
                self._launcher.start(order)
                self._begin_sampling()
            case messages.StopTasks():
                self._prober.poll()
                self._launcher.stop(order.grace_s, order.tasks)
            case messages.ShowStacks():
                self._launcher.request_stacks(order.tasks)
            case messages.Profile():
                self._launcher.request_profile(order)
            case messages.SignalTasks():
                self._launcher.send_signal(order.tasks, order.signal)
            case messages.SaveTasks():
                self._launcher.order_save(order.tasks, order.step)
            case messages.Ack():
                self._link.forget(order.received)
                self._forwarder.acknowledge(order.size)
            case messages.Ping():
                self._link.forget(order.received)
                self._link.send(messages.Pong(self._link.received))
            case messages.Bye():
                self._keeps_state = order.keeps_state
                self._leave(grace_s=0.0)

    def _on_code(self, code: messages.Code) -> None:
        from .code_store import CodeError, CodeStore

        self._code = CodeStore(code)
        try:
            self._code.begin()
        except CodeError as error:
            self._link.send(messages.CodeWanted((), str(error)))
        else:
            self._helpers.call(self._code.find_missing, lambda found, why: self._link.send(messages.CodeWanted(tuple(found or ()), why)))

    def _on_hello(self, hello: messages.Hello) -> None:
        self._owner_grace_s, self._term_grace_s = hello.owner_grace_s, hello.term_grace_s
        self._link.escapes = hello.escapes
        if not hello.secret:
            self._link.keep_nothing()
        if self._code is None:
            self._examine_host(hello)
            return

        def go_on(directory: str | None, trouble: str) -> None:
            self._examine_host(dataclasses.replace(hello, cwd=directory or hello.cwd), trouble)

        self._helpers.call(self._code.finish, go_on)

    def _examine_host(self, hello: messages.Hello, trouble: str = "") -> None:
        """Find the facts of this host, while the driver of its GPUs takes its time. `trouble`: why this host cannot be used, if known."""
        examined = Examination(hello)
        trouble = self._acquire(hello) or trouble
        self._helpers.add(gpu_driver.request(self._loop, os.environ, lambda found: self._send_facts(examined, found)))
        examined.checks = program_checks.check(hello)
        examined.facts = self._find_facts(hello, examined.checks, trouble)
        if (silence_s := hello.lost_after_s) is not None:
            self._loop.after(silence_s, lambda: self._await_owner(silence_s))  # what was sent meanwhile is yet to be read

    def _find_facts(self, hello: messages.Hello, checks: Checks, trouble: str) -> messages.HostReady:
        facts = messages.HostReady(
            pid=os.getpid(),
            python=sys.executable,
            python_version=host_facts.python_version(),
            cores=count_cores(),
            ports=tuple(sock.getsockname()[1] for sock in self._held),
            problems=tuple(checks.problems),
            notes=tuple(checks.notes),
            trouble=trouble or None,
            # The name of the run directory ends in a random number: no other directory has this name.
            sees_run_dir=bool(hello.run_dir) and os.access(hello.run_dir, os.R_OK | os.W_OK | os.X_OK),
            workdir=hello.cwd if self._code is not None else None,
            tensorflow=checks.tensorflow,
            keras=checks.keras,
            code=checks.code,
            door=self._open_door(hello.secret),
        )
        if hello.word:  # others must reach this host
            from .network.interfaces import find_addresses, find_arrival
            from .network.reachability import ProbeListener

            self._listeners = [ProbeListener(self._loop, port, hello.word) for port in facts.ports]
            facts = dataclasses.replace(facts, addresses=find_addresses(), arrived_at=find_arrival())
        return facts

    def _open_door(self, secret: str) -> str:
        """Return where the controller may come back after a cut of the channel; empty: it cannot."""
        if secret and self._scratch:
            from .network.door import Door

            with contextlib.suppress(OSError):  # the path is too long for a socket, or the file system has none
                self._door = Door(self._loop, self._link, self._scratch, secret)
                self._link.keep_for_return(secret, self._on_cut)
                return self._door.path
        self._link.keep_nothing()
        return ""

    def _on_cut(self) -> None:
        """The channel has ended without a goodbye: wait for the controller, as long as for one that is silent (`_await_owner`)."""
        assert self._door is not None
        self._door.leave()

    def _acquire(self, hello: messages.Hello) -> str:
        """Acquire the ports, and a directory for the output. Returns why this host cannot be used; empty: it can be used."""
        try:
            if hello.private_network:
                from .network import private_network

                private_network.enter()
            self._held = held_ports.hold(hello.ports, hello.port_range)
            if hello.shared_dir is None:
                from . import scratch_directory

                self._scratch = scratch_directory.make()
            root = Directory(hello.shared_dir or self._scratch)
            self._forwarder.begin(root, shared=not self._scratch)
            self._launcher.begin(hello.run_id, root)
        except (held_ports.PortsExhaustedError, OSError) as error:
            if getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE):
                return "too many open files for the ports and the output of its tasks: raise the limit (ulimit -n)"
            return str(error)
        return ""

    def _send_facts(self, examined: Examination, found: gpu_driver.Driver) -> None:
        """Send the facts, before any other frame of this host. The loop calls this function once `examined` is complete."""
        hello, checks, facts = examined.hello, examined.checks, examined.facts
        self._gpu_locks = GpuLocks([gpu.uuid for gpu in found.gpus])
        self._has_gpus = bool(found.gpus)
        self._link.send(dataclasses.replace(facts, gpus=found.gpus, taken=self._gpu_locks.holders(), at=clock.now()))
        if hello.private_network:
            self._note("the tasks have a network of their own: nothing outside reaches them, and they reach nothing outside")
        if found.problem:
            self._note(f"cannot list the GPUs, so the tasks get none: {found.problem}")
        if checks.template is not None and not (facts.trouble or checks.problems):
            self._launcher.start_template(checks.template, hello.programs, hello.cwd)
            self._note(checks.template.note)
        self._poll()

    def _note(self, text: str) -> None:
        if text:
            self._link.send(messages.RunNoted(text, clock.now()))

    def _await_owner(self, silence_s: float) -> None:
        """Count the controller as lost after so many seconds of silence: a cut connection sends no end."""
        silent_s = time.monotonic() - self._link.received_at
        if silent_s >= silence_s:
            sys.stderr.write(f"orch agent: no message from the controller for {silence_s:g} s\n")
            self._lose_owner()
        elif not self._owner_lost:
            self._loop.after(silence_s - silent_s, lambda: self._await_owner(silence_s))

    def _begin_sampling(self) -> None:
        """Measure what the tasks use, from some time after the start on, which takes no import more."""
        if self._sampler is not None:
            self._sampler.begin()
        elif not self._samples_soon:
            self._samples_soon = True
            self._loop.after(SAMPLED_AFTER_S, self._make_sampler)

    def _make_sampler(self) -> None:
        from .sampler import Sampler, Watched

        def find_tasks() -> list[Watched]:
            return [Watched(task.order.task, task.order.attempt, task.pid, task.output.directory) for task in self._launcher.running]

        def has_tasks() -> bool:
            return self._launcher.has_tasks

        self._sampler = Sampler(self._loop, self._link, self._helpers, find_tasks, has_tasks, has_gpus=self._has_gpus)
        self._sampler.begin()

    def _poll(self) -> None:
        self._forwarder.poll()
        self._launcher.poll()
        self._loop.after(POLL_S, self._poll)

    def _lose_owner(self, grace_s: float | None = None) -> None:
        self._owner_lost = self._keeps_state = True
        if self._door is not None:
            self._door.close()
        if not self._leaving:
            self._leave(self._owner_grace_s if grace_s is None else grace_s)

    def _leave(self, grace_s: float) -> None:
        self._leaving = True
        self._launcher.stop(grace_s)

    def _close(self) -> None:
        """End what would outlive this process. The kernel closes the rest."""
        self._helpers.end()
        self._launcher.close()
        if self._code is not None:
            self._code.close()
        if self._scratch:
            import shutil

            shutil.rmtree(self._scratch, ignore_errors=True)


def main() -> int:
    """Serve the controller at the other end of stdin and stdout."""
    frames_fd = os.dup(1)
    os.dup2(2, 1)  # a stray print must not come between the frames
    become_subreaper()
    return Agent(0, frames_fd).run()
