"""What Kubernetes 1.36 does and 1.20, which the other tests run, does not: with a double of kubectl, its API server and its nodes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from tests.conftest import Orch
from tests.live import LiveRun
from tests.programs import kubectl_double

BY_API = {"reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting"}


def test_the_reason_of_a_pod_that_is_gone_half_a_second_after_sigterm(orch: Orch, script: Callable[..., Path], tmp_path: Path) -> None:
    home = tmp_path / "double"
    home.mkdir()
    script("print('at work', flush=True)\nimport time\ntime.sleep(600)\n")
    backend = {"type": "kubernetes", "image": "any:1", "kubectl": [sys.executable, kubectl_double.__file__], "code_in_image": True}
    settings = {"script": "script.py", "workdir": str(tmp_path), "python": sys.executable, "preload": [], "backend": backend}
    (tmp_path / "orch.yaml").write_text(json.dumps({**settings, "timeouts": {"grace_s": 1}}))
    up = orch.start("up", "--strategy", "none", env={"KUBECTL_DOUBLE": str(home)})
    up.wait_for("at work")
    [pod] = [path.stem for path in home.glob("*.json")]
    kubectl_double.evict(home, pod, BY_API)
    said = up.wait(check=125).err
    assert f"lost host {pod}: the pod on node-1 was deleted: EvictionByEvictionAPI: Eviction API: evicting" in said, said
    assert LiveRun(tmp_path).log("worker-0") == b"at work\n"
