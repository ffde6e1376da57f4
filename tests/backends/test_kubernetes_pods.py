"""What is made for a run in a Kubernetes: names, whole manifests, and the refusals before anything is sent. No cluster."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.backends import RunFacts, load
from orchestrator.backends.connection.boot import BOOT
from orchestrator.backends.kubernetes.holder import AGENT, HOLDER, RENEW, holder_argv
from orchestrator.backends.kubernetes.object_names import MOST, object_name, of_turn
from orchestrator.backends.kubernetes.pods import literal, merge
from orchestrator.backends.kubernetes.run_objects import OWNER_UID, to_text
from orchestrator.errors import SpecError
from orchestrator.model.settings import ClusterSpec
from orchestrator.model.settings.document import read
from orchestrator.model.settings.parse import parse, to_document
from tests.live import wait_until

assert AGENT in BOOT
LABEL = re.compile("[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
AGENT_FILE = "agent-orch-train-1a2b3c4d-0.txt"
RUN = "train-20261124-181500-1a2b3c4d"


def spec_of(text: str) -> ClusterSpec:
    return parse(read(text, "orch.yaml"), workdir="/home/me")


def spec(backend: str = "", more: str = "") -> ClusterSpec:
    return spec_of(f"script: train.py\n{more}\nbackend: {{type: kubernetes, image: 'tf:1', {backend}}}")


def objects(found: ClusterSpec) -> list[Any]:
    request = load(found).request(RunFacts(found, RUN, "/home/me/.orch/runs/x"))
    return list(yaml.safe_load_all(request.files["pods.yaml"]))


def pod_of(found: ClusterSpec) -> Any:
    return next(one for one in objects(found) if one["kind"] == "Pod")


# --- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("train", "orch-train-1a2b3c4d"),
        ("My_Train.v2", "orch-my-train-v2-1a2b3c4d"),
        ("9lives", "orch-9lives-1a2b3c4d"),
        ("---", "orch-1a2b3c4d"),
        ("x" * 40, f"orch-{'x' * 36}-1a2b3c4d"),
        (f"{'x' * 35}-y", f"orch-{'x' * 35}-1a2b3c4d"),
    ],
)
def test_names_of_objects_are_dns_labels(name: str, expected: str) -> None:
    found = object_name(name, f"{name}-20261124-181500-1a2b3c4d")
    assert found == expected
    assert len(found) <= MOST
    assert LABEL.fullmatch(f"{of_turn(found, 99)}-999")  # a pod of the last attempt


# --- manifests -----------------------------------------------------------------------------------

HELD = "".join(f"      {line}" for line in HOLDER.splitlines(keepends=True))
WHOLE = (Path(__file__).parent / "texts/pods.yaml").read_text().replace("      <the program of a waiting pod>\n", HELD)
EVERYTHING = """
script: train.py
python: /opt/py/python3.11
tasks: {worker: 2}
defaults: {devices: {gpus: 2}}
timeouts: {run_s: 2h, grace_s: 30}
backend:
  type: kubernetes
  image: tf:1
  image_pull_policy: Always
  image_pull_secrets: [login]
  tasks_per_pod: 2
  resources: {cpu: 8, memory: 16Gi}
  requests: {cpu: 500m}
  secrets: [wandb]
  volumes: {/checkpoints: my-claim, /keys: {secret: {secretName: keys}}}
  queue: team-a
  namespace: ml
  context: lab
  kubeconfig: /home/me/lab.yaml
