"""What the judge has found: the verdicts by case, form of data and world, their counts, and the table of docs/keras-cases.md."""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from worker.settings.releases import NEWEST_KERAS

from .case import CASES, Case, find
from .tasks import Unit
from .verdicts import ABSENT, AS_ONE, BAD, BY_HAND, ORDER, SAYS_SO, UNEVEN, Verdict, judge
from .worlds import WORLDS, Answers, World

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "tests" / "judge" / "verdicts.json"
PAGE = ROOT / "docs" / "keras-cases.md"
TABLE = PAGE.with_suffix(".csv")
BEGIN, END = "<!-- make judge: begin -->\n", "<!-- make judge: end -->\n"
COLUMNS = tuple(name for name, world in WORLDS.items() if world.reference)
NEXT = World("two-next", f"2 workers, Keras {NEWEST_KERAS}", {"workers": 2})
"""The column of a newer Keras than that of the table: only the rows that differ from those of 2 workers are kept."""
_TITLES = {name: world.title for name, world in (*WORLDS.items(), (NEXT.name, NEXT))}
TITLES = {
    "inputs": "forms of input",
    "models": "models, and ways to run them",
    "endings": "ends of epochs and of trainings, files",
    "loops": "loops of your own (`strategy.run`)",
    "draws": "trainings drawn at random",
}

Verdicts = dict[str, dict[str, dict[str, Verdict]]]
"""By world, row and form of data."""
Words = dict[str, dict[str, dict[str, str]]]
"""By row, world and form of data."""


def verdicts(answers: Mapping[str, Mapping[tuple[str, str], Answers]], worlds: Mapping[str, World] = WORLDS) -> Verdicts:
    found: Verdicts = {}
    for name, world in worlds.items():
        reference, of_world = answers.get(world.reference, {}), answers.get(name, {})
        said = _lines_by_model(of_world)
        for unit, of_tasks in of_world.items():
            if unit in reference:
                case, all_said = find(unit[0]), _with_lines_of_model(unit, of_tasks, said)
                for row in case.rows or (case.name,):
                    found.setdefault(name, {}).setdefault(row, {})[unit[1]] = judge(case, row, all_said, reference[unit])
    return found


Said = dict[str, list[tuple[Unit, str, str]]]
"""By model: the unit and the task in which orch has said a line."""


def _lines_by_model(of_world: Mapping[Unit, Answers]) -> Said:
    said: Said = {}
    for unit, of_tasks in of_world.items():
        of_model = said.setdefault(find(unit[0]).model or unit[0], [])
        of_model += [(unit, task, line) for task, answer in of_tasks.items() for line in answer.get("lines", ())]
    return said


def _with_lines_of_model(unit: Unit, of_tasks: Answers, said: Said) -> Answers:
    """The answers to one unit, with what orch has said in any unit that trains the same model: a model that was traced for one of them is
    not traced again for the next one, and what is said when a model is traced is said once. What is said of uneven parts counts for the
    case alone, and says nothing of its whole batches.
    """
    lines: dict[str, list[str]] = {}
    for where, task, line in said[find(unit[0]).model or unit[0]]:
        if where == unit or (where[0] == unit[0] and unit[1] != "even") or not UNEVEN.search(line):
            lines.setdefault(task, []).append(line)
    return {task: {**answer, "lines": list(dict.fromkeys(lines.get(task, ())))} for task, answer in of_tasks.items()}


def wrong(found: Verdicts) -> Iterator[str]:
    for world, rows in found.items():
        for row, forms in rows.items():
            for form, verdict in forms.items():
                if verdict.word in BAD:
                    yield f"{world}: {row}, {form}: {verdict.word}: {verdict.detail[:160]}"


def words(found: Verdicts) -> Words:
    rows: Words = {}
    for world, of_world in found.items():
        for row, forms in of_world.items():
            rows.setdefault(row, {})[world] = {form: verdict.word for form, verdict in forms.items()}
    return rows


def count(rows: Words) -> dict[str, dict[str, int]]:
    """How many rows have which word, by world; a row has its worst word."""
    found: dict[str, Counter[str]] = {}
    for worlds in rows.values():
        for world, forms in worlds.items():
            found.setdefault(world, Counter())[max(forms.values(), key=ORDER.index)] += 1
    return {world: {word: counted[word] for word in ORDER if counted[word]} for world, counted in found.items()}


def read() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FILE.read_text())
    return found


def write(rows: Words, versions: Mapping[str, str], *, is_whole: bool) -> None:
    """Write the file and the table of the page. What was not judged this time stays, unless all was."""
    kept: Words = {} if is_whole or not FILE.exists() else read()["rows"]
    if kept and versions["Keras"] != read()["versions"]["Keras"]:
        versions, words = read()["versions"], {row: worlds["two"] for row, worlds in rows.items() if "two" in worlds}
        rows = {row: {NEXT.name: forms} for row, forms in words.items() if not forms.items() <= kept[row]["two"].items()}
    for row, worlds in rows.items():
        for world, forms in worlds.items():
            of_world = kept.setdefault(row, {}).setdefault(world, {})
            if world in WORLDS and not WORLDS[world].has_every_form and {*forms.values()} <= {AS_ONE, ABSENT}:
                of_world.clear()  # the easier forms are not judged any longer
            of_world.update(forms)
    kept = {row: kept[row] for row in row_names() if row in kept}
    lines = ",\n".join(f"{json.dumps(row)}: {json.dumps(worlds)}" for row, worlds in kept.items())
    FILE.write_text(f'{{"versions": {json.dumps(versions)},\n"counts": {json.dumps(count(kept))},\n"rows": {{\n{lines}\n}}}}\n')
    page = PAGE.read_text()
    head, _, rest = page.partition(BEGIN)
    PAGE.write_text(f"{head}{BEGIN}{render(read())}{END}{rest.partition(END)[2]}")
    TABLE.write_text(render_all(read()))


