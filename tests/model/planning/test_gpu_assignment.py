"""Who gets which GPUs, and what is said when that cannot be."""

from __future__ import annotations

from typing import Any

import yaml

from orchestrator.errors import OrchError
from orchestrator.model.planning import plan
from orchestrator.model.planning.facts_of_hosts import HostFacts
from orchestrator.model.planning.plan import Plan
from orchestrator.model.settings.parse import parse
from tests import golden
from tests.trees import wrap
from worker.protocol.messages import Gpu, GpuHolder, TakeGpus


def gpu(index: int, memory_mb: int = 1000) -> Gpu:
    return Gpu(index, f"GPU-{index}{index}{index}", "Fake", memory_mb, f"GPU-{index}{index}{index}")


PART = Gpu(0, "MIG-a", "Part", 100, "MIG-a")
OTHER_PART = Gpu(0, "MIG-b", "Part", 100, "MIG-b")


def planned(document: dict[str, Any], *gpus: tuple[Gpu, ...] | None, taken: tuple[GpuHolder, ...] = ()) -> Plan:
    """The plan of a cluster on as many hosts, ``a``, ``b``, …, as there are arguments: each the GPUs of one."""
    spec = parse(wrap({"script": "s", **document}, "here"), workdir="/w")
    names = "abcdef"[: len(gpus)]
    placement = plan.place(spec, dict.fromkeys(names))
    facts = [
        HostFacts(name, name, 4, tuple(range(len(placement[name]))), gpus=found, taken=taken)
        for name, found in zip(names, gpus, strict=True)
    ]
    return plan.make("r", spec, placement, facts)


TWO, FOUR = (gpu(0), gpu(1)), tuple(map(gpu, range(4)))


def workers(count: int, more: dict[str, Any] | None = None, **devices: Any) -> dict[str, Any]:
    return {"tasks": {"worker": {"count": count, "devices": devices, **(more or {})}}}


def overrides(**devices: dict[str, Any]) -> dict[str, Any]:
    return {"overrides": {name[1:]: {"devices": found} for name, found in devices.items()}}


def hosts_of(found: list[list[Any] | None]) -> list[tuple[Gpu, ...] | None]:
    """The GPUs of each host: by index, by the name of a part, or by the caller's own number, such as ``#2``; None: a dry run."""
    parts = {"MIG-a": PART, "MIG-b": OTHER_PART}

    def made(one: int | str) -> Gpu:
        if isinstance(one, int):
            return gpu(one)
        return parts[one] if one in parts else Gpu(int(one[1:]), f"GPU-{one[1:]}", "", 0, one[1:])

    return [None if host is None else tuple(map(made, host)) for host in found]


def outcome(given: str) -> str:
    """The GPUs that each task sees, and the notes of the plan, or why there is none. ``taken``: the GPUs of host a that other runs have."""
    document = yaml.safe_load(given)
    hosts, taken = hosts_of(document.pop("gpus")), document.pop("taken", [])
    held = tuple(GpuHolder(gpu(one["gpu"]).uuid, one["run"], 70 + one["gpu"], one.get("shares", False)) for one in taken)
    try:
        found = planned(document, *hosts, taken=held)
    except OrchError as error:
        return f"exit code {error.exit_code}: {error}"
    seen = [f"{task.id}: {shortened(task.order.env.get('CUDA_VISIBLE_DEVICES'))}" for task in found.tasks]
    return "\n".join(["; ".join(seen), *found.notes])


def shortened(visible: str | None) -> str:
    """CUDA_VISIBLE_DEVICES; GPU-111 is short for 1."""
    return "not set" if visible is None else ",".join(part[-1] if part.startswith("GPU-") else part for part in visible.split(","))


@golden.cases("gpus.txt")
def test_gpus_are_given_out(case: golden.Case) -> None:
    case.check(outcome(case.given))


def test_a_task_is_told_how_many_gpus_it_must_find_if_that_was_asked_for() -> None:
    asked, shared = planned(workers(2, gpus=1), TWO), planned(workers(2), TWO)
    assert [task.order.settings.devices.gpus for task in (*asked.tasks, *shared.tasks)] == [1, 1, None, None]
    assert [task.order.settings.devices.gpus_given for task in (*asked.tasks, *shared.tasks)] == [None, None, 1, 1]
    own = planned({"tasks": {"worker": {"count": 2, "env": {"CUDA_VISIBLE_DEVICES": "1"}}}}, TWO)
    assert {task.order.settings.devices.gpus_given for task in (*own.tasks, *planned(workers(3), TWO).tasks)} == {None}


def test_what_the_environment_says_to_a_task() -> None:
    document = workers(1, memory_growth=True, determinism=True, log_placement=True)
    document["tasks"]["worker"]["env"] = {"TF_CPP_MIN_LOG_LEVEL": "2"}
    (task,) = planned(document, ()).tasks
    assert task.order.env["TF_DETERMINISTIC_OPS"] == "1"
    assert task.order.env["TF_CPP_MIN_LOG_LEVEL"] == "0"
    assert "TF_FORCE_GPU_ALLOW_GROWTH" not in task.order.env
    assert "TF_FORCE_GPU_ALLOW_GROWTH" in task.order.unset
    assert task.order.settings.devices.memory_growth is True


def test_a_command_gets_memory_growth_by_its_environment() -> None:
    document = {"command": "./a", "script": None, "defaults": {"devices": {"memory_growth": True}}}
    (task,) = planned(document, TWO).tasks
    assert task.order.env["TF_FORCE_GPU_ALLOW_GROWTH"] == "true"


def test_a_run_claims_what_it_gives_to_its_tasks() -> None:
    document = workers(3, overrides(_0={"gpus": [0]}, _1={"gpus": [2], "share_gpus": True}, _2={"gpus": [2], "share_gpus": True}))
    assert planned(document, FOUR).claims == {"a": TakeGpus(("GPU-000",), ("GPU-222",))}
    assert planned(workers(1, gpus=0), FOUR).claims == {}
    assert planned(workers(1), ()).claims == {}
