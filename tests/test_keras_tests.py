"""How `tests.keras_tests` runs tests: those that hang, that end the process, that go another way in one worker, or need what is absent."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path

import pytest

from tests.keras_tests import __main__ as runner
from tests.keras_tests.__main__ import DIED, LEFT_OUT, NEVER

TESTS = """
    import os
    import time
    import unittest

    import torch
    from conftest import skip_if_backend


    class Test(unittest.TestCase):
        def test_a_fails(self):
            self.assertEqual(1, 2)

        def test_b_hangs(self):
            time.sleep(1000)

        def test_c_dies(self):
            os._exit(3)

        def test_d_needs_torch(self):
            torch.ones(3)

        @skip_if_backend("tensorflow", "none")
        def test_e_is_of_others(self):
            pass


    def test_passes():
        pass


    def test_goes_another_way():
        assert os.environ.get("ORCH_TASK") != "worker-1"


    def test_comes_after_it():
        pass
"""


@pytest.fixture
def tests(tmp_path: Path) -> Path:
    (tmp_path / "one_test.py").write_text(textwrap.dedent(TESTS))
    return tmp_path


def test_each_test_has_its_outcome_also_where_one_hangs_or_ends_the_process(tests: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "TEST_S", 5.0)
    found = runner.run("alone", Path(sys.executable), tests, ["one_test.py"], tests / "place")
    assert {name.rpartition("::")[2]: outcome for name, (outcome, _) in found.items()} == {
        "test_a_fails": "failed",
        "test_b_hangs": NEVER,
        "test_c_dies": DIED,
        "test_d_needs_torch": LEFT_OUT,
        "test_e_is_of_others": "skipped",
        "test_passes": "passed",
        "test_goes_another_way": "passed",
        "test_comes_after_it": "passed",
    }
    assert found["one_test.py::Test::test_a_fails"][1] == "AssertionError: 1 != 2"


@pytest.mark.parametrize(("without", "code"), [("passed", 1), ("failed", 0)])
def test_what_fails_under_orch_alone_is_red_and_what_fails_without_it_is_not(
    without: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def run(way: str, _python: Path, _tests: Path, chosen: object, _place: Path) -> runner.Outcomes:
        asked.append((way, list(chosen)))  # type: ignore[call-overload]
        return {"a": (without, "") if way == "mirrored" else ("failed", "why"), "b": ("passed", "")}

    monkeypatch.setattr(runner, "run", run)
    assert runner.judge("metrics", "workers", tmp_path, tmp_path, tmp_path) == code
    assert asked == [("workers", ["metrics", "losses"]), ("workers", ["a"]), ("mirrored", ["a"])]
    assert ("FAILED: passes without orch: a: failed: why" in capsys.readouterr().out) == bool(code)


def test_no_test_is_known_to_fail_for_two_reasons() -> None:
    known = json.loads((runner.HERE / "known.json").read_text())
    assert {*known} == {"task", "workers"}
    for reasons in known.values():
        names = [name for names in reasons.values() for name in names]
        assert len(names) == len({*names})
