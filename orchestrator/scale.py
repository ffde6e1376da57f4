"""Runs some steps of a program with several numbers of workers, and tells why more are not as many times faster: `orch scale`."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from worker.protocol.step_sums import StepSums
from worker.protocol.task_files import SCALE
from worker.settings.checkpoint_settings import CheckpointSettings
from worker.settings.verify_settings import ScaleSettings, VerifySettings
from worker.values.words import count_of

from .api import check_script, start
from .backends import load
from .backends.warm_process import one_import
from .checks.scaling import ALL, EACH, LIKE, Size, answer, measured_s, size_of, way_of
from .errors import OrchError, UsageError
from .handle import Run, RunFailed
from .model.settings import ClusterSpec
from .model.settings.device_rules import VISIBLE
from .model.settings.run_sections import Restart
from .model.state.events import TaskReported
from .model.strategies import DEFAULT
from .record.event_log import EventReader
from .record.run_files import SCALED
from .record.run_store import discard, list_runs
from .record.samples import read_samples

_POLL_S = 0.1
ENOUGH = 1 / 3
"""A program that ends by itself is measured if it has trained for this share of the time."""
FULL = 0.9
"""The share of the cores of a host from which on they are all in use."""
NO_EXCHANGE = "the exchange is part of computing here, as on GPUs: orch profile --for 2s of a run shows how long it takes"


def scale(
    spec: ClusterSpec,
    home: str | os.PathLike[str],
    sizes: Sequence[int],
    *,
    seconds: float = 30.0,
    limit_s: float = 600.0,
    batch_argument: str = "",
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Measure each size for so many seconds after its warm-up, and return the `answer`: why the largest is not as many times faster.

    `batch_argument`: the argument of the script that takes the size of a batch, to measure the other way of dividing it, too.
    `say`: gets a line before each size. Raises `UsageError` for a cluster that cannot be measured, `RunFailed` if the program fails, and
    `OrchError` if it ends before its steps were measured, or has made too few when the limit is over.
    """
    _check(spec)
    check_script(spec)  # before the import of TensorFlow, which takes seconds
    tasks = tuple(tasks for tasks in spec.tasks if tasks.type != "evaluator")  # it trains nothing
    timeouts = replace(spec.timeouts, run_s=None, save_before_s=None)
    spec = replace(spec, tasks=tasks, timeouts=timeouts, restart=Restart(), tensorboard="", checkpoints=CheckpointSettings())
    spec = replace(spec, verify=VerifySettings(), scale=ScaleSettings(True))
    old = list_runs(Path(home))

    def measure(workers: int, batch: int = 0) -> Size:
        say(f"{count_of(workers, 'worker')}{f', with a batch of {batch}' if batch else ''}: {seconds:g} s after the warm-up")
        with start(_of_size(spec, workers, batch_argument, batch), home, {**os.environ, **imported}) as run:
            rows = _measure(run, workers, seconds, limit_s)
            run.stop(now=True)
        return size_of(rows, shares=_shares(run), batch=batch)

    with one_import(spec) as imported:
        found = [measure(workers) for workers in sizes]
        others, notes = _other_way(found, measure) if batch_argument else ([], [])
    for run in old:
        discard(run)
    has_exchange = all(size.parts["exchange"] for size in found if size.workers > 1)
    made = answer(found, others, notes if has_exchange else [*notes, NO_EXCHANGE])
    newest = list_runs(Path(home))[-1]
    newest.write(SCALED, json.dumps(made))
    newest.make_latest()
    return made


def _other_way(found: Sequence[Size], measure: Callable[[int, int], Size]) -> tuple[list[Size], list[str]]:
    """Measure with the batch for each worker where all share one, and the reverse. Returns also what keeps it from this."""
    way, first, others = way_of(found), found[0].examples, list[Size]()
    if way not in (ALL, EACH):
        return others, ["--batch-argument: not tried, because the batches of the sizes follow no rule that orch knows"]
    for size in found[1:]:
        others.append(measure(size.workers, round(first * size.workers if way == ALL else first / found[0].workers / size.workers)))
        if abs(others[-1].examples / size.examples - 1) < LIKE:
            return others, ["--batch-argument: the script trains on the same batches with it"]
    return others, []


