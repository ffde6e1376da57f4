"""How large the house is, and how far it is from the command to the script: for those who change the code.

Lines, modules and functions are counted in the source. What a start enters is traced: `orch up` of a plain script with two tasks, and every
module whose functions are called in the controller, the agent and a task before the first line of the script runs. The other
rows count the files that know a thing which one file should know: a setting, a strategy, a kind of place.

``python -m benchmarks.house --tree OTHER/CHECKOUT`` counts another checkout beside this one, with the same rules.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measure import PROGRAMS, ROOT, environment, table

HOUSE = ("orchestrator", "worker")
SMALL = 40
"""A module with fewer lines may have been cut off from another one."""
KNOWN_BY = {
    "files that name the setting heartbeat_s": r"\bheartbeat_s\b",
    "files that name a strategy": r"[\"'](?:multi_worker_mirrored|parameter_server|mirrored|one_device)[\"']|\bSINGLE_TASK_STRATEGIES\b",
    "files that name a kind of place": r"[\"'](?:ssh|local)[\"']|(?:\bspec\.|[\"'])backend\.hosts\b|\bbackend\.type\b",
}


def modules(tree: Path) -> list[Path]:
    """Every Python file of the product."""
    return sorted(path for room in HOUSE for path in (tree / room).rglob("*.py"))


def count(tree: Path) -> dict[str, str]:
    """The figures of one checkout that its source tells."""
    texts = {path: path.read_text(encoding="utf-8") for path in modules(tree)}
    functions = [length for text in texts.values() for length in _function_lengths(text)]
    names = Counter(path.name for path in texts if path.name != "__init__.py")
    tests = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in (tree / "tests").rglob("*.py"))
    sizes = [len(text.splitlines()) for text in texts.values()]
    found = {
        "source lines": f"{sum(sizes):,}",
        "modules": str(len(texts)),
        f"modules under {SMALL} lines": str(
            sum(size < SMALL and path.name != "__init__.py" for path, size in zip(texts, sizes, strict=True))
        ),
        "files that share their name with another": str(sum(number for number in names.values() if number > 1)),
        "functions": f"{len(functions):,}",
        "lines of a function, median and longest": f"{statistics.median(functions):g}, {max(functions)}",
        "lines of the tests": f"{tests:,}",
    }
    for what, pattern in KNOWN_BY.items():
        found[what] = str(sum(bool(re.search(pattern, _without_prose(text))) for text in texts.values()))
    return found


def _function_lengths(text: str) -> Iterator[int]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield (node.end_lineno or 0) - node.lineno + 1


def _without_prose(text: str) -> str:
    """The code without comments and without texts that stand alone, such as docstrings."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        for body in (getattr(node, "body", None), getattr(node, "orelse", None)):
            if isinstance(body, list):
                body[:] = [one for one in body if not _is_text(one)] or [ast.Pass()]
    return ast.unparse(ast.fix_missing_locations(tree))


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def trace(tree: Path) -> dict[str, str]:
    """What a start enters, by running one. Empty figures where the run fails."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        notes, first = directory / "notes", directory / "first"
        python = directory / "python"
        python.write_text(f'#!/bin/sh\nexec {sys.executable} {PROGRAMS}/trace_modules.py {notes} {tree}/ "$0" "$@"\n')
        python.chmod(0o700)
        script = directory / "script.py"
        script.write_text(f"import time\nopen({str(first)!r}, 'a').write(f'{{time.time()!r}}\\n')\n")
        program = [str(python), str(tree / "orchestrator" / "__main__.py"), "up", str(script)]
        options = ["--workers", "2", "--strategy", "multi_worker_mirrored", "--python", str(python), "--home", str(directory / "runs")]
        done = subprocess.run(
            [*program, *options],
            cwd=directory,
            env=environment(PYTHONPATH=str(tree)),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode or not first.exists():
            print(f"{tree}: the traced run ended with {done.returncode}:\n{done.stdout}{done.stderr}", file=sys.stderr)
            return {}
        began_at = min(map(float, first.read_text().split()))
        entered = [line.split(" ", 1) for line in notes.read_text().splitlines()]
    before = {path for at, path in entered if float(at) < began_at and os.path.relpath(path, tree).startswith(HOUSE)}
    sides = Counter(os.path.relpath(path, tree).split(os.sep)[0] for path in before)
    parts = " and ".join(f"{number} of {side}" for side, number in sorted(sides.items()))
    sizes = sum(len(Path(path).read_text(encoding="utf-8").splitlines()) for path in before)
    return {
        "modules entered before the script's first line": f"{len(before)}: {parts}",
        "lines of these modules": f"{sizes:,}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tree", type=Path, action="append", default=[], help="another checkout, counted first")
    parser.add_argument("--quick", action="store_true", help="nothing is quicker: taken so that all benchmarks take it")
    trees = [*parser.parse_args().tree, ROOT]
    columns = [{**count(tree), **trace(tree)} for tree in (tree.resolve() for tree in trees)]
    rows = [(what, *(column.get(what, "-") for column in columns)) for what in columns[-1]]
    table(("", *("this checkout" if tree == ROOT else str(tree.name) for tree in trees)), rows)


if __name__ == "__main__":
    main()
