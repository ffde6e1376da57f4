"""Fixtures: a namespace of a real Kubernetes for each test.

``kubernetes`` gives a test a fresh namespace of the bed that all workers of pytest-xdist share, with kubectl on PATH and KUBECONFIG
pointing to the namespace; nothing but what Kubernetes makes itself may be left in it. ``kubernetes_alone`` is the same while no other test
uses the bed, for faults that all pods feel: a node that stops, an API server that is restarted; all of them are mended afterwards.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes_bed import image
from tests.kubernetes_bed.build import client
from tests.kubernetes_bed.inside import NODES, PATIENCE_S, _wait_until
from tests.kubernetes_bed.outside import Connection, joined, missing, used

_DAEMONS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "dns")
_OF_NODES = ("containerd", "kubelet")
TRAINING_S = 240.0
"""How long a training of some steps may take beside other tests."""
_KINDS = "pods,services,endpoints,networkpolicies,jobs,configmaps,secrets,persistentvolumeclaims,resourcequotas,roles,rolebindings"
_ITS_OWN = ("ConfigMap/kube-root-ca.crt", "Secret/default-token-")
"""What Kubernetes itself puts into a namespace."""
_GIVEN = ("PersistentVolumeClaim/", "ResourceQuota/", "Role/", "RoleBinding/")


class Namespace:
    """A namespace of the bed, and what a test asks of the cluster."""

    image = image.TENSORFLOW
    """Has this machine's ``/usr`` and the Python of the tests, with TensorFlow; not the repository."""
    nodes = NODES

    def __init__(self, connection: Connection, files: Path) -> None:
        self.name = f"test-{uuid.uuid4().hex[:10]}"
        self.bed = connection
        self._files = files
        self.kubeconfig = self.config_of("admin")
        self.env = {"KUBECONFIG": str(self.kubeconfig), "PATH": f"{client()}:{os.environ.get('PATH', '')}"}
        """What a program needs to find this Kubernetes and this namespace."""

    def config_of(self, user: str) -> Path:
        """The kubeconfig of ``admin``, who may do everything, or of ``user``, who may do what the test's Roles grant."""
        path = self._files / f"{user}.kubeconfig"
        path.write_text((self.bed.root / path.name).read_text().replace("namespace: default", f"namespace: {self.name}"))
        return path

    # --- kubectl -------------------------------------------------------------------------------

    def kubectl(self, *argv: str, input: str | None = None, check: bool = True) -> str:
        """The standard output of kubectl, as a user runs it. `input`: what it reads."""
        done = subprocess.run(
            ["kubectl", *argv],
            capture_output=True,
            text=True,
            env={**os.environ, **self.env},
            **({"stdin": subprocess.DEVNULL} if input is None else {"input": input}),
        )
        assert not (check and done.returncode), f"kubectl {' '.join(argv)}: {done.stderr}"
        return done.stdout

    def apply(self, *objects: Mapping[str, Any]) -> None:
        self.kubectl("apply", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": [*objects]}))

    def items(self, kind: str, *selector: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.kubectl("get", kind, "-o", "json", *selector))["items"]
        return found

    def phases(self) -> dict[str, str]:
        return {pod["metadata"]["name"]: pod["status"]["phase"] for pod in self.items("pods")}

    def wait_for(self, *argv: str, timeout: float = PATIENCE_S) -> None:
        """``wait_for("pod/a", "--for=condition=Ready")``: kubectl's wait."""
        self.kubectl("wait", f"--timeout={timeout:.0f}s", *argv)

    def wait_for_phase(self, pod: str, phase: str) -> None:
        """Wait until a pod is ``Running``, ``Succeeded`` or ``Failed``."""
        _wait_until(lambda: self.phases().get(pod) == phase, f"pod {pod} to be {phase}", TRAINING_S)

    def wait_for_log(self, pod: str, text: str) -> None:
        _wait_until(lambda: text in self.kubectl("logs", pod, check=False), f"{text!r} in the log of pod {pod}")

    def claim(self, name: str = "checkpoints") -> Path:
        """A PersistentVolumeClaim for this namespace; the directory of this machine that its volume is."""
        directory = self.bed.root / "volumes" / self.name / name
        directory.mkdir(parents=True)
        directory.chmod(0o777)
        volume = f"{self.name}-{name}"
        common = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
        self.apply(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": volume, "labels": {"test": self.name}},
                "spec": {**common, "capacity": {"storage": "1Gi"}, "hostPath": {"path": str(directory)}},
            },
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": name},
                "spec": {**common, "volumeName": volume, "resources": {"requests": {"storage": "1Gi"}}},
            },
        )
        _wait_until(lambda: self.items("pvc")[0]["status"]["phase"] == "Bound", "the claim to be bound")
        return directory

    # --- faults: only with `kubernetes_alone` --------------------------------------------------

    def stop_kubelet(self, node: str) -> None:
        """The node's pods run on, and nobody hears of them."""
        self.bed.order("kill", "kubelet", node)

    def start_kubelet(self, node: str) -> None:
        self.bed.order("start", "kubelet", node)

    def kill_node(self, node: str) -> None:
        self.bed.order("kill", "node", node)

    def restart_api_server(self) -> None:
        """All connections to it are cut; it is back after some seconds."""
        self.bed.order("stop", "kube-apiserver")
        self.bed.order("start", "kube-apiserver")

    # --- made and taken away -------------------------------------------------------------------

    def make(self) -> None:
        self.kubectl("create", "namespace", self.name)
        _wait_until(lambda: bool(self.items("serviceaccounts")), "the namespace's service account")

    def left_behind(self) -> list[str]:
        """What a test has left in the namespace and nobody deletes, but for what it is given up for: claims, roles and quotas."""
        deadline = time.monotonic() + PATIENCE_S
        while left := [name for name in self._standing() if not name.startswith((*_ITS_OWN, *_GIVEN))]:
            if time.monotonic() > deadline:
                break
            time.sleep(0.3)
        return left

    def _standing(self) -> list[str]:
        """All objects, but for those that Kubernetes is deleting already: a kubelet may take its time for the end of a pod."""
        words = '{range .items[*]}{.metadata.deletionTimestamp}|{.kind}/{.metadata.name}{"\\n"}{end}'
        lines = self.kubectl("get", "-o", f"jsonpath={words}", _KINDS).splitlines()
        return [name for at, _, name in (line.partition("|") for line in lines) if not at]

    def take_away(self) -> None:
        self.kubectl("delete", "pods", "--all", "--grace-period=0", "--force", "--wait=false", check=False)
        self.kubectl("delete", "namespace", self.name, "--wait=false")
        self.kubectl("delete", "persistentvolumes", f"--selector=test={self.name}", "--wait=false")

    def mend(self) -> None:
        """Take back every fault."""
        for name in _DAEMONS:
            self.bed.order("start", name)
        for node in self.nodes:
            self.bed.order("join", "", node)
            for name in _OF_NODES:
                self.bed.order("start", name, node)
        _wait_until(self._are_nodes_free, "nodes that are ready and take pods")

    def _are_nodes_free(self) -> bool:
        found = json.loads(self.kubectl("get", "nodes", "-o", "json", check=False) or '{"items": []}')["items"]
        ready = [
            node["metadata"]["name"]
            for node in found
            if not node["spec"].get("taints") and {"type": "Ready", "status": "True"}.items() <= _ready_condition(node).items()
        ]
        return sorted(ready) == [*self.nodes]