# --- the table -----------------------------------------------------------------------------------


def row_names() -> dict[str, Case]:
    """Every row that the table must have, with its case."""
    return {row: case for case in CASES.values() for row in case.rows or (case.name,)}


SHOWN = {AS_ONE: "same", SAYS_SO: "differs, orch warns", BY_HAND: "Keras fails"}
"""The words as the page and the file next to it show them, where they are others."""
USUAL = {"same", "same; last batch: differs, orch warns", "-"}
"""The words of most rows under MirroredStrategy and with Keras 2, which the page has once, above its table."""
SEVERAL = ("two", "three", "two-of-two", "two-oldest")
"""The worlds of several workers with Keras 3, in which a smaller last batch is as one process, too."""


def render(kept: Mapping[str, Any]) -> str:
    """The table: a row for the cases with the same difference; the file next to the page has all cases."""
    names, judged = row_names(), kept["rows"]
    usual = sum(not _differs(case, judged[row]) for row, case in names.items() if row in judged)
    lines = [
        f"Made by `make judge` with {', '.join(f'{name} {version}' for name, version in kept['versions'].items())}; do not edit.",
        f"{usual} of {len(judged)} uses are not in this table.",
        "",
        f"| use | several workers | Mirrored Strategy | Keras 2 | {_short('two-oldest')} |",
        "|---|---|---|---|---|",
    ]
    for area in dict.fromkeys(case.area for case in names.values()):
        alike: dict[str, list[str]] = {}
        for row, case in names.items():
            if case.area == area and (found := _differs(case, judged.get(row, {}))):
                why = f"<br>*{case.because}*" if case.because else ""
                alike.setdefault(f"{why} | {' | '.join(_columns(found))} |", []).append(_shown(row))
        lines += [f"| **{TITLES.get(area, area)}** | | | | |"] if alike else []
        lines += [f"| {' · '.join(rows)}{what}" for what, rows in alike.items()]
    return "\n".join([*lines, ""])


def _differs(case: Case, judged: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """The words that are not the usual ones, by world."""
    cells = {world: _cell(case, judged[world]) for world in (*COLUMNS, NEXT.name) if judged.get(world)}
    return {world: cell for world, cell in cells.items() if cell not in (USUAL if world not in SEVERAL else {"same", "-"})}


def _columns(found: Mapping[str, str]) -> Iterator[str]:
    """The cells of a row. That of several workers has the word of all of them, or names the worlds that have one."""
    of_several = {world: found.get(world, "same") for world in SEVERAL if world != "two-oldest"}
    shown = dict.fromkeys(of_several.values())
    each = [f"{', '.join(_short(world) for world in of_several if of_several[world] == word)}: {word}" for word in shown if word != "same"]
    newer = [f"{_short(NEXT.name)}: {found[NEXT.name]}"] if NEXT.name in found else []
    yield "; ".join([*(shown if len(shown) == 1 and "same" not in shown else each), *newer])
    yield from (found.get(world, "") for world in ("mirrored", "two-keras-2", "two-oldest"))


def _short(world: str) -> str:
    return _TITLES[world].replace("2 workers, Keras", "Keras")


def render_all(kept: Mapping[str, Any]) -> str:
    """All verdicts as CSV, of which ``orch help keras WORD`` shows rows."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["use", *(_TITLES[world] for world in (*COLUMNS, NEXT.name)), "why"])
    for row, case in row_names().items():
        if judged := kept["rows"].get(row):
            worlds = {**judged, NEXT.name: judged.get(NEXT.name) or judged.get("two", {})}
            table.writerow([row, *(_cell(case, worlds.get(world, {})) for world in (*COLUMNS, NEXT.name)), case.because])
    return text.getvalue()


def _shown(row: str) -> str:
    return f"`{row}`" if re.fullmatch(r"[\w.]+\(.*\)|\w+=[\w.]+", row) else row


def _cell(case: Case, forms: Mapping[str, str]) -> str:
    """The word of whole batches, and that of a smaller last batch if it is another one. The hardest form alone stands for both."""
    if not forms:
        return "-"
    words = {form: _word(case, word) for form, word in forms.items()}
    last = max((forms[form] for form in forms if form != "even"), key=ORDER.index, default=None)
    first = words.get("even", "")
    if last is None or _word(case, last) == first:
        return first
    return f"{first}; last batch: {_word(case, last)}" if first else _word(case, last)


def _word(case: Case, word: str) -> str:
    """A row that is not compared with one process does not say that it is."""
    return "not comparable" if word == AS_ONE and case.compare != "one process" else SHOWN.get(word, word)


def table_of_page() -> str:
    return PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
