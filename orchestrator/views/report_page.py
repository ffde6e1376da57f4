"""Writes the page of `orch report`: one HTML file, without a script, without an address of another file.

The templates are ``page.html`` and ``page.css``. Jinja escapes every text, because the words of a program's log are in the page.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from worker.protocol.messages import HostReady, HostUse, RunNoted
from worker.values.redact import hide_secrets, redact_words
from worker.values.words import bytes_of, count_of

from .. import __version__
from ..errors import OrchError, UsageError
from ..model.cause.exit_status import describe_code
from ..model.policy import endings
from ..model.state.cluster import Outcome, TaskState, TaskStatus
from ..model.state.progress import describe as describe_progress
from ..record import report
from ..record.run_directory import RunDir
from ..record.run_files import SAME_TRAINING, SCALED, read_file
from ..record.text import timeline
from ..record.text.event_messages import describe_outcome, headline
from ..record.text.format import describe_moment, describe_seconds
from ..record.text.lines import clean
from . import charts, goodput
from .charts import Chart
from .run_story import LOST, AttemptCost, Story, losses
from .story_gather import gather

MISSING = "orch report needs the package Jinja2: pip install jinja2"
MOST_REPORTED = 8
"""The most values of reports that get a chart."""
MOST_LOGS = 8
"""The most failed tasks whose last lines are in the page."""
CROWDED = 30.0
"""The percentage of the time in which a process of a host waited for a core, from which on the page says so where the tasks wait."""
MOST_TEXT = 60_000
"""The most characters of a text that comes from a file."""
Points = Mapping[str, Sequence[tuple[float, float]]]


def page(run: RunDir) -> str:
    """The page of a run. Raises `OrchError`: `UsageError` where Jinja is not installed."""
    try:
        import jinja2  # an extra, which this function alone needs
    except ImportError:
        raise UsageError(MISSING) from None
    folder = resources.files(__package__)
    loader = jinja2.DictLoader({name: (folder / name).read_text(encoding="utf-8") for name in ("page.html", "page.css")})
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    environment.filters |= {"seconds": describe_seconds, "moment": describe_moment, "bytes": bytes_of, "percent": _percent}
    return environment.get_template("page.html").render(**contents(run, gather(run)))


def contents(run: RunDir, story: Story) -> dict[str, Any]:
    cluster = story.cluster
    # A controller that died after the last event has written no file with its verdict.
    verdict = run.read_verdict() or (None if story.is_cut else cluster.verdict)
    outcome = describe_outcome(verdict.outcome) if verdict else "was cut off" if story.is_cut else "goes on"
    remarks = verdict.remarks if verdict else endings.remarks(cluster)
    doubts = [hide_secrets(clean(line)) for line in (*filter(None, [verdict.warning if verdict else ""]), *remarks)]
    is_bad = story.is_cut or (verdict is not None and verdict.outcome not in (Outcome.SUCCEEDED, Outcome.CANCELLED))
    costs = losses(story.band, story.reports)
    width = story.seconds / charts.WIDE
    strips = charts.strips(story)
    return {
        **_of_tasks(story),
        "run": run.run_id,
        "version": __version__,
        "story": story,
        "outcome": outcome,
        "is_bad": is_bad,
        "is_good": verdict is not None and verdict.outcome is Outcome.SUCCEEDED,
        "doubts": doubts,
        "exit_code": verdict.exit_code if verdict else None,
        "cause": hide_secrets(clean(headline(verdict.cause))) if verdict and verdict.cause else "",
        "remedy": verdict.cause.remedy if verdict and verdict.cause else "",
        "text": hide_secrets(report.report(verdict, run, cluster))[:MOST_TEXT] if verdict else "",
        "facts": _facts(run, story, costs),
        "hosts": _hosts(story),
        "band": [(span, (span.begun - story.begun) / width, max(0.5, span.seconds / width)) for span in story.band],
        "losses": costs,
        "past": {attempt.attempt: hide_secrets(headline(attempt.cause)) for attempt in cluster.past if attempt.cause and not attempt.task},
        "strips": strips,
        "crowded": _crowded(story),
        "kinds": {kind: words for kind, words in charts.NAMES.items() if any(kind in strip.paths for strip in strips)},
        "reported": _reported(story),
        "host_charts": _host_charts(story),
        "inputs": {task.name: task.input for task in cluster.tasks.values() if task.input is not None},
        "startup": _startup(story),
        "notes": _notes(story),
        "same_training": _same_training(run),
        "scaled": _scaled(run),
        "spec": _spec_text(run),
        "placement": _placement(run, story),
        "logs": _logs(run, story),
        "wide": charts.WIDE,
        "tall": charts.TALL,
    }


def _of_tasks(story: Story) -> dict[str, Any]:
    """The rows of the tasks, and their charts with one scale for all."""
    tasks, found = story.cluster.tasks, {}
    used = charts.numbers_of(story.samples, lambda use: use.cpu)
    memory = charts.numbers_of(story.samples, lambda use: float(use.memory))
    shares = charts.numbers_of(story.samples, lambda use: float(use.own_memory))
    for kind, numbers, words in (("cpu", used, _percent), ("memory", memory, _bytes)):
        top = max((value for points in numbers.values() for _, value in points), default=0.0)
        found[kind] = {name: charts.chart(name, {name: numbers[name]}, story, words, top=top) for name in tasks if name in numbers}
    return {"tasks": [_row(task, story, used, memory, shares) for task in tasks.values()], **found}


def _percent(value: float) -> str:
    return f"{value:.0f} %"


def _bytes(value: float) -> str:
    return bytes_of(round(value))


def _number(value: float) -> str:
    return f"{value:.4g}"


def _rate(value: float) -> str:
    return f"{bytes_of(round(value))}/s"


def _facts(run: RunDir, story: Story, costs: Sequence[AttemptCost]) -> list[tuple[str, str]]:
    cluster = story.cluster
    facts: list[tuple[str, str]] = []
    with contextlib.suppress(OrchError):
        planned = run.read_plan()
        spec = planned.spec if planned is not None else run.read_spec()
        facts.append(("program", hide_secrets(" ".join(redact_words([spec.program.target, *spec.program.args])))))
    tasks = ", ".join(f"{number} ps" if kind == "ps" else count_of(number, kind) for kind, number in _count(cluster.tasks.values()).items())
    facts += [("strategy", cluster.policy.strategy), ("tasks", tasks)]
    if done := describe_progress(cluster.progress(time.time())):
        facts.append(("progress", done))
    facts += [("began", describe_moment(story.begun)), ("took", describe_seconds(story.seconds))]
    facts.append(("attempts", str(max((span.attempt for span in story.band), default=1))))
    lost, found, waited = sum(one.seconds.get(LOST, 0.0) for one in costs), goodput.measure(story), charts.awaited(story)
    if trained := found.seconds.get("trained"):
        facts.append(("goodput", f"{found.text}: trained {describe_seconds(trained)}; {'; '.join((found.rest, *found.unknown))}"))
    if waited:
        facts.append(("stood still", ", ".join(f"{describe_seconds(seconds)} for {name}" for name, seconds in waited.items())))
    if lost:
        steps = sum(one.steps or 0.0 for one in costs)
        facts.append(("lost", f"{describe_seconds(lost)} of training{f', {steps:g} steps' if steps else ''}"))
    return [*facts, ("orch", __version__)]


def _count(tasks: Any) -> dict[str, int]:
    found: dict[str, int] = {}
    for task in tasks:
        found[task.type] = found.get(task.type, 0) + 1
    return found


def _hosts(story: Story) -> list[HostReady]:
    return list({event.host: event for event in story.happened if isinstance(event, HostReady)}.values())


def _notes(story: Story) -> list[str]:
    return [hide_secrets(clean(event.line)) for event in story.happened if isinstance(event, RunNoted)]


def _reported(story: Story) -> list[Chart]:
    """A chart for each value that the tasks have reported; those that every report has come first."""
    often: dict[str, int] = {}
    for found in story.reports.values():
        for one in found:
            for name in (*one.values, *one.not_finite):
                often[name] = often.get(name, 0) + 1
    names = sorted(often, key=lambda name: (name not in ("steps_per_s", "loss"), -often[name], name))[:MOST_REPORTED]
    made = (charts.chart(name, charts.reported_numbers(story, name), story, _number, from_zero=name != "loss") for name in names)
    return [one for one in made if one is not None]


def _row(task: TaskStatus, story: Story, used: Points, memory: Points, shares: Points) -> dict[str, Any]:
    cpu = [value for _, value in used.get(task.name, ())]
    own = [value for _, value in shares.get(task.name, ()) if value]
    how = describe_code(task.code, task.killed) if task.code else ""
    state = "was cut off" if story.is_cut and task.state is TaskState.LOST else task.state.value
    return {
        "name": task.name,
        "host": task.host,
        "state": f"{state}{f' ({how})' if how else ''}",
        "attempt": task.attempt,
        "cpu": _percent(sum(cpu) / len(cpu)) if cpu else "-",
        "memory": _bytes(max((value for _, value in memory.get(task.name, ())), default=0.0)) if cpu else "-",
        "own_memory": _bytes(max(own)) if own else "-",
        "report": hide_secrets(clean(", ".join(f"{key} {_short(value)}" for key, value in task.report.items())))[:300],
    }


def _short(value: object) -> str:
    return _number(value) if isinstance(value, float) else str(value)


def _host_charts(story: Story) -> dict[str, list[Chart]]:
    """Return for each host what its tasks do not tell: the whole processor, the memory, the network, and waits; and its GPUs."""
    found: dict[str, list[Chart]] = {}
    for host in dict.fromkeys((*(ready.host for ready in _hosts(story)), *(sample.host for sample in story.samples))):
        if not (own := [sample for sample in story.samples if sample.host == host]):
            continue

        def points(name: str, own: Sequence[Any] = own) -> list[tuple[float, float]]:
            return [(sample.at, float(getattr(sample.use, name))) for sample in own]

        use: HostUse = own[-1].use
        rows: list[Chart | None] = [
            charts.chart("processor", {host: points("cpu")}, story, _percent, top=100.0 * use.cores),
            charts.chart("memory", {host: points("memory")}, story, _bytes, top=float(use.memory_total)),
            charts.chart("network in", {host: points("received")}, story, _rate),
            charts.chart("network out", {host: points("sent")}, story, _rate),
        ]
        waits = {"waits for a core": "stalled_cpu", "waits for memory": "stalled_memory", "waits for a disk": "stalled_io"}
        waits |= {"CPU limit reached": "throttled", "swap": "swap"}
        for title, name in waits.items():
            if any(value > 1.0 for _, value in points(name)):
                rows.append(charts.chart(title, {host: points(name)}, story, _bytes if name == "swap" else _percent))
        for index in sorted({gpu.index for sample in own for gpu in sample.gpus}):
            busy = [(sample.at, gpu.busy) for sample in own for gpu in sample.gpus if gpu.index == index]
            held = [(sample.at, float(gpu.memory)) for sample in own for gpu in sample.gpus if gpu.index == index]
            rows.append(charts.chart(f"GPU {index} busy", {host: busy}, story, _percent, top=100.0))
            rows.append(charts.chart(f"GPU {index} memory", {host: held}, story, _bytes))
        found[host] = [one for one in rows if one is not None]
    return found


def _crowded(story: Story) -> dict[str, str]:
    """The hosts on which a process waited for a core, and in how much of the time."""
    waits: dict[str, list[float]] = {}
    for sample in story.samples:
        waits.setdefault(sample.host, []).append(sample.use.stalled_cpu)
    means = {host: sum(each) / len(each) for host, each in waits.items()}
    return {host: _percent(mean) for host, mean in means.items() if mean >= CROWDED}


def _startup(story: Story) -> dict[str, Any]:
    """The phases of each task's start, as stretches of one scale."""
    measured = timeline.measure(story.happened, story.cluster)
    most = max((seconds for marks in measured.values() for seconds in marks.values()), default=0.0)
    durations = timeline.durations(measured) if most else {}
    rows = []
    for name, phases in durations.items():
        begun, parts = 0.0, []
        for phase, seconds in phases.items():
            parts.append(
                (timeline.label(phase), timeline.PHASES.index(phase), begun / most * charts.WIDE, seconds / most * charts.WIDE, seconds)
            )
            begun += seconds
        rows.append((name, parts))
    shown, line = dict.fromkeys((part[0], part[1]) for _, parts in rows for part in parts), timeline.slowest(measured)
    return {
        "most": most,
        "rows": rows,
        "phases": sorted(shown, key=lambda one: one[1]),
        "line": f"{line[:1].upper()}{line[1:]}",
        "is_later": story.cluster.attempt > 1,
    }


