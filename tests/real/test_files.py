"""`worker.files` in two workers of a real cluster, and the code samples of TensorFlow's guide to distributed input."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, Orch
from tests.real.guides import DONE, SAMPLES

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(400), pytest.mark.usefixtures("warm_tensorflow")]

PROGRAM = ROOT / "tests" / "programs" / "files_api.py"


def flat(batches: list[list[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(batches))


def check_shares(first: dict[str, Any], second: dict[str, Any]) -> None:
    """What two workers got in each case."""
    # Files of 4, 5, 4, 3 and 6 elements: worker 0 has 14, worker 1 has 8, and so many does each of them take.
    assert [len(batch) for batch in first["by file"]] == [len(batch) for batch in second["by file"]] == [2] * 4
    assert not {*flat(first["by file"])} & {*flat(second["by file"])}
    assert sorted(flat(second["by file"])) == [4, 5, 6, 7, 8, 13, 14, 15]
    assert [len(batch) for batch in first["whole batches"]] == [len(batch) for batch in second["whole batches"]] == [3] * 4
    assert first["by data"] == [[0, 2], [4, 6], [8, 10]]
    assert second["by data"] == [[1, 3], [5, 7], [9, 11]]
    assert first["shuffled, by data"] != second["shuffled, by data"]
    for epoch in (slice(0, 6), slice(6, 12)):  # one of worker 0's seven is left out, another one each time
        drawn = flat(first["shuffled, by data"])[epoch]
        assert len({*drawn} & {*range(0, 13, 2)}) == 6
        assert sorted(flat(second["shuffled, by data"])[epoch]) == [1, 3, 5, 7, 9, 11]
    assert first["off"] == second["off"] == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11], [12]]
    assert sorted(flat(first["from function"]) + flat(second["from function"])) == [*range(16)]
    assert len(first["for ever"]) == len(second["for ever"]) == 18
    assert first["for ever, as in tf.data"] == first["for ever"]
    assert first["lines"] == second["lines"] == [1, 2, 3]
    assert sorted(flat(first["reader"])) == [0, 0, 1, 1, 2, 2]
    # Four steps that see every element once: each weight's step is the mean of its elements.
    assert first["fit"] == second["fit"] == [4, pytest.approx(sum(range(16)) / 4)]
    assert first["fit, uneven"] == second["fit, uneven"]
    assert first["fit, uneven"][0] == 8


def check_refusals(found: dict[str, str], directory: Path) -> None:
    assert found["no files"].startswith(f"FileNotFoundError: worker.files: no file fits '{directory}/*.none'")
    assert found["small batch"] == "ValueError: worker.files: a global batch of 1 for 2 replicas: make it 2 or more"
    assert "1 file for 2 workers, and shard is file: worker 1 would get nothing; say data, or make 2 files or more" in found["one file"]
    assert found["cut off"].startswith("ValueError: worker.files: ")
    cut = "broken-worker-0: at byte 221: the file ends inside record 12, which begins at byte 206 and should end at byte 224"
    assert cut in found["cut off"]
    assert "start=1 needs an order that comes again: say seed=" in found["start"]
    assert "is auto, file, data or off here, and not hint" in found["hint"]
    assert "is auto, file, data or off here, and not files" in found["unknown word"]
    assert found["epochs"] == "ValueError: worker.files: repeat=-2: it is the number of epochs; None (or -1): for ever"
    assert found["batches"] == "ValueError: worker.files: start=-1: it is the number of batches that were trained, 0 or more"
    assert f"there is no element in these files: {directory}/empty/" in found["empty files"]
    assert found["an empty file"].endswith("worker 0 would get 0 elements of 4 in an epoch, none: say shard='data'")
    assert found["few elements"].endswith("would get 0 elements of 1 in an epoch, none: write more elements, or take fewer workers")


def check_positions(directory: Path) -> None:
    """Every element once in each epoch, though a worker was killed in the middle of the second one, behind what was saved."""
    lines = {name: (directory / f"{name}.steps").read_text().splitlines() for name in ("worker-0", "worker-1")}
    steps = {name: [json.loads(line) for line in texts] for name, texts in lines.items()}
    assert {step[0] for step in steps["worker-0"]} == {1, 2}
    for name, taken in steps.items():
        assert [step for attempt, step, _ in taken if attempt == 2] == [*range(6, 12)], name
        again = {tuple(batch) for _, step, batch in taken if step == 6}
        assert len(again) == 1, f"{name} got other elements in step 6 when it went on: {again}"
    last = {name: {step: batch for _, step, batch in taken} for name, taken in steps.items()}
    for epoch in range(3):
        of_epoch = [*range(4 * epoch, 4 * epoch + 4)]
        got = [number for batches in last.values() for step in of_epoch for number in batches[step]]
        assert sorted(got) == [*range(24)]
    assert last["worker-0"][0] != last["worker-0"][4], "the epochs have one order"


def test_two_workers_share_files_and_go_on_where_they_were_killed(orch: Orch, tmp_path: Path) -> None:
    done = orch("up", str(PROGRAM), "-n", "2", "--max-restarts", "1", "--", str(tmp_path), timeout=300, check=0)
    assert "worker-1 failed (killed by SIGKILL)" in done.err
    first, second = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("worker-0", "worker-1"))
    check_shares(first, second)
    check_refusals(first, tmp_path)
    check_positions(tmp_path)
    assert done.out.count(f"steps and sum 12 {3 * sum(range(24))}") == 2
    assert "5 files with 22 elements; each of 2 workers reads its own share of them; the shares have 8 to 14 elements, of which" in done.err
    assert "1 file with 13 elements; each of 2 workers reads all of them and keeps one element of 2" in done.err


@pytest.mark.parametrize("name", SAMPLES)
def test_the_samples_of_the_guide_to_distributed_input_run_unchanged(orch: Orch, tmp_path: Path, name: str) -> None:
    sample = SAMPLES[name]
    (tmp_path / "train.py").write_text(sample.text)
    done = orch("up", "train.py", *sample.words(2), timeout=300, check=0)
    assert done.out.count(DONE) == sum(sample.tasks(2).values())
