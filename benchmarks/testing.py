"""What a test costs that has two workers reduce once: `orchestrator.testing` beside TensorFlow's runners and beside plain interpreters.

One test: get a cluster, form it under MultiWorkerMirroredStrategy, reduce once in each worker, compare what the workers return, give the
cluster back. The ways take turns, a test each, in one long-lived process a way (``programs/reduce_tests.py``), so what is timed is a test
of a suite that is warm: the first test of each, which imports TensorFlow, is shown apart. With ``--suite N``: the seconds from nothing to
the end of N such tests, one way after the other; for orch that is pytest itself with the plugin and N tests, for TensorFlow's runners a
loop, and for plain interpreters, where N tests would take minutes, N times the median of one test.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.measure import PROGRAMS, environment, load, spread, table

PROGRAM = PROGRAMS / "reduce_tests.py"
FRESH, REUSED = "orch", "orch-reuse"
NAMES = {
    FRESH: "orch, fresh processes",
    REUSED: "orch, reuse=True",
    "mpr": "multi_process_runner",
    "mpr-pool": "MultiProcessPoolRunner",
    "subprocess": "two interpreters",
}
BASES = {FRESH: "mpr", REUSED: "mpr-pool", "mpr": "mpr", "mpr-pool": "mpr-pool", "subprocess": "mpr"}
"""What each way's seconds are divided by."""
SUITE = """
import sys
sys.path.insert(0, {programs!r})
import pytest
from reduce_tests import all_reduce


@pytest.mark.parametrize("number", range({count}))
@pytest.mark.orch(workers=2, reuse={reuse})
def test_all_reduce(orch_cluster, number):
    assert orch_cluster.run(all_reduce) == {{"worker-0": 2.0, "worker-1": 2.0}}
"""


class Way:
    """A process that runs a test of one way when it is asked to."""

    def __init__(self, name: str, said: Path) -> None:
        env = environment(TF_CPP_MIN_LOG_LEVEL="2", CUDA_VISIBLE_DEVICES="-1")
        with said.open("wb") as errors:
            command = [sys.executable, str(PROGRAM), name]
            self._process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True)
        self._name, self._said = name, said

    def test(self) -> float:
        """The seconds of one test."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit(f"{self._said.read_text(errors='replace')[-4000:]}\n{NAMES[self._name]}: the test failed")
        return float(answer)

    def close(self) -> None:
        self._process.communicate()


@contextmanager
def all_ways(names: list[str]) -> Iterator[dict[str, Way]]:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ways = {}
        for name in names:
            ways[name] = Way(name, directory / f"{name}.err")
            stack.callback(ways[name].close)
        yield ways


def suite(name: str, count: int) -> float:
    """Seconds from nothing to the end of that many tests of one way."""
    with tempfile.TemporaryDirectory() as directory:
        env = environment(TF_CPP_MIN_LOG_LEVEL="2", CUDA_VISIBLE_DEVICES="-1")
        if name in (FRESH, REUSED):
            text = SUITE.format(programs=str(PROGRAMS), count=count, reuse=name == REUSED)
            (Path(directory) / "test_suite.py").write_text(text)
            command, asked = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", directory], ""
        else:
            command, asked = [sys.executable, str(PROGRAM), name], "\n" * count
        since = time.perf_counter()
        done = subprocess.run(command, cwd=directory, env=env, input=asked, capture_output=True, text=True)
        seconds = time.perf_counter() - since
        if done.returncode:
            raise SystemExit(f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}\n{NAMES[name]}: exit code {done.returncode}")
        return seconds


def progress(what: str, seconds: float) -> None:
    """A line on stderr: some of these tests take a minute on a busy machine."""
    print(f"  {what}: {seconds:.2f} s; {load()}", file=sys.stderr, flush=True)


def rows(firsts: dict[str, float], taken: dict[str, list[float]], suites: dict[str, float]) -> Iterator[tuple[str, ...]]:
    for name, seconds in taken.items():
        base = taken.get(BASES[name])
        ratio = f"{statistics.median(seconds) / statistics.median(base):.2f}" if base else "-"
        total = f"{suites[name]:.1f} s" if name in suites else "-"
        yield NAMES[name], spread(seconds), ratio, f"{firsts[name]:.1f} s", total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--suite", type=int, default=100, metavar="N", help="tests of the whole suite; 0: none")
    parser.add_argument("--quick", action="store_true", help="five rounds, a suite of ten")
    options = parser.parse_args()
    rounds, count = (5, min(options.suite, 10)) if options.quick else (options.rounds, options.suite)
    names = list(NAMES)
    missing = [name for name in ("portpicker", "dill", "tblib") if importlib.util.find_spec(name) is None]
    if missing:
        names = [name for name in names if not name.startswith("mpr")]
        print(f"TensorFlow's runners: not measured, they need {', '.join(missing)} (pip install {' '.join(missing)})")
    print(load(), flush=True)
    with all_ways(names) as ways:
        firsts = {}
        for name, way in ways.items():
            firsts[name] = way.test()
            progress(f"{name}, the first test", firsts[name])
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(rounds):
            for name in names if turn % 2 == 0 else reversed(names):
                if name != "subprocess" or turn < max(2, rounds // 10):
                    taken[name].append(ways[name].test())
                    progress(name, taken[name][-1])
    suites = {}
    for name in names if count else ():
        if name != "subprocess":
            suites[name] = suite(name, count)
            progress(f"{name}, {count} tests", suites[name])
    if count:
        suites["subprocess"] = statistics.median(taken["subprocess"]) * count
    head = (
        "a test of two workers that reduce once",
        "seconds",
        "÷ TensorFlow's",
        "the first, with its import",
        f"{count} tests, all in all",
    )
    table(head, list(rows(firsts, taken, suites)))
    print(
        f"\nMedian of {rounds} (least to most). TensorFlow's: multi_process_runner, and for reuse=True its pool. "
        f"{os.cpu_count()} cores; {load()}."
    )


if __name__ == "__main__":
    main()
