"""The one loop: events in, actions out.

The supervisor owns a run from the first agent to the verdict. `policy.lifecycle` decides what is done, and the viewer how it is shown.
An event is a frame of an agent or a request of the user. `_on_event` records it, steps the cluster with it, and performs the actions.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from worker.machine.clock import now, patience
from worker.protocol import messages
from worker.protocol.task_id import TaskId
from worker.values.words import few

from ..backends import Backend, Request
from ..backends.connection.agent_link import LostError, Unasked
from ..backends.connection.agent_process import StartedAgent
from ..errors import OrchError
from ..model.planning import elastic
from ..model.policy import deadlines, endings, lifecycle, readiness, restarts
from ..model.policy import save_order as saves
from ..model.state import events
from ..model.state.cluster import Cluster, Phase, Verdict
from ..model.task_names import group_tasks
from ..record.run_directory import RunDir
from ..record.run_progress import Snapshots
from ..record.text.event_messages import Messages
from .agents import Agents
from .log_collector import LogCollector
from .preparation import Preparation
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
    """Runs one spec once: ``verdict = await Supervisor(backend, request, rundir, viewer).run()``.

    While `run` goes on, `stop`, `restart`, `show_stacks`, `profile`, `send_signal` and `note` may be called, in the same loop: by the
    handler of a signal, or for a request (`requests`). A supervisor installs no handler, so it can run in any thread.
    """

    def __init__(
        self,
        backend: Backend,
        request: Request,
        rundir: RunDir,
        viewer: Messages,
        started: StartedAgent | None = None,
        former: Cluster | None = None,
    ) -> None:
        """`started`: the agent of the only host, if there is one already. `former`: the state in which another controller left the run."""
        self._backend, self._request, self._rundir, self._viewer = backend, request, rundir, viewer
        self.cluster = former or Cluster()
        """The cluster as it is now."""
        self.is_resumed = former is not None
        self._launching: asyncio.Task[None] | None = None
        self._deadline = DeadlineTimer(lambda: deadlines.next_deadline(self.cluster), self._tick)
        self._reminder = Reminder(self._describe_waits, self.note)
        self._end_check = EndCheck(self._check_ends)
        self._begun: set[int] = set()
        """The attempts whose tasks were started."""
        self._disk_full = False
        self._agents = Agents()
        self._is_host_lost = False
        self._back_s, self._taken_in_at = elastic.BACK_S, 0
        """The pause before an elastic cluster looks for hosts that it lacks, and its workers when one was last taken in; 0: not yet."""
        self._snapshots = Snapshots(rundir)
        self._samples: Samples | None = None
        self._prepare(started)
        self._outputs = LogCollector(request.run.spec, rundir, self._on_event, viewer.on_output)

    async def run(self) -> Verdict:
        """Run the spec to its verdict."""
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._fail)
        self._end: asyncio.Future[Verdict] = self._loop.create_future()
        self._allocation = contextlib.AsyncExitStack()
        try:
            verdict = await self._await_end()
        except BaseException:
            await self._agents.kill()
            await self._release()
            raise
        finally:
            if self._samples is not None:
                self._samples.close()
        await self._let_agents_go()
        self._outputs.write_marks()
        if self._is_host_lost:
            # Tasks die with their agent; processes that they had put into other sessions may live on.
            self._backend.cancel(self._request.run)
        await self._release()
        lost = self._outputs.describe_lost(self._agents.describe_end) if not self._disk_full else []
        return replace(verdict, remarks=(*verdict.remarks, *self._describe_missing(), *lost))

    def _describe_missing(self) -> list[str]:
        """Say that somebody has removed output of the run, which no task notices: a line, if it is so."""
        missing = set() if self._disk_full else self._begun.difference(self._rundir.attempts())
        names = [f"attempt-{number}" for number in sorted(missing)] or self._outputs.missing()
        return [f"{few(names)} was removed while the run went on: output of its tasks is lost"] if names else []

    def _prepare(self, started: StartedAgent | None = None) -> None:
        """Begin with hosts, connections and facts anew. `started`: the agent of the only host, if it was started already."""
        on = (self._on_frame, self._on_lost, self._on_event)
        self._preparation = Preparation(self._backend, self._request, self._rundir, *on, started)
        self._agents.use(self._preparation)

    def _begin(self) -> None:
        """Begin an attempt that needs hosts and a plan."""
        self._leave_launch()
        self._launching = asyncio.create_task(self._launch())
        self._reminder.begin(UNREADY_S)

    def _leave_launch(self) -> None:
        """End what `_begin` has begun."""
        self._reminder.cancel()
        if self._launching is not None:
            self._launching.cancel()

    async def _launch(self) -> None:
        """Get the hosts, make the plan of the attempt, and start the attempt."""
        attempt = self.cluster.attempt
        try:
            if attempt > 1:
                await self._let_agents_go(keeps_state=True)
                await self._release()
                self._prepare()
            hosts = await self._allocation.enter_async_context(self._backend.allocate(self._request, self._wait))
            self._plan = await self._preparation.make_plan(attempt, hosts, restarts.broken_hosts(self.cluster.past))
            self._rundir.write_plan(self._plan)
            self._on_event(lifecycle.begin(self._plan, attempt, now()))
            notes = (*self._plan.notes, *self._preparation.notes()) if attempt == 1 else ()
            for note in (*notes, *self._preparation.describe_size()):
                self.note(note)
            await self._await_missing(self._preparation)
        except OrchError as error:
            if self._end.done():  # the wait for hosts was cancelled, and has left something
                self.note(str(error))
            else:
                self._on_event(events.NotPlanned(str(error), error.exit_code, now()))
        except OSError as error:
            self._fail_to_write(error)
        except Exception as error:
            self._fail(self._loop, {"message": "", "exception": error})

    async def _await_missing(self, preparation: Preparation) -> None:
        """Look now and then whether hosts that an elastic cluster lacks are back, and take them in."""
        if self._taken_in_at:
            self._back_s = elastic.pause_after(self._back_s, self._taken_in_at, self.cluster.workers)
            self._taken_in_at = 0
        while preparation.missing:
            await asyncio.sleep(self._back_s)
            if self.cluster.is_shrunk and saves.is_possible(self.cluster):
                hosts = list(preparation.missing.values())
                found = await asyncio.gather(*map(preparation.is_back, hosts))
                back = [host.name for host, is_back in zip(hosts, found, strict=True) if is_back]
                if back and saves.is_possible(self.cluster):  # otherwise the training has begun to save itself meanwhile
                    self._taken_in_at = self.cluster.workers
                    self._on_event(events.HostsBack(f"host {few(back)} is back", now()))

    def _wait(self, reason: str) -> None:
        """The backend waits for hosts, in its words: a run that waits can be looked at."""
        self._rundir.make_latest()
        self._on_event(events.HostsAwaited(reason, now()))

    async def _release(self) -> None:
        """Give the hosts back."""
        try:
            await self._allocation.aclose()
        except OrchError as error:
            self.note(f"the hosts were not given back: {error}")

    # --- the end ---------------------------------------------------------------------------------

    async def _await_end(self) -> Verdict:
        """The verdict. Raises what `_fail` has got."""
        try:
            if self.is_resumed:
                self._on_event(events.RunResumed(now(), self._rundir.newest_checkpoint()))
            else:
                self._on_event(events.RunBegun(now(), self._rundir.run_id, lifecycle.policy_of(self._request.run.spec)))
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

    async def _let_agents_go(self, *, keeps_state: bool = False) -> None:
        if self.cluster.is_due:
            self._agents.limit_silence()
        await self._agents.let_go(keeps_state=keeps_state)

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

            self._samples = Samples(self._rundir)
        for line in self._samples.keep(sample, self.cluster):
            self.note(line)

    def _on_lost(self, loss: LostError) -> None:
        self._is_host_lost = True
        if loss.overdue_s is None:
            self._on_event(events.HostLost(loss.host, loss.reason, now(), loss.ended_at))
        else:
            self._on_event(events.HostLost(loss.host, f"{loss.reason}; its agent will stop its tasks", now(), now() - loss.overdue_s))

    # --- requests of the user -------------------------------------------------------------------

    def stop(self, reason: str, code: int, *, saves: bool = False) -> None:
        """End the run, for this reason and with this exit code. Asked again: at once, without the grace period.

        `saves`: a training that can do so saves itself first.
        """
        if self.cluster.is_over:
            if line := self._agents.leave_output():
                self.note(line)
        else:
            awaited = self._samples.describe_awaited(self.cluster) if self._samples is not None else ""
            self._on_event(events.StopRequested("; ".join(filter(None, (reason, awaited))), code, now(), saves))

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
        self._snapshots.keep(self.cluster, event.at)
        self._viewer.on_event(before, self.cluster, event)
        for action in actions:
            self._perform(self.cluster, action)
        is_stopping = self.cluster.phase is Phase.STOPPING and before.phase is not Phase.STOPPING
        if is_stopping or isinstance(event, events.TaskExited):
            self._expect_end(self.cluster)
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
        self._begun.add(attempt)
        try:
            self._rundir.make_attempt(attempt)
        except OSError as error:
            self._fail_to_write(error)
        since = min(task.attempt for task in cluster.members)  # of the whole cluster: not all tasks can restart alone
        for host, orders in self._plan.all_orders(attempt, tasks, since=since):
            if orders.orders:
                self._agents.start(host, orders)
        self._reminder.begin(UNFORMED_S, is_new=True)

    def _tick(self) -> None:
        self._look_for_awaited()
        watches_hangs = self.cluster.policy.timeouts.hang_s is not None
        absent = self._samples.describe_absent(self.cluster) if self._samples is not None and watches_hangs else ""
        self._on_event(events.Tick(now(), self._outputs.written_at if watches_hangs else 0.0, absent))

    def _expect_end(self, cluster: Cluster) -> None:
        """From now on some tasks should end: look in time whether they have."""
        self._end_check.expect(now() + cluster.policy.timeouts.grace_s + UNENDED_S)

    def _check_ends(self) -> None:
        """Give up the hosts whose agents live and do not tell of the end of their tasks."""
        for host, since in readiness.unended(self.cluster).items():
            if since + UNENDED_S <= now():
                self._agents.drop(host)
                self._on_lost(
                    LostError(host, f"its agent has not told of the end of its tasks {UNENDED_S:g} s after their SIGKILL was due")
                )

    def _find_checkpoint(self, cluster: Cluster, event: events.TaskExited | events.Tick) -> None:
        """Record a new checkpoint, which is progress, before an exit is acted on. Only where a restart may follow."""
        code = event.code if isinstance(event, events.TaskExited) else None
        may_restart = cluster.policy.restart.max or restarts.is_preemption(cluster.policy, code)
        task = cluster.tasks.get(event.task) if isinstance(event, events.TaskExited) else None
        is_success = code == 0 and not (task and cluster.policy.role(task).serves)  # a server that ends with 0 has failed
        if may_restart and not is_success and cluster.phase in (Phase.STARTING, Phase.RUNNING):
            newest = self._rundir.newest_checkpoint()
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
        if self.cluster.phase is Phase.CONNECTING and (reason := self._preparation.describe_awaited()) != self.cluster.waiting:
            self._on_event(events.HostsAwaited(reason, now()))

    def _record(self, event: events.Event) -> None:
        try:
            self._rundir.record(event)
        except OSError as error:
            self._fail_to_write(error)

    def _fail_to_write(self, error: OSError) -> None:
        """End a run that can no longer be recorded, with one message."""
        if self._disk_full:
            return
        self._disk_full = True
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            self._rundir.free_reserve()
        remedy = "make room, or name another directory with --run-dir or ORCH_HOME"
        reason = f"the run cannot be recorded in {self._rundir.path}: {error.strerror or error}; {remedy}"
        self._loop.call_soon(self._on_event, events.HostBroken(reason, now()))
