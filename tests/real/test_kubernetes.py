"""Training in the pods of a real Kubernetes, with TensorFlow."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.conftest import ROOT, Orch
from tests.kubernetes_bed.bed import Namespace
from tests.live import LiveRun

pytestmark = [pytest.mark.root, pytest.mark.tensorflow, pytest.mark.timeout(600)]


@pytest.mark.core
@pytest.mark.slow
def test_two_pods_train_together_and_a_restart_keeps_the_import(orch: Orch, kubernetes: Namespace, tmp_path: Path) -> None:
    """Digits over two nodes. A worker of the first attempt fails once the cluster has formed; the next forks anew in the same pods."""
    for name in ("mwms_custom_loop.py", "digits.py"):
        shutil.copy(ROOT / "examples" / name, tmp_path / name)
    (tmp_path / "train.py").write_text(
        "import os, runpy, tensorflow as tf\n"
        "if os.environ['ORCH_ATTEMPT'] == '1':\n"
        "    strategy = tf.distribute.MultiWorkerMirroredStrategy()\n"
        "    assert os.environ['ORCH_TASK'] != 'worker-1', 'the first attempt ends here'\n"
        "    strategy.run(lambda: tf.distribute.get_replica_context().all_reduce('sum', 1.0))\n"
        "runpy.run_path('mwms_custom_loop.py', run_name='__main__')\n"
    )
    settings = {"type": "kubernetes", "image": kubernetes.image, "image_pull_policy": "Never"}
    (tmp_path / "orch.yaml").write_text(json.dumps({"script": "train.py", "tasks": {"worker": 2}, "backend": settings, "restart": 1}))
    done = orch.start("up").wait(timeout=500, check=0)
    assert "first failure: worker-1" in done.err or "AssertionError: the first attempt ends here" in done.out + done.err
    run = LiveRun(tmp_path)
    logs = [(run.path / "attempt-2" / f"worker-{index}" / "stdout.log").read_text() for index in range(2)]
    accuracies = {log.splitlines()[-1] for log in logs}
    assert len(accuracies) == 1, accuracies  # the same weights everywhere
    assert float(accuracies.pop().removeprefix("test accuracy ")) > 0.9
    ready = [event for event in run.events() if event["event"] == "template_ready"]
    assert len(ready) == len({event["host"] for event in ready}) == 2, "one import in each pod"
