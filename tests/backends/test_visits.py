"""Who asks whom, when, and what becomes of the answers: `Visits`, without a network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.backends import visits
from orchestrator.backends.visits import Visits
from orchestrator.model import events, plan
from orchestrator.model.plan import HostFacts, Plan
from orchestrator.model.spec import ClusterSpec, TaskSpec
from worker import contract

ADDRESSES = {"a": "10.0.0.1", "b": "fd00::2", "c": "10.0.0.3"}


class Link:
    """Keeps what it is ordered."""

    def __init__(self) -> None:
        self.tried: list[contract.Target] = []
        self.orders = 0

    def order(self, order: contract.Try) -> None:
        self.orders += 1
        self.tried += order.targets


class Scene:
    """A planned cluster, and what came of visits in it."""

    def __init__(self, **tasks: int) -> None:
        program, wanted = contract.Program("script", "a.py"), tuple(TaskSpec(name, count=count) for name, count in tasks.items())
        spec = ClusterSpec("trial", "multi_worker_mirrored", program, wanted, "/")
        placement = plan.place(spec, dict.fromkeys(ADDRESSES))
        facts = [HostFacts(name, ADDRESSES[name], 1, tuple(range(5000, 5000 + len(ids)))) for name, ids in placement.items()]
        planned: Plan = plan.make("run", spec, placement, facts)
        self.hosts = planned.hosts_by_task
        self.links = {name: Link() for name in ADDRESSES}
        self.told: list[events.Event] = []
        self.going_on = True
        self.visits = Visits(planned, self.links, self.told.append, lambda task, attempt: self.going_on)  # type: ignore[arg-type]

    def answer(self, host: str, target: contract.Target, refusal: str = "") -> None:
        self.visits.hear(host, contract.Tried((contract.Reached(target.host, target.addresses[0], refusal),)))

    def up(self) -> list[str]:
        return [event.task for event in self.told if isinstance(event, events.TaskUp)]

    def reason(self) -> str:
        return next(event.reason for event in reversed(self.told) if isinstance(event, events.TaskWaiting))


def test_a_task_is_up_when_all_other_hosts_have_reached_it() -> None:
    scene = Scene(worker=3)
    scene.visits.begin(contract.Up("worker-1", 1, 7.0))
    assert scene.up() == []
    (target,) = scene.links["a"].tried
    assert (target.port, target.addresses, target.word) == (5000, ("fd00::2",), "")
    assert scene.links["b"].tried == []
    scene.answer("a", target)
    assert scene.up() == []
    scene.answer("c", target)
    assert scene.told[-1] == events.TaskUp("worker-1", 1, 7.0)


@pytest.mark.parametrize("task", ["worker-0", "evaluator-0"])
def test_one_whom_nobody_else_looks_for_is_up_at_once(task: str) -> None:
    scene = Scene(worker=1, evaluator=1)
    scene.visits.begin(contract.Up(task, 1, 7.0))
    assert scene.up() == [task]
    assert not any(link.tried for link in scene.links.values())


def test_a_host_has_one_order_at_a_time_and_what_comes_up_meanwhile_goes_together() -> None:
    scene = Scene(worker=9)
    for name in scene.hosts:
        scene.visits.begin(contract.Up(name, 1, 7.0))
    first = scene.links["a"].tried[0]
    assert scene.links["a"].orders == 1
    scene.answer("a", first)
    assert scene.links["a"].orders == 2
    assert len(scene.links["a"].tried) == 6  # the tasks of the two other hosts


def in_a_loop(scene: Scene, steps: Callable[[contract.Target], Any]) -> None:
    async def play() -> None:
        scene.visits.begin(contract.Up("worker-1", 1, 7.0))
        steps(scene.links["a"].tried[0])
        await asyncio.sleep(0.05)

    asyncio.run(play())


def test_what_was_not_reached_is_named_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visits, "AGAIN_S", 0.0)
    scene = Scene(worker=3)
    in_a_loop(scene, lambda target: [scene.answer("a", target, "timed out"), scene.answer("c", target)])
    assert scene.reason() == "its port is open on b, but a cannot reach [fd00::2]:5000: timed out"
    assert len(scene.links["a"].tried) == 2
    scene.answer("a", scene.links["a"].tried[1])
    assert scene.up() == ["worker-1"]


def test_a_task_that_has_ended_is_tried_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visits, "AGAIN_S", 0.0)
    scene = Scene(worker=3)
    scene.going_on = False
    in_a_loop(scene, lambda target: scene.answer("a", target, "connection refused"))
    assert len(scene.links["a"].tried) == 1
    assert scene.up() == []


def test_a_host_that_was_not_asked_is_not_heard() -> None:
    scene = Scene(worker=2, evaluator=1)
    scene.answer("c", contract.Target("worker-0, attempt 1", 5000, "", ("10.0.0.1",)))
    assert scene.told == []
