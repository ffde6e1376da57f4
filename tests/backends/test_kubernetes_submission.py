"""What is made for a run whose controller is a pod: the objects, the archive, and what Kubernetes says of them. Nothing is sent."""

from __future__ import annotations

import asyncio
import io
import json
import random
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from orchestrator.backends import RunFacts, load
from orchestrator.backends.connection.listener import Listener
from orchestrator.backends.kubernetes import inside, kubectl, packed_files
from orchestrator.backends.kubernetes.kubernetes_engine import GONE, words_of
from orchestrator.backends.kubernetes.packed_files import CODE_DIR, PART_BYTES, pack
from orchestrator.errors import UsageError
from orchestrator.model.policy.submission import Submission, Word
from orchestrator.model.settings import ClusterSpec, KubernetesSettings
from orchestrator.model.settings.document import read
from orchestrator.model.settings.parse import parse
from tests.backends.test_kubernetes_jobs import RELEASES
from tests.backends.test_kubernetes_pods import EVERYTHING, RUN, spec_of
from worker.values.codec import from_json, to_json

NAME = "orch-train-1a2b3c4d"


def unattended(text: str) -> ClusterSpec:
    found = spec_of(text)
    return replace(found, backend=found.backend.detached())


def objects(found: ClusterSpec) -> dict[str, Any]:
    request = load(found).request(RunFacts(found, RUN, "/home/me/.orch/runs/x"))
    return {f"{one['kind']}/{one['metadata']['name']}": one for one in yaml.safe_load_all(request.files["run.yaml"])}


