"""The one loop: events in, actions out.

The supervisor owns a run from its first event to the verdict. `policy.lifecycle` decides what is done, and the viewer how it is shown.
An event tells of an agent, of a request of the user, of the hosts, or of time that has passed. `_on_event` records it, steps the cluster
with it, and performs the actions.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from worker.machine.clock import now, patience
from worker.protocol import messages
from worker.protocol.task_id import TaskId

from ..backends.connection.agent_link import LostError, Unasked
from ..errors import BROKEN, OrchError
from ..model.policy import deadlines, endings, lifecycle, readiness, restarts
from ..model.settings.backend_sections import LocalSettings
from ..model.state import events
from ..model.state.cluster import Cluster, Phase, Verdict
from ..model.task_names import group_tasks
from ..record.text.event_messages import Messages
from ..record.text.timeline import Phases
from .agents import Agents
from .journal import Journal
from .launch import Launch
from .log_collector import LogCollector
from .starting import RunStart
from .timers import DeadlineTimer, EndCheck, Reminder

if TYPE_CHECKING:
    from .sampling import Samples

UNREADY_S, UNFORMED_S = patience(5.0), patience(3.0)
"""After these times a note names the hosts that the run waits for, and the tasks that a cluster waits for until it has formed."""

UNENDED_S = patience(90.0)
"""How long after its SIGKILL is due a task is waited for, before its host is given up. An agent that works gives the task up after 60 s."""
PROFILED_AFTER_S = 2.5
"""When a profile begins after its request: within this time each task sees the request."""


class Supervisor:
    """Runs one spec once: ``verdict = await Supervisor(start, viewer).run()``.

    While `run` goes on, `stop`, `restart`, `show_stacks`, `profile`, `send_signal` and `note` may be called, in the same loop: by the
    handler of a signal, or for a request (`requests`). A supervisor installs no handler, so it can run in any thread.
    """

    _end: asyncio.Future[Verdict]
    """Made when the run begins."""

    def __init__(
        self, start: RunStart, viewer: Messages, former: Cluster | None = None, on_ending: Callable[[], object] = lambda: None
    ) -> None:
        """`former`: the state in which another controller left the run. `on_ending`: is called while the first tasks end."""
        self._given, self.listeners = start, [viewer.on_event]
        self.cluster = former or Cluster()
        self._launching: asyncio.Task[None] | None = None
        self._deadline = DeadlineTimer(lambda: deadlines.next_deadline(self.cluster), self._tick)
        self._reminder = Reminder(self._describe_waits, self.note)
        self._end_check = EndCheck(self._check_ends, on_ending)
        self._journal = Journal(start.run, is_resumed=former is not None)
        self._agents = Agents(start.run, self._on_frame, self._on_lost)
        self._launch = Launch(start, self._agents, lambda: self.cluster, self._on_event)
        self._samples: Samples | None = None
        self._outputs = LogCollector(start.spec, start.run, self._on_event, viewer.on_output)
        self._edited_at = 0.0
        """When the script was edited before the last start of tasks; 0: not known."""

    async def run(self) -> Verdict:
        asyncio.get_running_loop().set_exception_handler(self._fail)
        self._end = asyncio.get_running_loop().create_future()
        try:
            verdict = await self._await_end()
        except BaseException:
            await self._agents.kill()
            await self._launch.end()
            await self._given.backend.end(BROKEN)
            raise
        finally:
            if self._samples is not None:
                self._samples.close()
        await self._agents.let_go(is_due=self.cluster.is_due)
        self._outputs.write_marks()
        if self._agents.has_lost_any:
            # Tasks die with their agent; processes that they had put into other sessions may live on.
            self._given.backend.cancel(self._given.request.run)
        await self._launch.end()
        await self._given.backend.end(verdict.exit_code)
        gone = self._outputs.describe_gone(self._agents.describe_end) if not self._journal.is_full else []
        return replace(verdict, remarks=(*verdict.remarks, *await self._launch.end_trackers(verdict), *gone))

    def _begin(self) -> None:
        self._leave_launch()
        self._launching = asyncio.create_task(self._prepare())
        self._reminder.begin(UNREADY_S)

    def _leave_launch(self) -> None:
        """End what `_begin` has begun."""
        self._reminder.cancel()
        if self._launching is not None:
            self._launching.cancel()

    async def _prepare(self) -> None:
        try:
            await self._launch.prepare()
            await self._launch.await_missing()
        except OrchError as error:
            if self._end.done():  # the wait for hosts was cancelled, and has left something
                self.note(error.line)
            else:
                self._on_event(events.NotPlanned(str(error), error.exit_code, now()))
        except OSError as error:
            self._fail_to_write(error)
        except Exception as error:
            self._fail(self._end.get_loop(), {"message": "", "exception": error})

    # --- the end ---------------------------------------------------------------------------------

    async def _await_end(self) -> Verdict:
        """The verdict. Raises what `_fail` has got."""
        try:
            if self.cluster.run:
                self._on_event(events.RunResumed(now(), self._given.run.newest_checkpoint()))
            else:
                self._on_event(events.RunBegun(now(), self._given.run.run_id, lifecycle.policy_of(self._given.spec)))
            return await self._end
        finally:
            self._leave_launch()
            self._deadline.cancel()
            if self._launching is not None:
                await asyncio.wait([self._launching])

    def _finish(self, verdict: Verdict) -> None:
        """The run is over. The first end counts: nothing is started afterwards, not even in the same turn of the loop."""
        if not self._end.done():
            self._end.set_result(verdict)
            self._leave_launch()

    def _fail(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A mistake in orch, such as in a timer or in the handler of a frame: the run ends at once, and without an event, which might fail
        in the same way."""
        if self._end.done():
            loop.default_exception_handler(context)
        else:
            self._end.set_exception(context.get("exception") or OrchError(context["message"]))
            self._leave_launch()

    @property
    def phases(self) -> Phases:
        return self._journal.phases

    # --- what the agents send ------------------------------------------------------------------

    def _on_frame(self, host: str, frame: Unasked, data: bytes) -> None:
        if isinstance(frame, messages.Sampled):
            self._keep_sample(frame)
            return
        if isinstance(frame, messages.TaskSwept):
            self._outputs.expect(frame, host)
        if not isinstance(frame, messages.Output):
            self._on_event(frame)
            return
        try:
            self._outputs.on_output(frame, data)
        except OSError as error:
            if data:
                self._agents.lose_output(host, is_over=self.cluster.is_over)
            self._fail_to_write(error)
        else:
            if data:
                self._agents.acknowledge(host, len(data))

    def _keep_sample(self, sample: messages.Sampled) -> None:
        if self._samples is None:
            from .sampling import Samples  # no start waits for this import

            self._samples = Samples(self._given.run)
        for line in self._samples.keep(sample, self.cluster):
            self.note(line)

    def _on_lost(self, loss: LostError) -> None:
        if loss.overdue_s is None:
            self._on_event(events.HostLost(loss.host, loss.reason, now(), loss.ended_at, loss.remedy))
        else:
            self._on_event(events.HostLost(loss.host, f"{loss.reason}; its agent will stop its tasks", now(), now() - loss.overdue_s))

    # --- requests of the user -------------------------------------------------------------------

    def stop(self, reason: str, code: int, *, saves: bool = False, by_signal: bool = False) -> None:
        """End the run, for this reason and with this exit code. Asked again: at once, without the grace period.

        `saves`, `by_signal`: see `events.StopRequested`.
        """
        if self.cluster.is_over:
            if line := self._agents.leave_output():
                self.note(line)
        else:
            awaited = self._samples.describe_awaited(self.cluster) if self._samples is not None else ""
            self._on_event(events.StopRequested("; ".join(filter(None, (reason, awaited))), code, now(), saves, by_signal))

    def restart(self) -> None:
        """Stop the tasks and start them again, as the next attempt."""
        self._on_event(events.RestartRequested(now()))

    def show_stacks(self) -> None:
        """Request the stacks of all running tasks; each task writes them into its `stacks.txt`."""
        self._agents.order(self.cluster, messages.ShowStacks(endings.running_tasks(self.cluster)))

    def profile(self, names: Collection[str], request: str, seconds: float, *, at_risk: bool) -> None:
        """Have the running tasks with these names, or of these types, profile themselves at one moment; see `messages.Profile`."""
        running = tuple(name for name in endings.running_tasks(self.cluster) if {name, TaskId.parse(name).type} & {*names})
        self._agents.order(self.cluster, messages.Profile(running, request, PROFILED_AFTER_S, seconds, at_risk))
        self.note(f"orch profile: {seconds:g} s of TensorFlow's profiler are asked of {group_tasks(running) or 'no task'}")

    def send_signal(self, task: str, number: int) -> None:
        """Send a signal to the processes of a task; nothing if the task does not run."""
        self._agents.order(self.cluster, messages.SignalTasks((task,), number))

    def note(self, text: str) -> None:
        """Record a line for the user, and show the line."""
        self._on_event(events.RunNoted(text, now()))

    # --- events and actions --------------------------------------------------------------------

    def _on_event(self, event: events.Event) -> None:
        """Record an event, step the cluster with it, show it, and perform the actions."""
        if isinstance(event, (events.TaskExited, events.Tick)):
            self._find_checkpoint(self.cluster, event)
        self._record(event)
        before = self.cluster
        self.cluster, actions = lifecycle.step(before, event)
        self._journal.keep(self.cluster, event.at)
        for tell in self.listeners:
            tell(before, self.cluster, event)
        for action in actions:
            self._perform(self.cluster, action)
        is_stopping = self.cluster.phase is Phase.STOPPING and before.phase is not Phase.STOPPING
        if is_stopping or isinstance(event, events.TaskExited):
            self._end_check.expect(now() + self.cluster.policy.timeouts.grace_s + UNENDED_S)  # whether these tasks have ended
        if self.cluster.is_due and not before.is_due:
            self._agents.limit_silence()
        if self.cluster.verdict is not None:
            self._finish(self.cluster.verdict)
        if self.cluster is not before or isinstance(event, events.Tick):
            self._deadline.set_soon()

    def _perform(self, cluster: Cluster, action: events.Action) -> None:
        match action:
            case events.StartAttempt():
                self._start(cluster, action.attempt, action.tasks)
            case events.MakePlan():
                self._begin()
            case events.CollectStacks():
                self._agents.order(self.cluster, messages.ShowStacks(action.tasks))
            case events.Stop():
                self._agents.order(self.cluster, messages.StopTasks(action.tasks, action.grace_s))
            case events.SaveOrdered():
                self._agents.order(self.cluster, messages.SaveTasks(action.tasks, action.step))

    def _start(self, cluster: Cluster, attempt: int, tasks: Collection[str]) -> None:
        self._outputs.begin(attempt)
        try:
            self._given.run.make_attempt(attempt)
        except OSError as error:
            self._fail_to_write(error)
        self._tell_of_edit(attempt)
        since = min(task.attempt for task in cluster.members)  # of the whole cluster: not all tasks can restart alone
        for host, orders in self._launch.orders(attempt, tasks, since):
            if orders.orders:
                self._agents.start(host, orders)
        self._reminder.begin(UNFORMED_S, is_new=True)

    def _tell_of_edit(self, attempt: int) -> None:
        """Note that tasks run another program than those before. Other hosts, and copies of the code, are not looked at."""
        spec, before = self._given.spec, self._edited_at
        if isinstance(spec.backend, LocalSettings) and spec.program.kind == "script":
            with contextlib.suppress(OSError):  # the task tells
                self._edited_at = os.stat(os.path.join(spec.workdir, spec.program.target)).st_mtime
            if before not in (0.0, self._edited_at):
                self.note(f"{spec.program.target} was edited during the run: attempt {attempt} runs it as it is now")

    def _tick(self) -> None:
        self._look_for_awaited()
        watches_hangs = self.cluster.policy.timeouts.hang_s is not None
        absent = self._samples.describe_absent(self.cluster) if self._samples is not None and watches_hangs else ""
        self._on_event(events.Tick(now(), self._outputs.written_at if watches_hangs else 0.0, absent))

    def _check_ends(self) -> None:
        """Give up the hosts whose agents live and do not tell of the end of their tasks."""
        for host, since in readiness.unended(self.cluster).items():
            if since + UNENDED_S <= now():
                self._agents.drop(host)
                self._agents.lose(
                    LostError(host, f"its agent has not told of the end of its tasks {UNENDED_S:g} s after their SIGKILL was due")
                )

    def _find_checkpoint(self, cluster: Cluster, event: events.TaskExited | events.Tick) -> None:
        """Record a new checkpoint, which is progress, before an exit is acted on. Only where a restart may follow."""
        code = event.code if isinstance(event, events.TaskExited) else None
        may_restart = cluster.policy.restart.max or restarts.is_preemption(cluster.policy, code)
        task = cluster.tasks.get(event.task) if isinstance(event, events.TaskExited) else None
        is_success = code == 0 and not (task and cluster.policy.role(task).serves)  # a server that ends with 0 has failed
        if may_restart and not is_success and cluster.phase in (Phase.STARTING, Phase.RUNNING):
            newest = self._given.run.newest_checkpoint()
            if newest > cluster.saved_at:
                self._on_event(events.CheckpointSeen(newest))

    def _describe_waits(self) -> list[str] | None:
        """Return which hosts or tasks the run waits for, or which tasks were started again alone; None: it waits for none."""
        self._look_for_awaited()
        cluster = self.cluster
        if cluster.phase in (Phase.PREPARING, Phase.STARTING, Phase.RUNNING) and (formation := readiness.describe_formation(cluster)):
            return [text for text in (formation, readiness.describe_long_wait(cluster, now())) if text]
        return [] if cluster.awaits_plan else None

    def _look_for_awaited(self) -> None:
        """Record which hosts the run waits for, if this has changed."""
        if self.cluster.phase is Phase.CONNECTING and (reason := self._launch.describe_awaited()) != self.cluster.waiting:
            self._on_event(events.HostsAwaited(reason, now()))

    def _record(self, event: events.Event) -> None:
        try:
            self._journal.record(event)
        except OSError as error:
            self._fail_to_write(error)

    def _fail_to_write(self, error: OSError) -> None:
        """End a run that can no longer be recorded, with one message."""
        if reason := self._journal.give_up(error):
            self._end.get_loop().call_soon(self._on_event, events.HostBroken(reason, now()))
