"""A tf.data service whose servers are killed while an epoch is read from it: they come back, and what TensorFlow promises holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.live import LiveRun

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.usefixtures("warm_tensorflow")]

ELEMENTS = 600
READS = f"""
import collections, json, os, signal, sys, time
import tensorflow as tf
import worker

mode, *victims = sys.argv[1:]
service = tf.data.experimental.service
ORDER = dict(compression=None, max_outstanding_requests=2)
dataset = tf.data.Dataset.range({ELEMENTS}).apply(service.distribute(mode, worker.context().data_service, **ORDER))

def events(kind):
    with open(os.path.join(os.environ["ORCH_RUN_DIR"], "events.jsonl")) as file:
        return [one for one in map(json.loads, file) if one["event"] == kind]

def came_back(task):
    return any(one["task"] == task and one["attempt"] > 1 for one in events("task_up"))

counts = collections.Counter()
for number, element in enumerate(dataset, start=1):
    counts[int(element)] += 1
    if number in (40, 200) and victims:
        victim = victims.pop(0)
        os.kill(next(one["pid"] for one in events("task_started") if one["task"] == victim), signal.SIGKILL)
        while not came_back(victim):
            time.sleep(0.02)
with open("read.json", "w") as file:
    json.dump({{"times": sorted(counts.values()), "distinct": len(counts)}}, file)
"""


def read(orch: Any, tmp_path: Path, mode: str, *victims: str, restarts: int = 2, **expected: int) -> Any:
    (tmp_path / "reads.py").write_text(READS)
    options = ("--strategy", "none", "--set", "tasks.data_worker=2", "--max-restarts", str(restarts))
    env = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1"}
    return orch("up", "reads.py", *options, "--", mode, *victims, timeout=250, env=env, **expected)


def test_an_epoch_that_is_shared_out_is_read_at_most_once_whoever_is_killed(orch: Any, tmp_path: Path) -> None:
    """ "Dynamic sharding provides at-most once visitation guarantees" (`ShardingPolicy`): what a lost worker had in hand is missing."""
    done = read(orch, tmp_path, "distributed_epoch", "data_worker-0", "dispatcher-0", check=0)
    found = json.loads((tmp_path / "read.json").read_text())
    assert set(found["times"]) == {1}
    assert ELEMENTS // 2 < found["distinct"] <= ELEMENTS
    run = LiveRun(tmp_path)
    assert [past["task"] for past in run.result()["past"]] == ["data_worker-0", "dispatcher-0"]
    # Up is a task whose own port answers: each came back on the one that is held for it, and nothing else was started again.
    ups = [(event["task"], event["attempt"]) for event in run.events() if event["event"] == "task_up" and event["attempt"] > 1]
    assert ups == [("data_worker-0", 2), ("dispatcher-0", 3)]
    assert "stopping dispatcher-0, data_worker-0..1" in done.err
    exits = {(e["task"], e["attempt"]): e["stopped"] for e in run.events() if e["event"] == "task_exited" and e["task"] != "worker-0"}
    assert {one for one, stopped in exits.items() if stopped} == {("dispatcher-0", 3), ("data_worker-0", 2), ("data_worker-1", 1)}


def test_epochs_that_each_worker_reads_whole_are_begun_anew_by_one_that_comes_back(orch: Any, tmp_path: Path) -> None:
    """ "If workers are restarted […] they will begin processing the dataset from the beginning": at least once, and at most that much."""
    read(orch, tmp_path, "parallel_epochs", "data_worker-0", check=0)
    found = json.loads((tmp_path / "read.json").read_text())
    assert found["distinct"] == ELEMENTS
    assert set(found["times"]) <= {2, 3}


def test_without_a_restart_nobody_waits_for_a_lost_data_worker(orch: Any, tmp_path: Path) -> None:
    """A client asks a worker that is gone for ever; its epoch would never end."""
    done = read(orch, tmp_path, "distributed_epoch", "data_worker-1", restarts=0, check=137)
    assert "first failure: data_worker-1 on local: killed by SIGKILL" in done.err
    assert "stopped because of it: worker-0, dispatcher-0, data_worker-0" in done.err


AGAIN = f"""
import json, os, sys
import tensorflow as tf
import worker

here = worker.context()
service = tf.data.experimental.service
dataset = tf.data.Dataset.range({ELEMENTS}).apply(service.distribute("distributed_epoch", here.data_service, job_name="epoch"))
found = []
for element in dataset:
    found.append(int(element))
    if here.attempt == 1 and len(found) == 300:
        sys.exit(3)
with open("read.json", "w") as file:
    json.dump(sorted(found), file)
"""


def test_a_cluster_that_starts_again_as_a_whole_begins_with_a_new_epoch(orch: Any, tmp_path: Path) -> None:
    """The named job of the attempt before would have had only what is left of it."""
    (tmp_path / "reads.py").write_text(AGAIN)
    options = ("--strategy", "none", "--set", "tasks.data_worker=1", "--max-restarts", "1")
    orch("up", "reads.py", *options, timeout=250, env={"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1"}, check=0)
    assert json.loads((tmp_path / "read.json").read_text()) == list(range(ELEMENTS))
    run = LiveRun(tmp_path)
    assert [(past["cause"]["task"], past["cause"]["code"]) for past in run.result()["past"]] == [("worker-0", 3)]
    assert sorted(path.name for path in (run.path / "data_service").iterdir()) == ["attempt-1", "attempt-2"]
