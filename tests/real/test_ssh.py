"""Training on hosts with ssh, with TensorFlow."""

from __future__ import annotations

import json
import os
import re
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


@pytest.mark.core
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

number = 0
while True:
    print(f"step {number}: {float(add()):g}", flush=True)
    number += 1
    time.sleep(0.1)
"""


SERVED = """
import time
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
    time.sleep(0.02)  # the other tests want the cores, too
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
def test_a_training_goes_on_over_connections_that_are_cut_until_a_host_vanishes(
    orch: Orch, bed: Bed, script: Callable[..., Path], run: LiveRun
) -> None:
    """An ssh is killed, then the line of a host is down for a while: both workers compute on, and each line of both is there once. Then no
    packet comes from the host any more: the other worker only hangs, for TensorFlow is not to find out first, and orch says why.
    """
    hosts = (
        "--set",
        f"backend.hosts={json.dumps(['hostA', 'hostB'])}",
        "--set",
        f"backend.ssh={json.dumps(bed.ssh)}",
        "--set",
        "timeouts.grace_s=1",
    )
    running = orch.start("up", str(script(FOREVER)), *hosts, "--set", "collectives.heartbeat_s=120")
    running.wait_for("worker-0 | step 3:", timeout=180)
    # The host has no common directory with this one: the profile arrives in the run all the same.
    profiled = orch("profile", "--for", "500ms", check=0)
    (profile,) = (run.path / "profile/plugins/profile").glob("*/worker-0.xplane.pb")
    assert b"CollectiveReduceV2" in profile.read_bytes()
    assert "worker-1 left out" in profiled.err
    next(child for child in run.controller().children() if child.name() == "ssh" and "hostA" in child.cmdline()).kill()
    running.wait_for("host hostA: the connection was cut")
    bed["hostB"].cut()
    running.wait_for("host hostB: the connection was cut: no message from it")  # orch tries a new one, while the line is down
    bed["hostB"].join()
    running.wait_for(re.compile("host hostB: the connection was cut: .*it was made again after"))
    steps = [run.log(task).count(b"step") for task in ("worker-0", "worker-1")]
    wait_until(lambda: all(run.log(f"worker-{index}").count(b"step") > steps[index] + 10 for index in range(2)), "further steps")
    bed["hostB"].cut()
    done = running.wait(timeout=180, check=125)
    assert "lost host hostB: no message from it for 20 s" in done.err
    assert "Socket closed" not in done.err
    for task in ("worker-0", "worker-1"):
        lines = [line for line in run.log(task).decode().splitlines(keepends=True) if line.startswith("step") and line.endswith("\n")]
        assert lines == [f"step {number}: 2\n" for number in range(len(lines))]
    assert {event["attempt"] for event in run.events() if event["event"] == "task_exited"} == {1}


READ = """
import json, os
import tensorflow as tf
import worker

strategy = worker.strategy()
total = strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("sum", tf.constant(1.0)))
print(*json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"], float(total))
address = worker.context().data_service
dataset = tf.data.Dataset.range(100).apply(tf.data.experimental.service.distribute("distributed_epoch", address))
print(address, sorted(int(x) for x in dataset) == list(range(100)), os.path.exists(os.environ["ORCH_LOG_DIR"] + "/../../data_service"))
"""


@pytest.mark.slow
def test_two_hosts_by_ipv4_and_ipv6_and_a_data_service_that_is_read_from_both(
    orch: Orch, bed: Bed, script: Callable[..., Path], tmp_path: Path
) -> None:
    """One is reached by IPv4, the other by IPv6, and their workers add up a number. The dispatcher's state lies on its own host, which does
    not see the run directory.
    """
    hosts = {"hostA": {"address": bed["hostA"].address}, "hostB": {"address": bed["hostB"].address6}}
    options = ("-n", "2", "--set", "tasks.data_worker=2", "--max-restarts", "1")
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
        cluster, read = (line.split() for line in LiveRun(tmp_path).log(task).decode().splitlines())
        assert cluster[0].startswith(f"{bed['hostA'].address}:")
        assert cluster[1].startswith(f"[{bed['hostB'].address6}]:")
        assert cluster[2] == "2.0"
        address, is_whole, found = read
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
