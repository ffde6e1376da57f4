"""The tf.data service of a cluster: the orders of its servers, and the address for the training.

A dispatcher and its workers make the input that a script passes to `tf.data.experimental.service.distribute`. orch runs these servers
(worker/task/strategy/data_service_server.py). The servers are in no TF_CONFIG and have no rank. A reader needs the dispatcher's address.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from worker.protocol.messages import Program, TaskOrder
from worker.protocol.task_id import DATA_SERVICE, TaskId
from worker.settings.task_settings import TaskSettings

PROGRAM = Program("data_service")
DISPATCHER = TaskId(DATA_SERVICE[0], 0)


def environment(addresses: Mapping[TaskId, str]) -> dict[str, str]:
    """The variables of all tasks; empty without a service."""
    return {"ORCH_DATA_SERVICE": f"grpc://{addresses[DISPATCHER]}"} if DISPATCHER in addresses else {}


def serve(order: TaskOrder, address: str) -> TaskOrder:
    """The order of a server with this address."""
    return replace(order, program=Program(PROGRAM.kind, args=(address,)), settings=TaskSettings())


def in_attempt(order: TaskOrder, since: int) -> TaskOrder:
    """The order for a cluster that started as a whole in attempt `since`. Only for runs that may restart.

    A dispatcher that restarts alone finds its jobs again. A dispatcher that starts with all other tasks has no jobs: the training starts
    anew too, and must not continue in the middle of an epoch.
    """
    if order.task != str(DISPATCHER):
        return order
    return replace(order, program=replace(order.program, args=(*order.program.args, f"data_service/attempt-{since}")))
