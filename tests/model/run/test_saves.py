"""The save on order: a run, a host or a task is about to end, and all trainings save after one and the same step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.errors import DEADLINE, TERMINATED
from orchestrator.model.policy import deadlines, save_order
from orchestrator.model.policy.restarts import PREEMPTED
from orchestrator.model.settings import Restart, Timeouts
from orchestrator.model.state import events as ev
from orchestrator.model.state.cluster import Outcome, Phase, Policy
from tests.model.run.test_lifecycle import MIRRORED, WORKERS, History, raised

TERM = ev.StopRequested("received SIGTERM", TERMINATED, 110.0, saves=True)
ALL = tuple(WORKERS)


def say(task: str, state: str, step: int, at: float = 110.0) -> ev.TaskSaves:
    return ev.TaskSaves(task, 1, state, step, at)  # type: ignore[arg-type]


def training(policy: Policy = MIRRORED, names: tuple[str, ...] = ALL) -> History:
    history = History(policy).start_all()
    history.happen(*(say(name, "ready", 0) for name in names))
    return history


def save_all(history: History, step: int, at: float = 111.0) -> History:
    for name in ALL:
        history.happen(say(name, "saved", step, at))
    for name in ALL:
        history.end(name, PREEMPTED, at=at)
    for name in ALL:
        history.happen(ev.TaskSwept(name, 1, at))
    return history


def test_all_save_at_the_highest_step_once_all_have_said_theirs() -> None:
    history = training()
    assert history.happen(TERM) == [ev.SaveOrdered(ALL, None)]
    assert history.happen(say("worker-0", "waits", 41), say("worker-1", "waits", 42)) == []
    assert history.happen(say("worker-2", "waits", 41)) == [ev.SaveOrdered(ALL, 42)]
    verdict = save_all(history, 42).verdict
    assert (verdict.outcome, verdict.exit_code, verdict.saved) == (Outcome.CANCELLED, PREEMPTED, 42)
    assert history.cause.what == "received SIGTERM; the training has saved itself at step 42"
    assert not any(isinstance(action, ev.Stop) for action in history.did), "each task ends by itself"


def test_trainings_that_turn_out_not_to_be_saved_get_no_order() -> None:
    history = training()
    history.happen(*(say(name, "unable", 1) for name in ALL))
    assert not any(isinstance(action, ev.SaveOrdered) for action in history.happen(TERM)), "none can save"
    history = training()
    history.happen(say("worker-0", "unable", 1), say("worker-0", "ready", 2))
    assert history.happen(TERM) == [ev.SaveOrdered(ALL, None)]


def test_a_training_that_stands_in_a_step_needs_those_that_wait() -> None:
    history = training()
    history.happen(TERM, say("worker-0", "waits", 41))
    assert deadlines.deadlines_of(history.cluster)["name"] == 110.0 + save_order.ANSWER_S
    assert history.happen(ev.Tick(110.0 + save_order.ANSWER_S)) == [ev.SaveOrdered(ALL, 42)]


def test_a_training_that_is_further_lets_another_step_be_named() -> None:
    history = training()
    history.happen(TERM, say("worker-0", "waits", 41), ev.Tick(112.0))
    assert history.happen(say("worker-1", "waits", 44)) == [ev.SaveOrdered(ALL, 45)]


def test_without_a_training_that_can_save_the_run_ends_as_ever() -> None:
    history = History().start_all()
    assert history.happen(TERM) == [ev.Stop(ALL, 5.0)]
    assert history.sweep_all().exit_code == TERMINATED
    assert training().happen(replace(TERM, saves=False)) == [ev.Stop(ALL, 5.0)], "Ctrl-C"


def test_the_grace_of_the_user_is_the_time_of_the_save() -> None:
    history = training(Policy("multi_worker_mirrored", Timeouts(grace_s=30.0)))
    history.happen(TERM)
    assert deadlines.deadlines_of(history.cluster)["unsaved"] == 140.0
    assert history.happen(ev.Tick(140.0)) == [ev.Stop(ALL, 1.0)]
    verdict = history.sweep_all(141.0)
    assert (verdict.exit_code, verdict.saved) == (TERMINATED, None)
    assert "did not save itself in time" in history.cause.what


def test_asked_again_while_it_saves_the_run_ends_without() -> None:
    history = training()
    assert history.happen(TERM, replace(TERM, at=110.5))[1:] == [ev.Stop(ALL, 5.0)]


def test_a_training_that_ends_before_the_named_step_has_succeeded() -> None:
    history = training()
    history.happen(TERM, say("worker-0", "waits", 41), ev.Tick(112.0))
    for name in ALL:
        history.end(name, 0, at=112.0)
    assert history.sweep_all().exit_code == 0


@pytest.mark.parametrize("maximum", [0, 3])
def test_a_task_that_gets_sigterm_from_elsewhere_costs_no_restart(maximum: int) -> None:
    history = training(Policy("multi_worker_mirrored", restart=Restart(maximum)))
    assert history.happen(say("worker-1", "asks", 40)) == [ev.SaveOrdered(ALL, None)]
    history.happen(*(say(name, "waits", 41) for name in ALL))
    assert save_all(history, 41).cluster.verdict is None
    assert history.cluster.phase is Phase.RESTARTING
    (past,) = history.cluster.past
    assert (past.free, past.progressed) == (True, True)
    assert past.cause is not None
    assert past.cause.what == "worker-1 received SIGTERM; the training has saved itself at step 41"
    assert history.happen(ev.Tick(111.0)) == [ev.StartAttempt(2, ALL)]
    assert history.cluster.saving is None


def test_a_run_that_is_to_end_does_not_start_again_after_the_save_of_a_task() -> None:
    """An engine ends all processes of a job at once, in any order."""
    history = training()
    history.happen(say("worker-1", "asks", 40), replace(TERM, at=110.5), *(say(name, "waits", 41) for name in ALL))
    verdict = save_all(history, 41).verdict
    assert (verdict.exit_code, verdict.saved) == (PREEMPTED, 41)


LENT = Policy("multi_worker_mirrored", is_lent=True)
TAKEN = ev.RunNoted("the agent received SIGTERM", 110.0, "a", ends=True)


@pytest.mark.parametrize("order", [(TAKEN, TERM), (TERM, TAKEN), (TAKEN, replace(TAKEN, host="b"), TERM)])
def test_an_engine_that_ends_agents_and_controller_asks_once(order: tuple[ev.Event, ...]) -> None:
    history = training(LENT)
    assert history.happen(*order) == [ev.SaveOrdered(ALL, None)]
    history.happen(*(say(name, "waits", 41) for name in ALL))
    assert save_all(history, 41).verdict.exit_code == PREEMPTED


def test_a_host_that_goes_away_is_left_after_a_save() -> None:
    history = training(Policy("multi_worker_mirrored", restart=Restart(0, lost_host="retry")))
    assert history.happen(TAKEN) == [ev.SaveOrdered(ALL, None)]
    history.happen(*(say(name, "waits", 41) for name in ALL))
    assert save_all(history, 41).cluster.verdict is None
    assert history.happen(ev.Tick(112.0)) == [ev.MakePlan(2)]


def test_a_host_that_dies_during_the_last_save_ends_the_run() -> None:
    history = training(LENT)
    history.happen(TERM, ev.HostLost("b", "gone", 111.0))
    assert history.cluster.phase is Phase.STOPPING
    assert history.sweep_all().exit_code == TERMINATED


def test_a_save_before_the_timeout() -> None:
    history = training(Policy("multi_worker_mirrored", Timeouts(run_s=600.0, save_before_s=60.0)))
    assert deadlines.next_deadline(history.cluster) == 640.0
    assert history.happen(ev.Tick(640.0)) == [ev.SaveOrdered(ALL, None)]
    assert deadlines.next_deadline(history.cluster) == 700.0
    history.happen(*(say(name, "waits", 41, 641.0) for name in ALL))
    verdict = save_all(history, 41, 642.0).verdict
    assert (verdict.outcome, verdict.exit_code) == (Outcome.TIMED_OUT, PREEMPTED)
    late = training(Policy("multi_worker_mirrored", Timeouts(run_s=600.0, save_before_s=60.0)))
    late.happen(ev.Tick(640.0), ev.Tick(700.0))
    assert late.sweep_all(701.0).exit_code == DEADLINE


@pytest.mark.parametrize(("spare_s", "until"), [(110.0, 410.0), (0.0, 305.0)])
def test_an_engine_that_tells_how_much_time_is_left_leaves_it_to_the_save(spare_s: float, until: float) -> None:
    history = training()
    history.cluster = replace(history.cluster, until=300.0, spare_s=spare_s)
    assert history.happen(ev.Tick(300.0)) == [ev.SaveOrdered(ALL, None)]
    assert deadlines.deadlines_of(history.cluster)["unsaved"] == until


@pytest.mark.parametrize("before_s", [None, 50.0])
def test_a_save_before_the_end_of_an_allocation(before_s: float | None) -> None:
    """The backend has taken the time for the save off already."""
    history = training(Policy("multi_worker_mirrored", Timeouts(save_before_s=before_s), requeues=True))
    history.cluster = replace(history.cluster, until=300.0)
    assert deadlines.next_deadline(history.cluster) == 300.0
    assert history.happen(ev.Tick(300.0)) == [ev.SaveOrdered(ALL, None)]
    assert deadlines.next_deadline(history.cluster) == 305.0
    history.happen(*(say(name, "waits", 41, 300.0) for name in ALL))
    assert save_all(history, 41, 301.0).verdict.exit_code == PREEMPTED


def test_an_engine_that_starts_saved_runs_again_is_not_misled_by_a_run_that_was_cancelled() -> None:
    history = training(Policy("multi_worker_mirrored", requeues=True))
    history.happen(TERM, *(say(name, "waits", 41) for name in ALL))
    verdict = save_all(history, 41).verdict
    assert (verdict.exit_code, verdict.saved) == (TERMINATED, 41)


@pytest.mark.parametrize(("by_signal", "code"), [(True, PREEMPTED), (False, TERMINATED)])
def test_a_signal_to_the_same_command_on_every_node_is_the_engines(by_signal: bool, code: int) -> None:
    """It has `--requeue-code`. `orch down --save` is no signal."""
    history = training(Policy("multi_worker_mirrored", requeues=True, is_everywhere=True))
    history.happen(replace(TERM, by_signal=by_signal), *(say(name, "waits", 41) for name in ALL))
    assert save_all(history, 41).verdict.exit_code == code


ELASTIC = Policy("multi_worker_mirrored", restart=Restart(1, lost_host="retry"), workers=3)
BACK = ev.HostsBack("host b is back", 130.0)


def shrunk() -> History:
    """An elastic cluster that has lost host b, and trains with two of three workers."""
    history = training(ELASTIC)
    history.happen(BACK)
    assert history.cluster.saving is None, "it lacks no host"
    history.happen(ev.HostLost("b", "gone", 120.0))
    for name in ("worker-0", "worker-1"):
        history.end(name, 143, at=121.0, stopped=True)
        history.happen(ev.TaskSwept(name, 1, 121.0))
    assert history.happen(ev.Tick(122.0)) == [ev.MakePlan(2)]
    history.happen(ev.Allocated(2, ("a",), 123.0), ev.Planned(2, {"worker-0": "a", "worker-1": "a"}, 124.0))
    history.happen(*(ev.TaskStarted(name, 2, 1, 125.0) for name in ("worker-0", "worker-1")))
    return history


def test_an_elastic_cluster_takes_a_host_in_that_is_back_after_a_save_and_for_nothing() -> None:
    history = shrunk()
    assert history.happen(BACK) == [], "without saves steps would be lost"
    history.happen(*(ev.TaskSaves(name, 2, "ready", 20, 126.0) for name in ("worker-0", "worker-1")))
    assert history.happen(BACK) == [ev.SaveOrdered(("worker-0", "worker-1"), None)]
    history.happen(*(ev.TaskSaves(name, 2, state, 21, 131.0) for state in ("waits", "saved") for name in ("worker-0", "worker-1")))
    for name in ("worker-0", "worker-1"):
        history.happen(ev.TaskExited(name, 2, PREEMPTED, False, 132.0))
    for name in ("worker-0", "worker-1"):
        history.happen(ev.TaskSwept(name, 2, 132.0))
    assert history.happen(ev.Tick(132.0)) == [ev.MakePlan(3)]
    assert [(past.workers, past.free) for past in history.cluster.past] == [(3, False), (2, True)]


def test_each_restart_of_a_shrunk_cluster_looks_for_all_hosts() -> None:
    history = shrunk()
    history.happen(ev.RestartRequested(130.0))
    for name in ("worker-0", "worker-1"):
        history.happen(ev.TaskExited(name, 2, 143, True, 131.0), ev.TaskSwept(name, 2, 131.0))
    assert history.happen(ev.Tick(131.0)) == [ev.MakePlan(3)]


def test_the_save_for_a_host_that_is_back_has_any_time_and_ends_no_training() -> None:
    history = shrunk()
    history.happen(*(ev.TaskSaves(name, 2, "ready", 20, 126.0) for name in ("worker-0", "worker-1")))
    assert history.happen(BACK) == [ev.SaveOrdered(("worker-0", "worker-1"), None)]
    assert "unsaved" not in deadlines.deadlines_of(history.cluster)
    assert history.happen(ev.Tick(5000.0)) == [], "such as in a long validation"
    history.happen(replace(TERM, at=6000.0))
    assert deadlines.deadlines_of(history.cluster)["unsaved"] == 6005.0, "a user waits for this one"


def test_the_save_for_a_host_that_is_back_hides_no_deadline() -> None:
    policy = replace(ELASTIC, timeouts=Timeouts(run_s=600.0, save_before_s=60.0, hang_s=300.0))
    history = shrunk()
    history.cluster = replace(history.cluster, policy=policy, until=500.0)
    history.happen(*(ev.TaskSaves(name, 2, "ready", 20, 126.0) for name in ("worker-0", "worker-1")), BACK)
    found = deadlines.deadlines_of(history.cluster)
    assert {kind: found[kind] for kind in ("run", "allocation", "save", "hang")} == {
        "run": 700.0,
        "allocation": 500.0,
        "save": 640.0,
        "hang": 426.0,
    }
    history.happen(ev.Tick(500.0, written_at=430.0))
    assert history.cluster.saving is not None
    assert (history.cluster.saving.again, history.cluster.saving.until) == (False, 505.0)


# --- a save that fails ----------------------------------------------------------------------------


@pytest.mark.parametrize("maximum", [0, 2])
def test_sigterm_to_a_task_that_is_not_saved_in_time_is_a_failure_that_counts(maximum: int) -> None:
    history = training(Policy("multi_worker_mirrored", restart=Restart(maximum)))
    for number in range(1, maximum + 1):
        at = 110.0 + 100.0 * number
        history.happen(ev.TaskSaves("worker-1", number, "asks", 0, at), ev.Tick(at + 5.0))
        for name in ALL:
            history.happen(ev.TaskExited(name, number, 143, True, at + 6.0), ev.TaskSwept(name, number, at + 6.0))
        assert history.cluster.phase is Phase.RESTARTING
        assert not history.cluster.past[-1].free
        history.happen(ev.Tick(at + 60.0))
        for name in ALL:
            history.happen(ev.TaskStarted(name, number + 1, 1, at + 61.0), ev.TaskSaves(name, number + 1, "ready", 0, at + 61.0))
    last = maximum + 1
    history.happen(ev.TaskSaves("worker-1", last, "asks", 0, 900.0), ev.Tick(905.0))
    for name in ALL:
        history.happen(ev.TaskExited(name, last, 143, True, 906.0), ev.TaskSwept(name, last, 906.0))
    verdict = history.verdict
    assert (verdict.outcome, verdict.exit_code) == (Outcome.FAILED, TERMINATED)
    assert history.cause.what == "worker-1 received SIGTERM; the training did not save itself in time"


def test_a_crash_during_the_last_save_is_the_cause_and_brings_its_traceback() -> None:
    history = training()
    history.happen(TERM, *(say(name, "waits", 41) for name in ALL))
    history.end("worker-1", 1, at=111.0, failure=raised(111.0))
    verdict = history.sweep_all(112.0)
    assert (verdict.outcome, verdict.exit_code, verdict.saved) == (Outcome.CANCELLED, TERMINATED, None)
    assert (history.cause.task, history.cause.what) == ("worker-1", "failed while the training saved itself (received SIGTERM)")
    assert history.cause.failure == raised(111.0)


@pytest.mark.parametrize("maximum", [0, 1])
def test_a_crash_during_a_save_before_a_restart_is_a_failure_that_counts(maximum: int) -> None:
    history = training(Policy("multi_worker_mirrored", restart=Restart(maximum)))
    history.happen(say("worker-1", "asks", 40), *(say(name, "waits", 41) for name in ALL))
    assert history.end("worker-2", 1, at=111.0, failure=raised(111.0)) == [ev.Stop(("worker-0", "worker-1"), 5.0)]
    for name in ALL:
        history.end(name, 143, at=112.0, stopped=True)
        history.happen(ev.TaskSwept(name, 1, 112.0))
    (ended,) = history.cluster.past if maximum else [history.cluster.verdict]
    assert ended is not None
    assert (cause := ended.cause) is not None
    assert (cause.task, cause.failure) == ("worker-2", raised(111.0))
    assert (history.cluster.phase is Phase.RESTARTING) == bool(maximum)
    assert not any(past.free for past in history.cluster.past)


def test_a_second_request_after_a_crash_during_the_last_save_ends_at_once() -> None:
    history = training()
    history.happen(TERM)
    history.end("worker-1", 1, at=111.0, failure=raised(111.0))
    assert history.happen(replace(TERM, at=111.5)) == [ev.Stop(("worker-0", "worker-1", "worker-2"), 0.0)]


# --- tasks aside ----------------------------------------------------------------------------------

WITH_EVALUATOR = {"worker-0": "a", "worker-1": "a", "evaluator-0": "b"}


def evaluated(*names: str) -> History:
    history = History(MIRRORED, WITH_EVALUATOR).start_all()
    history.happen(*(say(name, "ready", 0) for name in names))
    return history


def test_the_save_of_an_evaluator_is_not_that_of_the_training() -> None:
    history = evaluated(*WITH_EVALUATOR)
    assert history.happen(TERM) == [ev.SaveOrdered(tuple(WITH_EVALUATOR), None)]
    assert history.happen(say("evaluator-0", "saved", 5000)) == []
    assert history.end("evaluator-0", PREEMPTED, at=110.5) == []
    assert history.happen(say("worker-0", "waits", 41), say("worker-1", "waits", 41)) == [ev.SaveOrdered(("worker-0", "worker-1"), 41)]
    history.happen(say("worker-0", "saved", 41), say("worker-1", "saved", 41))
    history.end("worker-0", PREEMPTED, at=111.0)
    history.end("worker-1", PREEMPTED, at=111.0)
    assert history.sweep_all(112.0).saved == 41


def test_an_evaluator_that_fails_leaves_the_save_of_the_training_alone() -> None:
    history = evaluated("worker-0", "worker-1")
    history.happen(TERM)
    assert history.end("evaluator-0", 1, at=110.5, failure=raised(110.5)) == []
    assert history.cluster.saving is not None


def test_an_evaluator_alone_does_not_make_the_run_wait_for_a_save() -> None:
    history = evaluated("evaluator-0")
    assert history.happen(TERM) == [ev.Stop(tuple(WITH_EVALUATOR), 5.0)]


def test_an_evaluator_that_gets_sigterm_saves_and_restarts_alone() -> None:
    history = evaluated(*WITH_EVALUATOR)
    assert history.happen(say("evaluator-0", "asks", 5000)) == [ev.SaveOrdered(("evaluator-0",), None)]
    assert history.cluster.saving is None
    history.happen(say("evaluator-0", "saved", 5000))
    history.end("evaluator-0", PREEMPTED, at=111.0)
    history.happen(ev.TaskSwept("evaluator-0", 1, 111.0))
    assert history.happen(ev.Tick(111.0)) == [ev.StartAttempt(2, ("evaluator-0",))]
    assert history.cluster.past[-1].free
