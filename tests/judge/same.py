"""``python -m tests.judge.same``: compare the first steps of the judge's cases as `orch verify` does, and print where the two disagree.

A case that the judge's table calls "as one process" for two workers must be the same training, and one that "differs" must be another one,
up to what `ALLOWED` names.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import orchestrator
from orchestrator.checks.same_training import compare, sentences
from orchestrator.checks.training_steps import world

from . import cases
from .case import CASES, units
from .findings import ROOT

assert cases
PARTS = 4
ALLOWED = {
    "mixed_float16, the gradients of one replica overflow": "orch verify begins with a scale at which no gradient overflows",
}
"""Rows that differ, and that the first steps do not show."""
OTHER_ROWS = re.compile("files of .*, (AUTO|FILE)|files of unequal length, FILE.*")
"""Cases in which each worker reads files of its own: all rows are read once in an epoch, and a step has others than in one process."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--areas", default="optimizers,losses,metrics,layers,models,inputs,callbacks,endings,loops")
    parser.add_argument("--forms", default="even")
    parser.add_argument("--only", default="")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--part", type=int, help=f"one part of {PARTS}, as this number chooses it: a part for each night")
    wishes = parser.parse_args()
    chosen = [case for case in CASES.values() if case.area in wishes.areas.split(",") and wishes.only in case.name]
    todo = units(chosen, wishes.forms.split(","))
    todo = todo if wishes.part is None else todo[wishes.part % PARTS :: PARTS]
    one, two = _run(todo, 1, wishes.steps), _run(todo, 2, wishes.steps)
    counts: dict[str, int] = {}
    table = json.loads((Path(__file__).parent / "verdicts.json").read_text())["rows"]
    for number, unit in enumerate(todo):
        word, text = _judged(one.get(number, {}), two.get(number, {}))
        rows = CASES[unit[0]].rows or (unit[0],)
        known = sorted({str(table.get(row, {}).get("two", {}).get(unit[1], "?")) for row in rows})
        is_whole = CASES[unit[0]].compare == "one process" and not OTHER_ROWS.fullmatch(unit[0])
        is_as_one = is_whole and all("as one" in each for each in known)
        is_other = any("differs" in each for each in known) and not {*rows} & ALLOWED.keys()
        word = "FALSE ALARM" if word == "other" and is_as_one else "MISSED" if word == "same" and is_other else word
        counts[word] = counts.get(word, 0) + 1
        if word != "same" or any("as one" not in each for each in known):
            print(f"{word}: {unit[0]}, {unit[1]} [judge: {', '.join(known)[:60]}]: {text}", flush=True)
    print(counts)
    return 1 if counts.keys() & {"FALSE ALARM", "MISSED", "error", "missing", "steps in one world"} else 0


def _judged(one: dict[str, Any], two: dict[str, Any]) -> tuple[str, str]:
    if not one or len(two) < 2:
        return "missing", ""
    if errors := [found["error"] for found in (*one.values(), *two.values()) if found["error"]]:
        return "error", errors[0][:300]
    worlds = world(one), world(two)
    if not worlds[0].steps and not worlds[1].steps:
        return "no step", ""
    if not worlds[0].steps or not worlds[1].steps:
        return "steps in one world", ""
    found = compare(*worlds, 2)
    return "same" if found.is_same else "other", " | ".join(sentences(found))


def _run(todo: list[tuple[str, str]], workers: int, steps: int) -> dict[int, dict[str, Any]]:
    """What each task has written down of each unit."""
    found: dict[int, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="orch-same-") as made:
        directory, begin = Path(made), 0
        while begin < len(todo):
            (directory / "units").write_text(json.dumps(todo[begin:]))
            program, env = str(Path(__file__).parent / "same_program.py"), {"TF_CPP_MIN_LOG_LEVEL": "2"}
            args = [str(directory / "units"), made]
            with orchestrator.launch(
                program, workers=workers, args=args, verify={"steps": steps}, env=env, workdir=ROOT, home=directory / "home"
            ) as run:
                result = run.wait()
            done = 0
            for path in sorted(directory.glob("worker-*.json")):
                task, number, _ = path.name.rsplit(".", 2)
                done = max(done, int(number) + 1)
                found.setdefault(begin + int(number), {})[task] = json.loads(path.read_text())
                path.unlink()
            for path in directory.glob("*.at*"):
                path.unlink()
            if result.exit_code and not done:
                print(result.report, file=sys.stderr)
            begin += max(done, 1) if result.exit_code else len(todo)
            print(f"{workers}: {begin} of {len(todo)}", file=sys.stderr, flush=True)
    return found


if __name__ == "__main__":
    sys.exit(main())
