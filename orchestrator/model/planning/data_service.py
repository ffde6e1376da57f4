"""The tf.data service of a cluster: what its servers are told, and what the training is told of them.

A dispatcher and its workers make the input that a script hands over with `tf.data.experimental.service.distribute`. orch runs the
servers itself (worker/task/strategy/data_service_server.py). They are in no TF_CONFIG and have no rank; whoever reads from them
needs one address.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from worker.protocol.messages import DATA_SERVICE, Program, TaskId, TaskOrder, TaskSettings

PROGRAM = Program("data_service")
DISPATCHER = TaskId(DATA_SERVICE[0], 0)


def environment(addresses: Mapping[TaskId, str]) -> dict[str, str]:
    """What all tasks are told of the service; empty where there is none."""
    return {"ORCH_DATA_SERVICE": f"grpc://{addresses[DISPATCHER]}"} if DISPATCHER in addresses else {}


def serve(order: TaskOrder, address: str) -> TaskOrder:
    """The order of a server that others reach by `address`."""
    return replace(order, program=Program(PROGRAM.kind, args=(address,)), settings=TaskSettings())


def in_attempt(order: TaskOrder, since: int) -> TaskOrder:
    """The same order in a cluster that was started as a whole in attempt `since`.

    A dispatcher that comes back alone finds the jobs that it had. One that starts with all others begins with none: the
    training starts anew as well, and must not go on in the middle of an epoch of which it has lost what it had read. For runs that
    start anything again: in others nobody would read that state.
    """
    if order.task != str(DISPATCHER):
        return order
    return replace(order, program=replace(order.program, args=(*order.program.args, f"data_service/attempt-{since}")))
