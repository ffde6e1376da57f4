"""The line for what just happened."""

from __future__ import annotations

import pytest

from orchestrator.model.policy import deadlines, lifecycle
from orchestrator.model.settings import Restart
from orchestrator.model.state import events
from orchestrator.model.state.cluster import Cluster, Policy
from orchestrator.record.text.event_messages import describe_event
from tests.record.states import begun, cluster, exited, lost
from worker.protocol.messages import Failure


def told(before: Cluster, event: events.Event) -> str | None:
    return describe_event(before, lifecycle.step(before, event)[0], event)


def test_the_first_failure_is_named_with_those_that_are_stopped_for_it() -> None:
    assert told(cluster(), exited("worker-1", 3)) == (
        "worker-1 has failed (exit code 3); stopping worker-0, worker-2 (SIGTERM now, SIGKILL after 5 s)"
    )
    text = told(cluster(grace_s=0), exited("worker-1", 139))
    assert text == "worker-1 has failed (killed by SIGSEGV: segmentation fault); stopping worker-0, worker-2 (SIGKILL)"
    assert told(cluster(workers=1), exited("worker-0", 3)) == "worker-0 failed (exit code 3)"


@pytest.mark.parametrize("first", ["worker-0", "worker-1"])
@pytest.mark.parametrize("restarts", [0, 1])
def test_of_two_that_fail_at_nearly_the_same_time_the_lines_and_the_report_name_one_as_the_cause(first: str, restarts: int) -> None:
    """worker-1 exits first, which its line says. Which of both has failed first is known when both have ended."""
    reasons = {"worker-0": "no data", "worker-1": "no disk"}
    raised = {name: Failure("ValueError", reason, "", 109.0 if name == first else 109.5) for name, reason in reasons.items()}
    state = cluster(workers=2, restarts=restarts)
    lines = []
    for event in (
        exited("worker-1", 3, 110.0, failure=raised["worker-1"]),
        exited("worker-0", 4, 110.1, failure=raised["worker-0"]),
        events.TaskSwept("worker-1", 1, 110.2),
        events.TaskSwept("worker-0", 1, 110.3),
    ):
        before, (state, _) = state, lifecycle.step(state, event)
        lines.append(describe_event(before, state, event))
    ending = state.verdict or state.past[-1]
    cause = ending.cause
    assert cause is not None
    assert cause.task == first
    again = "; then all tasks start again" if restarts else ""
    assert lines[:3] == [f"worker-1 has failed (exit code 3); stopping worker-0 (SIGTERM now, SIGKILL after 5 s{again})", None, None]
    told = "first failure: worker-0 failed (exit code 4)" if first == "worker-0" else ""
    if restarts:
        start = "attempt 1 ended after 10.3 s" + (f", {told}" if told else "")
        assert (lines[3] or "").startswith(f"{start}; starting again")
    else:
        assert lines[3] is None, "the report says so"


def test_ctrl_c_says_what_it_waits_for_and_what_a_second_one_does() -> None:
    asked = events.StopRequested("interrupted (Ctrl-C)", 130, 110.0)
    before = cluster()
    assert told(before, asked) == (
        "interrupted (Ctrl-C); stopping worker-0..2 (SIGTERM now, SIGKILL after 5 s; Ctrl-C again kills them at once)"
    )
    assert told(lifecycle.step(before, asked)[0], asked) == "asked again: killing the remaining tasks"


@pytest.mark.parametrize("event", [events.StopRequested("interrupted (Ctrl-C)", 130, 120.0), events.RestartRequested(120.0)])
def test_what_comes_after_the_end_is_not_told_as_the_end_again(event: events.Event) -> None:
    ended = (exited("worker-0", 7), events.TaskSwept("worker-0", 1, 111.0))
    over = cluster(*ended, workers=1)
    assert over.is_over
    assert told(over, event) is None


def test_a_formed_cluster_is_told_once() -> None:
    up = [events.TaskUp(f"worker-{i}", 1, 100.0 + i) for i in range(3)]
    assert told(cluster(*up[:1]), up[1]) is None
    assert told(cluster(*up[:2]), up[2]) == "cluster formed after 2.0 s: 3 tasks are up"


def test_a_task_that_starts_again_alone_is_named() -> None:
    policy = Policy("parameter_server", restart=Restart(max=1))
    state = begun(policy, dict.fromkeys(("chief-0", "ps-0", "worker-0"), "local"))
    for event in (exited("worker-0", 3), events.TaskSwept("worker-0", 1, 110.0)):
        state, _ = lifecycle.step(state, event)
    assert told(state, events.Tick(deadlines.next_deadline(state) or 0.0)) == "worker-0 starts again alone (attempt 2)"


def test_a_failure_that_is_about_a_peer_says_whom_it_has_lost() -> None:
    text = told(cluster(grace_s=0), exited("worker-1", 1, failure=lost("2", 109.0)))
    lost_it = "worker-1 has failed (exit code 1): it lost worker-2 (it stopped sending heartbeats)"
    assert text == f"{lost_it}; stopping worker-0, worker-2 (SIGKILL)"


def test_a_loss_of_all_tasks_at_once_says_why_the_attempt_has_ended() -> None:
    state = begun(Policy("multi_worker_mirrored", restart=Restart(max=1, lost_host="retry")), {"worker-0": "b"})
    lost_host = events.HostLost("b", "its agent was killed", 103.0)
    assert (
        told(state, lost_host) == "attempt 1 ended after 3.0 s: lost host b: its agent was killed; starting again at once (restart 1 of 1)"
    )
