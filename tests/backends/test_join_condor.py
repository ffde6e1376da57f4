"""The same command on every node, started by a real HTCondor: two slots of one machine, for its parallel universe. Without TensorFlow.

``python -m tests.debian_condor`` runs this in a tree of Debian 13.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.model.joining import TOKEN
from tests.backends.test_join import LONG, SEEN
from tests.conftest import ROOT
from tests.live import wait_until, write_script

pytestmark = [
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("condor_master") is None, reason="NOT TESTED: there is no HTCondor: python -m tests.debian_condor"),
]
CONFIG = """\
LOCAL_DIR = {directory}
RELEASE_DIR = /usr
LIBEXEC = /usr/libexec/condor
LIB = /usr/lib/condor
SBIN = /usr/sbin
LOG = $(LOCAL_DIR)/log
SPOOL = $(LOCAL_DIR)/spool
EXECUTE = $(LOCAL_DIR)/execute
LOCK = $(LOCAL_DIR)/log
DAEMON_LIST = MASTER, COLLECTOR, NEGOTIATOR, SCHEDD, STARTD
CONDOR_HOST = 127.0.0.1
COLLECTOR_HOST = 127.0.0.1:{port}
NETWORK_INTERFACE = 127.0.0.1
USE_SHARED_PORT = False
UID_DOMAIN = bed
FILESYSTEM_DOMAIN = bed
SEC_DEFAULT_AUTHENTICATION_METHODS = FS
ALLOW_READ = *
ALLOW_WRITE = *
ALLOW_DAEMON = *
ALLOW_ADMINISTRATOR = *
ALLOW_NEGOTIATOR = *
NUM_CPUS = 2
MEMORY = 2000
SLOT_TYPE_1 = 50%
NUM_SLOTS_TYPE_1 = 2
SLOT_TYPE_1_PARTITIONABLE = False
DedicatedScheduler = "DedicatedScheduler@nobody@{host}"
STARTD_ATTRS = $(STARTD_ATTRS), DedicatedScheduler
START = True
SUSPEND = False
PREEMPT = False
KILL = False
WANT_SUSPEND = False
WANT_VACATE = False
RANK = Scheduler =?= $(DedicatedScheduler)
NEGOTIATOR_INTERVAL = 2
NEGOTIATOR_CYCLE_DELAY = 1
SCHEDD_INTERVAL = 2
UPDATE_INTERVAL = 5
"""
JOB = """\
universe = parallel
executable = {python}
arguments = "-m orchestrator up script.py --join --join-at 127.0.0.1:{port}"
initialdir = {directory}
environment = "HOME={directory} PYTHONPATH={root} {token}={secret}"
machine_count = 2
should_transfer_files = NO
output = out.$(Node)
error = err.$(Node)
log = log
+ParallelShutdownPolicy = "WAIT_FOR_ALL"
queue
"""
FAILS = f"""{SEEN}
tell(TASK)
wait_for("worker-0", "worker-1")
sys.exit(7 * (TASK == "worker-1"))
"""


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


class Condor:
    """The daemons, and the jobs of a user who is not root."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        user = pwd.getpwnam("nobody")
        self._by = ("setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups")
        for name in ("log", "spool", "execute", "job"):
            (directory / name).mkdir()
            os.chown(directory / name, user.pw_uid, user.pw_gid)
        os.chown(directory, user.pw_uid, user.pw_gid)
        (directory / "config").write_text(CONFIG.format(directory=directory, port=_free_port(), host=socket.gethostname()))
        self._env = {"PATH": os.environ["PATH"], "CONDOR_CONFIG": str(directory / "config"), "HOME": str(directory)}
        self._master = subprocess.Popen([*self._by, "condor_master", "-f"], env=self._env, stdin=subprocess.DEVNULL)

    def wait_for_slots(self) -> None:
        wait_until(lambda: self.call("condor_status", "-af", "Name", check=False).count("slot") == 2, "slots of HTCondor")

    def call(self, *argv: str, check: bool = True) -> str:
        done = subprocess.run([*self._by, *argv], cwd=self.directory / "job", env=self._env, capture_output=True, text=True)
        assert done.returncode == 0 or not check, done
        return done.stdout

    def submit(self, program: str) -> str:
        """Return the number of a job of two nodes that run this program."""
        job = self.directory / "job"
        write_script(job, program)
        given = {"python": sys.executable, "port": _free_port(), "directory": job, "root": ROOT, "token": TOKEN, "secret": "s" * 64}
        (job / "submit").write_text(JOB.format(**given))
        self.call("condor_submit", "submit")
        return self.call("condor_q", "-af", "ClusterId").split()[0]

    def end(self) -> int:
        """The exit code of the job, once it has ended."""
        job = self.directory / "job"
        wait_until(lambda: "\n005 (" in (job / "log").read_text(), "end of the job")
        (code,) = re.findall(r"\n005 \(.*\n.*return value (\d+)", (job / "log").read_text())
        return int(code)

    def text(self, name: str) -> str:
        return (self.directory / "job" / name).read_text()

    def take_away(self) -> None:
        self._master.send_signal(signal.SIGQUIT)  # as soon as possible
        self._master.wait(60)


@pytest.fixture
def condor() -> Iterator[Condor]:
    with tempfile.TemporaryDirectory(prefix="condor-", dir="/tmp") as name:
        made = Condor(Path(name))
        try:
            made.wait_for_slots()
            yield made
        finally:
            made.take_away()


def test_a_job_of_the_parallel_universe_is_one_run(condor: Condor) -> None:
    condor.submit(FAILS)
    assert condor.end() == 7
    assert set(re.findall(r"seen (\S+)", condor.text("out.0"))) == {"worker-0", "worker-1"}
    assert "first failure: worker-1" in condor.text("err.0")
    assert "node 1 of 2 (HTCondor)" in condor.text("err.1")
    assert "the run has ended with exit code 7" in condor.text("err.1")


def test_a_job_that_is_removed_ends_its_tasks(condor: Condor) -> None:
    job = condor.submit(LONG)
    ready = [condor.directory / "job" / f"worker-{number}.ready" for number in range(2)]
    wait_until(lambda: all(path.exists() for path in ready), "tasks")
    pids = [int(path.read_text()) for path in ready]
    condor.call("condor_rm", job)
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "end of the tasks")
