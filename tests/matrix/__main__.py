"""`python -m tests.matrix [CELL…]`: run the checks in these cells, or in all, and write the table of docs/limits.md."""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from . import checks, environments, table
from .cells import CELLS, CORNERS, Cell
from .checks import Wrong
from .environments import NotMade, NotPossible

_VERSIONS = """
import json, platform
from importlib.metadata import distributions
names = {"tensorflow-cpu": "tensorflow", "keras": "keras", "keras-nightly": "keras", "tf-keras": "keras_2"}
found = {names[each.name.replace("_", "-")]: each.version for each in distributions() if each.name.replace("_", "-") in names}
print(json.dumps({"python": platform.python_version(), **found}))
"""


def main(words: list[str]) -> int:
    names = {cell.name: cell for cell in CELLS}
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description=__doc__)
    parser.add_argument("cells", nargs="*", metavar="CELL", help=f"one of {', '.join(names)}")
    parser.add_argument("--corners", action="store_true", help="the lowest, the newest and the next, with few real tests; without a table")
    checked = [*checks.CHECKS, checks.REAL_TESTS]
    parser.add_argument("--without", action="append", default=[], choices=checked, metavar="CHECK", help=f"one of {', '.join(checked)}")
    given = parser.parse_args(words)
    if unknown := [name for name in given.cells if name not in names]:
        parser.error(f"there is no cell {unknown[0]!r}: {', '.join(names)}")
    if given.corners and not given.cells:
        return _run_beside_each_other(*([*words, cell.name] for cell in CORNERS))
    return max([_run(cell, given.corners, given.without) for cell in [names[name] for name in given.cells] or CELLS])


def _run_beside_each_other(*words: list[str]) -> int:
    """Run this program several times. Half of the time that a corner takes, one of its checks waits."""
    processes = [subprocess.Popen([sys.executable, "-m", "tests.matrix", *each]) for each in words]
    try:
        return int(any(process.wait() for process in processes))
    finally:
        for process in processes:
            process.wait()  # Ctrl-C has reached each of them


def _run(cell: Cell, is_corner: bool, left_out: list[str]) -> int:
    """0: all is well, or the cell cannot be checked on this machine, which a line says; 1: something has failed."""
    try:
        asked, cell = cell, environments.fit(cell) if is_corner or cell.is_next else cell
        if cell != asked:
            print(f"orch: NOT TESTED: {asked.name}: no Python {asked.python} here; {cell.name} in its place", file=sys.stderr)
        began = time.monotonic()
        python = environments.make(cell)
        print(f"== {cell.name}: environment {time.monotonic() - began:.0f} s", flush=True)
        found = _check(cell, python, is_corner, left_out)
    except NotPossible as reason:
        print(f"orch: NOT TESTED: {cell.name}: {reason}", file=sys.stderr)
        return 0
    except NotMade as reason:
        print(f"FAILED: {cell.name}: {reason}", file=sys.stderr)
        return 1
    if not is_corner:
        found = {"date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(), **found}
        table.keep(asked, found)
        table.write(table.load())
        print(table.render({asked.name: found}, (asked,)), flush=True)
    return int(table.FAILED in found["checks"].values())


def _choose(cell: Cell, is_corner: bool, left_out: list[str]) -> dict[str, checks.Check]:
    found = {**checks.CHECKS, checks.REAL_TESTS: checks.corner_tests if is_corner else checks.tests}
    return {name: check for name, check in found.items() if name not in left_out and not (is_corner and check in checks.LONG)}


def _check(cell: Cell, python: Path, is_corner: bool, left_out: list[str]) -> dict[str, Any]:
    results: dict[str, str] = {}
    with checks.bench(cell, python) as bench:
        code, said = bench.run("-I", "-c", _VERSIONS)
        if code:
            raise NotPossible(f"its interpreter cannot be used: {said.strip()}")
        versions = json.loads(said)
        if not versions.pop("keras_2", ""):
            left_out = [*left_out, *(name for name, check in checks.CHECKS.items() if check is checks.fit_of_keras_2)]
        chosen = _choose(cell, is_corner, left_out)
        try:
            for name, check in chosen.items():
                began = time.monotonic()
                try:
                    check(bench)
                    results[name] = table.OK
                except Wrong as wrong:
                    print(f"FAILED: {cell.name}: {name}: {wrong}", flush=True)
                    results[name] = table.FAILED
                print(f"{cell.name}: {name}: {results[name]}, {time.monotonic() - began:.0f} s", flush=True)
        finally:
            bench.run("-m", "orchestrator", "warm", "stop")
    return {"versions": versions, "checks": results}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
