"""Finds which task makes the others wait, judged from how long the tasks' steps take. Pure.

In synchronous training all tasks make the same number of steps in the same time. So the slow one is not seen by its speed: it is the one
that is busy for longer in each step, and waits least for the others. At a standstill it is the one that did not come to a meeting (a
collective operation) in which the others are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace

from worker.protocol.messages import HostUse, Sampled, TaskUse
from worker.values.fast_dataclass import dataclass

from ..state.cluster import Cluster
from ..task_names import group_tasks

SLOWER = 1.25
"""A slow task is busy for so many times as long in a step as the others in the median."""
SLOWER_S, PART = 0.001, 0.2
"""And for so many seconds longer, and for such a part of the step. What the first worker of a training does more than the others, such as
its callbacks and its progress bar, is no exception: where that makes the step a fifth longer, the others do wait for it."""
WAITED_FOR = 1 / 2
"""And the others wait longer than the slow task, by such a part of the time that the slow task is busy longer. (In a small step all tasks,
the slow one too, wait for the exchange itself, and that may be most of the step. So the waits are compared by their difference.)"""
WINDOWS = 3
"""A task is slow in so many windows of steps, one after the other."""
TIMES, TIMES_IF_FULL = 2, 6
"""And is seen to be slow in so many samples; more on a host without a free core, where any task may get no core for some seconds."""
LASTS_S = 1.5
"""Tasks that have been in a meeting for so long wait for the others."""
SURE_S, SURE_STEPS = 5.0, 20
"""After this time, or that of so many steps, the others have not come: on a busy machine a healthy task may be seconds late."""
TOLD_S = 10.0
"""A wait of this time gets a line. The next one gets a line if it is twice as long: a chief may save for long at each epoch."""
STOPPED = ("T", "t")
"""The states of a process that SIGSTOP, or a debugger, has stopped."""
THROTTLED, FAULTS, OTHERS_CORES = 10.0, 50.0, 0.5
"""From here on a cause is named: percent of the periods in which a CPU limit is reached, page faults per second with a disk, and cores that
other programs use."""


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A task was slow, from one window of its steps on."""

    since: int
    newest: int
    """The number of the window that was judged last."""
    times: int = 1


@dataclass(frozen=True, slots=True)
class Watch:
    """Holds what is known from earlier samples. The keys are the tasks' names and attempts."""

    judged: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """The number of the window that was judged last."""
    suspicions: Mapping[tuple[str, int], Suspicion] = field(default_factory=dict)
    told: frozenset[tuple[str, int]] = frozenset()


def watch(before: Watch, latest: Mapping[str, Sampled], tasks: Mapping[str, int]) -> tuple[Watch, tuple[str, ...]]:
    """Return what is known after the newest sample of each host, and a line for each task that has turned out to be slow.

    `tasks`: the attempts of the training tasks that run, by name. Nothing is judged before all of them have made steps.
    """
    uses = running(latest, tasks)
    if len(uses) < 2 or len(uses) < len(tasks) or not all(use.window and use.came for use in uses.values()):
        return before, ()
    judged, suspicions, told, lines = dict(before.judged), dict(before.suspicions), set(before.told), []
    for name, use in uses.items():
        key = name, use.attempt
        if use.window == judged.get(key):
            continue
        judged[key] = use.window
        others = [other for other in uses.values() if other is not use]
        if not is_slow(use, others):
            suspicions.pop(key, None)
            continue
        found = suspicions.get(key)
        found = Suspicion(use.window, use.window) if found is None else replace(found, newest=use.window, times=found.times + 1)
        suspicions[key] = found
        if found.times >= _times(use, latest) and found.newest - found.since >= WINDOWS - 1 and key not in told:
            told.add(key)
            lines.append(describe(use, others, latest))
    return Watch(judged, suspicions, frozenset(told)), tuple(lines)


def _times(use: TaskUse, latest: Mapping[str, Sampled]) -> int:
    """Return how often a task must be seen to be slow."""
    is_full = any(use in sample.tasks and _is_full(sample.use) for sample in latest.values())
    return TIMES_IF_FULL if is_full else TIMES


def _is_full(use: HostUse) -> bool:
    return bool(use.cores) and use.cpu > 90 * use.cores


def training(cluster: Cluster) -> dict[str, int]:
    """The attempts of the training tasks that run, by name."""
    return {task.name: task.attempt for task in cluster.tasks.values() if task.trains and task.started_at and not task.has_ended}


def running(latest: Mapping[str, Sampled], tasks: Mapping[str, int]) -> dict[str, TaskUse]:
    """The newest numbers of these tasks, in their order."""
    found = {use.task: use for sample in latest.values() for use in sample.tasks if tasks.get(use.task) == use.attempt}
    return {name: found[name] for name in tasks if name in found}


