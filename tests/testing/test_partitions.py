"""Clusters whose network a test can cut: a network namespace for each task."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import UsageError
from orchestrator.testing import TaskFailed, TimedOut, barrier, cluster

PATIENCE_S = 60.0


def add_up(strategy: Any, steps: int) -> float:
    import tensorflow as tf

    import worker

    @tf.function  # type: ignore[untyped-decorator]
    def step() -> Any:
        return strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("sum", tf.constant(1.0)))

    total = 0.0
    for number in range(steps):
        total += float(step())
        worker.report(step=number)
    return total


@pytest.mark.root
@pytest.mark.tensorflow
def test_a_collective_stalls_while_the_network_is_cut_and_goes_on_afterwards() -> None:
    with cluster(workers=2, partitions=True, collectives={"heartbeat_s": 120}) as c:
        assert c.run(add_up, 1) == {"worker-0": 2.0, "worker-1": 2.0}
        c.partition("worker-0", "worker-1")
        job = c.start(add_up, 3)
        assert not job.join(timeout=2)
        assert {outcome.state for outcome in job.tasks.values()} == {"running"}
        c.heal("worker-1", "worker-0")
        assert job.result(timeout=PATIENCE_S) == {"worker-0": 6.0, "worker-1": 6.0}

        job = c.start(add_up, 1_000_000)
        c.wait_for("worker-0", report={"step": 50})
        c.partition("worker-0", "worker-1")
        with pytest.raises(TimedOut, match="add_up was not over after 2 s") as caught:
            job.result(timeout=2)
        assert set(caught.value.stacks) == {"worker-0", "worker-1"}
        assert all("test_partitions.py" in stack for stack in caught.value.stacks.values())
    with cluster(workers=2, partitions=True, collectives={"heartbeat_s": 120}) as c:  # in the same namespaces, which are whole again
        assert c.run(add_up, 1) == {"worker-0": 2.0, "worker-1": 2.0}


@pytest.mark.root
@pytest.mark.tensorflow
def test_tensorflow_gives_up_a_worker_whose_heartbeats_are_lost() -> None:
    with cluster(workers=2, partitions=True, collectives={"heartbeat_s": 5}) as c:
        job = c.start(add_up, 1_000_000)
        c.wait_for("worker-0", report={"step": 50})
        c.partition("worker-0", "worker-1")
        with pytest.raises(Exception, match=r"Collective ops is aborted|unhealthy|Deadline Exceeded") as caught:
            job.result(timeout=PATIENCE_S)
        assert not isinstance(caught.value, TimedOut)
        assert isinstance(job.cause, TaskFailed)
        assert ", in add_up\n" in job.cause.traceback


def reach() -> list[str]:
    """The tasks whose port can be connected to within a second."""
    config = json.loads(os.environ["TF_CONFIG"])
    places = {f"worker-{index}": place.rsplit(":", 1) for index, place in enumerate(config["cluster"]["worker"])}
    with socket.create_server(("0.0.0.0", int(places[os.environ["ORCH_TASK"]][1])), reuse_port=True):
        barrier()
        found = []
        for name, (host, port) in places.items():
            try:
                socket.create_connection((host, int(port)), timeout=1).close()
                found.append(name)
            except TimeoutError:  # and no refusal: nobody is told
                continue
        barrier()
    return found


@pytest.mark.root
def test_only_the_two_tasks_are_cut_off_from_each_other() -> None:
    everybody = ["worker-0", "worker-1", "worker-2"]
    with cluster(workers=3, partitions=True, preload=[]) as c:
        assert c.run(reach) == dict.fromkeys(everybody, everybody)
        c.partition("worker-0", "worker-2")
        c.partition("worker-0", "worker-2")
        apart = {"worker-0": everybody[:2], "worker-1": everybody, "worker-2": everybody[1:]}
        assert c.run(reach) == apart
        c.restart("worker-2")
        c.heal("worker-0", "worker-1")
        assert c.run(reach) == apart
        c.heal()
        assert c.run(reach) == dict.fromkeys(everybody, everybody)
        with pytest.raises(UsageError, match="partition needs two tasks, not 'worker-1' twice"):
            c.partition("worker-1", "worker-1")


def test_what_cannot_be_cut_is_refused() -> None:
    with pytest.raises(UsageError, match="in_process= and partitions= exclude each other"):
        cluster(workers=2, partitions=True, in_process="worker-0")
    with (
        cluster(workers=2, preload=[]) as c,
        pytest.raises(UsageError, match=r"share the network of this machine; cluster\(partitions=True\) gives each one of its own"),
    ):
        c.partition("worker-0", "worker-1")


@pytest.mark.root
def test_what_is_missing_is_said_where_namespaces_are_not_allowed(script: Callable[..., Path]) -> None:
    path = script("from orchestrator.testing import cluster\nwith cluster(workers=1, partitions=True, preload=[]): pass\n")
    command = ["setpriv", "--bounding-set=-sys_admin", sys.executable, str(path)]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=PATIENCE_S)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "orchestrator.errors.UsageError: partitions=True takes Linux, `ip` (of iproute2) and the right to make network namespaces, "
        "as root has: a new network namespace: Operation not permitted"
    )
