"""Keras 3 under MultiWorkerMirroredStrategy with several workers: each case of `keras_api.py` beside the same in one process."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, Orch

DEADLINE_S = 900
"""It guards against a hang: both together take 45 s on two free cores."""

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(2 * DEADLINE_S), pytest.mark.slow]

PROGRAM = ROOT / "tests" / "programs" / "keras_api.py"
TABLE = ROOT / "docs" / "keras.md"
Cases = dict[str, dict[str, Any]]


def cases() -> list[str]:
    """The names of the cases, read and not run."""
    lines = PROGRAM.read_text().splitlines()
    return [after.split()[1].partition("(")[0] for line, after in itertools.pairwise(lines) if line == "@case"]


def run_alone(directory: Path) -> Cases:
    """What each case gives in one process without a strategy."""
    results = directory / "alone.json"
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
    subprocess.run([sys.executable, str(PROGRAM), str(results)], check=True, timeout=DEADLINE_S, env=env)
    found: Cases = json.loads(results.read_text())
    return found


def run_together(orch: Orch, directory: Path) -> dict[str, Cases]:
    """What each case gives in each of two workers, by the worker's name."""
    script = directory / "train.py"
    script.write_text(
        "import os, runpy, sys\n"
        f"sys.argv[1:] = [f'{directory}/' + os.environ['ORCH_TASK'] + '.json']\n"
        f"runpy.run_path({str(PROGRAM)!r}, run_name='__main__')\n"
    )
    orch("up", script, "--workers", "2", timeout=DEADLINE_S, check=0)
    return {name: json.loads((directory / f"{name}.json").read_text()) for name in ("worker-0", "worker-1")}


def differences(alone: dict[str, Any], first: dict[str, Any], second: dict[str, Any]) -> Iterator[str]:
    """What of one case two workers do not give as one process does."""
    if "error" in first:
        yield first["error"]
        return
    if second != first:
        yield f"the workers differ: {first} and {second}"
    for key, value in alone.items():
        if key in ("of_the_workers", "lines"):
            continue
        if first[key] != (value if key in ("predicted", "shape") else pytest.approx(value, rel=2e-3, abs=2e-4)):
            yield f"{key}: {first[key]} in two workers, {value} in one process"


# One test, so that only one process of pytest-xdist runs all of the cases.
def test_two_workers_give_what_one_process_gives(orch: Orch, tmp_path: Path) -> None:
    alone, together = run_alone(tmp_path), run_together(orch, tmp_path)
    first, second = together["worker-0"], together["worker-1"]
    assert set(alone) == set(first) == set(second) == set(cases())
    assert {name: found for name in cases() if (found := list(differences(alone[name], first[name], second[name])))} == {}


def test_every_case_has_its_row_in_the_docs() -> None:
    text = TABLE.read_text().partition("Each row with a name")[0]
    assert set(re.findall(r"`(\w+)` \|$", text, re.MULTILINE)) == set(cases())


@pytest.mark.usefixtures("warm_tensorflow")
@pytest.mark.parametrize(("mode", "reports"), [("v3", True), ("legacy", True), ("v3", False)])
def test_fit_reports_to_whoever_asks(orch: Orch, script: Any, mode: str, reports: bool) -> None:
    script("""
        import sys
        print("imported ahead:", *{"keras", "tf_keras"} & set(sys.modules))
        import numpy as np, tensorflow as tf
        model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=["mae"])
        model.fit(np.zeros((8, 4)), np.zeros((8, 1)), batch_size=2, epochs=2, verbose=0)
    """)
    done = orch("up", "script.py", "--strategy", "none", "--keras", mode, "--set", f"keras.report={str(reports).lower()}", check=0)
    assert f"imported ahead: {'tf_keras' if mode == 'legacy' else 'keras'}\n" in done.out
    (task,) = json.loads(orch("ps", "--json", check=0).out)["tasks"]
    found = task.get("report") or {}
    assert [found.get("epoch"), found.get("step")] == ([2, 4] if reports else [None, None])
    assert {"steps_per_s", "loss", "mae"}.isdisjoint(found) != reports
