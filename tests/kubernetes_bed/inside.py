"""What runs inside of the bed's namespaces: the control plane, and two nodes; and the faults that a test asks for.

``python -m tests.kubernetes_bed.inside ROOT NETWORK`` is the first process of a process namespace, so that everything ends with it: etcd,
kube-apiserver, kube-controller-manager, kube-scheduler and the stand-in for DNS in one network namespace; each node in one of its own,
with its own host name, ``/run`` and ``/var``, containerd and kubelet. Orders are lines of JSON on the socket ``ROOT/socket``: ``["stop",
"kubelet", "node-1"]``, answered by an empty text or by what went wrong. The bed ends when the last connection has been closed.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.kubernetes_bed import image
from tests.kubernetes_bed.build import cache

NODES = ("node-1", "node-2")
PATIENCE_S = 120.0
_LINGER_S = 2.0
"""How long the bed outlives its last user: workers of one pytest session end one after the other."""

KUBECONFIG = """\
apiVersion: v1
kind: Config
clusters: [{{name: bed, cluster: {{server: "{server}", insecure-skip-tls-verify: true}}}}]
users: [{{name: {user}, user: {{token: {token}}}}}]
contexts: [{{name: bed, context: {{cluster: bed, user: {user}, namespace: {namespace}}}}}]
current-context: bed
"""
CONTAINERD = """\
version = 2
root = "{node}/containerd"
state = "/run/containerd"
oom_score = 0
[grpc]
  address = "/run/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      base_runtime_spec = "{root}/base-spec.json"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{cache}/cni"
    conf_dir = "{node}/cni"
"""
KUBELET = """\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {{anonymous: {{enabled: true}}, webhook: {{enabled: false}}}}
authorization: {{mode: AlwaysAllow}}
cgroupDriver: cgroupfs
cgroupsPerQOS: false
enforceNodeAllocatable: []
failSwapOn: false
clusterDomain: cluster.local
clusterDNS: [{address}]
evictionHard: {{memory.available: 50Mi}}
imageGCHighThresholdPercent: 100
makeIPTablesUtilChains: false
maxPods: 110
nodeStatusUpdateFrequency: 1s
nodeLeaseDurationSeconds: 8
serializeImagePulls: false
volumeStatsAggPeriod: 2s
"""
RESTRICTED = """\
# As the Pod Security Standard `restricted`; Kubernetes 1.20 has no other judge of pods than this policy.
apiVersion: policy/v1beta1
kind: PodSecurityPolicy
metadata:
  name: restricted
  annotations: {seccomp.security.alpha.kubernetes.io/allowedProfileNames: runtime/default}
spec:
  privileged: false
  allowPrivilegeEscalation: false
  requiredDropCapabilities: [ALL]
  volumes: [configMap, emptyDir, projected, secret, downwardAPI, persistentVolumeClaim]
  runAsUser: {rule: MustRunAsNonRoot}
  seLinux: {rule: RunAsAny}
  supplementalGroups: {rule: RunAsAny}
  fsGroup: {rule: RunAsAny}
