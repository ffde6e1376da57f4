"""All runs as a table: `orch ps --all`."""

from __future__ import annotations

import math
import re
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worker.protocol.task_files import NOT_FINITE
from worker.values.fast_dataclass import dataclass

from ..errors import OrchError
from ..model.cause.exit_status import describe_code
from ..model.state.cluster import Outcome
from ..model.state.progress import Progress, describe, describe_number, describe_report, place_of
from .run_directory import RunDir
from .run_progress import read_cluster
from .run_store import LATEST, name_of
from .text.event_messages import describe_outcome
from .text.format import aligned, cut, describe_moment, describe_seconds
from .text.lines import clean
from .text.run_table import LONGEST_REASON, describe_failure

if TYPE_CHECKING:
    from ..model.state.cluster import Cluster

GOODPUT = "goodput"
"""A number of each run that no task has reported."""
ARGUMENTS, LONGEST_ARGUMENTS = 5, 50
"""The place of the arguments in a row, and their most characters."""
_LESS_IS_BETTER = re.compile(r"loss|err|perplexity|(?:^|_)(?:r?mse|mae|mape|msle)$", re.IGNORECASE)
NARROW = 100
"""The columns of a terminal in which the least is shown."""
LEAST_REPORT = 30
"""The columns of a terminal that arguments leave to the last reports; in a narrow terminal they leave room for the first value."""
_STATES = {outcome.value: describe_outcome(outcome) for outcome in Outcome}
"""The words of the table for outcomes; JSON has the values."""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One run, as a row of the table and as JSON. What cannot be read is None, and `problem` says why."""

    run: str
    directory: str
    state: str | None = None
    """``running``, the outcome, or ``lost`` if the controller died without a verdict."""
    phase: str | None = None
    attempt: int | None = None
    waiting: str | None = None
    """What a run without a plan waits for."""
    controller_pid: int | None = None
    started_at: float | None = None
    took_s: float | None = None
    """Until now, if the run goes on."""
    counts: Mapping[str, int] | None = None
    arguments: Sequence[str] | None = None
    reports: Mapping[str, Mapping[str, Any]] | None = None
    """The last report of each training task."""
    values: Mapping[str, Any] | None = None
    """The options and the last report as columns of a table; see `values_of`."""
    progress: Progress | None = None
    """How far a run is that goes on."""
    result: Mapping[str, Any] | None = None
    goodput: Mapping[str, Any] | None = None
    """What views/goodput.py has measured, where it was asked for: all events and samples of the run are read for it."""
    problem: str | None = None


def summarise(run: RunDir, now: float) -> RunSummary:
    """Return what the files of a run say. `now`: seconds since the epoch."""
    known: dict[str, Any] = {"run": run.run_id, "directory": str(run.path)}
    try:
        known["state"] = state(run)
        known |= {"controller_pid": run.lock.controller_pid(), "result": run.read_result() if run.read_verdict() is not None else None}
        cluster = read_cluster(run)
        verdict = cluster.verdict
        known |= {"phase": cluster.word, "attempt": cluster.attempt, "waiting": cluster.waiting or None}
        known |= {"started_at": cluster.began_at or None, "reports": cluster.reports}
        known["progress"] = cluster.progress(now) if known["state"] == "running" else None
        # As the line of the run's end has it: without the time in which the run had no hosts.
        known["took_s"] = max(0.0, (verdict.ended_at if verdict else now) - cluster.started_at) if cluster.began_at else None
        planned = run.read_plan()
        spec = run.read_spec() if planned is None else planned.spec
        known |= {"counts": _counts(cluster) or spec.counts, "arguments": list(spec.program.args)}
        known["values"] = values_of(spec.program.args, cluster.reports)
    except OrchError as error:
        known["problem"] = str(error)
    return RunSummary(**known)


def _counts(cluster: Cluster) -> dict[str, int]:
    return dict(Counter(task.type for task in cluster.members))


def state(run: RunDir) -> str:
    if run.is_alive():
        return "running"
    verdict = run.read_verdict()
    return verdict.outcome.value if verdict else "lost"


def table(runs: Sequence[RunSummary], now: float, width: int | None = None, ids: Sequence[str] = (), *, first: str = "") -> str:
    """A line for each run, cut to `width`: what differs between the runs comes first. `now`: seconds since the epoch. `ids`: those of all
    runs, also of runs that are not listed: what is shown of an id names its run among these. `first`: the value of the reports, or of the
    arguments, that has a column of its own next to the ids, which no width cuts.

    In a narrow terminal a run that is the only one of its name has this name in place of its id, the time of the start stands in the ids
    alone, and arguments that all runs have alike are left out. A run that has
    failed shows its first cause in front of the report.
    """
    ids = ids or [run.run for run in runs]
    is_narrow = width is not None and width < NARROW
    alike = _alike(runs) if is_narrow else set()
    of_one = {name for name, count in Counter(map(name_of, ids)).items() if count == 1 and name != LATEST} if is_narrow else set[str]()
    shown_ids = [name if (name := name_of(run.run)) in of_one else _short_id(run.run, ids) for run in runs]
    first = first if any(has_number(run, first) or (first == GOODPUT and run.goodput) for run in runs) else ""
    rows = [_row(run, shown_id, now, first, alike) for run, shown_id in zip(runs, shown_ids, strict=True)]
    head = ("RUN", first, "STARTED", "TOOK", "STATE", "ARGUMENTS", "LAST REPORT", "TASKS")
    left_out = {"ARGUMENTS"} if not any(row[ARGUMENTS] for row in rows) else set[str]()
    left_out |= set[str]() if first else {first}
    left_out |= {"STARTED", "TASKS"} if is_narrow else set()
    shown = [place for place, name in enumerate(head) if name not in left_out]
    if width is not None:
        taken = sum(2 + max(len(row[place]) for row in (head, *rows)) for place in shown if place < ARGUMENTS)
        # Of a line that is cut, the last character is the mark of the cut.
        longest = max(len(row[ARGUMENTS + 1].partition(" ")[0]) + 2 if is_narrow else len(row[ARGUMENTS + 1]) for row in (head, *rows))
        most = max(len("ARGUMENTS"), width - taken - 2 - min(LEAST_REPORT, longest))
        rows = [(*row[:ARGUMENTS], *cut([row[ARGUMENTS]], most), *row[ARGUMENTS + 1 :]) for row in rows]
    lines = aligned([[row[place] for place in shown] for row in (head, *rows)], right=(shown.index(head.index("TOOK")),))
    narrow = cut(lines, width)
    if narrow != lines:
        narrow.append(f"(cut to {width} columns: orch ps --all | cat shows whole lines)")
    return "\n".join(narrow)


COLUMNS: Mapping[str, Callable[[RunSummary], Any]] = {
    "run": lambda run: run.run,
    "started": lambda run: run.started_at or math.inf,  # a run that has not started yet is the newest
    "took": lambda run: run.took_s or 0.0,
    "state": lambda run: run.state or "",
}
"""The columns that a table can be ordered by, each with its value of a run."""
_SAME = {
    **dict.fromkeys(("name", "id", "runs"), "run"),
    **dict.fromkeys(("start", "date", "created", "newest", "age"), "started"),
    **dict.fromkeys(("time", "duration", "elapsed", "seconds"), "took"),
    "status": "state",
}


def column(runs: Sequence[RunSummary], key: str) -> str:
    """The column of the table that `key` means; empty: `key` is the name of a number, which some run may have."""
    word = key.lower()
    word = _SAME.get(word, word)
    return word if word in COLUMNS and not any(has_number(run, key) for run in runs) else ""


def ordered(runs: Sequence[RunSummary], key: str) -> list[RunSummary]:
    """The runs by a number of their last reports, the best last, or by a column of the table, the greatest last.

    The best is the least of a loss or an error, such as ``val_loss``, and the greatest of all others. Runs that have no such number come
    first.
    """
    if by := column(runs, key):
        return sorted(runs, key=COLUMNS[by])
    sign = -1 if _LESS_IS_BETTER.search(key) else 1
    return sorted(runs, key=lambda run: (has_number(run, key), *(sign * number for number in _numbers(run, key)[:1])))


def has_number(run: RunSummary, key: str) -> bool:
    """True if the last report of a task, or an argument of the run, is a number of this name."""
    return bool(_numbers(run, key))


def names(runs: Sequence[RunSummary]) -> list[str]:
    """The names of all numbers that the runs have reported last, and then those of their arguments."""
    return [*dict.fromkeys(name for run in runs for name in reversed([*(run.values or ())]) if has_number(run, name))]


def _numbers(run: RunSummary, key: str) -> list[float]:
    """The number of this name, if there is one. ``batch_size`` also finds ``--batch-size``."""
    found = [(run.values or {}).get(name) for name in dict.fromkeys((key, key.replace("_", "-")))]
    return [value for value in found if isinstance(value, (int, float)) and math.isfinite(value)]


def values_of(words: Sequence[str], reports: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The options among the arguments of a run, and then the values that its training tasks have reported last, by name."""
    found: dict[str, Any] = {}
    for option, *value in _options(words):
        if given := re.fullmatch(r"--?([A-Za-z][\w-]*)(?:=(.*))?", option, re.DOTALL):
            text = value[0] if value else given[2]
            found[given[1]] = True if text is None else _number(text)
    for report in [*reports.values()][::-1]:  # of several tasks, the first one counts
        found |= report
    return found


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def sweep(runs: Sequence[RunSummary], names: Sequence[str], width: int | None = None, *, as_csv: bool = False) -> str:
    """A line for each run, with a column for each of these values, or for all. CSV has whole numbers, for programs and spreadsheets."""
    values = [run.values or {} for run in runs]
    names = names or [*dict.fromkeys(name for found in values for name in found)]
    rows: list[list[Any]] = [
        [run.run, run.state or "?", run.took_s, *(found.get(name, "") for name in names)] for run, found in zip(runs, values, strict=True)
    ]
    if not as_csv:
        shown = [(*row[:2], "" if row[2] is None else describe_seconds(row[2]), *map(describe_number, row[3:])) for row in rows]
        return "\n".join(cut(aligned([("RUN", "STATE", "TOOK", *names), *shown], right=range(2, 3 + len(names))), width))
    import csv  # most tables are looked at
    import io

    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows([("run", "state", "took_s", *names), *rows])
    return clean(file.getvalue())  # a terminal may show it


