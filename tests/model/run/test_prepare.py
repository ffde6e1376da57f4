"""`prepare:`, as a document, as a plan and as histories: what the command of a host means for the tasks that wait for it."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.errors import DEADLINE, SpecError
from orchestrator.model.planning import plan
from orchestrator.model.planning.facts_of_hosts import HostFacts
from orchestrator.model.policy import deadlines, readiness
from orchestrator.model.settings import ClusterSpec, Timeouts
from orchestrator.model.settings import document as documents
from orchestrator.model.settings.parse import parse, to_document
from orchestrator.model.state import events as ev
from orchestrator.model.state.cluster import Outcome, Phase, Policy
from tests.model.run.test_lifecycle import WORKERS, History

PREPARED = {**WORKERS, "prepare-0": "a", "prepare-1": "b"}
POLICY = Policy("multi_worker_mirrored", Timeouts(start_s=50.0, hang_s=20.0, prepare_s=30.0))


def spec_of(prepare: Any, **more: Any) -> ClusterSpec:
    return parse(documents.from_data({"script": "train.py", "prepare": prepare, **more}, "orch.yaml"), workdir="/w")


def prepared(history: History, *names: str, at: float = 110.0) -> None:
    for name in names:
        history.happen(ev.TaskStarted(name, 1, 7, 101.0), ev.TaskExited(name, 1, 0, stopped=False, at=at), ev.TaskSwept(name, 1, at))


# --- the key ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "run"),
    [
        ("python fetch.py && echo done", ("/bin/sh", "-c", "python fetch.py && echo done")),
        ({"run": "a: b"}, ("/bin/sh", "-c", "a: b")),
        ({"run": ["./fetch.sh", "a b", 1]}, ("./fetch.sh", "a b", "1")),
    ],
)
def test_a_command_is_a_text_for_the_shell_or_a_list(written: Any, run: tuple[str, ...]) -> None:
    spec = spec_of(written)
    assert spec.prepare.run == run
    assert parse(documents.from_data(to_document(spec), "spec.yaml"), workdir="/w") == spec


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        ("", "prepare: must not be empty"),
        ([], "prepare: must begin with a program\nfix: write [./fetch.sh, data], or a text for the shell"),
        ({"run": []}, "prepare.run: must begin with a program\nfix: write [./fetch.sh, data], or a text for the shell"),
        ({"hosts": "first"}, "prepare: hosts without a command\nfix: write prepare: {run: ./fetch.sh}"),
        ({"run": "x", "hosts": "one"}, "prepare.hosts: 'one' is not known\nfix: write all or first"),
        ({"run": "x", "host": "first"}, "prepare: unknown key 'host'\nfix: did you mean 'hosts'?"),
    ],
)
def test_what_is_wrong_with_it_is_said(written: Any, complaint: str) -> None:
    with pytest.raises(SpecError) as caught:
        spec_of(written)
    assert complaint in str(caught.value)


# --- the plan -----------------------------------------------------------------------------------


def plan_of(spec: ClusterSpec) -> plan.Plan:
    hosts = {"a": None, "b": None, "c": None}
    facts = [HostFacts(name, name, 2) for name in hosts]
    return plan.make("run", spec, plan.place(spec, hosts), facts)


def test_each_host_that_has_tasks_is_prepared_once_in_their_directory_and_environment() -> None:
    spec = spec_of("fetch", tasks={"worker": 2}, defaults={"env": {"DATA": "/d"}})
    planned = plan_of(spec)
    last = planned.tasks[-2:]
    assert [(str(task.id), task.host) for task in last] == [("prepare-0", "a"), ("prepare-1", "b")]
    assert [str(task.id) for task in planned.members] == ["worker-0", "worker-1"]
    assert (last[0].order.cwd, last[0].order.port, last[0].order.cluster) == ("/w", None, None)
    start = planned.orders("a", names=("prepare-0",))
    assert [order.task for order in start.orders] == ["prepare-0"]
    assert start.env["DATA"] == "/d"
    assert planned.orders("a").env_defaults == plan_of(spec_of("fetch", tasks={"worker": 2})).orders("a").env_defaults
    assert [task.host for task in plan_of(spec_of({"run": "fetch", "hosts": "first"}, tasks={"worker": 3})).tasks[3:]] == ["a"]


# --- histories ----------------------------------------------------------------------------------


def test_the_tasks_start_when_every_host_is_prepared_and_nothing_of_that_is_left() -> None:
    history = History(POLICY, PREPARED)
    assert history.did == [ev.MakePlan(1), ev.StartAttempt(1, ("prepare-0", "prepare-1"))]
    assert history.cluster.phase is Phase.PREPARING
    history.happen(ev.TaskExited("prepare-0", 1, 0, stopped=False, at=110.0))  # and has left something behind that still runs
    prepared(history, "prepare-1", at=120.0)
    assert "waiting for prepare-0" in readiness.describe_formation(history.cluster)
    assert len(history.did) == 2
    assert history.happen(ev.TaskSwept("prepare-0", 1, 125.0)) == [ev.StartAttempt(1, tuple(WORKERS))]
    assert (history.cluster.phase, history.cluster.attempt_at) == (Phase.STARTING, 125.0)
    assert "(0 of 3 up)" in readiness.describe_formation(history.cluster)
    for name in WORKERS:
        history.happen(ev.TaskStarted(name, 1, 1, 126.0), ev.TaskUp(name, 1, 127.0))
    assert history.cluster.phase is Phase.RUNNING
    for name in WORKERS:
        history.end(name)
    assert history.sweep_all().outcome is Outcome.SUCCEEDED


def test_only_its_own_time_limit_holds_while_a_host_is_prepared() -> None:
    history = History(POLICY, PREPARED)
    assert deadlines.next_deadline(history.cluster) == 130.0
    prepared(history, "prepare-0", "prepare-1")
    assert deadlines.next_deadline(history.cluster) == 160.0  # the start's, from the end of the preparation on
    late = History(POLICY, PREPARED)
    prepared(late, "prepare-0")
    late.happen(ev.TaskStarted("prepare-1", 1, 9, 101.0))
    actions = late.happen(ev.Tick(130.0))
    assert ev.Stop(("prepare-1",), 5.0) in actions
    late.happen(ev.TaskExited("prepare-1", 1, 143, stopped=True, at=131.0), ev.TaskSwept("prepare-1", 1, 131.0))
    verdict = late.verdict
    assert (verdict.outcome, verdict.exit_code) == (Outcome.TIMED_OUT, DEADLINE)
    assert late.cause.what == "prepare-1 has not ended 30 s after the start (timeouts.prepare_s)"
