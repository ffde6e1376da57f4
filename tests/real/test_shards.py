"""TensorFlow judges the planner of ``orch shards``: ways to distribute a dataset are drawn, and every batch is compared."""

from __future__ import annotations

import random
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from orchestrator.model.sharding import FOR_EVER
from tests.model.test_sharding import VECTORS
from tests.real.shard_draws import (
    PROGRAM,
    Draw,
    draw,
    expected_of_all,
    expected_of_worker,
    read_answers,
    write_draws,
    write_pool,
)

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(280), pytest.mark.usefixtures("warm_tensorflow")]


@pytest.fixture(scope="module")
def soaks(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--soak"))


def ask(orch: Any, tmp_path: Path, draws: list[Draw], mode: str, *options: str, timeout: float = 250) -> None:
    """Have each task of a cluster answer all draws, one after the other."""
    write_pool(tmp_path)
    write_draws(tmp_path / "draws", draws)
    (tmp_path / "judge.py").write_text(PROGRAM)
    orch("up", "judge.py", "-q", *options, "--", mode, "draws", timeout=timeout, check=0)


def ways(draw: Draw) -> str:
    return ", ".join(f"{key}={value}" for key, value in draw.items())


@pytest.mark.soak
@pytest.mark.timeout(3000)
def test_every_worker_of_a_cluster_gets_what_the_planner_says(orch: Any, tmp_path: Path, soaks: bool) -> None:
    """Three processes under MultiWorkerMirroredStrategy, each with one replica: they agree on the end, with empty batches until then."""
    dice = random.Random(14)
    draws = [draw(dice, workers=3, replicas=1, all_have_files=True) for _ in range(1500 if soaks else 30)]
    draws += [{**draws[0], "policy": policy, "repeat": FOR_EVER, "files": [7, 15, 2, 3]} for policy in ("file", "data", "off")]
    ask(orch, tmp_path, draws, "cluster", "--workers", "3", timeout=2500)
    answers = [list(read_answers(tmp_path, f"worker-{worker}")) for worker in range(3)]
    for number, one in enumerate(draws):
        expected = expected_of_all(one)
        for worker in range(3):
            assert answers[worker][number] == expected[worker], f"worker-{worker}: {ways(one)}"
    assert len({len(of) for of in answers} | {len(draws)}) == 1


@pytest.mark.soak
@pytest.mark.timeout(3000)
def test_every_replica_gets_what_the_planner_says(orch: Any, tmp_path: Path, soaks: bool) -> None:
    """Any number of workers and replicas, in one process: the datasets that TensorFlow makes for the workers of a cluster."""
    dice = random.Random(41)
    draws = [
        draw(dice, workers=dice.randint(1, 4), replicas=dice.randint(1, 3), all_have_files=False) for _ in range(3000 if soaks else 100)
    ]
    # Of these, whole epochs: one program feeds all workers, as under TPUStrategy.
    draws += [{**one, "one_program": True} for one in draws if not isinstance(expected_of_worker(one, 0), str)][: 200 if soaks else 10]
    draws += [{**draws[0], "policy": policy, "repeat": FOR_EVER, "files": [7, 15, 2, 3]} for policy in ("file", "data", "off")]
    draws += of_the_guide()
    ask(orch, tmp_path, draws, "inside", "--strategy", "mirrored", "--cpus", "12", timeout=2500)
    compare_inside(draws, tmp_path)


def of_the_guide() -> list[Draw]:
    """The guide's vectors, with the files of the pool that have as many lines."""
    by_lines = {6: [6, 14], 12: [5, 7], 4: [4], 8: [7, 1], 9: [7, 2]}
    return [
        {**asdict(sharding), "files": by_lines[counts[0]][: 2 if counts[0] != 6 else len(counts)], "one_program": sharding.workers == 1}
        for sharding, counts, _ in VECTORS.values()
    ]


def compare_inside(draws: list[Draw], tmp_path: Path) -> None:
    answers = list(read_answers(tmp_path, "worker-0"))
    assert len(answers) == len(draws)
    for one, answer in zip(draws, answers, strict=True):
        expected = expected_of_all(one) if one["one_program"] else [expected_of_worker(one, worker) for worker in range(one["workers"])]
        assert answer == expected, ways(one)