def _ready_condition(node: Mapping[str, Any]) -> dict[str, Any]:
    return next((condition for condition in node["status"]["conditions"] if condition["type"] == "Ready"), {})


@contextmanager
def _namespace(connection: Connection, files: Path, monkeypatch: pytest.MonkeyPatch, *, alone: bool) -> Iterator[Namespace]:
    with used(alone=alone):
        found = Namespace(connection, files)
        found.make()
        for name, value in found.env.items():
            monkeypatch.setenv(name, value)
        try:
            yield found
        finally:
            if alone:
                found.mend()
            left = found.left_behind()
            found.take_away()
        if left:
            pytest.fail("the test left something in its namespace:\n" + "\n".join(left), pytrace=False)


_stay = ExitStack()
_connections: list[Connection] = []
"""Of this process: none, or the one that it holds while the tests that it runs use the bed."""
_failures: list[RuntimeError] = []
"""Why the bed did not start: it is not tried again for each test."""


def join() -> None:
    """Use the bed from here on, if there can be one. Raises RuntimeError if it does not start."""
    if _failures:
        raise _failures[0]
    if not _connections and not missing():
        try:
            _connections.append(_stay.enter_context(joined()))
        except RuntimeError as error:
            _failures.append(error)
            raise


def leave() -> None:
    """Use the bed no longer: it ends when nobody does."""
    _connections.clear()
    _stay.close()


@pytest.fixture
def _kubernetes() -> Connection:
    """conftest.py joins the bed before the first test that wants it."""
    if why := missing():
        pytest.skip(f"NOT TESTED: Kubernetes: {why}")
    return _connections[0]


@pytest.fixture
def kubernetes(
    _kubernetes: Connection, _nothing_left: None, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Namespace]:
    """A namespace of a real Kubernetes with two nodes, in which the test leaves nothing."""
    with _namespace(_kubernetes, tmp_path_factory.mktemp("kube"), monkeypatch, alone=False) as found:
        yield found


@pytest.fixture
def kubernetes_alone(
    _kubernetes: Connection, _nothing_left: None, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Namespace]:
    """`kubernetes`, while no other test uses the bed: the test may break it, and it is whole again afterwards."""
    with _namespace(_kubernetes, tmp_path_factory.mktemp("kube"), monkeypatch, alone=True) as found:
        yield found
