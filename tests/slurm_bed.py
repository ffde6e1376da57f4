"""A Slurm on the hosts of the test bed: munged and slurmctld on this machine, a slurmd on each host (`bed.py`).

Everything of Slurm lies below the bed's directory, and nothing in /etc: its configuration, keys, sockets, states and logs. ``slurm`` is the
fixture: three nodes named as the hosts of the bed, four CPUs each, idle and empty before each test and after it. Sessions that run beside
each other (pytest-xdist's workers) have a Slurm each, which is started by the first test that wants it.
"""

from __future__ import annotations

import os
import pwd
import re
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import psutil
import pytest

from tests.bed import DAEMONS, NAMES, PATIENCE_S, Bed, BedHost, _wait_until

ROOT = Path(__file__).resolve().parent.parent

CPUS = 4
GPUS = 2
"""Null devices stand in for them: Slurm counts them, hands them out, and tells the jobs which are theirs."""
FIRST_PORT = 21000
"""slurmctld of the bed with number n listens on the port `FIRST_PORT` + n."""
_NEEDED = {"slurmctld": "slurmctld", "slurmd": "slurmd", "sbatch": "slurm-client", "munged": "munge", "nsenter": "util-linux"}
_SBIN = "/usr/sbin:/sbin"
CONFIG = """\
ClusterName=bed
SlurmctldHost={here}({address})
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={root}/munge/munge.socket
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd.%n.pid
SlurmdSpoolDir={root}/spool.%n
StateSaveLocation={root}/state
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/slurmd.%n.log
SlurmdParameters=config_overrides
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SchedulerParameters=sched_min_interval=0,sched_interval=1,bf_interval=1,batch_sched_delay=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
GresTypes=gpu
SlurmdTimeout=15
KillWait=8
OverTimeLimit=0
InactiveLimit=0
MinJobAge=600
{nodes}
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=10
PartitionName=low Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE
PartitionName=high Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=100
"""


def missing() -> str:
    """Why there can be no Slurm here; empty if there can."""
    packages = sorted({package for program, package in _NEEDED.items() if _which(program) is None})
    return f"not installed: {', '.join(packages)}" if packages else ""


