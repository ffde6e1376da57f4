"""`orch plan --kubernetes`: whole texts, the schemas that Kubernetes and JobSet publish, and what is refused before anything is sent."""

from __future__ import annotations

import base64
import io
import json
import lzma
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from kubernetes_validate.utils import all_versions

from tests.conftest import ROOT, Orch

TEXTS = Path(__file__).parent / "texts"
JOB_SET = json.loads(Path(__file__).with_name("jobset.schema.json").read_text())
RELEASES = [release for release in dict.fromkeys(all_versions()) if tuple(map(int, release.split(".")[:2])) >= (1, 30)]
IMAGE = "registry.example/team/tf:1"
Manifest = dict[str, Any]
Planned = Callable[..., dict[str, Manifest]]


@pytest.fixture
def planned(orch: Orch, script: Callable[..., Path]) -> Planned:
    """``planned("--workers", "2")``: the objects that are printed, by ``kind/name``."""
    script("print('training')\n", "train.py")

    def plan(*words: str, form: str = "jobset") -> dict[str, Manifest]:
        done = orch("plan", "train.py", "--kubernetes", "--workload", form, "--image", IMAGE, *words, check=0)
        return {f"{one['kind']}/{one['metadata']['name']}": one for one in yaml.safe_load_all(done.out)}

    return plan


def validate(objects: dict[str, Manifest], release: str = RELEASES[-1]) -> None:
    """Strictly: a field that no schema names is an error."""
    for one in objects.values():
        if one["kind"] == "JobSet":
            jsonschema.validate(one, JOB_SET)
            for job in one["spec"]["replicatedJobs"]:
                made = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": job["name"]}, "spec": job["template"]["spec"]}
                kubernetes_validate.validate(made, release, strict=True)
        else:
            kubernetes_validate.validate(one, release, strict=True)


def templates(objects: dict[str, Manifest]) -> Iterator[tuple[str, Manifest]]:
    """The pods of each type of tasks, or of each Job."""
    for one in objects.values():
        if one["kind"] == "JobSet":
            for job in one["spec"]["replicatedJobs"]:
                yield job["name"], job["template"]["spec"]["template"]
        elif one["kind"] == "Job":
            yield one["metadata"]["name"], one["spec"]["template"]


def environment(template: Manifest) -> dict[str, Any]:
    return {one["name"]: one.get("value", one.get("valueFrom")) for one in template["spec"]["containers"][0]["env"]}


JOB_SET_TEXT = (TEXTS / "job_set.yaml").read_text()
POLICY_TEXT = (TEXTS / "policy.yaml").read_text()


def test_a_job_set_as_a_whole_text(orch: Orch, script: Callable[..., Path]) -> None:
    """All but the ConfigMap, whose text is the code; and the same text each time."""
    script("print('training')\n", "train.py")
    words = (
        "plan",
        "train.py",
        "-n",
        "2",
        "--kubernetes",
        "--workload",
        "jobset",
        "--image",
        IMAGE,
        "--max-restarts",
        "3",
        "--timeout",
        "1h",
    )
    done = orch(*words, check=0)
    head, config, job_set = done.out.split("---\n")
    assert head == (
        "# train: 2 tasks, made by orch plan --kubernetes. It runs without orch:\n#   kubectl apply --server-side -f FILE\n" + POLICY_TEXT
    )
    assert yaml.safe_load(config)["kind"] == "ConfigMap"
    assert job_set == JOB_SET_TEXT
    assert "orch: note: restart: a new pod has no file of the old: mount a claim" in done.err
    assert orch(*words, check=0).out == done.out


