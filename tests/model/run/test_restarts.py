"""What is started again after a failure, and what is not: histories, and what came of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.errors import BROKEN
from orchestrator.model.policy import deadlines, restarts
from orchestrator.model.policy import lifecycle as lc
from orchestrator.model.settings import Restart, Timeouts
from orchestrator.model.state import events as ev
from orchestrator.model.state.cluster import Cause, Cluster, Outcome, PastAttempt, Phase, Policy, TaskState
from tests.record.states import Told
from worker.host import log_forwarder
from worker.protocol.messages import Failure

WORKERS = {"worker-0": "a", "worker-1": "b"}
SERVERS = {"chief-0": "a", "worker-0": "a", "worker-1": "b", "ps-0": "b"}


class Life(Told):
    """A cluster that lives through attempts; `now` is the time of the next event."""

    def __init__(self, restart: Restart, tasks: dict[str, str] | None = None, strategy: str = "multi_worker_mirrored", **limits: float):
        policy = Policy(strategy, Timeouts(**limits), strategy != "none", restart)
        self.cluster = Cluster()
        self.now = 100.0
        self.did: list[ev.Action] = []
        self.happen(ev.RunBegun(self.now, "train-1", policy), ev.Planned(1, tasks or WORKERS, self.now))

    def happen(self, *events: ev.Event) -> Life:
        for event in events:
            self.cluster, actions = lc.step(self.cluster, event)
            self.did += actions
        return self

    def start(self, *names: str) -> Life:
        for name in names or self.cluster.tasks:
            attempt = self.cluster.tasks[name].attempt
            self.happen(ev.TaskStarted(name, attempt, 7, self.now), ev.TaskUp(name, attempt, self.now))
        return self

    def report(self, task: str, step: float) -> Life:
        return self.happen(ev.TaskReported(task, self.cluster.tasks[task].attempt, {"step": step}, self.now))

    def end(self, task: str, code: int, *, killed: bool = False, stopped: bool = False, failure: Failure | None = None) -> Life:
        attempt = self.cluster.tasks[task].attempt
        return self.happen(ev.TaskExited(task, attempt, code, stopped, self.now, failure, killed))

    def sweep(self) -> Life:
        """The tasks that are being stopped end, and nothing of any ended task is left."""
        for name, task in self.cluster.tasks.items():
            if self.cluster.phase is Phase.STOPPING and not task.has_ended:
                self.end(name, 143, stopped=True, killed=True)
        for name, task in self.cluster.tasks.items():
            if task.has_ended:
                self.happen(ev.TaskSwept(name, task.attempt, self.now))
        return self

    def fail(self, code: int = 1, after: float = 10.0, **how: Any) -> Life:
        """All start, and after a while worker-1 fails."""
        self.start()
        self.now += after
        return self.end("worker-1", code, **how).sweep()

    def wait(self) -> Life:
        """Until the next deadline has passed."""
        at = deadlines.next_deadline(self.cluster)
        assert at is not None
        self.now = max(self.now, at)
        return self.happen(ev.Tick(self.now))

    @property
    def starts(self) -> list[tuple[int, tuple[str, ...]]]:
        return [(action.attempt, action.tasks) for action in self.did if isinstance(action, ev.StartAttempt)]


def test_without_a_budget_a_failure_is_the_end() -> None:
    life = Life(Restart()).fail(7)
    assert (life.verdict.exit_code, life.verdict.past, life.verdict.gave_up) == (7, (), "")
    assert life.starts == [(1, ("worker-0", "worker-1"))]


def test_a_synchronous_cluster_starts_again_as_a_whole_when_nothing_is_left_of_it() -> None:
    life = Life(Restart(max=1)).start()
    life.end("worker-1", 137, killed=True)
    assert life.did[-1] == ev.Stop(("worker-0",), 5.0)
    assert life.cluster.phase is Phase.STOPPING
    life.sweep()
    assert (life.cluster.phase, life.cluster.verdict) == (Phase.RESTARTING, None)
    assert life.starts == [(1, ("worker-0", "worker-1"))]
    life.wait()
    assert life.starts[1:] == [(2, ("worker-0", "worker-1"))]
    assert {task.state for task in life.cluster.tasks.values()} == {TaskState.PENDING}
    life.start().end("worker-0", 0).end("worker-1", 0).sweep()
    verdict = life.verdict
    assert (verdict.outcome, verdict.exit_code, verdict.attempt, verdict.started_at) == (Outcome.SUCCEEDED, 0, 2, 100.0)
    assert [(past.attempt, past.cause.task, past.cause.killed) for past in verdict.past if past.cause] == [(1, "worker-1", True)]


def test_the_budget_ends_and_says_so() -> None:
    life = Life(Restart(max=2, without_progress=0))
    for _ in range(2):
        life.fail(3).wait()
    life.fail(4)
    verdict = life.verdict
    assert (verdict.exit_code, verdict.attempt, len(verdict.past)) == (4, 3, 2)
    assert verdict.gave_up == "gave up: all 2 restarts that --max-restarts allows had been used"


@pytest.mark.parametrize(
    ("causes", "broken"),
    [
        ("red blue blue", ["blue"]),
        ("blue blue red red", ["blue", "red"]),
        ("blue red blue", []),
        ("blue blue+", []),  # the attempt has advanced the training
        ("blue (red) blue", ["blue"]),  # a restart that was asked for is no failure
        ("blue", []),
    ],
)
def test_a_host_is_broken_where_a_task_fails_first_twice_in_a_row_without_progress(causes: str, broken: list[str]) -> None:
    past = [
        PastAttempt(number, 0.0, 1.0, Cause("failed", 1.0, "worker-1", word.strip("()+")), free=word[0] == "(", progressed=word[-1] == "+")
        for number, word in enumerate(causes.split(), 1)
    ]
    assert list(restarts.broken_hosts(past)) == broken
    assert not restarts.broken_hosts([replace(each, cause=Cause("lost host blue", 1.0, host="blue")) for each in past])


def test_events_of_the_attempt_before_change_nothing() -> None:
    life = Life(Restart(max=1)).fail().wait()
    before = life.cluster
    life.happen(ev.TaskExited("worker-0", 1, 1, False, life.now), ev.TaskSwept("worker-0", 1, life.now), ev.TaskUp("worker-1", 1, life.now))
    assert life.cluster is before


# --- pauses ------------------------------------------------------------------------------------


def pauses(restart: Restart, failures: int, seed: str = "train-1") -> list[float]:
    past = [PastAttempt(number, 0.0, 1.0) for number in range(1, failures + 1)]
    return [restarts.pause_after(restart, past[:count], seed) or 0.0 for count in range(1, failures + 1)]


def test_the_first_restart_comes_at_once_and_then_pauses_double_up_to_a_limit_and_vary_by_a_quarter() -> None:
    first, *found = pauses(Restart(max=9, backoff_s=1, backoff_max_s=10, without_progress=0), 9)
    assert first == 0
    for pause, middle in zip(found, [1, 2, 4, 8, 10, 10, 10, 10], strict=True):
        assert 0.75 * middle <= pause <= 1.25 * middle
    assert len(set(found)) == len(found)


def test_runs_that_failed_together_come_back_apart_and_each_as_often_as_it_is_folded() -> None:
    restart = Restart(max=2, backoff_s=100)
    firsts = {pauses(restart, 2, f"train-{number}")[1] for number in range(20)}
    assert len(firsts) == 20
    assert pauses(restart, 2) == pauses(restart, 2)


def test_a_thousand_failures_do_not_overflow() -> None:
    assert pauses(Restart(max=2000, without_progress=0), 1000)[-1] <= 75


def test_progress_makes_the_next_pause_short_again() -> None:
    past = [PastAttempt(1, 0, 1), PastAttempt(2, 0, 1), PastAttempt(3, 0, 1, progressed=True)]
    restart = Restart(max=9, backoff_s=8)
    assert (restarts.pause_after(restart, past[:2], "") or 0) >= 6
    assert restarts.pause_after(restart, past, "") == 0


# --- progress ----------------------------------------------------------------------------------


def test_attempts_without_progress_end_the_run_though_the_budget_is_not_spent() -> None:
    life = Life(Restart(max=100, without_progress=3))
    for _ in range(2):
        life.fail().wait()
    life.fail(9)
    verdict = life.verdict
    assert (verdict.exit_code, verdict.attempt) == (9, 3)
    assert verdict.gave_up == "gave up: 3 attempts in a row made no progress (restart.without_progress)"


def test_a_higher_step_than_ever_is_progress_and_the_same_again_is_none() -> None:
    life = Life(Restart(max=100, without_progress=2))
    for reached in (10, 20, 30):  # it goes on from its checkpoint
        life.start().report("worker-0", reached).end("worker-1", 1).sweep().wait()
    assert [past.progressed for past in life.cluster.past] == [True, True, True]
    life.start().report("worker-0", 30).end("worker-1", 1).sweep().wait()
    life.start().report("worker-0", 29).end("worker-1", 1).sweep()
    assert life.cluster.verdict is not None


@pytest.mark.parametrize("step", [True, float("nan"), "100", None])
def test_what_is_no_step_is_no_progress(step: object) -> None:
    life = Life(Restart(max=1)).start()
    life.happen(ev.TaskReported("worker-0", 1, {"step": step}, life.now))
    life.end("worker-1", 1).sweep()
    assert [past.progressed for past in life.cluster.past] == [False]


def test_a_new_checkpoint_is_progress_and_an_old_one_is_none() -> None:
    life = Life(Restart(max=100, without_progress=0)).start()
    life.happen(ev.CheckpointSeen(7.0))  # by a clock of the file server's own
    life.fail().wait()
    life.happen(ev.CheckpointSeen(7.0))
    life.fail().wait()
    life.happen(ev.CheckpointSeen(8.0))
    life.fail()
    assert [past.progressed for past in life.cluster.past] == [True, False, True]


def test_a_long_attempt_is_progress_where_nothing_is_reported_or_saved() -> None:
    life = Life(Restart(max=100, without_progress=0, progress_s=60))
    life.fail(after=59).wait()
    life.fail(after=61).wait()
    life.start().report("worker-0", 5)
    life.fail(after=61).wait()
    life.start().report("worker-0", 5)
    life.fail(after=61)
    assert [past.progressed for past in life.cluster.past] == [False, True, True, False]


# --- preemption --------------------------------------------------------------------------------


def test_a_shell_whose_child_got_sigterm_has_saved_nothing() -> None:
    shell = Policy("multi_worker_mirrored", is_command=True)
    assert [restarts.is_preemption(shell, code) for code in (42, 143)] == [True, False]
    assert [restarts.is_preemption(Policy("multi_worker_mirrored"), code) for code in (42, 143, 1, None)] == [True, True, False, False]


@pytest.mark.parametrize("code", [42, 143])
@pytest.mark.parametrize("limit", [0, 1])
def test_a_task_that_says_saved_restart_me_is_restarted_free_of_charge(code: int, limit: int) -> None:
    life = Life(Restart(max=limit, without_progress=0))
    for _ in range(5):
        life.fail(code).wait()
    assert (life.cluster.attempt, {past.free for past in life.cluster.past}) == (6, {True})


def test_a_task_that_sigterm_has_killed_has_saved_nothing() -> None:
    assert Life(Restart()).fail(143, killed=True).verdict.exit_code == 143


def test_a_script_that_always_ends_with_42_comes_to_an_end() -> None:
    life = Life(Restart())
    life.fail(42).wait().fail(42).wait().fail(42)
    verdict = life.verdict
    assert (verdict.exit_code, verdict.attempt) == (42, 3)
    assert "made no progress" in verdict.gave_up


# --- one task alone ----------------------------------------------------------------------------


def test_a_worker_that_comes_back_before_the_cluster_has_formed_is_waited_for() -> None:
    life = Life(Restart(max=1), SERVERS, "parameter_server").start("chief-0", "worker-0", "ps-0")
    life.happen(ev.TaskStarted("worker-1", 1, 7, life.now))
    life.end("worker-1", 137, killed=True)
    assert life.cluster.phase is Phase.STARTING
    life.sweep().wait().start("worker-1")
    assert life.cluster.phase is Phase.RUNNING


@pytest.mark.parametrize("task", ["ps-0", "chief-0"])
def test_a_parameter_server_or_the_chief_takes_the_cluster_with_it(task: str) -> None:
    life = Life(Restart(max=1), SERVERS, "parameter_server").start()
    life.end(task, 1).sweep().wait()
    assert life.starts[1:] == [(2, tuple(SERVERS))]


def test_the_chief_may_end_while_a_worker_waits_to_come_back() -> None:
    life = Life(Restart(max=1), SERVERS, "parameter_server").start()
    life.end("worker-1", 1).sweep().end("chief-0", 0).sweep()
    assert life.verdict.outcome is Outcome.SUCCEEDED
    assert len(life.starts) == 1


def test_an_evaluator_comes_back_alone_out_of_a_budget_of_its_own() -> None:
    life = Life(Restart(max=1), {**WORKERS, "evaluator-0": "a"}).start()
    life.end("evaluator-0", 1).sweep().wait()
    assert life.starts[1:] == [(2, ("evaluator-0",))]
    life.start("evaluator-0").end("evaluator-0", 1).sweep()
    assert life.cluster.phase is Phase.RUNNING
    life.end("worker-0", 1).sweep().wait()
    assert life.starts[2:] == [(3, ("worker-0", "worker-1", "evaluator-0"))]


DATA = {**WORKERS, "dispatcher-0": "a", "data_worker-0": "a", "data_worker-1": "b"}


@pytest.mark.parametrize("strategy", ["multi_worker_mirrored", "none"])
@pytest.mark.parametrize("task", ["dispatcher-0", "data_worker-1"])
@pytest.mark.parametrize("code", [137, 1, 0])
def test_a_server_of_a_data_service_comes_back_alone_however_it_ended(strategy: str, task: str, code: int) -> None:
    life = Life(Restart(max=1), DATA, strategy).start()
    life.end(task, code, killed=code == 137)
    assert life.cluster.phase is Phase.RUNNING
    life.sweep().wait().start(task)
    assert life.starts[1:] == [(2, (task,))]
    life.end("worker-0", 0).end("worker-1", 0)
    assert life.did[-1] == ev.Stop(("dispatcher-0", "data_worker-0", "data_worker-1"), 5.0)
    verdict = life.sweep().verdict
    assert (verdict.outcome, verdict.exit_code, [past.task for past in verdict.past]) == (Outcome.SUCCEEDED, 0, [task])


@pytest.mark.parametrize(
    ("code", "given", "what"), [(137, 137, "failed"), (0, 1, "ended by itself (exit code 0) before the training was done")]
)
def test_a_lost_server_of_a_data_service_without_a_budget_ends_the_run(code: int, given: int, what: str) -> None:
    life = Life(Restart(), DATA).start().end("data_worker-0", code, killed=bool(code))
    assert life.did[-1] == ev.Stop(("worker-0", "worker-1", "dispatcher-0", "data_worker-1"), 5.0)
    life.sweep()
    assert (life.verdict.exit_code, life.cause.task, life.cause.what) == (given, "data_worker-0", what)


def test_the_budget_of_the_data_service_is_that_of_the_training() -> None:
    life = Life(Restart(max=2, without_progress=0), DATA).start()
    life.end("data_worker-0", 1).sweep().wait().start("data_worker-0")
    life.end("worker-0", 1).sweep().wait().start()
    assert life.starts[1:] == [(2, ("data_worker-0",)), (3, tuple(DATA))]
    assert life.end("dispatcher-0", 1).sweep().verdict.gave_up == "gave up: all 2 restarts that --max-restarts allows had been used"


def test_an_evaluator_that_has_come_back_and_is_done_stays_away() -> None:
    life = Life(Restart(max=3), {**WORKERS, "evaluator-0": "a"}).start()
    life.end("evaluator-0", 1).sweep().wait()
    life.start("evaluator-0").end("evaluator-0", 0).sweep()
    assert deadlines.next_deadline(life.cluster) is None
    life.happen(ev.Tick(life.now + 1000.0))
    assert len(life.starts) == 2


# --- deadlines ---------------------------------------------------------------------------------


def test_silence_is_a_hang_and_any_word_puts_it_off() -> None:
    life = Life(Restart(), hang_s=30.0).start()
    assert deadlines.next_deadline(life.cluster) == 130.0
    life.happen(ev.Tick(121.0, written_at=120.0))
    assert deadlines.next_deadline(life.cluster) == 150.0
    life.now = 125.0
    life.report("worker-1", 1)
    assert deadlines.next_deadline(life.cluster) == 155.0 + deadlines.REPORT_S  # a newer report may be on its way
    assert deadlines.REPORT_S >= log_forwarder.REPORT_S + 1.0  # the agent looks at the files about once a second
    life.wait()
    assert life.did[-2:] == [ev.CollectStacks(tuple(WORKERS)), ev.Stop(tuple(WORKERS), 5.0)]
    verdict = life.sweep().verdict
    assert (verdict.outcome, verdict.exit_code) == (Outcome.TIMED_OUT, 124)
    assert "--hang-timeout" in life.cause.what


def test_an_evaluators_reports_are_no_sign_of_life_of_the_training() -> None:
    life = Life(Restart(), {**WORKERS, "evaluator-0": "a"}, hang_s=30.0).start()
    life.now = 120.0
    life.report("evaluator-0", 1)
    assert deadlines.next_deadline(life.cluster) == 130.0


def test_a_hang_and_a_late_start_are_started_again_and_a_run_out_of_time_is_not() -> None:
    hung = Life(Restart(max=1), hang_s=30.0).start().wait().sweep().wait()
    late = Life(Restart(max=1), start_s=30.0).wait()
    for name in WORKERS:  # they were waiting for their import, and their starts were withdrawn
        late.happen(ev.TaskNotStarted(name, 1, "stopped before it was started", late.now))
    late.wait()
    assert (hung.cluster.attempt, late.cluster.attempt) == (2, 2)
    assert deadlines.next_deadline(late.cluster) == late.now + 30
    over = Life(Restart(max=1), run_s=30.0).start().wait().sweep()
    assert over.cluster.verdict is not None
    assert over.cluster.verdict.exit_code == 124


def test_the_limit_of_the_run_holds_during_a_pause_too() -> None:
    life = Life(Restart(max=2, backoff_s=50), run_s=30.0).fail(after=5).wait().fail(after=5).wait()
    verdict = life.verdict
    assert (verdict.outcome, verdict.exit_code) == (Outcome.TIMED_OUT, 124)


def test_the_limit_of_the_run_is_not_forgotten_if_it_passes_while_tasks_stop_before_a_restart() -> None:
    life = Life(Restart(max=5), run_s=10.0, grace_s=30.0).start()
    life.now += 8
    life.end("worker-0", 7).wait()
    assert life.cluster.is_due
    assert deadlines.next_deadline(life.cluster) is None
    life.now += 28
    verdict = life.sweep().wait().verdict
    assert (verdict.exit_code, [past.cause.code for past in verdict.past if past.cause], len(life.starts)) == (124, [7], 1)


def test_the_limit_of_the_run_counts_from_before_its_hosts_were_reached() -> None:
    cluster, _ = lc.step(Cluster(), ev.RunBegun(100.0, policy=Policy(timeouts=Timeouts(run_s=30.0))))
    assert deadlines.next_deadline(cluster) == 130.0
    cluster, _ = lc.step(cluster, ev.Planned(1, WORKERS, 120.0))
    assert deadlines.next_deadline(cluster) == 130.0


# --- hosts that are lost -------------------------------------------------------------------------

AGAIN = Restart(max=2, backoff_s=10.0, lost_host="retry")
MOVED = {"worker-0": "a", "worker-1": "c", "worker-2": "c"}


def lose(life: Life) -> Life:
    """The second host is lost, and the task on the first ends."""
    return life.happen(ev.HostLost("b", "silent", life.now)).sweep()


def test_a_lost_host_ends_the_run_unless_another_attempt_is_asked_for() -> None:
    assert lose(Life(Restart(max=2)).start()).cluster.verdict is not None
    life = lose(Life(AGAIN).start())
    assert (life.cluster.phase, [past.attempt for past in life.cluster.past]) == (Phase.RESTARTING, [1])
    none_left = lose(Life(replace(AGAIN, max=0)).start()).cluster.verdict
    assert none_left is not None
    assert (none_left.outcome, none_left.exit_code) == (Outcome.BROKEN, BROKEN)


@pytest.mark.parametrize("tasks", [WORKERS, MOVED, {"worker-0": "a"}], ids=["same hosts", "another host, one more task", "one task fewer"])
def test_the_attempt_after_a_lost_host_has_a_plan_of_its_own(tasks: dict[str, str]) -> None:
    life = lose(Life(AGAIN).start()).wait()
    assert life.did[-1] == ev.MakePlan(2)
    assert (life.cluster.attempt, life.cluster.phase) == (2, Phase.ALLOCATING)
    life.happen(ev.HostsAwaited("queued", life.now), ev.Allocated(2, ("a",), life.now), ev.Planned(2, tasks, life.now))
    assert life.did[-1] == ev.StartAttempt(2, tuple(tasks))
    assert {name: (task.host, task.attempt) for name, task in life.cluster.tasks.items()} == {name: (tasks[name], 2) for name in tasks}
    life.start()
    assert life.cluster.phase is Phase.RUNNING
    for name in tasks:
        life.end(name, 0)
        life.happen(ev.TaskSwept(name, 2, life.now))
    verdict = life.verdict
    assert (verdict.outcome, verdict.attempt, verdict.started_at) == (Outcome.SUCCEEDED, 2, 100.0)


def test_hosts_that_are_not_there_yet_after_a_loss_are_tried_again_as_often_as_the_limit_allows() -> None:
    life = lose(Life(AGAIN).start()).wait()
    gone = ev.NotPlanned("host b cannot be reached", BROKEN, life.now)
    life.happen(gone)
    assert (life.cluster.phase, life.cluster.needs_hosts) == (Phase.RESTARTING, True)
    life.wait()
    assert life.did[-1] == ev.MakePlan(3)
    life.happen(ev.HostLost("b", "its agent has ended", life.now))
    verdict = life.verdict
    assert (verdict.outcome, len(verdict.past)) == (Outcome.BROKEN, 2)


def test_a_wait_for_hosts_after_a_loss_ends_when_the_user_asks() -> None:
    life = lose(Life(AGAIN).start()).wait()
    verdict = life.happen(ev.StopRequested("interrupted (Ctrl-C)", 130, life.now)).verdict
    assert (verdict.outcome, verdict.exit_code) == (Outcome.CANCELLED, 130)


# --- being told --------------------------------------------------------------------------------


def test_asked_to_stop_while_an_attempt_is_being_ended_there_is_no_other() -> None:
    life = Life(Restart(max=3)).start().end("worker-1", 7)
    life.happen(ev.StopRequested("interrupted (Ctrl-C)", 130, life.now))
    assert life.did[-1] == ev.Stop(("worker-0",), 5.0)  # and no SIGKILL yet: it was the first time that we were asked
    life.sweep()
    assert life.verdict.exit_code == 7


@pytest.mark.parametrize(
    ("event", "outcome", "code", "what"),
    [
        (ev.StopRequested("interrupted (Ctrl-C)", 130, 101.0), Outcome.CANCELLED, 130, "interrupted (Ctrl-C)"),
        (ev.HostLost("a", "gone", 101.0), Outcome.BROKEN, 125, "lost host a: gone"),
        (ev.HostBroken("its disk is full", 101.0, "a"), Outcome.BROKEN, 125, "its disk is full"),
    ],
)
def test_what_ends_a_run_that_is_being_started_anew_is_its_end(event: ev.Event, outcome: Outcome, code: int, what: str) -> None:
    life = Life(Restart(max=3)).start().happen(ev.RestartRequested(100.0), event).sweep()
    verdict = life.verdict
    assert (verdict.outcome, verdict.exit_code, life.cause.what) == (outcome, code, what)


def test_asked_to_stop_between_two_attempts_the_run_is_cancelled() -> None:
    life = Life(Restart(max=3)).fail(7)
    life.happen(ev.StopRequested("interrupted (Ctrl-C)", 130, life.now))
    verdict = life.verdict
    assert (verdict.outcome, verdict.exit_code, len(verdict.past)) == (Outcome.CANCELLED, 130, 1)


def test_a_restart_that_is_asked_for_costs_nothing_and_comes_at_once() -> None:
    life = Life(Restart()).start().happen(ev.RestartRequested(100.0))
    assert life.did[-1] == ev.Stop(tuple(WORKERS), 5.0)
    life.sweep()
    assert deadlines.next_deadline(life.cluster) == life.now
    life.wait()
    assert life.starts[1:] == [(2, tuple(WORKERS))]


def test_a_restart_that_is_asked_for_leaves_the_budget_and_the_patience_as_they_were() -> None:
    life = Life(Restart(max=1, without_progress=2)).start().happen(ev.RestartRequested(100.0))
    life.sweep().wait()
    life.fail().wait()
    assert [attempt for attempt, _ in life.starts] == [1, 2, 3]
    life.fail()
    assert life.cluster.verdict is not None
    assert [past.free for past in life.cluster.past] == [True, False]


def test_a_restart_asked_for_during_the_import_withdraws_the_starts_and_comes() -> None:
    life = Life(Restart()).happen(ev.RestartRequested(100.0))
    for name in WORKERS:
        life.happen(ev.TaskNotStarted(name, 1, "stopped before it was started", 100.0))
    life.wait()
    assert life.starts[1:] == [(2, tuple(WORKERS))]


def test_a_task_that_fails_while_another_imports_is_started_again_with_it() -> None:
    life = Life(Restart(max=1)).start("worker-0").end("worker-0", 3)
    life.happen(ev.TaskNotStarted("worker-1", 1, "stopped before it was started", 100.0)).sweep().wait()
    assert life.starts[1:] == [(2, tuple(WORKERS))]


def test_asked_during_a_pause_the_restart_comes_at_once() -> None:
    life = Life(Restart(max=2, backoff_s=60)).fail().wait().fail().happen(ev.RestartRequested(131.0))
    assert life.starts[2:] == [(3, tuple(WORKERS))]


def test_a_lost_host_is_the_end_also_in_a_later_attempt_and_in_a_pause() -> None:
    running = Life(Restart(max=3)).fail().wait().start().happen(ev.HostLost("a", "gone", 120.0)).sweep()
    stopping = Life(Restart(max=3)).start().end("worker-1", 7).happen(ev.HostLost("a", "gone", 120.0)).sweep()
    paused = Life(Restart(max=3)).fail().happen(ev.HostLost("a", "gone", 120.0))
    codes = [life.verdict.exit_code for life in (running, stopping, paused)]
    assert codes == [125, 7, 125]


def test_a_cluster_of_thousands_lives_and_dies_in_seconds() -> None:
    tasks = {f"worker-{number}": "a" for number in range(5000)}
    life = Life(Restart(), tasks).start()
    for name in tasks:
        life.end(name, 0)
    life.sweep()
    assert life.cluster.verdict is not None
    assert replace(life.cluster.verdict, past=()).exit_code == 0
