"""Who sees whom: the clusters that go into ``TF_CONFIG``, per strategy.

Checked on TensorFlow 2.21: an evaluator must find itself in its own cluster (else ``KeyError: 'evaluator'``
from multi_worker_util.py), and must not be in anybody else's (under ParameterServerStrategy the chief then never
comes up; tensorflow#46169).
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from worker.contract import DATA_SERVICE, TASK_TYPES, TaskId

from .spec import SINGLE_TASK_STRATEGIES

TRAINING = "training"
EVALUATION = "evaluation"


def cluster_name(strategy: str, task: TaskId) -> str | None:
    """Which cluster's addresses a task is told; None: it gets no TF_CONFIG at all."""
    if strategy in SINGLE_TASK_STRATEGIES or task.type in DATA_SERVICE:
        return None
    return EVALUATION if task.type == "evaluator" else TRAINING


def clusters(strategy: str, addresses: Mapping[TaskId, str]) -> dict[str, str]:
    """The clusters of a strategy by name, each as JSON text: ``{"worker": ["host:port", …], …}``."""
    if strategy in SINGLE_TASK_STRATEGIES:
        return {}
    everybody = {
        kind: [address for _, address in sorted((task.index, address) for task, address in addresses.items() if task.type == kind)]
        for kind in TASK_TYPES
        if kind not in DATA_SERVICE
    }
    training = {kind: found for kind, found in everybody.items() if found and kind != "evaluator"}
    texts = {TRAINING: json.dumps(training)}
    if everybody["evaluator"]:
        texts[EVALUATION] = json.dumps({**training, "evaluator": everybody["evaluator"]})
    return texts
