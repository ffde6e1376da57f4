"""The tasks of a run as a table: `orch ps`."""

from __future__ import annotations

from collections.abc import Mapping

from worker.protocol.messages import Sampled

from ...model.cause import graph_errors
from ...model.cause.exit_status import describe_code
from ...model.planning import input_counts
from ...model.policy import endings, readiness, stragglers
from ...model.state.cluster import Cluster, Phase, TaskState, TaskStatus
from ...model.state.progress import describe_report, place_of
from .format import aligned, cut, describe_seconds
from .lines import clean
from .noise import Noise

LONGEST_REASON = 120


def table(cluster: Cluster, now: float, width: int | None = None, latest: Mapping[str, Sampled] | None = None) -> str:
    """A line for each task, cut to `width`, and the remarks. `latest`: the newest sample of each host of a run that goes on.

    UP: the time since the task started, or, once it has ended, the time that it took. After the end: TOOK. Where the lines are longer than
    `width`, a host that all tasks have is left out, and what a training is judged by stands before how far the training is.
    """
    since = "TOOK" if all(task.has_ended for task in cluster.tasks.values()) else "UP"
    training = stragglers.training(cluster)
    states, missing = stragglers.states_at_standstill(latest or {}, training)
    absent = [stragglers.describe_absent(latest or {}, training)] if missing else []
    lines, is_cut = _lines(cluster, now, since, states), False
    if cut(lines, width) != lines:
        whole = _lines(cluster, now, since, states, is_narrow=True)
        lines = cut(whole, width)
        is_cut = lines != whole
    more = [f"(cut to {width} columns: whole lines in a pipe, as with | cat)"] if is_cut else []
    return "\n".join([*lines, *more, *_describe_size(cluster), *absent, *endings.remarks(cluster)])


def _lines(cluster: Cluster, now: float, since: str, states: Mapping[str, str], *, is_narrow: bool = False) -> list[str]:
    """`states`: the words of `orch top` for the tasks at a standstill."""
    tasks = cluster.tasks.values()
    head = ("TASK", "HOST", "STATE", "PID", since, "NOTE")
    rows = [head, *(_row(task, now, len(tasks) == 1, is_narrow, states.get(task.name, "")) for task in tasks)]
    has_hosts = not is_narrow or len({task.host for task in tasks}) > 1
    return aligned(rows if has_hosts else [(row[0], *row[2:]) for row in rows])


def _describe_size(cluster: Cluster) -> list[str]:
    """A line about the workers of an elastic cluster over time: ``workers: 3, then 2, of 3 at most``."""
    sizes = [past.workers for past in cluster.past if not past.task]
    sizes += [] if cluster.phase is Phase.RESTARTING else [cluster.workers]
    return [f"workers: {', then '.join(map(str, sizes))}, of {cluster.policy.workers} at most"] if cluster.policy.workers else []


def _row(task: TaskStatus, now: float, is_alone: bool, is_narrow: bool, state: str) -> tuple[str, str, str, str, str, str]:
    note = ""
    keys = [key for key in task.report if not (state and key == "steps_per_s")]  # it was so before the standstill
    report = describe_report({key: task.report[key] for key in (sorted(keys, key=place_of) if is_narrow else keys)})
    if task.code:
        how = describe_code(task.code, task.killed)
        note = f"stopped by orch ({how.removeprefix('killed by ')})" if task.state is TaskState.STOPPED else how
        if task.restart_at is not None:
            note += f"; started again in {describe_seconds(max(0.0, task.restart_at - now))}"
        if task.failure is not None and task.state is TaskState.FAILED:
            note += f"; {describe_failure(task.failure.type, task.failure.message)}"
        elif task.state is TaskState.FAILED and not task.killed:
            words = [line for line in Noise(shows_losses=True).fold(task.evidence.last_words.splitlines()) if line.strip()]
            note += f"; {cut(words[-1:], LONGEST_REASON)[0]}" if words else ""
        note += f"; {report}" if report else ""
    elif task.report or task.input:
        note = report
        note += f"  {input_counts.describe(task.input)}" if task.input else ""
    else:
        note = readiness.describe_waiting(task, is_alone=is_alone)
    took = describe_seconds(max(0.0, (task.ended_at or now) - task.started_at)) if task.started_at else ""
    note = clean(" ".join(note.split()))  # it may be the words of a task
    state = state or ("running" if task.state is TaskState.STARTED else task.state.value)
    return (task.name, task.host, state, str(task.pid or ""), took, note)


def describe_failure(kind: str, message: str) -> str:
    """``ValueError: no data``, in one line of some `LONGEST_REASON` characters."""
    return cut([" ".join(f"{kind.rpartition('.')[2]}: {graph_errors.reason(message)}".split())], LONGEST_REASON)[0]