def test_jobs_for_a_cluster_without_job_sets(planned: Planned) -> None:
    objects = planned("-n", "2", "--max-restarts", "1", form="job")
    assert [*objects] == ["Service/train", "NetworkPolicy/train", "ConfigMap/train", "Job/train-worker"]
    labels = {"app.kubernetes.io/instance": "train", "app.kubernetes.io/managed-by": "orch"}
    assert objects["Service/train"]["spec"] == {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": labels}
    job = objects["Job/train-worker"]["spec"]
    template = job.pop("template")
    rules = [
        {"action": "Ignore", "onExitCodes": {"containerName": "main", "operator": "In", "values": [42]}},
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    ]
    assert job == {
        "completions": 2,
        "parallelism": 2,
        "completionMode": "Indexed",
        "podReplacementPolicy": "Failed",
        "backoffLimitPerIndex": 1,
        "maxFailedIndexes": 0,
        "podFailurePolicy": {"rules": rules},
    }
    assert template["spec"]["subdomain"] == "train"
    cluster = '{"cluster": {"worker": ["train-worker-0.train:2222", "train-worker-1.train:2222"]}, '
    assert environment(template)["TF_CONFIG"] == cluster + '"task": {"type": "worker", "index": $(JOB_COMPLETION_INDEX)}}'
    # Kubernetes replaces $(NAME) only by variables that stand before.
    assert [*environment(template)].index("JOB_COMPLETION_INDEX") < [*environment(template)].index("TF_CONFIG")


def test_a_pod_knows_how_often_it_was_replaced(planned: Planned) -> None:
    """By its Job, where a Job does so; by its JobSet with all others."""
    words = ("-n", "2", "--ps", "1", "--evaluator", "--max-restarts", "1")
    of_set, of_job = {"JOBSET_RESTART_ATTEMPT"}, {"JOB_INDEX_FAILURES", "JOB_INDEX_DISRUPTIONS"}
    in_set = {"chief": of_set, "ps": of_set, "worker": of_set | of_job, "evaluator": of_set | of_job}
    for form, expected in (("jobset", in_set), ("job", {f"train-{kind}": of_job for kind in in_set})):
        found = {name: environment(one).keys() & (of_set | of_job) for name, one in templates(planned(*words, form=form))}
        assert found == expected
    path = environment(next(one for _, one in templates(planned("-n", "2", form="job"))))["JOB_INDEX_FAILURES"]["fieldRef"]["fieldPath"]
    assert path == "metadata.annotations['batch.kubernetes.io/job-index-failure-count']"


def test_the_types_of_parameter_servers(planned: Planned) -> None:
    """The chief decides; the others are servers, of which a worker starts anew alone, and a parameter server with all others."""
    objects = planned("-n", "3", "--ps", "2", "--set", "ports=3000-3009")
    job_set = objects["JobSet/train"]["spec"]
    assert job_set["successPolicy"] == {"operator": "All", "targetReplicatedJobs": ["chief"]}
    jobs = {job["name"]: job["template"]["spec"] for job in job_set["replicatedJobs"]}
    assert {name: job["completions"] for name, job in jobs.items()} == {"chief": 1, "worker": 3, "ps": 2}
    assert {name: "backoffLimit" in job for name, job in jobs.items()} == {"chief": True, "worker": False, "ps": True}
    for kind, template in templates(objects):
        config = json.loads(environment(template)["TF_CONFIG"].replace("$(JOB_COMPLETION_INDEX)", "0"))
        assert config["task"] == {"type": kind, "index": 0}
        assert config["cluster"] == {
            "chief": ["train-chief-0-0.train:3000"],
            "worker": [f"train-worker-0-{index}.train:3000" for index in range(3)],
            "ps": [f"train-ps-0-{index}.train:3000" for index in range(2)],
        }
    orders = json.loads(objects["ConfigMap/train"]["data"]["tasks.json"])
    assert {kind: order["first_rank"] for kind, order in orders.items()} == {"chief": 0, "worker": 1, "ps": 4}
    assert orders["ps"]["inter_op"] == 4
    validate(objects)


@pytest.mark.parametrize(("form", "limit"), [("jobset", 2**31 - 1), ("job", 2)])
def test_a_failing_evaluator_ends_no_training(planned: Planned, form: str, limit: int) -> None:
    """A JobSet fails, or starts anew, with each of its Jobs that fails; a Job alone concerns no other one."""
    objects = planned("-n", "2", "--evaluator", "--max-restarts", "2", form=form)
    if form == "jobset":
        jobs = {job["name"]: job["template"]["spec"] for job in objects["JobSet/train"]["spec"]["replicatedJobs"]}
    else:
        jobs = {"evaluator": objects["Job/train-evaluator"]["spec"]}
    assert jobs["evaluator"]["backoffLimitPerIndex"] == limit
    validate(objects)


ALL = """
name: digits
script: train.py
strategy: parameter_server
tasks:
  chief: 1
  worker: {count: 2, devices: {gpus: 4}}
  ps: 1
  evaluator: 1
checkpoints: {dir: /saves}
restart: 5
backend:
  type: kubernetes
  image: registry.example/team/tf:1
  namespace: vision
  image_pull_policy: Always
  image_pull_secrets: [login]
  resources: {cpu: "4", memory: 8Gi}
  requests: {cpu: 500m}
  secrets: [wandb]
  volumes: {/saves: claim-of-the-team, /data: {nfs: {server: files, path: /data}}}
  queue: team-queue
  pod_template:
    metadata: {labels: {team: vision}, annotations: {owner: "$me"}}
    spec:
      hostIPC: false
      nodeSelector: {cloud.google.com/gke-tpu-topology: 2x4}
      tolerations: [{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}]
      containers: [{name: main, stdin: false}, {name: exporter, image: metrics:1}]
"""


@pytest.mark.parametrize("form", ["jobset", "job"])
def test_all_of_a_pod(orch: Orch, script: Callable[..., Path], form: str) -> None:
    script("print('training')\n", "train.py")
    script(ALL, "orch.yaml")
    objects = {
        f"{one['kind']}/{one['metadata']['name']}": one
        for one in yaml.safe_load_all(orch("plan", "--kubernetes", "--workload", form, check=0).out)
    }
    assert {one["metadata"]["namespace"] for one in objects.values()} == {"vision"}
    found = dict(templates(objects))
    assert [*found] == (
        ["chief", "worker", "ps", "evaluator"]
        if form == "jobset"
        else [f"digits-{kind}" for kind in ("chief", "worker", "ps", "evaluator")]
    )
    for kind, template in found.items():
        spec = template["spec"]
        main = spec["containers"][0]
        limits = {"cpu": "4", "memory": "8Gi"} | ({"nvidia.com/gpu": "4"} if kind.endswith("worker") else {})
        assert main["resources"] == {"limits": limits, "requests": {**limits, "cpu": "500m"}}
        assert spec["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == "2x4"
        assert spec["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
        assert spec["hostIPC"] is False
        assert spec["imagePullSecrets"] == [{"name": "login"}]
        assert main["envFrom"] == [{"secretRef": {"name": "wandb"}}]
        assert {one["mountPath"] for one in main["volumeMounts"]} >= {"/saves", "/data", "/orch-files"}
        claim = {"persistentVolumeClaim": {"claimName": "claim-of-the-team"}}
        assert any(claim.items() <= volume.items() for volume in spec["volumes"])
        assert template["metadata"]["labels"]["team"] == "vision"
        assert [one["name"] for one in spec["containers"]] == ["main", "exporter"]
        # The queue admits the Job or the JobSet, and no pod of it a second time.
        assert "kueue.x-k8s.io/queue-name" not in template["metadata"]["labels"]
    queued = [one for one in objects.values() if one["kind"] in ("Job", "JobSet")]
    assert {one["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] for one in queued} == {"team-queue"}
    orders = json.loads(objects["ConfigMap/digits"]["data"]["tasks.json"])
    assert {order["env"]["ORCH_CHECKPOINT_DIR"] for order in orders.values()} == {"/saves/digits"}
    validate(objects)


@pytest.mark.parametrize("form", ["jobset", "job"])
def test_the_schemas_of_every_release(planned: Planned, form: str) -> None:
    objects = planned("-n", "2", "--evaluator", form=form)
    for release in RELEASES:
        validate(objects, release)
    first, last = (release.rpartition(".")[0] for release in (RELEASES[0], RELEASES[-1]))
    assert f"schemas of Kubernetes {first} to {last} " in (ROOT / "docs/kubernetes.md").read_text()


def test_the_schemas_are_strict(planned: Planned) -> None:
    """What the checks above would say about a misspelt field."""
    jobs, job_set = planned("-n", "1", form="job"), planned("-n", "1")
    jobs["Job/train-worker"]["spec"]["podFailurePolicies"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="podFailurePolicies"):
        validate(jobs)
    job_set["JobSet/train"]["spec"]["replicatedJobs"][0]["replicaz"] = 1
    with pytest.raises(jsonschema.ValidationError, match="replicaz"):
        validate(job_set)


@pytest.mark.parametrize("form", ["jobset", "job"])
def test_the_restricted_standard(planned: Planned, form: str) -> None:
    """Each rule of the Pod Security Standard `restricted` (kubernetes.io, "Pod Security Standards")."""
    for _, template in templates(planned("-n", "2", "--gpus", "2", form=form)):
        spec = template["spec"]
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] != 0
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        allowed = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret", "name"}
        assert all(volume.keys() <= allowed for volume in spec["volumes"])
        assert (spec["automountServiceAccountToken"], spec["enableServiceLinks"]) == (False, False)
        for container in spec["containers"]:
            assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def test_strategies_of_one_task(planned: Planned) -> None:
    for strategy in ("mirrored", "one_device", "none"):
        objects = planned("--strategy", strategy)
        [(kind, template)] = templates(objects)
        assert kind == "worker"
        assert "TF_CONFIG" not in environment(template)
        assert "ports" not in template["spec"]["containers"][0]
        validate(objects)


def test_the_code_travels_in_the_config_map(planned: Planned, tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/model.py").write_text("SIZE = 3\n")
    (tmp_path / ".orch/runs/old").mkdir(parents=True)
    (tmp_path / ".orch/runs/old/spec.yaml").write_text("defaults: {env: {TOKEN: secret}}\n")
    config = planned("-n", "1")["ConfigMap/train"]
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(config["binaryData"]["code.tar.xz"]))) as code:
        assert code.getnames() == ["lib/model.py", "train.py"]
    texts = json.loads(lzma.decompress(base64.b64decode(config["binaryData"]["worker.json.xz"])))
    assert "task/start_task.py" in texts
    assert not any(name.startswith("host/") for name in texts)
    size = sum(len(text) for text in config["data"].values()) + sum(len(base64.b64decode(text)) for text in config["binaryData"].values())
    assert size < 256 * 1024  # an unchanged `kubectl apply` has to get by


def test_secrets_and_earlier_manifests_stay_out_of_the_config_map(orch: Orch, script: Callable[..., Path], tmp_path: Path) -> None:
    script("print('training')\n", "train.py")
    secrets = (".env", ".env.prod", "id_rsa", "lib/server.pem", "tls.key", ".netrc", ".aws/config", ".git-credentials", "a.kubeconfig")
    others = (".env.example", "id_rsa.pub", "monkey.py", "environment.yaml", "lib/key.py")
    for name in (*secrets, *others):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    words = ("train.py", "--kubernetes", "--workload", "job", "--image", IMAGE)

    def packed(*more: str) -> tuple[set[str], str, str]:
        done = orch("plan", *words, *more, check=0)
        config = next(one for one in yaml.safe_load_all(done.out) if one["kind"] == "ConfigMap")
        with tarfile.open(fileobj=io.BytesIO(base64.b64decode(config["binaryData"]["code.tar.xz"]))) as code:
            return set(code.getnames()), done.out, done.err

    (tmp_path / ".orch.schema.json").write_text("{}")
    names, first, said = packed()
    assert names == {*others, "train.py"}
    assert "note: 6 files, 23 B together, of the working directory go into the ConfigMap" in said
    assert "(the largest: train.py, 18 B)" in said
    assert "note: left out, as secrets have such names: .env, .env.prod, .git-credentials, 6 more; put a secret into a Secret" in said
    names, _, said = packed("--set", "backend.code_secrets=true")
    assert names == {*others, *secrets, "train.py"}
    assert "left out" not in said
    for number, text in enumerate((first, orch("plan", *words, "--json", check=0).out)):
        (tmp_path / f"m{number}.{('yaml', 'json')[number]}").write_text(text)
        assert packed()[1] == first, "a manifest does not hold the one before"
    command = [sys.executable, "-m", "orchestrator", "plan", *words]
    with open(tmp_path / "m2.yaml", "w") as file:
        subprocess.run(command, cwd=tmp_path, stdout=file, stderr=subprocess.DEVNULL, timeout=100, check=True)
    assert (tmp_path / "m2.yaml").read_text() == first, "nor the file that the shell has made for it"


def test_a_manifest_as_json(orch: Orch, script: Callable[..., Path]) -> None:
    script("print('training')\n", "train.py")
    words = ("plan", "train.py", "--kubernetes", "--workload", "job", "--image", IMAGE)
    made = json.loads(orch(*words, "--json", check=0).out)
    assert (made["apiVersion"], made["kind"]) == ("v1", "List")
    assert made["items"] == list(yaml.safe_load_all(orch(*words, check=0).out))


def test_code_in_the_image(planned: Planned) -> None:
    objects = planned("-n", "1", "--set", "backend.code_in_image=true", "--workdir", "/")
    assert "code.tar.xz" not in objects["ConfigMap/train"]["binaryData"]
    assert json.loads(objects["ConfigMap/train"]["data"]["tasks.json"])["worker"]["order"]["cwd"] == "/"


def test_kubernetes_does_not_expand_what_the_user_wrote(planned: Planned) -> None:
    """`$$` and `$(NAME)` in arguments and variables arrive as they are: they are data of the ConfigMap, where nothing is expanded."""
    objects = planned("-n", "1", "--env", "A=$(HOME) $$", "--", "--price", "$$5 $(HOME)")
    orders = json.loads(objects["ConfigMap/train"]["data"]["tasks.json"])
    assert orders["worker"]["env"]["A"] == "$(HOME) $$"
    assert orders["worker"]["order"]["program"]["args"] == ["--price", "$$5 $(HOME)"]


def test_settings_of_one_task(orch: Orch, script: Callable[..., Path]) -> None:
    script("print('training')\n", "train.py")
    script("script: train.py\ntasks: {worker: {count: 3, overrides: {1: {devices: {cpus: 2}}}}}\n", "orch.yaml")
    done = orch("plan", "--kubernetes", "--workload", "job", "--image", IMAGE, check=0)
    config = next(one for one in yaml.safe_load_all(done.out) if one["kind"] == "ConfigMap")
    orders = json.loads(config["data"]["tasks.json"])
    assert {name: order["order"]["settings"].get("devices") for name, order in orders.items()} == {"worker": None, "worker-1": {"cpus": 2}}


# --- refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--name", "2" * 40, "--evaluator"], "gives pods names of more than 63 characters (take at most"),
        (["--data-workers", "1"], "a manifest alone has no servers of the tf.data service"),
        (["--env", "HF_TOKEN=abc"], "HF_TOKEN looks like a secret, and everybody who reads the manifest would read it"),
        (["-n", "4000"], "a variable of a process holds 128 KiB"),
        (["--set", "backend.namespace=Team_A"], "must be made of at most 63 of a-z, 0-9 and '-'"),
    ],
)
def test_what_does_not_fit_is_refused(orch: Orch, script: Callable[..., Path], words: list[str], said: str) -> None:
    script("print('training')\n", "train.py")
    done = orch("plan", "train.py", "--kubernetes", "--workload", "job", "--image", IMAGE, *words, check=2)
    assert said in done.err
    assert not done.out
    assert "abc" not in done.err


def test_an_image_is_needed(orch: Orch, script: Callable[..., Path]) -> None:
    script("print('training')\n", "train.py")
    assert "a pod needs an image (name one with Python" in orch("plan", "train.py", "--kubernetes", check=2).err


def test_a_directory_that_no_config_map_holds(orch: Orch, script: Callable[..., Path], tmp_path: Path) -> None:
    script("print('training')\n", "train.py")
    with open("/dev/urandom", "rb") as noise:
        (tmp_path / "data.bin").write_bytes(noise.read(1024 * 1024))
    done = orch("plan", "train.py", "--kubernetes", "--workload", "job", "--image", IMAGE, check=2)
    assert "a ConfigMap holds 1,024 KiB. fix: put it into the image" in done.err


def test_names_become_labels_of_dns(orch: Orch, script: Callable[..., Path]) -> None:
    script("print('training')\n", "2_Trains.py")
    done = orch("plan", "2_Trains.py", "--kubernetes", "--workload", "job", "--image", IMAGE, check=0)
    assert {one["metadata"]["name"].partition("-worker")[0] for one in yaml.safe_load_all(done.out)} == {"orch-2-trains"}


def test_what_a_manifest_lacks_is_said(orch: Orch, script: Callable[..., Path]) -> None:
    script("print('training')\n", "train.py")
    words = ("--ps", "1", "--hang-timeout", "5m", "--fail-on-nan", "--set", "restart.backoff_s=5")
    done = orch("plan", "train.py", "--kubernetes", "--workload", "job", "--image", IMAGE, *words, check=0)
    lacks = "timeouts.hang_s, fail_on_nan, restart.backoff_s"
    assert f"note: {lacks}: not in a manifest, which runs without a controller; orch up --backend" in done.err
    assert "note: Jobs alone do not end the worker and ps pods when the training is done; a JobSet does" in done.err


def test_nothing_is_promised_that_a_manifest_lacks(orch: Orch, script: Callable[..., Path]) -> None:
    """No note about a TensorBoard or about other numbers of workers, and no variable of theirs."""
    script("print('training')\n", "train.py")
    words = ("-n", "2:3", "--max-restarts", "1", "--tensorboard", "logs", "--timeout", "1h", "--save-before", "1m")
    done = orch("plan", "train.py", "--kubernetes", "--workload", "jobset", "--image", IMAGE, *words, check=0)
    lacks = "timeouts.save_before_s, tensorboard, tasks.worker as MIN:MAX"
    assert f"note: {lacks}: not in a manifest, which runs without a controller" in done.err
    assert done.err.count("ensor") == 1
    assert "elastic" not in done.err
    config = next(one for one in yaml.safe_load_all(done.out) if one["kind"] == "ConfigMap")
    orders = json.loads(config["data"]["tasks.json"])
    assert [*orders] == ["worker"]
    assert "ORCH_ELASTIC" not in orders["worker"]["env"]


def test_a_workload_without_the_option(orch: Orch, script: Callable[..., Path]) -> None:
    script("print('training')\n", "train.py")
    assert "--workload belongs to --kubernetes" in orch("plan", "train.py", "--workload", "job", check=2).err


@pytest.mark.parametrize(("answer", "kind"), [("jobsets.jobset.x-k8s.io", "JobSet"), ("", "Job"), (None, "JobSet")])
def test_what_the_cluster_has_decides(orch: Orch, script: Callable[..., Path], tmp_path: Path, answer: str | None, kind: str) -> None:
    """A cluster that cannot be asked gets a JobSet: the manifest may be for another one."""
    script("print('training')\n", "train.py")
    kubectl = script(f"#!/bin/sh\necho {answer or ''}\nexit {int(answer is None)}\n", "kubectl")
    kubectl.chmod(0o755)
    settings = ("--image", IMAGE, "--set", f"backend.kubectl=[{kubectl}]")
    done = orch("plan", "train.py", "--kubernetes", *settings, check=0)
    assert [*yaml.safe_load_all(done.out)][-1]["kind"] == kind
    assert ("this cluster has no JobSet" in done.err) == (kind == "Job")
