"""The clusters in ``TF_CONFIG``.

Tested with TensorFlow 2.21: an evaluator must be in the cluster of its own TF_CONFIG (else ``KeyError: 'evaluator'`` from
multi_worker_util.py), but not in the cluster of any other task (under ParameterServerStrategy the chief then never comes up;
tensorflow#46169).
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from worker.protocol.task_id import TASK_TYPES, TaskId

from ..strategies import EVALUATION, TRAINING, Strategy


def clusters(strategy: Strategy, addresses: Mapping[TaskId, str]) -> dict[str, str]:
    """The clusters of a strategy by name, each as JSON text: ``{"worker": ["host:port", …], …}``."""
    members: dict[str | None, dict[str, list[str]]] = {}
    for task in sorted(addresses, key=lambda task: (TASK_TYPES.index(task.type), task.index)):
        members.setdefault(strategy.role(task.type).cluster, {}).setdefault(task.type, []).append(addresses[task])
    training = members.get(TRAINING, {})
    found = {TRAINING: training, EVALUATION: {**training, **members.get(EVALUATION, {})}}
    return {name: json.dumps(cluster) for name, cluster in found.items() if name in members}
