"""``python -m tests.judge``: judge all cases, or the chosen ones, print what is wrong, and write the table if nothing was left out."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from . import cases, findings
from .case import CASES, FORMS, find, units
from .cases import draws
from .tasks import Unit
from .verdicts import ABSENT, AS_ONE
from .worlds import OLDEST, WORLDS, Answers, World, judge_world

PACKAGES = findings.ROOT / ".cache"
"""Where the oldest release of Keras is installed."""
AT_ONCE = 60
"""How many draws run in one world before the next world has its turn."""
DRAWS = 24
"""How many draws belong to the whole."""
DRAWN_IN = ("one", *draws.WORKERS)
AREAS = tuple(dict.fromkeys(case.area for case in CASES.values()))
assert cases  # importing them has filled the list

All = dict[str, dict[tuple[str, str], Answers]]


def main() -> int:
    wishes = _parsed()
    began, answers = time.monotonic(), All()
    for path in wishes.known:
        for world, entries in json.loads(Path(path).read_text()).items():
            answers.setdefault(world, {}).update({(case, form): of_tasks for case, form, of_tasks in entries})
    chosen = [case for case in CASES.values() if case.area in wishes.areas and wishes.only in case.name] if wishes.draws is None else []
    is_whole = wishes.draws is None and [wishes.only, wishes.worlds, wishes.forms, wishes.areas] == [
        "",
        list(WORLDS),
        list(FORMS),
        list(AREAS),
    ]
    count = wishes.draws if wishes.draws is not None else DRAWS if is_whole else 0
    drawn = range(wishes.seed, wishes.seed + count)
    packages = {OLDEST: install(OLDEST)} if any(WORLDS[name].keras for name in wishes.worlds) else {}
    if chosen:
        for name in wishes.worlds:
            _judge(name, units(chosen, wishes.forms), packages, answers)
    # The draws come last, some at a time: a limit of time cuts them.
    for first in range(0, len(drawn), AT_ONCE):
        if time.monotonic() - began > wishes.minutes * 60:
            print(f"judge: {first} of {len(drawn)} draws in {wishes.minutes:g} minutes", flush=True)
            break
        for name in DRAWN_IN:
            if name in wishes.worlds:
                some = [number for number in drawn[first : first + AT_ONCE] if name in ("one", draws.world_of(number))]
                _judge(name, units((find(f"draw {number}") for number in some), ["even"]), packages, answers)
    return _told(answers, wishes, is_whole, time.monotonic() - began)


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.judge", description=__doc__)
    listed: dict[str, Any] = {"type": lambda text: text.split(","), "metavar": "A,B"}
    parser.add_argument("--areas", default=list(AREAS), help=f"of {', '.join(AREAS)}", **listed)
    parser.add_argument("--only", default="", help="cases whose name has this text")
    parser.add_argument("--worlds", default=list(WORLDS), help=f"of {', '.join(WORLDS)}", **listed)
    parser.add_argument("--forms", default=list(FORMS), help=f"of {', '.join(FORMS)}", **listed)
    parser.add_argument("--draws", type=int, help="judge so many drawn trainings, and no case")
    parser.add_argument("--seed", type=int, default=1, help="the number of the first draw")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin no more draws after so many minutes")
    parser.add_argument("--known", default=[], help="files of answers that need not be given again", **listed)
    parser.add_argument("--answers", type=Path, help="write here what every task has answered, as JSON")
    parser.add_argument(
        "--write", action="store_true", help="write what was judged into the table of docs/keras-cases.md, though it is not all"
    )
    return parser.parse_args()


def install(release: str) -> Path:
    """The directory with this release of Keras, beside the installed one; its dependencies are installed."""
    target = PACKAGES / f"keras-{release}"
    if not target.is_dir():
        PACKAGES.mkdir(exist_ok=True)
        # Two processes may install the same release: the first whole one stays.
        with tempfile.TemporaryDirectory(dir=PACKAGES) as made, contextlib.suppress(OSError):
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--target"]
            subprocess.run([*pip, f"{made}/new", f"keras=={release}"], check=True)
            os.rename(f"{made}/new", target)
    return target


def _judge(name: str, todo: list[Unit], packages: Mapping[str, Path], answers: All) -> None:
    """Judge these units in this world. Most worlds begin with the hardest form of each case, which has whole batches too: the others follow
    only if the hardest one is not as in one process.
    """
    world, of_world, began = WORLDS[name], answers.setdefault(name, {}), time.monotonic()

    def answers_in(world: World, some: list[Unit]) -> dict[Unit, Answers]:
        with tempfile.TemporaryDirectory(prefix="orch-judge-") as directory:
            return judge_world(world, some, Path(directory) / "world", packages, lambda text: print(f"  {text}", flush=True))

    def run(some: list[Unit]) -> None:
        found = answers_in(world, some)
        failed = [unit for unit, of_tasks in found.items() if any("result" not in answer for answer in of_tasks.values())]
        if failed and world.by_hand:
            by_hand = replace(world, title=f"{world.title} by hand", settings={**world.settings, **world.by_hand})
            for unit, of_tasks in answers_in(by_hand, failed).items():
                if any("result" not in answer for answer in of_tasks.values()):
                    found[unit] = {task: {**answer, "fails_by_hand": True} for task, answer in found[unit].items()}
        of_world.update(found)

    reference = answers.get(world.reference, {})
    for unit in [unit for unit in todo if any("result" not in answer for answer in reference.get(unit, {}).values())]:
        of_world[unit] = {}  # where one process fails, the others need not be asked
    last = {} if world.has_every_form else dict(todo)
    todo = [unit for unit in todo if unit not in of_world]
    run([unit for unit in todo if last.get(unit[0], unit[1]) == unit[1]])
    if last:
        found = findings.verdicts({name: of_world, world.reference: reference})[name]
        clear = {
            case for case, form in last.items() if all(found[row][form].word in (AS_ONE, ABSENT) for row in find(case).rows or (case,))
        }
        run([unit for unit in todo if unit not in of_world and unit[0] not in clear])
    print(f"judge: {world.title}: {len(of_world)} units in {time.monotonic() - began:.0f} s", flush=True)


def _told(answers: All, wishes: argparse.Namespace, is_whole: bool, seconds: float) -> int:
    """Print the bad verdicts and the counts, and write what was asked for. The exit code is 1 if there are bad verdicts."""
    found = findings.verdicts(answers)
    if wishes.answers:
        listed = {world: [[*unit, of_tasks] for unit, of_tasks in of_world.items()] for world, of_world in answers.items()}
        wishes.answers.write_text(json.dumps(listed))
    bad = list(findings.wrong(found))
    for line in bad:
        print(line)
    for world, counts in findings.count(findings.words(found)).items():
        print(f"{world}: {', '.join(f'{count} {word}' for word, count in counts.items())}")
    drawn = {line.partition(": draw ")[2].partition(",")[0] for line in bad if ": draw " in line}
    for number in sorted(drawn, key=int):
        print(f"once more: python -m tests.judge --draws 1 --seed {number} --worlds {','.join(DRAWN_IN)}")
    if is_whole or wishes.write:
        versions = {"TensorFlow": _version("tensorflow"), "Keras": _version("keras"), "Keras 2": _version("tf_keras")}
        findings.write(findings.words(found), versions, is_whole=is_whole)
        print(f"judge: wrote {findings.PAGE.relative_to(findings.ROOT)}")
    print(f"judge: {len(bad)} bad verdicts, in {seconds:.0f} s")
    return 1 if bad else 0


def _version(name: str) -> str:
    """The wheels have several names."""
    for wheel in (name, f"{name}-cpu", f"{name}-nightly"):
        try:
            return version(wheel)
        except ModuleNotFoundError:
            continue
    return "?"


if __name__ == "__main__":
    sys.exit(main())
