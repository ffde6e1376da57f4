"""What is said of a cluster that has not formed."""

from __future__ import annotations

import pytest

from orchestrator.model.policy import lifecycle as lc
from orchestrator.model.policy import readiness
from orchestrator.model.state import events as ev
from orchestrator.model.state.cluster import Outcome, Phase, Policy, Verdict
from orchestrator.record.text.event_messages import describe_event
from tests.record.states import begun
from worker.protocol.messages import Evidence
from worker.protocol.task_files import SERVES

PS = "a script for parameter servers needs --ps 1 (or more)"
ALONE, UNKNOWN = Evidence(unclustered=True), Evidence()
MIRRORED, SERVED = Policy("multi_worker_mirrored"), Policy("parameter_server")


def run(policy: Policy, ends: dict[str, Evidence], up: tuple[str, ...] = ()) -> Verdict:
    """A run whose tasks are started, some come up, and all end with 0 that do not serve; the others are stopped."""
    cluster = begun(policy, dict.fromkeys(ends, "a"))
    history: list[ev.Event] = [ev.TaskStarted(task, 1, 7, 101.0) for task in ends]
    history += [ev.TaskUp(task, 1, 102.0) for task in up]
    serving = [task for task in ends if policy is SERVED and not task.startswith(("chief", "evaluator"))]
    history += [ev.TaskExited(task, 1, 0, False, 110.0, evidence=found) for task, found in ends.items() if task not in serving]
    history += [ev.TaskExited(task, 1, 143, True, 111.0, killed=True, evidence=ends[task]) for task in serving]
    history += [ev.TaskSwept(task, 1, 112.0) for task in ends]
    for event in history:
        cluster, _ = lc.step(cluster, event)
    assert cluster.verdict is not None
    return cluster.verdict


def test_tasks_that_formed_no_cluster_have_trained_by_themselves() -> None:
    verdict = run(MIRRORED, {"worker-0": ALONE, "worker-1": ALONE, "evaluator-0": UNKNOWN})
    assert (verdict.outcome, verdict.exit_code) == (Outcome.SUCCEEDED, 0)
    assert verdict.warning == "no cluster was formed: no task opened its port, so worker-0..1 each did all of the work alone"
    verdict = run(SERVED, {"chief-0": ALONE, "worker-0": ALONE, "ps-0": ALONE})
    assert verdict.warning == "no cluster was formed: no task opened its port, so chief-0 did all of the work alone"
    own = {"worker-0": Evidence(unclustered=True, tf_config="train.py:3 removed it"), "worker-1": Evidence(unclustered=True)}
    assert run(MIRRORED, own).warning.endswith("; the TF_CONFIG of worker-0 was not the one that orch gave it: train.py:3 removed it")


@pytest.mark.parametrize(
    ("policy", "ends", "up"),
    [
        (MIRRORED, {"worker-0": ALONE}, ()),
        (MIRRORED, {"worker-0": ALONE, "evaluator-0": ALONE}, ()),
        (MIRRORED, {"worker-0": ALONE, "dispatcher-0": ALONE, "data_worker-0": ALONE}, ()),
        (MIRRORED, {"worker-0": ALONE, "worker-1": UNKNOWN}, ()),
        (MIRRORED, {"worker-0": ALONE, "worker-1": ALONE}, ("worker-1",)),
        (SERVED, {"chief-0": ALONE, "worker-0": ALONE, "ps-0": UNKNOWN}, ()),
        (SERVED, {"chief-0": UNKNOWN, "worker-0": ALONE, "ps-0": ALONE}, ()),
        (SERVED, {"chief-0": ALONE, "worker-0": ALONE, "ps-0": ALONE}, ("ps-0",)),
        (Policy("multi_worker_mirrored", opens_ports=False), {"worker-0": ALONE, "worker-1": ALONE}, ()),
    ],
)
def test_nothing_is_said_of_a_cluster_that_may_have_formed_or_was_to_have_one_task(
    policy: Policy, ends: dict[str, Evidence], up: tuple[str, ...]
) -> None:
    assert run(policy, ends, up).warning == ""


def test_a_long_wait_of_tasks_that_all_run_says_what_to_look_at() -> None:
    cluster, _ = lc.step(begun(MIRRORED, {"worker-0": "a", "worker-1": "a"}), ev.TaskStarted("worker-0", 1, 7, 101.0))
    assert readiness.describe_long_wait(cluster, 1000.0) == ""
    cluster, _ = lc.step(cluster, ev.TaskStarted("worker-1", 1, 8, 131.0))
    assert readiness.describe_long_wait(cluster, 190.0) == ""
    assert readiness.describe_long_wait(cluster, 191.0).startswith("all tasks run, and the cluster has not formed for 60 s: orch stacks")
    one_up, _ = lc.step(cluster, ev.TaskUp("worker-0", 1, 140.0))
    assert readiness.describe_long_wait(one_up, 191.0)
    formed, _ = lc.step(one_up, ev.TaskUp("worker-1", 1, 140.0))
    assert readiness.describe_long_wait(formed, 1000.0) == ""
    one_gone, _ = lc.step(one_up, ev.TaskExited("worker-1", 1, 0, False, 141.0))
    assert readiness.describe_long_wait(one_gone, 1000.0) == ""


