"""Defines what `orch top` knows of a run at one moment, and what its user has chosen to see. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any, Literal

from worker.protocol.messages import Sampled, TaskUse
from worker.values.fast_dataclass import dataclass

from ..model.cause.exit_status import describe_code
from ..model.policy import readiness, stragglers
from ..model.state.cluster import Cluster, TaskState, TaskStatus
from ..model.state.progress import describe_report, place_of

Page = Literal["tasks", "logs", "stacks", "help"]
Asks = Literal["", "filter", "restart"]
SORTS = ("task", "work", "peers", "input", "cpu", "memory", "state")
"""By what the rows can be sorted: ``task`` in the order of the plan, the others with the largest first."""
ALIVE = (TaskState.STARTED, TaskState.UP)


@dataclass(frozen=True, slots=True)
class View:
    page: Page = "tasks"
    sort: str = "task"
    filter: str = ""
    """Only tasks whose name, host or state has this text in it."""
    selected: str = ""
    """The name of a task; empty: the first."""
    first: int = 0
    """The number of rows, or of lines of a page, above the screen."""
    asks: Asks = ""
    """What the user is being asked in the last line."""
    lines: tuple[str, ...] = ()
    """The text of the pages ``logs``, ``stacks`` and ``help``."""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """A task, in words and numbers; None: unknown, or nothing to say."""

    task: str
    host: str
    state: str
    """One word: ``runs``, ``waits``, ``slow``, ``missing``, ``input``, ``SIGSTOP``, or the state of ``orch ps``"""
    attempt: int = 1
    step: float | None = None
    rate: float | None = None
    work: float | None = None
    peers: float | None = None
    input: float | None = None
    """Seconds of a step, in the newest window of steps."""
    waits: float | None = None
    """How long the task has waited for its peers where it is now, in seconds."""
    cpu: float | None = None
    """In percent of one core."""
    memory: int | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class TopState:
    run: str
    strategy: str
    phase: str
    """In words: ``running``, ``succeeded``, ``lost``, …"""
    attempt: int
    seconds: float
    """Since the run began, until now or until its end."""
    rows: tuple[Row, ...] = ()
    hosts: Mapping[str, Sampled] = field(default_factory=dict)
    alert: str = ""
    """The one thing to know: for which task the others wait, or why the run has failed."""
    lives: bool = True
    view: View = View()


def rows_of(cluster: Cluster, latest: Mapping[str, Sampled]) -> tuple[Row, ...]:
    """A row for each task, in the order of the plan."""
    training = stragglers.training(cluster)
    uses = {(use.task, use.attempt): use for sample in latest.values() for use in sample.tasks}
    slow = stragglers.judge(latest, training)
    states, missing = stragglers.states_at_standstill(latest, training)
    found = []
    for task in cluster.tasks.values():
        use = uses.get((task.name, task.attempt))
        row = _row(task, use, is_slow=slow.get(task.name, False), missing=states[task.name] if task.name in missing else "")
        found.append(replace(row, note=_note(task, is_alone=len(cluster.tasks) == 1)))
    return tuple(found)


def _row(task: TaskStatus, use: TaskUse | None, *, is_slow: bool, missing: str) -> Row:
    step = task.report.get("step")  # where no sample has it, such as of a task that ended before the last sample
    reported = float(step) if isinstance(step, (int, float)) and not isinstance(step, bool) else None
    row = Row(task.name, task.host, task.state.value, task.attempt, step=reported)
    if use is None:
        return row
    steps = {"step": use.step or row.step}
    if use.window:
        steps |= {"rate": use.rate, "work": use.work, "input": use.input}
        steps |= {"peers": use.peers} if use.came else {}
    row = replace(row, **steps)  # type: ignore[arg-type]
    if task.has_ended:
        return row
    waits = use.waits if use.waits >= stragglers.LASTS_S else None
    return replace(row, cpu=use.cpu, memory=use.memory, waits=waits, state=_state(task, use, is_slow=is_slow, missing=missing))


def _state(task: TaskStatus, use: TaskUse, *, is_slow: bool, missing: str) -> str:
    """Return what a task that runs does, in one word. `missing`: the word for one for which the others wait."""
    if use.state in stragglers.STOPPED:
        return "SIGSTOP"
    if missing:
        return missing
    if use.waits >= stragglers.LASTS_S:
        return "waits"
    if is_slow:
        return "slow"
    return "runs" if task.state in ALIVE else task.state.value


def _note(task: TaskStatus, *, is_alone: bool) -> str:
    if task.code:
        return describe_code(task.code, task.killed)
    if waits := readiness.describe_waiting(task, is_alone=is_alone):
        return waits
    values = {key: task.report[key] for key in sorted(task.report, key=place_of) if key not in ("step", "steps_per_s")}
    return describe_report(values)


def as_json(state: TopState) -> dict[str, Any]:
    """The state for programs: the same numbers, with seconds and bytes."""
    from dataclasses import asdict

    found = asdict(replace(state, view=View(), hosts={}))
    del found["view"]
    found["tasks"] = found.pop("rows")
    found["took_s"] = found.pop("seconds")
    found["hosts"] = {name: asdict(sample.use) for name, sample in state.hosts.items()}
    return found
