"""The agent tries the ports of its own tasks; `test_agent.py` has it with real tasks."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from worker.host.network.listen_probe import Prober
from worker.host.processes.loop import Loop
from worker.protocol import messages


class Frames(list[Any]):
    """Takes what the prober sends to the controller."""

    def send(self, frame: Any) -> None:
        self.append(frame)


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made._selector.close()


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port at which nobody listens, and nobody will."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def order_of(index: int, port: int) -> messages.TaskOrder:
    return messages.TaskOrder(f"worker-{index}", 1, messages.Program("serve"), "/", f"worker-{index}", port=port)


def test_the_port_of_a_task_that_has_ended_is_not_tried_any_more(loop: Loop, closed_port: int) -> None:
    sent: Any = Frames()
    prober = Prober(loop, sent)
    ended, other = order_of(0, closed_port), order_of(1, closed_port)
    for order in (ended, other):
        prober.watch(order, str)
    prober.forget(ended)
    prober.poll()
    assert [(type(frame), frame.task) for frame in sent] == [(messages.TaskWaiting, "worker-1")]
    assert prober.is_closed(other)
    assert not prober.is_closed(ended)


def test_one_timer_serves_all_ports_however_many_tasks_have_ended(loop: Loop, closed_port: int) -> None:
    sent: Any = Frames()
    prober = Prober(loop, sent)
    for index in range(5):
        order = order_of(index, closed_port)
        prober.watch(order, str)
        prober.forget(order)
    assert len(loop._timers) == 1
