"""Keras 3 under MultiWorkerMirroredStrategy with several workers: each case of `keras_api.py` beside the same in one process."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from typing import Any

import pytest

from tests.conftest import ROOT, Orch

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(600), pytest.mark.slow]

PROGRAM = ROOT / "tests" / "programs" / "keras_api.py"
TABLE = ROOT / "docs" / "keras.md"
Cases = dict[str, dict[str, Any]]


def cases() -> list[str]:
    """The names of the cases, read and not run."""
    lines = PROGRAM.read_text().splitlines()
    return [after.split()[1].partition("(")[0] for line, after in itertools.pairwise(lines) if line == "@case"]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Cases:
    """What each case gives in one process without a strategy."""
    results = tmp_path_factory.mktemp("alone") / "results.json"
    subprocess.run([sys.executable, str(PROGRAM), str(results)], check=True, timeout=500, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"})
    found: Cases = json.loads(results.read_text())
    return found


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Cases]:
    """What each case gives in each of two workers, by the worker's name."""
    directory = tmp_path_factory.mktemp("together")
    script = directory / "train.py"
    script.write_text(
        "import os, runpy, sys\n"
        f"sys.argv[1:] = [f'{directory}/' + os.environ['ORCH_TASK'] + '.json']\n"
        f"runpy.run_path({str(PROGRAM)!r}, run_name='__main__')\n"
    )
    program = Orch(directory, tmp_path_factory.mktemp("console"))
    try:
        program("up", script, "--workers", "2", timeout=500, check=0)
    finally:
        program.stop()
    return {name: json.loads((directory / f"{name}.json").read_text()) for name in ("worker-0", "worker-1")}


@pytest.mark.parametrize("name", cases())
def test_two_workers_give_what_one_process_gives(alone: Cases, together: dict[str, Cases], name: str) -> None:
    first, second = (together[worker][name] for worker in ("worker-0", "worker-1"))
    assert "error" not in first, first["error"]
    assert second == first, "the workers differ"
    for key, value in alone[name].items():
        is_exact = key in ("predicted", "shape")
        if key not in ("of_the_workers", "lines"):
            assert first[key] == (value if is_exact else pytest.approx(value, rel=2e-3, abs=2e-4)), key


def test_every_case_has_its_row_in_the_docs() -> None:
    text = TABLE.read_text().partition("Each row with a name")[0]
    assert set(re.findall(r"`(\w+)` \|$", text, re.MULTILINE)) == set(cases())


def test_fit_reports_to_whoever_asks(orch: Orch, script: Any) -> None:
    script("""
        import numpy as np, keras
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=["mae"])
        model.fit(np.zeros((8, 4)), np.zeros((8, 1)), epochs=2, verbose=0)
    """)
    orch("up", "script.py", "--strategy", "none", check=0)
    (task,) = json.loads(orch("ps", "--json", check=0).out)["tasks"]
    assert task["report"]["epoch"] == 2
    assert {"loss", "mae"} <= set(task["report"])
