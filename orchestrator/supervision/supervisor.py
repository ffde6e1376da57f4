"""The one loop: events in, actions out.

The supervisor owns a run from the first agent to the verdict. `model.run.lifecycle` decides what is done, and the `Viewer` how it is shown.
An event is a frame of an agent or a request of the user. `_on_event` records it, steps the cluster with it, and performs the actions.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from worker.clock import now, patience
from worker.protocol import messages
from worker.words import few

from ..backends import Backend
from ..backends.connection.agent_link import AgentLink, LostError, Unasked
from ..errors import OrchError
from ..model.planning.plan import Plan
from ..model.run import deadlines, events, lifecycle, readiness
from ..model.run.cluster import Cause, Cluster, Outcome, Phase, Verdict
from ..model.run.events import StopRequested
from ..model.run.restarts import PREEMPTED_CODES
from ..model.spec import ClusterSpec
from ..record.storage.run_directory import RunDir
from .log_collector import LogCollector
from .preparation import EndedEarlyError, Preparation

UNREADY_S, UNFORMED_S = patience(5.0), patience(3.0)
"""After these times a note names the hosts that the run waits for, and the tasks that a cluster waits for until it has formed."""
REPORTS_S = 3.0
"""How long a report waits to be recorded: of a hundred tasks that report all the time, each has one report in this time."""


class Viewer(Protocol):
    """Shows what happens. No method may block."""

    def on_plan(self, planned: Plan) -> None: ...

    def on_output(self, task: str, attempt: int, stream: str, size: int) -> None:
        """The file of a stream has grown to this size."""
        ...

    def on_event(self, before: Cluster, after: Cluster, event: events.Event) -> None:
        """Any event but a note, as soon as there is a cluster."""
        ...

    def on_note(self, note: events.RunNoted) -> None: ...


class Supervisor:
    """Runs one spec once: ``verdict = await Supervisor(spec, backend, rundir, viewer).run()``.

    While `run` goes on, `stop`, `restart`, `show_stacks`, `send_signal` and `note` may be called, in the same loop: by the handler of a
    signal, or for a request (`requests`). A supervisor installs no handler, so it can run in any thread.
    """

    def __init__(self, spec: ClusterSpec, backend: Backend, rundir: RunDir, viewer: Viewer) -> None:
        self._spec, self._backend, self._rundir, self._viewer = spec, backend, rundir, viewer
        self._cluster: Cluster | None = None
        self._plan: Plan | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._reminded: set[str] = set()
        """The notes of what the run waits for, in this attempt."""
        self._disk_full = False
        self._is_host_lost = False
        self._reports: dict[str, events.TaskReported] = {}
        """The latest report of each task, if it is not recorded yet."""
        self._catching_up: asyncio.TimerHandle | None = None
        self._asked_at_end = False
        self._left: set[str] = set()
        """The hosts whose remaining output is not fetched, for the user did not want to wait."""
        self._outputs = LogCollector(spec, rundir, self._on_event, viewer.on_output)

    async def run(self) -> Verdict:
        """Run the spec to its verdict. Raises `OrchError` if no task could be started."""
        self._loop = asyncio.get_running_loop()
        self._finished: asyncio.Future[Verdict] = self._loop.create_future()
        self._loop.set_exception_handler(self._fail)
        self._preparation = Preparation(self._spec, self._backend, self._rundir, self._on_frame, self._on_lost, self._on_event)
        self._links = self._preparation.links
        self._reminder = self._loop.call_later(UNREADY_S, self._remind)
        began_at = now()
        try:
            self._on_event(events.RunBegun(began_at))
            self._plan = await self._preparation.make_plan()
            self._launch(self._plan, began_at)
            verdict = await self._finished
        except EndedEarlyError as ended:
            verdict = Verdict(ended.outcome, ended.code, 1, began_at, ended.cause.at, ended.cause)
        except BaseException as error:
            if isinstance(error, OrchError) and self._cluster is None:
                await self._let_agents_go(is_due=True)  # each agent removes its own files
            else:
                await asyncio.gather(*(link.kill() for link in self._links.values()))
            raise
        if self._timer is not None:
            self._timer.cancel()
        await self._let_agents_go(is_due=self._cluster is None or self._cluster.is_due)
        self._note_missing_output()
        self._outputs.write_marks()
        if self._is_host_lost:
            # Tasks die with their agent; processes that they had put into other sessions may live on.
            self._backend.cancel(self._spec, self._rundir.run_id)
        return verdict

    @property
    def cluster(self) -> Cluster | None:
        """The cluster as it is now; None as long as there is no plan."""
        return self._cluster

    def _launch(self, planned: Plan, began_at: float) -> None:
        self._rundir.write_plan(planned)
        self._cluster = lifecycle.of_plan(planned)
        self._viewer.on_plan(planned)
        for note in self._preparation.notes():
            self.note(note)
        self._on_event(events.Launched(1, now(), began_at))

    # --- what the agents send ------------------------------------------------------------------

    def _on_frame(self, host: str, frame: Unasked, data: bytes) -> None:
        if not isinstance(frame, messages.Output):
            self._on_event(frame)
            return
        try:
            self._outputs.on_output(frame, data)
        except OSError as error:
            self._fail_to_write(error)
        else:
            if data:
                self._links[host].order(messages.Ack(len(data)))

    def note(self, text: str) -> None:
        """Record a line for the user, and show the line."""
        self._on_event(events.RunNoted(text, now()))

    async def _let_agents_go(self, *, is_due: bool) -> None:
        """Wait until every agent has sent the remaining output of its tasks and has ended; without a limit as long as output comes.

        `is_due`: the end is due, so an agent that gives no sign of life is lost after a short time.
        """
        for link in self._links.values() if is_due else ():
            link.limit_silence()
        # An agent without facts holds nothing yet.
        await asyncio.gather(*(link.close() if name in self._preparation.facts else link.kill() for name, link in self._links.items()))

    def _leave_output(self) -> None:
        """The user asks for the end of a run that is over: note what is waited for; asked again, leave the rest of the output."""
        late = [name for name, link in self._links.items() if link.is_open and name not in self._left]
        if late and self._asked_at_end:
            self._left.update(late)
            for name in late:
                self._links[name].drop()
        elif late:
            self._asked_at_end = True
            self.note(f"the run is over; still fetching the output of {few(late)}; Ctrl-C or orch down again leaves the rest there")

    def _note_missing_output(self) -> None:
        hosts = [name for name, host in self._preparation.hosts.items() if name in self._left and not host.sees_run_dir]
        if hosts and self._cluster is not None:
            self.note(f"{few(hosts)}: the remaining output of the tasks was not fetched")
            self._outputs.mark_cut(task for task in self._cluster.tasks.values() if task.host in hosts)

    def _on_lost(self, loss: LostError) -> None:
        self._is_host_lost = True
        if self._cluster is None:
            self._preparation.give_up(loss)
        elif loss.overdue_s is None:
            self._on_event(events.HostLost(loss.host, loss.reason, now()))
        else:
            self._on_event(events.HostLost(loss.host, f"{loss.reason}; its agent will stop its tasks", now(), now() - loss.overdue_s))

    def _fail(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A mistake in orch, in a timer or in the handler of a signal or a frame: the run ends, for that work is not done."""
        error = context.get("exception") or OrchError(context["message"])
        if self._cluster is None:
            self._preparation.give_up(error)
        elif not self._finished.done():
            self._finished.set_exception(error)
        else:
            loop.default_exception_handler(context)

    # --- requests of the user -------------------------------------------------------------------

    def stop(self, reason: str, code: int) -> None:
        """End the run, for this reason and with this exit code. Asked again: at once, without the grace period."""
        asked = StopRequested(reason, code, now())
        if self._cluster is None:
            self._preparation.give_up(EndedEarlyError(Outcome.CANCELLED, code, Cause(reason, asked.at)))
        elif self._cluster.is_over:
            self._leave_output()
        else:
            self._on_event(asked)

    def restart(self) -> None:
        """Stop the tasks and start them again, as the next attempt."""
        if self._cluster is not None:
            self._on_event(events.RestartRequested(now()))

    def show_stacks(self) -> None:
        """Request the stacks of all running tasks; each task writes them into its `stacks.txt`."""
        if self._cluster is not None:
            self._perform(events.CollectStacks(lifecycle.running_tasks(self._cluster)))

    def send_signal(self, task: str, number: int) -> None:
        """Send a signal to the processes of a task; nothing if the task does not run."""
        if self._cluster is not None and task in self._cluster.tasks and not self._cluster.is_over:
            for link, mine in self._by_host((task,)):
                link.order(messages.SignalTasks(mine, number))

    # --- events and actions --------------------------------------------------------------------

    def _on_event(self, event: events.Event) -> None:
        """Record an event, step the cluster with it, show it, and perform the actions."""
        if self._cluster is not None and isinstance(event, (events.TaskExited, events.Tick)):
            self._find_checkpoint(self._cluster, event)
        if isinstance(event, events.TaskReported):
            self._reports[event.task] = event
            self._catching_up = self._catching_up or self._loop.call_later(REPORTS_S, self._record_reports)
        else:
            self._record_reports()
            self._record(event)
        if isinstance(event, events.RunNoted):
            self._viewer.on_note(event)
        elif self._cluster is not None:
            before = self._cluster
            self._cluster, actions = lifecycle.step(before, event)
            self._viewer.on_event(before, self._cluster, event)
            for action in actions:
                self._perform(action)
            for link in self._links.values() if self._cluster.is_due and not before.is_due else ():
                link.limit_silence()
            if self._cluster.verdict is not None and not self._finished.done():
                self._finished.set_result(self._cluster.verdict)
            if self._cluster is not before or isinstance(event, events.Tick):
                self._set_timer()

    def _record_reports(self) -> None:
        """Record the last reports: after `REPORTS_S`, or before any other event, so that replaying the file gives the same decisions."""
        if self._catching_up is not None:
            self._catching_up.cancel()
            self._catching_up = None
        for report in self._reports.values():
            self._record(report)
        self._reports.clear()

    def _perform(self, action: events.Action) -> None:
        match action:
            case events.StartAttempt():
                self._start(action)
            case events.CollectStacks():
                for link, mine in self._by_host(action.tasks):
                    link.order(messages.ShowStacks(mine))
            case events.Stop():
                for link, mine in self._by_host(action.tasks):
                    link.order(messages.StopTasks(mine, action.grace_s))

    def _start(self, action: events.StartAttempt) -> None:
        assert self._plan is not None
        assert self._cluster is not None
        try:
            self._rundir.make_attempt(action.attempt)
        except OSError as error:
            self._fail_to_write(error)
        since = min(task.attempt for task in self._cluster.members)  # the attempt in which the whole cluster was last started
        for host, link in self._links.items():
            orders = self._plan.orders(host, action.attempt, set(action.tasks), since=since)
            if orders.orders:
                link.order(orders)
        self._reminded.clear()
        self._reminder.cancel()
        self._reminder = self._loop.call_later(UNFORMED_S, self._remind)

    def _by_host(self, tasks: Iterable[str]) -> Iterator[tuple[AgentLink, tuple[str, ...]]]:
        """The connection to each host of these tasks, and the names of the tasks there."""
        by_host: dict[str, list[str]] = {}
        for name in tasks:
            if self._cluster is not None:
                by_host.setdefault(self._cluster.tasks[name].host, []).append(name)
        return ((self._links[host], tuple(names)) for host, names in by_host.items())

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        at = deadlines.next_deadline(self._cluster) if self._cluster is not None else None
        if at is not None:
            self._timer = self._loop.call_later(max(0.0, at - now()), self._tick)

    def _tick(self) -> None:
        if self._cluster is None:
            return
        self._on_event(events.Tick(now(), self._outputs.written_at if self._cluster.policy.timeouts.hang_s is not None else 0.0))

    def _find_checkpoint(self, cluster: Cluster, event: events.TaskExited | events.Tick) -> None:
        """Record a new checkpoint, which is progress, before a failure is acted on. Only where progress matters."""
        code = event.code if isinstance(event, events.TaskExited) else None
        if isinstance(event, events.TaskExited) and code == 0 and not cluster.policy.role(cluster.tasks[event.task]).serves:
            return  # a success
        matters = cluster.policy.restart.max or code in PREEMPTED_CODES
        if matters and cluster.phase in (Phase.STARTING, Phase.RUNNING):
            newest = self._rundir.newest_checkpoint()
            if newest > cluster.saved_at:
                seen = events.CheckpointSeen(newest)
                self._record(seen)
                self._cluster, _ = lifecycle.step(cluster, seen)

    def _remind(self) -> None:
        """Note which hosts or tasks the run waits for, or which tasks were started again alone; once more when this changes."""
        cluster = self._cluster
        if cluster is None:
            texts = [self._preparation.describe_awaited()]
        elif cluster.phase not in (Phase.PREPARING, Phase.STARTING, Phase.RUNNING):
            return
        elif formation := readiness.describe_formation(cluster):
            texts = [formation, readiness.describe_long_wait(cluster, now())]
        else:
            return
        for text in texts:
            if text and text not in self._reminded:
                self._reminded.add(text)
                self.note(text)
        self._reminder = self._loop.call_later(1.0, self._remind)

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
        reason = f"the run cannot be recorded in {self._rundir.path}: {error.strerror or error}"
        if self._cluster is None:
            self._preparation.give_up(OrchError(f"{reason}; make room, or name another directory with --run-dir or ORCH_HOME"))
        else:
            self._loop.call_soon(self._on_event, events.HostBroken(reason, now()))
