"""Trainings by manifest alone, in pods of a real Kubernetes: what `orch plan --kubernetes` prints is applied, and runs without orch.

The Kubernetes of the tests is older than Indexed Jobs. `start_pods` does the little that their controller would do: a pod for each index,
with the template as it is printed, the annotation and the host name of the index, and the release's own fields left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import Orch
from tests.kubernetes_bed.bed import Namespace
from tests.live import LiveRun

pytestmark = [pytest.mark.tensorflow, pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(600)]

TRAIN = """
    import json, os, sys
    import keras, numpy, tensorflow as tf
    import worker

    strategy = worker.strategy()
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="ones")])
        model.compile("sgd", "mse")
    data = tf.data.Dataset.from_tensor_slices((numpy.arange(8.0)[:, None] / 8, numpy.arange(8.0)[:, None])).batch(4)
    history = model.fit(data, epochs=2, verbose=0, shuffle=False)
    me = worker.context()
    found = {"task": me.task, "rank": me.rank, "of": me.world_size, "run": me.run_id, "argument": sys.argv[1:]}
    print("RESULT", json.dumps(found | {"loss": history.history["loss"], "weight": float(model.weights[0].numpy()[0][0])}))
    """


def start_pods(kubernetes: Namespace, text: str) -> list[str]:
    """Apply a manifest, and make the pods of its Jobs. Their names."""
    objects = list(yaml.safe_load_all(text))
    kubernetes.kubectl("apply", "--server-side", "-f", "-", input=yaml.safe_dump_all([one for one in objects if one["kind"] != "Job"]))
    names: list[str] = []
    pods: list[dict[str, Any]] = []
    for job in (one for one in objects if one["kind"] == "Job"):
        for index in range(job["spec"]["completions"]):
            name, template = f"{job['metadata']['name']}-{index}", json.loads(json.dumps(job["spec"]["template"]))
            template["metadata"]["annotations"] = {"batch.kubernetes.io/job-completion-index": str(index)}
            names.append(name)
            pods.append(
                {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "metadata": {"name": name, **template["metadata"]},
                    "spec": {**template["spec"], "hostname": name},
                }
            )
    kubernetes.apply(*pods)
    return names


def ended(kubernetes: Namespace, pod: str) -> dict[str, Any]:
    found = next(item for item in kubernetes.items("pods") if item["metadata"]["name"] == pod)
    state: dict[str, Any] = found["status"]["containerStatuses"][0]["state"]["terminated"]
    return state


def take_away(kubernetes: Namespace, text: str, pods: bool = True) -> None:
    if pods:
        kubernetes.kubectl("delete", "pods", "--all", "--grace-period=1")
    kubernetes.kubectl("delete", "-f", "-", input=yaml.safe_dump_all(one for one in yaml.safe_load_all(text) if one["kind"] != "Job"))


def result_of(log: str) -> dict[str, Any]:
    [line] = [line for line in log.splitlines() if line.startswith("RESULT ")]
    found: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
    return found


def test_an_unchanged_image_trains_two_workers_as_one_process_does(
    kubernetes: Namespace, orch: Orch, script: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keras 3's `fit` in two pods on two nodes, by manifest alone and with `orch up -d`: all have the losses and the weights of one
    process of this machine."""
    monkeypatch.setenv("ORCH_TIME_SCALE", "0.1")  # the place of the run may be asked every second or so
    script(TRAIN, "train.py")
    arguments = ("--", "$$one", "two words")
    orch("up", "train.py", "-n", "1", *arguments, check=0)
    single = result_of(LiveRun(tmp_path).log("worker-0").decode())
    pods_of_orch = ("--backend", "kubernetes", "--image", kubernetes.image)
    orch("up", "train.py", *pods_of_orch, "-n", "2", "-d", *arguments, check=0)
    text = orch("plan", "train.py", "--kubernetes", "--workload", "job", *pods_of_orch[2:], "-n", "2", "--name", "by-hand", *arguments).out
    pods = start_pods(kubernetes, text)
    for pod in pods:
        kubernetes.wait_for_phase(pod, "Succeeded")
    by_manifest = [result_of(kubernetes.kubectl("logs", pod)) for pod in pods]
    kubernetes.kubectl("delete", "pods", *pods, "--grace-period=1")
    take_away(kubernetes, text, pods=False)
    run = LiveRun(tmp_path)
    orch("wait", check=0, timeout=400)
    detached = [result_of(run.log(f"worker-{index}").decode()) for index in range(2)]
    for name, both in (("by-hand", by_manifest), (run.path.name, detached)):
        assert [(one["task"], one["rank"], one["of"], one["run"], one["argument"]) for one in both] == [
            (f"worker-{index}", index, 2, name, ["$$one", "two words"]) for index in range(2)
        ]
        assert both[0]["loss"] == both[1]["loss"] == pytest.approx(single["loss"], rel=1e-5)
        assert both[0]["weight"] == both[1]["weight"] == pytest.approx(single["weight"], rel=1e-5)


