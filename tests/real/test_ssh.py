"""Training on hosts with ssh, with TensorFlow."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.bed import Bed
from tests.conftest import ROOT, Completed, Orch
from tests.live import LiveRun, wait_until

pytestmark = [pytest.mark.root, pytest.mark.tensorflow, pytest.mark.timeout(400)]

EXAMPLES = ROOT / "examples"


def up(orch: Orch, bed: Bed, script: Path, *options: str, hosts: object = ("hostA", "hostB", "hostC"), **settings: Any) -> Completed:
    return orch(
        *("up", str(script), "--set", f"backend.hosts={json.dumps(hosts)}", "--set", f"backend.ssh={json.dumps(bed.ssh)}"),
        *options,
        **settings,
    )


@pytest.mark.slow
def test_three_hosts_train_together(orch: Orch, bed: Bed, tmp_path: Path) -> None:
    done = up(orch, bed, EXAMPLES / "mwms_custom_loop.py", timeout=300, check=0)
    assert "cluster formed" in done.err
    logs = [LiveRun(tmp_path).log(f"worker-{index}").decode() for index in range(3)]
    assert len({log.splitlines()[-1].partition("]")[2] for log in logs}) == 1, logs  # the same loss everywhere
    events = LiveRun(tmp_path).events()
    assert {event["host"] for event in events if event["event"] == "template_ready"} == {"hostA", "hostB", "hostC"}  # one import on each


FOREVER = """
import time
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()

@tf.function
def add():
    return strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("sum", tf.constant(1.0)))

while True:
    add()
    print("step", flush=True)
    time.sleep(0.1)
"""


@pytest.mark.slow
def test_a_host_that_vanishes_from_a_training_is_named(orch: Orch, bed: Bed, script: Callable[..., Path], tmp_path: Path) -> None:
    """No packet comes from it any more: the other worker only hangs, for TensorFlow is not to find out first, and orch says why."""
    hosts = ["hostA", "hostB"]
    options = ("--set", f"backend.hosts={json.dumps(hosts)}", "--set", f"backend.ssh={json.dumps(bed.ssh)}", "--grace", "1")
    running = orch.start("up", str(script(FOREVER)), *options, "--set", "collectives.heartbeat_s=120")
    running.wait_for("worker-0 | step", timeout=180)
    # The host has no common directory with this one: the profile arrives in the run all the same.
    profiled = orch("profile", "--for", "500ms", check=0)
    (profile,) = (LiveRun(tmp_path).path / "profile/plugins/profile").glob("*/worker-0.xplane.pb")
    assert b"CollectiveReduceV2" in profile.read_bytes()
    assert "worker-1 left out" in profiled.err
    bed["hostB"].cut()
    done = running.wait(timeout=180, check=125)
    assert "lost host hostB: no message from it for 20 s" in done.err
    assert "Socket closed" not in done.err


SERVED = """
import tensorflow as tf
import worker

strategy = worker.strategy()
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    total = tf.Variable(0.0)

@tf.function
def step():
    total.assign_add(1.0)

while True:
    for _ in range(20):
        coordinator.schedule(step)
    coordinator.join()
    print("step", flush=True)