def is_slow(use: TaskUse, others: Sequence[TaskUse]) -> bool:
    """True if a task makes the others wait, by its newest window."""
    usual, wait = median(other.busy for other in others), median(other.peers for other in others)
    longer = use.busy - usual
    is_longer = use.busy > SLOWER * usual and longer > max(SLOWER_S, PART * (usual + wait))
    return is_longer and wait - use.peers > WAITED_FOR * longer


def judge(latest: Mapping[str, Sampled], tasks: Mapping[str, int]) -> dict[str, bool]:
    """True for each of these tasks that makes the others wait, by its newest window. Without those that cannot be judged."""
    uses = {name: use for name, use in running(latest, tasks).items() if use.window and use.came}
    return {name: is_slow(use, [other for other in uses.values() if other is not use]) for name, use in uses.items() if len(uses) > 1}


# --- in words -------------------------------------------------------------------------------------


def describe(use: TaskUse, others: Sequence[TaskUse], latest: Mapping[str, Sampled]) -> str:
    """The line about a slow task: ``worker-3 is slower: 182 ms of work per step, the others 121-126 ms; …``.

    A task that waits for its input may have the same input as the others: what these read ahead while they wait hides their own.
    """
    wait = milliseconds(median(other.peers for other in others))
    if _reads(use, others):
        theirs = _span([other.input for other in others])
        line = f"{use.task} waits for its input: {milliseconds(use.input)} of each step, the others {theirs}"
        also = f"they wait {wait} of each step for {use.task}, and read ahead meanwhile: their input may be as slow"
    else:
        theirs = _span([other.work for other in others])
        line = f"{use.task} is slower: {milliseconds(use.work)} of work per step, the others {theirs}"
        also = f"they wait {wait} of each step for {use.task}"
    return "; ".join([line, also, *causes(use, others, latest)])


def _reads(use: TaskUse, others: Sequence[TaskUse]) -> bool:
    """True if the wait for input is the larger part of what a task is slower."""
    return use.input - median(other.input for other in others) > (use.busy - median(other.busy for other in others)) / 2


def causes(use: TaskUse, others: Sequence[TaskUse], latest: Mapping[str, Sampled]) -> list[str]:
    """Why a task may be slow, as far as the samples tell."""
    host = next((sample for sample in latest.values() if use in sample.tasks), None)
    if host is None:
        return []
    found = []
    if use.faults >= FAULTS:
        found.append(f"its pages come from a disk ({use.faults:.0f} faults per second): host {host.host} swaps, or has too little memory")
    here = {other.task for other in host.tasks}
    if any(other.task not in here for other in others):  # what is true of a host explains nothing between tasks of this host
        found += _causes_of_host(host)
    if not found and not _reads(use, others) and _is_idle(use, others):
        found.append("it uses no more CPU time than they do: it sleeps, or waits for a lock, a disk or a network (orch stacks)")
    return found


def _causes_of_host(host: Sampled) -> list[str]:
    use, found = host.use, []
    if use.throttled >= THROTTLED:
        found.append(f"on host {host.host} a CPU limit is reached in {use.throttled:.0f} % of its periods (cpu.stat)")
    busy = _of_others(host.use, host.tasks)
    if busy >= OTHERS_CORES:
        found.append(f"other programs use {busy:.1f} of the {use.cores} cores of host {host.host}")
    return found


def _of_others(use: HostUse, tasks: Iterable[TaskUse]) -> float:
    """Return how many cores the other programs of a host use, if no core is left; 0: some core is left."""
    return max(0.0, use.cpu - sum(task.cpu for task in tasks)) / 100 if _is_full(use) else 0.0


def _is_idle(use: TaskUse, others: Sequence[TaskUse]) -> bool:
    """True if CPU time explains less than half of what a task is slower."""
    if not use.rate or not all(other.rate and other.cpu for other in others):
        return False
    computed = use.cpu / 100 / use.rate - median(other.cpu / 100 / other.rate for other in others)
    return computed < (use.busy - median(other.busy for other in others)) / 2


