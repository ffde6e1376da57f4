"""What goes wrong in a Kubernetes, provoked for real: the first cause, the exit code, and that nothing is left."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import IMPATIENT, Orch, Running
from tests.kubernetes_bed.bed import Namespace
from tests.live import LiveRun, wait_until, write_script

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]

GOES_ON = "print('attempt', os.environ['ORCH_ATTEMPT'], flush=True)\nsleep()\n"
ONCE = "print('attempt', os.environ['ORCH_ATTEMPT'], flush=True)\nif os.environ['ORCH_ATTEMPT'] == '1':\n    sleep()\n"
"""Ends by itself in its second attempt."""
COUNTS = """
print('attempt', os.environ['ORCH_ATTEMPT'], flush=True)
number = 0
while not os.path.exists('/tmp/stop'):
    print(number, flush=True)
    number += 1
    time.sleep(0.01)
"""
AGAIN = "restart: {max: 1, lost_host: retry}\n"
Start = Callable[..., Running]


@pytest.fixture
def start(orch: Orch, tmp_path: Path, request: pytest.FixtureRequest) -> Start:
    """``start(script, "--timeout", "5m", resources={...})``: a run of two pods in the background. ``more``: lines of orch.yaml."""

    def begin(script: str, *words: str, more: str = "", env: dict[str, str | None] | None = None, **backend: Any) -> Running:
        write_script(tmp_path, script)
        settings = {"type": "kubernetes", "image": Namespace.image, "image_pull_policy": "IfNotPresent", **backend}
        with (tmp_path / "orch.yaml").open("a") as file:
            file.write(f"backend: {json.dumps(settings)}\ntimeouts: {{grace_s: 1}}\n{more}")
        return orch.start("up", "script.py", "-n", "2", *words, env=env)

    return begin


def both(up: Running, attempt: int = 1) -> None:
    for number in range(2):
        up.wait_for(f"worker-{number} | attempt {attempt}")


def pod_of(up: Running, kubernetes: Namespace, number: int) -> dict[str, Any]:
    """The pod of a task."""
    return next(pod for pod in kubernetes.items("pods") if re.search(rf"-{number}$", pod["metadata"]["name"]))


# --- the first cause -----------------------------------------------------------------------------


def test_a_task_that_takes_too_much_memory(kubernetes: Namespace, start: Start) -> None:
    """The kernel kills the task at the limit of its pod, and the agent lives to tell."""
    hungry = "if TASK == 'worker-1':\n    held = [bytearray(1 << 20) for _ in range(1 << 20)]\nsleep()\n"
    done = start(hungry, resources={"memory": "200Mi"}, requests={"memory": "50Mi"}).wait(check=137)
    assert re.search(r"first failure: worker-1 on orch-script-\w+-1: .*SIGKILL", done.err), done
    assert "likely out of memory: the kernel killed a process in its memory cgroup" in done.err


def test_a_pod_that_is_evicted(kubernetes: Namespace, start: Start) -> None:
    """The kubelet takes away a pod whose volume is full, and its words are the cause."""
    fills = "if TASK == 'worker-1':\n    open('/scratch/full', 'wb').write(bytes(40 << 20))\nsleep()\n"
    done = start(fills, volumes={"/scratch": {"emptyDir": {"sizeLimit": "10Mi"}}}).wait(check=125)
    assert re.search(r"lost host orch-script-\w+-1.*Evicted: Usage of EmptyDir volume", done.err), done


@pytest.mark.slow
def test_a_deleted_pod_is_a_lost_host_and_another_attempt_gets_new_pods(kubernetes: Namespace, start: Start) -> None:
    up = start(ONCE, more=AGAIN)
    both(up)
    gone = pod_of(up, kubernetes, 1)["metadata"]["name"]
    kubernetes.kubectl("delete", "pod", gone, "--wait=false")
    both(up, 2)
    done = up.wait(check=0)
    assert re.search(rf"{gone}.*the pod on node-\d was deleted", done.err), done


def test_a_connection_that_is_cut_is_made_again_and_nothing_is_lost_or_comes_twice(
    kubernetes: Namespace, start: Start, tmp_path: Path
) -> None:
    up = start(COUNTS)
    both(up)
    kill_exec(up, pod_of(up, kubernetes, 1)["metadata"]["name"])
    up.wait_for("it was made again after")
    end_counts(up, kubernetes, tmp_path)


def kill_exec(up: Running, pod: str) -> None:
    """Kill the kubectl that is the connection to a pod."""
    execs = [child for child in psutil.Process(up.pid).children(recursive=True) if pod in child.cmdline()]
    assert len(execs) == 1
    execs[0].kill()


def end_counts(up: Running, kubernetes: Namespace, directory: Path) -> None:
    """Let the tasks of `COUNTS` end, and compare what they have written."""
    for pod in kubernetes.items("pods"):
        kubernetes.kubectl("exec", pod["metadata"]["name"], "--", "touch", "/tmp/stop")
    done = up.wait(check=0)
    assert "attempt 2" not in done.out
    for task in ("worker-0", "worker-1"):
        first, *numbers = LiveRun(directory).log(task).decode().splitlines()
        assert first == "attempt 1"
        assert numbers == [*map(str, range(len(numbers)))]
        assert len(numbers) > 10


# --- pods that do not come -----------------------------------------------------------------------


def test_an_image_that_cannot_be_pulled(kubernetes: Namespace, start: Start) -> None:
    done = start(GOES_ON, image="nowhere.invalid/tf:1", env=IMPATIENT).wait(check=125)
    assert "ErrImagePull" in done.err or "ImagePullBackOff" in done.err
    assert "backend.image_pull_secrets" in done.err


def test_pods_for_which_no_node_has_room(kubernetes: Namespace, start: Start) -> None:
    """A queue is no failure: the run says what it waits for, and Ctrl-C takes the request back."""
    up = start(GOES_ON, resources={"cpu": "5000"})
    up.wait_for("unschedulable: 0/2 nodes are available: 2 Insufficient cpu")
    up.signal(signal.SIGINT)
    up.wait(check=130)


# --- nodes, and the API server -------------------------------------------------------------------


@pytest.mark.slow
def test_a_node_whose_kubelet_has_stopped(kubernetes_alone: Namespace, start: Start) -> None:
    """The connection goes through the kubelet, so the host is lost, though the pod runs on; its tasks end with the connection."""
    kube = kubernetes_alone
    up = start(GOES_ON, env=IMPATIENT)
    both(up)
    pod = pod_of(up, kube, 1)
    kube.stop_kubelet(pod["spec"]["nodeName"])
    done = up.wait(check=125)
    assert re.search(rf"lost host {pod['metadata']['name']}", done.err), done
    kube.start_kubelet(pod["spec"]["nodeName"])


@pytest.mark.slow
def test_a_node_that_falls_silent(kubernetes_alone: Namespace, start: Start) -> None:
    """No packet arrives, and nobody is told: after `lost_after_s` the host is lost, and another attempt runs on the other node."""
    kube = kubernetes_alone
    up = start(ONCE, more=AGAIN, lost_after_s=4)
    both(up)
    pod = pod_of(up, kube, 1)
    kube.cut(pod["spec"]["nodeName"])
    both(up, 2)
    assert re.search(rf"{pod['metadata']['name']}", up.wait(check=0).err)


@pytest.mark.slow
def test_connections_that_an_api_server_or_a_kubelet_has_cut_are_made_again(
    kubernetes_alone: Namespace, start: Start, tmp_path: Path
) -> None:
    """All connections at once, for as long as the API server takes to come back; and one after the other, of one run."""
    kube = kubernetes_alone
    up = start(COUNTS, lost_after_s=60)
    both(up)
    kube.restart_api_server()
    wait_until(lambda: up.err.count("it was made again after") == 2, "both connections", 200)
    node = pod_of(up, kube, 0)["spec"]["nodeName"]
    kube.stop_kubelet(node)
    kube.start_kubelet(node)
    wait_until(lambda: up.err.count("it was made again after") > 2, "connections through the kubelet", 200)
    end_counts(up, kube, tmp_path)


def test_the_parts_of_a_run_are_waited_for(kubernetes: Namespace, start: Start) -> None:
    """The Service goes last, and with it everything: the namespace is as it was."""
    up = start("sys.exit(3 if TASK == 'worker-0' else 0)\n")
    up.wait(check=3)
    wait_until(lambda: not kubernetes.items("pods") and not kubernetes.items("services"), "empty namespace")
