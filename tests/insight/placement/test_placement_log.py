"""Placement logs counted. The files in logs/ are what TensorFlow 2.21 wrote, in programs whose placements are known."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.views import placement_log, run_placement
from orchestrator.views.cross_device_reads import VariableRead
from orchestrator.views.placement_log import OperationCount, TaskPlacement, scan, summarise

LOGS = Path(__file__).parent / "logs"
LOCAL = "/job:localhost/replica:0/task:0/device:"


def of(task: str, stderr: str = "", stdout: str = "") -> TaskPlacement:
    return summarise(task, *(scan(text.encode().splitlines(keepends=True)) for text in (stderr, stdout)))


def sample(name: str, task: str = "worker-0") -> TaskPlacement:
    streams = [LOGS / f"tf2.21-{name}.{stream}.log" for stream in ("stderr", "stdout")]
    return of(task, *(path.read_text() if path.exists() else "" for path in streams))


def executed(op: str, device: str) -> str:
    return f"I0000 00:00:1795242878.089568   23814 execute.cc:1775] Executing op {op} in device {LOCAL}{device}\n"


def nodes(*placed: tuple[str, str, str]) -> str:
    return "".join(f"{name}: ({op}): {LOCAL}{device}\n" for name, op, device in placed)


# --- counts -------------------------------------------------------------------------------------


def test_the_lines_of_a_real_process_are_counted_by_op_and_device() -> None:
    counts = sample("two-cpus").counts
    assert counts["MatMul", "CPU:0"] == OperationCount(executed=4, placed=4), "each node is logged on both streams and counted once"
    assert counts["MatMul", "CPU:1"] == OperationCount(executed=1, placed=2)
    assert counts["VarHandleOp", "CPU:1"] == OperationCount(executed=1, placed=1)
    assert counts["f()", "CPU:0"] == OperationCount(executed=2), "a function's name without TensorFlow's number"


def test_an_op_that_one_dnn_replaces_on_some_processors_is_the_same_op() -> None:
    """What TensorFlow 2.21 writes for the same program with AVX2 and with AVX-512."""
    plain = executed("MatMul", "CPU:0") * 2 + executed("Conv2D", "CPU:0")
    plain_nodes = nodes(("MatMul", "MatMul", "CPU:0"), ("Conv2D", "Conv2D", "CPU:0"))
    fast = executed("_MklMatMul", "CPU:0") * 2 + executed("_MklNativeConv2D", "CPU:0")
    fast_nodes = plain_nodes + nodes(("_MklMatMul", "_MklMatMul", "CPU:0"), ("_MklNativeConv2D", "_MklNativeConv2D", "CPU:0"))
    counts = of("worker-0", fast, fast_nodes).counts
    assert counts == of("worker-0", plain, plain_nodes).counts
    assert counts == {("MatMul", "CPU:0"): OperationCount(executed=2, placed=1), ("Conv2D", "CPU:0"): OperationCount(executed=1, placed=1)}
    assert of("worker-0", executed("_Mkldnn", "CPU:0")).counts.keys() == {("_Mkldnn", "CPU:0")}, "a name of somebody else's"


def test_a_name_in_a_log_does_not_command_the_terminal() -> None:
    bad = "\x1b[2J\x1b]0;title\x07"
    read = VariableRead(f"node{bad}", "ReadVariableOp", "CPU:0", "GPU:0", "scope")
    found = replace(of("worker-0", executed(f"Mat{bad}Mul", "CPU:0") + executed("Add", "GPU:0")), reads={read: 1})
    text = "\n".join(run_placement.to_text([found]))
    assert "MatMul" in text
    assert "in node on" in text
    assert not [char for char in text if char != "\n" and not char.isprintable()]


def test_work_that_is_sent_to_another_task_has_its_device() -> None:
    chief, worker, server = sample("ps-chief-0", "chief-0"), sample("ps-worker-0"), sample("ps-ps-0", "ps-0")
    assert chief.counts["VarHandleOp", "ps-0 CPU:0"] == OperationCount(executed=1)
    assert server.counts["VarHandleOp", "CPU:0"] == OperationCount(executed=1)
    assert chief.counts["step()", "worker-0 CPU:0"] == OperationCount(executed=3)
    assert worker.counts["step()", "CPU:0"] == OperationCount(executed=3)
    assert server.counts["step()", "CPU:0"] == OperationCount(executed=3), "its part of the function, cut out by TensorFlow"


@pytest.mark.parametrize(
    "line",
    [
        f"2024-05-01 12:00:00.123456: I tensorflow/core/common_runtime/eager/execute.cc:1754] Executing op Add in device {LOCAL}CPU:0",
        f"2024-05-01 12:00:00.123456: I tensorflow/core/common_runtime/placer.cc:114] a/b: (Add): {LOCAL}CPU:0",
        f"a/b_1: (Add): {LOCAL}CPU:0",
    ],
)
def test_the_shapes_of_other_versions(line: str) -> None:
    assert of("worker-0", line).counts.keys() == {("Add", "CPU:0")}


@pytest.mark.parametrize(
    "line",
    [
        "loss: 0.5",
        f"I saw {LOCAL}CPU:0",
        f"my device: (is): not {LOCAL}CPU:0",
        f"] Executing op in device {LOCAL}CPU:0",
        "a: (Add): /job:mine",
        "\x00\xff",
    ],
)
def test_other_lines_are_not_counted(line: str) -> None:
    assert of("worker-0", line, line).counts == {}


@pytest.mark.parametrize(
    ("name", "task", "short"),
    [
        ("CPU:0", "", "CPU:0"),
        ("cpu:1", "", "CPU:1"),
        ("/GPU:0", "", "GPU:0"),
        ("/gpu:0", "worker-1", "GPU:0"),
        ("/device:CPU:1", "", "CPU:1"),
        ("/job:localhost/replica:0/task:0/device:GPU:1", "worker-3", "GPU:1"),
        ("/job:worker/replica:0/task:1/device:GPU:0", "worker-1", "GPU:0"),
        ("/job:ps/replica:0/task:0/device:CPU:0", "worker-1", "ps-0 CPU:0"),
        ("/job:worker/task:12/device:TPU:3", "chief-0", "worker-12 TPU:3"),
        ("no name", "", "no name"),
    ],
)
def test_a_name_is_as_short_as_it_can_be(name: str, task: str, short: str) -> None:
    assert placement_log.shorten(name, task) == short


def test_graphs_are_counted_where_stderr_is_silenced_and_that_is_noted() -> None:
    quiet = of("worker-0", "", nodes(("a", "Add", "CPU:0")))
    assert (quiet.counts, quiet.is_muted) == ({("Add", "CPU:0"): OperationCount(placed=1)}, True)
    assert not of("worker-0", executed("Add", "CPU:0"), nodes(("a", "Add", "CPU:0"))).is_muted
    assert not of("worker-0").is_muted


def test_more_different_lines_than_are_remembered_are_all_counted() -> None:
    number = placement_log.MAX_KNOWN + 10
    lines = nodes(*((f"n{index}", "Add", "CPU:0") for index in range(number)))
    assert of("worker-0", "", lines + lines).counts == {("Add", "CPU:0"): OperationCount(placed=2 * number)}


# --- what deserves a look -----------------------------------------------------------------------


def test_an_op_on_the_cpu_is_a_fall_back_only_if_the_task_has_a_gpu() -> None:
    lines = executed("Where", "CPU:0") + executed("RangeDataset", "CPU:0") + executed("f()", "CPU:0") + executed("_EagerConst", "CPU:0")
    assert of("worker-0", lines).fallbacks == {}
    created = f"I0000 00:00:1.1  1 gpu_device.cc:2020] Created device {LOCAL}GPU:0 with 79000 MB memory\n"
    assert of("worker-0", created + lines).fallbacks == {("Where", "CPU:0"): OperationCount(executed=1)}
    assert of("worker-0", executed("MatMul", "GPU:0") + lines).fallbacks == {("Where", "CPU:0"): OperationCount(executed=1)}


def reads(*placed: tuple[str, str, str]) -> dict[VariableRead, int]:
    return of("worker-0", "", nodes(*placed)).reads


def test_a_variable_used_elsewhere_is_seen_by_the_names_of_a_real_graph() -> None:
    assert sample("two-cpus").reads == {
        VariableRead("mm", "MatMul", "CPU:0", "CPU:1", "name"): 1,
        VariableRead("mm1", "MatMul", "CPU:1", "CPU:0", "name"): 1,
    }
    assert sample("ps-worker-0").reads == {VariableRead("mm", "MatMul", "CPU:0", "ps-0 CPU:0", "name"): 1}


ARGUMENT = ("resource", "_Arg", "CPU:1")


def test_a_read_whose_own_node_is_gone_is_compared_with_its_layer_and_called_likely() -> None:
    read = ("net/first/Cast/ReadVariableOp", "ReadVariableOp", "CPU:1")
    assert reads(ARGUMENT, read, ("net/first/MatMul", "MatMul", "CPU:0")) == {
        VariableRead("net/first", "MatMul", "CPU:0", "CPU:1", "scope"): 1
    }
    assert reads(ARGUMENT, read, ("net/first/MatMul", "MatMul", "CPU:1"), ("net/second/MatMul", "MatMul", "CPU:0")) == {}
    assert reads(ARGUMENT, read, ("net/first/Const", "Const", "CPU:0")) == {}


@pytest.mark.parametrize(
    "placed",
    [
        [("mm/ReadVariableOp", "ReadVariableOp", "CPU:1"), ("mm", "MatMul", "CPU:1")],
        # An op of another graph that has the same name
        [("mm/ReadVariableOp", "ReadVariableOp", "CPU:1"), ("mm", "MatMul", "CPU:1"), ARGUMENT, ("mm", "MatMul", "CPU:0")],
        [("mm/ReadVariableOp", "ReadVariableOp", "CPU:1"), ARGUMENT, ("mm", "MatMul", "CPU:0")],
        # Reads without a scope of their own say nothing about who uses them.
        [("ReadVariableOp", "ReadVariableOp", "CPU:1"), ("MatMul", "MatMul", "CPU:0")],
        [("Cast/ReadVariableOp", "ReadVariableOp", "CPU:1"), ("MatMul", "MatMul", "CPU:0")],
    ],
)
def test_nothing_is_claimed_that_the_names_do_not_say(placed: list[tuple[str, str, str]]) -> None:
    assert reads(ARGUMENT, *placed) == {}


# --- told ---------------------------------------------------------------------------------------


def text(*found: TaskPlacement, everything: bool = True) -> str:
    return "\n".join(run_placement.to_text(found, everything=everything))


def test_tasks_that_did_the_same_share_a_line_and_the_most_frequent_comes_first() -> None:
    three = [of(f"worker-{index}", executed("MatMul", "CPU:0") * 3 + executed("Add", "CPU:0")) for index in range(3)]
    other = of("worker-3", executed("Add", "CPU:0") * 2)
    lines = text(*three, other).splitlines()
    assert lines[:4] == [
        "OPERATION  DEVICE  RUN  PLACED  TASKS",
        "MatMul     CPU:0     3       -  worker-0..2",
        "Add        CPU:0     2       -  worker-3",
        "Add        CPU:0     1       -  worker-0..2",
    ]


def test_the_text_fits_into_80_columns_and_hides_what_every_graph_is_full_of() -> None:
    found = text(sample("two-cpus"), everything=False)
    assert max(map(len, found.splitlines())) <= 80
    assert "_Arg" not in found
    assert "not shown: 49 of what every graph is full of" in found
    assert "_Arg" in text(sample("two-cpus"))


@pytest.mark.parametrize(("pattern", "ops"), [("matmul", {"MatMul"}), ("*variable*", {"AssignVariableOp", "ReadVariableOp"}), ("x", set())])
def test_rows_are_filtered_by_op(pattern: str, ops: set[str]) -> None:
    found = run_placement.with_ops(sample("two-cpus"), (pattern,))
    assert {op for op, _ in found.counts} == ops
    assert {read.op for read in found.reads} <= ops


def test_programs_get_every_finding_as_json() -> None:
    placed = [sample("two-cpus"), sample("ps-worker-0", "worker-1")]
    found = json.loads(json.dumps(run_placement.to_json("r", {"worker-0": 1, "worker-1": 3}, placed)))
    assert found["attempt"] == 3
    assert {"task": "worker-0", "op": "MatMul", "device": "CPU:1", "executed": 1, "placed": 2} in found["operations"]
    assert found["variable_reads"][0]["variable_device"] == "CPU:1"