def _which(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:{_SBIN}")


class SlurmBed:
    """The daemons, and what a test asks of them."""

    def __init__(self, bed: Bed, root: Path) -> None:
        self.bed, self.root = bed, root
        self.config = root / "slurm.conf"
        self.env = {"SLURM_CONF": str(self.config)}
        """What a program needs to find this Slurm."""
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    # --- daemons -------------------------------------------------------------------------------

    def make(self) -> None:
        self.bed.root.chmod(0o711)  # other users find their way, and nothing else
        (self.root / "munge").mkdir(mode=0o755, parents=True)
        (self.root / "state").mkdir()
        nodes = "\n".join(
            f"NodeName={name} NodeAddr={self.bed[name].address} CPUs={CPUS} RealMemory=4000 Gres=gpu:{GPUS} State=UNKNOWN" for name in NAMES
        )
        port, address = FIRST_PORT + int(self.bed.mark.rpartition("-")[2]), f"{self.bed.network}.1"
        self.config.write_text(CONFIG.format(here=socket.gethostname(), address=address, port=port, root=self.root, nodes=nodes))
        for number in range(GPUS):
            os.mknod(self.root / f"gpu{number}", 0o666 | stat.S_IFCHR, os.makedev(1, 3))  # as /dev/null
        (self.root / "gres.conf").write_text(f"NodeName={','.join(NAMES)} Name=gpu File={self.root}/gpu[0-{GPUS - 1}]\n")
        self._start_munged(self.root / "munge")
        self.start_controller()
        for name in NAMES:
            self.start_node(name)
        self.wait_idle()

    def take_away(self) -> None:
        self.cancel_all()
        for name in reversed([*self._daemons]):
            self._stop(name)
        for host in self.bed.hosts.values():  # steps outlive their slurmd
            for process in self._steps(host):
                with suppress(psutil.Error):
                    process.kill()

    def _start_munged(self, directory: Path) -> None:
        (directory / "munge.key").write_bytes(os.urandom(128))
        (directory / "munge.key").chmod(0o400)
        files = [f"--{name}={directory / value}" for name, value in (("socket", "munge.socket"), ("key-file", "munge.key"))]
        files += [f"--{name}-file={directory / name}" for name in ("pid", "log", "seed")]
        self._start(f"munged {directory.name}", [_which("munged") or "", "--foreground", "--force", *files])
        _wait_until((directory / "munge.socket").exists, "munged")

    def start_controller(self) -> None:
        self._start("slurmctld", [_which("slurmctld") or "", "-D"])
        _wait_until(lambda: "is UP" in self.run("scontrol", "ping", check=False), "slurmctld")
        DAEMONS.update(child.pid for child in psutil.Process(self._daemons["slurmctld"].pid).children())

    def stop_controller(self) -> None:
        self._stop("slurmctld")

    def start_node(self, name: str) -> None:
        host = self.bed[name]
        # `ip netns exec` would hide the cgroups, which slurmd looks for.
        inside = f"mount --bind {self.bed.root}/hosts /etc/hosts && mount --bind {host.files} {self.bed.own} && hostname {name} && "
        inside += f"{self._driver()} {self.open_way()} exec {_which('slurmd')} -D -N {name}"
        self._start(name, ["nsenter", f"--net=/run/netns/{host.netns}", "unshare", "--uts", "--mount", "sh", "-c", inside])

    def _driver(self) -> str:
        """Lines of a shell, in a mount namespace of its own, after which NVIDIA's driver seems to be there: then orch asks nvidia-smi."""
        own, before = self.root / "dev", self.root / "dev/before"
        lines = [f"mkdir -p {before}", f"touch {own}/nvidiactl", f"mount --rbind /dev {before}"]
        lines += [f"mount -t overlay overlay -o lowerdir={own}:{before} /dev"]
        lines += [f"mount --rbind {before}/{name} /dev/{name}" for name in ("pts", "shm")]
        return f"{{ {{ {' && '.join(lines)}; }} || true; }} && "  # without overlays, only the tests of GPUs fail

    def open_way(self) -> str:
        """Lines of a shell, in a mount namespace of its own, after which all users reach the Python and the code of the tests.

        Where one of root's own directories stands in the way, it is replaced by one that has nothing else.
        """
        needed = {Path(path).resolve() for path in (sys.base_prefix, sys.prefix, ROOT)}
        closed = {next((above for above in reversed(path.parents) if not above.stat().st_mode & stat.S_IXOTH), None) for path in needed}
        lines, held = [], self.root / "held"
        for above in filter(None, closed):
            lines.append(
                f"mkdir -p {held} && mount --rbind {shlex.quote(str(above))} {held} && mount -t tmpfs -o mode=755 none {above} && "
            )
            for path in needed:
                if above in path.parents:
                    lines.append(f"mkdir -p {path} && mount --bind {held / path.relative_to(above)} {path} && ")
            lines.append(f"umount --recursive {held} && ")
        return "".join(lines)

    def kill_node(self, name: str) -> None:
        """SIGKILL to slurmd and to everything that it runs: the machine has lost its power."""
        self.bed[name].cut()
        self._kill_daemon(name)
        for process in self.bed[name].processes():
            with suppress(psutil.Error):
                if process.pid not in DAEMONS:
                    process.kill()

    def kill_slurmd(self, name: str) -> None:
        """SIGKILL to slurmd alone: what it has started goes on."""
        self._kill_daemon(name)

    @contextmanager
    def broken(self, trouble: str) -> Iterator[Path]:
        """A Slurm that cannot be asked, and the configuration of one who asks.

        `trouble`: no ``slurmctld``, no ``munged``, another ``key``, or an ``expired`` credential, which lives for a second.
        """
        config = self.root / "other" / "slurm.conf"
        config.parent.mkdir(exist_ok=True)
        own, other = f"{self.root}/munge/munge.socket", config.parent / "munge.socket"
        lives = ",ttl=1" if trouble == "expired" else ""
        text = self.config.read_text() + f"MessageTimeout={10 if lives else 2}\n"  # how long a program asks in vain
        config.write_text(text if trouble == "slurmctld" else text.replace(own, f"{other}{lives}"))
        shutil.copy(self.root / "gres.conf", config.parent)
        if trouble == "slurmctld":
            self.stop_controller()
        elif trouble == "key":
            self._start_munged(config.parent)
        try:
            with _late_munge(str(other), own, self._daemons["slurmctld"].pid) if lives else nullcontext():
                yield config
        finally:
            self._stop("munged other")

    def _kill_daemon(self, name: str) -> None:
        self._daemons[name].kill()
        self._stop(name)

    def _start(self, name: str, argv: list[str]) -> None:
        env = {key: value for key, value in os.environ.items() if key != "ORCH_TEST_ID" and not key.startswith("SLURM_")} | self.env
        with open(self.root / f"{name}.out", "ab") as log:
            process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *argv],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**env, "PATH": f"{env.get('PATH', '')}:{_SBIN}"},
                start_new_session=True,
            )
        self._daemons[name] = process
        DAEMONS.add(process.pid)

    def _stop(self, name: str) -> None:
        process = self._daemons.pop(name, None)
        if process is not None:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            DAEMONS.discard(process.pid)

    # --- what a test asks ----------------------------------------------------------------------

    def run(self, *argv: str, check: bool = True, env: Mapping[str, str] | None = None) -> str:
        """The output of one of Slurm's programs, as a user runs it."""
        done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, env={**os.environ, **self.env, **(env or {})})
        assert not (check and done.returncode), done
        return done.stdout

    def states(self) -> dict[str, str]:
        return dict(line.split() for line in self.run("sinfo", "-h", "-N", "-p", "debug", "-o", "%N %t").splitlines())

    def jobs(self) -> dict[str, str]:
        return dict(line.split() for line in self.run("squeue", "-h", "-o", "%i %T").splitlines())

    def job(self, number: str) -> dict[str, str]:
        return dict(re.findall(r"(\w+)=(\S*)", self.run("scontrol", "show", "job", number)))

    def cancel_all(self) -> None:
        if "slurmctld" in self._daemons and (jobs := self.jobs()):
            self.run("scancel", "--full", *jobs, check=False)

    def wait_idle(self) -> None:
        def are_idle() -> bool:
            return self.states() == dict.fromkeys(NAMES, "idle") and not self.jobs()

        _wait_until(are_idle, f"three idle nodes: {self.states()} {self.jobs()}")

    def login_node(self, name: str) -> tuple[str, ...]:
        """Starts a program on a machine with another name and address, which shares the disk: ``login_node("hostC")`` and the program."""
        inside = 'hostname elsewhere && exec "$@"'
        return ("nsenter", f"--net=/run/netns/{self.bed[name].netns}", "unshare", "--uts", "sh", "-c", inside, "sh")

    def mend_daemons(self) -> None:
        """Start the daemons again that have ended."""
        for name in ("slurmctld", *NAMES):
            process = self._daemons.get(name)
            if process is None or process.poll() is not None:
                self._stop(name)
                self.start_controller() if name == "slurmctld" else self.start_node(name)

    def mend(self) -> None:
        """Take back every fault, and end every job."""
        self.mend_daemons()
        self.cancel_all()
        for name, state in self.states().items():
            if state not in ("idle", "comp", "mix", "alloc"):
                self.run("scontrol", "update", f"nodename={name}", "state=resume", check=False)
        self.wait_idle()

    def left_behind(self) -> list[str]:
        deadline = time.monotonic() + PATIENCE_S
        while left := [f"{host.name}: {each.cmdline()}" for host in self.bed.hosts.values() for each in self._steps(host) if _lives(each)]:
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
        return left

    def _steps(self, host: BedHost) -> list[psutil.Process]:
        return [process for process in host.processes() if process.pid not in DAEMONS]


