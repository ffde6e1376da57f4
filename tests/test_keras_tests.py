"""How `tests.keras_tests` runs tests: those that hang, that end the process, that go another way in one worker, or need what is absent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from tests.keras_tests import __main__ as runner
from tests.keras_tests.__main__ import APART, DIED, LEFT_OUT, NEVER

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


def test_workers_end_where_a_test_goes_another_way_in_one_of_them(tests: Path) -> None:
    cluster = json.dumps({"cluster": {"worker": ["a:1", "b:1"]}})
    words = (
        sys.executable,
        str(runner.HERE / "inside.py"),
        str(tests),
        "none",
        *(f"one_test.py::test_{it}" for it in ("passes", "goes_another_way", "comes_after_it")),
    )
    workers = [
        subprocess.Popen(words, cwd=tests, env={**os.environ, "ORCH_TASK": task, "TF_CONFIG": cluster}, stdout=subprocess.DEVNULL)
        for task in ("worker-0", "worker-1")
    ]
    assert [worker.wait(60) for worker in workers] == [1, 1]
    assert list(tests.glob("*.end")) == []
    found = [{name: (outcome, why) for name, outcome, _, why in runner._lines(tests / f"worker-{index}.jsonl")} for index in (0, 1)]
    assert [outcome for outcome, _ in runner._together(found).values()] == ["passed", APART]


def test_sigterm_ends_the_test_that_runs(tests: Path) -> None:
    packages, python = tests / "lib" / "python3" / "site-packages", tests / "bin" / "python"
    (packages / "keras" / "src").mkdir(parents=True)
    python.parent.mkdir()
    (tests / "one_test.py").rename(packages / "keras" / "src" / "one_test.py")
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    program = (
        "import sys; from pathlib import Path; from tests.keras_tests import __main__ as runner; "
        "runner._make = lambda next_: Path(sys.argv[1]); sys.exit(runner.main(sys.argv[2:]))"
    )
    words = (sys.executable, "-c", program, str(python), "one_test.py", "--ways", "alone", "--keep", str(tests / "kept"))
    process = psutil.Popen(words, cwd=runner.HERE.parents[1], stdout=subprocess.DEVNULL)
    now = tests / "kept" / "one_test.py" / "alone" / "alone.now"
    while not (now.exists() and now.read_text().endswith("test_b_hangs")):
        assert process.poll() is None
        time.sleep(0.05)
    begun = process.children(recursive=True)
    process.terminate()
    assert process.wait(30) == 128 + signal.SIGTERM
    assert begun
    assert psutil.wait_procs(begun, 5)[1] == []


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
