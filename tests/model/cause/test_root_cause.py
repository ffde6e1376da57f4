"""Who failed first, from what really happened with TensorFlow 2.21 (lost_peers.json) and in every order in which it can be heard of."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from orchestrator.model.cause import root_cause
from orchestrator.model.policy import lifecycle as lc
from orchestrator.model.settings import Restart
from orchestrator.model.state import events as ev
from orchestrator.model.state.cluster import Cause, Cluster, Outcome, Policy, Verdict
from tests.record.states import begun
from worker.protocol.frames import OWN_CLUSTER
from worker.protocol.messages import Evidence, Failure

CASES: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("lost_peers.json").read_text())
T0 = 200.0
HEARTBEATS = "The following tasks are unhealthy (stopped sending heartbeats):\n/job:worker/replica:0/task:{}\n"
TIMED_OUT = "Collective has timed out during execution."


def as_failure(told: dict[str, Any], skew: float) -> Failure:
    trace = f"Traceback (most recent call last):\n{told['type']}: {told['message']}\n"
    return Failure(told["type"], told["message"], trace, T0 + told["at"] + skew)


def exits(case: str, skews: dict[str, float] | None = None) -> list[ev.TaskExited]:
    """The ends of a case, as agents report them whose clocks are wrong by `skews` seconds."""
    found = []
    for task, end in CASES[case]["ended"].items():
        skew = (skews or {}).get(task, 0.0)
        failure = as_failure(end["failure"], skew) if "failure" in end else None
        found.append(ev.TaskExited(task, 1, end["code"], False, T0 + end["at"] + skew, failure, killed=end["code"] > 128))
    return found


def lost(peer: str, at: float) -> Failure:
    kind = "tensorflow.python.framework.errors_impl.UnavailableError"
    message = HEARTBEATS.format(peer) if peer else TIMED_OUT
    return Failure(kind, message, f"Traceback …\n{kind}: {message}\n", at)


def raised(at: float, message: str = "boom") -> Failure:
    return Failure("ValueError", message, f"Traceback …\nValueError: {message}\n", at)


def run(events: list[ev.TaskExited], tasks: list[str], strategy: str = "multi_worker_mirrored") -> tuple[Verdict, list[ev.Action]]:
    """The verdict after these ends, in this order; tasks that are not in them are stopped by us. And what was ordered."""
    cluster = begun(Policy(strategy), {task: f"host-{task}" for task in tasks})
    did: list[ev.Action] = []
    last = T0 + 60
    started = [ev.TaskStarted(task, 1, 9, 101.0) for task in tasks]
    ended = {event.task for event in events}
    stopped = [ev.TaskExited(task, 1, 143, True, last) for task in tasks if task not in ended]
    swept = [ev.TaskSwept(task, 1, last) for task in tasks]
    happened: list[ev.Event] = [*started, *events, *stopped, *swept]
    for event in happened:
        cluster, actions = lc.step(cluster, event)
        did += actions
    assert cluster.verdict is not None
    return cluster.verdict, did


def cause(events: list[ev.TaskExited], tasks: list[str], strategy: str = "multi_worker_mirrored") -> Cause:
    verdict, _ = run(events, tasks, strategy)
    assert verdict.outcome is Outcome.FAILED
    assert verdict.cause is not None
    return verdict.cause


def names(case: str) -> list[str]:
    return sorted({*CASES[case]["ended"], *CASES[case]["alive"]}, key=lambda name: (name[:2] != "ch", name))


@pytest.mark.parametrize("skew", [-3.0, 0.0, 3.0])
@pytest.mark.parametrize("case", CASES)
def test_the_victim_is_named_in_whatever_order_and_by_whatever_clock_it_is_heard_of(case: str, skew: float) -> None:
    told = CASES[case]
    victim = "chief-0" if told["victim"] == "x" else told["victim"]
    for order in permutations(exits(case, {victim: skew})):
        found = cause(list(order), names(case), told["strategy"])
        assert (found.suspect or found.task) == victim
        assert bool(found.suspect) is (victim in told["alive"])
        others = {end.task for end in found.secondary}
        assert others == told["ended"].keys() - {found.task}


@pytest.mark.parametrize(("at", "stopped_by"), [(109.0, "failed_first"), (111.0, "failed_first"), (109.0, "clock")])
def test_one_that_was_dying_when_we_stopped_it_is_the_cause(at: float, stopped_by: str) -> None:
    first = ev.TaskExited("worker-0", 1, 1, False, 110.0, lost("1", 109.5))
    evidence = Evidence(failed_first=stopped_by == "failed_first")
    dying = ev.TaskExited("worker-1", 1, 143, True, 112.0, raised(at), evidence=evidence)
    found = cause([first, dying], ["worker-0", "worker-1"])
    assert (found.task, found.code) == ("worker-1", 1)
    assert [(end.task, end.lost) for end in found.secondary] == [("worker-0", "worker-1 (it stopped sending heartbeats)")]


def test_the_one_whose_end_was_seen_first_need_not_be_the_cause() -> None:
    first, second = (
        ev.TaskExited("worker-1", 1, 1, False, 110.0, raised(109.5, "thud")),
        ev.TaskExited("worker-0", 1, 1, False, 110.1, raised(109.3)),
    )
    assert cause([first, second], ["worker-0", "worker-1"]).task == "worker-0"
    assert cause([second, first], ["worker-0", "worker-1"]).task == "worker-0"
    missing = ev.TaskExited("worker-2", 1, 1, False, 110.2, lost("0", 110.1))
    found = cause([first, replace(second, failure=raised(109.8)), missing], ["worker-0", "worker-1", "worker-2"])
    assert (found.task, [end.task for end in found.secondary]) == ("worker-0", ["worker-2"])


def test_of_two_with_the_same_error_the_one_that_the_screen_has_named_is_the_cause() -> None:
    told = ev.TaskExited("worker-1", 1, 1, False, 110.0, raised(109.5, "no device /job:worker/task:1 of <A at 0x7f1c>"))
    earlier = ev.TaskExited("worker-0", 1, 1, False, 110.1, raised(109.3, "no device /job:worker/task:0 of <A at 0x7fdd>"))
    assert cause([told, earlier], ["worker-0", "worker-1"]).task == "worker-1"
    assert cause([earlier, told], ["worker-0", "worker-1"]).task == "worker-0"


def test_what_we_made_a_task_do_is_never_the_cause_whoever_names_it() -> None:
    first = ev.TaskExited("worker-0", 1, 1, False, 110.0, lost("1", 109.5))
    for end in (
        ev.TaskExited("worker-1", 1, 137, True, 112.0),
        ev.TaskExited("worker-1", 1, 9, True, 112.0),
        ev.TaskExited("worker-1", 1, 1, True, 112.0, raised(111.0)),
    ):
        found = cause([first, end], ["worker-0", "worker-1"])
        assert (found.task, found.suspect) == ("worker-0", "worker-1")


def test_a_crash_whose_core_was_still_being_written_when_its_peers_missed_it_is_the_cause() -> None:
    first = ev.TaskExited("worker-0", 1, 1, False, 110.0, lost("1", 109.5))
    assert cause([first, ev.TaskExited("worker-1", 1, 139, True, 130.0, killed=True)], ["worker-0", "worker-1"]).task == "worker-1"
    # One that nobody had missed crashed because of us.
    other = ev.TaskExited("worker-2", 1, 139, True, 130.0, killed=True)
    found = cause([first, other], ["worker-0", "worker-1", "worker-2"])
    assert (found.task, found.suspect) == ("worker-0", "worker-1")
    # And so did one that stood still until orch stopped it.
    stood = replace(other, task="worker-1", evidence=Evidence(condition="stopped (SIGSTOP)"))
    found = cause([first, stood], ["worker-0", "worker-1"])
    assert (found.task, found.suspect) == ("worker-0", "worker-1")
    assert found.what == "failed because it lost worker-1 (it stopped sending heartbeats), which was stopped (SIGSTOP)"


def test_an_error_that_names_nobody_is_about_the_only_one_that_is_left() -> None:
    first = ev.TaskExited("worker-0", 1, 1, False, 110.0, lost("", 109.5))
    assert cause([first], ["worker-0", "worker-1"]).suspect == "worker-1"
    found = cause([first], ["worker-0", "worker-1", "worker-2"])
    assert (found.suspect, found.what) == ("", "failed because it lost a peer (a collective operation timed out)")


def test_a_chain_of_losses_is_followed_to_its_beginning() -> None:
    events = [
        ev.TaskExited("worker-2", 1, 1, False, 110.0, lost("1", 105.0)),
        ev.TaskExited("worker-1", 1, 1, False, 110.1, lost("0", 109.0)),
        ev.TaskExited("worker-3", 1, 5, False, 110.2, raised(104.0)),
        ev.TaskExited("worker-0", 1, 7, False, 111.0),
    ]
    found = cause(events, [f"worker-{i}" for i in range(4)])
    assert (found.task, found.code) == ("worker-0", 7)
    assert [(end.task, end.lost) for end in found.secondary] == [
        ("worker-2", "worker-1 (it stopped sending heartbeats)"),
        ("worker-1", "worker-0 (it stopped sending heartbeats)"),
    ]


def test_two_that_name_each_other_still_give_a_verdict() -> None:
    events = [
        ev.TaskExited("worker-0", 1, 1, False, 110.0, lost("1", 109.0)),
        ev.TaskExited("worker-1", 1, 1, False, 110.0, lost("0", 108.0)),
    ]
    found = cause(events, ["worker-0", "worker-1"])
    assert (found.task, found.suspect) == ("worker-1", "")


def test_one_that_left_early_is_the_cause_if_it_is_missed_and_gives_1() -> None:
    left = ev.TaskExited("worker-1", 1, 0, False, 105.0)
    for message in ("1", ""):
        verdict, _ = run([left, ev.TaskExited("worker-0", 1, 7, False, 110.0, lost(message, 109.0))], ["worker-0", "worker-1"])
        assert verdict.cause is not None
        assert (verdict.cause.task, verdict.cause.code, verdict.exit_code) == ("worker-1", 0, 1)
        assert "same number of steps" in verdict.cause.remedy
    # A failure of the other's own has nothing to do with it.
    assert cause([left, ev.TaskExited("worker-0", 1, 7, False, 110.0, raised(109.0))], ["worker-0", "worker-1"]).task == "worker-0"


def served(*events: ev.TaskExited) -> Cause:
    """The first cause under a parameter server, where lost workers come back alone."""
    tasks = ["chief-0", "worker-0", "worker-1", "ps-0"]
    cluster = begun(Policy("parameter_server", restart=Restart(max=1, backoff_s=60.0)), dict.fromkeys(tasks, "a"))
    stopped = [ev.TaskExited(task, 1, 143, True, T0) for task in tasks if task not in {event.task for event in events}]
    happened: list[ev.Event] = [*events, *stopped, *(ev.TaskSwept(task, 1, T0) for task in tasks)]
    for event in happened:
        cluster, _ = lc.step(cluster, event)
    past = [attempt.cause for attempt in cluster.past if not attempt.task]
    found = cluster.verdict.cause if cluster.verdict else past[-1]
    assert found is not None
    return found


def test_a_worker_that_was_about_to_come_back_alone_is_not_blamed_for_what_the_chief_does_later() -> None:
    gone = ev.TaskExited("worker-1", 1, 7, False, 105.0)
    assert served(gone, ev.TaskExited("chief-0", 1, 3, False, 106.0, raised(106.0))).task == "chief-0"
    assert served(gone, ev.TaskExited("chief-0", 1, 1, False, 106.0, lost("1", 106.0))).task == "worker-1"


def test_an_evaluator_is_neither_cause_nor_suspect() -> None:
    crashed = ev.TaskExited("evaluator-0", 1, 139, False, 104.0, killed=True)
    first = ev.TaskExited("worker-0", 1, 1, False, 110.0, lost("", 109.5))
    assert cause([crashed, first], ["worker-0", "worker-1", "evaluator-0"]).suspect == "worker-1"


def test_a_server_of_a_data_service_is_a_cause_of_its_own_and_no_lost_peer() -> None:
    tasks = ["worker-0", "worker-1", "dispatcher-0", "data_worker-0"]
    unknown = ev.TaskExited("worker-0", 1, 1, False, 110.0, lost("", 109.5))
    assert cause([unknown], tasks).suspect == "worker-1"
    crashed = ev.TaskExited("data_worker-0", 1, 139, False, 111.0, killed=True)
    assert cause([unknown, crashed], tasks).task == "data_worker-0"
    ended = cause([ev.TaskExited("dispatcher-0", 1, 0, False, 104.0)], tasks)
    assert (ended.task, ended.what, ended.remedy) == ("dispatcher-0", root_cause.LEFT_EARLY, "")


def test_an_end_that_no_failure_has_decided_keeps_its_cause() -> None:
    verdict = Verdict(Outcome.CANCELLED, 130, 1, 100.0, 110.0, Cause("interrupted (Ctrl-C)", 109.0))
    cluster = begun(Policy("none"), {"worker-0": "a"})
    assert root_cause.find_cause(cluster, verdict) is verdict


OWN = f"train.py {OWN_CLUSTER} (portpicker): then start it with --strategy none"
SAVES = "train.py:7: save() of Keras 3 fails for 'model': end the name with .keras or .h5"
OTHER = "train.py:70: another line"


@pytest.mark.parametrize(
    ("notes", "failure", "is_up", "remedy"),
    [
        ((OTHER, SAVES), Failure("ValueError", "no", 'File "/work/train.py", line 7, in <module>\nValueError: no\n', T0), True, SAVES),
        ((SAVES,), Failure("ValueError", "no", 'File "/work/train.py", line 70, in <module>\nValueError: no\n', T0), True, ""),
        ((SAVES,), Failure("ValueError", "no", 'File "/work/my_train.py", line 7, in <module>\nValueError: no\n', T0), True, ""),
        ((OWN,), Failure("Error", "Could not start gRPC server", "Traceback …", T0), False, f"{OWN}; use a port of TF_CONFIG"),
        ((OWN,), raised(T0), True, ""),
        (
            (OWN,),
            Failure("ModuleNotFoundError", "No module named 'portpicker'", "Traceback …", T0),
            False,
            "a module of yours: --env PYTHONPATH=DIR; a package: python -m pip install portpicker ",
        ),
    ],
)
def test_a_note_before_the_start_that_turns_out_right_is_the_remedy(
    notes: tuple[str, ...], failure: Failure, is_up: bool, remedy: str
) -> None:
    cluster, _ = lc.step(Cluster(), ev.RunBegun(90.0, "run", Policy("multi_worker_mirrored")))
    history: list[ev.Event] = [ev.HostReady(1, "python", "3.11", 2, notes=notes), ev.Planned(1, {"worker-0": "a"}, 100.0)]
    history += [ev.TaskStarted("worker-0", 1, 9, 101.0), *([ev.TaskUp("worker-0", 1, 102.0)] if is_up else [])]
    history += [ev.TaskExited("worker-0", 1, 1, False, T0, failure), ev.TaskSwept("worker-0", 1, T0)]
    for event in history:
        cluster, _ = lc.step(cluster, event)
    assert cluster.verdict is not None
    assert cluster.verdict.cause is not None
    said = cluster.verdict.cause.remedy
    assert said.startswith(f"as a line before the start said: {remedy}" if remedy.startswith(notes) else remedy)
    assert bool(said) == bool(remedy)
