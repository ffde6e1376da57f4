"""Runs files of Keras's tests in one process, alone or as a task of orch: ``python inside.py PLACE SCOPE FILE…`` (`tests.keras_tests`).

PLACE takes what becomes of each test, a line each; a test that has a line there is not run again. SCOPE: `none`; `mirrored` and `workers`:
each test runs inside the scope of a MirroredStrategy of two CPUs, or of the run's MultiWorkerMirroredStrategy, where all workers begin each
test together, and end as soon as one went another way or TensorFlow failed: what follows would not be in step.

This file is pytest's plugin, and stands for the `conftest.py` of Keras's repository, which no wheel has.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import unittest
from collections.abc import Callable, Generator, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

TASK = os.environ.get("ORCH_TASK", "alone")
OUT_OF_STEP = 75
LEFT_OUT = [name for name in ("jax", "torch", "litert_torch", "onnxruntime") if not find_spec(name)]
"""Modules that files of tests import at their top, though only some of their tests use them. Those are left out."""


class _Absent(ModuleType):
    """Stands for such a module while the files are imported. Afterwards it is gone: Keras asks what is installed by importing it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if module := sys.modules.get(f"{self.__name__}.{name}"):
            return module
        raise ModuleNotFoundError(f"no {self.__name__}", name=self.__name__)


class Judged:
    """The plugin: the marks, the other workers, and what became of each test."""

    def __init__(self, place: Path, scope: Callable[[], contextlib.AbstractContextManager[Any]], way: str) -> None:
        self.place, self.scope = place, scope
        workers = json.loads(os.environ.get("TF_CONFIG", "{}")).get("cluster", {}).get("worker", ())
        self.others = {f"worker-{index}" for index in range(len(workers))} - {TASK}
        self.absent = {name: _Absent(name) for top in LEFT_OUT for name in (top, f"{top}.experimental", f"{top}.experimental.sparse")}
        self.count, self.began, self.outcome, self.why, self.is_broken = 0, 0.0, "", "", False
        known = json.loads(Path(__file__).with_name("known.json").read_text())[way] if TASK != "alone" else {}
        self.known = {name: reason for reason, names in known.items() for name in names}

    def pytest_configure(self, config: pytest.Config) -> None:
        for mark in ("requires_trainable_backend", "multi_device"):
            config.addinivalue_line("markers", mark)

    def pytest_collection(self) -> None:
        sys.modules.update(self.absent)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write(report.nodeid, "left out", str(report.longrepr).strip().splitlines()[-1])

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for name in self.absent:
            del sys.modules[name]
        path = self.place / f"{TASK}.jsonl"
        done = {json.loads(line)[0] for line in path.read_text().splitlines()} if path.exists() else set()
        for name in sorted({item.nodeid for item in items} & self.known.keys() - done):
            self._write(name, "known", self.known[name])
            done.add(name)
        # The tests of several devices are jax's.
        items[:] = [item for item in items if item.nodeid not in done and "multi_device" not in item.keywords]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Tell the other workers what became of the test before, and wait for theirs. Where one went another way, all end."""
        _append(self.place / f"{TASK}.at", self.outcome)
        for other in self.others:
            path = self.place / f"{other}.at"
            while not path.exists() or len(theirs := path.read_text().split("\n")) <= self.count + 1:
                time.sleep(0.002)
            if theirs[self.count] != self.outcome or self.is_broken:
                pytest.exit(f"{other}: {theirs[self.count]}, and {TASK}: {self.outcome}", OUT_OF_STEP)
        self.count, self.began, self.outcome, self.why = self.count + 1, time.monotonic(), "passed", ""
        (self.place / f"{TASK}.now").write_text(nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
        report: Any = yield
        error: BaseException | None = call.excinfo and call.excinfo.value
        self.is_broken = self.is_broken or type(error).__module__ == "tensorflow.python.framework.errors_impl"
        while error and report.failed:
            if isinstance(error, ModuleNotFoundError) and str(error.name).partition(".")[0] in LEFT_OUT:
                report.outcome, report.longrepr = "skipped", (__file__, 0, f"needs {error.name}")
            error = error.__cause__ or error.__context__
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            self.outcome, self.why = "failed", str(crash.message if crash else report.longrepr)
        elif report.skipped and self.outcome == "passed":
            reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
            self.outcome, self.why = "left out" if reason.startswith("needs ") else "skipped", reason

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._write(nodeid, self.outcome, self.why)

    def _write(self, name: str, outcome: str, why: str) -> None:
        line = [name, outcome, round(time.monotonic() - self.began, 2), " ".join(why.split())[:300]]
        _append(self.place / f"{TASK}.jsonl", json.dumps(line))

    @pytest.hookimpl(wrapper=True)
    def pytest_pyfunc_call(self) -> Generator[None, Any, Any]:
        with self.scope():
            return (yield)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED):
            (self.place / f"{TASK}.end").touch()


def _append(path: Path, line: str) -> None:
    with open(path, "a") as file:
        file.write(line + "\n")


def _scope(name: str) -> Callable[[], contextlib.AbstractContextManager[Any]]:
    if name == "none":
        return contextlib.nullcontext
    import tensorflow as tf

    strategy: Any
    if name == "workers":
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    else:
        (cpu,) = tf.config.list_physical_devices("CPU")
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

    def call(self: unittest.TestCase, method: Callable[[], Any]) -> None:
        with strategy.scope():
            method()

    unittest.TestCase._callTestMethod = call  # type: ignore[attr-defined]  # after setUp, which clears Keras's session
    return lambda: strategy.scope()


def skip_if_backend(backend: str, reason: str) -> pytest.MarkDecorator:
    """What files of Keras's tests import from the conftest.py of its repository."""
    return pytest.mark.skipif(backend == "tensorflow", reason=reason)


def main(place: str, scope: str, files: Sequence[str]) -> int:
    judged = Judged(Path(place), _scope(scope), "task" if scope == "none" else scope)
    sys.modules["conftest"] = sys.modules[__name__]
    words = (
        "-q",
        "-c",
        os.devnull,
        "--rootdir",
        ".",
        "--import-mode=importlib",
        "--continue-on-collection-errors",
        "-o",
        "faulthandler_timeout=60",
    )
    return int(pytest.main([*words, "-p", "no:cacheprovider", "-p", "no:orch", *files], plugins=[judged]) == OUT_OF_STEP)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
