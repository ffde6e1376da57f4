"""Keras's own tests as a judge of orch: `make nightly PART=keras-tests`.

Ways to run a test: `task`, a task of orch with `--strategy none`; `workers`, inside the scope of two workers in step; and without orch,
`alone` and `mirrored`, inside the scope of a MirroredStrategy of two CPUs. What fails or hangs under orch, twice, is run without orch:
where it passes there, the exit code is 1. What known.json names is left out. Without a GROUP, the number of the commit chooses one.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import psutil

from tests.judge.tasks import patience
from tests.keras_tests import GROUPS
from tests.matrix import environments
from tests.matrix.cells import NEWEST, NEXT
from tests.nightly import commit, end

HERE = Path(__file__).parent
_UP = ("-m", "orchestrator", "up", str(HERE / "inside.py"))
WAYS = {
    "task": ((*_UP, "--strategy", "none", "--"), "none", "alone"),
    "workers": ((*_UP, "-n", "2", "--"), "workers", "mirrored"),
    "alone": ((str(HERE / "inside.py"),), "none", ""),
    "mirrored": ((str(HERE / "inside.py"),), "mirrored", ""),
}
"""What starts inside.py, the scope of the tests, and the same without orch."""
TEST_S, START_S = 30.0, 120.0
"""How long a test may take, and how long until the first one, on a machine without other work."""
LEFT_OUT, NEVER, DIED, APART = "left out", "never ended", "died", "ended differently"
WRONG = ("failed", NEVER, DIED, APART)
Outcomes = dict[str, tuple[str, str]]


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.keras_tests", description=__doc__)
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"of {', '.join(GROUPS)}; or files and folders of keras/src")
    parser.add_argument("--all", action="store_true", help="all groups")
    parser.add_argument("--next", action="store_true", help="with the newest Keras and TensorFlow, final or not")
    parser.add_argument("--ways", default="task,workers", help=f"of {','.join(WAYS)}, with commas")
    parser.add_argument("--keep", type=Path, help="a directory for what each run has printed, and what became of each test")
    given = parser.parse_args(words)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that what was begun is ended, too
    names = list(GROUPS) if given.all else given.groups or [list(GROUPS)[commit() % len(GROUPS)]]
    source = _make(next_=False)
    python = _make(next_=True) if given.next else source
    with tempfile.TemporaryDirectory(prefix="orch-keras-tests-") as directory:
        place = given.keep or Path(directory)
        tests = Path(directory, "tests")
        (packages,) = source.parent.parent.glob("lib/python*/site-packages")
        shutil.copytree(packages / "keras/src", tests, ignore=_only_tests)
        return max(
            [judge(name, way, python, tests, place / name.replace("/", "-") / way) for name in names for way in given.ways.split(",")]
        )


def _make(next_: bool) -> Path:
    cell = environments.fit(replace(NEXT if next_ else NEWEST, tests_of_keras=True))
    return environments.make(cell)


def _only_tests(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if not name.endswith("_test.py") and not os.path.isdir(os.path.join(folder, name))]


def judge(group: str, way: str, python: Path, tests: Path, place: Path) -> int:
    """1 if a test passes without orch, and under it twice not. Lines say what became of the tests."""
    began = time.monotonic()
    found = run(way, python, tests, GROUPS.get(group, (group,)), place)
    counts = Counter(outcome for outcome, _ in found.values())
    print(f"{group}, {way}: {', '.join(f'{count} {outcome}' for outcome, count in counts.items())}; {time.monotonic() - began:.0f} s")
    _tell({name: each for name, each in found.items() if each[0] == LEFT_OUT}, "")
    wrong = {name: each for name, each in found.items() if each[0] in WRONG}
    without = WAYS[way][2]
    passes: set[str] = set()
    if wrong and without:
        again = run(way, python, tests, wrong, place.with_name(f"{way}-again"))
        wrong = {name: each for name, each in again.items() if each[0] in WRONG}
        beside = run(without, python, tests, wrong, place.with_name(f"{way}-without")) if wrong else {}
        passes = {name for name in wrong if beside.get(name, ("", ""))[0] == "passed"}
    _tell({name: each for name, each in wrong.items() if name not in passes}, "without orch, too: " if without else "")
    _tell({name: each for name, each in wrong.items() if name in passes}, "FAILED: passes without orch: ")
    return int(bool(passes))


def _tell(found: Outcomes, what: str) -> None:
    for name, (outcome, why) in found.items():
        print(f"  {what}{name}: {outcome}: {why}", flush=True)


def run(way: str, python: Path, tests: Path, chosen: Iterable[str], place: Path) -> Outcomes:
    """What becomes of the tests of files, or of tests. One that hangs, or ends the process, has its line, and the others run after it."""
    command, scope, _ = WAYS[way]
    tasks = ["worker-0", "worker-1"] if scope == "workers" else ["worker-0"] if command[0] == "-m" else ["alone"]
    place.mkdir(parents=True, exist_ok=True)
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONPATH": ""}
    words = [str(python), *command, str(place), scope, *chosen]
    before = -1
    while sum(len(_lines(place / f"{task}.jsonl")) for task in tasks) > before:
        before = sum(len(_lines(place / f"{task}.jsonl")) for task in tasks)
        for old in (*place.glob("*.at"), *place.glob("*.now"), *place.glob("*.end")):
            old.unlink()
        with open(place / "said", "a") as said:
            process = psutil.Popen(words, cwd=tests, env=env, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True)
            try:
                outcome = _follow(process, place, tasks)
            finally:
                end(process)
        if all((place / f"{task}.end").exists() for task in tasks):
            break
        for name in {path.read_text() for path in place.glob("*.now")}:
            for task in tasks:
                path = place / f"{task}.jsonl"
                if name not in [each[0] for each in _lines(path)]:
                    with open(path, "a") as file:
                        file.write(json.dumps([name, outcome, 0, ""]) + "\n")
    return _together([{name: (outcome, why) for name, outcome, _, why in _lines(place / f"{task}.jsonl")} for task in tasks])


def _follow(process: psutil.Popen, place: Path, tasks: Sequence[str]) -> str:
    """What became of the test that runs now, once the process has ended, or nothing has gone on for too long."""
    sizes, since = [-1], time.monotonic()
    while process.poll() is None:
        now = [path.stat().st_size for path in place.glob("*.at")]
        if now != sizes:
            sizes, since = now, time.monotonic()
        if time.monotonic() - since > patience(TEST_S if len(now) == len(tasks) else START_S):
            return NEVER
        time.sleep(0.2)
    return DIED


def _lines(path: Path) -> list[tuple[str, str, float, str]]:
    return [tuple(json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def _together(found: Sequence[Outcomes]) -> Outcomes:
    """Of all tasks: where they differ, the test has ended differently."""
    first, *others = found
    result = dict(first)
    for other in others:
        for name, (outcome, why) in other.items():
            mine = result.get(name, (outcome, why))
            if mine[0] != outcome:
                mine = (mine[0] if mine[0] in (NEVER, DIED) else outcome if outcome in (NEVER, DIED) else APART), mine[1] or why
            result[name] = mine
    return result


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