def median(values: Iterable[float]) -> float:
    found = sorted(values)
    return (found[(len(found) - 1) // 2] + found[len(found) // 2]) / 2


def milliseconds(seconds: float) -> str:
    """``182 ms``, ``1.4 s``, ``0.3 ms``."""
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms" if seconds >= 0.01 else f"{1000 * seconds:.1f} ms"


def _span(values: Sequence[float]) -> str:
    low, high = milliseconds(min(values)), milliseconds(max(values))
    return low if low == high else f"{low.removesuffix(' ms') if high.endswith(' ms') else low}-{high}"


# --- at a standstill -------------------------------------------------------------------------------


def absent(latest: Mapping[str, Sampled], tasks: Mapping[str, int], *, at_a_hang: bool = False) -> tuple[list[str], list[str]]:
    """The tasks that have not come to the meeting in which others have been for long, and those others; nothing if none is awaited.

    Twice the same tasks, if each of them waits for its own input.
    `at_a_hang`: nothing has gone on for the time of `--hang-timeout`, so a shorter wait is enough. The same if the tasks were stopped.
    """
    uses = running(latest, tasks)
    most = max((use.came for use in uses.values()), default=0)
    there = [name for name, use in uses.items() if use.came == most and use.met < most and use.waits >= LASTS_S]
    missing = [name for name, use in uses.items() if use.came < most]
    reading = [name for name, use in uses.items() if use.reads >= LASTS_S]
    if reading and len(reading) == len(tasks):
        is_sure = at_a_hang or all(uses[name].reads >= max(SURE_S, SURE_STEPS / (uses[name].rate or math.inf)) for name in reading)
        return (reading, reading) if is_sure else ([], [])
    if not there or len(missing) + len(there) != len(uses):
        return [], []
    is_sure = at_a_hang or all(uses[name].state in STOPPED for name in missing)
    is_sure = is_sure or all(uses[name].waits >= max(SURE_S, SURE_STEPS / (uses[name].rate or math.inf)) for name in there)
    return (missing, there) if is_sure else ([], [])


def states_at_standstill(latest: Mapping[str, Sampled], tasks: Mapping[str, int]) -> tuple[dict[str, str], list[str]]:
    """A word for each task, and the missing ones: ``waits`` for the others, ``input`` where it waits for its input, or ``missing``."""
    missing, there = absent(latest, tasks)
    uses = running(latest, tasks)
    words = {name: "input" if uses[name].reads >= LASTS_S else "missing" for name in missing}
    return dict.fromkeys(there, "waits") | words, missing


def describe_absent(latest: Mapping[str, Sampled], tasks: Mapping[str, int], *, at_a_hang: bool = False) -> str:
    """``worker-2 did not come: worker-0..1 wait for it after step 47``; empty if no task is awaited. See `absent`.

    Or ``worker-2 waits for its input, and worker-0..1 wait for it after step 47``; or ``worker-0..2 wait for their input after step 47``.
    """
    missing, there = absent(latest, tasks, at_a_hang=at_a_hang)
    if not missing:
        return ""
    uses = running(latest, tasks)
    stopped = [name for name in missing if uses[name].state in STOPPED]
    state = " (stopped by SIGSTOP)" if stopped == missing else ""
    after = f" after step {min(uses[name].step for name in there):g}" if all(uses[name].step for name in there) else ""
    if missing == there:
        return f"{group_tasks(missing)} {'waits for its' if len(missing) == 1 else 'wait for their'} input{after}"
    waits = f"{group_tasks(there)} {'waits' if len(there) == 1 else 'wait'} for {'it' if len(missing) == 1 else 'them'}{after}"
    if not state and all(uses[name].reads >= LASTS_S for name in missing):
        reads = "waits for its input, and" if len(missing) == 1 else "wait for their input, and"
        return f"{group_tasks(missing)} {reads} {waits}"
    return f"{group_tasks(missing)}{state} did not come: {waits}"


@dataclass(frozen=True, slots=True)
class Standstill:
    """Holds what is known of the waits so far."""

    tasks: Mapping[str, int] = field(default_factory=dict)
    """The tasks that run, with their attempts."""
    missing: tuple[str, ...] = ()
    """The tasks of which a line has told that they did not come."""
    whose: str = ""
    """What has not come, before the names of these tasks."""
    waited: float = 0.0
    """How long the others have waited for them."""
    least: float = TOLD_S
    """A wait of this time gets a line."""


def standstill(before: Standstill, latest: Mapping[str, Sampled], tasks: Mapping[str, int]) -> tuple[Standstill, tuple[str, ...]]:
    """Return what is known after a sample, and a line when others have waited for long for a task, or when this wait is over."""
    if tasks != before.tasks:
        return Standstill(tasks), ()
    missing, there = absent(latest, tasks)
    if not missing:
        came = f"{before.whose}{group_tasks(before.missing)} came after {before.waited:.0f} s"
        return (Standstill(tasks, least=2 * before.waited), (came,)) if before.missing else (before, ())
    waited = min(max(use.waits, use.reads) for name, use in running(latest, tasks).items() if name in there)
    if before.missing or waited < before.least:
        return replace(before, waited=waited), ()
    line = f"{describe_absent(latest, tasks)}, for {waited:.0f} s now (orch stacks shows where each task is)"
    return replace(before, missing=tuple(missing), whose="the input of " if missing == there else "", waited=waited), (line,)
