"""What failed runs once more, alone: shown on small suites, with pytest-xdist as `make test` has it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

CHANCE = """
import pathlib

def test_chance():
    place = pathlib.Path(__file__).with_suffix(".met")
    was_there = place.exists()
    place.touch()
    assert was_there, "the first time"
"""
FINE = "def test_fine(): pass\n"
BROKEN = "def test_broken(): assert False, 'each time'\n"
TEARDOWN = """
import pathlib, pytest

@pytest.fixture
def place():
    place = pathlib.Path(__file__).with_suffix(".met")
    was_there = place.exists()
    yield
    place.touch()
    assert was_there, "the first time"

def test_teardown(place): pass
"""

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """``run("-n", "2", name="def test_…")``: a pytest over these modules; returns its exit code and what it printed."""

    def run(*options: str, **sources: str) -> tuple[int, str]:
        (tmp_path / "pytest.ini").write_text("[pytest]\n")
        for name, text in sources.items():
            (tmp_path / f"test_{name}.py").write_text(text)
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "tests.again", *(("-p", "xdist") if "-n" in options else ()), *options],
            cwd=tmp_path,
            env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # each process would import hypothesis and others
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
        )
        return done.returncode, done.stdout

    return run


def test_what_passes_alone_is_flaky_and_named_with_its_failure(run: Run) -> None:
    code, said = run(chance=CHANCE, teardown=TEARDOWN, fine=FINE)
    assert code == 0
    assert "FLAKY: test_chance.py::test_chance: failed among the others and passed alone: a bug to be found next" in said
    assert "AssertionError: the first time" in said
    assert "FLAKY: test_teardown.py::test_teardown" in said
    assert said.splitlines()[-1].startswith("2 passed, 2 flaky in ")


def test_what_fails_again_fails_and_a_worker_of_xdist_that_has_crashed_is_one_failure(run: Run) -> None:
    """With the groups that `make test` has: a module that crashes is one, and its other test runs in another process."""
    crash = CHANCE.replace("assert was_there", "was_there or __import__('os')._exit(3)\n    assert True")
    crash += "def test_after_it(): pass\n"
    code, said = run("-n", "2", "-p", "tests.groups", trace_file=crash, broken=BROKEN, fine=FINE)
    assert code == 1
    assert "FLAKY: test_trace_file.py::test_chance: " in said
    assert "crashed while running" in said
    assert "FLAKY: test_broken" not in said
    assert said.splitlines()[-1].startswith("1 failed, 2 passed, 1 flaky in ")
