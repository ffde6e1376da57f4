"""A JobSet, or Jobs, of the pods of a training: what fails, what starts again, and when the training is done. Pure.

A JobSet (jobset.x-k8s.io/v1alpha2) restarts all pods of a training together, as TensorFlow's collectives need it, and ends the servers when
the tasks that decide are done. Jobs alone do neither. Exit code 42 is TensorFlow's "saved, start me again" (`PreemptionCheckpointHandler`):
it costs none of the restarts, nor does the loss of a pod to its node (the condition DisruptionTarget).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from worker.values.fast_dataclass import dataclass

from ...model.policy.restarts import PREEMPTED
from ...model.settings import ClusterSpec, KubernetesSettings
from ...model.strategies import Role
from .object_names import MAIN
from .pods import QUEUE, Manifest

INDEX_VARIABLE = "JOB_COMPLETION_INDEX"
"""Kubernetes gives it to each container of an Indexed Job, as the last of its variables; one that others use has to come first."""
NO_LIMIT = 2**31 - 1
"""The most restarts that a Job can have."""
_DISRUPTED = [{"type": "DisruptionTarget", "status": "True"}]


@dataclass(frozen=True, slots=True)
class Group:
    """The tasks of one type: a Job, whose pods have the numbers of the tasks."""

    type: str
    count: int
    template: Manifest
    role: Role


def job_set(name: str, labels: Mapping[str, str], groups: Sequence[Group], spec: ClusterSpec, settings: KubernetesSettings) -> Manifest:
    """All groups as one object, which makes their headless Service (`name`) itself."""
    # Without this rule a JobSet would restart a training whose time is over.
    late = {"name": "late", "action": "FailJobSet", "onJobFailureReasons": ["DeadlineExceeded"]}
    body: dict[str, Any] = {
        "network": {"enableDNSHostnames": True, "subdomain": name, "publishNotReadyAddresses": True},
        "successPolicy": {"operator": "All", "targetReplicatedJobs": [group.type for group in groups if group.role.decides]},
        "failurePolicy": {
            "maxRestarts": spec.restart.max,
            "rules": [
                *([late] if spec.timeouts.run_s else []),
                {
                    "name": "asked",
                    "action": "RestartJobSetAndIgnoreMaxRestarts",
                    "onJobFailureReasons": ["PodFailurePolicy"],
                },
            ],
        },
        "replicatedJobs": [
            {"name": group.type, "replicas": 1, "template": {"metadata": {"labels": dict(labels)}, "spec": _job(group, spec, in_set=True)}}
            for group in groups
        ],
    }
    metadata = {"name": name, "labels": _queued(labels, settings)}
    return {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": metadata, "spec": body}


def jobs(name: str, labels: Mapping[str, str], groups: Sequence[Group], spec: ClusterSpec, settings: KubernetesSettings) -> list[Manifest]:
    """A Job for each group. The pods get their names from the Service with the name of the training."""
    found = []
    for group in groups:
        group.template["spec"]["subdomain"] = name
        found.append(
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": {"name": f"{name}-{group.type}", "labels": _queued(labels, settings)},
                "spec": _job(group, spec, in_set=False),
            }
        )
    return found


def _queued(labels: Mapping[str, str], settings: KubernetesSettings) -> dict[str, str]:
    return {**labels, **({QUEUE: settings.pod.queue} if settings.pod.queue else {})}


def _job(group: Group, spec: ClusterSpec, *, in_set: bool) -> dict[str, Any]:
    asked = {"containerName": MAIN, "operator": "In", "values": [PREEMPTED]}
    job: dict[str, Any] = {"completions": group.count, "parallelism": group.count, "completionMode": "Indexed"}
    # Two tasks with one name would be two members of one cluster: a new pod waits until the old one has ended.
    job["podReplacementPolicy"] = "Failed"
    if in_set and not group.role.restarts_alone:
        # The Job fails with its first pod, and the JobSet decides.
        job["backoffLimit"] = 0
        rules = [{"action": "FailJob", "onExitCodes": asked}, {"action": "FailJob", "onPodConditions": _DISRUPTED}]
    else:
        # Each Job that fails makes its JobSet restart or fail: the Job of an evaluator, which the training does not need, never fails.
        is_needed = group.role.decides or group.role.serves
        job["backoffLimitPerIndex"] = NO_LIMIT if in_set and not is_needed else spec.restart.max
        job["maxFailedIndexes"] = 0
        rules = [{"action": "Ignore", "onExitCodes": asked}, {"action": "Ignore", "onPodConditions": _DISRUPTED}]
    job["podFailurePolicy"] = {"rules": rules}
    if spec.timeouts.run_s:
        job["activeDeadlineSeconds"] = math.ceil(spec.timeouts.run_s)
    return {**job, "template": group.template}
