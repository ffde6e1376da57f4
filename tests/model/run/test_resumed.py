"""A run that another controller goes on with, and a run whose allocation has an end that is known beforehand."""

from __future__ import annotations

import pytest

from orchestrator.errors import BROKEN, DEADLINE
from orchestrator.model.policy import deadlines
from orchestrator.model.policy.restarts import PREEMPTED
from orchestrator.model.settings import Restart
from orchestrator.model.state import events as ev
from orchestrator.model.state.cluster import Cluster, Outcome, Phase, Policy, TaskState
from tests.model.run.test_lifecycle import BEGUN, CONNECTING, QUEUED, WORKERS, History

RESUMED = ev.RunResumed(150.0, 140.0)


def running() -> History:
    return History().start_all()


def stopped(history: History) -> History:
    history.happen(ev.StopRequested("received SIGTERM", 143, 120.0))
    history.sweep_all()
    return history


def broken(history: History) -> History:
    history.end("worker-1", 1)
    return history


@pytest.mark.parametrize("leave", [lambda history: history, broken, stopped], ids=["killed", "killed while it stopped", "ended by SIGTERM"])
def test_a_run_that_is_resumed_begins_its_next_attempt_for_nothing(leave) -> None:  # type: ignore[no-untyped-def]
    history = leave(running())
    assert history.happen(RESUMED) == [ev.MakePlan(2)]
    cluster = history.cluster
    assert (cluster.phase, cluster.attempt, cluster.verdict, cluster.ending) == (Phase.ALLOCATING, 2, None, None)
    assert all(task.has_ended and task.swept for task in cluster.tasks.values())
    assert [(past.attempt, past.free, past.progressed, past.ended_at) for past in cluster.past] == [(1, True, True, 150.0)]
    history.happen(ev.Allocated(2, ("c",), 151.0), ev.Planned(2, {"worker-0": "c"}, 152.0))
    assert history.did[-1] == ev.StartAttempt(2, ("worker-0",))
    assert history.cluster.tasks["worker-0"].state is TaskState.PENDING


def test_the_cause_of_a_resumed_attempt_is_that_of_its_end_or_else_the_restart() -> None:
    causes = []
    for history in (running(), stopped(running())):
        history.happen(RESUMED)
        causes.append(history.cluster.past[0].cause)
    assert [cause.what for cause in causes if cause] == ["the job of its controller was started again", "received SIGTERM"]


@pytest.mark.parametrize("before", [(), (QUEUED,), (CONNECTING,)], ids=["allocating", "queued", "connecting"])
def test_an_attempt_that_had_not_begun_keeps_its_number(before: tuple[ev.Event, ...]) -> None:
    history = History.__new__(History)
    history.cluster, history.did, history.verdicts = Cluster(), [], []
    history.happen(BEGUN, *before)
    assert history.happen(RESUMED) == [ev.MakePlan(1)]
    assert (history.cluster.phase, history.cluster.waiting, history.cluster.past) == (Phase.ALLOCATING, "", ())
    history.happen(ev.StopRequested("received SIGTERM", 143, 160.0))
    assert history.cluster.verdict is not None
    assert history.happen(RESUMED) == [ev.MakePlan(1)]


def test_a_resumed_run_that_is_between_two_attempts_counts_its_failure_once() -> None:
    history = History(Policy("multi_worker_mirrored", restart=ev.RunBegun(0.0).policy.restart))
    history.start_all()
    history.happen(ev.RestartRequested(110.0))
    for name in WORKERS:
        history.end(name, 143, at=111.0, stopped=True)
        history.happen(ev.TaskSwept(name, 1, 112.0))
    assert history.cluster.phase is Phase.RESTARTING
    assert history.happen(RESUMED) == [ev.MakePlan(2)]
    assert len(history.cluster.past) == 1


# --- the end of an allocation -------------------------------------------------------------------


