"""The table of versions in docs/limits.md, and how the cells of `make matrix` are made to fit a machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.matrix import __main__ as matrix
from tests.matrix import checks, environments, table
from tests.matrix.cells import CELLS, LOWEST, NEWEST, NEXT, Cell
from tests.matrix.environments import NotPossible


def test_the_lowest_corner_has_what_pyproject_allows() -> None:
    wanted = environments.requirements(LOWEST, {})
    assert {"click==8.1.7", "psutil==6.0", "pyyaml==6.0.1", "tensorflow-cpu==2.16.*"} < {*wanted["install"]}
    assert wanted["alone"] == ["tf-keras~=2.16.0"]
    assert not [name for name in environments.requirements(NEWEST, {})["install"] if name.startswith("click")]


@pytest.mark.parametrize(
    ("release", "nightly", "installed", "left_out"),
    [
        ("3.15.1", "3.16.0.dev2026102704", "keras-nightly==3.16.0.dev2026102704", "keras"),  # what TensorFlow's release candidate requires
        ("3.16.0rc0", "3.16.0.dev2026102704", "keras==3.16.0rc0", "keras-nightly"),
        ("3.16.0", "3.17.0.dev2027010104", "keras-nightly==3.17.0.dev2027010104", "keras"),  # where TensorFlow requires keras
    ],
)
def test_the_next_releases_have_one_keras(release: str, nightly: str, installed: str, left_out: str) -> None:
    wanted = environments.requirements(NEXT, {"tensorflow-cpu": "2.22.0rc0", "keras": release, "keras-nightly": nightly})
    assert {"tensorflow-cpu==2.22.0rc0", installed} < {*wanted["install"]}
    assert wanted["overrides"] == ["tensorflow-cpu==2.22.0rc0", installed, f"{left_out}; sys_platform == 'none'"]
    assert wanted["alone"] == ["tf-keras~=2.22.0"]


def test_a_check_that_fails_fails_the_command_and_stands_in_the_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept: dict[str, Any] = {}
    answers = {"warm start": "import sys; sys.exit(3)", "fit": "pass", "fit of Keras 2": "pass"}

    def check(program: str) -> checks.Check:
        def run(bench: checks.Bench) -> None:
            if bench.run("-c", program) != (0, ""):
                raise checks.Wrong("it says so")

        return run

    monkeypatch.setattr(checks, "CHECKS", {name: check(program) for name, program in answers.items()})
    monkeypatch.setattr(checks, "fit_of_keras_2", checks.CHECKS["fit of Keras 2"])  # left out where there is no tf-keras
    monkeypatch.setattr(matrix, "_VERSIONS", "print('{}')")
    monkeypatch.setattr(environments, "make", lambda cell: Path(sys.executable))
    monkeypatch.setattr(table, "keep", lambda cell, result: kept.update({cell.name: result["checks"]}))
    monkeypatch.setattr(table, "write", lambda results: None)
    cell = CELLS[0].name
    assert matrix.main(["--without", checks.REAL_TESTS, cell]) == 1
    assert kept == {cell: {"warm start": table.FAILED, "fit": table.OK}}
    assert f"FAILED: {cell}: warm start: it says so" in capsys.readouterr().out
    assert matrix.main(["--without", checks.REAL_TESTS, "--without", "warm start", cell]) == 0

    def make(cell: Cell) -> Path:
        raise NotPossible("no Python")

    monkeypatch.setattr(environments, "make", make)
    assert matrix.main([cell]) == 0
    assert f"orch: NOT TESTED: {cell}: no Python" in capsys.readouterr().err


def test_the_table_of_the_page_keeps_what_was_found() -> None:
    text = table.PAGE.read_text()
    found = table.read(text)
    assert table.render(found) in text
    assert len(found) == len(CELLS)
    name = CELLS[0].name
    checks_found = {**found[name]["checks"], "fit": table.FAILED}
    failed = {**found, name: {**found[name], "checks": checks_found}}
    assert table.read(f"<!-- written by `make matrix` -->\n{table.render(failed)}<!-- end of")[name]["checks"] == checks_found


def test_the_real_tests_of_a_cell_exist() -> None:
    for test in (*checks.TESTS, *checks.JUDGE, *checks.CORNER_TESTS):
        path, _, name = test.partition("[")[0].partition("::")
        assert f"def {name or 'test_'}" in (environments.ROOT / path).read_text(), test
