"""Which lines count as TensorFlow's noise. The files in noise/ are what real tasks printed."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.record.text.noise import Noise
from tests import golden

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


@golden.cases("folded.txt")
def test_what_is_folded(case: golden.Case) -> None:
    """A line of level INFO of C++ is noise, whoever has written it; of an operation of a user, another level is shown."""
    case.check("\n".join(Noise().fold(case.given.split("\n"))))


PLACEMENT_SAMPLES = SAMPLES.parents[2] / "insight" / "placement" / "logs"
WHERE = "/job:localhost/replica:0/task:0/device:CPU:0"


@pytest.mark.parametrize("path", sorted(PLACEMENT_SAMPLES.iterdir()), ids=lambda path: path.name)
def test_lines_that_say_where_operations_ran_are_folded(path: Path) -> None:
    lines = [line for line in path.read_text().splitlines() if "task:0/device:CPU" in line and "specification" not in line]
    assert Noise().fold(lines) == []


@pytest.mark.parametrize("name", ONLY_NOISE)
def test_the_same_line_at_level_fatal_is_shown(name: str) -> None:
    raised = [line.replace(": I ", ": F ", 1) if ": I " in line[:40] else "F" + line[1:] for line in lines_of(name) if is_info(line)]
    assert Noise().fold(raised) == raised


def is_info(line: str) -> bool:
    return line.startswith("I0000 ") or ": I " in line[:40]


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


@given(st.lists(st.sampled_from(MIXED), max_size=40), st.lists(st.integers(0, 40)))
def test_what_is_folded_does_not_depend_on_how_the_lines_arrive(lines: list[str], cuts: list[int]) -> None:
    whole = Noise()
    one_by_one = [line for line in lines if not whole.hides(line)]
    pieces = Noise()
    bounds = [0, *sorted(min(cut, len(lines)) for cut in cuts), len(lines)]
    assert [line for a, b in pairwise(bounds) for line in pieces.fold(lines[a:b])] == one_by_one


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