@pytest.mark.parametrize(("requeues", "code"), [(True, PREEMPTED), (False, DEADLINE)])
def test_a_run_ends_before_its_allocation_does(requeues: bool, code: int) -> None:
    history = History.__new__(History)
    history.cluster, history.did, history.verdicts = Cluster(), [], []
    history.happen(ev.RunBegun(100.0, policy=Policy("multi_worker_mirrored", requeues=requeues)))
    assert deadlines.next_deadline(history.cluster) is None
    history.happen(ev.Allocated(1, ("a", "b"), 101.0, until=300.0), ev.Planned(1, WORKERS, 102.0))
    history.start_all()
    assert deadlines.deadlines_of(history.cluster)["allocation"] == 300.0
    assert history.happen(ev.Tick(300.0)) == [
        ev.CollectStacks(tuple(WORKERS)),
        ev.Stop(tuple(WORKERS), history.cluster.policy.timeouts.grace_s),
    ]
    assert "allocation" not in deadlines.deadlines_of(history.cluster)
    verdict = history.sweep_all(310.0)
    assert (verdict.outcome, verdict.exit_code) == (Outcome.TIMED_OUT, code)
    assert history.cause.what == "the time of its allocation is nearly over"


def test_an_allocation_that_ends_while_tasks_stop_lets_no_attempt_follow() -> None:
    history = History()
    history.happen(ev.RunResumed(103.0), ev.Allocated(2, ("a", "b"), 104.0, until=120.0), ev.Planned(2, WORKERS, 105.0))
    history.happen(ev.StopRequested("enough", 143, 110.0))
    history.happen(ev.Tick(120.0))
    assert history.cluster.is_due


# --- hosts that are taken away ------------------------------------------------------------------

TAKEN = ev.RunNoted("the agent received SIGTERM", 110.0, "a", ends=True)


@pytest.mark.parametrize("then", [(), (ev.StopRequested("received SIGTERM", 143, 110.5),)], ids=["agent alone", "agent before controller"])
def test_a_run_whose_host_is_taken_away_ends_as_if_it_was_asked_to(then: tuple[ev.Event, ...]) -> None:
    history = History(Policy("multi_worker_mirrored", is_lent=True)).start_all()
    assert history.happen(TAKEN) == [ev.Stop(tuple(WORKERS), history.cluster.policy.timeouts.grace_s)]
    assert history.happen(*then, ev.HostLost("a", "its agent ended", 111.0)) == [], "the tasks keep their time"
    verdict = history.sweep_all(112.0)
    assert (verdict.outcome, verdict.exit_code) == (Outcome.CANCELLED, 143)
    assert history.cause.what == ("received SIGTERM" if then else "host a: the agent received SIGTERM: it is taken away")


@pytest.mark.parametrize("restart", [Restart(0), Restart(3)])
@pytest.mark.parametrize(("code", "later_s", "is_taken"), [(143, 0.3, True), (143, 30.0, False), (1, 0.3, False)])
def test_a_task_that_gets_sigterm_before_its_agent_is_not_the_cause(code: int, later_s: float, is_taken: bool, restart: Restart) -> None:
    """`scancel` sends it to each process of the job."""
    history = History(Policy("multi_worker_mirrored", is_lent=True, restart=restart)).start_all()
    history.end("worker-1", code, at=TAKEN.at - later_s)
    history.happen(TAKEN)
    verdict = history.sweep_all(141.0)
    assert verdict.outcome is (Outcome.CANCELLED if is_taken else Outcome.FAILED)
    assert history.cause.what.endswith("it is taken away") == is_taken
    assert verdict.exit_code == code


def test_elsewhere_a_host_whose_agent_is_ended_is_lost() -> None:
    history = History(Policy("multi_worker_mirrored")).start_all()
    assert history.happen(TAKEN) == []
    history.happen(ev.HostLost("a", "its agent ended", 111.0))
    assert history.sweep_all(112.0).exit_code == BROKEN