def test_how_a_task_ends_is_the_pods_end(kubernetes: Namespace, orch: Orch, script: Callable[..., Path]) -> None:
    """The exit code, 42 included, is the container's; the exception is its termination message; SIGTERM reaches the program."""
    script(
        """
        import os, signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: (print("saved", flush=True), os._exit(42)))
        index = os.environ["ORCH_TASK"]
        if index == "worker-0":
            raise ValueError("no such data")
        if index == "worker-1":
            os.kill(os.getpid(), 9)
        print("waits", flush=True)
        time.sleep(600)
        """,
        "ends.py",
    )
    text = orch("plan", "ends.py", "-n", "3", "--kubernetes", "--workload", "job", "--image", kubernetes.image, check=0).out
    pods = start_pods(kubernetes, text)
    for pod in pods[:2]:
        kubernetes.wait_for_phase(pod, "Failed")
    first, second = (ended(kubernetes, pod) for pod in pods[:2])
    assert (first["exitCode"], first["message"].partition("\n")[0]) == (1, "ValueError: no such data")
    assert "ends.py" in first["message"]
    assert "_orch" not in first["message"]
    assert (second["exitCode"], second["message"]) == (137, "ended by signal 9 (SIGKILL)")
    kubernetes.wait_for_log(pods[2], "waits")
    kubernetes.kubectl("exec", pods[2], "--", "python3", "-c", "import os; os.kill(1, 15)")
    kubernetes.wait_for_phase(pods[2], "Failed")
    assert ended(kubernetes, pods[2])["exitCode"] == 42
    assert kubernetes.kubectl("logs", pods[2]) == "waits\nsaved\n"
    take_away(kubernetes, text)


def test_checkpoints_on_a_claim_outlive_the_pods(kubernetes: Namespace, orch: Orch, script: Callable[..., Path]) -> None:
    directory = kubernetes.claim()
    script(
        """
        import os, pathlib
        saves = pathlib.Path(os.environ["ORCH_CHECKPOINT_DIR"])
        saves.mkdir(parents=True, exist_ok=True)
        print("found", sorted(path.name for path in saves.iterdir()))
        (saves / "one").write_text("saved")
        """,
        "save.py",
    )
    words = ("--strategy", "none", "--set", "checkpoints.dir=/saves/here", "--set", "backend.volumes={/saves: checkpoints}")
    text = orch("plan", "save.py", "--kubernetes", "--workload", "job", "--image", kubernetes.image, *words, check=0).out
    for found in ("found []\n", "found ['one']\n"):
        [pod] = start_pods(kubernetes, text)
        kubernetes.wait_for_phase(pod, "Succeeded")
        assert kubernetes.kubectl("logs", pod) == found
        kubernetes.kubectl("delete", "pods", "--all")
    assert (directory / "here/save/one").read_text() == "saved"
    take_away(kubernetes, text)
