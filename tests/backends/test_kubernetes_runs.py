"""Runs in the pods of a real Kubernetes, without TensorFlow: what is sent, what is left, and all commands from another shell."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

import orchestrator
from tests.conftest import IMPATIENT, ROOT, Orch, Running
from tests.kubernetes_bed.bed import Namespace
from tests.live import LiveRun, wait_until, write_script

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]

PAGE = (ROOT / "docs/kubernetes.md").read_text()
GOES_ON = "print('attempt', os.environ['ORCH_ATTEMPT'], 'of', TASK, 'as', os.getuid(), flush=True)\nsleep()\n"


class Place:
    """A directory with a script and its spec, whose runs get pods."""

    def __init__(self, orch: Orch, kubernetes: Namespace, directory: Path) -> None:
        self.orch, self.kubernetes, self.directory = orch, kubernetes, directory

    def write(self, script: str, *, more: str = "", **backend: object) -> None:
        write_script(self.directory, script)
        settings = {"type": "kubernetes", "image": self.kubernetes.image, "image_pull_policy": "Never", **backend}
        with (self.directory / "orch.yaml").open("a") as file:
            file.write(f"backend: {json.dumps(settings)}\ntimeouts: {{grace_s: 2}}\n{more}\n")

    def start(self, *words: str, pods: int = 2, **how: Any) -> Running:
        """A run whose tasks have written their first line."""
        up = self.orch.start("up", "script.py", "-n", str(pods), *words, **how)
        for number in range(pods):
            up.wait_for(f"worker-{number} | attempt 1")
        return up

    def pods(self, component: str = "") -> list[dict[str, Any]]:
        """All pods, or those of a component of a run: its `controller`, or each `agent`."""
        return self.kubernetes.items("pods", *([f"-lapp.kubernetes.io/component={component}"] if component else []))

    def uids(self) -> list[str]:
        return sorted(one["metadata"]["uid"] for one in self.pods())


@pytest.fixture
def place(orch: Orch, kubernetes: Namespace, tmp_path: Path) -> Place:
    return Place(orch, kubernetes, tmp_path)


def holds(real: Any, asked: Any) -> bool:
    """Whether an object has everything that was asked for; Kubernetes adds its defaults."""
    if isinstance(asked, dict):
        return isinstance(real, dict) and all(key in real and holds(real[key], value) for key, value in asked.items())
    if isinstance(asked, list):
        return isinstance(real, list) and len(real) >= len(asked) and all(map(holds, real, asked))
    return bool(real == asked)


def test_what_a_dry_run_prints_is_what_is_sent_and_all_commands_reach_the_run(
    place: Place, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("kubectl")  # what lies beside the script is sent to the pods, and must not grow meanwhile
    sent, tee = outside / "sent.txt", outside / "tee.sh"
    kubectl = shutil.which("kubectl")
    tee.write_text(
        f'#!/bin/sh\necho "$1 $2" >> {outside}/calls.txt\n'
        f'case " $* " in *" create -f "*) tee -a {sent} | {kubectl} "$@";; *) exec {kubectl} "$@";; esac\n'
    )
    tee.chmod(0o700)
    place.write(GOES_ON, kubectl=[str(tee)], resources={"memory": "300Mi"}, requests={"cpu": "10m"})
    dry = place.orch("up", "script.py", "-n", "2", "--dry-run", check=0).out
    up = place.start()
    started = len((outside / "calls.txt").read_text().splitlines())
    run = LiveRun(tmp_path)

    request = (run.path / "request" / "pods.yaml").read_text()
    end = run.path.name.rpartition("-")[2]
    assert dry.partition("# pods.yaml\n")[2].partition("\n# agent-")[0].replace("<run>", end) == request
    uid = place.kubernetes.items("services")[0]["metadata"]["uid"]
    assert sent.read_text() == request.replace("---\n", "", 1).replace("<uid of the Service>", uid)
    for asked in yaml.safe_load_all(request.replace("<uid of the Service>", uid)):
        kind, name = asked["kind"].lower(), asked["metadata"]["name"]
        assert holds(json.loads(place.kubernetes.kubectl("get", kind, name, "-o", "json")), asked), name

    chosen = re.findall("^    kubectl (delete service .*=)NAME$", PAGE, re.MULTILINE)[0] + f"orch-script-{end}"
    assert place.kubernetes.kubectl(*chosen.split(), "--dry-run=server", "-o", "name") == f"service/orch-script-{end}\n"

    tasks = json.loads(place.orch("ps", "--json", check=0).out)["tasks"]
    names = [one["metadata"]["name"] for one in place.pods()]
    assert [task["host"] for task in tasks] == names == [f"orch-script-{end}-0", f"orch-script-{end}-1"]
    assert "worker-1 | attempt 1 of worker-1 as 1000\n" in place.orch("logs", check=0).out
    assert "worker-0..1: in sleep (script.py:" in place.orch("stacks", check=0).out
    uids = place.uids()
    place.orch("restart", check=0)
    up.wait_for("worker-0 | attempt 2 of worker-0")
    up.wait_for("worker-1 | attempt 2 of worker-1")
    assert place.uids() == uids, "a restart keeps its pods"
    place.orch("down", check=0)
    assert "stopped by orch down" in up.wait(check=143).err
    place.orch("wait", check=143)
    calls = (outside / "calls.txt").read_text().splitlines()
    assert {call.split()[0] for call in calls[:started]} == {"auth", "create", "get", "exec"}
    assert {call.split()[0] for call in calls[started:]} == {"delete"}, "while the tasks run, nothing is asked"


def test_the_first_failure_is_the_cause_and_interrupts_end_a_run(place: Place, tmp_path: Path) -> None:
    place.write("if TASK == 'worker-1':\n    raise ValueError('no data')\nsleep()\n")
    done = place.orch("up", "script.py", "-n", "2", check=1)
    end = LiveRun(tmp_path).path.name.rpartition("-")[2]
    assert f"first failure: worker-1 on orch-script-{end}-1: exit code 1" in done.err
    assert "ValueError: no data" in done.err
    place.write(GOES_ON, tasks_per_pod=2)
    up = place.start()
    assert len([one for one in place.pods() if not one["metadata"].get("deletionTimestamp")]) == 1
    up.signal(signal.SIGINT)
    up.wait(check=130)


def test_pods_of_a_dead_controller_end_by_themselves_and_orch_down_deletes_what_is_left(place: Place) -> None:
    place.write(GOES_ON)
    up = place.start(env=IMPATIENT)
    up.kill()
    wait_until(lambda: set(place.kubernetes.phases().values()) == {"Succeeded"}, "end of the pods")
    assert "its pods were deleted, with the Service orch-script-" in place.orch("down", check=0).out


def test_a_run_that_gets_no_pods_says_why(place: Place) -> None:
    place.write(GOES_ON)
    refused = place.orch("up", "script.py", "--set", "backend.namespace=nowhere", check=2)
    assert 'error: cannot make the pods: namespaces "nowhere" not found\n       fix: name one that exists' in refused.err
    refused = place.orch("up", "script.py", "--set", "backend.context=nope", check=2)
    assert "fix: kubectl config get-contexts lists them" in refused.err
    place.write(GOES_ON, image="bed/nothing:1")
    refused = place.orch("up", "script.py", check=125)
    assert "-0: ErrImageNeverPull: " in refused.err
    assert "the image is on no node, and image_pull_policy is Never" in refused.err
    place.write(GOES_ON, image="nowhere.invalid/tf:1", image_pull_policy="IfNotPresent")
    refused = place.orch("up", "script.py", check=125, env=IMPATIENT)
    assert "ErrImagePull" in refused.err or "ImagePullBackOff" in refused.err
    assert "backend.image_pull_secrets" in refused.err
    place.write(GOES_ON, secrets=["no-such"])
    assert (
        'CreateContainerConfigError: secret "no-such" not found\n       fix: do the Secrets' in place.orch("up", "script.py", check=125).err
    )
    place.write(GOES_ON, pod_template={"spec": {"hostIPX": True}})
    assert re.search(r'unknown field "(spec\.)?hostIPX"', place.orch("up", "script.py", check=2).err)  # spec. since Kubernetes 1.25
    place.write(GOES_ON, user=0)
    assert "the namespace forbids such a pod: change backend.user" in place.orch("up", "script.py", check=125).err
    place.kubernetes.kubectl("create", "quota", "few", "--hard=pods=1")
    place.write(GOES_ON)
    assert "exceeded quota: few" in place.orch("up", "script.py", "-n", "2", check=125).err


def test_the_rights_that_a_user_needs_are_named_and_suffice_for_all_that_the_page_shows(place: Place) -> None:
    config = place.kubernetes.config_of("user")
    log_in_by_plugin(config)
    place.write("print('done')", kubeconfig=str(config))
    (place.directory / "train.py").write_bytes((place.directory / "script.py").read_bytes())
    role = yaml.safe_load(PAGE.partition("```YAML\n")[2].partition("```")[0])
    # In this old Kubernetes whoever makes a pod must be allowed to use the policy that the pod fits.
    policy = {"apiGroups": ["policy"], "resources": ["podsecuritypolicies"], "verbs": ["use"]}
    role["rules"].append(policy)
    subject = {"kind": "User", "name": "user", "apiGroup": "rbac.authorization.k8s.io"}
    binding = {"apiVersion": role["apiVersion"], "kind": "RoleBinding", "metadata": {"name": "orch"}, "subjects": [subject]}
    binding |= {"roleRef": {"kind": "Role", "name": "orch", "apiGroup": "rbac.authorization.k8s.io"}}
    rules = [rule for rule in role["rules"] if rule["resources"] != ["pods/exec"]]
    assert len(rules) == len(role["rules"]) - 1
    place.kubernetes.apply({**role, "rules": rules}, binding)
    assert "you may not create pods/exec there, by which orch reaches its pods" in place.orch("up", "script.py", check=125).err
    place.kubernetes.apply(role)
    lines = re.findall(r"^\$ orch (.*?)(?: +#.*)?$", PAGE, re.MULTILINE)
    # Of two commands that differ in the number of workers the later one.
    commands = {re.sub(r"-n \d", "", line): line.replace("tensorflow/tensorflow:2.20.0", place.kubernetes.image) for line in lines}
    assert len(commands) == 4
    for command in commands.values():
        said = place.orch(*shlex.split(command), check=0).out
        if "--dry-run" not in command and "plan" not in command and "-d" not in command.split():
            assert "worker-1 | done" in said, command
    place.orch("wait", check=0)


def log_in_by_plugin(config: Path) -> None:
    """The user has a program that says the token."""
    found, version = yaml.safe_load(config.read_text()), "client.authentication.k8s.io/v1beta1"
    said = {"apiVersion": version, "kind": "ExecCredential", "status": found["users"][0]["user"]}
    found["users"][0]["user"] = {"exec": {"apiVersion": version, "command": "echo", "args": [json.dumps(said)]}}
    config.write_text(json.dumps(found))


def test_a_run_that_waits_for_pods_can_be_looked_at_and_ended(place: Place) -> None:
    place.write(GOES_ON, pod_template={"spec": {"nodeSelector": {"no": "such"}}})
    up = place.orch.start("up", "script.py")
    up.wait_for("unschedulable: 0/2 nodes are available: 2 node(s) didn't match")
    assert "it has no tasks yet: 0 of 1 pod ready; orch-script-" in place.orch("ps", check=0).out
    place.orch("down", check=0)
    up.wait(check=143)


@pytest.mark.slow
def test_doctor_looks_into_pods_and_leaves_none(place: Place) -> None:
    place.write("print('done')")
    done = place.orch("doctor", "-f", "orch.yaml", "--import-timeout", "200", "--json", timeout=300)
    hosts = json.loads(done.out)["hosts"]
    assert len(hosts) == 1, done
    assert all(host["machine"] and host["python"] for host in hosts), done


def _send(word: str) -> tuple[str, str]:
    """A function for `launch`, which fails in the second of two tasks if it is told to."""
    if word == os.environ["ORCH_TASK"]:
        raise ConnectionError(f"odd in {word}")
    return word, os.environ["ORCH_TASK"]


def test_a_function_runs_in_pods(kubernetes: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pods = {"type": "kubernetes", "image": kubernetes.image, "image_pull_policy": "Never"}

    def values(word: str) -> Any:
        with orchestrator.launch(_send, args=(word,), workers=2, backend=pods, preload=[], grace=20) as run:
            return run.wait(120).values

    assert values("a") == {f"worker-{number}": ("a", f"worker-{number}") for number in range(2)}
    with pytest.raises(ConnectionError, match="odd in worker-1"):
        values("worker-1")
