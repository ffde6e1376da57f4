"""The table of docs/limits.md: what was run, when, and what was found. The results are kept, so that a cell can be run alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.measure import fill

from .cells import CELLS, Cell
from .checks import CHECKS, REAL_TESTS
from .environments import PLACE, ROOT

PAGE = ROOT / "docs" / "limits.md"
RESULTS = PLACE / "results.json"
OK, FAILED, NOT_RUN = "ok", "FAILED", "not run"
Results = dict[str, dict[str, Any]]
"""By the name of a cell: its `versions`, the `date` of the newest and (`since`) of the oldest check, and `checks`: what each found."""


def load() -> Results:
    """What was found so far; in a new clone, what the table says."""
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else read(PAGE.read_text())


def read(text: str, cells: tuple[Cell, ...] = CELLS) -> Results:
    """The results that the table of a page shows, all with its dates; none if the table is of other cells."""
    lines = text.partition("<!-- written by `make matrix` -->\n")[2].partition("<!-- end of")[0].splitlines()
    dates = next((line.partition(";")[0].split()[1:] for line in lines if line.startswith("Run ")), [""])
    table = [[word.strip() for word in line[1:-1].split("|")] for line in lines if line.startswith("|")]
    rows = table[2:] if len(table) == len(cells) + 2 else []
    found: Results = {}
    for cell, (python, tensorflow, keras, but) in zip(cells, rows, strict=False):
        others = {title: word for word, _, titles in (part.partition(": ") for part in but.split("; ")) for title in titles.split(", ")}
        checks = {title: others.get(title, OK) for title in (*CHECKS, REAL_TESTS) if others.get(title) != NOT_RUN}
        versions = {"python": python.partition(",")[0], "tensorflow": tensorflow, "keras": keras}
        if checks:
            found[cell.name] = {"since": dates[0], "date": dates[-1], "versions": versions, "checks": checks}
    return found


def keep(cell: Cell, result: dict[str, Any]) -> None:
    """Keep what was found in a cell. A check that was left out keeps what it has found with the same versions."""
    found = load()
    before = found.get(cell.name)
    if before is not None and before["versions"] == result["versions"]:
        since = {"since": before.get("since", before["date"])} if before["checks"].keys() - result["checks"].keys() else {}
        result = {**result, **since, "checks": {**before["checks"], **result["checks"]}}
    found[cell.name] = result
    RESULTS.write_text(json.dumps(found, indent=1))


def write(results: Results, page: Path = PAGE) -> None:
    """Replace the table between the two marks."""
    fill(page, "matrix", render(results))


def render(results: Mapping[str, Any], cells: tuple[Cell, ...] = CELLS) -> str:
    rows = [_row(cell, results.get(cell.name)) for cell in cells]
    found = [results[cell.name] for cell in cells if cell.name in results]
    dates = sorted({date for one in found for date in (one.get("since", one["date"]), one["date"])})
    when = " to ".join(dict.fromkeys((dates[0], dates[-1]))) if dates else "never"
    head = "| Python | TensorFlow | Keras | all checks passed, but |\n|---|---|---|---|\n"
    return f"Run {when}; the checks: {', '.join(CHECKS)}, {REAL_TESTS}.\n\n{head}{''.join(rows)}"


def _row(cell: Cell, result: dict[str, Any] | None) -> str:
    versions = result["versions"] if result else {}
    python = versions.get("python", cell.python)
    python += ", lowest click, psutil, PyYAML" if cell.lowest else ", an ordinary user" if cell.ordinary else ""
    checks: Mapping[str, str] = result["checks"] if result else {}
    releases = (python, versions.get("tensorflow", cell.tensorflow), versions.get("keras", cell.keras))
    by_word: dict[str, list[str]] = {}
    for title in (*CHECKS, REAL_TESTS):
        if (word := checks.get(title, NOT_RUN)) != OK:
            by_word.setdefault(word, []).append(title)
    but = "; ".join(f"{word}: {', '.join(titles)}" for word, titles in by_word.items())
    return f"| {' | '.join((*releases, but))} |\n"
