"""Kubernetes as an engine: makes the objects of a run, and asks for its pods. See `Engine`."""

from __future__ import annotations

import base64
import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from worker.values.excerpts import shorten_line
from worker.values.fast_dataclass import dataclass

from ...errors import OrchError, UnansweredError
from ...model.policy.submission import Submission, Word
from ...model.settings import ClusterSpec, KubernetesSettings
from .. import Request, RunFacts, interpreters
from ..engines import Channel
from .kubectl import ask, create, create_owner, delete_owner, kubectl_argv, pin, refuse_without_exec
from .object_names import INSTANCE, MAIN, MANAGER, labels_of, object_name
from .packed_files import directory_of, pack
from .pod_states import PodState, describe_end, describe_waiting, read, remedy_of
from .pods import Owner
from .run_objects import OWNER_UID
from .unattended_objects import AGENT, COMPONENT, CONTROLLER, KEEPER, TOKEN, controller_pod, part_secret

GONE = "the pod of its controller is gone"
LONGEST_CAUSE = 400
"""The message of a container may have two thousand characters."""


def words_of(pods: Sequence[Mapping[str, Any]], jobs: Sequence[str]) -> dict[str, Word]:
    """The word about each job, by its name: that of the run's objects."""
    found = {}
    for job in jobs:
        own = [one for one in pods if one["metadata"].get("labels", {}).get(INSTANCE) == job]
        controller = [one for one in own if _component(one) == CONTROLLER]
        agents = [one for one in own if _component(one) == AGENT]
        gone = Word("ended", GONE, f"{GONE}: it was deleted, or its node died", is_gone=True)
        found[job] = _word(job, controller[0], agents) if controller else gone
    return found


def _component(pod: Mapping[str, Any]) -> str:
    found: str = pod["metadata"].get("labels", {}).get(COMPONENT, "")
    return found


def _word(job: str, controller: Mapping[str, Any], agents: Sequence[Mapping[str, Any]]) -> Word:
    name = controller_pod(job)
    containers = controller.get("status", {}).get("containerStatuses", ())
    state: Mapping[str, Any] = next((one.get("state", {}) for one in containers if one.get("name") == MAIN), {})
    if "terminated" in state:
        code = state["terminated"].get("exitCode")
        has_begun = state["terminated"].get("reason") not in ("StartError", "ContainerCannotRun")
        return Word("ended", "its controller has ended", _cause(controller), code, has_exited=has_begun)
    if controller.get("status", {}).get("phase") in ("Failed", "Succeeded"):
        return Word("ended", "its controller has ended", _cause(controller))
    if "running" not in state:
        words = describe_waiting([name], {name: read(controller)}, {})
        return Word("waiting", f"in Kubernetes: {words}")
    states = {one["metadata"]["name"]: read(one) for one in agents}
    late = {name: one for name, one in states.items() if not (one.is_ready or one.has_ended)}
    return Word("running", f"in Kubernetes: {_describe(late)}" if late else "in Kubernetes")


def _describe(late: Mapping[str, PodState]) -> str:
    return describe_waiting([*late], late, {}).partition("; ")[2]


def _cause(pod: Mapping[str, Any]) -> str:
    remedy = remedy_of(pod)
    return shorten_line("; ".join(filter(None, (describe_end(pod), remedy))), LONGEST_CAUSE)


NAME = "run.yaml"
DOING = "cannot submit to Kubernetes"


@dataclass(frozen=True, slots=True)
class KubernetesEngine:
    kubectl: tuple[str, ...]
    kubeconfig: str
    context: str
    namespace: str

    def submit(self, request: Request) -> Submission:
        run, settings = request.run, _settings(request.run.spec)
        name = object_name(run.spec.name, run.run_id)
        parts = pack(run, settings)
        pinned = pin(self, DOING)
        kubeconfig, context, namespace = (pinned.get(key, "") for key in ("kubeconfig", "context", "namespace"))
        here = replace(self, kubeconfig=kubeconfig, context=context, namespace=namespace)
        refuse_without_exec(here, DOING)
        owner, _, rest = request.files[NAME].partition("---\n")
        rest = rest.replace(TOKEN, secrets.token_hex(32))
        uid = ""
        try:
            uid = create_owner(here, owner, DOING)
            for number, data in enumerate(parts):
                create(here, _part(name, number, uid, data), DOING)
            create(here, rest.replace(OWNER_UID, uid), DOING)
        except OrchError as error:
            try:
                delete_owner(here, name)
            except OrchError as left:
                if uid or isinstance(error, UnansweredError):  # otherwise there is nothing to delete
                    error.args = (f"{error}\n{left}",)
            if isinstance(error, UnansweredError):  # what was made is deleted: there is no run
                raise OrchError(*error.args) from None
            raise
        return Submission(name, f"pod {controller_pod(name)} of Kubernetes", time.time(), pinned=pinned)

    def ask(self, jobs: Mapping[str, Submission]) -> Mapping[str, Word]:
        words = ("get", "pods", "-l", f"{MANAGER}=orch,{COMPONENT}", "-o", "json")
        found = json.loads(ask(kubectl_argv(self, *words), "cannot ask Kubernetes"))["items"]
        return words_of(found, [*jobs])

    def withdraw(self, run: RunFacts, job: str) -> None:
        delete_owner(self, job)

    def channel(self, run: RunFacts, job: str) -> Channel | None:
        prefix = kubectl_argv(self, "exec", "-i", controller_pod(job), "-c", KEEPER, "--")
        return Channel(prefix, directory_of(run.run_id), interpreters.find(run.spec, is_here=False, has_ours=False))

    def forget(self, run: RunFacts, job: str) -> bool:
        return delete_owner(self, job)


def engine_of(settings: KubernetesSettings) -> KubernetesEngine:
    return KubernetesEngine(settings.kubectl, settings.kubeconfig, settings.context, settings.namespace)


def _settings(spec: ClusterSpec) -> KubernetesSettings:
    assert isinstance(spec.backend, KubernetesSettings)
    return spec.backend


def _part(name: str, number: int, uid: str, data: bytes) -> str:
    """The Secret of a part of the archive, as kubectl takes it."""
    reference = Owner("Service", name, uid).reference()
    metadata = {"name": part_secret(name, number), "labels": labels_of(name), "ownerReferences": [reference]}
    held = {"part": base64.b64encode(data).decode("ascii")}
    return json.dumps({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": held})