def test_one_object_owns_all_others_and_the_tasks_alone_get_gpus_volumes_and_the_queue() -> None:
    found = objects(unattended(EVERYTHING))
    controller, agents = f"Pod/{NAME}-controller", f"Job/{NAME}-agents"
    assert [*found] == [f"Service/{NAME}", f"NetworkPolicy/{NAME}", f"Secret/{NAME}", controller, agents]
    assert all(one["metadata"]["ownerReferences"][0]["name"] == NAME for key, one in found.items() if not key.startswith("Service/"))
    spec, template = found[controller]["spec"], found[agents]["spec"]["template"]["spec"]
    assert [one["name"] for one in spec["containers"]] == ["main", "keeper"]
    assert all("nvidia.com/gpu" not in str(one["resources"]) for one in spec["containers"])
    assert not any("persistentVolumeClaim" in volume for volume in spec["volumes"])
    assert "kueue" not in str(found[controller])
    assert (spec["hostname"], spec["subdomain"], spec["restartPolicy"]) == ("controller", NAME, "Never")
    assert (spec["activeDeadlineSeconds"], template["activeDeadlineSeconds"]) == (7200 + 360 + 3 * 86400, 7200 + 360)
    assert template["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "4"
    assert found[agents]["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-a"
    assert "kueue" not in str(found[agents]["spec"])
    assert found[agents]["spec"]["activeDeadlineSeconds"] == 7 * 86400 + 7200 + 360, "pods may wait for room before they begin"
    assert (found[agents]["spec"]["parallelism"], found[agents]["spec"]["completions"]) == (1, 1)


def test_the_restricted_standard_and_no_rights_in_the_cluster() -> None:
    found = objects(unattended(EVERYTHING))
    for spec in (found[f"Pod/{NAME}-controller"]["spec"], found[f"Job/{NAME}-agents"]["spec"]["template"]["spec"]):
        assert (spec["automountServiceAccountToken"], spec["enableServiceLinks"]) == (False, False)
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["containers"]:
            assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def test_the_schemas_of_every_release() -> None:
    attached = spec_of(EVERYTHING)
    made = load(attached).request(RunFacts(attached, RUN, "/home/me/.orch/runs/x")).files["pods.yaml"]
    both = objects(unattended(EVERYTHING)) | {f"attached {number}": one for number, one in enumerate(yaml.safe_load_all(made))}
    for release in RELEASES:
        for one in both.values():
            kubernetes_validate.validate(one, release, strict=True)


def test_only_a_detached_run_or_one_that_asks_for_it_has_its_controller_in_the_cluster() -> None:
    attached = spec_of(EVERYTHING)
    assert load(attached).engine(attached) is None
    asked = replace(attached, backend=replace(_settings(attached), controller="cluster"))
    here = replace(attached, backend=replace(_settings(attached), controller="here").detached())
    assert load(asked).engine(asked) is not None
    assert load(here).engine(here) is None
    assert load(unattended(EVERYTHING)).engine(unattended(EVERYTHING)) is not None


def _settings(found: ClusterSpec) -> KubernetesSettings:
    assert isinstance(found.backend, KubernetesSettings)
    return found.backend


# --- the archive -----------------------------------------------------------------------------------


def facts(directory: Path, more: str = "") -> RunFacts:
    text = f"script: train.py\ndefaults: {{env: {{KEY: hunter2}}}}\nbackend: {{type: kubernetes, image: 'tf:1', kubeconfig: mine, {more}}}"
    return RunFacts(parse(read(text, "orch.yaml"), workdir=str(directory)), RUN, str(directory / ".orch/runs" / RUN))


def unpacked(run: RunFacts) -> dict[str, bytes]:
    data = b"".join(pack(run, _settings(run.spec)))
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:xz") as archive:
        return {one.name: archive.extractfile(one).read() for one in archive}  # type: ignore[union-attr]


def test_the_archive_has_orch_the_code_and_a_spec_for_the_pod_and_no_runs(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print()")
    (tmp_path / ".orch/runs/other").mkdir(parents=True)
    (tmp_path / ".orch/runs/other/spec.yaml").write_text("secret")
    found = unpacked(facts(tmp_path))
    assert found["code/train.py"] == b"print()"
    assert {"orch/orchestrator/controller.py", "orch/worker/host/agent.py"} <= found.keys()
    assert not any("runs/other" in name or name.endswith(".pyc") for name in found)
    spec = json.loads(found[f".orch/runs/{RUN}/spec.yaml"])
    assert spec["workdir"] == CODE_DIR
    assert "kubeconfig" not in spec["backend"]
    there = parse(read(json.dumps(spec), "spec.yaml"), workdir="/")
    assert there.env["KEY"] == "hunter2"
    assert "code/train.py" not in unpacked(facts(tmp_path, "code_in_image: true"))


def test_an_archive_is_cut_into_parts_and_one_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "data").write_bytes(random.Random(1).randbytes(PART_BYTES))
    run = facts(tmp_path)
    parts = pack(run, _settings(run.spec))
    assert len(parts) == 2
    assert len(parts[0]) == PART_BYTES
    monkeypatch.setattr(packed_files, "MOST_PARTS", 1)
    with pytest.raises(UsageError, match="code_in_image: true"):
        pack(run, _settings(run.spec))
    outside = replace(run, spec=replace(run.spec, program=replace(run.spec.program, target="/elsewhere/train.py")))
    with pytest.raises(UsageError, match="is not in the working directory"):
        pack(outside, _settings(run.spec))


# --- the words -------------------------------------------------------------------------------------


def pod(name: str, component: str, **status: Any) -> dict[str, Any]:
    labels = {"app.kubernetes.io/instance": NAME, "app.kubernetes.io/component": component}
    return {"metadata": {"name": name, "labels": labels}, "spec": {"nodeName": "node-1"}, "status": status}


def main(**state: Any) -> list[dict[str, Any]]:
    return [{"name": "main", "state": state}, {"name": "keeper", "state": {"running": {}}}]


UNSCHEDULABLE = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes are available."}]
CONTROLLER = f"{NAME}-controller"


@pytest.mark.parametrize(
    ("pods", "word"),
    [
        ([], Word("ended", GONE, f"{GONE}: it was deleted, or its node died", is_gone=True)),
        (
            [pod(CONTROLLER, "controller", phase="Pending", conditions=UNSCHEDULABLE)],
            Word("waiting", f"in Kubernetes: 0 of 1 pod ready; {CONTROLLER}: unschedulable: 0/2 nodes are available"),
        ),
        (
            [
                pod(CONTROLLER, "controller", phase="Running", podIP="1.1.1.1", containerStatuses=main(running={})),
                pod(
                    "a",
                    "agent",
                    phase="Running",
                    podIP="1.1.1.2",
                    containerStatuses=[{"name": "main", "state": {"running": {"startedAt": "2026"}}}],
                ),
                pod("b", "agent", phase="Pending", conditions=UNSCHEDULABLE),
            ],
            Word("running", "in Kubernetes: b: unschedulable: 0/2 nodes are available"),
        ),
        (
            [pod(CONTROLLER, "controller", phase="Running", containerStatuses=main(terminated={"exitCode": 3, "reason": "Error"}))],
            Word("ended", "its controller has ended", "the container of the pod on node-1 has ended with exit code 3", 3, has_exited=True),
        ),
        (
            [pod(CONTROLLER, "controller", phase="Failed", reason="Evicted", message="no room")],
            Word(
                "ended",
                "its controller has ended",
                "the pod on node-1 has ended: Evicted: no room; ask for what the pod uses in backend.resources, so that the node has it",
            ),
        ),
    ],
    ids=["gone", "waiting", "running", "ended", "evicted"],
)
def test_the_word_about_a_run(pods: list[dict[str, Any]], word: Word) -> None:
    assert words_of(pods, [NAME]) == {NAME: word}


# --- the place -------------------------------------------------------------------------------------


VIEW = json.dumps({"current-context": "lab", "contexts": [{"name": "lab", "context": {"cluster": "c", "user": "u"}}]})
"""What `kubectl config view --minify` says of a context without a namespace."""


@pytest.mark.parametrize(
    ("script", "settings", "pinned"),
    [
        (f"echo '{VIEW}'", {}, {"context": "lab", "namespace": "default"}),
        (f"echo '{VIEW}'", {"namespace": "ml", "kubeconfig": "/k"}, {"context": "lab", "namespace": "ml", "kubeconfig": "/k"}),
        ("echo 'error: current-context must exist in order to minify' >&2; exit 1", {}, {}),
    ],
    ids=["of the context", "set", "in a pod"],
)
def test_the_place_of_a_run_stays_when_the_current_context_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, settings: dict[str, Any], pinned: dict[str, str]
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    program = tmp_path / "kubectl"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o700)
    assert kubectl.pin(replace(KubernetesSettings(kubectl=(str(program),)), **settings), "cannot submit") == pinned


def test_a_run_is_made_where_it_is_looked_for_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current context may change while the objects are made."""
    monkeypatch.delenv("KUBECONFIG", raising=False)
    program = tmp_path / "kubectl"
    answers = f"*view*) echo '{VIEW}';; *auth*) echo yes;; *jsonpath*) cat > /dev/null; echo uid;; *) cat > {tmp_path}/sent.$$;;"
    program.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/calls\ncase "$*" in {answers} esac\n')
    program.chmod(0o700)
    (tmp_path / "train.py").touch()
    run = facts(tmp_path, f"kubectl: ['{program}']")
    run = replace(run, spec=replace(run.spec, backend=_settings(run.spec).detached()))
    backend = load(run.spec)
    engine = backend.engine(run.spec)
    assert engine is not None
    submitted = engine.submit(backend.request(run))
    assert submitted.pinned == {"context": "lab", "namespace": "default", "kubeconfig": f"{tmp_path}/mine"}
    assert from_json(Submission, to_json(submitted)) == submitted
    view, *others = (tmp_path / "calls").read_text().splitlines()
    assert "config view" in view
    sent = [one for path in tmp_path.glob("sent.*") for one in yaml.safe_load_all(path.read_text())]
    assert {one["kind"] for one in sent} == {"Job", "NetworkPolicy", "Pod", "Secret"}
    assert all(one["metadata"]["ownerReferences"][0]["uid"] == "uid" for one in sent), "who deletes the Service deletes them all"
    assert {tuple(call.split()[:3]) for call in others} == {(f"--kubeconfig={tmp_path}/mine", "--context=lab", "--namespace=default")}


def test_the_files_of_kubeconfig_are_named_later_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBECONFIG", "one")
    pinned: dict[str, Any] = kubectl.pin(KubernetesSettings(kubectl=("false",)), "cannot submit")
    found = replace(KubernetesSettings(), **pinned)
    assert kubectl.kubectl_argv(found, "get") == ("env", f"KUBECONFIG={tmp_path}/one:", "kubectl", "get")
    monkeypatch.setenv("KUBECONFIG", "/a::/b")
    assert kubectl.pin(found, "cannot submit")["kubeconfig"] == f"{tmp_path}/one:", "what was pinned counts"
    assert kubectl.pin(KubernetesSettings(kubectl=("false",)), "cannot submit")["kubeconfig"] == "/a:/b:"


def test_pods_that_do_not_come_are_told_of_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Job that has given up makes no pod any more."""
    monkeypatch.setattr(inside, "LATE_S", 0.05)
    said: list[str] = []

    async def use() -> None:
        found = unattended(EVERYTHING)
        request = load(found).request(RunFacts(found, RUN, "/home/me/.orch/runs/x"))
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(inside._wait(Listener(b"x"), request, said.append), 1.5)

    asyncio.run(use())
    assert len(said) == 2
    assert said[0] == "0 of 1 pod here; kubectl get pods tells of the others"
    assert f"kubectl describe job {NAME}-agents tells" in said[1]