def test_a_long_wait_for_workers_whose_chief_is_up_recommends_no_other_strategy() -> None:
    """So is a search of KerasTuner: its chief listens at its port, and its workers open none."""
    cluster = begun(MIRRORED, {"chief-0": "a", "worker-0": "a"})
    started = [ev.TaskStarted(task, 1, 7, 101.0) for task in ("chief-0", "worker-0")]
    history: list[ev.Event] = [*started, ev.TaskUp("chief-0", 1, 102.0)]
    for event in history:
        cluster, _ = lc.step(cluster, event)
    assert "The workers of KerasTuner open no port" in (said := readiness.describe_long_wait(cluster, 1000.0))
    assert "--strategy none" not in said


@pytest.mark.parametrize(
    ("tasks", "up", "says"),
    [
        (("chief-0", "worker-0", "worker-1"), ("chief-0",), "chief-0 still runs"),
        (("chief-0", "worker-0", "evaluator-0"), ("chief-0",), "chief-0, evaluator-0 still run"),
        (("worker-0", "worker-1"), ("worker-1",), "the other tasks may wait forever"),
        (("chief-0", "worker-0", "worker-1"), ("chief-0", "worker-1"), "the other tasks may wait forever"),
    ],
)
def test_what_still_runs_may_wait_forever_only_if_a_worker_is_left(tasks: tuple[str, ...], up: tuple[str, ...], says: str) -> None:
    """The workers of KerasTuner open no port and end with 0, and its chief ends a second later."""
    cluster = begun(MIRRORED, dict.fromkeys(tasks, "a"))
    history: list[ev.Event] = [ev.TaskStarted(task, 1, 7, 101.0) for task in tasks]
    history += [ev.TaskUp(task, 1, 102.0) for task in up]
    history += [ev.TaskExited(task, 1, 0, False, 110.0) for task in tasks if task.startswith("worker") and task not in up]
    for event in history:
        before = cluster
        cluster, _ = lc.step(before, event)
    assert cluster.phase is Phase.RUNNING
    line = describe_event(before, cluster, event)
    assert line is not None
    assert line.endswith(f" seen to come up; {says}")


def says_that_all_serve(tasks: dict[str, bool], *more: ev.Event) -> tuple[str, Verdict | None]:
    """What is said of running tasks, of which these stand in `Server.join`, and then of what happens next."""
    cluster = begun(SERVED if "chief-0" in tasks else MIRRORED, dict.fromkeys(tasks, "a"))
    history: list[ev.Event] = [ev.TaskStarted(task, 1, 7, 101.0) for task in tasks]
    history += [ev.TaskReported(task, 1, {SERVES: True}, 102.0) for task, serves in tasks.items() if serves]
    history += [ev.TaskReported(task, 1, {SERVES: True, "step": 3}, 102.5) for task, serves in tasks.items() if serves]
    history += [ev.TaskUp(task, 1, 103.0) for task in tasks]
    lines = []
    for event in (*history, *more):
        before = cluster
        cluster, _ = lc.step(cluster, event)
        lines.append(describe_event(before, cluster, event) or "")
    assert all(task.report.keys() <= {"step"} for task in cluster.tasks.values())
    said = [line for line in lines if "Server.join()" in line]
    assert len(said) <= 1
    return "".join(said), cluster.verdict


def test_tasks_that_all_wait_in_a_server_are_told_that_nobody_gives_them_work() -> None:
    stop: list[ev.Event] = [ev.StopRequested("Ctrl-C", 130, 110.0)]
    stop += [ev.TaskExited(f"worker-{i}", 1, 143, True, 111.0) for i in range(2)]
    swept = [ev.TaskSwept(f"worker-{i}", 1, 112.0) for i in range(2)]
    said, verdict = says_that_all_serve({"worker-0": True, "worker-1": True}, *stop, *swept)
    assert said.endswith("; worker-0..1 stand in Server.join(), and this run has no chief that gives them work: " + PS)
    assert verdict is not None
    assert verdict.remarks == (said.rpartition("; ")[2],)
    served, trained = {"worker-0": False, "worker-1": True}, ev.TaskExited("worker-0", 1, 0, False, 110.0)
    assert says_that_all_serve(served)[0] == ""
    assert (
        says_that_all_serve(served, trained)[0]
        == f"worker-1 stands in Server.join(), and this run has no chief that gives the task work: {PS}"
    )
    evaluated = {"chief-0": False, "worker-0": True, "ps-0": True, "evaluator-0": False}
    ended = ev.TaskExited("chief-0", 1, 0, False, 110.0)
    assert says_that_all_serve(evaluated, ended)[0] == ""
    said, _ = says_that_all_serve({"chief-0": True, "worker-0": True, "ps-0": True})
    assert said.endswith("; chief-0, worker-0, ps-0 stand in Server.join(), and no task is left that gives them work")
