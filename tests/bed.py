"""A test bed: hosts that are network namespaces of this machine, each with its own address, name, home and sshd.

What is real: the network between them (a bridge; IPv4 and IPv6), OpenSSH at both ends, host names, keys and host keys (thrown
away with the bed), what breaks when a link, a port or a daemon does. What is shared: the kernel, the disk but for `Bed.own`,
the process table, the clock. Root only; Linux only. ``bed`` is the fixture; the hosts are made once per session, and sessions
that run beside each other (pytest-xdist's workers) have a bed each.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

NAMES: tuple[str, ...] = ("hostA", "hostB", "hostC")
PREFIX = "orchbed"
PATIENCE_S = 60.0
DAEMONS: set[int] = set()
"""Processes that belong to the bed, and to no test that has started one of them again."""
_SSHD = "/usr/sbin/sshd"
_EPHEMERAL = (32768, 60999)
"""What the kernel gives to connections (net.ipv4.ip_local_port_range, in a new network namespace)."""
_NETWORK6 = "fd5c:0:0"
_NEEDED = {"ip": "iproute2", "ssh": "openssh-client", "ssh-keygen": "openssh-client", _SSHD: "openssh-server", "setpriv": "util-linux"}


def missing() -> str:
    """Why there can be no bed here; empty if there can."""
    if os.geteuid() != 0:
        return "only root can make network namespaces"
    packages = sorted({package for program, package in _NEEDED.items() if shutil.which(program) is None})
    if packages:
        return f"not installed: {', '.join(packages)}"
    probe, bridge = f"{PREFIX}-probe-{os.getpid()}", f"obp{os.getpid()}"
    try:
        _run("ip", "netns", "add", probe)
        _run("ip", "link", "add", bridge, "type", "bridge")
        _run("ip", "addr", "add", f"{_NETWORK6}:ffff::1/64", "dev", bridge)
    except RuntimeError as error:
        return f"this kernel or container gives no network namespaces, bridges or IPv6 ({error})"
    finally:
        _ip(f"link del {bridge}", check=False)
        _ip(f"netns del {probe}", check=False)
    return ""


class BedHost:
    """One host. Every fault has its way back; `Bed.mend` takes all of them back."""

    def __init__(self, bed: Bed, name: str, number: int) -> None:
        self.name, self._bed, self._number = name, bed, number
        self.address, self.address6 = f"{bed.network}.{number + 10}", f"{bed.network6}::{number + 10}"
        self.netns = f"{bed.mark}-{name}"
        self._link = f"{bed.bridge}-{number}"
        self.files = bed.root / name
        """What this host sees as `Bed.own`."""
        self._sshd: subprocess.Popen[bytes] | None = None
        self._is_altered = False

    # --- made and taken away -------------------------------------------------------------------

    def make(self) -> None:
        for directory in (self.files / "home", self.files / "tmp", Path("/etc/netns", self.netns)):
            directory.mkdir(parents=True, exist_ok=True)  # a killed session may have left it
        shutil.copy(self._bed.root / "hosts", Path("/etc/netns", self.netns, "hosts"))
        _ip(f"netns add {self.netns}")
        _ip(f"link add {self._link} type veth peer name eth0 netns {self.netns}")
        _ip(f"link set {self._link} master {self._bed.bridge} up")
        for line in (
            "link set lo up",
            f"addr add {self.address}/24 dev eth0",
            f"addr add {self.address6}/64 dev eth0 nodad",
            "link set eth0 up",
        ):
            _ip(f"-n {self.netns} {line}")
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self._bed.root / f"{self.name}.key"))
        self.start_sshd()

    def take_away(self) -> None:
        self.stop_sshd()
        self.end_sessions()
        for line in (f"link del {self._link}", f"netns del {self.netns}"):
            _ip(line, check=False)
        shutil.rmtree(Path("/etc/netns", self.netns), ignore_errors=True)

    # --- sshd ----------------------------------------------------------------------------------

    def start_sshd(self, *options: str, key: str = "") -> None:
        """`options`: lines of sshd_config that come before ours. `key`: another host's key."""
        bed = self._bed
        self._is_altered = bool(options or key)
        config = bed.root / f"{self.name}.sshd"
        # From OpenSSH 9.8 on: an address from which connections often fail is refused for a while.
        penalties = subprocess.run([_SSHD, "-t", "-o", "PerSourcePenalties=no", "-h", bed.root / f"{self.name}.key"], capture_output=True)
        config.write_text(
            "\n".join(
                (
                    *options,
                    *(["PerSourcePenalties no"] if penalties.returncode == 0 else []),
                    f"HostKey {bed.root}/{key or self.name}.key",
                    f"AuthorizedKeysFile {bed.root}/user.key.pub",
                    f"PidFile {bed.root}/{self.name}.pid",
                    "ListenAddress 0.0.0.0",
                    "ListenAddress ::",
                    "StrictModes no",
                    "PermitRootLogin prohibit-password",
                    "PasswordAuthentication no",
                    "KbdInteractiveAuthentication no",
                    "UsePAM no",
                    "UseDNS no",
                    "PrintMotd no",
                    "PrintLastLog no",
                    # TEST_ID of conftest.py: what a test leaves behind on a host is found as it is found here.
                    "AcceptEnv ORCH_TEST_ID",
                    f"SetEnv HOME={bed.own}/home TMPDIR={bed.own}/tmp KERAS_HOME={bed.own}/tmp/keras",
                )
            )
            + "\n"
        )
        enter = f"mount --bind {self.files} {bed.own} && hostname {self.name} && exec setpriv --pdeathsig TERM {_SSHD} -D -e -f {config}"
        with open(bed.root / f"{self.name}.log", "ab") as log:
            argv = ["ip", "netns", "exec", self.netns, "unshare", "--uts", "sh", "-c", enter]
            env = {name: value for name, value in os.environ.items() if name != "ORCH_TEST_ID"}
            self._sshd = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, start_new_session=True)
        DAEMONS.add(self._sshd.pid)
        _wait_until(lambda: _answers(self.address), f"sshd on {self.name}: {(bed.root / f'{self.name}.log').read_text()[-500:]}")

    def stop_sshd(self) -> None:
        """No new connection; those that are there go on, as they do when a host's sshd is restarted."""
        if self._sshd is not None:
            self._sshd.terminate()
            self._sshd.wait()
            DAEMONS.discard(self._sshd.pid)
            self._sshd = None

    def end_sessions(self) -> None:
        """SIGKILL to every sshd of a connection, and not to what it has started."""
        for process in self.processes():
            with suppress(psutil.Error):
                if process.name().startswith("sshd") and (self._sshd is None or process.pid != self._sshd.pid):
                    process.kill()

    # --- faults --------------------------------------------------------------------------------

    def cut(self) -> None:
        """Pull the cable: nothing arrives, and nobody is told."""
        _ip(f"link set {self._link} down")

    def join(self) -> None:
        _ip(f"link set {self._link} up")

    @contextmanager
    def slow_link(self, megabits: int) -> Iterator[None]:
        """What the host sends goes no faster than so many megabits a second, as long as this lasts."""
        burst = max(32, 4 * megabits)  # what a timer of the kernel lets through at once
        _ip(f"netns exec {self.netns} tc qdisc add dev eth0 root tbf rate {megabits}mbit burst {burst}kbit latency 400ms")
        try:
            yield
        finally:
            _ip(f"netns exec {self.netns} tc qdisc del dev eth0 root")

    def filter_ports(self, first: int, last: int) -> None:
        """A firewall that drops: whoever connects to one of these ports of this host hears nothing.

        The rule looks at answers. With ports that the kernel gives to connections, it would drop some of the host's own.
        """
        assert not (_EPHEMERAL[0] <= last and first <= _EPHEMERAL[1])
        for family in ("-4", "-6"):
            _ip(f"{family} -n {self.netns} rule add pref 100 ipproto tcp sport {first}-{last} blackhole")

    def mend(self) -> None:
        self.join()
        for family in ("-4", "-6"):
            while _ip(f"{family} -n {self.netns} rule del pref 100", check=False):
                pass
        if self._sshd is None or self._sshd.poll() is not None or self._is_altered:
            self.stop_sshd()
            self.start_sshd()

    # --- seen from outside ---------------------------------------------------------------------

    def processes(self) -> list[psutil.Process]:
        found = subprocess.run(["ip", "netns", "pids", self.netns], capture_output=True, text=True, check=True)
        processes = []
        for pid in found.stdout.split():
            with suppress(psutil.NoSuchProcess):
                processes.append(psutil.Process(int(pid)))
        return processes

    def run(self, *argv: str) -> str:
        """The output of a command on this host, without ssh."""
        return _run("ip", "netns", "exec", self.netns, *argv)


