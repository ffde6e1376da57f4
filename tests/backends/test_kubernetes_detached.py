"""Runs whose controller is a pod of a real Kubernetes, without TensorFlow: all commands from here, and what goes wrong."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from pathlib import Path

import psutil
import pytest
import yaml

from orchestrator.backends.connection.listener import PORT
from tests.backends import test_kubernetes_runs as runs
from tests.backends.test_kubernetes_failures import COUNTS, compare_counts
from tests.backends.test_kubernetes_runs import holds
from tests.conftest import Orch
from tests.kubernetes_bed.bed import Namespace
from tests.live import LiveRun, wait_until
from worker.host.network import dialler

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]

GOES_ON = "print('attempt', os.environ['ORCH_ATTEMPT'], 'of', TASK, flush=True)\nsleep()\n"


FAILS_WHEN_BOTH_HAVE_WRITTEN = """
print('data of', TASK, flush=True)
host, _, port = json.loads(os.environ['TF_CONFIG'])['cluster']['worker'][0].rpartition(':')
if TASK == 'worker-0':
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    server.bind((host, int(port)))
    server.listen()
    sleep()
while True:
    try:
        socket.create_connection((host, int(port)), 1).close()
        raise ValueError('no data')
    except OSError:
        time.sleep(0.05)
"""


class Place(runs.Place):
    """A directory with a script, whose runs are submitted."""

    def submit(self, *words: str) -> LiveRun:
        self.orch("up", "script.py", "-d", *words, check=0)
        return LiveRun(self.directory)

    def logs(self) -> str:
        return str(self.orch("logs", timeout=120).out)

    def wait_for_log(self, *texts: str) -> None:
        for text in texts:
            wait_until(lambda text=text: text in self.logs(), text)

    def nothing_left(self) -> bool:
        left = self.kubernetes.left_behind()
        assert not left, left
        return True


@pytest.fixture
def place(orch: Orch, kubernetes: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("ORCH_TIME_SCALE", "0.1")  # the engine may be asked every second or so
    return Place(orch, kubernetes, tmp_path)


def test_a_run_is_followed_from_any_shell_then_a_lost_pod_is_replaced_and_a_lost_controller_ends_it(place: Place) -> None:
    place.write(
        GOES_ON, resources={"memory": "300Mi"}, requests={"cpu": "10m"}, more="restart: {max: 1, lost_host: retry}", lost_after_s=12
    )
    dry = place.orch("up", "script.py", "-n", "2", "-d", "--dry-run", check=0).out
    run = place.submit("-n", "2", "--env", "SECRET=not for the manifest")
    place.wait_for_log("worker-0 | attempt 1 of worker-0", "worker-1 | attempt 1 of worker-1")
    request = (run.path / "request" / "run.yaml").read_text()
    end = run.path.name.rpartition("-")[2]
    assert dry.partition("# run.yaml\n")[2].partition("\n# ")[0].replace("<run>", end).strip() in request.replace(run.path.name, end)
    assert "not for the manifest" not in request
    uid = place.kubernetes.items("services")[0]["metadata"]["uid"]
    for asked in yaml.safe_load_all(request.replace("<uid of the Service>", uid)):
        kind, name = asked["kind"].lower(), asked["metadata"]["name"]
        if kind != "secret":
            assert holds(json.loads(place.kubernetes.kubectl("get", kind, name, "-o", "json")), asked), name
    found = json.loads(place.orch("ps", "--json", check=0).out)
    assert found["state"] == "running"
    assert {task["host"] for task in found["tasks"]} == {pod["metadata"]["name"] for pod in place.pods("agent")}
    assert "worker-0..1: in sleep (script.py:" in place.orch("stacks", check=0).out
    seen, page = place.orch("top", "--once", check=0).out, place.orch("report", "-o", "/dev/stdout", check=0).out
    assert all(re.search(rf"^{task['task']} +\S+ +runs ", seen, re.MULTILINE) and task["host"] in page for task in found["tasks"]), seen
    uids = {pod["metadata"]["uid"] for pod in place.pods("agent")}
    place.orch("restart", check=0)
    place.wait_for_log("worker-0 | attempt 2 of worker-0", "worker-1 | attempt 2 of worker-1")
    assert {pod["metadata"]["uid"] for pod in place.pods("agent")} == uids, "a restart keeps its pods"
    first, second = (pod["metadata"]["name"] for pod in place.pods("agent"))
    place.kubernetes.kubectl("delete", "pod", second, "--wait=false")
    place.wait_for_log("worker-0 | attempt 3", "worker-1 | attempt 3")
    assert "the agent received SIGTERM" in place.orch("logs", check=0).err + (run.path / "controller.log").read_text()
    assert "trying to connect again" not in (run.path / "controller.log").read_text(), "the pod has told that its agent has ended"
    hosts = {task["host"] for task in json.loads(place.orch("ps", "--json", check=0).out)["tasks"]}
    assert first in hosts
    assert second not in hosts
    controller = place.pods("controller")[0]["metadata"]["name"]
    place.kubernetes.kubectl("delete", "pod", controller, "--force", "--grace-period=0")
    done = place.orch("wait", check=125, timeout=200)
    assert f"pod {controller} of Kubernetes: the pod of its controller is gone: it was deleted, or its node died" in done.err, done
    wait_until(lambda: not any(pod["status"]["phase"] == "Running" for pod in place.pods("agent")), "end of the pods", 200)
    assert f"what was left of {controller.removesuffix('-controller')} was removed" in place.orch("down", check=0).out
    assert place.nothing_left()


def test_a_run_ends_while_nobody_looks_and_its_record_is_fetched_later(place: Place) -> None:
    place.write(FAILS_WHEN_BOTH_HAVE_WRITTEN)
    run = place.submit("-n", "2")
    wait_until(lambda: {pod["status"]["phase"] for pod in place.pods("agent")} == {"Succeeded"}, "end of the pods", 120)
    assert not (run.path / "result.json").exists()
    done = place.orch("wait", check=1)
    assert re.search(r"first failure: worker-1 on orch-script-\w+-agents-\w+: exit code 1", done.err), done
    assert "ValueError: no data" in done.err
    assert "worker-0 | data of worker-0" in place.logs()
    assert json.loads((run.path / "result.json").read_text())["exit_code"] == 1
    assert place.nothing_left()


def test_a_run_that_waits_for_pods_says_why_and_can_be_withdrawn(place: Place) -> None:
    """Also one that `orch up` follows: Ctrl-C ends it."""
    place.write(GOES_ON, pod_template={"spec": {"nodeSelector": {"no": "such"}}}, controller="cluster")
    place.submit()
    wait_until(lambda: "unschedulable: 0/2 nodes are available" in place.orch("ps", check=0).out, "the words of Kubernetes")
    place.orch("down", check=0)
    up = place.orch.start("up", "script.py")
    up.wait_for("unschedulable: 0/2 nodes are available")
    up.signal(signal.SIGINT)
    up.wait(check=130)
    assert place.nothing_left()


@pytest.mark.slow
def test_a_run_goes_on_without_an_api_server_and_after_its_own_connections_were_cut(
    orch: Orch, kubernetes_alone: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel ends the established connections of a pod, twice, with what was on its way. No line is lost or comes twice."""
    monkeypatch.setenv("ORCH_TIME_SCALE", "0.1")
    place = Place(orch, kubernetes_alone, tmp_path)
    place.write(COUNTS, lost_after_s=200)
    run = place.submit("-n", "2")
    place.wait_for_log("worker-0 | attempt 1", "worker-1 | attempt 1")
    pod = place.pods("agent")[0]["metadata"]["name"]
    for times in (1, 2):  # or more: a busy machine may cut one by itself
        cut_connections(pod)
        wait_until(lambda times=times: place.logs() and count_returns(run, pod) >= times, "new connection")
    kubernetes_alone.restart_api_server()
    place.orch("down", check=0)
    assert "stopped by orch down" in place.orch("wait", check=143, timeout=200).err + place.orch("ps", check=0).out
    assert place.nothing_left()
    compare_counts(run)


def cut_connections(pod: str) -> None:
    [first] = [process for process in psutil.process_iter() if _variables(process).get(dialler.POD) == pod]
    enter = ["nsenter", "--net", f"--target={first.pid}", "ss", "--kill", "--no-header", "--tcp", "state", "established"]
    done = subprocess.run([*enter, f"dport = :{PORT}"], capture_output=True, text=True, check=True)
    assert done.stdout.strip(), done


def _variables(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except psutil.Error:
        return {}


def count_returns(run: LiveRun, pod: str) -> int:
    said = (run.path / "controller.log").read_text()
    return len(re.findall(rf"{pod}.*it was made again after .* nothing is lost", said))
