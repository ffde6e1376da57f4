"""`network: private`: a cluster trains where nothing outside reaches its ports, and leaves no namespace behind."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT, Orch
from tests.live import wait_for_file
from tests.matrix.environments import AS_NOBODY, find_python

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(sys.platform != "linux", reason="NOT TESTED: only Linux has network namespaces"),
]

TRAIN = """
import json, os, pathlib, socket, time
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    weight = tf.Variable(4.0)

@tf.function
def step():
    def of_replica():
        with tf.GradientTape() as tape:
            loss = weight**2
        gradient = tf.distribute.get_replica_context().all_reduce("mean", tape.gradient(loss, weight))
        weight.assign_sub(0.25 * gradient)
    strategy.run(of_replica)

for _ in range(3):
    step()
try:
    socket.create_connection(("192.0.2.1", 9), timeout=0.1).close()
except OSError as error:
    outside = type(error).__name__ + " " + str(error)
cluster, rank = json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"], int(os.environ["RANK"])
status = pathlib.Path("/proc/self/status").read_text()
said = {
    "pid": os.getpid(), "port": int(cluster[rank].rpartition(":")[2]), "weight": float(weight.numpy()), "outside": outside,
    "network": os.readlink("/proc/self/ns/net"), "ids": [os.getuid(), os.getgid()],
    "capabilities": [line for line in status.splitlines() if line.startswith("CapEff")],
}
pathlib.Path(f"{rank}.new").write_text(json.dumps(said))
os.rename(f"{rank}.new", f"worker-{rank}")
while not os.path.exists("go"):
    time.sleep(0.05)
"""


def look(directory: Path) -> list[dict[str, object]]:
    """What the two workers have written after their training, while their servers still listen."""
    return [json.loads(wait_for_file(directory / f"worker-{rank}")) for rank in range(2)]


def reached(port: object) -> bool:
    """Whether a connection from here to this port of the machine is taken."""
    assert isinstance(port, int)
    found = []
    for address in ("127.0.0.1", "::1"):
        try:
            socket.create_connection((address, port), timeout=20).close()
            found.append(True)
        except OSError:
            found.append(False)
    assert found[0] == found[1]
    return found[0]


def processes_in(network: object) -> list[str]:
    """The processes of a network namespace, as /proc shows them."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and os.readlink(f"/proc/{entry}/ns/net") == network:
                found.append(entry)
        except OSError:  # it has ended
            pass
    return found


@pytest.mark.usefixtures("warm_tensorflow")
@pytest.mark.parametrize("network", ["host", "private"])
def test_a_port_is_open_to_all_without_it_and_to_the_cluster_alone_with_it(
    orch: Orch, script: Callable[..., Path], tmp_path: Path, network: str
) -> None:
    script(TRAIN)
    running = orch.start("up", "script.py", "-n", "2", "--network", network)
    workers = look(tmp_path)
    is_private = network == "private"
    assert [worker["weight"] for worker in workers] == [0.5, 0.5]
    assert [reached(worker["port"]) for worker in workers] == [not is_private] * 2
    assert {worker["network"] for worker in workers} & {os.readlink("/proc/self/ns/net")} == set() or not is_private
    assert all("Network is unreachable" in str(worker["outside"]) for worker in workers) or not is_private
    (tmp_path / "go").touch()
    done = running.wait(check=0)
    assert done.err.count("the tasks have a network of their own: nothing outside reaches them") == is_private
    assert done.err.count("tasks are forked from the warm process") == 1
    assert not is_private or processes_in(workers[0]["network"]) == []


@pytest.fixture
def users_directory() -> Iterator[Path]:
    """A directory of the user nobody, whom pytest's own directories do not let in."""
    path = Path(tempfile.mkdtemp(dir="/tmp"))
    os.chown(path, 65534, 65534)
    yield path
    shutil.rmtree(path)


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.skipif(shutil.which(AS_NOBODY[0]) is None, reason="NOT TESTED: setpriv is not installed")
def test_a_user_who_is_not_root_has_it_too_with_the_ids_and_the_rights_of_before(users_directory: Path) -> None:
    python = find_python("{}.{}".format(*sys.version_info), AS_NOBODY)
    packages = sysconfig.get_paths()["purelib"]
    env = {"PATH": "/usr/bin:/bin", "HOME": str(users_directory), "TMPDIR": str(users_directory), "PYTHONPATH": f"{ROOT}:{packages}"}
    env |= {"PYTHONDONTWRITEBYTECODE": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    user = [*AS_NOBODY, python]
    if not python or subprocess.run([*user, "-c", "import click, psutil, yaml, worker"], env=env, cwd="/").returncode:
        pytest.skip("NOT TESTED: no Python here that an ordinary user can run with these packages")
    if subprocess.run([*AS_NOBODY, "unshare", "--user", "--net", "true"], env=env, cwd="/").returncode:
        pytest.skip("NOT TESTED: the kernel does not let users make user namespaces")
    (users_directory / "script.py").write_text(TRAIN)
    command = [*user, "-m", "orchestrator", "up", "script.py", "-n", "2", "--network", "private"]
    with open(users_directory / "output", "w") as output:
        running = subprocess.Popen(command, cwd=users_directory, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        workers = look(users_directory)
        assert [worker["weight"] for worker in workers] == [0.5, 0.5]
        assert [reached(worker["port"]) for worker in workers] == [False, False]
        assert [worker["ids"] for worker in workers] == [[65534, 65534]] * 2
        assert all(str(worker["capabilities"]).split("\\t")[1].strip("0']") == "" for worker in workers), workers
        (users_directory / "go").touch()
        assert running.wait(200) == 0, (users_directory / "output").read_text()
    finally:
        running.terminate()
        running.wait()
    assert processes_in(workers[0]["network"]) == []