def _spec_text(run: RunDir) -> str:
    with contextlib.suppress(OSError, OrchError):
        return hide_secrets(clean(read_file(run.path / "spec.yaml").decode("utf-8", "replace")))[:MOST_TEXT]
    return ""


def _same_training(run: RunDir) -> dict[str, Any]:
    """The result of `orch verify`, if the run was one of the two that it compared."""
    with contextlib.suppress(OSError, OrchError, ValueError, TypeError, LookupError, RecursionError):
        found = json.loads(read_file(run.path / SAME_TRAINING))
        findings = [
            {name: hide_secrets(clean(str(each[name] or ""))) for name in ("step", "what", "remedy", "place")} for each in found["findings"]
        ]
        return {"text": [hide_secrets(clean(line)) for line in found["text"]], "findings": findings}
    return {}


def _scaled(run: RunDir) -> dict[str, Any]:
    """The result of `orch scale`, if the run was of the last size: its text, and of each size the parts of a step as bars."""
    with contextlib.suppress(OSError, OrchError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError):
        found = json.loads(read_file(run.path / SCALED))
        bars = {
            count_of(int(size["workers"]), "worker"): {part: 100 * float(size["parts"][part]) / float(size["step"]) for part in PARTS}
            for size in found["sizes"]
        }
        return {"text": hide_secrets("\n".join(clean(line) for line in found["text"])), "bars": bars, "kinds": PARTS}
    return {}