def _check(spec: ClusterSpec) -> None:
    if spec.program.kind == "command":
        raise UsageError("orch scale measures Python programs")
    if load(spec).engine(spec) is not None:
        raise UsageError("orch scale waits in no queue: run it inside of an allocation, or with -H on hosts over SSH")
    others = sorted({tasks.type for tasks in spec.tasks} - {"worker", "evaluator", "data_worker"})
    if others or spec.strategy != DEFAULT.name:
        what = f"tasks of the type {others[0]}" if others else f"the strategy {spec.strategy}"
        raise UsageError(f"orch scale measures workers of {DEFAULT.name}, which take their steps together, and not {what}")


def _of_size(spec: ClusterSpec, workers: int, argument: str, batch: int) -> ClusterSpec:
    tasks = tuple(replace(each, count=workers, least=0) if each.type == "worker" else each for each in spec.tasks)
    given = (f"--{argument.lstrip('-')}", str(batch)) if batch else ()
    program = replace(spec.program, args=(*spec.program.args, *given))
    return replace(spec, name=f"{spec.name}-{workers}"[-40:].lstrip("-_."), tasks=tasks, program=program)


def _measure(run: Run, workers: int, seconds: float, limit_s: float) -> dict[str, list[StepSums]]:
    """Wait until all workers have been measured for long enough, or the program has ended."""
    reader, rows = EventReader(run.run_dir), dict[str, list[StepSums]]()
    limit, is_over = time.monotonic() + limit_s, False
    while True:
        is_over = not run.is_running  # what is read after this is all
        for event in reader.new():
            if isinstance(event, TaskReported) and isinstance(told := event.values.get(SCALE), list):
                row = StepSums(*told)
                known = rows.setdefault(event.task, [])
                if not known or row.time > known[-1].time:
                    known.append(row)
        least = min(map(measured_s, rows.values())) if len(rows) == workers else 0.0
        if is_over and (result := run.wait()).exit_code:
            raise RunFailed(result)
        if least >= (seconds * ENOUGH if is_over else seconds):
            break
        if is_over:
            what = f"the script ended before {count_of(workers, 'worker')} had trained for {seconds:g} s after the warm-up"
            raise OrchError(f"{what}. fix: more epochs or steps, as its arguments after --; its output: {run.run_dir}")
        if time.monotonic() > limit:
            seen = f"orch saw steps of {len(rows)} of {count_of(workers, 'worker')}"
            raise OrchError(f"{seen} in {limit_s:g} s: --limit gives more time, worker.report(step=...) tells of steps; {run.run_dir}")
        time.sleep(_POLL_S)
    if workers > 1 and not any(row.messages for found in rows.values() for row in found) and not _visible_gpus(run):
        raise UsageError("the workers exchange nothing: each trains for itself. fix: build the model in the scope of worker.strategy()")
    return rows


def _visible_gpus(run: Run) -> bool:
    planned = run._run.read_plan()
    return planned is not None and any(task.order.env.get(VISIBLE) for task in planned.members)


def _shares(run: Run) -> str:
    """What the workers of a run share, in words; empty: each has a host, or a GPU, of its own."""
    planned = run._run.read_plan()
    hosts = Counter(task.host for task in planned.members if task.id.type == "worker") if planned is not None else Counter()
    (host, count), *_ = hosts.most_common(1) or [("", 0)]
    if planned is None or count < 2 or _visible_gpus(run):
        return ""
    facts = next(facts for facts in planned.hosts if facts.name == host)
    uses = [sample.use for sample in read_samples(run.run_dir) if sample.host == host][2:]
    what = f"{count} workers share the {facts.cores or ''} cores of {'this machine' if facts.is_here else host}"
    if uses and statistics.fmean(use.cpu / max(1, use.cores) for use in uses) < 100 * FULL:
        return f"{what}, which are not all in use: a speed-up there tells nothing of hosts"
    return f"{what}: more workers cannot be faster there, and each part of a step waits for cores"
