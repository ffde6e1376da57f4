"""The objects of a run whose controller is in a pod, as manifests. Pure.

The Service owns all others, as for an attached run. The controller is a plain pod and no Job: a Job may make a second pod where the first
was deleted, and a second controller would begin the run again, with an empty record. The pods of the tasks are those of a Job, which makes
another one where one is lost; nothing of orch in the cluster has rights of its own.

So all pods are not one Job of `orch up --join` either: its node 0 would also hold GPUs until the record is fetched, for `keep_s`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from worker.host.network import dialler, proof
from worker.machine.clock import patience

from ...model.settings import ClusterSpec, KubernetesSettings, PodSettings
from ..connection.listener import PORT
from . import keeper_program, start_program
from .object_names import INSIDE, MAIN, labels_of
from .packed_files import MOST_PARTS, directory_of
from .pods import HOME, QUEUE, Manifest, Owner, PodWish, literal, pod, pod_template
from .run_objects import OWNER_UID, RELEASE_S, deadline_of, network_policy, service

TOKEN = "<a token made when the run is submitted>"
COMPONENT = "app.kubernetes.io/component"
CONTROLLER, AGENT = "controller", "agent"
KEEPER = "keeper"
RUN_DIR, FILES_DIR = "/orch-run", "/orch-files"
"""Where the pods see the token and the programs; and where the controller sees the archive."""
BEFORE_S, AFTER_S = patience(900.0), patience(120.0)
"""How long a pod of tasks waits for the controller at first, before Kubernetes makes another one; and how long after it was reached."""
MOST_PODS_LOST = 20
"""How many more pods than those of the attempts may fail, before Kubernetes gives the Job up."""
_CONTROLLER = {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"cpu": "2", "memory": "1Gi"}}
_KEEPER = {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"cpu": "500m", "memory": "256Mi"}}
_ALL_MAY_READ = 0o444
"""Of a volume: anyone who is in the container. A user without a group of the volume could not read it otherwise."""


def controller_pod(name: str) -> str:
    return f"{name}-{CONTROLLER}"


def agents_job(name: str) -> str:
    return f"{name}-agents"


def part_secret(name: str, number: int) -> str:
    return f"{name}-files-{number}"


def manifests(
    settings: KubernetesSettings, spec: ClusterSpec, run_id: str, name: str, pods: int, gpus: int, python: str
) -> tuple[Manifest, ...]:
    """The objects in the order in which they are made, the Service first; without the archive's Secrets."""
    labels, owner = labels_of(name), Owner("Service", name, OWNER_UID)
    programs = {"start.py": start_program, "keep.py": keeper_program, "dial.py": dialler, "proof.py": proof}
    texts = {file: Path(str(module.__file__)).read_text(encoding="utf-8") for file, module in programs.items()}
    return (
        service(name, labels, labels),
        network_policy(name, labels, labels, owner),
        secret(name, labels, owner, {"token": TOKEN, **texts}),
        _controller(settings, spec, run_id, name, python, owner),
        _agents(settings, spec, name, pods, gpus, python, owner),
    )


def secret(name: str, labels: Mapping[str, str], owner: Owner, texts: Mapping[str, str]) -> Manifest:
    metadata = {"name": name, "labels": dict(labels), "ownerReferences": [owner.reference()]}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": dict(texts)}


def _mounted(own: PodSettings, **volumes: Mapping[str, Any]) -> PodSettings:
    return replace(own, volumes={**own.volumes, **{path: json.dumps(source) for path, source in volumes.items()}})


def _run_files(name: str) -> Mapping[str, Any]:
    return {"secret": {"secretName": name, "defaultMode": _ALL_MAY_READ}}


def _controller(settings: KubernetesSettings, spec: ClusterSpec, run_id: str, name: str, python: str, owner: Owner) -> Manifest:
    """The pod of the controller, with a second container that keeps the record until it is fetched."""
    parts = [
        {"secret": {"name": part_secret(name, number), "optional": number > 0, "items": [{"key": "part", "path": f"part-{number}"}]}}
        for number in range(MOST_PARTS)
    ]
    archive = {"projected": {"defaultMode": _ALL_MAY_READ, "sources": parts}}
    # What the tasks need, the controller does not: no GPU, no volume, no queue.
    own = replace(settings.pod, resources={}, requests={}, volumes={}, secrets=(), queue="")
    start = (python, "-I", f"{RUN_DIR}/start.py", FILES_DIR, HOME, directory_of(run_id), INSIDE)
    keep = (python, "-I", f"{RUN_DIR}/keep.py", HOME, f"{RUN_DIR}/token", str(PORT), f"{settings.keep_s:g}")
    wish = PodWish(
        command=tuple(map(literal, start)),
        labels={**labels_of(name), COMPONENT: CONTROLLER},
        grace_s=spec.timeouts.grace_s + 2 * RELEASE_S,
        deadline_s=deadline_of(settings, spec) + settings.keep_s,
        subdomain=name,
        ports=(PORT,),
    )
    made = pod(replace(settings, pod=_mounted(own, **{RUN_DIR: _run_files(name), FILES_DIR: archive})), wish, controller_pod(name), owner)
    made["spec"]["hostname"] = CONTROLLER
    main = next(one for one in made["spec"]["containers"] if one["name"] == MAIN)
    main |= {"resources": _CONTROLLER, "terminationMessagePolicy": "FallbackToLogsOnError"}
    keeper = {**main, "name": KEEPER, "command": list(map(literal, keep)), "resources": _KEEPER}
    del keeper["ports"]
    made["spec"]["containers"].append(keeper)
    return made


def _agents(settings: KubernetesSettings, spec: ClusterSpec, name: str, pods: int, gpus: int, python: str, owner: Owner) -> Manifest:
    """The pods of the tasks, as a Job that has all of them at the same time."""
    where = (f"{CONTROLLER}.{name}", str(PORT), f"{RUN_DIR}/token", f"{BEFORE_S:g}", f"{AFTER_S:g}")
    field = {dialler.POD: "metadata.name", dialler.ADDRESS: "status.podIP"}
    wish = PodWish(
        command=tuple(map(literal, (python, "-I", f"{RUN_DIR}/dial.py", *where))),
        labels={**labels_of(name), COMPONENT: AGENT},
        env={key: {"valueFrom": {"fieldRef": {"fieldPath": path}}} for key, path in field.items()},
        gpus=gpus,
        grace_s=spec.timeouts.grace_s + RELEASE_S,
        deadline_s=deadline_of(settings, spec),
        subdomain=name,
    )
    # The queue of Kueue is the Job's.
    own = replace(_mounted(settings.pod, **{RUN_DIR: _run_files(name)}), queue="")
    queue = {QUEUE: settings.pod.queue} if settings.pod.queue else {}
    metadata = {"name": agents_job(name), "labels": {**labels_of(name), **queue}, "ownerReferences": [owner.reference()]}
    body = {
        "parallelism": pods,
        "completions": pods,
        # From the Job's beginning, so with the wait for room, of which the pods' own limit knows nothing.
        "activeDeadlineSeconds": math.ceil(settings.deadline_s + deadline_of(settings, spec)),
        "backoffLimit": MOST_PODS_LOST + pods * spec.restart.max,
        "template": pod_template(replace(settings, pod=own), wish),
    }
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": body}
