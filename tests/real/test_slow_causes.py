"""Two hosts train together, and one becomes slow for a reason of its own: a line names the task and the reason."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.bed import Bed
from tests.conftest import Orch, Running
from tests.live import LiveRun, wait_until
from tests.real.test_pace import notes, uses_of

pytestmark = [pytest.mark.slow, pytest.mark.tensorflow, pytest.mark.timeout(900)]

TRAIN = """
import os
import numpy as np
import tensorflow as tf
import worker

strategy = worker.strategy()
with strategy.scope():
    weights = tf.Variable(tf.random.stateless_normal([256, 256], [1, 2]))
batch = tf.random.stateless_normal([256, 256], [3, 4])
own, draw = np.ones(0, np.uint8), np.random.default_rng(0)

def replica_step():
    value = batch
    for _ in range(12):
        value = tf.tanh(value @ weights)
    weights.assign_add(1e-9 * tf.distribute.get_replica_context().all_reduce("SUM", value))

@tf.function
def train_step():
    strategy.run(replica_step)

step = 0
while True:
    train_step()
    step += 1
    if not own.size and os.environ["ORCH_TASK"] == "worker-1" and os.path.exists("grow"):
        own = np.ones(600 << 20, np.uint8)
    if own.size:  # some pages in each step
        own[draw.integers(0, own.size // 4096, 300) * 4096] += 1
    worker.report(step=step)
"""
GROUPS = Path("/sys/fs/cgroup")
BURN = "while True: pass"


@pytest.fixture
def group(bed: Bed) -> Iterator[Callable[[str], Path]]:
    """``group("cpu")``: a control group (version 1) of this kind, in which is what is started on hostB from now on."""
    made: list[Path] = []

    def make(kind: str) -> Path:
        path = GROUPS / kind / f"orch-test-{os.getpid()}"
        try:
            path.mkdir()
        except OSError as error:
            pytest.skip(f"NOT TESTED: there is no control group of version 1 for {kind} here ({error.strerror})")
        made.append(path)
        daemon = bed["hostB"]._sshd
        assert daemon is not None
        (path / "cgroup.procs").write_text(str(daemon.pid))
        # `ip netns exec` has mounted a new /sys, without the control groups that a host has there.
        seen = f"mount -t tmpfs none {GROUPS} && mkdir {GROUPS}/{kind} && mount -t cgroup -o {kind} none {GROUPS}/{kind}"
        subprocess.run(["nsenter", "-t", str(daemon.pid), "-m", "sh", "-c", seen], check=True)
        return path

    yield make
    for path in made:
        with contextlib.suppress(OSError):
            (path / "memory.limit_in_bytes").write_text("-1")
        for word in (path / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):  # it has ended meanwhile
                (path.parent / "cgroup.procs").write_text(word)
        wait_until(lambda path=path: not (path / "cgroup.procs").read_text(), "empty group")
        path.rmdir()


def train(orch: Orch, bed: Bed, run: LiveRun, script: Path, *options: str) -> Running:
    """A training on two hosts that has made some windows of steps, without a line about a slow task."""
    hosts = ("--set", f"backend.hosts={json.dumps(['hostA', 'hostB'])}", "--set", f"backend.ssh={json.dumps(bed.ssh)}")
    going = orch.start("up", str(script), *hosts, "--set", "collectives.heartbeat_s=120", *options)
    wait_until(lambda: [use.window >= 4 for use in uses_of(run).values()] == [True] * 2, "windows of steps")
    assert notes(run) == []
    return going


def line_about_the_slow_one(run: LiveRun) -> str:
    (line,) = wait_until(lambda: notes(run), "line about the slow task")
    assert line.startswith("worker-1 is slower: ")
    return line


@pytest.mark.root
def test_a_cpu_limit_is_named(orch: Orch, bed: Bed, run: LiveRun, script: Callable[..., Path], group: Callable[[str], Path]) -> None:
    limited = group("cpu")
    going = train(orch, bed, run, script(TRAIN))
    (limited / "cpu.cfs_period_us").write_text("100000")
    (limited / "cpu.cfs_quota_us").write_text("15000")
    found = re.search(r"; on host hostB a CPU limit is reached in (\d+) % of its periods \(cpu.stat\)", line_about_the_slow_one(run))
    assert found is not None
    assert 10 <= int(found[1]) <= 100
    (limited / "cpu.cfs_quota_us").write_text("-1")
    orch("down", check=0)
    going.wait(check=143)


@pytest.mark.root
def test_another_run_on_a_full_host_is_named(
    orch: Orch, bed: Bed, run: LiveRun, script: Callable[..., Path], group: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Both hosts share this machine's cores, and another run fills them. The burden is hostB's alone because its task has a tenth of the
    usual weight: the other run comes before that task, as does whatever else runs on this machine."""
    light = group("cpu")
    going = train(orch, bed, run, script(TRAIN))
    directory = tmp_path_factory.mktemp("another")
    tasks = 2 * len(os.sched_getaffinity(0))
    another = orch.start("up", "-n", str(tasks), "--no-python", sys.executable, "--", "-c", BURN, cwd=directory)
    LiveRun(directory).event("task_started", task=f"worker-{tasks - 1}")
    (light / "cpu.shares").write_text("100")
    line = line_about_the_slow_one(run)
    assert re.search(rf"; other programs use \d+\.\d of the {os.cpu_count()} cores of host hostB", line), line
    orch("down", cwd=directory, check=0)
    another.wait(check=143)
    orch("down", check=0)
    going.wait(check=143)


@pytest.fixture
def swap(tmp_path: Path) -> Iterator[None]:
    path = tmp_path / "swap"
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 2 << 30)
    path.chmod(0o600)
    try:
        subprocess.run(["mkswap", path], check=True, capture_output=True)
        subprocess.run(["swapon", path], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"NOT TESTED: this machine takes no swap space in {tmp_path}: {error}")
    yield
    subprocess.run(["swapoff", path], check=True, capture_output=True)


@pytest.mark.root
def test_swapping_is_named(
    orch: Orch, bed: Bed, run: LiveRun, script: Callable[..., Path], swap: None, group: Callable[[str], Path], tmp_path: Path
) -> None:
    small = group("memory")
    going = train(orch, bed, run, script(TRAIN))
    (small / "memory.limit_in_bytes").write_text(str(int((small / "memory.usage_in_bytes").read_text()) + (16 << 20)))
    (tmp_path / "grow").touch()  # worker-1 needs more memory than there is
    line = line_about_the_slow_one(run)
    assert re.search(r"; its pages come from a disk \(\d+ faults per second\): host hostB swaps, or has too little memory", line), line
    (small / "memory.limit_in_bytes").write_text("-1")
    orch("down", check=0)
    going.wait(check=143)
