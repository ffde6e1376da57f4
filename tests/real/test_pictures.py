"""The pictures of README.md show what orch says today."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests import pictures

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("warm_tensorflow")]


@pytest.mark.slow
def test_the_good_run(tmp_path: Path) -> None:
    shown = pictures.readme_picture(pictures.README.read_text())
    assert pictures.sentences(pictures.good_run(tmp_path, os.environ)) == pictures.sentences(shown), "make pictures makes a new one"


def test_the_failing_run(tmp_path: Path) -> None:
    shown = pictures.svg_picture(pictures.FAILURE.read_text())
    assert pictures.sentences(pictures.failing_run(tmp_path, os.environ)) == pictures.sentences(shown), "make pictures makes a new one"
