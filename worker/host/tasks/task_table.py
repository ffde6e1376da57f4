"""The tasks of one host: started, ended, swept.

*Ended*: the task's first process is reaped; the controller is told at once, without waiting for anything.
*Swept*: whatever it left behind (children in its group, or in sessions of their own) is gone as well.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from ... import clock
from ...directory import Directory
from ...fast_dataclass import dataclass
from ...protocol import messages
from ...task_environment import describe_too_few_threads
from ..link import Link
from ..loop import Loop
from ..program import preparation_stamps
from ..program.program_checks import directory_of_first
from ..template.template_choice import Templates
from ..template.template_client import Running, Start
from . import exit_info, import_environment, processes
from .launcher import Birth, Starter, prepare
from .leftovers import Sweeper
from .log_files import TaskOutput
from .log_forwarder import Relay
from .oom_kills import OomCounter
from .task_stacks import LOOK_S, PATIENCE_S, Stacks

TEARDOWN_S = clock.patience(20.0)
"""How long an interpreter may take to end when its program is over, threads and exit handlers included. TensorFlow's teardown can hang
(`ClusterCoordinator.__del__`; see docs/restarts.md), and then nobody would ever hear that the training was done."""


@dataclass(slots=True)
class HostTask:
    """One attempt of one task, from its start until nothing of it is left."""

    order: messages.TaskOrder
    pid: int
    lifeline: int
    output: TaskOutput
    stacks: Stacks
    stopped: bool = False
    stopped_at: float = 0.0
    """Seconds since the epoch; 0: it has not been told to stop."""
    condition: str = ""
    """What held it when it was told to stop; see `messages.Evidence`."""
    over_at: float | None = None
    """When it was seen, by the monotonic clock, that its program is over, though its interpreter is not."""
    torn: bool = False
    """We have ended its interpreter because that did not end by itself."""
    ended: bool = False
    succeeded: bool = False
    """It has ended by itself, with code 0."""
    kill_at: float | None = None


class TaskTable:
    """All tasks that are not swept yet, by the pid of their first process, which is also their group."""

    def __init__(
        self,
        loop: Loop,
        link: Link,
        relay: Relay,
        on_started: Callable[[messages.TaskOrder], None],
        before_failure: Callable[[], None],
        template: Running | None = None,
    ) -> None:
        """`before_failure`: called before the failure of a task is told: what made it fail may be known better."""
        self._loop, self._link, self._relay = loop, link, relay
        self._on_started, self._before_failure = on_started, before_failure
        self._limits = processes.allow_many_files()
        self._env = dict(os.environ)
        self._tasks: dict[int, HostTask] = {}
        self._running: dict[str, int] = {}
        """The pids of those that have not ended, by name."""
        # Ends that were seen before the start was: of a task whose template died right after it had forked it.
        self._unclaimed: dict[int, int] = {}
        self._oom = OomCounter()
        self._templates = Templates(loop, self._limits, self._end, self._imported, template)
        self._starter = Starter(loop, self._templates, self._limits, self._started, self._failed, self._waiting, self._note)
        self._sweeper = Sweeper(loop, self._tasks, lambda: self._templates.pids, self._forget)
        self.run_id = ""
        self.root: Directory | None = None
        """What holds the output of all tasks; None until it is known."""
        self.is_closed: Callable[[messages.TaskOrder], bool] = lambda order: False
        """Whether a task has a port, and it was closed whenever somebody looked."""

    def __bool__(self) -> bool:
        return bool(self._tasks) or bool(self._starter)

    def is_running(self, name: str, attempt: int) -> bool:
        """This attempt of the task has not ended."""
        pid = self._running.get(name)
        return pid is not None and self._tasks[pid].order.attempt == attempt

    def other_tf_config(self, order: messages.TaskOrder) -> str:
        """Where the program of a task has set another TF_CONFIG than it was given; empty if it has not."""
        assert self.root is not None
        return exit_info.read_other_tf_config(os.path.join(self.root.path, order.log_dir))

    def warm_up(self, template: messages.TemplateOrder, programs: Sequence[messages.Program], cwd: str) -> None:
        """Begin with the imports that the tasks of `template`, which run `programs`, will need."""
        assert self.root is not None
        self._templates.directory = os.path.join(self.root.path, "agents")
        env = import_environment.compose_for_template(template, self._env, self.run_id)
        self._templates.add(Start(env, template.preload, cwd, directory_of_first(programs, cwd)))

    def start(self, start: messages.StartTasks) -> None:
        """Start tasks, and tell the controller of each that it runs or why it does not."""
        assert self.root is not None
        births = []
        for order in start.orders:
            if order.once_for is not None and (before := preparation_stamps.find(order)):
                self._skip(order, before)
                continue
            output = TaskOutput(order.task, order.attempt, self.root, order.log_dir)
            output.awaits_begin = order.program.kind != "command"
            try:
                if self.root.is_gone:
                    raise FileNotFoundError(f"{self.root.path} was removed while the run went on")
                os.makedirs(output.directory, mode=0o700, exist_ok=True)
                births.append(prepare(self._env, start, order, output))
            except (OSError, KeyError) as error:
                self._link.send(messages.TaskNotStarted(order.task, order.attempt, str(error), clock.now()))
            else:
                self._relay.add(output)
        if warning := describe_too_few_threads(start, {birth.order.task: birth.env for birth in births}):
            self._note(warning)
        self._starter.start(births)

    def _skip(self, order: messages.TaskOrder, before: str) -> None:
        """A task that has succeeded before has ended."""
        self._note(f"{order.task} is not run: it succeeded at {before}, and the files of prepare.once_for have not changed")
        self._link.send(messages.TaskExited(order.task, order.attempt, 0, stopped=False, at=clock.now()))
        self._link.send(messages.TaskSwept(order.task, order.attempt, clock.now()))

    def look(self) -> None:
        """Now and then: see `OomCounter.look`; and end the interpreters that do not end by themselves."""
        self._oom.look()
        for task in self._tasks.values():
            if not (task.ended or task.stopped or task.torn):
                self._look_at_teardown(task)

    def _look_at_teardown(self, task: HostTask) -> None:
        ending = exit_info.read_ending(task.output.directory)
        if ending is None:
            return
        now = time.monotonic()
        if task.over_at is None:
            task.over_at = now
        elif now - task.over_at >= TEARDOWN_S:
            task.torn = True
            name = task.order.task
            self._note(f"{name}: its program ended ({ending.code}), but its interpreter hangs in its teardown for {TEARDOWN_S:g} s; killed")
            self.show_stacks((name,))
            self._kill_torn(task)

    def _kill_torn(self, task: HostTask) -> None:
        if task.pid not in self._tasks or task.ended:
            return
        if task.stacks.are_coming():
            self._loop.after(LOOK_S, lambda: self._kill_torn(task))
        else:
            self._kill(task)

    def close(self) -> None:
        """Let the templates go."""
        self._templates.close()

    def stop(self, grace_s: float, names: Collection[str] | None = None) -> None:
        """SIGTERM now and SIGKILL after `grace_s`, for all tasks or those named. Asked again: the earlier end counts."""
        self._starter.stop(grace_s, names)
        for task in list(self._tasks.values()):
            if names is None or task.order.task in names:
                self._stop(task, grace_s)

    def show_stacks(self, names: Collection[str]) -> None:
        """Have these tasks write where they are."""
        for task in self._tasks.values():
            if task.order.task in names and not task.ended:
                task.stacks.ask()

    def send_signal(self, names: Collection[str], number: int) -> None:
        """Send a signal to the process groups of these tasks. What they do then is their own doing: none of them counts as stopped."""
        for name in names:
            pid = self._running.get(name)
            if pid is not None:
                processes.signal_group(pid, number)

    def leave(self, pids: Collection[int]) -> None:
        """These children of ours, or of a child, are no task's, and nobody may wait for their end."""
        self._sweeper.leave(pids)

    def reap(self) -> None:
        """Take in every process that has ended: tasks, and what they left behind."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            self._end(pid, os.waitstatus_to_exitcode(status))
            self._templates.bury(pid)
        if not self._starter:
            self._unclaimed.clear()
        self._sweeper.look()

    def _started(self, birth: Birth, pid: int, lifeline: int) -> None:
        order = birth.order
        task = self._tasks[pid] = HostTask(order, pid, lifeline, birth.output, Stacks(birth.output, pid))
        self._running[order.task] = pid
        self._link.send(messages.TaskStarted(order.task, order.attempt, pid, clock.now()))
        if pid in self._unclaimed:
            self._end(pid, self._unclaimed.pop(pid))
        elif birth.stop_after_s is not None:
            self._stop(task, birth.stop_after_s)
        else:
            self._on_started(order)

    def _failed(self, birth: Birth, reason: str) -> None:
        self._relay.remove(birth.output)
        self._link.send(messages.TaskNotStarted(birth.order.task, birth.order.attempt, reason, clock.now()))

    def _waiting(self, birth: Birth, reason: str) -> None:
        self._link.send(messages.TaskWaiting(birth.order.task, birth.order.attempt, reason, clock.now()))

    def _imported(self, modules: tuple[str, ...], seconds: float) -> None:
        self._link.send(messages.TemplateReady(modules, seconds, clock.now()))

    def _note(self, text: str) -> None:
        self._link.send(messages.RunNoted(text, clock.now()))

    def _stop(self, task: HostTask, grace_s: float) -> None:
        if not task.stopped:
            task.stopped, task.stopped_at, task.condition = True, clock.now(), task.stacks.what_holds()
            if task.condition and grace_s > 0:
                task.stacks.wake()
        self._end_within(task, grace_s, time.monotonic() + PATIENCE_S)

    def _end_within(self, task: HostTask, grace_s: float, patient_until: float) -> None:
        """SIGTERM, once it has shown its stacks if it was asked for them; SIGKILL `grace_s` later."""
        if task.pid not in self._tasks:
            return
        if grace_s > 0 and not task.ended and time.monotonic() < patient_until and task.stacks.are_coming():
            self._loop.after(LOOK_S, lambda: self._end_within(task, grace_s, patient_until))
            return
        if task.kill_at is None and grace_s > 0 and not task.ended:
            processes.signal_group(task.pid, signal.SIGTERM)
        kill_at = time.monotonic() + grace_s
        if task.kill_at is None or kill_at < task.kill_at:
            task.kill_at = kill_at
            self._loop.after(grace_s, lambda: self._kill_overdue(task))

    def _kill_overdue(self, task: HostTask) -> None:
        if task.pid in self._tasks:
            self._kill(task)
            self._sweeper.hurry(task.pid)

    def _kill(self, task: HostTask) -> None:
        processes.signal_group(task.pid, signal.SIGKILL)
        if not task.ended:
            self._sweeper.await_end(task.pid)

    def _end(self, pid: int, code: int) -> None:
        """A process of ours has ended: seen by ourselves, or by the template that forked it, or by both. `code`: -n for signal n."""
        task = self._tasks.get(pid)
        if task is None:
            self._unclaimed[pid] = code
        if task is None or task.ended:
            return
        task.ended, task.succeeded = True, code == 0 and not task.stopped
        if self._running.get(task.order.task) == pid:
            del self._running[task.order.task]
        self._relay.announce(task.output)
        ending = exit_info.read_ending(task.output.directory)
        if ending is not None and (task.torn or ending.at < task.stopped_at):
            # It was over before: our signal has only cut the teardown short.
            code, task.stopped, task.stopped_at = ending.code, False, 0.0
        if code and not task.stopped:
            self._before_failure()
        failure = exit_info.read_failure(task.output.directory)
        found = exit_info.gather(task.order, task.output, code, failure, task.stopped_at, self._oom)
        exited = messages.TaskExited(
            task.order.task,
            task.order.attempt,
            code if code >= 0 else 128 - code,
            task.stopped,
            clock.now(),
            failure,
            code < 0,
            replace(
                found,
                condition=task.condition,
                alone=self.is_closed(task.order) and (task.stopped or (ending is not None and ending.alone)),
                tf_config=exit_info.read_other_tf_config(task.output.directory),
            ),
        )
        self._link.send(exited)
        marks = (os.fsencode(f"ORCH_RUN_ID={self.run_id}"), os.fsencode(f"ORCH_TASK={task.order.task}"))
        self._sweeper.begin(pid, marks, task.kill_at)

    def _forget(self, pid: int, left: str) -> None:
        """Nothing is left of a task, or nothing that anybody could end."""
        task = self._tasks.pop(pid)
        if self._running.get(task.order.task) == pid:  # given up before it has ended
            del self._running[task.order.task]
        if task.order.once_for is not None and task.succeeded and (trouble := preparation_stamps.keep(task.order)):
            self._note(trouble)
        os.close(task.lifeline)
        self._relay.remove(task.output)
        self._link.send(messages.TaskSwept(task.order.task, task.order.attempt, clock.now(), left))
        if task.output.look_whether_shorter():
            text = f"{task.order.task} cut its own log short: it opened /dev/stdout or /dev/stderr anew (use >&1, >>, or tee -a)"
            self._note(text)
