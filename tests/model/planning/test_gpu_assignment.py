"""Who gets which GPUs, and what is said when that cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.errors import OrchError, SpecError
from orchestrator.model.planning import plan
from orchestrator.model.planning.facts_of_hosts import HostFacts
from orchestrator.model.planning.plan import Plan
from orchestrator.model.settings.parse import parse
from tests.trees import wrap
from worker.protocol.messages import Gpu, GpuHolder, TakeGpus


def gpu(index: int, memory_mb: int = 1000) -> Gpu:
    return Gpu(index, f"GPU-{index}{index}{index}", "Fake", memory_mb, f"GPU-{index}{index}{index}")


PART = Gpu(0, "MIG-a", "Part", 100, "MIG-a")
OTHER_PART = Gpu(0, "MIG-b", "Part", 100, "MIG-b")
CPU_WAY = "leave out --gpus (or gpus: in orch.yaml), and the task runs on the CPU"
WAYS = "name others with --gpus, or let all of them share (defaults.devices.share_gpus: true)"


def planned(document: dict[str, Any], *gpus: tuple[Gpu, ...] | None) -> Plan:
    """The plan of a cluster on as many hosts, ``a``, ``b``, …, as there are arguments: each the GPUs of one."""
    spec = parse(wrap({"script": "s", **document}, "here"), workdir="/w")
    names = "abcdef"[: len(gpus)]
    placement = plan.place(spec, dict.fromkeys(names))
    facts = [HostFacts(name, name, 4, tuple(range(len(placement[name]))), None, found) for name, found in zip(names, gpus, strict=True)]
    return plan.make("r", spec, placement, facts)


def visible(document: dict[str, Any], *gpus: tuple[Gpu, ...] | None) -> dict[str, str | None]:
    """CUDA_VISIBLE_DEVICES of each task, as orch sets it; GPU-111 is short for 1."""
    found = {str(task.id): task.order.env.get("CUDA_VISIBLE_DEVICES") for task in planned(document, *gpus).tasks}
    return {
        name: ",".join(part[-1] if part.startswith("GPU-") else part for part in text.split(",")) if text else text
        for name, text in found.items()
    }


def refused(document: dict[str, Any], *gpus: tuple[Gpu, ...] | None) -> list[str]:
    with pytest.raises(SpecError) as caught:
        planned(document, *gpus)
    return str(caught.value).splitlines()


def notes(document: dict[str, Any], *gpus: tuple[Gpu, ...] | None) -> list[str]:
    return [note for note in planned(document, *gpus).notes if not note.startswith("compute threads:")]


TWO, FOUR = (gpu(0), gpu(1)), tuple(map(gpu, range(4)))


def workers(count: int, more: dict[str, Any] | None = None, **devices: Any) -> dict[str, Any]:
    return {"tasks": {"worker": {"count": count, "devices": devices, **(more or {})}}}


def overrides(**devices: dict[str, Any]) -> dict[str, Any]:
    return {"overrides": {name[1:]: {"devices": found} for name, found in devices.items()}}


PS = {"tasks": {"worker": 2, "ps": 1}}


@pytest.mark.parametrize(
    ("document", "gpus", "expected"),
    [
        pytest.param(workers(2), [FOUR], ["0,1", "2,3"], id="in blocks"),
        pytest.param(workers(1), [FOUR], ["0,1,2,3"], id="one task has all"),
        pytest.param(workers(3), [FOUR], ["0", "1", "2"], id="evenly"),
        pytest.param(workers(2), [()], [None, None], id="a host without GPUs is left alone"),
        pytest.param(workers(2), [None], [None, None], id="a dry run knows nothing"),
        pytest.param(workers(3), [TWO], ["-1", "-1", "-1"], id="too few for all"),
        pytest.param(workers(3, share_gpus=True), [TWO], ["0", "1", "0"], id="too few, and shared"),
        pytest.param(workers(4), [FOUR, TWO], ["0", "1", "0", "1"], id="as many on every host"),
        pytest.param(workers(2), [FOUR, ()], ["-1", None], id="as many on every host, so none"),
        pytest.param(PS, [FOUR], ["-1", "0,1", "2,3", "-1"], id="parameter servers and their chief get none"),
        pytest.param({**PS, "defaults": {"devices": {"gpus": 1}}}, [FOUR], ["-1", "0", "1", "-1"], id="nor by a default"),
        pytest.param({"tasks": {"worker": 1, "evaluator": 1}}, [TWO], ["0", "1"], id="an evaluator computes"),
        pytest.param(
            {"tasks": {"worker": {"count": 2, "devices": {"gpus": 1}}, "evaluator": 1}}, [FOUR], ["0", "1", "2,3"], id="and the rest"
        ),
        pytest.param({"tasks": {"worker": 2, "data_worker": 1}}, [FOUR], ["0,1", "2,3", "-1", "-1"], id="a data service gets none"),
        pytest.param(workers(2, gpus=0), [FOUR], ["-1", "-1"], id="none are asked for"),
        pytest.param(workers(2, gpus=0), [None], ["-1", "-1"], id="none, in a dry run"),
        pytest.param(workers(2, gpus=2), [None], ["<2 of the GPUs of a>"] * 2, id="some, in a dry run"),
        pytest.param(workers(1, gpus=[1, 0]), [None], ["1,0"], id="a list, in a dry run"),
        pytest.param(workers(2, gpus=1), [FOUR], ["0", "1"], id="a count"),
        pytest.param(workers(1, gpus=["GPU:3", "GPU-0"]), [FOUR], ["3,0"], id="names and UUIDs, in their order"),
        pytest.param(workers(1, gpus=[0, "GPU-0"]), [TWO], ["0"], id="one GPU under two names"),
        pytest.param(workers(2, gpus=[1, 3], share_gpus=True), [FOUR], ["1,3", "1,3"], id="the same list, shared"),
        pytest.param(workers(2, gpus=2, share_gpus=True), [TWO], ["0,1", "0,1"], id="a count, shared"),
        pytest.param(workers(2, overrides(_0={"gpus": [2]})), [FOUR], ["2", "0"], id="a single task's own, and as many for the other"),
        pytest.param(workers(2, overrides(_1={"gpus": [2]}), gpus=1), [FOUR], ["0", "2"], id="a single task's own"),
        pytest.param(
            {**workers(2), "defaults": {"env": {"CUDA_VISIBLE_DEVICES": "7"}}}, [FOUR], [None, None], id="the spec's own variable"
        ),
        pytest.param(workers(2), [(PART, OTHER_PART)], ["MIG-a", "MIG-b"], id="parts"),
        pytest.param(workers(1), [(PART, OTHER_PART)], ["MIG-a"], id="one part each"),
        pytest.param(workers(1), [(Gpu(2, "GPU-2", "", 0, "2"), Gpu(3, "GPU-3", "", 0, "3"))], ["2,3"], id="in the caller's words"),
    ],
)
def test_gpus_are_given_out(document: dict[str, Any], gpus: list[tuple[Gpu, ...] | None], expected: list[str | None]) -> None:
    assert list(visible(document, *gpus).values()) == expected


@pytest.mark.parametrize(
    ("document", "gpus", "expected"),
    [
        (workers(2, overrides(_1={"gpus": [2]}), gpus=1), [TWO], "worker-1 asks for GPU 2; host a has GPUs 0, 1"),
        (workers(2, gpus=[5], share_gpus=True), [TWO], "worker-0..1 ask for GPU 5; host a has GPUs 0, 1"),
        (workers(1, gpus=["GPU-ffff"]), [TWO], "worker-0 asks for GPU-ffff; host a has GPUs 0, 1"),
        (workers(1, gpus=1), [()], f"worker-0 asks for 1 GPU; host a has no GPU: {CPU_WAY}"),
        (workers(1, gpus=3), [TWO], "worker-0 asks for 3 GPUs; host a has GPUs 0, 1"),
        (workers(1, gpus=3, share_gpus=True), [TWO], "worker-0 asks for 3 GPUs; host a has GPUs 0, 1"),
        (
            workers(2, gpus=2),
            [(gpu(0), gpu(1), gpu(2))],
            f"worker-1 asks for 2 GPUs; host a has GPUs 0, 1, 2; worker-0 has GPUs 0, 1: {WAYS}",
        ),
        (
            workers(2, gpus=[0]),
            [TWO],
            f"worker-1 asks for GPU 0; host a has GPUs 0, 1; worker-0 has GPU 0: {WAYS}",
        ),
        (workers(1, gpus=[0]), [(PART, OTHER_PART)], "worker-0 asks for GPU 0; host a has GPUs MIG-a, MIG-b"),
        (workers(1, memory_limit_mb=1001, gpus=1), [TWO], "worker-0 asks for 1,001 MB; host a's GPU 0 (Fake) has 1,000 MB"),
        (workers(1, logical_gpus=[500, 501], gpus=[1]), [TWO], "worker-0 asks for 1,001 MB; host a's GPU 1 (Fake) has 1,000 MB"),
        (
            workers(3, memory_limit_mb=400, gpus=[0], share_gpus=True),
            [TWO],
            "worker-0..2 ask for 1,200 MB together; host a's GPU 0 (Fake) has 1,000 MB",
        ),
        (
            {"tasks": {"chief": {"devices": {"gpus": 2}}, "worker": {"count": 2, "devices": {"gpus": 1}}}},
            [FOUR],
            "multi_worker_mirrored needs as many GPUs in every task; chief-0 has 2 and worker-0..1 have 1",
        ),
        (
            workers(2, overrides(_0={"logical_gpus": [10, 10]}), gpus=1),
            [TWO],
            "multi_worker_mirrored needs as many GPUs in every task; worker-0 has 2 and worker-1 has 1",
        ),
    ],
)
def test_what_cannot_be_given_names_the_task_the_host_and_what_it_has(
    document: dict[str, Any], gpus: list[tuple[Gpu, ...]], expected: str
) -> None:
    assert refused(document, *gpus) == [expected]


def test_everything_that_is_wrong_is_said_at_once() -> None:
    document = {"tasks": {"chief": {"devices": {"gpus": [9]}}, "worker": {"count": 1, "devices": {"gpus": 3}}}}
    assert refused(document, TWO, TWO) == ["chief-0 asks for GPU 9; host a has GPUs 0, 1", "worker-0 asks for 3 GPUs; host b has GPUs 0, 1"]


@pytest.mark.parametrize(
    ("document", "gpus", "expected"),
    [
        (workers(1), [TWO], []),
        (workers(2), [()], []),
        (workers(2), [FOUR], ["GPUs: worker-0: 0, 1; worker-1: 2, 3"]),
        (workers(6), [tuple(map(gpu, range(6)))], ["GPUs: worker-0: 0; worker-1: 1; worker-2: 2; worker-3: 3; …"]),
        (
            workers(3),
            [FOUR],
            ["GPUs: worker-0: 0; worker-1: 1; worker-2: 2"],
        ),
        (
            workers(3),
            [TWO],
            [
                "worker-0..2 on a: no GPU, because there are too few for all tasks (GPUs 0, 1);"
                " gpus: 1 with share_gpus: true lets them share"
            ],
        ),
        (workers(1, logical_gpus=[1, 1]), [()], ["worker-0 on a: logical_gpus has no effect, as the host has no GPU"]),
        (workers(1, memory_growth=True, memory_limit_mb=None), [()], []),
    ],
)
def test_what_orch_decided_is_said(document: dict[str, Any], gpus: list[tuple[Gpu, ...]], expected: list[str]) -> None:
    assert notes(document, *gpus) == expected


OTHER = "; --threads N sets another number"


@pytest.mark.parametrize(
    ("document", "hosts", "expected"),
    [
        (workers(1), 1, ()),
        (workers(2), 2, ()),
        (
            workers(2),
            1,
            (f"compute threads: 2 for each task (4 cores, 2 tasks){OTHER}",),
        ),
        (
            {"tasks": {"worker": 1, "data_worker": 1}},
            1,
            (f"compute threads: 2 for each task (4 cores, 2 tasks){OTHER}",),
        ),
        (
            workers(8),
            1,
            (f"compute threads: 1 for each task (4 cores, 8 tasks){OTHER}",),
        ),
        (
            workers(3, threads={"inter": 1}),
            1,
            (f"compute threads: 1 for each task (4 cores, 3 tasks){OTHER}",),
        ),
        (workers(3, threads={"intra": 1}), 1, ()),
        (
            workers(5),
            2,
            (f"compute threads: 2 for each task (4 cores, 2 tasks) or 1 for each task (4 cores, 3 tasks){OTHER}",),
        ),
    ],
)
def test_the_threads_are_said_in_one_line(document: dict[str, Any], hosts: int, expected: tuple[str, ...]) -> None:
    assert planned(document, *[()] * hosts).notes == expected


@pytest.mark.parametrize(("strategy", "cpus", "is_said"), [("multi_worker_mirrored", 3, True), ("mirrored", 3, False), ("none", 3, False)])
def test_logical_cpus_without_an_effect_are_said(strategy: str, cpus: int, is_said: bool) -> None:
    found = notes({**workers(1, cpus=cpus), "strategy": strategy}, ())
    assert [note.partition(":")[0] for note in found] == ["devices.cpus"] * is_said
    assert not is_said or "on the first of the 3 logical CPU devices" in found[0]
    assert notes({**workers(1, cpus=1), "strategy": strategy}, ()) == []


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


# --- other runs ---------------------------------------------------------------------------------


def beside(document: dict[str, Any], gpus: tuple[Gpu, ...], *taken: GpuHolder) -> Plan:
    """The plan of a cluster on host ``a``, where other runs have GPUs."""
    spec = parse(wrap({"script": "s", **document}, "here"), workdir="/w")
    placement = plan.place(spec, {"a": None})
    return plan.make("r", spec, placement, [HostFacts("a", "a", 4, tuple(range(len(placement["a"]))), gpus=gpus, taken=taken)])


def holder(index: int, *, shares: bool = False, run: str = "other") -> GpuHolder:
    return GpuHolder(gpu(index).uuid, run, 70 + index, shares)


@pytest.mark.parametrize(
    ("document", "taken", "expected", "note"),
    [
        (workers(1), [holder(0)], ["1"], "host a: run other (process 70) has GPU 0; this run divides the other GPUs"),
        (workers(1, gpus=1), [holder(0)], ["1"], ""),
        (workers(1, gpus=[1]), [holder(0)], ["1"], ""),
        (
            workers(2),
            [holder(0)],
            ["-1", "-1"],
            "host a: run other (process 70) has GPU 0; this run divides the other GPUs\n"
            "worker-0..1 on a: no GPU, because there are too few for all tasks (GPUs 0, 1);"
            " gpus: 1 with share_gpus: true lets them share",
        ),
        (workers(1, gpus=1, share_gpus=True), [holder(0, shares=True)], ["1"], ""),
        (workers(2, gpus=1, share_gpus=True), [holder(0, shares=True)], ["1", "0"], ""),
        (workers(1, gpus=[0], share_gpus=True), [holder(0, shares=True)], ["0"], ""),
        (
            workers(3, share_gpus=True),
            [holder(0)],
            ["1", "1", "1"],
            "host a: run other (process 70) has GPU 0; this run divides the other GPUs",
        ),
        (workers(1, gpus=0), [holder(0)], ["-1"], ""),
        (workers(1), [GpuHolder("GPU-hidden", "other", 7)], ["0,1"], ""),
    ],
)
def test_what_another_run_has_is_not_given_again(document: dict[str, Any], taken: list[GpuHolder], expected: list[str], note: str) -> None:
    found = beside(document, TWO, *taken)
    given = [task.order.env["CUDA_VISIBLE_DEVICES"] for task in found.tasks]
    assert [",".join(part if part == "-1" else part[-1] for part in text.split(",")) for text in given] == expected
    said = [line for line in found.notes if not line.startswith(("compute threads:", "GPUs:"))]
    assert "\n".join(said) == note


@pytest.mark.parametrize(
    ("document", "taken", "expected"),
    [
        (workers(1, gpus=2), [holder(0)], f"worker-0 asks for 2 GPUs; host a has GPUs 0, 1; run other (process 70) has GPU 0: {WAYS}"),
        (workers(1, gpus=[1]), [holder(1)], f"worker-0 asks for GPU 1; host a has GPUs 0, 1; run other (process 71) has GPU 1: {WAYS}"),
        (
            workers(1, gpus=[0], share_gpus=True),
            [holder(0), holder(0, run="third", shares=True)],
            f"worker-0 asks for GPU 0; host a has GPUs 0, 1; run other (process 70) has GPU 0, run third (process 70) has GPU 0: {WAYS}",
        ),
        (
            workers(1, gpus=1),
            [holder(0, shares=True), holder(1, run="third")],
            "worker-0 asks for 1 GPU; host a has GPUs 0, 1; run other (process 70) has GPU 0, run third (process 71) has GPU 1: " + WAYS,
        ),
    ],
)
def test_who_has_the_gpus_that_are_asked_for_is_said(document: dict[str, Any], taken: list[GpuHolder], expected: str) -> None:
    with pytest.raises(OrchError) as caught:
        beside(document, TWO, *taken)
    assert (str(caught.value), caught.value.exit_code) == (expected, 125)  # the spec is right, and the same command may succeed later


def test_gpus_that_are_not_there_are_the_specs_fault_whoever_has_the_others() -> None:
    with pytest.raises(SpecError, match=r"^worker-0 asks for 3 GPUs; host a has GPUs 0, 1$"):
        beside(workers(1, gpus=3), TWO, holder(0))


def test_a_run_claims_what_it_gives_to_its_tasks() -> None:
    document = workers(3, overrides(_0={"gpus": [0]}, _1={"gpus": [2], "share_gpus": True}, _2={"gpus": [2], "share_gpus": True}))
    assert beside(document, FOUR).claims == {"a": TakeGpus(("GPU-000",), ("GPU-222",))}
    assert beside(workers(1, gpus=0), FOUR).claims == {}
    assert beside(workers(1), ()).claims == {}
