"""The pytest plugin, in real pytest runs of projects of their own: many promises in each run, for TensorFlow is imported once a run."""

from __future__ import annotations

import glob
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from tests.conftest import ROOT

pytestmark = pytest.mark.tensorflow

Project = Callable[..., "PytestRun"]


class PytestRun:
    def __init__(self, code: int, out: str) -> None:
        self.code, self.out = code, out

    def __repr__(self) -> str:
        return f"exit code {self.code}\n{self.out}"

    @property
    def outcomes(self) -> dict[str, str]:
        found = re.findall(r"^(PASSED|FAILED|ERROR|SKIPPED|XFAIL) (?:\[\d+\] )?(\S+)", self.out, re.MULTILINE)
        return {name.rpartition("::")[2]: outcome.lower() for outcome, name in found}

    def report(self, test: str) -> str:
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


# --- mistakes in markers ------------------------------------------------------------------------

MARKED = """
    import pytest

    pytestmark = pytest.mark.orch({module})


    @pytest.mark.{marker}
    def test_that_would_pass({fixture}):
        pass
"""


WRONG = {
    "orch(wrokers=2)": "@pytest.mark.orch(wrokers=…): unknown keyword 'wrokers'\nfix: did you mean 'workers'?",
    "orch(workers=[1, 0])": "@pytest.mark.orch(workers=…): must be at least 1, not 0",
    "orch(workers=1, devices={'cpu': 2})": "unknown key 'cpu'\nfix: did you mean 'cpus'?",
    "orch(workers=1, timeout='5 parsecs')": "@pytest.mark.orch(timeout=…): must be a time (90, 90s, 10m or 2h30m), not '5 parsecs'",
    "orch(workers=2, hosts='a:2')": "the tasks of a test run on this machine: leave hosts= and backend= out",
    "orch(strategy='parameter_server', workers=1)": "strategy parameter_server needs at least 1 ps task",
    "orch(workers=1, data_workers=1)": "data_workers= is not for clusters of tests",
    "orch(2)": "@pytest.mark.orch takes keywords, as in @pytest.mark.orch(workers=2)",
    "orch_everywhere": "@pytest.mark.orch_everywhere needs a number of tasks, as in @pytest.mark.orch_everywhere(workers=2)",
}


def test_a_mistake_in_a_marker_is_a_message_at_the_collection(tmp_path: Path) -> None:
    two = [MARKED.format(module="timeout='10m'", marker=f"orch(workers={number})", fixture="orch_cluster") for number in (0, -1)]
    write(tmp_path, test_two=two[0] + two[1].replace("test_that_would_pass", "test_too"))
    everywhere = MARKED.format(module="workers=2", marker="orch_everywhere", fixture="capsys")
    write(tmp_path, test_captures=everywhere)
    for number, marker in enumerate(WRONG):
        write(tmp_path, **{f"test_{number}": MARKED.format(module="timeout=60", marker=marker, fixture="orch_cluster")})
    # Markers that only have defaults need not be complete, and a script may have more settings than a cluster of functions.
    defaults = "orch(strategy='parameter_server', grace=1, reuse=True)"
    write(tmp_path, test_right=MARKED.format(module="timeout=60", marker=defaults, fixture="orch_cluster"))
    write(tmp_path, test_run=MARKED.format(module="workers=[1, 2], start_timeout='2m'", marker="orch(data_workers=1)", fixture="orch_run"))
    write(tmp_path, test_without=MARKED.format(module="workers=2", marker="orch(timeout=9)", fixture="tmp_path"))
    write(tmp_path, test_asks=MARKED.format(module="workers=2", marker="orch(timeout=9)", fixture="request"))
    write(tmp_path, test_other=MARKED.format(module="workers=2", marker="parametrize('value', [1])", fixture="value"))
    done = run_pytest(tmp_path, "-q", "--collect-only")
    said = "test_without.py::test_that_would_pass: the test has @pytest.mark.orch and uses neither orch_cluster nor orch_run, so it has no"
    assert said in done.out, done
    for number, said in enumerate(WRONG.values()):
        assert re.search(rf"^test_{number}.py::test_that_would_pass: .*{re.escape(said)}", done.out, re.MULTILINE), done
    for test, number in (("test_that_would_pass", 0), ("test_too", -1)):
        assert f"test_two.py::{test}: @pytest.mark.orch(workers=…): must be at least 1, not {number}" in done.out, done
    assert "capsys belongs to the process of the test, and @pytest.mark.orch_everywhere runs the test in the tasks" in done.out, done
    assert f"5 tests collected, {len(WRONG) + 3} errors" in done.out, done
    assert "plugin.py" not in done.out, done