"""


def test_the_request_is_a_text_that_kubectl_takes() -> None:
    """The whole text of a spec with every key, as `--dry-run` prints it and as it is sent."""
    found = spec_of(EVERYTHING)
    request = load(found).request(RunFacts(found, RUN, "/runs/x"))
    texts = request.texts()
    assert texts["pods.yaml"] == WHOLE
    assert texts["agent-orch-train-1a2b3c4d-0.txt"] == (
        "kubectl --kubeconfig=/home/me/lab.yaml --context=lab --namespace=ml exec -i orch-train-1a2b3c4d-0 -c main -- "
        "/opt/py/python3.11 -I -c 'import io;exec(io.FileIO(0,closefd=False).readline())'\n"
    )
    assert parse(read(json.dumps(to_document(found)), "spec.yaml"), workdir="/home/me") == found, "the record of the run keeps it all"


def test_the_kubeconfig_is_found_from_every_directory() -> None:
    found = spec("kubeconfig: lab.yaml")
    assert "kubectl --kubeconfig=/home/me/lab.yaml exec" in load(found).request(RunFacts(found, RUN, "/runs/x")).texts()[AGENT_FILE]
    assert parse(read(json.dumps(to_document(found)), "spec.yaml"), workdir="/elsewhere") == found


def test_one_object_owns_all_others_and_comes_first() -> None:
    first, *others = objects(spec("pods: 3"))
    assert (first["kind"], first["metadata"]["name"]) == ("Service", "orch-train-1a2b3c4d")
    assert [one["metadata"]["ownerReferences"][0]["uid"] for one in others] == [OWNER_UID] * 4
    assert [one["metadata"]["name"] for one in others if one["kind"] == "Pod"] == [f"orch-train-1a2b3c4d-{number}" for number in range(3)]


def test_values_of_variables_stand_in_no_manifest_and_no_command() -> None:
    found = spec("", "defaults: {env: {API_KEY: hunter2}}\ntasks: {worker: {env: {OTHER: hunter3}}}")
    assert "hunter" not in "".join(load(found).request(RunFacts(found, RUN, "/runs/x")).texts().values())


@pytest.mark.parametrize(
    ("backend", "more", "pods", "workers"),
    [
        ("", "", 1, 1),
        ("", "tasks: {worker: 3}", 3, 3),
        ("tasks_per_pod: 2", "tasks: {worker: 3}", 2, 3),
        ("pods: 3", "", 3, 3),  # one worker for each slot
        ("pods: 2, tasks_per_pod: 4", "tasks: {ps: 1}", 2, 6),  # and a chief
    ],
)
def test_how_many_pods(backend: str, more: str, pods: int, workers: int) -> None:
    found = spec(backend, more)
    assert (sum(one["kind"] == "Pod" for one in objects(found)), found.counts["worker"]) == (pods, workers)


@pytest.mark.parametrize(
    ("backend", "gpus", "asked"),
    [
        ("", "auto", None),  # nobody knows how many
        ("", "2", "2"),
        ("tasks_per_pod: 2", "2", "4"),
        ("", "0", None),
        ("resources: {amd.com/gpu: 1}", "1", None),  # the user's own word
    ],
)
def test_gpus_of_the_tasks_are_asked_for(backend: str, gpus: str, asked: str | None) -> None:
    found = pod_of(spec(backend, f"tasks: {{worker: 2}}\ndefaults: {{devices: {{gpus: {gpus}}}}}"))
    limits = found["spec"]["containers"][0].get("resources", {}).get("limits", {})
    assert limits.get("nvidia.com/gpu") == asked


def test_the_overlay_of_the_user_wins() -> None:
    over = (
        "{metadata: {labels: {a: b}}, spec: {hostIPC: false, securityContext: {runAsUser: null}, restartPolicy: OnFailure,"
        " containers: [{name: main, stdin: true, env: [{name: A, value: '1'}]}, {name: side, image: s}]}}"
    )
    found = pod_of(spec(f"pod_template: {over}"))
    assert found["metadata"]["labels"]["a"] == "b"
    assert found["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "orch"
    assert "runAsUser" not in found["spec"]["securityContext"]
    assert found["spec"]["securityContext"]["runAsNonRoot"]
    main, side = found["spec"]["containers"]
    assert (main["image"], main["stdin"], side) == ("tf:1", True, {"name": "side", "image": "s"})
    assert [one["name"] for one in main["env"]] == ["HOME", "USER", "A"]


def test_an_overlay_does_not_take_the_labels_by_which_pods_are_found() -> None:
    over = "{metadata: {labels: {app.kubernetes.io/managed-by: me, a: b}}}"
    labels = pod_of(spec(f"pod_template: {over}"))["metadata"]["labels"]
    assert (labels["app.kubernetes.io/managed-by"], labels["a"]) == ("orch", "b")
    assert pod_of(spec("pod_template: {metadata: {labels: null}}"))["metadata"]["labels"].keys() == labels.keys() - {"a"}


@pytest.mark.parametrize(
    ("over", "message"),
    [
        ("{spec: []}", "spec must be a mapping"),
        ("{metadata: null}", "metadata must be a mapping"),
        ("{metadata: {labels: [a]}}", "metadata.labels must be a mapping"),
        ("{containers: [{name: main}]}", "a pod_template has metadata and spec, and no containers"),
        ("{spec: {containers: {name: main}}}", "spec.containers must be a list of mappings with names"),
        ("{spec: {containers: [{image: a}]}}", "spec.containers must be a list of mappings with names"),
        ("{spec: {containers: [{name: [main]}]}}", "spec.containers must be a list of mappings with names"),
        ("{spec: {volumes: {a: b}}}", "must be lists"),
        ("{spec: {containers: [{name: main, volumeMounts: a}]}}", "must be lists"),
    ],
)
def test_an_overlay_after_which_no_pod_is_left_is_a_mistake_in_the_spec(orch: Any, script: Any, over: str, message: str) -> None:
    found = spec(f"pod_template: {over}")
    assert [(one.place, message in one.message) for one in load(found).problems(found)] == [("backend.pod_template", True)]
    script("print(1)", "x.py")
    words = ("--image", "tf:1", "--set", f"backend.pod_template={over}")
    assert message in orch("plan", "x.py", "--backend", "kubernetes", *words, check=2).err


@pytest.mark.parametrize("text", ["y", "N", "1e3", "0o17", "+.5e1", "-1E3", ".5", "0x1F", "1_000", "2024-01-01", "yes", "1.0"])
def test_texts_stay_texts_for_kubectl_too(text: str) -> None:
    """The YAML of kubectl (sigs.k8s.io/yaml) reads these as numbers or truths where no quotes are."""
    assert to_text([{"a": text}]) == f"a: '{text}'\n"


def test_lists_without_names_are_replaced() -> None:
    assert merge({"a": [1, 2], "b": {"c": 1}}, {"a": [3], "b": {"d": 2}}) == {"a": [3], "b": {"c": 1, "d": 2}}


def test_kubernetes_replaces_no_part_of_a_users_text() -> None:
    assert literal("$(HOME)/$x") == "$$(HOME)/$$x"  # kubernetes/third_party/forked/golang/expansion
    assert pod_of(spec("", "python: /a$(B)"))["spec"]["containers"][0]["command"][0] == "/a$$(B)"


@pytest.mark.parametrize(("more", "seconds"), [("", 604_800), ("timeouts: {run_s: 60}", 370), ("timeouts: {run_s: 60d}", 604_800)])
def test_pods_have_an_end_in_any_case(more: str, seconds: int) -> None:
    assert pod_of(spec("", more))["spec"]["activeDeadlineSeconds"] == seconds


# --- what is refused before anything is sent ------------------------------------------------------


@pytest.mark.parametrize(
    ("backend", "message"),
    [
        ("namespace: My_NS", "backend.namespace"),
        ("namespace: " + "x" * 64, "must be made of at most 63 of a-z"),
        ("queue: -a", "each part beginning and ending with a letter or digit"),
        ("resources: {cpu: many}", "must be a quantity, such as 2, 500m or 4Gi"),
        ("resources: {a b: 1}", "the name 'a b' must be a name of at most 63"),
        ("labels: {a: b}", "write it as pod_template: {metadata: {labels: ...}}"),
        ("volumes: {data: my-claim}", "the name 'data' must be an absolute path"),
        ("volumes: {/data: My_Claim}", "must be made of a-z"),
        ("volumes: {/data: {a: 1, b: 2}}", "must be the name of a claim, or one source of a volume"),
        ("tolerations: [{key: a}]", "unknown key 'tolerations'\nfix: write it as pod_template: {spec: {tolerations: ...}}"),
        ("pod_template: [a]", "must be a mapping, not a list"),
        ("image_pull_policy: always", "did you mean 'Always'?"),
        ("secrets: [A]", "must be made of a-z"),
        ("pods: 0", "must be at least 1"),
    ],
)
def test_names_and_values_that_kubernetes_would_refuse(backend: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        spec(backend)
    assert message in str(caught.value)


def test_an_image_is_needed() -> None:
    with pytest.raises(SpecError, match="a pod needs an image"):
        spec_of("{script: train.py, backend: kubernetes}")


def test_a_kubectl_is_needed_by_a_run_and_not_by_a_plan(orch: Any, script: Any) -> None:
    script("print(1)", "x.py")
    words = ("x.py", "--backend", "kubernetes", "--image", "tf:1", "--set", "backend.kubectl=[no-kubectl]")
    orch("plan", *words, check=0)
    message = "error: cannot make the pods: there is no program no-kubectl on PATH here\n"
    message += "       fix: install kubectl, or name it with backend.kubectl\n       more: orch help kubernetes\n"
    assert orch("up", *words, check=2).err == message


def test_an_interrupted_wait_whose_pods_cannot_be_deleted_names_the_command(orch: Any, script: Any, tmp_path: Path) -> None:
    script("print(1)", "x.py")
    pod = {"kind": "Pod", "metadata": {"name": "NAME"}, "spec": {"nodeName": "n1"}, "status": {"phase": "Pending"}}
    script(json.dumps({"type": "ADDED", "object": pod}), "pod.json")
    kubectl = script(
        "#!/bin/sh\nshift\ncase $1 in delete) echo 'Error from server (Forbidden): you may not' >&2; exit 1;; auth) echo yes;;\n"
        f'get) sed "s/NAME/$(cat {tmp_path}/name)-0/" {tmp_path}/pod.json; exec sleep 600;;\n'
        f"create) cat > {tmp_path}/sent; cd {tmp_path}; [ -e name ] || sed -n 's/^  name: //p' sent > name; echo uid;;\nesac",
        "kubectl",
    )
    kubectl.chmod(0o700)
    words = ("--backend", "kubernetes", "--image", "tf:1", "--set", "backend.namespace=ml", "--set", f"backend.kubectl=[{kubectl}]")
    up = orch.start("up", "x.py", *words)
    up.wait_for("0 of 1 pod ready")
    up.signal(signal.SIGINT)
    name = (tmp_path / "name").read_text().strip()
    assert f": {kubectl} --namespace=ml delete service {name}\n" in up.wait(check=130).err


def test_more_tasks_than_the_pods_take(orch: Any) -> None:
    done = orch(
        "plan",
        "--backend",
        "kubernetes",
        "--image",
        "tf:1",
        "--set",
        "backend.pods=1",
        "--set",
        "backend.kubectl=[true]",
        "-n",
        "2",
        "x.py",
        check=2,
    )
    assert "2 tasks do not fit into 1 slot" in done.err


# --- the program of a waiting pod -----------------------------------------------------------------


@pytest.mark.root
def test_a_pod_that_nobody_comes_to_ends() -> None:
    space = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    assert subprocess.run([*space, *holder_argv(sys.executable, 0.2, 0.2)], check=False, timeout=200).returncode == 0


@pytest.mark.root
def test_a_pod_stays_for_its_agent_hands_sigterm_on_and_ends_with_the_last_process(tmp_path: Path) -> None:
    """In a numbering of processes of its own, as in a container: what enters it has the parent 0."""
    space = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    holder = subprocess.Popen([*space, *holder_argv(sys.executable, 1.0, 0.2)])
    child = Path(f"/proc/{holder.pid}/task/{holder.pid}/children")
    wait_until(lambda: child.read_text().strip() and "import os,signal" in _command(int(child.read_text())), "the holder")
    inside = ["nsenter", "--pid", "--mount", f"--target={child.read_text().strip()}"]
    program = (
        "import signal,sys,time\n"
        f"def end(*_):\n open({str(tmp_path / 'term')!r},'w').close(); time.sleep(1); sys.exit()\n"
        f"signal.signal(signal.SIGTERM,end); open({str(tmp_path / 'up')!r},'w').close()\ntime.sleep(600)"
    )
    agent = subprocess.Popen([*inside, sys.executable, "-c", f"# {AGENT}\n{program}"])
    wait_until((tmp_path / "up").exists, "the agent")
    assert subprocess.run([*inside, sys.executable, "-c", RENEW], check=False).returncode == 0
    time.sleep(2)  # longer than it would stay without an agent
    assert holder.poll() is None
    os.kill(int(child.read_text()), signal.SIGTERM)
    assert agent.wait(200) == 0
    assert (tmp_path / "term").exists()
    assert holder.wait(200) == 143, "with 0 an evicted pod would count as Succeeded, without its reason"


def _command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
