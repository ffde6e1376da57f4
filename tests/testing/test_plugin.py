"""The pytest plugin, in real pytest runs of projects of their own: many promises in each run, for TensorFlow is imported once a run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.tensorflow

Project = Callable[..., "PytestRun"]


class PytestRun:
    """A finished run of pytest."""

    def __init__(self, code: int, out: str) -> None:
        self.code, self.out = code, out

    def __str__(self) -> str:
        return f"exit code {self.code}\n{self.out}"

    @property
    def outcomes(self) -> dict[str, str]:
        """By the name of the test."""
        found = re.findall(r"^(PASSED|FAILED|ERROR|SKIPPED|XFAIL) (?:\[\d+\] )?(\S+)", self.out, re.MULTILINE)
        return {name.rpartition("::")[2]: outcome.lower() for outcome, name in found}

    def report(self, test: str) -> str:
        """What is said of a failing test."""
        return re.split(r"^_{3,} .* _{3,}$", self.out.partition(f" {test} ___")[2], maxsplit=1, flags=re.MULTILINE)[0]


def write(directory: Path, **files: str) -> None:
    for name, text in files.items():
        (directory / f"{name}.py").write_text(textwrap.dedent(text))


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--color=no", *words]


def run_pytest(directory: Path, *words: str, stdin: str = "", env: dict[str, str] | None = None) -> PytestRun:
    done = subprocess.run(
        command(*words), cwd=directory, env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}, input=stdin, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=250,
    )  # fmt: skip
    return PytestRun(done.returncode, done.stdout)


# --- a suite that does not use it --------------------------------------------------------------


def test_a_suite_that_does_not_use_it_imports_nothing_more(tmp_path: Path) -> None:
    text = """
        import json, sys
        import pytest

        def pytest_unconfigure():
            print("MODULES", json.dumps(sorted(name for name in sys.modules)))
    """
    write(tmp_path, conftest=text, test_nothing="def test_nothing(): pass")
    loaded = [set(json.loads(run_pytest(tmp_path, "-q", *words).out.partition("MODULES ")[2])) for words in ([], ["-p", "no:orch"])]
    assert loaded[0] - loaded[1] == {"orchestrator", "orchestrator.testing", "orchestrator.testing.plugin"}


# --- one run of many tests ---------------------------------------------------------------------

STEP = """
    def twice(number):
        result = number * 2
        return result


    def count_cpus():
        import tensorflow as tf

        return len(tf.config.list_logical_devices("CPU"))
"""
TESTS = """
    import asyncio
    import os
    import sys
    import time
    import unittest

    import pytest
    import step
    from orchestrator import testing

    pytestmark = pytest.mark.orch(timeout=60)


    @pytest.mark.orch(workers=[1, 2])
    def test_sizes(orch_cluster):
        assert set(orch_cluster.run(step.twice, 4).values()) == {8}
        print("TASKS", sorted(orch_cluster.tasks))


    def test_called(orch_cluster):
        with orch_cluster(workers=1) as one, orch_cluster(workers=2) as two:
            assert (len(one.tasks), len(two.tasks)) == (1, 2)
            assert one.timeout_s == 60


    def test_without_a_marker_it_says_what_is_missing(orch_cluster):
        orch_cluster.run(print)


    @pytest.mark.orch_everywhere(workers=2)
    def test_everywhere(strategy, tmp_path):
        assert strategy.num_replicas_in_sync == 2
        assert tmp_path.is_dir()
        assert "TF_CONFIG" in os.environ


    @pytest.mark.orch_everywhere(workers=2)
    def test_everywhere_fails_in_one():
        import worker

        numbers = [1, 2, 3]
        print("before the assertion")
        assert worker.context().index + len(numbers) == 3


    @pytest.mark.orch_everywhere(workers=2)
    def test_everywhere_skips():
        pytest.skip("not on this machine")


    @pytest.mark.orch_everywhere(workers=1)
    class TestMethods:
        def test_of_a_class(self):
            assert "TF_CONFIG" in os.environ


    @pytest.mark.orch(workers=2)
    def test_prints_and_fails(orch_cluster):
        orch_cluster.run(lambda: print("a line of a task"))
        assert False


    @pytest.mark.orch(workers=2)
    def test_prints_and_passes(orch_cluster, capsys):
        orch_cluster.run(lambda: print("a line that is read"), on="worker-1")
        assert capsys.readouterr().out == "[worker-1] a line that is read\\n"


    @pytest.mark.orch(workers=2)
    def test_hangs(orch_cluster):
        def waits_for_ever():
            print("going to sleep", flush=True)
            time.sleep(1000)

        job = orch_cluster.start(waits_for_ever)
        for name in orch_cluster.tasks:
            orch_cluster.wait_for(name, log="going to sleep")
        job.result(timeout=0.2)


    @pytest.mark.orch(workers=2)
    def test_dies(orch_cluster):
        orch_cluster.run(lambda: os.kill(os.getpid(), 11), on="worker-1")


    @pytest.mark.orch(workers=1, cpus=[1, 3])
    def test_devices(orch_cluster, request):
        assert orch_cluster.run(step.count_cpus) == {"worker-0": request.node.callspec.params["orch_cluster"]["cpus"]}
        assert "tensorflow" not in sys.modules


    class TestUnittest(unittest.TestCase):
        def test_in_a_case(self):
            with testing.cluster(workers=1) as c:
                self.assertEqual(c.run(step.twice, 1), {"worker-0": 2})


    class TestAsync(unittest.IsolatedAsyncioTestCase):
        async def test_beside_a_loop(self):
            with testing.cluster(workers=1) as c:
                job = c.start(step.twice, 1)
                self.assertEqual(await asyncio.to_thread(job.result), {"worker-0": 2})


    def test_script(orch_run, tmp_path):
        run = orch_run("train.py", "--epochs", 1, workers=2)
        assert (run.exit_code, run.cause) == (0, None)
        assert "epochs ['--epochs', '1']" in run.logs["worker-0"]
        assert run.reports["worker-1"] == {"step": 1}
        assert [event["task"] for event in run.events if event["event"] == "task_exited"]
        assert (tmp_path / "here").exists()


    def test_script_fails(orch_run):
        run = orch_run("train.py", "--fail", workers=2)
        assert (run.exit_code, run.cause.task) == (1, "worker-1")
        assert "ValueError: no data" in run.report
