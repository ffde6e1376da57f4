"""The seed of the generators of Python and NumPy: one for all workers of a run, and none where tasks do not train together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.worker.agent_double import ROOT, run_plainly
from worker.task.input import same_numbers

BOTH = {"worker": ["a:1", "b:1"]}


def drawn(where: Path, cluster: dict[str, list[str]], run: str = "digits-1", before: str = "", **more: str) -> str:
    """What a program prints that draws from both generators; `before`: the code in front."""
    code = "import sys; from worker.task.input import same_numbers; same_numbers.seed_soon()\nimport random, numpy\n"
    text = f"{code}{before}\nprint(random.random(), numpy.random.random())\n"
    path = where / "draws.py"
    path.write_text(text)
    config = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}})
    done = run_plainly(["draws.py"], where, {"PYTHONPATH": str(ROOT), "TF_CONFIG": config, "ORCH_RUN_ID": run, **more})
    assert (done.code, done.err) == (0, "")
    return done.out


def test_the_workers_of_a_run_draw_the_same_numbers_and_each_run_others(tmp_path: Path) -> None:
    first = drawn(tmp_path, BOTH)
    assert first == drawn(tmp_path, BOTH) == drawn(tmp_path, BOTH, run="digits-2", ORCH_ORDER="digits-1")
    assert first == drawn(tmp_path, {"chief": ["a:1"], "worker": ["b:1"]})
    assert not {*first.split()} & {*drawn(tmp_path, BOTH, run="digits-2").split()}


@pytest.mark.parametrize("cluster", [{"worker": ["a:1"]}, {**BOTH, "ps": ["c:1"]}, {}])
def test_tasks_that_do_not_train_together_draw_numbers_of_their_own(tmp_path: Path, cluster: dict[str, list[str]]) -> None:
    assert not {*drawn(tmp_path, cluster).split()} & {*drawn(tmp_path, cluster).split()}


def test_a_seed_of_the_program_stays(tmp_path: Path) -> None:
    seeds = "random.seed(1); numpy.random.seed(1)"
    assert drawn(tmp_path, BOTH, before=seeds) == drawn(tmp_path, BOTH, "digits-2", before=seeds)


@pytest.mark.parametrize("config", ["", "{", "[]", '{"cluster": 1}', '{"cluster": {"worker": 2}}'])
def test_a_tf_config_that_says_nothing_is_no_cluster(monkeypatch: pytest.MonkeyPatch, config: str) -> None:
    monkeypatch.setenv("TF_CONFIG", config)
    assert not same_numbers.trains_together()
