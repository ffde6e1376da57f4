"""The tf.data service of a cluster: the orders of its servers, and the address for the training.

A dispatcher and its workers make the input that a script passes to `tf.data.experimental.service.distribute`. orch runs these servers
(worker/task/strategy/data_service_server.py). The servers are in no TF_CONFIG and have no rank. A reader needs the dispatcher's address.
"""

from __future__ import annotations

from dataclasses import replace

from worker.protocol.messages import Program, TaskOrder
from worker.protocol.task_id import DATA_SERVICE, TaskId

PROGRAM = Program("data_service")
DISPATCHER = TaskId(DATA_SERVICE[0], 0)


def in_attempt(order: TaskOrder, since: int) -> TaskOrder:
    """The order for a cluster that started as a whole in attempt `since`. Only for runs that may restart.

    A dispatcher that restarts alone finds its jobs again. A dispatcher that starts with all other tasks has no jobs: the training starts
    anew too, and must not continue in the middle of an epoch.
    """
    if order.task != str(DISPATCHER):
        return order
    return replace(order, program=replace(order.program, args=(*order.program.args, f"data_service/attempt-{since}")))
