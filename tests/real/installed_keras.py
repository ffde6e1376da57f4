"""The cut of the judge with the Keras and the TensorFlow that are installed, whichever they are: `make matrix` runs this file in each cell.

pytest collects it only by its name: with the releases of .venv, test_keras.py runs the whole cut.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.judge import cut, findings
from tests.judge.verdicts import BAD
from tests.judge.worlds import ALONE, World
from tests.real.test_keras import DEADLINE_S, judged, verdicts

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(2 * DEADLINE_S), pytest.mark.usefixtures("warm_tensorflow")]


def test_two_workers_give_what_one_process_gives_or_a_line_says_what_differs(tmp_path: Path) -> None:
    one, two = World("one", "one process", ALONE), World("two", "2 workers", {"workers": 2}, "one")
    found: findings.Words = verdicts(two, judged(two, cut.OLDER, tmp_path / "two"), judged(one, cut.OLDER, tmp_path / "one"))
    words = {(row, form): word for row, worlds in found.items() for form, word in worlds["two"].items()}
    assert len(words) >= len(cut.OLDER)
    assert {where: word for where, word in words.items() if word in BAD} == {}
