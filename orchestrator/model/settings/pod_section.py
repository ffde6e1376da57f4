"""The keys of `backend:` that describe a pod: its image, its resources, where it may run, and what is mounted into it.

Names and values are checked as Kubernetes checks them (apimachinery's util/validation), so that nothing is sent which would be refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from worker.settings.declare import setting
from worker.values.fast_dataclass import dataclass

from .findings import shown
from .kinds import JsonSchema, Kind, Listing, Mapping_, OneOf, Text, is_scalar
from .tree import Node, refusal

LABEL = "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
"""A DNS label (RFC 1123), of at most 63 characters."""
DNS_LABEL = Text(LABEL, "must be made of at most 63 of a-z, 0-9 and '-', and begin and end with a letter or digit")
DNS_NAME = Text(
    rf"(?=.{{1,253}}$){LABEL}(\.{LABEL})*", "must be made of a-z, 0-9, '-' and '.', each part beginning and ending with a letter or digit"
)
QUANTITY = Text(r"([0-9]+(\.[0-9]*)?|\.[0-9]+)([numkMGTPE]|[KMGTPE]i|[eE][-+]?[0-9]+)?", "must be a quantity, such as 2, 500m or 4Gi")
_PART = "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_IN_TEMPLATE = {
    "metadata": ("labels", "annotations"),
    "spec": ("nodeSelector", "tolerations", "affinity", "priorityClassName", "serviceAccountName", "runtimeClassName"),
}
OF_A_POD = {key: f"write it as pod_template: {{{part}: {{{key}: ...}}}}" for part, keys in _IN_TEMPLATE.items() for key in keys}
"""What to write for keys that a pod has in Kubernetes."""
_KEY = re.compile(rf"({LABEL}(\.{LABEL})*/)?{_PART}")


def _key_complaint(name: str) -> str:
    if not _KEY.fullmatch(name) or len(name.rpartition("/")[0]) > 253:
        return "must be a name of at most 63 letters, digits, '-', '_' and '.', perhaps with a domain and a slash in front"
    return ""


def plain_data(node: Node) -> Any:
    """The value of a tree, as JSON has it."""
    if isinstance(node.value, dict):
        return {key: plain_data(item) for key, item in node.value.items()}
    return [plain_data(item) for item in node.value] if isinstance(node.value, list) else node.value


class Overlay(Kind):
    """A part of a manifest, which orch passes on. The value is its JSON text."""

    __slots__ = ()

    def read(self, node: Node) -> Any:
        if not isinstance(node.value, dict):
            raise refusal(node.place, f"must be a mapping, not {shown(node)}")
        return json.dumps(plain_data(node))

    def write(self, text: str) -> Any:
        return json.loads(text) if text else None

    def json_schema(self) -> JsonSchema:
        return {"type": "object"}


class VolumeSource(Kind):
    """The name of a PersistentVolumeClaim, or a source of a volume as a pod has it. The value is the JSON text of the source."""

    __slots__ = ()

    def read(self, node: Node) -> Any:
        if isinstance(node.value, dict) and len(node.value) == 1:
            return json.dumps(plain_data(node))
        if not is_scalar(node):
            raise refusal(node.place, "must be the name of a claim, or one source of a volume", "write {secret: {secretName: NAME}}")
        return json.dumps({"persistentVolumeClaim": {"claimName": DNS_NAME.read(node)}})

    def json_schema(self) -> JsonSchema:
        return {"type": ["string", "object"]}


class Volumes(Mapping_):
    """Sources of volumes, by the path at which a pod sees them."""

    __slots__ = ()

    def write(self, volumes: Mapping[str, str]) -> dict[str, Any]:
        return {path: json.loads(text) for path, text in volumes.items()}


def _path_complaint(path: str) -> str:
    return "" if re.fullmatch("/[^:\n]+", path) else "must be an absolute path"


@dataclass(frozen=True, slots=True)
class PodSettings:
    """A pod, of which a run has several that are alike. If a field is empty or None, Kubernetes decides."""

    image: str = setting(
        "",
        "The image of the pods: any one with Python and TensorFlow. It needs nothing of orch.",
        kind=Text(r"[^\s]+", "must be one word"),
        example="tensorflow/tensorflow:2.20.0",
        words="none, but Kubernetes needs one",
        flag="--image",
        metavar="IMAGE",
    )
    image_pull_policy: str = setting(
        "",
        "When a node pulls the image.",
        kind=OneOf(("Always", "IfNotPresent", "Never")),
        example="IfNotPresent",
        words="Kubernetes' rule: Always for the tag latest, else IfNotPresent",
    )
    image_pull_secrets: tuple[str, ...] = setting(
        (), "Secrets of the namespace with which the image is pulled.", kind=Listing(DNS_NAME), example="[registry-login]"
    )
    resources: Mapping[str, str] = setting(
        {},
        "The resources of each pod, as its requests and its limits. GPUs need no line: --gpus asks for them as nvidia.com/gpu.",
        kind=Mapping_(QUANTITY, _key_complaint),
        example='{cpu: "4", memory: 8Gi}',
        words="none",
    )
    requests: Mapping[str, str] = setting(
        {}, "Requests that are less than the limits in resources.", kind=Mapping_(QUANTITY, _key_complaint), example="{cpu: 500m}"
    )
    user: int | None = setting(
        1000,
        "The user that the processes in a pod are, and the group of its volumes. The restricted Pod Security Standard forbids 0.",
        example="1000",
        least=0,
        most=2**31 - 1,
    )
    secrets: tuple[str, ...] = setting(
        (), "Secrets of the namespace whose keys become variables of the tasks.", kind=Listing(DNS_NAME), example="[wandb]"
    )
    volumes: Mapping[str, str] = setting(
        {},
        "What is mounted into each pod, by path: the name of a PersistentVolumeClaim, or a source as in a pod.",
        kind=Volumes(VolumeSource(), _path_complaint),
        example="{/checkpoints: my-claim}",
        words="none",
    )
    queue: str = setting("", "The LocalQueue of Kueue, which admits the pods together.", kind=DNS_NAME, example="team-a", words="none")
    pod_template: str = setting(
        "",
        "Anything else of a pod, such as its nodeSelector, tolerations and labels, as {metadata: …, spec: …}. "
        "Mappings are merged, lists whose items have names are merged by name (the container is called main), and other values are "
        "replaced.",
        kind=Overlay(),
        example="{spec: {nodeSelector: {pool: gpu}}}",
        words="none",
    )