"""


def pods_of(node: str) -> str:
    return f"10.88.{NODES.index(node) + 1}.0/24"


class Cluster:
    """The daemons and the links between them."""

    def __init__(self, root: Path, network: str) -> None:
        self.root, self.network, self.programs = root, network, cache()
        self.address = f"{network}.2"
        self.kubeconfig = root / "admin.kubeconfig"
        self._daemons: dict[tuple[str, str], subprocess.Popen[bytes]] = {}
        self._holders: dict[str, subprocess.Popen[bytes]] = {}
        self._lock = threading.Lock()
        self.env = {**os.environ, "PATH": f"{self.programs}/bin:/usr/sbin:/usr/bin:/sbin:/bin", "KUBECONFIG": str(self.kubeconfig)}

    def start(self) -> None:
        for name in ("log", "pki", "volumes", "images"):
            (self.root / name).mkdir()
        self._call("mount -t tmpfs tmpfs /run")
        self._connect()
        self._write_files()
        # etcd waits for the disk at each write; nothing of the bed is worth that.
        (self.root / "etcd").mkdir()
        self._call(f"mount -t tmpfs tmpfs {self.root}/etcd")
        for name in ("etcd", "kube-apiserver"):
            self.order("start", name, "")
        for name in ("kube-controller-manager", "kube-scheduler", "dns"):
            self.order("start", name, "")
        self._apply(RESTRICTED)
        for node in NODES:
            self._make_node(node)
            self.order("start", "containerd", node)
        for node in NODES:
            self.order("start", "kubelet", node)
        for node in NODES:
            _wait_until(lambda node=node: self._is_ready(node), f"{node} to be ready")

    # --- networks ------------------------------------------------------------------------------

    def _connect(self) -> None:
        """A bridge with the machine outside (``eth0``, which it has put here), the control plane and the nodes."""
        # Not by /sys, which still shows the machine's own eth0.
        _wait_until(lambda: self._call("ip link show eth0", check=False), "the link to the outside")
        for line in ("lo up", "eth0 up"):
            self._call(f"ip link set {line}")
        self._call("ip link add nodes type bridge")
        self._call("ip link set eth0 master nodes")
        self._call(f"ip addr add {self.address}/24 dev nodes")
        self._call("ip link set nodes up")
        for node in NODES:
            self._call(f"ip netns add {node}")
            self._call(f"ip link add {node} type veth peer name eth0 netns {node}")
            self._call(f"ip link set {node} master nodes up")
            for line in ("link set lo up", f"addr add {self._address_of(node)}/24 dev eth0", "link set eth0 up"):
                self._call(f"ip -n {node} {line}")
            self._call(f"ip route add {pods_of(node)} via {self._address_of(node)}")
        for node in NODES:
            for other in NODES:
                if other != node:
                    self._call(f"ip -n {node} route add {pods_of(other)} via {self._address_of(other)}")

    def _address_of(self, node: str) -> str:
        return f"{self.network}.{NODES.index(node) + 11}"

    # --- files ---------------------------------------------------------------------------------

    def _write_files(self) -> None:
        pki = self.root / "pki"
        self._call(f"openssl genrsa -out {pki}/accounts.key 2048")
        self._call(f"openssl rsa -in {pki}/accounts.key -pubout -out {pki}/accounts.pub")
        tokens = {"admin": secrets.token_hex(16), "user": secrets.token_hex(16)}
        groups = {"admin": ',"system:masters"', "user": ""}
        (pki / "tokens.csv").write_text("".join(f"{token},{name},{name}{groups[name]}\n" for name, token in tokens.items()))
        for name, token in tokens.items():
            text = KUBECONFIG.format(server=f"https://{self.address}:6443", user=name, token=token, namespace="default")
            (self.root / f"{name}.kubeconfig").write_text(text)
            (self.root / f"{name}.kubeconfig").chmod(0o600)
        image.write_pause(self.programs / "bin/pause", self.root / "images/pause.tar")
        image.write_tensorflow(self.root / "images/tensorflow.tar")
        spec = json.loads(subprocess.run(["ctr", "oci", "spec"], env=self.env, capture_output=True, check=True).stdout)
        (self.root / "base-spec.json").write_text(json.dumps(image.base_spec(spec)))

    def _make_node(self, node: str) -> None:
        place = self.root / node
        for name in ("var/log", "var/lib", "var/tmp", "cni", "certificates"):
            (place / name).mkdir(parents=True)
        (place / "var/run").symlink_to("/run")
        (place / "containerd.toml").write_text(CONTAINERD.format(node=place, root=self.root, pause=image.PAUSE, cache=self.programs))
        bridge = {"type": "bridge", "bridge": "pods", "isGateway": True, "ipMasq": False, "ipam": {"type": "host-local"}}
        bridge["ipam"] = {"type": "host-local", "subnet": pods_of(node), "routes": [{"dst": "0.0.0.0/0"}]}
        (place / "cni/10-bed.conflist").write_text(
            json.dumps({"cniVersion": "0.4.0", "name": "bed", "plugins": [bridge, {"type": "loopback"}]})
        )
        (place / "kubelet.yaml").write_text(KUBELET.format(address=self.address))
        inside = f"mount -t tmpfs tmpfs /run && mount --bind {place}/var /var && hostname {node} && "
        inside += "echo 1 > /proc/sys/net/ipv4/ip_forward && echo ready && exec sleep infinity"
        self._holders[node] = process = subprocess.Popen(
            ["nsenter", f"--net=/run/netns/{node}", "unshare", "--mount", "--uts", "--propagation", "private", "sh", "-c", inside],
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n", f"{node} has no namespaces"

    def _apply(self, text: str) -> None:
        subprocess.run(["kubectl", "apply", "-f", "-"], input=text, text=True, env=self.env, check=True, stdout=subprocess.DEVNULL)

    # --- daemons -------------------------------------------------------------------------------

    def order(self, verb: str, name: str, node: str) -> None:
        """``start``, ``stop`` (SIGTERM) or ``kill`` a daemon; ``kill`` the ``node`` with its pods, and ``join`` it to the network again."""
        with self._lock:
            if verb == "join":
                self._call(f"ip link set {node} up")
            elif verb == "kill" and name == "node":
                self._kill_node(node)
            elif verb == "start":
                self._start(name, node)
            else:
                self._stop(name, node, is_killed=verb == "kill")

    def _start(self, name: str, node: str) -> None:
        if (name, node) in self._daemons and self._daemons[name, node].poll() is None:
            return
        argv = [str(word) for word in self._argv(name, node)]
        if node:
            argv = ["nsenter", f"--target={self._holders[node].pid}", "--net", "--mount", "--uts", *argv]
        with open(self.root / "log" / f"{name}{node and f'.{node}'}.log", "ab") as log:
            self._daemons[name, node] = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.env, cwd=self.root, start_new_session=True
            )
        if name == "kube-apiserver":
            _wait_until(lambda: self._call("kubectl get --raw /readyz", check=False), "the API server")
        if name == "containerd":
            enter = f"nsenter --target={self._holders[node].pid} --net --mount --uts ctr --address /run/containerd.sock --namespace k8s.io"
            _wait_until(lambda: self._call(f"{enter} version", check=False), f"containerd of {node}")
            for archive in (self.root / "images").iterdir():
                self._call(f"{enter} images import {archive}")

    def _argv(self, name: str, node: str) -> list[Any]:
        pki = self.root / "pki"
        if name == "etcd":
            urls = "--listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 --listen-peer-urls http://127.0.0.1:2380"
            return ["etcd", f"--data-dir={self.root}/etcd/data", *urls.split()]
        if name == "kube-apiserver":
            return [
                *("kube-apiserver", "--etcd-servers=http://127.0.0.1:2379", f"--cert-dir={pki}", "--secure-port=6443", "--insecure-port=0"),
                *(f"--bind-address={self.address}", f"--advertise-address={self.address}", "--endpoint-reconciler-type=none"),
                *(f"--service-account-key-file={pki}/accounts.pub", f"--service-account-signing-key-file={pki}/accounts.key"),
                *("--service-account-issuer=https://kubernetes.default.svc", "--api-audiences=api", f"--token-auth-file={pki}/tokens.csv"),
                *("--authorization-mode=RBAC", "--service-cluster-ip-range=10.96.0.0/16", "--enable-admission-plugins=PodSecurityPolicy"),
                *(
                    "--kubelet-preferred-address-types=InternalIP",
                    "--default-not-ready-toleration-seconds=4",
                    "--default-unreachable-toleration-seconds=4",
                    "--profiling=false",
                ),
            ]
        common = [f"--kubeconfig={self.kubeconfig}", "--leader-elect=false", "--profiling=false"]
        if name == "kube-controller-manager":
            return [
                *(name, *common, f"--service-account-private-key-file={pki}/accounts.key", f"--root-ca-file={pki}/apiserver.crt"),
                *("--node-monitor-period=1s", "--node-monitor-grace-period=6s", "--node-startup-grace-period=60s"),
            ]
        if name == "kube-scheduler":
            return [name, *common]
        if name == "dns":
            return [sys.executable, Path(__file__).with_name("dns.py"), "kubectl", self.address]
        place = self.root / node
        if name == "containerd":
            return ["containerd", "--config", place / "containerd.toml"]
        return [
            *("kubelet", f"--kubeconfig={self.kubeconfig}", f"--config={place}/kubelet.yaml", f"--cert-dir={place}/certificates"),
            *("--container-runtime=remote", "--container-runtime-endpoint=unix:///run/containerd.sock", f"--hostname-override={node}"),
            *("--root-dir=/var/lib/kubelet", f"--node-ip={self._address_of(node)}"),
        ]

    def _stop(self, name: str, node: str, *, is_killed: bool) -> None:
        process = self._daemons.pop((name, node), None)
        if process is not None:
            process.kill() if is_killed else process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _kill_node(self, node: str) -> None:
        """The machine has lost its power: its cable is dead, and nothing that ran there runs."""
        self._call(f"ip link set {node} down")
        for name in ("kubelet", "containerd"):
            self._stop(name, node, is_killed=True)
        # The shims and the containers' processes: whatever sees this node's file of mounts, or was started by one that does.
        for process in _below(f"{self.root}/{node}/", {self._holders[node].pid}):
            try:
                os.kill(process, 9)
            except ProcessLookupError:
                continue

    def _is_ready(self, node: str) -> bool:
        path = "jsonpath={.status.conditions[?(@.type=='Ready')].status}"
        done = subprocess.run(["kubectl", "get", "node", node, "-o", path], env=self.env, capture_output=True)
        return done.stdout.strip() == b"True"

    def _call(self, line: str, *, check: bool = True) -> bool:
        done = subprocess.run(line.split(), env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if check and done.returncode:
            raise RuntimeError(f"{line}: {done.stdout.decode(errors='replace').strip()}")
        return done.returncode == 0


def _below(mark: str, spared: set[int]) -> list[int]:
    """The processes whose mounts show `mark`: the shims of a node, and its containers."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) not in spared:
            try:
                if mark in (entry / "mountinfo").read_text():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def _wait_until(is_so: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + patience_s
    while not is_so():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what}: not within {patience_s:.0f} s")
        time.sleep(0.1)


