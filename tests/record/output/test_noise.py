"""Which lines count as TensorFlow's noise. The files in noise/ are what real tasks printed."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.record.text.noise import Noise

SAMPLES = Path(__file__).parent / "noise"
ONLY_NOISE = sorted(path.name for path in SAMPLES.glob("*.log") if path.name != "tf2.21-parameter-server-chief-0-info.log")


def lines_of(name: str) -> list[str]:
    return (SAMPLES / name).read_text().splitlines()


@pytest.mark.parametrize("name", ONLY_NOISE)
def test_a_real_start_is_noise_from_end_to_end(name: str) -> None:
    lines = lines_of(name)
    assert lines
    shown = Noise().fold(lines)
    assert [line for line in shown if not line.startswith("INFO:tensorflow:") and ".py:" not in line] == [], "these it has asked for"


@pytest.mark.parametrize(
    "line",
    [
        # a C++ line of level INFO is noise, whoever wrote it
        "I0000 00:00:1795231330.190410    3957 my_op.cc:12] 64 rows failed",
        "2024-05-01 12:00:00.1: I tensorflow/core/framework/local_rendezvous.cc:404] Local rendezvous is aborting with status: "
        "UNAVAILABLE: Connection reset by peer",
        "I0000 00:00:1795323496.523227    3602 local_rendezvous.cc:432] Local rendezvous recv item cancelled. Key hash: 6201617395",
        "2024-10-30 15:24:48.302198: I tensorflow/core/util/port.cc:153] oneDNN custom operations are on. You may see slightly different "
        "numerical results due to floating-point round-off errors from different computation orders. To turn them off, set the "
        "environment variable `TF_ENABLE_ONEDNN_OPTS=0`.",
        "I0000 00:00:1739936883.011491  576052 cuda_dnn.cc:529] Loaded cuDNN version 90300",
        "W0000 00:00:1795796814.816603   31438 op_kernel.cc:1858] OP_REQUIRES failed at sparse_xent_op.cc:103 : INVALID_ARGUMENT: A",
        "W0000 00:00:1.8   31438 local_rendezvous.cc:412] Local rendezvous is aborting with status: INVALID_ARGUMENT: Received a label",
        "W0000 00:00:1795819000.123456   26255 loop_optimizer.cc:934] Skipping loop optimization for Merge node with control input: cond_1/"
        "branch_executed/_22",
        "E0000 00:00:1795767031.187486   21915 util.cc:131] oneDNN supports DT_HALF only on platforms with AVX-512. Falling back to the "
        "default Eigen-based implementation if present.",
    ],
)
def test_lines_of_other_builds_and_hosts(line: str) -> None:
    assert Noise().hides(line)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "I am worker 0",
        "Epoch 1/10",
        "INFO:root:started",
        # of these, a script gets only what it asks for
        "INFO:tensorflow:Cluster is ready.",
        "I1121 03:33:01.595343 140549862341504 mirrored_strategy.py:423] Using MirroredStrategy with devices ('/job:worker/task:1',)",
        "WARNING:tensorflow:Using MirroredStrategy with devices ()",
        "WARNING: All log messages",
        "To enable the following instructions: read the manual",
        "2024-05-01 12:00:00,123 INFO Started server with target: grpc://h:1",
        "2024-05-01 12:00:00.123456: I started",
        "I0501 12:00:00.123456 140123 train.py:12] step 3",
        "W0501 12:00:00.123456 140123 mirrored_strategy.py:423] Using MirroredStrategy with devices ()",
        # a user's own operation, in C++, with absl's log
        "W0000 00:00:1795231330.190410    3957 my_op.cc:12] 64 rows",
        "E0000 00:00:1795232163.129503    8182 cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA error: Failed call to cuInit: "
        "CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected",
        "W0000 00:00:1795232163.129503    8182 gpu_device.cc:2342] Cannot dlopen some GPU libraries.",
        "F0000 00:00:1795232163.129503    8182 tensor.cc:1] Check failed: dtype() == expected_dtype (1 vs. 9)",
    ],
)
def test_everything_else_is_shown(line: str) -> None:
    assert not Noise().hides(line)


PLACEMENT_SAMPLES = SAMPLES.parents[2] / "insight" / "placement" / "logs"
WHERE = "/job:localhost/replica:0/task:0/device:CPU:0"


@pytest.mark.parametrize("path", sorted(PLACEMENT_SAMPLES.iterdir()), ids=lambda path: path.name)
def test_lines_that_say_where_operations_ran_are_folded(path: Path) -> None:
    lines = [line for line in path.read_text().splitlines() if "task:0/device:CPU" in line and "specification" not in line]
    assert Noise().fold(lines) == []


@pytest.mark.parametrize(
    "line",
    [
        f"my data is: (here): {WHERE}",
        f"a: (Add): {WHERE} and more",
        f"a: (Add): {WHERE[:-6]}",
        f"Executing op Add in device {WHERE}",
        f"W0000 00:00:1.1  1 execute.cc:1775] Executing op Add in device {WHERE}",
        f"I0501 12:00:00.123456 140123 train.py:12] Executing op Add in device {WHERE}",
    ],
)
def test_a_line_that_only_looks_like_a_placement_is_shown(line: str) -> None:
    noise = Noise()
    assert not noise.hides(line)
    assert noise.fold([line]) == [line]


@pytest.mark.parametrize("name", ONLY_NOISE)
def test_the_same_line_at_level_fatal_is_shown(name: str) -> None:
    raised = [line.replace(": I ", ": F ", 1) if ": I " in line[:40] else "F" + line[1:] for line in lines_of(name) if is_info(line)]
    assert Noise().fold(raised) == raised


def is_info(line: str) -> bool:
    return line.startswith("I0000 ") or ": I " in line[:40]


def test_a_dump_ends_at_the_empty_line_or_where_its_shape_ends() -> None:
    start = "I0000 00:00:1795231353.262034    4843 eager_service_impl.cc:355] SessionOptions: goo.gle/debugproto  "
    dump = [start, "device_count {", '  key: "CPU"', "  value: 1", "}", "allow_soft_placement: true"]
    assert Noise().fold([*dump, "", "loss: 0.5"]) == ["loss: 0.5"]
    assert Noise().fold([*dump, "Epoch 1/3", "loss: 0.5", "}"]) == ["Epoch 1/3", "loss: 0.5", "}"]


def test_of_a_graph_that_cannot_be_sharded_the_error_is_shown_and_the_dump_is_not() -> None:
    shown = Noise().fold(lines_of("tf2.21-auto-shard-fails.txt"))
    assert len(lines_of("tf2.21-auto-shard-fails.txt")) == 334
    assert [line.partition("] ")[2][:70].strip() for line in shown if line[0] in "EW"] == [
        "tf_auto_shard failed: NOT_FOUND: Found an unshardable source dataset:",
        *["OP_REQUIRES failed at auto_shard_dataset_op.cc:76 : NOT_FOUND: Found a", ABORTING] * 2,
        "OP_REQUIRES failed at auto_shard_dataset_op.cc:76 : NOT_FOUND: Found a",
    ]
    assert [line for line in shown if line[0] not in "EW"] == []


ABORTING = "Local rendezvous is aborting with status: NOT_FOUND: Found an unshardab"[:70]
LOST = ("tf2.18-leader-has-left.txt", "tf2.21-leader-has-left.txt", "tf2.21-peer-failed.txt", "tf2.21-peer-ended.txt")


@pytest.mark.parametrize("name", LOST)
def test_a_lost_connection_is_noise(name: str) -> None:
    lines = lines_of(name)
    news, own = lines[: start_of_traceback(lines)], lines[start_of_traceback(lines) :]
    told = [line for line in news if line[0] == "E" or ": E " in line or "rendezvous" in line]
    assert told
    shown = [line for line in Noise().fold(lines) if "Warning: " not in line and not line.startswith("  self.data_adapter")]
    assert shown == own, "its own traceback is shown"
    assert set(told) <= set(Noise(shows_losses=True).fold(lines)), "the report shows them"


def start_of_traceback(lines: list[str]) -> int:
    return next((at for at, line in enumerate(lines) if line.startswith("Traceback ")), len(lines))


@pytest.mark.parametrize("name", ["tf2.21-coordinator-end-of-data.txt", "tf2.21-coordinator-end-of-data-stack.txt"])
def test_what_a_coordinator_says_at_the_end_of_a_dataset_is_noise_and_nothing_else(name: str) -> None:
    lines = lines_of(name)
    assert Noise().fold([*lines, "", "the next epoch"]) == ["", "the next epoch"]
    other = [line.replace("OutOfRangeError", "InvalidArgumentError") for line in lines if line.startswith("ERROR")]
    told = [line for line in other if "InvalidArgument" in line]
    assert len(told) >= 2
    assert Noise().fold(told) == told


def test_a_lost_connection_at_level_fatal_is_shown() -> None:
    line = next(line for line in lines_of(LOST[1]) if "Failed to send RPC" in line)
    assert Noise().fold([line, f"F{line[1:]}"]) == [f"F{line[1:]}"]


WARNED = [
    "/home/me/.venv/lib/python3.11/site-packages/keras/src/trainers/epoch_iterator.py:74: UserWarning: `shuffle=True` was passed",
    "  self.data_adapter = data_adapters.get_data_adapter(",
]


def test_the_address_of_an_object_makes_no_other_warning() -> None:
    shared: set[str] = set()
    retraced = "WARNING:tensorflow:5 out of the last 6 calls to <function f at 0x7f63d3ec0680> triggered tf.function retracing."
    by_keras = "WARNING:absl:You are saving your model as an HDF5 file via `model.save()`"
    assert Noise(shared).fold([retraced, by_keras]) == [retraced, by_keras]
    assert Noise(shared).fold([by_keras]) == []
    assert Noise(shared).fold([retraced.replace("63d3ec0680", "12eb8a0680")]) == []
    assert Noise(shared).fold([retraced.replace("5 out", "6 out")]) != []


def test_a_package_s_warning_is_shown_once_for_all_tasks_and_the_program_s_own_each_time() -> None:
    shared: set[str] = set()
    first, second = (Noise(shared) for _ in range(2))
    assert first.fold([*WARNED, "Epoch 1"]) == [*WARNED, "Epoch 1"]
    assert second.fold([*WARNED, "  indented", "Epoch 1"]) == ["  indented", "Epoch 1"]
    assert second.fold([WARNED[0], "Epoch 1"]) == ["Epoch 1"]
    assert Noise().fold(WARNED) == WARNED, "another run"
    own = ["/home/me/train.py:12: UserWarning: 3 labels are missing", "  warnings.warn('3 labels are missing')"]
    assert first.fold(own) + second.fold(own) == own * 2


def test_memory_that_did_not_suffice_is_told_by_the_exception_alone() -> None:
    lines = lines_of("tf2.21-out-of-memory.txt")
    shown = Noise().fold(lines)
    assert shown == lines[lines.index("Traceback (most recent call last):") :]
    assert len(lines) - len(shown) > 40
    assert "ran out of memory trying to allocate 256.00TiB" in Noise(shows_losses=True).fold(lines)[0], "the report shows it"
    hint = (
        "W0000 00:00:1.1  1 bfc_allocator.cc:306] Allocator (GPU_0_bfc) ran out of memory trying to allocate 2.2GiB. The caller indicates "
    )
    assert Noise().fold([f"{hint}that this is not a failure, but performance may suffer"]) != []


@pytest.mark.parametrize(
    "message",
    [
        # the end of a run on a slow machine: coordination_service.cc, as in tests/model/cause/lost_peers.json
        (
            "E0000 00:00:1795231330.273643    4081 coordination_service.cc:1401] UNAVAILABLE: The following tasks are unhealthy (stopped "
            "sending heartbeats):",
            "/job:worker/replica:0/task:1",
            "The tasks have crashed. Check the task logs for an earlier error, or scheduler events (e.g. preemption, eviction) to debug "
            "further. [type.googleapis.com/tensorflow.CoordinationServiceError='']",
        ),
        (
            "E0000 00:00:1795231330.273643    4081 coordination_service.cc:1310] Shutdown barrier in coordination service has failed:",
            "DEADLINE_EXCEEDED: Barrier timed out. Id: Shutdown::1::0. This usually happens because a task triggered the barrier too early",
            "# of tasks that reached the barrier: 1/2.",
            "The first task at the barrier: /job:worker/replica:0/task:0. Some timed out task names:",
            "/job:worker/replica:0/task:1",
            "",
            "This suggests that the workers are out of sync. Either at least one worker (a) crashed early due to program error",
        ),
        # fit of Keras 2 under parameter servers: type_inference.cc
        (
            "W0000 00:00:1795231330.273643    4081 type_inference.cc:340] Type inference failed. This indicates an invalid graph that "
            "escaped type checking. Error message: INVALID_ARGUMENT: expected compatible input types, but input 1:",
            "type_id: TFT_OPTIONAL",
            "args {",
            "  type_id: TFT_PRODUCT",
            "}",
            " is neither a subtype nor a supertype of the combined inputs preceding it:",
            "type_id: TFT_OPTIONAL",
            "",
            "\tfor Tuple type infernce function 0",
            "\twhile inferring type of node 'cond_36/output/_18'",
        ),
    ],
)
def test_a_message_of_several_lines_is_folded_as_a_whole(message: tuple[str, ...]) -> None:
    assert Noise().fold([*message, "loss: 0.5"]) == ["loss: 0.5"]
    assert Noise().fold([*message[1:], "loss: 0.5"]) == [*message[1:], "loss: 0.5"], "without the head, the lines are the program's"


def test_a_warning_of_tensorflow_s_logger_is_shown_once_for_all_tasks() -> None:
    warning = [
        "WARNING:tensorflow:AutoGraph could not transform <function f at 0x7f> and will run it as-is.",
        "Cause: mangled names are not yet supported",
        "To silence this warning, decorate the function with @tf.autograph.experimental.do_not_convert",
    ]
    shared: set[str] = set()
    first, second = (Noise(shared) for _ in range(2))
    assert first.fold([*warning, "step 1"]) == [*warning, "step 1"]
    assert second.fold([*warning, "step 1", "Cause: mine"]) == ["step 1", "Cause: mine"]


def test_a_list_of_stragglers_ends_with_the_first_other_line() -> None:
    noise = Noise()
    start = "I0000 00:00:1795231330.273643    4081 coordination_service.cc:505] Example stragglers:"
    assert noise.fold([start]) == []
    assert noise.fold(["/job:worker/replica:0/task:1", "hello", "/job:worker/replica:0/task:2"]) == [
        "hello",
        "/job:worker/replica:0/task:2",
    ]


def test_lines_without_noise_are_passed_through_as_they_are() -> None:
    lines = ["Epoch 1/3", "W is for weights", "step 1"]
    assert Noise().fold(lines) is lines


MIXED = [line for name in ONLY_NOISE for line in lines_of(name)] + [
    "step 1",
    "Epoch 1",
    "",
    "}",
    "loss: 0.5",
    "/job:worker/replica:0/task:1",
    f"a/b: (Add): {WHERE}",
]


@settings(deadline=None)
@given(st.lists(st.sampled_from(MIXED), max_size=40), st.lists(st.integers(0, 40)))
def test_what_is_folded_does_not_depend_on_how_the_lines_arrive(lines: list[str], cuts: list[int]) -> None:
    whole = Noise()
    one_by_one = [line for line in lines if not whole.hides(line)]
    pieces = Noise()
    bounds = [0, *sorted(min(cut, len(lines)) for cut in cuts), len(lines)]
    assert [line for a, b in pairwise(bounds) for line in pieces.fold(lines[a:b])] == one_by_one


@settings(deadline=None)
@given(st.lists(st.text(st.characters(exclude_characters="\n"), max_size=30)))
def test_a_user_s_text_is_never_folded(lines: list[str]) -> None:
    assert Noise().fold(lines) == lines


def test_a_view_may_hide_all_warnings_of_the_runtime_and_no_error() -> None:
    """As TensorFlow does by itself at the level at which the tests of users run."""
    warning = "W0000 00:00:1795231330.190410    3957 something.cc:221] news"
    lines = [warning, warning.replace("W0000", "E0000"), "WARNING:tensorflow:5 out of the last 5 calls", "mine"]
    assert Noise(hides_warnings=True).fold(lines) == lines[1:]
    assert Noise().fold(lines) == lines


@pytest.mark.parametrize("part", ["/a/site-packages/x.py:1: UserW", "/a/site-packages/x.py", "\t [[", "W0000 ", "  File ", "): /job:"])
def test_the_time_of_a_line_is_in_proportion_to_its_length(part: str) -> None:
    def seconds(size: int) -> float:
        line, began = part * (size // len(part)), time.thread_time()
        Noise().fold([line])
        return time.thread_time() - began

    # Sixteen times as long a line takes sixteen times as long; 256 times, if each letter is tried with all that follow.
    assert min(seconds(1 << 16) for _ in range(3)) < 80 * max(min(seconds(1 << 12) for _ in range(3)), 1e-4)
