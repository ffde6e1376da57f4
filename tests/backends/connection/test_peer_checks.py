"""Who asks whom, when, and what becomes of the answers: `PeerChecks`, without a network."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from orchestrator.backends.connection import peer_checks
from orchestrator.backends.connection.agent_link import Loss, LostError
from orchestrator.backends.connection.peer_checks import PeerChecks
from orchestrator.model.planning import plan
from orchestrator.model.planning.plan import HostFacts, Plan
from orchestrator.model.spec import ClusterSpec, TaskSpec
from worker.protocol import messages

ADDRESSES = {"a": "10.0.0.1", "b": "fd00::2", "c": "10.0.0.3"}


class Link:
    """Keeps its requests; a test answers them."""

    def __init__(self) -> None:
        self.tried: list[messages.Target] = []
        self.requests: list[asyncio.Future[messages.Tried]] = []

    async def request(self, order: messages.Try) -> messages.Tried:
        self.tried += order.targets
        self.requests.append(asyncio.get_running_loop().create_future())
        return await self.requests[-1]


class Scene:
    """A planned cluster, and what came of visits in it."""

    def __init__(self, **tasks: int) -> None:
        program, wanted = messages.Program("script", "a.py"), tuple(TaskSpec(name, count=count) for name, count in tasks.items())
        spec = ClusterSpec("trial", "multi_worker_mirrored", program, wanted, "/")
        placement = plan.place(spec, dict.fromkeys(ADDRESSES))
        facts = [HostFacts(name, ADDRESSES[name], 1, tuple(range(5000, 5000 + len(ids)))) for name, ids in placement.items()]
        planned: Plan = plan.make("run", spec, placement, facts)
        self.hosts = planned.hosts_by_task
        self.links = {name: Link() for name in ADDRESSES}
        self.happened: list[messages.TaskUp | messages.TaskWaiting] = []
        self.going_on = True
        self.checks = PeerChecks(planned, self.links, self.happened.append, lambda task, attempt: self.going_on)  # type: ignore[arg-type]

    async def answer(self, host: str, target: messages.Target, refusal: str = "") -> None:
        results = (messages.Reached(target.host, target.addresses[0], refusal),)
        next(request for request in self.links[host].requests if not request.done()).set_result(messages.Tried(results))
        await settle()

    async def on_up(self, *tasks: str) -> None:
        for task in tasks:
            self.checks.on_up(messages.TaskUp(task, 1, 7.0))
        await settle()

    def up(self) -> list[str]:
        return [event.task for event in self.happened if isinstance(event, messages.TaskUp)]

    def reason(self) -> str:
        return next(event.reason for event in reversed(self.happened) if isinstance(event, messages.TaskWaiting))


async def settle() -> None:
    """Let everything happen that needs no more answers."""
    for _ in range(10):
        await asyncio.sleep(0)


def in_a_loop(play: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(play)
    def run(*words: Any, **settings: Any) -> None:
        asyncio.run(play(*words, **settings))

    return run


@in_a_loop
async def test_a_task_is_up_when_all_other_hosts_have_reached_it() -> None:
    scene = Scene(worker=3)
    await scene.on_up("worker-1")
    assert scene.up() == []
    (target,) = scene.links["a"].tried
    assert (target.port, target.addresses, target.word) == (5000, ("fd00::2",), "")
    assert scene.links["b"].tried == []
    await scene.answer("a", target)
    assert scene.up() == []
    await scene.answer("c", target)
    assert scene.happened[-1] == messages.TaskUp("worker-1", 1, 7.0)


@pytest.mark.parametrize("task", ["worker-0", "evaluator-0"])
@in_a_loop
async def test_one_whom_nobody_else_looks_for_is_up_at_once(task: str) -> None:
    scene = Scene(worker=1, evaluator=1)
    await scene.on_up(task)
    assert scene.up() == [task]
    assert not any(link.tried for link in scene.links.values())


@in_a_loop
async def test_a_host_has_one_request_at_a_time_and_what_comes_up_meanwhile_goes_together() -> None:
    scene = Scene(worker=9)
    first = next(name for name, host in scene.hosts.items() if host == "b")
    await scene.on_up(first)
    await scene.on_up(*(name for name in scene.hosts if name != first))
    asked = scene.links["a"]
    assert len(asked.requests) == 1
    await scene.answer("a", asked.tried[0])
    assert len(asked.requests) == 2
    assert len(asked.tried) == 6  # the tasks of the two other hosts


@in_a_loop
async def test_what_was_not_reached_is_named_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_checks, "AGAIN_S", 0.0)
    scene = Scene(worker=3)
    await scene.on_up("worker-1")
    (target,) = scene.links["a"].tried
    await scene.answer("a", target, "timed out")
    await scene.answer("c", target)
    assert scene.reason() == "its port is open on b, but a cannot reach [fd00::2]:5000: timed out"
    assert len(scene.links["a"].tried) == 2
    await scene.answer("a", target)
    assert scene.up() == ["worker-1"]


@in_a_loop
async def test_a_task_that_has_ended_is_tried_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_checks, "AGAIN_S", 0.0)
    scene = Scene(worker=3)
    scene.going_on = False
    await scene.on_up("worker-1")
    await scene.answer("a", scene.links["a"].tried[0], "connection refused")
    assert len(scene.links["a"].tried) == 1
    assert scene.up() == []


@in_a_loop
async def test_a_host_that_is_lost_while_it_tries_is_no_mistake() -> None:
    """Its loss is an event of its own; another host's answers still count."""
    scene = Scene(worker=3)
    complaints: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    await scene.on_up("worker-1")
    scene.links["a"].requests[0].set_exception(LostError("a", Loss("its agent was killed")))
    await scene.answer("c", scene.links["c"].tried[0])
    assert (scene.up(), complaints) == ([], [])
