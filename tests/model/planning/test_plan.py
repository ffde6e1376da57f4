"""Plans: who sees whom, who runs where, and what each task is told."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.model import slots
from orchestrator.model.planning import plan
from orchestrator.model.planning.facts_of_hosts import HostFacts
from orchestrator.model.planning.plan import Plan
from orchestrator.model.settings import ClusterSpec, Restart, TaskDevices, TaskSpec
from orchestrator.model.strategies import DEFAULT, TRAINING, named
from worker.protocol.messages import Program
from worker.protocol.task_id import TASK_TYPES, TaskId
from worker.settings.collective_settings import CollectiveSettings
from worker.settings.device_settings import DeviceSettings, ThreadSettings
from worker.settings.input_settings import InputSettings


def spec(strategy: str = "multi_worker_mirrored", /, **counts: int) -> ClusterSpec:
    tasks = tuple(TaskSpec(kind, counts[kind]) for kind in TASK_TYPES if kind in counts)
    return ClusterSpec("t", strategy, Program("script", "train.py", ("--x",)), tasks, "/w")


def make(wanted: ClusterSpec, hosts: int = 1, *, held: bool = True) -> Plan:
    names = [f"host{number}" for number in range(hosts)]
    placement = plan.place(wanted, dict.fromkeys(names))
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


@pytest.mark.parametrize("strategy", ["mirrored", "one_device", "tpu", "none"])
def test_a_lone_task_gets_no_tf_config_and_loses_that_of_the_shell(strategy: str) -> None:
    planned = make(spec(strategy, worker=1))
    assert configs(planned) == {"worker-0": None}
    assert planned.tasks[0].order.unset == ("TF_CONFIG",)
    assert planned.orders("host0").peers == ()


def test_more_than_ten_workers_keep_their_order() -> None:
    addresses = {TaskId("worker", i): f"h:{i}" for i in reversed(range(12))}
    text = DEFAULT.clusters(addresses)[TRAINING]
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


@pytest.mark.parametrize(("workers", "cores", "expected"), [(1, 1, "4"), (3, 2, "4"), (7, 2, "8"), (2, 16, "16"), (20, 16, "21")])
def test_a_parameter_servers_cluster_has_threads_to_wait_in_however_few_cores_there_are(workers: int, cores: int, expected: str) -> None:
    wanted = spec("parameter_server", chief=1, worker=workers, ps=1, evaluator=1)
    planned = plan.make("t-1", wanted, plan.place(wanted, {"a": None}), [HostFacts("a", "a", cores)])
    assert planned.orders("a").env_defaults["TF_NUM_INTEROP_THREADS"] == expected
    planned = plan.make(
        "t-1", replace(wanted, strategy="multi_worker_mirrored"), plan.place(wanted, {"a": None}), [HostFacts("a", "a", cores)]
    )
    assert "TF_NUM_INTEROP_THREADS" not in planned.orders("a").env_defaults


def test_without_a_chief_worker_0_is_it() -> None:
    planned = make(spec(worker=2))
    assert [task.order.env["ORCH_IS_CHIEF"] for task in planned.tasks] == ["1", "0"]


def test_tasks_are_spread_in_blocks() -> None:
    assert {host: len(ids) for host, ids in plan.place(spec(worker=7), dict.fromkeys("abc")).items()} == {"a": 3, "b": 2, "c": 2}


def test_the_servers_of_a_data_service_fill_what_the_training_has_left() -> None:
    def names(hosts: int, **counts: int) -> list[list[str]]:
        placement = plan.place(spec(**counts), {f"h{number}": None for number in range(hosts)})
        return [[str(task) for task in ids] for ids in placement.values()]

    assert names(2, worker=2, dispatcher=1, data_worker=2) == [["worker-0", "dispatcher-0", "data_worker-0"], ["worker-1", "data_worker-1"]]
    assert names(3, worker=1, dispatcher=1, data_worker=2) == [["worker-0", "dispatcher-0"], ["data_worker-0"], ["data_worker-1"]]
    placement = plan.place(spec(worker=4, dispatcher=1), {"h0": 3, "h1": 2})
    assert [len(ids) for ids in placement.values()] == [3, 2]


DATA = {"dispatcher": 1, "data_worker": 2}


def test_a_data_server_is_told_where_it_is_and_everybody_where_the_dispatcher_is() -> None:
    planned = make(spec("none", worker=1, **DATA), hosts=2)
    assert {name: planned.orders(name).env["ORCH_DATA_SERVICE"] for name in ("host0", "host1")} == {
        "host0": "grpc://10.0.0.0:4000",
        "host1": "grpc://10.0.0.0:4000",
    }
    told = {order.task: (order.port, order.program) for host in ("host0", "host1") for order in planned.orders(host).orders}
    assert told == {
        "worker-0": (None, Program("script", "train.py", ("--x",))),
        "dispatcher-0": (4000, Program("data_service", args=("10.0.0.0:4000",))),
        "data_worker-0": (4000, Program("data_service", args=("10.0.0.1:4000",))),
        "data_worker-1": (4001, Program("data_service", args=("10.0.0.1:4001",))),
    }
    placement = plan.place(planned.spec, dict.fromkeys(["host0", "host1"]))
    assert [slots.ports_needed(placement[name], named(planned.spec.strategy)) for name in placement] == [1, 2]
    assert planned.orders("host0").peers == ("localhost", "10.0.0.0", "10.0.0.1")  # no proxy before the service
    assert "ORCH_DATA_SERVICE" not in make(spec(worker=1)).orders("host0").env


def test_a_dispatcher_finds_its_jobs_again_if_it_alone_is_new() -> None:
    planned = make(replace(spec("none", worker=1, **DATA), restart=Restart(max=1)))
    alone = planned.orders("host0", 5, {"dispatcher-0"}, since=3).orders
    assert [(order.task, order.attempt, order.program.args[1]) for order in alone] == [("dispatcher-0", 5, "data_service/attempt-3")]


def test_a_dispatcher_has_no_share_of_the_cores() -> None:
    assert make(spec(worker=2, **DATA)).orders("host0").env_defaults["TF_NUM_INTRAOP_THREADS"] == "2"


def test_threads_are_the_hosts_cores_shared_out_unless_set() -> None:
    assert make(spec(worker=2)).orders("host0").env_defaults["TF_NUM_INTRAOP_THREADS"] == "4"
    assert make(spec(worker=20)).orders("host0").env_defaults["OMP_NUM_THREADS"] == "1"
    wanted = replace(spec(), tasks=(TaskSpec("worker", 1, devices=TaskDevices(DeviceSettings(threads=ThreadSettings(3)))),))
    assert make(wanted).tasks[0].order.env["TF_NUM_INTRAOP_THREADS"] == "3"


@pytest.mark.parametrize(
    ("strategy", "kind", "told"),
    [
        ("multi_worker_mirrored", "script", {"chief-0": 5.0, "worker-0": 5.0, "evaluator-0": None}),
        ("multi_worker_mirrored", "command", {"chief-0": None, "worker-0": None, "evaluator-0": None}),
        ("parameter_server", "script", {"chief-0": None, "worker-0": None, "ps-0": None, "evaluator-0": None}),
    ],
)
def test_those_that_train_together_are_told_how_to_wait_for_each_other(strategy: str, kind: Any, told: dict[str, float | None]) -> None:
    counts = {name.partition("-")[0]: 1 for name in told}
    planned = make(replace(spec(strategy, **counts), program=Program(kind, "a"), collectives=CollectiveSettings(5.0)))
    assert {str(task.id): task.order.settings.collectives.heartbeat_s for task in planned.tasks} == told


def test_a_type_can_have_arguments_and_variables_of_its_own() -> None:
    wanted = replace(spec(), tasks=(TaskSpec("chief", 1), TaskSpec("worker", 1, args=("--y",), env={"A": "b"})))
    chief, worker = make(wanted).tasks
    assert (chief.order.program.args, worker.order.program.args) == (("--x",), ("--y",))
    assert ("A" in chief.order.env, worker.order.env["A"]) == (False, "b")


def test_serving_replaces_the_script_of_servers_only() -> None:
    planned = make(replace(spec("parameter_server", chief=1, worker=1, ps=1), serve=True))
    assert [task.order.program.kind for task in planned.tasks] == ["script", "serve", "serve"]


@pytest.mark.parametrize(
    ("strategy", "counts", "noted"),
    [
        (
            "parameter_server",
            {"chief": 1, "worker": 1, "ps": 1},
            ["input.auto_shard: data has no effect under strategy parameter_server: each worker reads the whole dataset"],
        ),
        ("multi_worker_mirrored", {"worker": 2}, []),
    ],
)
def test_a_policy_for_the_input_is_noted_where_it_has_no_effect(strategy: str, counts: dict[str, int], noted: list[str]) -> None:
    wanted = spec(strategy, **counts)
    tasks = tuple(replace(one, input=InputSettings(auto_shard="data")) for one in wanted.tasks)
    assert [note for note in make(replace(wanted, tasks=tasks)).notes if "input" in note] == noted


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