"""


@pytest.mark.slow
def test_profiles_of_all_hosts_arrive_and_views_show_them(orch: Orch, bed: Bed, script: Callable[..., Path], run: LiveRun) -> None:
    """Of a cluster whose tasks TensorFlow can profile all; no host sees the directory of the run."""
    hosts = ("--set", f"backend.hosts={json.dumps(['hostA', 'hostB', 'hostC'])}", "--set", f"backend.ssh={json.dumps(bed.ssh)}")
    running = orch.start("up", str(script(SERVED)), "-n", "1", "--ps", "1", *hosts)
    running.wait_for("chief-0  | step", timeout=180)
    profiled = orch("profile", "--for", "1s", check=0)
    planned = json.loads((run.path / "plan.json").read_text())
    hosts_of = {f"{one['id']['type']}-{one['id']['index']}": one["host"] for one in planned["tasks"]}
    assert {*hosts_of.values()} == {"hostA", "hostB", "hostC"}
    found = {path.name.partition(".")[0]: path for path in (run.path / "profile/plugins/profile").glob("*/*.xplane.pb")}
    assert {*found} == {*hosts_of} == {line.partition(":")[0] for line in profiled.out.splitlines()}
    assert len({path.parent for path in found.values()}) == 1, "all of one date"
    # On a machine with much other work, no step may have reached the parameter server in this second: then TensorFlow's service shows.
    assert re.search(b"AssignAddVariableOp|TF_eager_service", found["ps-0"].read_bytes())
    assert all(hosts_of[name].encode() in path.read_bytes() for name, path in found.items()), "TensorFlow writes where it was"
    steps = run.log("chief-0").count(b"step")
    wait_until(lambda: run.log("chief-0").count(b"step") > steps + 3, "steps after the profile")
    shown = orch("top", "--once", check=0).out
    orch("down", check=0)
    running.wait(timeout=120, check=143)
    orch("report", "-o", "page.html", check=0)
    page = (run.path.parents[2] / "page.html").read_text()
    for name, host in hosts_of.items():
        assert re.search(rf"^{name} +{host} +runs ", shown, re.MULTILINE), shown
        assert f"<h3>{host}</h3>" in page


@pytest.mark.slow
def test_a_training_goes_on_over_connections_that_are_cut(orch: Orch, bed: Bed, script: Callable[..., Path], run: LiveRun) -> None:
    """An ssh is killed, then the line of a host is down for a while: both workers compute on, and each line of both is there once."""
    forever = 'while True:\n    add()\n    print("step", flush=True)'
    counted = 'number = 0\nwhile not os.path.exists("enough"):\n    print(f"step {number}: {float(add()):g}", flush=True)\n    number += 1'
    path = script(FOREVER.replace(forever, counted).replace("import time", "import os, time"))
    hosts = ("--set", f"backend.hosts={json.dumps(['hostA', 'hostB'])}", "--set", f"backend.ssh={json.dumps(bed.ssh)}")
    running = orch.start("up", str(path), *hosts, "--set", "collectives.heartbeat_s=120")
    running.wait_for("worker-0 | step 3:", timeout=180)
    next(child for child in run.controller().children() if child.name() == "ssh" and "hostA" in child.cmdline()).kill()
    running.wait_for("host hostA: the connection was cut", timeout=60)
    bed["hostB"].cut()
    running.wait_for("host hostB: the connection was cut: no message from it", timeout=60)  # orch tries a new one, while the line is down
    bed["hostB"].join()
    running.wait_for(re.compile("host hostB: the connection was cut: .*it was made again after"), timeout=60)
    steps = run.log("worker-0").count(b"step")
    wait_until(lambda: run.log("worker-0").count(b"step") > steps + 10, "further steps")
    os.kill(run.controller().pid, signal.SIGINT)
    running.wait(timeout=120, check=130)
    for task in ("worker-0", "worker-1"):
        lines = [line for line in run.log(task).decode().splitlines() if line.startswith("step")]
        assert lines == [f"step {number}: 2" for number in range(len(lines))]
    assert {event["attempt"] for event in run.events() if event["event"] == "task_exited"} == {1}


ALL_REDUCE = """
import json, os
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
found = strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("sum", tf.constant(1.0)))
print(json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"][0], float(found))
"""


@pytest.mark.slow
def test_a_cluster_over_ipv6(orch: Orch, bed: Bed, script: Callable[..., Path], tmp_path: Path) -> None:
    hosts = {name: {"address": bed[name].address6} for name in ("hostA", "hostB")}
    up(orch, bed, script(ALL_REDUCE), hosts=hosts, timeout=300, check=0)
    for task in ("worker-0", "worker-1"):
        address, total = LiveRun(tmp_path).log(task).decode().split()
        assert address.startswith(f"[{bed['hostA'].address6}]:")
        assert total == "2.0"


READ = """
import os
import tensorflow as tf
import worker

address = worker.context().data_service
dataset = tf.data.Dataset.range(100).apply(tf.data.experimental.service.distribute("distributed_epoch", address))
print(address, sorted(int(x) for x in dataset) == list(range(100)), os.path.exists(os.environ["ORCH_LOG_DIR"] + "/../../data_service"))
"""


@pytest.mark.slow
def test_a_data_service_on_two_hosts_is_read_from_both(orch: Orch, bed: Bed, script: Callable[..., Path], tmp_path: Path) -> None:
    """One is reached by IPv4, the other by IPv6. The dispatcher's state lies on its own host, which does not see the run directory."""
    hosts = {"hostA": {"address": bed["hostA"].address}, "hostB": {"address": bed["hostB"].address6}}
    options = ("-n", "2", "--data-workers", "2", "--max-restarts", "1")
    up(orch, bed, script(READ), *options, hosts=hosts, timeout=300, check=0)
    planned = json.loads((LiveRun(tmp_path).path / "plan.json").read_text())
    hosts_of = {f"{one['id']['type']}-{one['id']['index']}": one["host"] for one in planned["tasks"]}
    assert hosts_of == {
        "worker-0": "hostA",
        "dispatcher-0": "hostA",
        "data_worker-0": "hostA",
        "worker-1": "hostB",
        "data_worker-1": "hostB",
    }
    for task, has_state in (("worker-0", True), ("worker-1", False)):
        address, is_whole, found = LiveRun(tmp_path).log(task).decode().split()
        assert address.startswith(f"grpc://{bed['hostA'].address}:")
        assert (is_whole, found) == ("True", str(has_state))
    assert not (LiveRun(tmp_path).path / "data_service").exists()


def test_a_host_without_tensorflow_is_named(orch: Orch, bed: Bed, script: Callable[..., Path]) -> None:
    bare = bed["hostB"].files / "home/bare"
    os.makedirs(bare.parent, exist_ok=True)
    bare.write_text(f'#!/bin/sh\nexec {os.path.realpath(sys.executable)} "$@"\n')  # the interpreter without its virtual environment
    bare.chmod(0o755)
    done = up(orch, bed, script("import tensorflow\n"), hosts={"hostA": None, "hostB": {"python": "~/bare"}}, check=2)
    assert "host hostB: there is no TensorFlow for " in done.err
    assert "host hostA" not in done.err
