"""Trainings in pods of a real Kubernetes that run `orch up --join` by the Job of examples/kubernetes, with orch.pyz from a ConfigMap.

The Kubernetes of the tests is older than Indexed Jobs. `Pods` does what their controller would do: it makes a pod for each index, with the
template of the page, and the host name and the index of its pod.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from docs import make_archive
from tests.backends.test_kubernetes_jobs import manifests
from tests.conftest import Orch
from tests.kubernetes_bed.bed import Namespace
from tests.live import LiveRun

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(600)]

TRAIN = """
import json
import keras, numpy, tensorflow as tf
import worker

strategy = worker.strategy()
with strategy.scope():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile("sgd", "mse")
data = tf.data.Dataset.from_tensor_slices((numpy.arange(8.0)[:, None] / 8, numpy.arange(8.0)[:, None])).batch(4)
history = model.fit(data, epochs=2, verbose=0, shuffle=False)
me = worker.context()
found = {"task": me.task, "of": me.world_size, "loss": history.history["loss"], "weight": float(model.weights[0].numpy()[0][0])}
print("RESULT", json.dumps(found))
"""
ENDS = """
import os, sys, time
print("seen", os.environ["ORCH_TASK"], os.environ.get("ORCH_JOIN_TOKEN"), flush=True)
sys.exit(7 * (os.environ["ORCH_TASK"] == "worker-1"))
"""


class Pods:
    """The pods of the Job for a script, made in this namespace."""

    def __init__(self, kubernetes: Namespace, directory: Path, script: str, count: int = 2) -> None:
        self.kubernetes, found = kubernetes, manifests()
        (directory / "train.py").write_text(script)
        if not (directory / "orch.pyz").exists():
            make_archive.make(directory / "orch.pyz")
        files = (f"--from-file={directory / name}" for name in ("orch.pyz", "train.py"))
        kubernetes.kubectl("create", "configmap", "digits", *files)
        kubernetes.kubectl("create", "secret", "generic", "digits", "--from-literal=token=" + "0123456789abcdef" * 4)
        template = found["Job"]["spec"]["template"]
        main = template["spec"]["containers"][0]
        main |= {"image": kubernetes.image}
        next(one for one in main["env"] if one["name"] == "ORCH_NODES")["value"] = str(count)
        self.names = [f"digits-{index}" for index in range(count)]
        pods: list[dict[str, Any]] = []
        for index, name in enumerate(self.names):
            own: dict[str, Any] = json.loads(json.dumps(template))
            own["spec"]["hostname"] = name
            own["spec"]["containers"][0]["env"].append({"name": "JOB_COMPLETION_INDEX", "value": str(index)})
            pods.append({"apiVersion": "v1", "kind": "Pod", **own, "metadata": {**own["metadata"], "name": name}})
        kubernetes.apply(found["Service"], found["NetworkPolicy"], *pods)

    def end(self, phase: str) -> list[int]:
        """Their exit codes, once all have ended so."""
        for name in self.names:
            self.kubernetes.wait_for_phase(name, phase)
        found = {item["metadata"]["name"]: item["status"]["containerStatuses"][0]["state"] for item in self.kubernetes.items("pods")}
        return [found[name]["terminated"]["exitCode"] for name in self.names]

    def log(self) -> str:
        """What node 0 shows."""
        return self.kubernetes.kubectl("logs", self.names[0])

    def take_away(self) -> None:
        self.kubernetes.kubectl("delete", "pods", "--all", "--grace-period=1")
        self.kubernetes.kubectl("delete", "configmap/digits", "secret/digits", "service/digits", "networkpolicy/digits")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("configmap")


def test_all_pods_end_with_the_code_of_the_run(kubernetes: Namespace, directory: Path) -> None:
    pods = Pods(kubernetes, directory, ENDS)
    assert pods.end("Failed") == [7, 7]
    log = pods.log()
    assert "seen worker-1 None" in log, "no task has the secret"
    assert "first failure: worker-1" in log
    assert "an Indexed Job of Kubernetes" in kubernetes.kubectl("logs", pods.names[1])
    pods.take_away()


@pytest.mark.tensorflow
def test_two_pods_train_as_one_process_does(kubernetes: Namespace, orch: Orch, directory: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    orch("up", "train.py", "-n", "1", check=0)
    (single,) = _results(LiveRun(tmp_path).log("worker-0").decode())
    pods = Pods(kubernetes, directory, TRAIN)
    assert pods.end("Succeeded") == [0, 0]
    both = _results(pods.log())
    assert sorted((one["task"], one["of"]) for one in both) == [("worker-0", 2), ("worker-1", 2)]
    for one in both:
        assert one["loss"] == pytest.approx(single["loss"], rel=1e-5)
        assert one["weight"] == pytest.approx(single["weight"], rel=1e-5)
    pods.take_away()


def _results(log: str) -> list[dict[str, Any]]:
    return [json.loads(line.partition("RESULT ")[2]) for line in log.splitlines() if "RESULT {" in line]