def _alike(runs: Sequence[RunSummary]) -> set[str]:
    """The arguments that all of several runs have that have any."""
    found = [set(map(shlex.join, _options(run.arguments))) for run in runs if run.arguments]
    return set.intersection(*found) if len(found) > 1 else set()


def _options(arguments: Sequence[str]) -> list[list[str]]:
    """The arguments, an option together with its value: ``["--lr", "0.1"]``."""
    parts = list[list[str]]()
    for word in arguments:
        takes_value = parts and len(parts[-1]) == 1 and re.match("-[^=]*$", parts[-1][0])
        if takes_value and not re.match("-[^0-9.]", word):
            parts[-1].append(word)
        else:
            parts.append([word])
    return parts


def _short_id(name: str, ids: Sequence[str]) -> str:
    """The id with as little of the random part at its end as names the run."""
    short = name.rpartition("-")[0]
    lengths = range(len(short), len(name)) if short else ()
    return next((name[:length] for length in lengths if sum(one.startswith(name[:length]) for one in ids) == 1), name)


def _row(run: RunSummary, name: str, now: float, first: str, alike: Collection[str]) -> tuple[str, ...]:
    began = describe_moment(run.started_at) if run.started_at else ""
    began = began[11:16] if began[:10] == describe_moment(now)[:10] else began[5:16]
    took = describe_seconds(run.took_s) if run.took_s is not None else ""
    code = (run.result or {}).get("exit_code") if run.state != Outcome.CANCELLED.value else None
    state = _STATES.get(run.state or "?", run.state or "?") + (f" ({code})" if code else "")
    state += f": {clean(run.waiting)}" if run.waiting and run.state == "running" else ""
    state += f", {describe(run.progress)}" if run.progress else ""
    report = next((report for report in (run.reports or {}).values() if report), {})
    state += "".join(f", {word}" for word in NOT_FINITE if word in report.values())
    state += ", no cluster" if (run.result or {}).get("warning") else ""
    tasks = ", ".join(f"{kind} {count}" for kind, count in (run.counts or {}).items())
    told = re.compile(rf"--?{re.escape(first).replace('_', '[-_]')}[ =].*" if first else r"(?!)")  # in its own column
    parts = map(shlex.join, _options(run.arguments or []))
    arguments = clean(" ".join(part for part in parts if part not in alike and not told.fullmatch(part)))
    arguments = arguments if len(arguments) <= LONGEST_ARGUMENTS else f"{arguments[: LONGEST_ARGUMENTS - 1]}…"
    last = describe_report({key: report[key] for key in sorted(report, key=place_of) if key != first})
    number = describe_number(_numbers(run, first)[0]) if first and has_number(run, first) else str(report.get(first, ""))
    number = run.goodput["text"] if first == GOODPUT and run.goodput else number
    cause = (run.result or {}).get("cause") or {}
    failure = cause.get("failure") or {}
    why = describe_failure(failure.get("type") or "", failure.get("message") or "") if failure else _last_words(run, cause)
    what = cut([" ".join(f"{cause.get('task', '')} {cause.get('what', '')}".split())], LONGEST_REASON)[0]
    last = "; ".join(filter(None, (why, last))) if failure else last or why or what
    problem = cut([run.problem or ""], LONGEST_REASON)[0]
    return name, clean(number), began, took, state, arguments, clean(problem or " ".join(last.split())), tasks


def _last_words(run: RunSummary, cause: Mapping[str, Any]) -> str:
    """The last line of a task that has ended the run without an exception; empty if there is none."""
    if run.state != Outcome.FAILED.value or not cause.get("task") or not cause.get("code"):
        return ""
    if cause.get("killed"):
        return f"{cause['task']}: {describe_code(cause['code'], killed=True)}"
    from .report import last_words  # most runs have not failed

    lines = last_words(RunDir(Path(run.directory)), cause["task"], cause.get("attempt") or 1)[1]
    return cut([f"{cause['task']}: {lines[-1]}"], LONGEST_REASON)[0] if lines else ""