@contextmanager
def _late_munge(path: str, munged: str, slurmctld: int) -> Iterator[None]:
    """A socket that hands on what munged answers. slurmctld stands still meanwhile, and for so long that the credential expires."""

    def serve() -> None:
        with suppress(OSError):  # the listener is closed
            while True:
                client, _ = listener.accept()
                with client, socket.socket(socket.AF_UNIX) as real, suppress(OSError):
                    real.connect(munged)
                    real.sendall(client.recv(1 << 16))
                    with real.makefile("rb") as answer:
                        credential = answer.read()
                    os.kill(slurmctld, signal.SIGSTOP)
                    # On a busy machine its other threads go on until the one has its turn that gets the signal.
                    _wait_until(lambda: _has_stopped(slurmctld), "slurmctld that stands still")
                    client.sendall(credential)
                    time.sleep(2.5)
                    os.kill(slurmctld, signal.SIGCONT)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(PATIENCE_S)
            os.unlink(path)


def _has_stopped(pid: int) -> bool:
    """Whether all threads of a process stand still after SIGSTOP."""
    with suppress(FileNotFoundError, ProcessLookupError):  # a thread has just ended
        return all(path.read_text().rpartition(")")[2].split()[0] == "T" for path in Path(f"/proc/{pid}/task").glob("*/stat"))
    return False


class User:
    """Somebody without rights on this machine and on all nodes, with a home: an account that each Debian has."""

    def __init__(self, slurm: SlurmBed, name: str) -> None:
        self.account = pwd.getpwnam(name)
        self.home = slurm.root / "homes" / name
        self.home.mkdir(mode=0o755, parents=True)
        os.chown(self.home, self.account.pw_uid, self.account.pw_gid)
        self.env = dict.fromkeys(("HOME", "TMPDIR", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "KERAS_HOME"), str(self.home))
        who = f"setpriv --reuid {self.account.pw_uid} --regid {self.account.pw_gid} --clear-groups"
        self.by = ("unshare", "--mount", "sh", "-c", f'{slurm.open_way()} exec {who} "$@"', "sh")
        """Starts a program as this user."""


def _lives(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    return False


@contextmanager
def made_slurm(bed: Bed) -> Iterator[SlurmBed]:
    """A Slurm on these hosts, for as long as this lasts."""
    found = SlurmBed(bed, bed.root / "slurm")
    try:
        found.make()
        yield found
    finally:
        found.take_away()


@pytest.fixture(scope="session")
def _slurm(_bed: Bed) -> Iterator[SlurmBed]:
    if why := missing():
        pytest.skip(f"NOT TESTED: Slurm: {why}; run the tests as root (make test installs what is missing)")
    with made_slurm(_bed) as found:
        yield found


@pytest.fixture
def slurm(_slurm: SlurmBed, _bed: Bed, _nothing_left: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmBed]:
    """Three idle nodes, whole again after each test, on which the test has left nothing."""
    for name, value in _slurm.env.items():
        monkeypatch.setenv(name, value)
    yield _slurm
    _bed.mend()
    _slurm.mend()
    if left := _slurm.left_behind():
        _slurm.cancel_all()
        pytest.fail("the test left something on the nodes:\n" + "\n".join(left), pytrace=False)
