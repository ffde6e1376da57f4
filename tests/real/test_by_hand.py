"""Nothing that orch sets by itself makes a script hang or fail that runs by hand: scripts as TensorFlow's guides have them.

This is a cut of tests/real/by_hand.py, which has all numbers of cores and tasks and runs the scripts by hand as well: each guide once, on
one core, where waiting and computing are in each other's way most. (The parameter server's hangs there by hand.)
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Orch
from tests.real.guides import DONE, GUIDES

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(400)]

TASKS = 3


@pytest.fixture
def one_core() -> Iterator[None]:
    """What is started has one core, as in a small container; TensorFlow by itself then makes one inter-op thread."""
    if not hasattr(os, "sched_getaffinity"):
        pytest.skip("NOT TESTED: this platform ties nobody to cores")
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    yield
    os.sched_setaffinity(0, cores)


@pytest.mark.usefixtures("one_core")
@pytest.mark.parametrize("name", GUIDES)
def test_a_script_of_tensorflows_guides_trains_on_one_core(orch: Orch, tmp_path: Path, name: str) -> None:
    guide = GUIDES[name]
    (tmp_path / "train.py").write_text(guide.text)
    env = {"MODEL_DIR": str(tmp_path / "model")}
    done = orch("up", "train.py", *guide.words(TASKS), "--timeout", "250", env=env, timeout=300, check=0)
    assert DONE in done.out
    assert json.loads((tmp_path / ".orch" / "latest" / "result.json").read_text())["warning"] == ""