# --- orders ------------------------------------------------------------------------------------


class Orders:
    """The socket: who is connected keeps the bed alive."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._users = 0
        self._left_at = time.monotonic()
        self._lock = threading.Lock()

    def serve(self, path: Path) -> None:
        """Answer until the last user has gone. The first one has some seconds to come."""
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
            server.listen(64)
            server.settimeout(0.2)
            self._left_at = time.monotonic() + 10
            while True:
                try:
                    connection, _ = server.accept()
                except TimeoutError:
                    with self._lock:
                        if not self._users and time.monotonic() > self._left_at + _LINGER_S:
                            return
                    continue
                with self._lock:
                    self._users += 1
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rw") as lines:
            for line in lines:
                try:
                    self._cluster.order(*json.loads(line))
                    said = ""
                except Exception as error:  # said to the test that asked
                    said = str(error) or repr(error)
                lines.write(json.dumps(said) + "\n")
                lines.flush()
        with self._lock:
            self._users -= 1
            self._left_at = time.monotonic()


def main(root: Path, network: str) -> None:
    """The first process of the namespace waits for all others; the second one is the bed. When the first one ends, the kernel ends all."""
    bed = os.fork()
    if bed:
        while True:
            ended, _ = os.wait()
            if ended == bed:
                return
    cluster = Cluster(root, network)
    cluster.start()
    orders = Orders(cluster)
    orders.serve(root / "socket")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
