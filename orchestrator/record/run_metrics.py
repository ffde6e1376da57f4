"""The state of a run as metrics for Prometheus, in the text format 0.0.4, which the textfile collector of node_exporter reads too.

No label has a pid, a step or a command line: their values have a bound, and a file of them is readable for everyone.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from worker.protocol.messages import Sampled

from .. import __version__
from ..model.policy import not_finite, stragglers
from ..model.settings import ClusterSpec
from ..model.state.cluster import Cluster, PastAttempt, Phase, TaskState
from .run_directory import RunDir
from .run_progress import read_cluster
from .samples import read_latest
from .text import timeline

REASONS = ("exit", "lost_host", "hang", "preempted", "asked", "other")
MOST_NAMES = 50
"""Of the values that the tasks of a run report, so many names are shown: a program could make names without end."""

Sample = tuple[str, str, Mapping[str, object], Any]
"""A name, its meaning, labels but ``run``, which all have, and the value; None: not known, and left out. A name that ends in ``_total`` is
a counter, any other a gauge."""


def of_run(run: RunDir) -> str:
    """The metrics of a run, from its files. Raises `OrchError`."""
    lives, cluster = run.is_alive(), read_cluster(run)
    return text(run, run.read_spec(), cluster, timeline.measure(run.read_events(milestones=True), cluster), lives=lives)


def text(run: RunDir, spec: ClusterSpec, cluster: Cluster, phases: Mapping[str, dict[str, float]], *, lives: bool) -> str:
    """All metrics that have a value. `phases`: as `timeline.measure` returns them."""
    found: dict[str, list[str]] = {}
    latest = read_latest(run.path) if lives else {}
    for name, meaning, labels, value in (*_of_run(run, spec, cluster, phases, lives), *_of_hosts(cluster, latest)):
        if value is not None:
            head = f"# HELP {name} {meaning}\n# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}\n"
            pairs = ",".join(f"{label}={_quoted(str(each))}" for label, each in {"run": run.run_id, **labels}.items())
            found.setdefault(name, [head]).append(f"{name}{{{pairs}}} {_number(float(value))}\n")
    return "".join(map("".join, found.values()))


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped.encode("utf-8", "replace").decode()}"'


def _number(value: float) -> str:
    return "NaN" if math.isnan(value) else f"{'+' if value > 0 else '-'}Inf" if math.isinf(value) else repr(value).removesuffix(".0")


def _of_run(run: RunDir, spec: ClusterSpec, cluster: Cluster, phases: Mapping[str, dict[str, float]], lives: bool) -> Iterator[Sample]:
    runs = cluster.word in (Phase.RUNNING.value, Phase.STOPPING.value)
    state = "ended" if cluster.is_over or not lives else "running" if runs else "starting"
    verdict, progress = cluster.verdict, cluster.progress(time.time())
    info = {"name": spec.name, "version": __version__, "backend": spec.backend.type, "strategy": spec.strategy}
    yield "orch_run_info", "Always 1: what the run is.", info, 1
    for each in ("starting", "running", "ended"):
        yield "orch_run_state", "1 for the state of the run.", {"state": each}, each == state
    yield "orch_run_start_timestamp_seconds", "When the run began.", {}, cluster.began_at or None
    yield "orch_run_end_timestamp_seconds", "When the run ended.", {}, verdict and verdict.ended_at
    yield "orch_run_exit_code", "The exit code, after the end.", {}, verdict and verdict.exit_code
    yield "orch_attempt", "The number of the attempt, from 1.", {}, cluster.attempt
    yield "orch_run_progress_ratio", "How far the training is, while this is known.", {}, progress and progress.fraction
    yield "orch_run_remaining_seconds", "The time left, while this is known.", {}, progress and progress.left_s
    restarts, states = Counter(map(_reason, cluster.past)), Counter(task.state for task in cluster.tasks.values())
    for reason in REASONS:
        yield "orch_restarts_total", "Restarts, of the whole cluster or of a task alone.", {"reason": reason}, restarts[reason]
    yield from (("orch_tasks", "Tasks by state.", {"state": each.value}, states[each]) for each in TaskState)
    yield "orch_checkpoint_timestamp_seconds", "The time of the newest checkpoint.", {}, run.newest_checkpoint() or None
    last: dict[str, float] = max(phases.values(), key=lambda marks: max(marks.values(), default=0.0), default={})
    for phase, took in timeline.durations({"": last})[""].items():
        meaning = "What each phase of the last start took, in the task that was last."
        yield "orch_run_phase_seconds", meaning, {"phase": phase.replace(" ", "_")}, took


def _reason(past: PastAttempt) -> str:
    """Return why a restart followed an attempt; one of `REASONS`."""
    what = past.cause.what if past.cause is not None else ""
    if past.free:
        return "asked" if "(orch restart)" in what else "other" if "workers again" in what else "preempted"
    if past.cause is not None and past.cause.task:
        return "exit"
    return "lost_host" if what.startswith("lost host") else "hang" if "(--hang-timeout)" in what else "other"


def _of_hosts(cluster: Cluster, latest: Mapping[str, Sampled]) -> Iterator[Sample]:
    for host, sample in latest.items():
        throttled = sample.use.throttled / 100
        yield "orch_host_cpu_throttled_ratio", "The part of the periods at a limit of CPU time.", {"host": host}, throttled
        for gpu in sample.gpus:
            label = {"host": host, "gpu": str(gpu.index)}
            yield "orch_gpu_busy_ratio", "The part of the time in which the GPU was busy.", label, gpu.busy / 100
            yield "orch_gpu_memory_bytes", "Memory in use on the GPU.", label, gpu.memory
    uses = {(use.task, use.attempt): use for sample in latest.values() for use in sample.tasks}
    slow, names = stragglers.judge(latest, stragglers.training(cluster)), set[str]()
    for task in cluster.tasks.values():
        use, label = None if task.has_ended else uses.get((task.name, task.attempt)), {"task": task.name}
        window = use if use is not None and use.window else None
        reported = {name: value for name, value in not_finite.as_numbers(task.report).items() if type(value) in (int, float)}
        yield "orch_task_info", "Always 1: the host of a task.", {**label, "host": task.host}, 1
        yield "orch_task_up", "1 while the process of a task runs.", label, bool(task.started_at) and not task.has_ended
        yield "orch_task_step", "The newest step; it falls after a restart.", label, (use and use.step) or reported.get("step")
        yield "orch_task_steps_per_second", "Steps per second, of the newest window of steps.", label, window and window.rate
        for part in ("work", "peers", "input") if window and window.came else ("work", "input") if window else ():
            took = getattr(window, part)
            yield "orch_task_step_seconds", "The parts of a step: medians of the newest window.", {**label, "part": part}, took
        yield "orch_task_progress_timestamp_seconds", "When the task reported last.", label, task.reported_at
        yield "orch_task_slow", "1 if the others wait for the task, by the newest windows.", label, slow.get(task.name)
        yield "orch_task_cpu_ratio", "Cores that the task uses.", label, use and use.cpu / 100
        yield "orch_task_memory_bytes", "Resident memory of the task.", label, use and use.memory
        names |= {*[name for name in reported if name not in names][: MOST_NAMES - len(names)]}
        for name in [name for name in reported if name in names]:
            yield "orch_task_report", "The numbers of worker.report.", {**label, "metric": name}, reported[name]
