"""A pod as a manifest, made of the settings. Pure.

The pod fits the `restricted` Pod Security Standard: no root, no privilege escalation, no capability, the runtime's seccomp profile; and it
gets neither a token of the API nor the addresses of other services.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from worker.values.fast_dataclass import dataclass

from ...errors import Problem, SpecError
from ...model.settings import KubernetesSettings, PodSettings
from .object_names import MAIN

Manifest = dict[str, Any]
GPU = "nvidia.com/gpu"
HOME, SHARED_MEMORY = "/orch", "/dev/shm"
QUEUE, GROUP, GROUP_COUNT = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/pod-group-name", "kueue.x-k8s.io/pod-group-total-count"
"""How Kueue knows plain pods that it has to admit together (its documentation, "Run a group of Pods")."""


@dataclass(frozen=True, slots=True)
class PodWish:
    """Holds what a pod is for: the part of a pod that the settings do not have."""

    command: tuple[str, ...]
    """The program of the container. As in `env`, Kubernetes replaces ``$(NAME)``: see `literal`."""
    labels: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, Any] = field(default_factory=dict)
    """Variables: a text, or a mapping such as ``{"valueFrom": ...}``."""
    gpus: int = 0
    grace_s: float = 10.0
    """How long the processes may take to end after SIGTERM."""
    deadline_s: float | None = None
    subdomain: str = ""
    """The headless Service whose names the pods get."""
    ports: tuple[int, ...] = ()
    group_size: int = 0
    """How many plain pods of this `subdomain` belong together; 0: a Job makes the pods, and is what Kueue admits."""


@dataclass(frozen=True, slots=True)
class Owner:
    kind: str
    name: str
    uid: str

    def reference(self) -> Manifest:
        return {"apiVersion": "v1", "kind": self.kind, "name": self.name, "uid": self.uid}


def literal(text: str) -> str:
    """A text for `command`, `args` or the value of a variable, where Kubernetes would replace ``$(NAME)``."""
    return text.replace("$", "$$")


def pod(settings: KubernetesSettings, wish: PodWish, name: str, owner: Owner | None = None) -> Manifest:
    made = pod_template(settings, wish)
    metadata = {"name": name, **({"ownerReferences": [owner.reference()]} if owner else {}), **made["metadata"]}
    spec = {**({"hostname": name} if wish.subdomain else {}), **made["spec"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def pod_template(settings: KubernetesSettings, wish: PodWish) -> Manifest:
    """The metadata and the spec of a pod, with the user's overlay. Raises `SpecError` if the result is no pod."""
    own = settings.pod
    labels, annotations = dict(wish.labels), dict[str, str]()
    if own.queue:
        labels |= {QUEUE: own.queue}
        if wish.group_size:
            labels |= {GROUP: wish.subdomain}
            annotations |= {GROUP_COUNT: str(wish.group_size)}
    metadata = {"labels": labels, **({"annotations": annotations} if annotations else {})}
    made = {"metadata": metadata, "spec": _spec(own, wish)}
    if own.pod_template:
        made = merge(made, json.loads(own.pod_template))
        if complaint := _complaint(made):
            raise SpecError(Problem("backend.pod_template", complaint, "write what a pod has: {metadata: {…}, spec: {…}}"))
        made["metadata"]["labels"] = {**made["metadata"].get("labels", {}), **wish.labels}  # orch finds its pods by these
    return made


def _complaint(made: Manifest) -> str:
    """Return what is wrong with a pod that has the user's overlay, as far as orch itself reads the pod; empty: nothing."""
    if strangers := made.keys() - {"metadata", "spec"}:
        return f"a pod_template has metadata and spec, and no {', '.join(sorted(strangers))}"
    for key in ("metadata", "spec"):
        if not isinstance(made.get(key), dict):
            return f"{key} must be a mapping"
    if not isinstance(made["metadata"].get("labels", {}), dict):
        return "metadata.labels must be a mapping"
    containers, volumes = made["spec"].get("containers"), made["spec"].get("volumes", [])
    if not _is_named(containers):
        return "spec.containers must be a list of mappings with names"
    main = [one for one in containers if one["name"] == MAIN]
    if len(main) != 1:
        return f"spec.containers must have one container with the name {MAIN}, which runs the tasks"
    if not isinstance(volumes, list) or not isinstance(main[0].get("volumeMounts", []), list):
        return "spec.volumes and the volumeMounts of a container must be lists"
    return ""


