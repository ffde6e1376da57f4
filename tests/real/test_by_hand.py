"""Nothing that orch sets by itself makes a script hang or fail that runs by hand: scripts as TensorFlow's guides have them.

Each guide once, on one core, where waiting and computing are in each other's way most. (The parameter server's hangs there by hand.)
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Orch
from tests.real.conftest import QUIET, warm_process
from tests.real.guides import DONE, GUIDES

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(400)]

TASKS = 3


@pytest.fixture(scope="module")
def warm_on_one_core(_clean_environment: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The XDG_RUNTIME_DIR of a warm process that has one core, as in a small container; TensorFlow then makes one inter-op thread.

    While this lasts, what is started from here has one core.
    """
    if not hasattr(os, "sched_getaffinity"):
        pytest.skip("NOT TESTED: this platform ties nobody to cores")
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    with warm_process(tmp_path_factory.mktemp("warm")) as home:
        yield home
    os.sched_setaffinity(0, cores)


@pytest.mark.slow
@pytest.mark.parametrize("name", GUIDES)
def test_a_script_of_tensorflows_guides_trains_on_one_core(orch: Orch, tmp_path: Path, warm_on_one_core: Path, name: str) -> None:
    guide = GUIDES[name]
    (tmp_path / "train.py").write_text(guide.text)
    env = {**QUIET, "MODEL_DIR": str(tmp_path / "model"), "XDG_RUNTIME_DIR": str(warm_on_one_core)}
    done = orch("up", "train.py", *guide.words(TASKS), "--timeout", "250", env=env, timeout=300, check=0)
    assert DONE in done.out
    assert "tasks are forked from the warm process" in done.err
    assert json.loads((tmp_path / ".orch" / "latest" / "result.json").read_text())["warning"] == ""
