"""The example project, with a pytest of its own."""

from __future__ import annotations

import importlib.util

import pytest

from tests.conftest import ROOT
from tests.testing.test_plugin import run_pytest


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.skipif(
    importlib.util.find_spec("sklearn") is None, reason="NOT TESTED: scikit-learn is not installed here (pip install 'orch-tf[examples]')"
)
def test_the_example_project_passes_its_tests() -> None:
    done = run_pytest(ROOT / "examples/testing", "-rA")
    assert done.code == 0, done
    assert set(done.outcomes.values()) == {"passed"}, done
    assert "test_workers_learn_what_one_process_learns[workers=2]" in done.outcomes
    assert len(done.outcomes) == 5