class Bed:
    """All hosts. The tests themselves stand on the bridge, outside of all of them."""

    def __init__(self, root: Path, number: int) -> None:
        self.root = root
        self.mark = f"{PREFIX}-{number}"
        self.bridge = f"ob{number}"
        self.network, self.network6 = f"198.18.{number}", f"{_NETWORK6}:{number:x}"
        self.own = root / "own"
        """A directory of which every host, and this machine, has another one."""
        self.config = root / "ssh_config"
        self.ssh = ("ssh", "-F", str(self.config))
        self.hosts = {name: BedHost(self, name, number) for number, name in enumerate(NAMES)}

    def __getitem__(self, name: str) -> BedHost:
        return self.hosts[name]

    def make(self) -> None:
        self.own.mkdir()
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        names = [f"{address} {host.name}" for host in self.hosts.values() for address in (host.address, host.address6)]
        (self.root / "hosts").write_text("\n".join(["127.0.0.1 localhost", "::1 localhost", *names]) + "\n")
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.root / "user.key"))
        _ip(f"link add {self.bridge} type bridge")
        for line in (
            f"addr add {self.network}.1/24 dev {self.bridge}",
            f"addr add {self.network6}::1/64 dev {self.bridge} nodad",
            f"link set {self.bridge} up",
        ):
            _ip(line)
        for host in self.hosts.values():
            host.make()
        self.write_config()

    def write_config(self, *first: str) -> None:
        """The users' ssh_config. `first`: lines that come before ours."""
        keys = {host.name: (self.root / f"{host.name}.key.pub").read_text().split()[:2] for host in self.hosts.values()}
        known = "".join(f"{','.join((name, self[name].address, self[name].address6))} {' '.join(key)}\n" for name, key in keys.items())
        (self.root / "known_hosts").write_text(known)
        lines = [f"Host {host.name}\n  HostName {host.address}" for host in self.hosts.values()]
        everywhere = (
            "User root",
            f"IdentityFile {self.root}/user.key",
            "IdentitiesOnly yes",
            "IdentityAgent none",
            f"UserKnownHostsFile {self.root}/known_hosts",
            "GlobalKnownHostsFile none",
            "StrictHostKeyChecking yes",
            "SendEnv ORCH_TEST_ID",
        )
        self.config.write_text("\n".join([*first, *lines, "Host *", *(f"  {line}" for line in everywhere)]) + "\n")

    def take_away(self) -> None:
        for host in self.hosts.values():
            host.take_away()
        _ip(f"link del {self.bridge}", check=False)

    def mend(self) -> None:
        """Take back every fault."""
        for host in self.hosts.values():
            host.mend()
        self.write_config()

    def left_behind(self) -> list[str]:
        """What a test has left on the hosts: connections, and temporary files."""
        deadline = time.monotonic() + PATIENCE_S  # an sshd whose link was cut learns of its end by a retransmission
        while left := [*self._sessions(), *(str(path) for host in self.hosts.values() for path in (host.files / "tmp").glob("orch*"))]:
            if time.monotonic() > deadline:
                break
            time.sleep(0.02)
        return left

    def _sessions(self) -> list[str]:
        found = []
        for host in self.hosts.values():
            for process in host.processes():
                with suppress(psutil.Error):
                    if process.pid not in DAEMONS:
                        found.append(f"{host.name}: {shlex.join(process.cmdline())}")
        return found


