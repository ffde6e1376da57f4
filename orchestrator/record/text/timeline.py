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


class Phases:
    """Collects when the phases of a run have ended, from its events in their order."""

    def __init__(self) -> None:
        self._begun = self._asked = 0.0
        self._hosts: dict[str, dict[str, float]] = {}
        self._marks: dict[tuple[str, int], dict[str, float]] = {}
        self._asked_at: dict[tuple[str, int], float] = {}
        """When an attempt of a task that restarts alone was asked for."""
        self._swept: dict[str, float] = {}

    def add(self, event: events.Event) -> None:
        match event:
            case events.RunBegun():
                self._begun = event.at
            case events.HostReady():
                self._hosts.setdefault(event.host, {})["agent"] = event.at
            case events.TemplateReady():
                self._hosts.setdefault(event.host, {}).setdefault("template", event.at)
            case events.TaskSwept():
                self._swept[event.task] = event.at
            case events.Tick() | events.RestartRequested():  # the attempt of a task that restarts alone begins with one of these
                self._asked = event.at
            case events.TaskBegan() | events.TaskFirstOutput() | events.TaskStarted() | events.TaskUp() | events.TaskReported():
                key = event.task, event.attempt
                self._asked_at.setdefault(key, self._asked)
                self._marks.setdefault(key, {}).setdefault(_OF_TASK[type(event)], event.at)

    def measure(self, cluster: Cluster) -> dict[str, dict[str, float]]:
        """For each task, the seconds until the end of each phase in its last attempt, since the run (or a later attempt) began.

        A later attempt has no phases that had ended before, such as ``agent`` and ``template``. `cluster`: the state after all events.
        """
        whole = min((task.attempt for task in cluster.members), default=1)
        prepared = {
            task.host: {"prepared": self._swept[name]} for name, task in cluster.tasks.items() if task.prepares and name in self._swept
        }
        formed = {"formed": cluster.formed_at} if cluster.formed_at is not None and not gone(cluster) else {}
        found = {}
        for name, task in cluster.tasks.items():
            key = name, task.attempt
            restarted = cluster.attempt_at if task.attempt == whole else self._asked_at.get(key, math.inf)
            since = self._begun if task.attempt == 1 else restarted
            of_all = {**self._hosts.get(task.host, {}), **prepared.get(task.host, {}), **formed}
            reached = {phase: at for phase, at in of_all.items() if at >= since or task.attempt == 1} | self._marks.get(key, {})
            found[name] = {phase: max(0.0, reached[phase] - since) for phase in PHASES if phase in reached}
        return found


def measure(happened: Iterable[events.Event], cluster: Cluster) -> dict[str, dict[str, float]]:
    phases = Phases()
    for event in happened:
        phases.add(event)
    return phases.measure(cluster)


def label(phase: str) -> str:
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
