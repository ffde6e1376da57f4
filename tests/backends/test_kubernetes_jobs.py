"""The manifests of examples/kubernetes whose command is `orch up --join`: as their schemas have them, and what orch reads in their pods.

A JobSet is checked by the schema of its CustomResourceDefinition, a TrainJob by the models of kubeflow-trainer-api, all else by the schemas
of Kubernetes. tests/real/test_kubernetes_jobs.py starts pods by the first one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from kubernetes_validate.utils import all_versions

from orchestrator.model import joining
from orchestrator.model.joining import Seat
from tests.conftest import ROOT

JOB_SET = json.loads(Path(__file__).with_name("jobset.schema.json").read_text())
RELEASES = [release for release in dict.fromkeys(all_versions()) if tuple(map(int, release.split(".")[:2])) >= (1, 31)]
NODES = 4
Manifest = dict[str, Any]


def manifests() -> dict[str, Manifest]:
    """All objects of the manifests, by their kinds."""
    files = [ROOT / "examples" / "kubernetes" / f"{name}.yaml" for name in ("job", "jobset", "trainjob")]
    return {one["kind"]: one for file in files for one in yaml.safe_load_all(file.read_text(encoding="utf-8"))}


FOUND = manifests()


def jobs(one: Manifest) -> Iterator[Manifest]:
    """The specs of the Jobs of a Job, a JobSet or a runtime."""
    if one["kind"] == "Job":
        yield one["spec"]
        return
    sets = one["spec"] if one["kind"] == "JobSet" else one["spec"]["template"]["spec"]
    for job in sets["replicatedJobs"]:
        yield job["template"]["spec"]


def container(kind: str) -> Manifest:
    (job,) = jobs(FOUND[kind])
    (only,) = job["template"]["spec"]["containers"]
    found: Manifest = only
    return found


def test_the_files_have_all_of_them() -> None:
    assert [*FOUND] == ["Service", "NetworkPolicy", "Job", "JobSet", "TrainingRuntime", "TrainJob"]


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("kind", ["Service", "NetworkPolicy", "Job"])
def test_kubernetes_knows_each_field(kind: str, release: str) -> None:
    kubernetes_validate.validate(FOUND[kind], release, strict=True)


def test_jobset_knows_each_field() -> None:
    made = FOUND["JobSet"]
    jsonschema.validate(made, JOB_SET)
    for job in jobs(made):
        whole = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "node"}, "spec": job}
        kubernetes_validate.validate(whole, RELEASES[-1], strict=True)


def test_a_field_that_no_schema_has_is_found() -> None:
    job, job_set = manifests()["Job"], manifests()["JobSet"]
    job["spec"]["podFailurePolicies"] = job_set["spec"]["failurePolicies"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="podFailurePolicies"):
        kubernetes_validate.validate(job, RELEASES[-1], strict=True)
    with pytest.raises(jsonschema.ValidationError, match="failurePolicies"):
        jsonschema.validate(job_set, JOB_SET)


def test_kubeflow_knows_each_field() -> None:
    """Its models leave out what they do not know: what comes back is what went in."""
    models = pytest.importorskip("kubeflow_trainer_api.models", reason="NOT TESTED: kubeflow-trainer-api is not installed")
    for kind in ("TrainingRuntime", "TrainJob"):
        assert getattr(models, f"TrainerV1alpha1{kind}").from_dict(FOUND[kind]).to_dict() == FOUND[kind]
    wrong = manifests()["TrainJob"]
    wrong["spec"]["trainer"]["nodes"] = 4
    assert models.TrainerV1alpha1TrainJob.from_dict(wrong).to_dict() != wrong


@pytest.mark.parametrize("kind", ["Job", "JobSet", "TrainingRuntime"])
def test_all_pods_run_one_command_with_one_secret_and_no_rights(kind: str) -> None:
    only = container(kind)
    assert only["command"] == ["python3", "orch.pyz", "up", "train.py", "--join"]
    token = next(one for one in only["env"] if one["name"] == joining.TOKEN)
    assert token["valueFrom"] == {"secretKeyRef": {"name": "digits", "key": "token"}}
    assert [mount["mountPath"] for mount in only["volumeMounts"]] == [only["workingDir"], "/tmp"]
    assert only["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    for job in jobs(FOUND[kind]):
        own = job["template"]["spec"]
        assert own["securityContext"] == {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}
        assert own["automountServiceAccountToken"] is False


@pytest.mark.parametrize(
    ("kind", "variables", "host", "first"),
    [
        ("Job", {"JOB_COMPLETION_INDEX": "2"}, "digits-2.digits.ns.svc.cluster.local", "digits-0.digits.ns.svc.cluster.local"),
        (
            "JobSet",
            {"JOB_COMPLETION_INDEX": "2"},
            "digits-node-0-2.digits.ns.svc.cluster.local",
            "digits-node-0-0.digits.ns.svc.cluster.local",
        ),
        (
            "TrainingRuntime",
            {"PET_NNODES": "4", "PET_NODE_RANK": "2", "PET_MASTER_ADDR": "digits-node-0-0.digits", "PET_MASTER_PORT": "29400"},
            "digits-node-0-2.digits.ns.svc.cluster.local",
            "digits-node-0-0.digits:29400",
        ),
    ],
)
def test_orch_knows_its_seat_in_a_pod(kind: str, variables: dict[str, str], host: str, first: str) -> None:
    """The number of nodes is that of the pods, wherever the manifest or the engine says it."""
    given = {one["name"]: one["value"] for one in container(kind)["env"] if "value" in one}
    seat: Seat = joining.detect({**given, **variables}, host)
    assert (seat.nodes or int(given["ORCH_NODES"]), seat.index, seat.first) == (NODES, 2, first)
    if kind == "TrainingRuntime":
        assert FOUND["TrainJob"]["spec"]["trainer"]["numNodes"] == NODES
    else:
        assert {job[key] for job in jobs(FOUND[kind]) for key in ("completions", "parallelism")} == {NODES}


def test_the_codes_of_a_run_are_what_the_page_says() -> None:
    """42 and 143 start again without counting, 125 counts, all else ends the Job."""
    for kind in ("Job", "JobSet"):
        for job in jobs(FOUND[kind]):
            ends: dict[int, str] = {}
            for code in (1, 2, 42, 124, 125, 137, 143):
                rules = (rule for rule in job["podFailurePolicy"]["rules"] if "onExitCodes" in rule)
                met = (rule for rule in rules if (code in rule["onExitCodes"]["values"]) == (rule["onExitCodes"]["operator"] == "In"))
                ends[code] = next((rule["action"] for rule in met), "Count")
            assert ends == {42: "Ignore", 143: "Ignore", 125: "Count", **dict.fromkeys((1, 2, 124, 137), "FailJob")}