def _spec(own: PodSettings, wish: PodWish) -> Manifest:
    mounts, volumes = _volumes(own, wish)
    user = {} if own.user is None else {"runAsUser": own.user, "runAsGroup": own.user, "fsGroup": own.user}
    optional = {
        "activeDeadlineSeconds": math.ceil(wish.deadline_s) if wish.deadline_s else None,
        "subdomain": wish.subdomain,
        "imagePullSecrets": [{"name": name} for name in own.image_pull_secrets],
    }
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": math.ceil(wish.grace_s),
        **{key: value for key, value in optional.items() if value},
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {"runAsNonRoot": own.user != 0, **user, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [_container(own, wish, mounts)],
        "volumes": volumes,
    }


def _container(own: PodSettings, wish: PodWish, mounts: list[Manifest]) -> Manifest:
    # A user without an entry in the image's /etc/passwd has no home, and Python and Keras want one.
    env = {"HOME": HOME, "USER": "orch", **wish.env}
    limits = {**({GPU: str(wish.gpus)} if wish.gpus and not any(_is_gpu(name) for name in own.resources) else {}), **own.resources}
    resources = {"limits": limits, "requests": {**limits, **own.requests}} if limits or own.requests else {}
    optional = {
        "imagePullPolicy": own.image_pull_policy,
        "envFrom": [{"secretRef": {"name": name}} for name in dict.fromkeys(own.secrets)],
        "ports": [{"containerPort": port} for port in wish.ports],
        "resources": {key: value for key, value in resources.items() if value},
    }
    return {
        "name": MAIN,
        "image": own.image,
        "command": list(wish.command),
        **{key: value for key, value in optional.items() if value},
        "env": [{"name": name, **(value if isinstance(value, Mapping) else {"value": value})} for name, value in env.items()],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": mounts,
    }


def _is_gpu(resource: str) -> bool:
    return resource.endswith(("/gpu", "/tpu")) or ".com/mig-" in resource


def _volumes(own: PodSettings, wish: PodWish) -> tuple[list[Manifest], list[Manifest]]:
    """The mounts and the volumes: a home, memory that processes share (NCCL wants more than the 64 MB of a container), and the user's."""
    sources: dict[str, tuple[str, Manifest]] = {HOME: ("orch-home", {"emptyDir": {}})}
    if wish.gpus > 1 and SHARED_MEMORY not in own.volumes:
        sources[SHARED_MEMORY] = ("orch-shm", {"emptyDir": {"medium": "Memory"}})
    for number, (path, text) in enumerate(own.volumes.items()):
        sources[path] = (f"volume-{number}", json.loads(text))
    mounts = [{"name": name, "mountPath": path} for path, (name, _) in sources.items()]
    return mounts, [{"name": name, **source} for name, source in sources.values()]


def merge(base: Any, over: Any) -> Any:
    """`over` laid over `base`: mappings are merged, a null removes a key, lists of named items are merged by name, all else is replaced."""
    if isinstance(base, dict) and isinstance(over, dict):
        merged = {**base, **{key: merge(base.get(key), value) for key, value in over.items()}}
        return {key: value for key, value in merged.items() if value is not None}
    if _is_named(base) and _is_named(over):
        items = {item["name"]: item for item in base}
        for item in over:
            items[item["name"]] = merge(items.get(item["name"]), item)
        return list(items.values())
    return over


def _is_named(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) and isinstance(item.get("name"), str) for item in value)
