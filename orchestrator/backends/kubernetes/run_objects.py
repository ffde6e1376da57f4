"""The objects of a run as manifests: the pods that wait for their agents, a headless Service, a NetworkPolicy. Pure.

The Service owns all others, so that deleting it leaves nothing. Its uid is known when it exists: `OWNER_UID` stands for it in the request.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ...model.settings import ClusterSpec, KubernetesSettings
from .holder import holder_argv
from .object_names import labels_of
from .pods import Manifest, Owner, PodWish, literal, pod

OWNER_UID = "<uid of the Service>"
SPARE_S = 300.0
"""How much longer than the run its pods may live, where the run has a limit."""
RELEASE_S = 5.0
"""How much longer than the tasks the holder of a pod may take to end."""
_READ_OTHERWISE = re.compile("[yYnN]|[-+]?[.]?[0-9][0-9a-fA-FxXoO_.+-]*")


def service(name: str, labels: Mapping[str, str], selector: Mapping[str, str], owner: Owner | None = None) -> Manifest:
    """A headless Service, which gives the pods names: ``POD.SERVICE``. Names exist before the pods are ready."""
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": dict(selector)}
    return {"apiVersion": "v1", "kind": "Service", "metadata": _metadata(name, labels, owner), "spec": spec}


def network_policy(name: str, labels: Mapping[str, str], selector: Mapping[str, str], owner: Owner | None = None) -> Manifest:
    """Only the pods of the run reach each other: anyone who reaches a port of TensorFlow's can run code there."""
    chosen = {"podSelector": {"matchLabels": dict(selector)}}
    spec = {**chosen, "policyTypes": ["Ingress"], "ingress": [{"from": [chosen]}]}
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": _metadata(name, labels, owner), "spec": spec}


def _metadata(name: str, labels: Mapping[str, str], owner: Owner | None) -> Manifest:
    references = {"ownerReferences": [owner.reference()]} if owner else {}
    return {"name": name, "labels": dict(labels), **references}


def pod_names(settings: KubernetesSettings, spec: ClusterSpec, name: str) -> tuple[str, ...]:
    return tuple(f"{name}-{number}" for number in range(settings.pods_for(spec.size)))


def attached_objects(
    settings: KubernetesSettings, spec: ClusterSpec, run: str, name: str, gpus: int, python: str, uid: str = OWNER_UID
) -> tuple[Manifest, ...]:
    """The objects of a run whose controller starts the agents by `kubectl exec`: their owner first. `run`: the name that the labels have;
    `name`: that of the objects; `gpus`: of each pod; `python`: the interpreter in the image."""
    labels, owner, names = labels_of(run), Owner("Service", name, uid), pod_names(settings, spec, name)
    wish = PodWish(
        command=tuple(map(literal, holder_argv(python))),
        labels=labels,
        gpus=gpus,
        grace_s=spec.timeouts.grace_s + RELEASE_S,
        deadline_s=deadline_of(settings, spec),
        subdomain=name,
        group_size=len(names),
    )
    return (service(name, labels, labels), network_policy(name, labels, labels, owner), *(pod(settings, wish, one, owner) for one in names))


def deadline_of(settings: KubernetesSettings, spec: ClusterSpec) -> float:
    """`activeDeadlineSeconds` of the pods."""
    run_s = spec.timeouts.run_s
    return settings.deadline_s if run_s is None else min(settings.deadline_s, run_s + 2 * spec.timeouts.grace_s + SPARE_S)


def to_text(objects: Sequence[Manifest]) -> str:
    """Manifests as YAML, for kubectl and for people."""
    import yaml  # only a run there needs it

    base: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    # A program stays readable, and no part is an alias of another one.
    dumper: Any = type("Dumper", (base,), {"ignore_aliases": lambda *_: True})
    dumper.add_representer(str, lambda to, text: to.represent_scalar("tag:yaml.org,2002:str", text, style=_style(text)))
    return "---\n".join(yaml.dump(one, Dumper=dumper, sort_keys=False, allow_unicode=True, width=130) for one in objects)


def _style(text: str) -> str | None:
    """Return how a text is written; None: as PyYAML likes. kubectl reads more plain texts as numbers or truths than PyYAML does: 1e3, 0o17,
    y."""
    if "\n" in text.rstrip("\n"):
        return "|"
    return "'" if _READ_OTHERWISE.fullmatch(text) else None
