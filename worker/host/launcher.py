"""Owns the tasks of this host, each from the order to start it until nothing of it is left. Reads from top to bottom in that order.

                            start()
                               │
         a template fits       │       none fits, or there is none
             ┌─────────────────┴──────────────────┐
             ▼                                    ▼
          PENDING ─────── on_refused ────────► executed
             │ on_forked                          │
             └───────────► _on_started ◄──────────┘        sends TaskStarted (TaskNotStarted, if no process)
                               ▼
                            RUNNING                        stop(): SIGTERM, and SIGKILL after the grace
                               ▼
                           on_exited                       sends TaskExited, without waiting for anything
                               ▼
                            EXITED                         what the task has left behind is ended (leftovers.py)
                               ▼
                           _on_swept                       sends TaskSwept

templates.py decides which template fits. PENDING is a `PendingTask`, RUNNING and EXITED are a `StartedTask` (task.py). `reap` notices
the end of children; a `TemplateLink` calls `on_exited` for the tasks that its template has forked. A running task that SIGKILL does not
end is given up: TaskSwept comes without TaskExited.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import time
from collections.abc import Collection, Sequence

from ..machine import clock
from ..machine.directory import Directory
from ..protocol import messages, task_files
from ..protocol.task_environment import describe_too_few_threads
from ..values.words import few
from . import exit_info, leftovers
from .facts.program_files import directory_of_first
from .forkserver import import_environment
from .forkserver.template_link import ForkRequest, Preload, TemplateLink, TemplateProcess
from .leftovers import Sweeper
from .log_files import TaskOutput
from .log_forwarder import LogForwarder
from .network.link import Link
from .network.listen_probe import Prober
from .oom_kills import OomCounter
from .processes import process_groups, process_state
from .processes.helpers import Helpers
from .processes.loop import Loop
from .processes.process_setup import allow_many_files
from .processes.spawn import SpawnError, spawn
from .snapshot_keeper import SnapshotKeeper
from .task import PendingTask, StartedTask, prepare
from .task_stacks import PATIENCE_S, POLL_S, Stacks
from .templates import Templates

GATHER_S = 0.1
"""How long tasks that cannot be forked for the same reason are collected, to be named in one message."""
TEARDOWN_S = clock.patience(20.0)
"""How long an interpreter may take to end when its program is over, threads and exit handlers included. TensorFlow's teardown can hang
(`ClusterCoordinator.__del__`; see docs/resume.md), and the run would never end."""


class Launcher:
    """All tasks of this host that are not swept yet."""

    def __init__(
        self, loop: Loop, link: Link, forwarder: LogForwarder, prober: Prober, helpers: Helpers, template: TemplateProcess | None = None
    ) -> None:
        """`template`: a fork of the warm process, which becomes the first template that is wanted."""
        self._loop, self._link, self._forwarder, self._prober, self._helpers = loop, link, forwarder, prober, helpers
        self.run_id = ""
        self._root: Directory
        """The directory that holds the output of all tasks; see `begin`."""
        self._limits = allow_many_files()
        """The limits of open files (soft, hard) that the tasks get."""
        self._env = dict(os.environ)
        self._templates = Templates(loop, self, self._limits, template)
        self._pending: dict[ForkRequest, PendingTask] = {}
        """The tasks that a template is to fork."""
        self._not_forked: dict[str, list[str]] = {}
        """The names of tasks that got a fresh interpreter, by the reason, until the message for the user is sent."""
        self._tasks: dict[int, StartedTask] = {}
        """By the pid of the first process."""
        self._sweeper = Sweeper()
        self._is_sweeping = False
        """A timer calls `_sweep_until_done`."""
        self._oom = OomCounter()
        self.snapshots = SnapshotKeeper(loop, helpers, self._note)

    @property
    def has_tasks(self) -> bool:
        """A task is not swept yet, or waits for its template."""
        return bool(self._tasks or self._pending)

    def begin(self, run_id: str, root: Directory) -> None:
        """The run is known: its id, and the directory that holds the output of all tasks. To be called before anything is started."""
        self.run_id, self._root = run_id, root

    # --- start -------------------------------------------------------------------------------

    def start_template(self, order: messages.TemplateOrder, programs: Sequence[messages.Program], cwd: str) -> None:
        """Start the imports that the tasks, which run `programs`, will need."""
        env = import_environment.compose_for_template(order, self._env, self.run_id)
        preload = Preload(order.preload, env, cwd, directory_of_first(programs, cwd))
        self._templates.start_first(preload, os.path.join(self._root.path, "agents"))

    def start(self, start: messages.StartTasks) -> None:
        """Start tasks, and send TaskStarted or TaskNotStarted for each."""
        tasks = []
        memory = self.snapshots.begin(start)
        for order in start.orders:
            output = TaskOutput(order.task, order.attempt, self._root, order.log_dir, awaits_begin=order.program.kind != "command")
            try:
                if self._root.is_gone:
                    raise FileNotFoundError(f"{self._root.path} was removed while the run went on")
                os.makedirs(output.directory, mode=0o700, exist_ok=True)
                tasks.append(prepare(self._env, start, order, output, memory.get(order.task)))
            except (OSError, KeyError) as error:
                self._link.send(messages.TaskNotStarted(order.task, order.attempt, str(error), clock.now()))
            else:
                self._forwarder.add(output)
        if warning := describe_too_few_threads(start, {task.order.task: task.env for task in tasks}):
            self._note(warning)
        for task, template in zip(tasks, self._templates.choose(tasks), strict=True):
            if isinstance(template, TemplateLink):
                self._fork(task, template)
            else:
                self._execute(task, why=template)

    def _fork(self, task: PendingTask, template: TemplateLink) -> None:
        request = task.fork_request(self._limits)
        self._pending[request] = task
        if not template.ready:
            reason = f"importing {', '.join(template.preload.modules)}"
            self._link.send(messages.TaskWaiting(task.order.task, task.order.attempt, reason, clock.now()))
        template.fork(request)

    def _execute(self, task: PendingTask, why: str) -> None:
        """`why`: why no template can fork the task, for the user; empty: the task is not to be forked."""
        if why:
            if not self._not_forked:
                self._loop.after(GATHER_S, self._report_not_forked)
            self._not_forked.setdefault(why, []).append(task.order.task)
        try:
            command = task.command()
            try:
                pid, lifeline = spawn(command, self._limits)
            finally:
                if command.inherited_fd is not None:
                    os.close(command.inherited_fd)
        except (SpawnError, OSError) as error:
            self._on_not_started(task, str(error))
        else:
            self._on_started(task, pid, lifeline)

    def _report_not_forked(self) -> None:
        """One line for each reason, however many tasks share it."""
        for why, names in self._not_forked.items():
            in_order = sorted(names, key=lambda name: (len(name), name))
            self._note(f"{few(in_order)}: TensorFlow is imported again, which takes longer: {why}")
        self._not_forked.clear()

    def on_imported(self, modules: tuple[str, ...], seconds: float) -> None:
        self._link.send(messages.TemplateReady(modules, seconds, clock.now()))

    def on_forked(self, request: ForkRequest, pid: int, lifeline: int) -> None:
        self._on_started(self._pending.pop(request), pid, lifeline)

    def on_refused(self, request: ForkRequest, why: str) -> None:
        """The template cannot fork this task, or was told not to."""
        task = self._pending.pop(request)
        if task.is_stopped:
            self._on_not_started(task, "stopped before it was started")
        else:
            self._execute(task, why)

    def _on_not_started(self, task: PendingTask, reason: str) -> None:
        self._forwarder.remove(task.output)
        self._link.send(messages.TaskNotStarted(task.order.task, task.order.attempt, reason, clock.now()))

    def _on_started(self, pending: PendingTask, pid: int, lifeline: int) -> None:
        order, output = pending.order, pending.output
        task = self._tasks[pid] = StartedTask(order, pid, lifeline, output, Stacks(output, pid))
        self._link.send(messages.TaskStarted(order.task, order.attempt, pid, clock.now()))
        if pending.is_stopped:
            self._stop(task, pending.stop_after_s)
        else:
            self._prober.watch(order, lambda: exit_info.read_other_tf_config(output.directory))

    # --- while the tasks run -----------------------------------------------------------------

    def _running(self, names: Collection[str] | None) -> list[StartedTask]:
        """The tasks that have not exited, all or those named."""
        return [task for task in self._tasks.values() if not task.exited and (names is None or task.order.task in names)]

    @property
    def running(self) -> list[StartedTask]:
        return self._running(None)

    def request_stacks(self, names: Collection[str]) -> None:
        """Have these tasks write their stacks."""
        for task in self._running(names):
            task.stacks.request()

    def request_profile(self, order: messages.Profile) -> None:
        """Leave the request where the tasks look for it (task/observe/profiling.py)."""
        asked = {"id": order.id, "at": time.monotonic() + order.after_s, "seconds": order.seconds, "at_risk": order.at_risk}
        for task in self._running(order.tasks):
            task_files.write(task.output.directory, task_files.PROFILE_ASKED, json.dumps(asked))

    def send_signal(self, names: Collection[str], number: int) -> None:
        """Send a signal to the process groups of these tasks. A task that ends by this signal does not count as stopped."""
        for task in self._running(names):
            process_groups.signal_group(task.pid, number)

    def order_save(self, names: Collection[str], step: int | None) -> None:
        """Have the trainings of these tasks save; see `SaveTasks`."""
        for task in self._running(names):
            task.output.order_save(task_files.ASK if step is None else task_files.SAVE, step or 0)

    @property
    def saves(self) -> bool:
        """True if the training of a running task can save on order."""
        return any(task.output.saves for task in self.running)

    def poll(self) -> None:
        """To be called about once a second: counts the kernel's kills, and ends what does not answer or does not end by itself."""
        self._oom.poll()
        self._templates.poll()
        running = [task for task in self._running(None) if not (task.stopped or task.torn)]
        if not running:
            return
        with self._root.settled():
            endings = [exit_info.read_ending(task.output.directory) for task in running]
        for task, ending in zip(running, endings, strict=True):
            if ending is None:
                continue
            now = time.monotonic()  # the time in `ending` is one of the system's clock, which may have been set since
            task.over_at = min(task.over_at, now)
            if now - task.over_at >= TEARDOWN_S:
                task.torn = True
                over = f"{task.order.task}: its program ended ({ending.code}), but Python did not exit within {TEARDOWN_S:g} s; killed"
                self._note(f"{over}. The program had done its work, and its exit code counts" if ending.code == 0 else over)
                task.stacks.request()
                self._kill_after(task, PATIENCE_S)

    # --- stop --------------------------------------------------------------------------------

    def stop(self, grace_s: float, names: Collection[str] | None = None) -> None:
        """SIGTERM now and SIGKILL after `grace_s`, for all tasks or those named. If called again, the earlier SIGKILL counts."""
        for request, pending in list(self._pending.items()):
            if names is None or pending.order.task in names:
                pending.stop_after_s = min(grace_s, pending.stop_after_s)
                if self._templates.withdraw(request):
                    self.on_refused(request, "")
        for task in list(self._tasks.values()):
            if names is None or task.order.task in names:
                self._stop(task, grace_s)

    def _stop(self, task: StartedTask, grace_s: float) -> None:
        if not (task.stopped or task.exited):
            task.stopped_at, task.condition = clock.now(), process_state.describe_block(task.pid)
            if task.condition and grace_s > 0:
                task.stacks.resume()
        self._end_within(task, grace_s)

    def _end_within(self, task: StartedTask, grace_s: float) -> None:
        """SIGTERM, once the task has written the stacks that were requested; SIGKILL `grace_s` later."""
        if grace_s > 0 and not task.exited:
            if task.stacks.are_pending():
                self._loop.after(POLL_S, lambda: self._end_within(task, grace_s))
                return
            if task.kill_at == math.inf:
                task.output.order_save(task_files.STOP)
                process_groups.signal_group(task.pid, signal.SIGTERM)
        self._kill_after(task, grace_s)

    def _kill_after(self, task: StartedTask, seconds: float) -> None:
        task.kill_at = min(task.kill_at, time.monotonic() + seconds)
        self._loop.after(seconds, self._sweep)
        self._loop.after(seconds + leftovers.OUTLIVED_S, self._sweep)

    # --- exit --------------------------------------------------------------------------------

    def reap(self) -> None:
        """Collect every child that has ended: tasks, templates, and what they left behind."""
        with contextlib.suppress(ChildProcessError):  # there is no child
            # WNOWAIT: a helper takes its exit code itself.
            while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                if self._helpers.collect(ended.si_pid):
                    continue
                pid, status = os.waitpid(ended.si_pid, 0)
                if pid not in self._tasks:  # a template, a stray, or a task whose template has died before its last messages were read
                    self._templates.read(pid)
                self.on_exited(pid, os.waitstatus_to_exitcode(status))
        self._sweep()

    def on_exited(self, pid: int, code: int) -> None:
        """The first process of a task has ended: seen by the agent, by the template that forked it, or by both. `code`: -n for signal n."""
        task = self._tasks.get(pid)
        if task is None or task.exited:
            return
        task.code = code
        was_closed = self._prober.is_closed(task.order)
        self._prober.forget(task.order)
        self._forwarder.announce(task.output)
        ending = exit_info.read_ending(task.output.directory)
        if ending is not None and (task.torn or ending.at < task.stopped_at):
            # The program was over before orch sent its signal, which has only cut the interpreter's teardown short.
            task.code = code = ending.code
            task.stopped_at = 0.0
        if code and not task.stopped:
            self._forwarder.check_disk()  # first: a task that a full disk has ended must not be taken for the cause
        unclustered = was_closed and (task.stopped or (ending is not None and ending.unclustered))
        self._link.send(exit_info.describe(task, code, self._oom, unclustered=unclustered))
        task.kill_at = min(task.kill_at, time.monotonic() + leftovers.GRACE_S)
        process_groups.signal_group(pid, signal.SIGTERM)
        if not self._is_sweeping:
            self._is_sweeping = True
            self._loop.after(0.0, self._sweep_until_done)

    # --- what an exited task has left behind ---------------------------------------------------

    def _sweep_until_done(self) -> None:
        """Sweep until no exited task is left."""
        self._sweep()
        self._is_sweeping = any(task.exited for task in self._tasks.values())
        if self._is_sweeping:
            self._loop.after(leftovers.POLL_S, self._sweep_until_done)

    def _sweep(self) -> None:
        """End what exited tasks have left behind, and tasks whose grace is over."""
        for task, left in self._sweeper.sweep(self._tasks, self._templates.pids | self._helpers.pids):
            self._on_swept(task, left)

    def _on_swept(self, task: StartedTask, left: str) -> None:
        """Nothing is left of a task, or only what SIGKILL does not end, which is `left`, in words."""
        del self._tasks[task.pid]
        self._report_not_forked()
        self._prober.forget(task.order)  # a task that was given up has not exited
        os.close(task.lifeline)
        self._forwarder.remove(task.output)
        order = task.order
        self._link.send(messages.TaskSwept(order.task, order.attempt, clock.now(), left, self._forwarder.sizes(task.output)))
        if task.output.check_shorter():
            self._note(f"{task.order.task} cut its own log short: it opened /dev/stdout or /dev/stderr again (use >&1, >>, or tee -a)")

    def close(self) -> None:
        """End the templates, and all that is left. To be called when no task is left."""
        self._templates.close()
        for pid in process_state.children():
            process_groups.signal_process(pid, signal.SIGKILL)

    def _note(self, text: str) -> None:
        if text:
            self._link.send(messages.RunNoted(text, clock.now()))
