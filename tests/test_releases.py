"""The documents, the extras and the texts of orch name the same releases of Keras and TensorFlow."""

from __future__ import annotations

import re

import pytest

from orchestrator.model.cause.remedies import ABOUT_NAMES
from tests.conftest import ROOT
from tests.matrix.cells import CELLS
from tests.test_docs import DOCUMENTS
from worker.settings.releases import INSTALL_KERAS, KNOWN_KERAS, NEWEST_KERAS, NEWEST_TENSORFLOW, OLDEST_KERAS, OLDEST_TENSORFLOW, bounds


def test_the_extras_allow_the_releases_that_orch_knows() -> None:
    extras = (ROOT / "pyproject.toml").read_text()
    for package in ("tensorflow", "tensorflow-cpu"):
        requirements = f"keras{bounds(OLDEST_KERAS, NEWEST_KERAS)}", f"{package}{bounds(OLDEST_TENSORFLOW, NEWEST_TENSORFLOW)}"
        assert f'\n{package} = ["{requirements[0]}", "{requirements[1]}"]\n' in extras


def test_the_controller_may_run_on_a_python_for_which_there_is_no_tensorflow() -> None:
    assert '\nrequires-python = ">=3.10"\n' in (ROOT / "pyproject.toml").read_text()


def test_the_documents_and_the_remedies_name_these_releases() -> None:
    told = {path.name: path.read_text() for path in DOCUMENTS} | {name: remedy.text for name, remedy in ABOUT_NAMES.items()}
    for words, known in ((r"Keras 3\.\d+ to 3\.\d+", KNOWN_KERAS), (r"pip install 'keras[^-'][^']*'", INSTALL_KERAS)):
        found = {place: set(re.findall(words, text)) for place, text in told.items() if re.search(words, text)}
        assert found == {place: {known} for place in found}
        assert found
    versions = (ROOT / "docs/limits.md").read_text().partition("\n## Versions\n")[2].partition("\n\n<!--")[0]
    assert f"TensorFlow {OLDEST_TENSORFLOW} to {NEWEST_TENSORFLOW} with {KNOWN_KERAS};" in versions


@pytest.mark.parametrize("package", ["orchestrator", "worker"])
def test_no_text_of_orch_has_releases_of_its_own(package: str) -> None:
    sources = {path: path.read_text() for path in (ROOT / package).rglob("*.py") if path.name != "releases.py"}
    own = r"Keras 3\.\d+ to 3\.\d+|TensorFlow 2\.16 (?:to|and)|keras>="
    assert [f"{path}: {found[0]}" for path, text in sources.items() if (found := re.search(own, text))] == []


def test_the_matrix_has_every_release_of_tensorflow() -> None:
    major, oldest = OLDEST_TENSORFLOW.split(".")
    between = {f"{major}.{minor}" for minor in range(int(oldest), int(NEWEST_TENSORFLOW.split(".")[1]) + 1)}
    cells = {cell.tensorflow for cell in CELLS}
    assert between - cells <= {NEWEST_TENSORFLOW}, "the newest may be the next one still"
    assert cells <= {*between, "next"}
