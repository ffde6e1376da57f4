"""Plans: who sees whom, who runs where, and what each task is told."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.model import plan, tf_config
from orchestrator.model.plan import HostFacts, Plan
from orchestrator.model.spec import ClusterSpec, TaskDevices, TaskSpec
from worker.contract import TASK_TYPES, DeviceSettings, Program, TaskId


def spec(strategy: str = "multi_worker_mirrored", **counts: int) -> ClusterSpec:
    tasks = tuple(TaskSpec(kind, counts[kind]) for kind in TASK_TYPES if kind in counts)
    return ClusterSpec("t", strategy, Program("script", "train.py", ("--x",)), tasks, "/w")


def make(wanted: ClusterSpec, hosts: int = 1, *, held: bool = True) -> Plan:
    names = [f"host{number}" for number in range(hosts)]
    placement = plan.place(wanted, names)
    facts = [
        HostFacts(name, f"10.0.0.{number}", 8, tuple(range(4000, 4000 + len(placement[name]))) if held else (), f"/runs/{name}")
        for number, name in enumerate(names)
    ]
    return plan.make("t-1", wanted, placement, facts)


def configs(planned: Plan) -> dict[str, Any]:
    texts = {str(task.id): planned.tf_config(task) for task in planned.tasks}
    return {name: json.loads(text) if text else None for name, text in texts.items()}


def test_workers_see_the_same_cluster_and_know_themselves() -> None:
    found = configs(make(spec(worker=2)))
    cluster = {"worker": ["10.0.0.0:4000", "10.0.0.0:4001"]}
    assert found == {f"worker-{i}": {"cluster": cluster, "task": {"type": "worker", "index": i}} for i in range(2)}


def test_a_mirrored_evaluator_finds_itself_and_is_in_nobody_elses_cluster() -> None:
    found = configs(make(spec(chief=1, worker=1, evaluator=1)))
    assert "evaluator" not in found["worker-0"]["cluster"]
    assert found["evaluator-0"]["cluster"] == {**found["worker-0"]["cluster"], "evaluator": ["10.0.0.0:4002"]}
    assert found["evaluator-0"]["task"] == {"type": "evaluator", "index": 0}


def test_a_parameter_servers_evaluator_is_in_nobody_elses_cluster() -> None:
    found = configs(make(spec("parameter_server", chief=1, worker=2, ps=1, evaluator=1)))
    assert all("evaluator" not in found[name]["cluster"] for name in ("chief-0", "worker-0", "worker-1", "ps-0"))
    assert set(found["chief-0"]["cluster"]) == {"chief", "worker", "ps"}


@pytest.mark.parametrize("strategy", ["mirrored", "one_device", "none"])
def test_a_lone_task_gets_no_tf_config_and_loses_that_of_the_shell(strategy: str) -> None:
    planned = make(spec(strategy, worker=1))
    assert configs(planned) == {"worker-0": None}
    assert planned.tasks[0].order.unset == ("TF_CONFIG",)
    assert planned.orders("host0").peers == ()


def test_more_than_ten_workers_keep_their_order() -> None:
    addresses = {TaskId("worker", i): f"h:{i}" for i in reversed(range(12))}
    text = tf_config.clusters("multi_worker_mirrored", addresses)[tf_config.TRAINING]
    assert json.loads(text)["worker"] == [f"h:{i}" for i in range(12)]


def test_ranks_are_those_of_the_training_cluster() -> None:
    planned = make(spec(chief=1, worker=2, evaluator=1), hosts=2)
    ranks = {str(t.id): tuple(t.order.env[k] for k in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "ORCH_IS_CHIEF")) for t in planned.tasks}
    assert ranks == {
        "chief-0": ("0", "3", "0", "1"),
        "worker-0": ("1", "3", "1", "0"),
        "worker-1": ("2", "3", "0", "0"),
        "evaluator-0": ("0", "1", "1", "0"),
    }


def test_without_a_chief_worker_0_is_it() -> None:
    planned = make(spec(worker=2))
    assert [task.order.env["ORCH_IS_CHIEF"] for task in planned.tasks] == ["1", "0"]


def test_tasks_are_spread_in_blocks() -> None:
    assert {host: len(ids) for host, ids in plan.place(spec(worker=7), ["a", "b", "c"]).items()} == {"a": 3, "b": 2, "c": 2}


def test_threads_are_the_hosts_cores_shared_out_unless_set() -> None:
    assert make(spec(worker=2)).orders("host0").env_defaults["TF_NUM_INTRAOP_THREADS"] == "4"
    assert make(spec(worker=20)).orders("host0").env_defaults["OMP_NUM_THREADS"] == "1"
    wanted = replace(spec(), tasks=(TaskSpec("worker", 1, devices=TaskDevices(DeviceSettings(intra_op_threads=3))),))
    assert make(wanted).tasks[0].order.env["TF_NUM_INTRAOP_THREADS"] == "3"


@pytest.mark.parametrize(
    ("strategy", "kind", "told"),
    [
        ("multi_worker_mirrored", "script", {"chief-0": 5.0, "worker-0": 5.0, "evaluator-0": None}),
        ("multi_worker_mirrored", "command", {"chief-0": None, "worker-0": None, "evaluator-0": None}),
        ("parameter_server", "script", {"chief-0": None, "worker-0": None, "ps-0": None, "evaluator-0": None}),
    ],
)
def test_those_that_train_together_are_told_how_to_wait_for_each_other(strategy, kind, told) -> None:
    counts = {name.partition("-")[0]: 1 for name in told}
    planned = make(replace(spec(strategy, **counts), program=Program(kind, "a")))
    assert {str(task.id): task.order.collectives.heartbeat_s for task in planned.tasks} == told


def test_a_type_can_have_arguments_and_variables_of_its_own() -> None:
    wanted = replace(spec(), tasks=(TaskSpec("chief", 1), TaskSpec("worker", 1, args=("--y",), env={"A": "b"})))
    chief, worker = make(wanted).tasks
    assert (chief.order.program.args, worker.order.program.args) == (("--x",), ("--y",))
    assert ("A" in chief.order.env, worker.order.env["A"]) == (False, "b")


def test_serving_replaces_the_script_of_servers_only() -> None:
    planned = make(replace(spec("parameter_server", chief=1, worker=1, ps=1), serve=True))
    assert [task.order.program.kind for task in planned.tasks] == ["script", "serve", "serve"]


def test_a_dry_run_says_that_ports_are_not_known_yet() -> None:
    assert configs(make(spec(worker=1), held=False))["worker-0"]["cluster"] == {"worker": ["10.0.0.0:<port of worker-0>"]}


def test_memory_grows_no_worse_than_linearly() -> None:
    def peak(workers: int) -> int:
        tracemalloc.start()
        planned = make(spec(worker=workers))
        longest = max(len(planned.tf_config(task) or "") for task in planned.tasks)
        assert longest > 10 * workers
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    assert peak(2000) < 4 * 1.3 * peak(500)
