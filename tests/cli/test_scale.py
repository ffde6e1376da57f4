"""What `orch scale` refuses, each in one sentence that names the way out. tests/real/test_scale.py measures trainings."""

from __future__ import annotations

import subprocess
import sys

import pytest

from orchestrator.errors import USAGE
from tests.conftest import ROOT, Orch


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "-n is missing: the numbers of workers to measure fix: orch scale train.py -n 1,2,4"),
        (["-n", "0"], "-n 0: these are not numbers of workers"),
        (["-n", "a"], "-n a: these are not numbers of workers"),
        (["-n", "1,,2"], "-n 1,,2: these are not numbers of workers"),
        (["-n", "1,-2"], "-n 1,-2: these are not numbers of workers"),
        (["-n", "2:4"], "-n 2:4: these are not numbers of workers"),
        (["-n", "1,2", "--ps", "1"], "and not tasks of the type chief"),
        (["-n", "1,2", "--set", "tasks.chief=1"], "and not tasks of the type chief"),
        (["-n", "1", "--strategy", "none"], "and not the strategy none"),
        (["-n", "1,2", "--no-python"], "orch scale measures Python programs"),
        (["-n", "1,2", "--backend", "slurm"], "run it inside of an allocation, or with -H on hosts over SSH"),
        (["-n", "1,2", "--seconds", "0"], "'0' must be at least 2"),
        (["-n", "1,2", "--limit", "x"], "'x' is not a time"),
    ],
)
def test_what_cannot_be_measured_is_refused(words: list[str], told: str, orch: Orch) -> None:
    (orch.cwd / "train.py").write_text("raise SystemExit('must not run')")
    error = orch.in_process("scale", *words, "train.py", check=USAGE).err
    assert told in " ".join(error.split())
    assert "Traceback" not in error


@pytest.mark.parametrize("command", ["scale", "verify"])
def test_a_script_that_is_not_there_is_told_before_tensorflow_is_imported(
    orch: Orch, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr(f"orchestrator.{command}.one_import", lambda *_: pytest.fail("an import begins"))
    assert "there is no script 'nothing.py'" in orch.in_process(command, "-n", "2", "nothing.py", check=USAGE).err


def test_a_script_that_fails_or_ends_before_it_trains_is_told_with_what_it_says(orch: Orch) -> None:
    (orch.cwd / "train.py").write_text("raise SystemExit('no data here')")
    error = orch("scale", "-n", "1,2", "train.py", check=1).err
    assert "orch: 1 worker: 30 s after the warm-up\n" in error
    assert "no data here" in error
    (orch.cwd / "train.py").write_text("print('that was all')")
    error = orch("scale", "-n", "2,1", "train.py", "--seconds", "3", check=125).err
    assert "error: the script ended before 1 worker had trained for 3 s after the warm-up. fix: more epochs or steps, as its" in error


@pytest.mark.slow
def test_a_script_without_a_step_ends_at_the_limit(orch: Orch) -> None:
    (orch.cwd / "train.py").write_text("import time\ntime.sleep(600)")
    error = orch("scale", "-n", "2", "train.py", "--limit", "10", check=125).err
    assert "error: orch saw steps of 0 of 2 workers in 10 s: --limit gives more time, worker.report(step=...) tells of steps" in error


def test_a_run_that_does_not_ask_imports_nothing_of_it() -> None:
    program = (
        "import sys\nfrom worker.task import bootstrap\n"
        "bootstrap._import_changes({'tf_config': '{}', 'settings': {'strategy': 'multi_worker_mirrored'}})\n"
        "assert 'worker.task.observe.step_times' in sys.modules\nprint('worker.task.observe.step_parts' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True).stdout == "False\n"
