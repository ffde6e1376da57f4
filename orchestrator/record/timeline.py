"""Where the time of a start went: from a run's recorded events to phases, per task."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field

from worker.records import dataclass

from ..model import events
from ..model.cluster import Cluster
from .columns import aligned
from .journal import HostReady, RunBegun, RunEvent, TaskBegan, TaskSpoke, TemplateReady

PHASES = ("agent", "template", "fork or exec", "first line", "port bound", "formed", "first output", "first report")
"""In the order in which they come. ``formed`` is the whole cluster's; ``template`` is missing where there is none, and ``first line``,
the program's own, where that is not Python."""


@dataclass(slots=True)
class _Times:
    host: str
    marks: dict[str, float] = field(default_factory=dict)


def measure(happened: Iterable[RunEvent], cluster: Cluster) -> dict[str, dict[str, float]]:
    """For each task, seconds from the run's beginning to the end of each phase that it has reached, in its last attempt."""
    begun = 0.0
    hosts: dict[str, dict[str, float]] = {}
    tasks = {name: _Times(task.host) for name, task in cluster.tasks.items()}
    for event in happened:
        match event:
            case RunBegun():
                begun = event.at
            case HostReady():
                hosts.setdefault(event.host, {})["agent"] = event.at
            case TemplateReady():
                hosts.setdefault(event.host, {}).setdefault("template", event.at)
            case events.TaskStarted() if event.task in tasks:
                tasks[event.task].marks = {"fork or exec": event.at}
            case TaskBegan() if event.task in tasks:
                tasks[event.task].marks.setdefault("first line", event.at)
            case events.TaskUp() if event.task in tasks:
                tasks[event.task].marks.setdefault("port bound", event.at)
            case TaskSpoke() if event.task in tasks:
                tasks[event.task].marks.setdefault("first output", event.at)
            case events.TaskReported() if event.task in tasks:
                tasks[event.task].marks.setdefault("first report", event.at)
    formed = {"formed": cluster.formed_at} if cluster.formed_at is not None else {}
    return {name: _since(begun, {**hosts.get(task.host, {}), **task.marks, **formed}) for name, task in tasks.items()}


def _since(begun: float, marks: dict[str, float]) -> dict[str, float]:
    return {phase: max(0.0, marks[phase] - begun) for phase in PHASES if phase in marks}


def table(measured: dict[str, dict[str, float]]) -> str:
    """A line a task, a column a phase: seconds since the run began."""
    phases = [phase for phase in PHASES if any(phase in marks for marks in measured.values())]
    rows = [["TASK", *(phase.upper() for phase in phases)]]
    rows += [[name, *(f"{marks[phase]:.2f} s" if phase in marks else "-" for phase in phases)] for name, marks in measured.items()]
    return "\n".join(aligned(rows))


def slowest(measured: dict[str, dict[str, float]]) -> str:
    """The phase that took the longest in any task, in a line; empty if nothing was measured."""
    spans = [(took, phase, name) for name, marks in measured.items() for phase, took in _spans(marks)]
    if not spans:
        return ""
    took, phase, name = max(spans)
    return f"the slowest phase of the start was {phase!r} of {name}: {took:.2f} s"


def durations(measured: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """For each task, the seconds that each phase took, in the order in which they came."""
    return {name: {phase: round(took, 3) for phase, took in _spans(marks)} for name, marks in measured.items()}


def _spans(marks: dict[str, float]) -> Iterable[tuple[str, float]]:
    """How long each phase took: from the phase before it, as they really came."""
    before = 0.0
    for phase, at in sorted(marks.items(), key=lambda item: item[1]):
        yield phase, at - before
        before = at
