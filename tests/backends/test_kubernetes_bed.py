"""The bed of the Kubernetes tests: it is what the tests of orch take it for."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.kubernetes_bed.bed import Namespace

RESTRICTED = {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}


def pod(name: str, *command: str, node: str = "", image: str = Namespace.image, **spec: Any) -> dict[str, Any]:
    main = {
        "name": "main",
        "image": image,
        "command": [*command],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "test"}},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "securityContext": RESTRICTED,
            "containers": [main],
            **({"nodeName": node} if node else {}),
            **spec,
        },
    }


def sleeping(name: str, **more: Any) -> dict[str, Any]:
    return pod(name, "python3", "-c", "import time; time.sleep(1000)", **more)


def test_pods_on_two_nodes_know_each_other_by_name_and_have_tensorflow(kubernetes: Namespace) -> None:
    service = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"app": "test"}}
    kubernetes.apply(
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "run"}, "spec": service},
        *(sleeping(f"pod-{node}", node=node, hostname=f"pod-{node}", subdomain="run") for node in kubernetes.nodes),
    )
    kubernetes.wait_for("pod", "--all", "--for=condition=Ready")
    addresses = {item["metadata"]["name"]: item["status"]["podIP"] for item in kubernetes.items("pods")}
    program = "import importlib.util, os, socket, sys; there = importlib.util.find_spec; "
    program += "print(os.getuid(), os.path.exists(there('tensorflow').origin), os.path.exists(sys.argv[3]), "
    program += "*map(socket.gethostbyname, sys.argv[1:3]))"
    said = kubernetes.kubectl(
        "exec", "pod-node-1", "--", "python3", "-c", program, "pod-node-2.run", "pod-node-1.run", f"{ROOT}/orchestrator"
    )
    assert said.split() == ["1000", "True", "False", addresses["pod-node-2"], addresses["pod-node-1"]]
    kubernetes.kubectl("delete", "pods,services", "--all")


def test_a_pod_outside_of_the_restricted_standard_is_refused(kubernetes: Namespace) -> None:
    for name, change in (("root", {"securityContext": {**RESTRICTED, "runAsUser": 0}}), ("host", {"hostNetwork": True})):
        with pytest.raises(AssertionError, match=r"forbidden: (PodSecurityPolicy|violates PodSecurity)"):
            kubernetes.apply(sleeping(name, **change))
    assert not kubernetes.items("pods")


def test_a_user_may_do_what_roles_grant(kubernetes: Namespace) -> None:
    own = f"--kubeconfig={kubernetes.config_of('user')}"
    with pytest.raises(AssertionError, match='User "user" cannot list resource "pods"'):
        kubernetes.kubectl(own, "get", "pods")
    kubernetes.kubectl("create", "role", "reader", "--verb=get,list", "--resource=pods")
    kubernetes.kubectl("create", "rolebinding", "reader", "--role=reader", "--user=user")
    assert kubernetes.kubectl(own, "get", "pods", "-o", "name") == ""


# --- the stand-in for CoreDNS --------------------------------------------------------------------


def question(name: str, kind: int = 1) -> bytes:
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return struct.pack(">HHHHHH", 7, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">HH", kind, 1)
