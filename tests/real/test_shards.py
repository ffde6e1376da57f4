"""TensorFlow judges the planner of ``orch shards``: ways to distribute a dataset are drawn, and every batch is compared."""

from __future__ import annotations

import random
from dataclasses import asdict
from pathlib import Path

import pytest

from orchestrator.checks import input_files
from orchestrator.testing import cluster
from tests import tfrecords
from tests.model.input.test_sharding import VECTORS
from tests.real import shard_draws
from tests.real.shard_draws import Draw, draw, expected_of_all, expected_of_worker

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(280), pytest.mark.usefixtures("warm_tensorflow")]

TIMEOUT_S = 2500


@pytest.fixture(scope="module")
def soaks(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--soak"))


@pytest.fixture
def pool(tmp_path: Path) -> str:
    shard_draws.write_pool(tmp_path)
    return str(tmp_path)


def ways(draw: Draw) -> str:
    return ", ".join(f"{key}={value}" for key, value in draw.items())


@pytest.mark.soak
@pytest.mark.timeout(3000)
def test_every_worker_of_a_cluster_gets_what_the_planner_says(pool: str, soaks: bool) -> None:
    """Three processes under MultiWorkerMirroredStrategy, each with one replica: they agree on the end, with empty batches until then."""
    dice = random.Random(14)
    draws = [draw(dice, workers=3, replicas=1, all_have_files=True) for _ in range(1500 if soaks else 16)]
    with cluster(workers=3, timeout=TIMEOUT_S) as c:
        answers = [*c.run(shard_draws.ask_workers, draws, pool).values()]
        shuffled = c.run(shard_draws.list_shuffled, pool).values()
    for number, one in enumerate(draws):
        expected = expected_of_all(one)
        for worker in range(3):
            assert answers[worker][number] == expected[worker], f"worker-{worker}: {ways(one)}"
    # `list_files` without a seed: each worker shuffles its own share of the sorted list.
    assert [sorted({line[0] for line in of}) for of in shuffled] == [["1", "4", "7"], ["2", "5"], ["3", "6"]]


@pytest.mark.soak
@pytest.mark.timeout(3000)
def test_every_replica_gets_what_the_planner_says(pool: str, soaks: bool) -> None:
    """Any number of workers and replicas, in one process: the datasets that TensorFlow makes for the workers of a cluster."""
    dice = random.Random(41)
    draws = [
        draw(dice, workers=dice.randint(1, 4), replicas=dice.randint(1, 3), all_have_files=False) for _ in range(3000 if soaks else 36)
    ]
    draws += of_the_guide()
    with cluster(workers=1, strategy="mirrored", cpus=12, timeout=TIMEOUT_S) as c:
        answers = c.run(shard_draws.ask_inside, draws, pool)["worker-0"]
    for one, answer in zip(draws, answers, strict=True):
        expected = [expected_of_worker(one, worker) for worker in range(one["workers"])]
        assert answer == expected, ways(one)


def test_files_are_counted_and_refused_as_tensorflow_does(pool: str) -> None:
    """What TensorFlow writes is counted; what the tests write, it reads; names are in its order; and it refuses what we refuse."""
    directory = Path(pool)
    tfrecords.write(directory / "own.records", [b"x" * size for size in range(50)])
    (directory / "cut.records").write_bytes((directory / "own.records").read_bytes()[:-3])
    (directory / "lines.text").write_bytes(b"a\n\r\nb")
    with cluster(workers=1, strategy="none") as c:
        told = c.run(shard_draws.write_and_read, pool)["worker-0"]
    for compression in ("", "GZIP", "ZLIB"):
        for count in (0, 1, 900):
            assert [one.file.elements for one in input_files.inspect([f"{pool}/{compression}{count}.tfrecord"])] == [count]
    assert [one.file.elements for one in input_files.inspect([f"{pool}/lines.text"])] == [told["lines"]]
    assert told["own"] == 50
    assert "truncated record at" in told["cut"]
    assert input_files.find(["*.txt"], pool) == told["listed"]
    (cut,) = input_files.inspect([f"{pool}/cut.records"])
    assert "at byte 2,022: the file ends inside record 49" in cut.problem


def of_the_guide() -> list[Draw]:
    """The guide's vectors, with the files of the pool that have as many lines."""
    by_lines = {6: [6, 14], 12: [5, 7], 4: [4], 8: [7, 1], 9: [7, 2]}
    return [
        {**asdict(sharding), "files": by_lines[counts[0]][: 2 if counts[0] != 6 else len(counts)]}
        for sharding, counts, _ in VECTORS.values()
    ]
