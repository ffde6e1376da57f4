"""Kubernetes as an engine: makes the objects of a run, and asks for its pods. See `Engine`."""

from __future__ import annotations

import base64
import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import replace

from worker.values.fast_dataclass import dataclass

from ...errors import OrchError, UnansweredError
from ...model.policy.submission import Submission, Word
from ...model.settings import ClusterSpec, KubernetesSettings
from .. import Request, RunFacts, interpreters
from ..engines import Channel
from .job_words import words_of
from .kubectl import ask, create, create_owner, delete_owner, kubectl_argv, pin, refuse_without_exec
from .object_names import MANAGER, labels_of, object_name
from .objects import COMPONENT, KEEPER, TOKEN, controller_pod, part_secret
from .packed_files import directory_of, pack
from .pods import Owner
from .run_objects import OWNER_UID

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
