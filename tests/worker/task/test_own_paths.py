"""What becomes of a path to which several workers write: with functions of TensorFlow that only write files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from worker.task.keras import own_paths


@pytest.fixture
def as_worker(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``as_worker(1)``: from now on this process is that worker of two."""
    saves: dict[int, dict[str, int]] = {0: {}, 1: {}}

    def become(index: int) -> None:
        config = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": index}}
        told = {"TF_CONFIG": json.dumps(config), "ORCH_TASK": f"worker-{index}", "ORCH_IS_CHIEF": str(int(index == 0))}
        for name, value in {**told, "ORCH_RUN_ID": "run", "ORCH_ATTEMPT": "1"}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(own_paths, "_saves", saves[index])

    return become


def save(path: Path, text: str) -> None:
    def write(obj: str, export_dir: str) -> None:
        assert Path(export_dir) != path, "a reader would find half of it"
        for name in ("variables/variables.index", "assets/words.txt", "saved_model.pb"):
            file = Path(export_dir, name)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(obj)

    own_paths._save_aside(write, text, path)


def found(path: Path) -> set[str]:
    files = [file for file in path.rglob("*") if file.is_file()]
    assert len(files) == 3
    assert [file.name for file in path.parent.iterdir()] == [path.name], "nothing is left aside"
    return {file.read_text() for file in files}


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_saved_model_of_the_chief_stays(as_worker: Any, tmp_path: Path, order: tuple[int, int]) -> None:
    path = tmp_path / "model"
    for number in range(3):
        for index in order:
            as_worker(index)
            save(path, f"{number} of worker-{index}")
        assert found(path) == {f"{number} of worker-0"}


def test_a_worker_finds_its_own_saved_model_until_the_chief_has_saved(as_worker: Any, tmp_path: Path) -> None:
    """Also one that the chief has saved before: of a later step, or of an attempt before."""
    path = tmp_path / "model"
    as_worker(0)
    save(path, "old")
    as_worker(1)
    save(path, "as old")
    save(path, "new")
    assert found(path) == {"new"}


def test_a_save_that_fails_leaves_nothing_and_passes_its_error_on(as_worker: Any, tmp_path: Path) -> None:
    def write(obj: str, export_dir: str) -> None:
        os.makedirs(export_dir)
        raise ValueError(obj)

    as_worker(1)
    with pytest.raises(ValueError, match="no function to serve"):
        own_paths._save_aside(write, "no function to serve", str(tmp_path / "model"))
    assert not [*tmp_path.iterdir()]


def test_each_worker_caches_in_files_of_its_own(as_worker: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def cache(self: None, filename: str = "") -> str:
        return filename

    as_worker(0)
    assert own_paths._cache_apart(cache, None, "cache/train") == "cache/train-worker-0-of-2"
    assert "orch: note: each worker caches its share of the data in files of its own: cache/train-worker-0-of-2" in capsys.readouterr().err
    assert own_paths._cache_apart(cache, None, filename=Path("cache/train")) == "cache/train-worker-0-of-2"
    assert own_paths._cache_apart(cache, None) == "", "in memory"
    assert own_paths._cache_apart(cache, None, "gs://bucket/train") == "gs://bucket/train-worker-0-of-2"


@pytest.mark.parametrize(
    ("cluster", "kind", "workers"),
    [
        ({"chief": ["a:1"], "worker": ["b:1", "c:1"]}, "worker", 3),
        ({"worker": ["a:1"]}, "worker", 1),
        ({"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1"]}, "chief", 1),
        ({"worker": ["a:1", "b:1"], "evaluator": ["c:1"]}, "evaluator", 1),
    ],
)
def test_who_trains_at_the_same_time(monkeypatch: pytest.MonkeyPatch, cluster: dict[str, list[str]], kind: str, workers: int) -> None:
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": kind, "index": 0}}))
    assert own_paths._workers() == workers
