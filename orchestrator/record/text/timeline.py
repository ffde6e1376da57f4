"""The phases of a start, for each task, from the recorded events of a run."""

from __future__ import annotations

import math
from collections.abc import Iterable

from ...model.policy.readiness import gone
from ...model.state import events
from ...model.state.cluster import Cluster
from .format import aligned

PHASES = ("agent", "template", "prepared", "fork or exec", "first line", "port bound", "formed", "first output", "first report")
"""In their usual order. ``formed`` belongs to the whole cluster. A task without a template, a preparation or a Python program lacks
``template``, ``prepared`` or ``first line`` (of the program)."""

_LABELS = {"template": "TensorFlow imported", "fork or exec": "process started", "port bound": "port open", "formed": "cluster formed"}
"""The names of phases for people, where they differ from the names in JSON."""

_OF_TASK = {
    events.TaskStarted: "fork or exec",
    events.TaskBegan: "first line",
    events.TaskUp: "port bound",
    events.TaskFirstOutput: "first output",
    events.TaskReported: "first report",
}


def measure(happened: Iterable[events.Event], cluster: Cluster) -> dict[str, dict[str, float]]:
    """For each task, the seconds until the end of each phase in its last attempt, since the run (or a later attempt) began.

    A later attempt has no phases that had ended before, such as ``agent`` and ``template``.
    """
    begun = asked = 0.0
    whole = min((task.attempt for task in cluster.members), default=1)
    asked_by_task: dict[str, float] = {}
    hosts: dict[str, dict[str, float]] = {}
    marks: dict[str, dict[str, float]] = {name: {} for name in cluster.tasks}
    prepares = {name: task.host for name, task in cluster.tasks.items() if task.prepares}
    for event in happened:
        match event:
            case events.RunBegun():
                begun = event.at
            case events.HostReady():
                hosts.setdefault(event.host, {})["agent"] = event.at
            case events.TemplateReady():
                hosts.setdefault(event.host, {}).setdefault("template", event.at)
            case events.TaskSwept() if event.task in prepares:
                hosts.setdefault(prepares[event.task], {})["prepared"] = event.at
            case events.Tick() | events.RestartRequested():  # the attempt of a task that restarts alone begins with one of these
                asked = event.at
            case events.TaskBegan() | events.TaskFirstOutput() | events.TaskStarted() | events.TaskUp() | events.TaskReported():
                if event.task in marks and event.attempt == cluster.tasks[event.task].attempt:
                    asked_by_task.setdefault(event.task, asked)
                    marks[event.task].setdefault(_OF_TASK[type(event)], event.at)
    formed = {"formed": cluster.formed_at} if cluster.formed_at is not None and not gone(cluster) else {}
    found = {}
    for name, task in cluster.tasks.items():
        restarted = cluster.attempt_at if task.attempt == whole else asked_by_task.get(name, math.inf)
        since = begun if task.attempt == 1 else restarted
        shared = {phase: at for phase, at in {**hosts.get(task.host, {}), **formed}.items() if at >= since or task.attempt == 1}
        reached = {**shared, **marks[name]}
        found[name] = {phase: max(0.0, reached[phase] - since) for phase in PHASES if phase in reached}
    return found


def label(phase: str) -> str:
    """The name of a phase for people."""
    return _LABELS.get(phase, phase)


def table(measured: dict[str, dict[str, float]]) -> str:
    """A row for each task, a column for each phase: seconds since the run, or a later attempt, began."""
    phases = [phase for phase in PHASES if any(phase in marks for marks in measured.values())]
    rows = [["TASK", *(_LABELS.get(phase, phase).upper() for phase in phases)]]
    rows += [[name, *(f"{marks[phase]:.2f} s" if phase in marks else "-" for phase in phases)] for name, marks in measured.items()]
    return "\n".join(aligned(rows))


def slowest(measured: dict[str, dict[str, float]]) -> str:
    """A line about the longest phase of all tasks; empty if nothing was measured."""
    spans = [(took, phase, name) for name, marks in measured.items() for phase, took in _spans(marks)]
    if not spans:
        return ""
    took, phase, name = max(spans)
    return f"the slowest phase of the start was {_LABELS.get(phase, phase)!r} of {name}: {took:.2f} s"


def durations(measured: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """For each task, the seconds of each phase, in the order in which the phases ended."""
    return {name: {phase: round(took, 3) for phase, took in _spans(marks)} for name, marks in measured.items()}


def _spans(marks: dict[str, float]) -> Iterable[tuple[str, float]]:
    """The seconds of each phase, since the end of the phase before."""
    before = 0.0
    for phase, at in sorted(marks.items(), key=lambda item: item[1]):
        yield phase, at - before
        before = at
