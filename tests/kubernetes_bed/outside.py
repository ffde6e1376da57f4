"""The bed as it is seen from outside: started by its first user, shared by all, ended by the kernel when the last one has gone.

``python -m tests.kubernetes_bed.outside PLACE`` is the process between the machine and the namespaces: it makes the one link between them,
waits for the bed's end, and removes what is left of it. It belongs to no test, and ends with the bed.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import psutil

from tests.kubernetes_bed import build
from tests.kubernetes_bed.inside import PATIENCE_S, _wait_until

ROOT = Path(__file__).resolve().parent.parent.parent


def missing() -> str:
    """Why there can be no Kubernetes here; empty if there can."""
    if os.geteuid() != 0:
        return "only root can make network namespaces and run containers"
    if not build.cache().is_dir():
        return "it is not built: make kubernetes builds it, once, in some ten minutes"
    if not Path("/sys/fs/cgroup/memory").is_dir():
        return "this machine has no memory controller of cgroup v1, by which the bed's containers are limited"
    return ""


def place() -> Path:
    """The directory of the bed of this Python: what its users share."""
    mark = hashlib.sha256(f"{build.cache()}\n{sys.prefix}".encode()).hexdigest()[:8]
    return Path("/tmp", f"kubernetes-bed-{mark}")


class Connection:
    """A user of the bed, who may order faults. The bed lives as long as one is open."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._socket.connect(str(root / "socket"))
        except OSError:
            self._socket.close()
            raise
        self._lines = self._socket.makefile("rw")
        try:
            self.order("start", "etcd")  # runs already: an answer shows that the bed is not just ending
        except (OSError, RuntimeError) as error:
            self._socket.close()
            with suppress(OSError):
                self._lines.close()
            raise ConnectionError(str(error)) from None

    def order(self, verb: str, name: str, node: str = "") -> None:
        """See `inside.Cluster.order`. Raises RuntimeError with what the bed says against the order."""
        self._lines.write(json.dumps([verb, name, node]) + "\n")
        self._lines.flush()
        if said := json.loads(self._lines.readline() or '"the bed has ended"'):
            raise RuntimeError(f"{verb} {name} {node}: {said}")

    def close(self) -> None:
        self._lines.close()
        self._socket.close()


@contextmanager
def joined() -> Iterator[Connection]:
    """The bed of this machine, started if there is none. Raises RuntimeError with the end of its log if it does not start."""
    here = place()
    with suppress(FileExistsError):
        here.mkdir(mode=0o700)
    if here.stat().st_uid != os.geteuid() or here.is_symlink():
        raise RuntimeError(f"{here} belongs to somebody else")
    with open(here / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            connection = Connection(here / "bed")
        except OSError:
            connection = _start(here)
    try:
        yield connection
    finally:
        connection.close()


@contextmanager
def used(*, alone: bool) -> Iterator[None]:
    """Among the users of the bed: together with others, or `alone`, for what troubles all of them."""
    with open(place() / "gate", "w") as gate, open(place() / "use", "w") as use:
        fcntl.flock(gate, fcntl.LOCK_EX)  # whoever waits to be alone keeps others from coming
        fcntl.flock(use, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        if not alone:
            fcntl.flock(gate, fcntl.LOCK_UN)
        yield


def _start(here: Path) -> Connection:
    """The process outside inherits the lock, so that the next bed begins when this one is gone with all of its files."""
    with open(here / "life", "w") as life:
        _wait_until(lambda: _is_locked(life), "the end of the former bed")
        return _start_anew(here, life)


def _is_locked(file: IO[str]) -> bool:
    with suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _start_anew(here: Path, life: IO[str]) -> Connection:
    _remove(here / "bed")
    env = {name: value for name, value in os.environ.items() if not name.startswith(("ORCH_", "PYTEST_"))}
    env["PYTHONPATH"] = str(ROOT)
    argv = [sys.executable, "-m", "tests.kubernetes_bed.outside", str(here)]
    with open(here / "log", "wb") as log:
        # --fork: no child of the test that happens to be the first one.
        null = subprocess.DEVNULL
        subprocess.run(
            ["setsid", "--fork", *argv], stdin=null, stdout=log, stderr=log, cwd=ROOT, env=env, check=True, pass_fds=[life.fileno()]
        )
    deadline = time.monotonic() + 2 * PATIENCE_S
    while True:
        try:
            return Connection(here / "bed")
        except OSError:
            said = (here / "log").read_text(errors="replace")
            if "\nended\n" in f"\n{said}" or time.monotonic() > deadline:
                raise RuntimeError(f"the bed of Kubernetes did not start:\n{said[-3000:]}") from None
            time.sleep(0.2)


# --- the process outside -----------------------------------------------------------------------


def serve(here: Path) -> None:
    root = here / "bed"
    root.mkdir(mode=0o711)
    try:
        with _network() as (network, link):
            unshare = "unshare --net --mount --uts --ipc --pid --fork --kill-child=KILL --propagation private --mount-proc"
            inside = subprocess.Popen([*unshare.split(), sys.executable, "-m", "tests.kubernetes_bed.inside", str(root), network])
            # The kernel takes the link back with the namespaces.
            _wait_until(lambda: bool(psutil.Process(inside.pid).children()) or inside.poll() is not None, "the namespaces")
            [first] = psutil.Process(inside.pid).children()
            _ip(f"link add {link} type veth peer name eth0 netns {first.pid}")
            _ip(f"addr add {network}.1/24 dev {link}")
            _ip(f"link set {link} up")
            inside.wait()
    finally:
        _remove(root)
        print("ended", flush=True)


@contextmanager
def _network() -> Iterator[tuple[str, str]]:
    """A free network of 198.19.0.0/16, and the name of the link to it."""
    for number in range(256):
        with socket.socket(socket.AF_UNIX) as claim:
            try:
                claim.bind(f"\0orch-kubernetes-{number}")
            except OSError:
                continue
            interfaces = psutil.net_if_addrs()
            used = {address.address.rpartition(".")[0] for found in interfaces.values() for address in found}
            if f"198.19.{number}" not in used and f"okb{number}" not in interfaces:
                yield f"198.19.{number}", f"okb{number}"
                return
    raise RuntimeError("no network of 198.19.0.0/16 is free for a test bed")


def _ip(line: str) -> None:
    subprocess.run(["ip", *line.split()], check=True)


def _remove(root: Path) -> None:
    """The files of a bed that has ended, and the groups of its containers, which the kernel keeps."""
    shutil.rmtree(root, ignore_errors=True)
    for group in Path("/sys/fs/cgroup").glob("*/k8s.io"):
        for directory, _, _ in os.walk(group, topdown=False):
            with suppress(OSError):  # in use: another bed's
                os.rmdir(directory)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