@contextmanager
def _claim(number: int) -> Iterator[bool]:
    """The bed of this number is ours, unless another session of this machine has it: the kernel gives a killed one's back."""
    with socket.socket(socket.AF_UNIX) as claim:
        try:
            claim.bind(f"\0{PREFIX}-{number}")
        except OSError:
            yield False
        else:
            yield True


@contextmanager
def _claim_any() -> Iterator[int]:
    for number in range(256):
        with _claim(number) as is_ours:
            interfaces = psutil.net_if_addrs()
            used = {address.address.rpartition(".")[0] for found in interfaces.values() for address in found}
            if is_ours and f"198.18.{number}" not in used and f"ob{number}" not in interfaces:
                yield number
                return
    raise RuntimeError("no network of 198.18.0.0/16 is free for a test bed")


def _run(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise RuntimeError(f"{shlex.join(argv)}: {done.stderr.strip()}")
    return done.stdout


def _ip(line: str, *, check: bool = True) -> bool:
    return subprocess.run(["ip", *line.split()], check=check, capture_output=True).returncode == 0


def _answers(address: str) -> bool:
    try:
        socket.create_connection((address, 22), timeout=1).close()
    except OSError:
        return False
    return True


def _wait_until(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        if time.monotonic() > deadline:
            raise RuntimeError(f"not there after {PATIENCE_S:g} s: {what}")
        time.sleep(0.01)


def _namespaces() -> dict[int, list[str]]:
    """The names of the network namespaces of all beds, by the number of the bed."""
    found: dict[int, list[str]] = {}
    for line in _run("ip", "netns", "list").splitlines():
        if match := re.match(rf"({PREFIX}-(\d+)-\S+)", line):
            found.setdefault(int(match[2]), []).append(match[1])
    return found


def _sweep() -> None:
    """Take away what sessions that were killed have left."""
    for number in _namespaces():
        with _claim(number) as is_ours:
            # Looked at again: another session may have swept it meanwhile.
            for name in _namespaces().get(number, ()) if is_ours else ():
                for pid in _run("ip", "netns", "pids", name).split():
                    with suppress(ProcessLookupError):
                        os.kill(int(pid), 9)
                _ip(f"netns del {name}", check=False)
                for link in (f"ob{number}", *(f"ob{number}-{index}" for index in range(len(NAMES)))):
                    _ip(f"link del {link}", check=False)  # at once; that of a namespace takes its time
                shutil.rmtree(Path("/etc/netns", name), ignore_errors=True)


@contextmanager
def made_bed() -> Iterator[Bed]:
    """A bed, for as long as this lasts; what killed sessions have left is taken away first."""
    _sweep()
    # Not below pytest's own directory: programs on the hosts have to come in, and paths of sockets are short.
    with tempfile.TemporaryDirectory(prefix="bed-", dir="/tmp", ignore_cleanup_errors=True) as root, _claim_any() as number:
        found = Bed(Path(root), number)
        try:
            found.make()
            yield found
        finally:
            found.take_away()


@pytest.fixture(scope="session")
def _bed() -> Iterator[Bed]:
    if why := missing():
        pytest.skip(f"NOT TESTED: hosts with ssh: {why}; run the tests as root (make test installs what is missing)")
    with made_bed() as found:
        yield found


@pytest.fixture
def bed(_bed: Bed, _nothing_left: None) -> Iterator[Bed]:
    """Three hosts, whole again after each test, on which the test has left nothing."""
    yield _bed
    _bed.mend()
    if left := _bed.left_behind():
        for host in _bed.hosts.values():
            host.end_sessions()
        pytest.fail("the test left something on the hosts:\n" + "\n".join(left), pytrace=False)