"""
TRAIN = """
    import pathlib, sys
    import worker

    print("epochs", sys.argv[1:])
    pathlib.Path("here").touch()
    worker.report(step=1)
    if "--fail" in sys.argv and worker.context().index == 1:
        raise ValueError("no data")
"""


@pytest.fixture(scope="module")
def run(_shared_processes: None, tmp_path_factory: pytest.TempPathFactory) -> PytestRun:
    directory = tmp_path_factory.mktemp("project")
    write(directory, step=STEP, test_them=TESTS, train=TRAIN)
    done = run_pytest(directory, "-rA", "--cov=step", "--cov-report=term-missing")
    assert not (directory / ".orch").exists()
    return done


def test_what_passes_and_what_fails(run: PytestRun) -> None:
    """Markers with sizes, the fixture called, bodies in the tasks, virtual devices, TestCase and IsolatedAsyncioTestCase, scripts."""
    failing = {
        "test_without_a_marker_it_says_what_is_missing",
        "test_everywhere_fails_in_one",
        "test_prints_and_fails",
        "test_hangs",
        "test_dies",
    }
    passing = {
        *("test_sizes[workers=1]", "test_sizes[workers=2]", "test_called", "test_everywhere", "test_of_a_class", "test_prints_and_passes"),
        *("test_devices[cpus=1]", "test_devices[cpus=3]", "test_in_a_case", "test_beside_a_loop", "test_script", "test_script_fails"),
    }
    assert {name for name, outcome in run.outcomes.items() if outcome == "failed"} == failing, run
    assert {name for name, outcome in run.outcomes.items() if outcome == "passed"} == passing, run
    assert re.search(r"^SKIPPED .*worker-\d: not on this machine", run.out, re.MULTILINE), run


def test_a_failing_assertion_in_a_task_is_explained(run: PytestRun) -> None:
    report = run.report("test_everywhere_fails_in_one")
    assert "assert (1 + 3) == 3" in report
    assert ">   assert worker.context().index + len(numbers) == 3" in report.replace(">       ", ">   ")
    assert "TaskFailed: worker-1: AssertionError" in report
    assert "worker-0: had returned" in report
    assert "[worker-0] before the assertion" in report


def test_the_report_says_what_the_tasks_wrote_and_where_they_were(run: PytestRun) -> None:
    assert "[worker-0] a line of a task\n" in run.report("test_prints_and_fails")
    assert "a line that is read" not in run.report("test_prints_and_passes")
    hang = run.report("test_hangs")
    assert "TimedOut: waits_for_ever was not over after 0.2 s" in hang
    assert "worker-1: running, in time.sleep (test_them.py" in hang
    assert "[worker-1] going to sleep" in hang
    assert "jobs.py" not in hang, "frames of orch are hidden"
    death = run.report("test_dies")
    assert "TaskFailed: worker-1: SIGSEGV" in death
    assert "[worker-1] Fatal Python error: Segmentation fault" in death


def test_code_that_runs_in_tasks_alone_is_covered(run: PytestRun) -> None:
    """`count_cpus` and `twice` are called in tasks only, which are killed when their test is over."""
    assert re.search(r"^step.py +6 +0 +100%", run.out, re.MULTILINE), run