PARTS = {"computing": "trains", "exchange": "peers", "waiting": "missing", "input": "input", "Python": "starts"}
"""The parts of a step, and the colour of each."""


def _placement(run: RunDir, story: Story) -> str:
    """The devices on which operations ran, if the run logged them."""
    with contextlib.suppress(OrchError):
        planned = run.read_plan()
        if planned is None or not any(task.order.settings.devices.log_placement for task in planned.members):
            return ""
        from . import run_placement

        found = run_placement.read(run, {task.name: task.attempt for task in story.cluster.members})
        return "\n".join(run_placement.to_text(found))[:MOST_TEXT]
    return ""


def _logs(run: RunDir, story: Story) -> list[tuple[str, str, str]]:
    """The last lines of each task that has failed: its name, the stream, the text."""
    found = []
    failed = [task for task in story.cluster.tasks.values() if task.state in (TaskState.FAILED, TaskState.LOST)]
    for task in failed[:MOST_LOGS]:
        stream, lines = report.last_words(run, task.name, task.attempt)
        if lines:
            text = hide_secrets(clean("\n".join(lines)))[:MOST_TEXT]
            found.append((f"{task.name}, attempt {task.attempt}", stream, text))
    left_out = len(failed) - MOST_LOGS
    return [*found, (f"{count_of(left_out, 'more task')} failed", "", "orch logs shows their output")] if left_out > 0 else found
