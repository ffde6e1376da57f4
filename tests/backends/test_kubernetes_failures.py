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

KUEUE = {
    "type": "TerminationTarget",
    "status": "True",
    "reason": "WorkloadEvictedDueToPreempted",
    "message": "Preempted to accommodate a workload (UID: 5a0c) due to prioritization in the ClusterQueue",
}
"""What Kueue writes into the status of a plain pod before it deletes the pod (kueue, pkg/controller/jobs/pod/pod_controller.go, `Stop`)."""

GOES_ON = "print('attempt', os.environ['ORCH_ATTEMPT'], flush=True)\nsleep()\n"
ONCE = "print('attempt', os.environ['ORCH_ATTEMPT'], flush=True)\nif os.environ['ORCH_ATTEMPT'] == '1':\n    sleep()\n"
COUNTS = """
print('attempt', os.environ['ORCH_ATTEMPT'], flush=True)
number = 0
while not os.path.exists('/tmp/stop'):
    print(number, flush=True)
    number += 1
    time.sleep(0.01)
"""
AGAIN = "restart: {max: 3, backoff_s: 0.1, lost_host: retry, without_progress: 9}\n"
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


def pod_of(kubernetes: Namespace, number: int) -> dict[str, Any]:
    """The pod of a task, the newest of those there are."""
    found = [pod for pod in kubernetes.items("pods") if re.search(rf"-{number}$", pod["metadata"]["name"])]
    return max(found, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))


# --- the first cause -----------------------------------------------------------------------------


@pytest.mark.slow
def test_a_pod_that_is_taken_away_is_a_lost_host_with_its_cause_and_another_attempt_gets_new_pods(
    kubernetes: Namespace, start: Start
) -> None:
    """Its time is over; Kueue deletes it for a workload of higher priority, of which the words in its status are all that is here; the
    kubelet evicts it, as its volume is full. At last the kernel kills a task at the limit of its pod, and the agent lives to tell."""
    script = """
        attempt = int(os.environ['ORCH_ATTEMPT'])
        print('attempt', attempt, flush=True)
        if TASK == 'worker-1' and attempt == 3:
            open('/scratch/full', 'wb').write(bytes(40 << 20))
        if TASK == 'worker-1' and attempt == 4:
            held = [bytearray(1 << 20) for _ in range(1 << 20)]
        sleep()
        """
    memory: dict[str, Any] = {"resources": {"memory": "200Mi"}, "requests": {"memory": "50Mi"}}
    up = start(script, more=AGAIN, **memory, volumes={"/scratch": {"emptyDir": {"sizeLimit": "10Mi"}}})
    both(up)
    late = pod_of(kubernetes, 1)["metadata"]["name"]
    kubernetes.kubectl("patch", "pod", late, "--patch", '{"spec": {"activeDeadlineSeconds": 1}}')
    both(up, 2)
    preempted = pod_of(kubernetes, 1)
    name = preempted["metadata"]["name"]
    preempted["status"]["conditions"].append(KUEUE)
    status = f"/api/v1/namespaces/{kubernetes.name}/pods/{name}/status"
    kubernetes.kubectl("replace", "--raw", status, "-f", "-", input=json.dumps(preempted))
    kubernetes.kubectl("delete", "pod", name, "--wait=false")
    said = up.wait(check=137).err
    assert re.search(rf"{late}.*the pod on node-\d has ended: DeadlineExceeded: Pod was active on the node longer than", said), said
    assert re.search(rf"{name}.*the pod on node-\d was deleted: {KUEUE['reason']}: Preempted to accommodate a workload", said), said
    assert re.search(r"orch-script-\w+-r3-1.*Evicted: Usage of EmptyDir volume", said), said
    assert re.search(r"first failure: worker-1 on orch-script-\w+-r4-1: .*SIGKILL", said), said
    assert "likely out of memory: the kernel killed a process in its memory cgroup" in said


# --- pods that do not come -----------------------------------------------------------------------


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
    pod = pod_of(kube, 1)
    kube.stop_kubelet(pod["spec"]["nodeName"])
    done = up.wait(check=125)
    assert re.search(rf"lost host {pod['metadata']['name']}", done.err), done
    kube.start_kubelet(pod["spec"]["nodeName"])


@pytest.mark.slow
def test_a_node_that_falls_silent(kubernetes_alone: Namespace, start: Start) -> None:
    """It has lost its power, and nobody is told: after `lost_after_s` the host is lost, and another attempt runs on the other node."""
    kube = kubernetes_alone
    up = start(ONCE, more=AGAIN, lost_after_s=12)
    both(up)
    pod = pod_of(kube, 1)
    kube.kill_node(pod["spec"]["nodeName"])
    both(up, 2)
    assert re.search(rf"{pod['metadata']['name']}", up.wait(check=0).err)


@pytest.mark.slow
def test_connections_that_are_cut_are_made_again_and_nothing_is_lost_or_comes_twice(
    kubernetes_alone: Namespace, start: Start, tmp_path: Path
) -> None:
    """That of one pod, whose kubectl is killed; all at once, for as long as an API server takes to come back; those through a kubelet."""
    kube = kubernetes_alone
    up = start(COUNTS, lost_after_s=200)
    both(up)
    pod = pod_of(kube, 1)
    kill_exec(up, pod["metadata"]["name"])
    wait_until(lambda: up.err.count("it was made again after") >= 1, "connection", 200)  # or more, on a busy machine
    made = up.err.count("it was made again after")
    kube.restart_api_server()
    wait_until(lambda: up.err.count("it was made again after") >= made + 2, "both connections", 200)
    made = up.err.count("it was made again after")
    kube.stop_kubelet(pod["spec"]["nodeName"])
    kube.start_kubelet(pod["spec"]["nodeName"])
    wait_until(lambda: up.err.count("it was made again after") > made, "connections through the kubelet", 200)
    for one in kube.items("pods"):
        kube.kubectl("exec", one["metadata"]["name"], "--", "touch", "/tmp/stop")
    assert "attempt 2" not in up.wait(check=0).out
    compare_counts(LiveRun(tmp_path))


def kill_exec(up: Running, pod: str) -> None:
    execs = [child for child in psutil.Process(up.pid).children(recursive=True) if pod in child.cmdline()]
    assert len(execs) == 1
    execs[0].kill()


def compare_counts(run: LiveRun) -> None:
    """No line of `COUNTS` is missing, and none comes twice."""
    for task in ("worker-0", "worker-1"):
        first, *numbers = run.log(task).decode().splitlines()
        assert first == "attempt 1"
        assert numbers == [*map(str, range(len(numbers)))]
        assert len(numbers) > 10