# --- imports that cannot be forked ----------------------------------------------------------------

COLD = """
    import os
    import pytest


    @pytest.mark.orch(workers=1)
    def test_cluster(orch_cluster):
        assert orch_cluster.run(os.getpid)["worker-0"] != os.getpid()
"""


@pytest.mark.slow
def test_a_cluster_works_where_an_import_has_started_a_thread(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    thread = "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    (tmp_path / "site" / "pandas.py").write_text(thread)
    write(tmp_path, test_cold=COLD)
    done = run_pytest(tmp_path, "-q", env={"PYTHONPATH": f"{tmp_path / 'site'}{os.pathsep}{ROOT}"})
    assert "1 passed, 1 warning" in done.out, done
    said = (
        "tensorflow cannot be kept for forking: the import of pandas has started a thread; each process of a cluster imports TensorFlow for"
    )
    assert said in done.out, done


# --- the user's own warm process ----------------------------------------------------------------

USES_WARM = """
    import os
    import pytest


    @pytest.mark.orch(workers=2)
    def test_cluster(orch_cluster):
        assert len(set(orch_cluster.run(os.getpid).values())) == 2


    def test_script(orch_run, tmp_path):
        (tmp_path / "train.py").write_text("import tensorflow")
        assert orch_run("train.py").exit_code == 0


    @pytest.mark.orch(workers=2)
    def test_tensorflow_says_much(orch_cluster):
        def add(strategy):
            import tensorflow as tf

            def replica():
                return tf.distribute.get_replica_context().all_reduce("sum", tf.constant(1.0))

            @tf.function
            def step():
                return strategy.run(replica)

            print("sum", float(step()), os.environ["TMPDIR"])

        orch_cluster.run(add)
        assert ".cc:" in orch_cluster.logs("worker-0") or "{cold}"
"""


@pytest.mark.slow
def test_clusters_and_scripts_are_forked_from_the_warm_process_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    (tmp_path / "run").mkdir()
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    env = {"XDG_RUNTIME_DIR": str(tmp_path / "run"), "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)}

    def warm(word: str) -> dict[str, Any]:
        words = [sys.executable, "-m", "orchestrator", "warm", word, "--json"]
        done = subprocess.run(words, cwd=tmp_path, env={**os.environ, **env}, check=True, stdout=subprocess.PIPE, timeout=250)
        return json.loads(done.stdout)  # type: ignore[no-any-return]

    def shown(*words: str) -> str:
        done = run_pytest(tmp_path, "-q", "-s", "--basetemp=base", *words, env=env)
        assert done.code == 0, done.out
        assert list(temporary.iterdir()) == [], "AutoGraph's files are gone"
        return done.out

    write(tmp_path, test_warm=USES_WARM.replace("{cold}", ""))
    warm("start")
    try:
        out = shown()
        assert warm("status")["uses"] >= 2
    finally:
        warm("stop")
    write(tmp_path, test_warm=USES_WARM.replace("{cold}", "cold"))
    for text in (out, shown("-k", "tensorflow")):  # as an import that a test run made by itself
        assert re.search(r"^\.*\[worker-1\] sum 2\.0 ", text, re.MULTILINE), text
        assert not re.search(r"\w\.(cc|h):\d+\] ", text), text


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
    import threading
    import time
    import unittest

    import numpy as np
    import orchestrator
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


    @pytest.mark.orch(workers=1, preload=[], prepare="exit 3")
    def test_that_cannot_start(orch_cluster):
        pass


    @pytest.mark.orch_everywhere(workers=2)
    def test_everywhere(strategy, tmp_path):
        assert strategy.num_replicas_in_sync == 2
        assert tmp_path.is_dir()
        assert "TF_CONFIG" in os.environ


    @pytest.mark.orch_everywhere(workers=[1, 2])
    @pytest.mark.parametrize("value", [3])
    def test_everywhere_with_values(value, doubled):
        assert (value, doubled) == (3, 6)
        assert "TF_CONFIG" in os.environ


    @pytest.fixture(params=[6])
    def doubled(request):
        return request.param


    @pytest.mark.orch_everywhere(workers=2)
    async def test_everywhere_async():
        pass


    @pytest.mark.orch_everywhere(workers=2)
    def test_everywhere_differs():
        np.testing.assert_allclose([1.0, 2.0], [1.0, 3.0], err_msg="it differs")


    @pytest.mark.orch_everywhere(workers=2)
    def test_everywhere_fails_in_one():
        import worker

        numbers = [1, 2, 3]
        print("before the assertion")
        assert worker.context().index + len(numbers) == 3


    @pytest.mark.orch_everywhere(workers=2)
    def test_everywhere_skips():
        pytest.skip("not on this machine")


    @pytest.mark.orch(workers=2)
    def test_a_function_skips(orch_cluster):
        orch_cluster.run(lambda: pytest.skip("no GPU here"))


    @pytest.mark.orch_everywhere(workers=1)
    class TestMethods:
        def test_of_a_class(self):
            assert "TF_CONFIG" in os.environ


    class Base:
        @pytest.fixture
        def c(self):
            with testing.cluster(workers=1) as c:
                yield c

        def value(self):
            return 7


    class TestFixtureInTheClass(Base):
        def test_a_method_is_sent(self, c):
            assert c.run(self.value) == {"worker-0": 7}


    @pytest.mark.orch(workers=1)
    @pytest.mark.parametrize("mistake", [
        lambda c: c.run(step.twice, threading.Lock()),
        lambda c: c(workers=2),
        lambda c: c.run(print("x")),
        lambda c: c["worker-7"].kill(),
        lambda c: c.run(step.twice, 4, on="worker-7"),
        lambda c: c.wait_for("worker-0"),
        lambda c: testing.cluster(wrokers=1).__enter__(),
        lambda c: orchestrator.launch("train.py", workers=0),
        lambda c: testing.barrier(),
    ], ids=["unsendable", "called", "a_result", "no_task", "nowhere", "nothing_awaited", "typo", "nothing", "barrier"])
    def test_mistake(orch_cluster, mistake):
        mistake(orch_cluster)


    def test_script_that_is_missing(orch_run):
        assert orch_run("nowhere.py", workers=1).exit_code == 0


    def test_script_that_the_test_has_written(orch_run, tmp_path):
        (tmp_path / "written.py").write_text("raise ValueError('a reason')")
        assert orch_run("written.py", workers=1).exit_code == 0


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


    @pytest.mark.orch(chief=True, workers=1, ps=[1, 2], evaluator=1)
    def test_servers_and_evaluator(orch_cluster, request):
        servers = [f"ps-{index}" for index in range(request.node.callspec.params["orch_cluster"]["ps"])]
        assert list(orch_cluster.tasks) == ["chief-0", "worker-0", *servers, "evaluator-0"]
        assert list(orch_cluster.run(lambda: None)) == ["chief-0", "evaluator-0"]  # the others are servers
        assert orch_cluster.run(lambda: os.environ["ORCH_TASK"], on="ps-0") == {"ps-0": "ps-0"}


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


    @pytest.mark.orch(workers=[1, 2])
    def test_script_of_sizes(orch_run, request):
        run = orch_run("train.py")
        assert len(run.tasks) == request.node.callspec.params["orch_run"]["workers"]


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


def test_a_project(tmp_path: Path) -> None:
    """One run of one project; several tests of ours, in several processes, would run it several times."""
    directory = tmp_path
    write(directory, step=STEP, test_them=TESTS, train=TRAIN)
    done = run_pytest(directory, "-rA", "--cov=step", "--cov-report=term-missing")
    assert not (directory / ".orch").exists()
    check_what_passes_and_what_fails(done)
    check_that_a_failing_assertion_in_a_task_is_explained(done)
    check_what_the_report_says_of_the_tasks(done)
    check_that_a_mistake_shows_the_test_alone(done)
    check_that_code_that_runs_in_tasks_alone_is_covered(done)


def check_what_passes_and_what_fails(run: PytestRun) -> None:
    """Markers with sizes, the fixture called, bodies in the tasks, virtual devices, TestCase and IsolatedAsyncioTestCase, scripts."""
    failing = {
        "test_without_a_marker_it_says_what_is_missing",
        "test_everywhere_differs",
        "test_everywhere_fails_in_one",
        "test_prints_and_fails",
        "test_hangs",
        "test_dies",
        *(f"test_mistake[{mistake}]" for mistake in MISTAKES),
        "test_script_that_is_missing",
        "test_script_that_the_test_has_written",
    }
    assert run.outcomes["test_that_cannot_start"] == "error"
    passing = {
        *("test_sizes[workers=1]", "test_sizes[workers=2]", "test_called", "test_everywhere", "test_of_a_class", "test_prints_and_passes"),
        "test_a_method_is_sent",
        *("test_devices[cpus=1]", "test_devices[cpus=3]", "test_in_a_case", "test_beside_a_loop", "test_script", "test_script_fails"),
        *("test_everywhere_with_values[6-workers=1-3]", "test_everywhere_with_values[6-workers=2-3]"),
        *("test_servers_and_evaluator[ps=1]", "test_servers_and_evaluator[ps=2]"),
        *("test_script_of_sizes[workers=1]", "test_script_of_sizes[workers=2]"),
    }
    assert {name for name, outcome in run.outcomes.items() if outcome == "failed"} == failing, run
    assert {name for name, outcome in run.outcomes.items() if outcome == "passed"} == passing, run
    assert run.outcomes["test_everywhere_async"] == "error"
    assert "@pytest.mark.orch_everywhere is not for an async test, nor for a unittest.TestCase" in run.out
    assert re.search(r"^SKIPPED \[1\] test_them.py:\d+: worker-\d: not on this machine", run.out, re.MULTILINE), run
    assert re.search(r"^SKIPPED \[1\] test_them.py:\d+: worker-\d: no GPU here", run.out, re.MULTILINE), run


def check_that_a_failing_assertion_in_a_task_is_explained(run: PytestRun) -> None:
    report = run.report("test_everywhere_fails_in_one")
    assert "assert (1 + 3) == 3" in report
    assert ">   assert worker.context().index + len(numbers) == 3" in report.replace(">       ", ">   ")
    assert "TaskFailed: worker-1: AssertionError" in report
    assert "worker-0: had returned" in report
    assert "[worker-0] before the assertion" in report
    assert re.search(r"^FAILED test_them\.py::test_everywhere_fails_in_one.* - worker-1: ", run.out, re.MULTILINE), run.out
    several = run.report("test_everywhere_differs")
    assert several.count("DESIRED: ") == 1, "pytest shows the exception with its frames; the text of its cause would repeat them"
    assert "Traceback (most recent call last)" not in several
    assert re.search(r"TaskFailed: worker-\d: AssertionError: Not equal to tolerance", several), several
    assert re.search(r"^  worker-\d: raised the same$", several, re.MULTILINE), several
    assert "numpy/testing" not in several, "frames that NumPy hides from pytest"


MISTAKES = {
    "called": "this is a cluster already, and no function: where orch_cluster is the cluster of a marker, use orch_cluster.run(…)",
    "a_result": "run() takes a function, not its result: write run(f, 1) and not run(f(1)); this is None",
    "unsendable": "argument 1 (a lock) cannot be sent to a task",
    "no_task": "the cluster has no task 'worker-7'; the tasks are worker-0",
    "nowhere": "the cluster has no task 'worker-7'; the tasks are worker-0",
    "nothing_awaited": "wait_for needs report= or log=",
    "typo": "fix: did you mean 'workers'?",
    "nothing": "must be at least 1, not 0",
    "barrier": "barrier() is for functions that a cluster runs in its tasks",
}


def check_that_a_mistake_shows_the_test_alone(run: PytestRun) -> None:
    for mistake, text in MISTAKES.items():
        report = run.report(f"test_mistake[{mistake}]")
        assert text in report, report
        assert "orchestrator/" not in report, report
        assert "cloudpickle" not in report, report
        assert "worker/task" not in report, report
    cannot = run.report("ERROR at setup of test_that_cannot_start")
    assert len(cannot.splitlines()) < 25, cannot
    missing = run.report("test_script_that_is_missing")
    assert "there is no script 'nowhere.py' in " in missing
    assert "orchestrator/" not in missing
    assert re.search(r"where 1 = <ScriptRun of written-\S+: failed, exit code 1: worker-0 ValueError: a reason>", run.out), run.out
    assert "orch_cluster has no 'run' here, because no marker of this test says workers=" in run.out


def check_what_the_report_says_of_the_tasks(run: PytestRun) -> None:
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


def check_that_code_that_runs_in_tasks_alone_is_covered(run: PytestRun) -> None:
    """`count_cpus` and `twice` are called in tasks only, which are killed when their test is over."""
    assert re.search(r"^step.py +6 +0 +100%", run.out, re.MULTILINE), run


# --- what users do to pytest -------------------------------------------------------------------

QUICK = """
    import os, signal, sys, time
    import pytest

    pytestmark = pytest.mark.orch(preload=[])  # nothing here needs TensorFlow


    @pytest.mark.orch(workers=1, reuse=True)
    @pytest.mark.parametrize("number", [1, 2])
    def test_reuse(orch_cluster, number):
        orch_cluster.run(print, f"in test {number}")
        print("PID", *orch_cluster.run(os.getpid).values())
        assert orch_cluster.logs("worker-0") == f"in test {number}\\n"


    @pytest.mark.orch(workers=1)
    def test_default(orch_cluster):
        print("TIMEOUT", orch_cluster.timeout_s, "PID", *orch_cluster.run(os.getpid).values())
"""
FAILS = """
    import os, time
    import pytest


    @pytest.mark.orch(workers=2, preload=[], grace=60)
    def test_fails_in_one_task(orch_cluster):
        job = orch_cluster.start(time.sleep, 1000, on="worker-1")
        orch_cluster.run(lambda: os._exit(3), on="worker-0")


    def test_never_comes():
        pass
"""
BUSY = """
    import os, pathlib, time
    import pytest


    @pytest.mark.orch(workers=2, preload=[])
    def test_waits(orch_cluster):
        job = orch_cluster.start(time.sleep, 1000)
        pids = [task.pid for task in orch_cluster.tasks.values()]
        pathlib.Path("part").write_text(" ".join(map(str, pids)))
        pathlib.Path("part").rename("pids")
        job.result()


    def test_never_comes():
        pass
"""


@pytest.fixture
def quick(tmp_path: Path) -> Path:
    write(tmp_path, test_quick=QUICK)
    return tmp_path


def test_options(quick: Path) -> None:
    """-s streams, --orch-timeout holds where a test says nothing, --orch-keep keeps, --orch-logs shows."""
    shown = run_pytest(quick, "-s", "--orch-timeout", "33s", "--orch-keep", "--basetemp=base")
    assert shown.code == 0, shown
    assert "[worker-0] in test 1\n" in shown.out
    assert "TIMEOUT 33.0" in shown.out
    pids = re.findall(r"PID (\d+)", shown.out)
    assert (len(pids), len(set(pids[:2]))) == (3, 1), shown
    logged = run_pytest(quick, "-rA", "--orch-logs")
    assert re.search(r"^-+ orch: worker-0 -+\nin test 2$", logged.out, re.MULTILINE), logged
    assert "[worker-0] in test" not in logged.out, "the lines come once"


def test_nothing_goes_on_after_the_first_failure(tmp_path: Path) -> None:
    write(tmp_path, test_first=FAILS)
    own = tmp_path / "temporary"
    own.mkdir()
    done = run_pytest(tmp_path, "-x", "-rA", env={"TMPDIR": str(own)})
    assert (done.code, done.outcomes) == (1, {"test_fails_in_one_task": "failed"}), done
    assert "TaskFailed: worker-0: exit code 3" in done.out
    assert list(own.glob("orch*")) == []


def test_in_parallel_workers_of_xdist(quick: Path) -> None:
    long = quick / ("long" * 30)
    long.mkdir()
    done = run_pytest(quick, "-n", "2", "-rA", env={"TMPDIR": str(long)})
    assert done.code == 0, done
    assert set(done.outcomes.values()) == {"passed"}


def test_a_session_ends_before_a_worker_of_xdist_says_that_it_has_finished(tmp_path: Path) -> None:
    """From then on the worker has five seconds (execnet), and on a busy machine the end of a session takes longer."""
    conftest = """
        import pytest
        from orchestrator.testing.session import Session

        @pytest.hookimpl(wrapper=True)
        def pytest_sessionfinish():
            path = Session.current().path
            result = yield
            print("AFTER", Session.current(), path.exists())
            return result
    """
    test = """
        import pytest

        @pytest.mark.orch(workers=1, preload=[])
        def test_one(orch_cluster):
            assert orch_cluster.run(len, "abc") == {"worker-0": 3}
    """
    write(tmp_path, conftest=conftest, test_one=test)
    assert "AFTER None False" in (done := run_pytest(tmp_path, "-s")).out, done


def test_the_job_of_the_page_keeps_what_each_task_has_written(quick: Path) -> None:
    """The step of docs/testing.md that runs pytest, and the files of the step after it."""
    block = (ROOT / "docs/testing.md").read_text().partition("```yaml\n")[2].partition("```")[0]
    steps = yaml.safe_load(block)["jobs"]["test"]["steps"]
    line = next(step for step in steps if step.get("run", "").startswith("pytest"))
    kept = next(step for step in steps if "upload-artifact" in step.get("uses", ""))["with"]["path"]
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        temporary = line["env"]["TMPDIR"].replace("${{ runner.temp }}", directory)
        done = run_pytest(quick, *shlex.split(line["run"])[1:], "-rA", env={"TMPDIR": temporary})
        assert (done.code, set(done.outcomes.values())) == (0, {"passed"}), done
        pattern = kept.replace("${{ runner.temp }}", directory)
        assert "in test 1\n" in "".join(Path(name).read_text() for name in glob.glob(pattern, recursive=True))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_outlives_pytest(tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C, and a crash, in the middle of a function."""
    write(tmp_path, test_busy=BUSY)
    own = tmp_path / "temporary"
    own.mkdir()
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(own)}
    with (tmp_path / "out").open("wb") as out:
        running = subprocess.Popen(command(), cwd=tmp_path, env=env, stdout=out, stderr=out)
    try:
        wait_until((tmp_path / "pids").exists, running, tmp_path)
        pids = [int(word) for word in (tmp_path / "pids").read_text().split()]
        family = psutil.Process(running.pid).children(recursive=True) + [psutil.Process(pid) for pid in pids]
        running.send_signal(number)
        code = running.wait(200)
    finally:
        running.kill()
        running.wait()
    _, alive = psutil.wait_procs(family, timeout=200)
    assert not alive
    if number == signal.SIGINT:
        assert code == pytest.ExitCode.INTERRUPTED
        assert "KeyboardInterrupt" in (tmp_path / "out").read_text()
        assert list(own.glob("orch*")) == []


def wait_until(happens: Callable[[], bool], running: subprocess.Popen[bytes], directory: Path) -> None:
    until = time.monotonic() + 120
    while not happens():
        assert running.poll() is None, (directory / "out").read_text()
        assert time.monotonic() < until, (directory / "out").read_text()
        time.sleep(0.02)
