"""The documents, the extras and the texts of orch name the same releases of Keras and TensorFlow."""

from __future__ import annotations

import re

import pytest

from orchestrator.model.cause.remedies import ABOUT_NAMES
from tests.conftest import ROOT
from tests.matrix.cells import CELLS
from tests.test_docs import DOCUMENTS
from worker.tensorflow_facts.releases import (
    INSTALL_KERAS,
    KNOWN_KERAS,
    NEWEST_KERAS,
    NEWEST_TENSORFLOW,
    OLDEST_KERAS,
    OLDEST_TENSORFLOW,
    bounds,
)

KERAS, TENSORFLOW = bounds(OLDEST_KERAS, NEWEST_KERAS), bounds(OLDEST_TENSORFLOW, NEWEST_TENSORFLOW)


def test_the_bounds_hold_the_newest_release_and_not_the_one_after_it() -> None:
    assert bounds("3.10", "3.16") == ">=3.10,<3.17"


@pytest.mark.parametrize("package", ["tensorflow", "tensorflow-cpu"])
def test_the_extras_allow_the_releases_that_orch_is_made_for(package: str) -> None:
    assert f'\n{package} = ["keras{KERAS}", "{package}{TENSORFLOW}"]\n' in (ROOT / "pyproject.toml").read_text()


def test_the_documents_and_the_remedies_name_these_releases() -> None:
    told = "".join(path.read_text() for path in DOCUMENTS) + "".join(remedy.text for remedy in ABOUT_NAMES.values())
    ranges = rf"{re.escape(OLDEST_KERAS)} to 3\.\d+|\b{re.escape(OLDEST_TENSORFLOW)} to 2\.\d+"
    assert set(re.findall(ranges, told)) == {f"{OLDEST_KERAS} to {NEWEST_KERAS}", f"{OLDEST_TENSORFLOW} to {NEWEST_TENSORFLOW}"}
    assert set(re.findall(r"pip install 'keras[^']*'", told)) == {INSTALL_KERAS}
    versions = (ROOT / "README.md").read_text().partition("\n## Versions\n")[2].partition("\n\n<!--")[0]
    assert f"TensorFlow {OLDEST_TENSORFLOW} to {NEWEST_TENSORFLOW} with {KNOWN_KERAS};" in versions


@pytest.mark.parametrize("package", ["orchestrator", "worker"])
def test_no_text_of_orch_has_releases_of_its_own(package: str) -> None:
    sources = {path: path.read_text() for path in (ROOT / package).rglob("*.py") if path.name != "releases.py"}
    own = rf"Keras {re.escape(OLDEST_KERAS)} to|TensorFlow {re.escape(OLDEST_TENSORFLOW)} (?:to|and)|['\"]?keras>="
    assert [f"{path}: {found[0]}" for path, text in sources.items() if (found := re.search(own, text))] == []


def test_the_matrix_has_every_release_of_tensorflow() -> None:
    major, oldest = OLDEST_TENSORFLOW.split(".")
    between = {f"{major}.{minor}" for minor in range(int(oldest), int(NEWEST_TENSORFLOW.split(".")[1]) + 1)}
    cells = {cell.tensorflow for cell in CELLS}
    assert between - cells <= {NEWEST_TENSORFLOW}, "the newest may be the next one still"
    assert cells <= {*between, "next"}
