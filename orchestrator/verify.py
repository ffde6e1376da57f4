"""Runs the first steps of a program as one process and as several workers, and compares them: `orch verify`, and a test's helper."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from worker.protocol import task_files
from worker.settings.checkpoint_settings import CheckpointSettings
from worker.settings.verify_settings import VerifySettings

from .api import check_script, start
from .backends import imagine
from .backends.warm_process import one_import
from .checks.same_training import Comparison, compare, sentences, to_json, with_larger_batch
from .checks.training_steps import STEPS, World, world
from .errors import OrchError, UsageError
from .handle import Run
from .handle import RunFailed as RunFailed
from .model.settings import ClusterSpec
from .model.strategies import DEFAULT, named, which
from .record.run_directory import RunDir
from .record.run_files import SAME_TRAINING
from .record.run_store import discard, list_runs

ONE = "one process"
_POLL_S = 0.02


def verify(
    spec: ClusterSpec,
    home: str | os.PathLike[str],
    *,
    steps: int = STEPS,
    limit_s: float = 300.0,
    imported: Mapping[str, str] | None = None,
) -> Comparison:
    """Run the first steps of a program twice, side by side, and compare them. `imported`: the variables of `one_import`, in which this is.

    Raises `UsageError` for a cluster that cannot be compared, `RunFailed` if the program fails, and `OrchError` if it takes no step, or
    longer than the limit.
    """
    spec = replace(spec, tasks=tuple(tasks for tasks in spec.tasks if tasks.type != "evaluator"))  # it trains nothing
    workers = _workers(spec)
    check_script(spec)  # before the import of TensorFlow, which takes seconds
    spec = replace(spec, checkpoints=CheckpointSettings(), verify=VerifySettings(steps, word=spec.verify.word))
    with one_import(spec) if imported is None else nullcontext(imported) as variables:
        begin = partial(start, home=home, env={**os.environ, **variables})
        found, many, run_of_one, run = _compare({ONE: _alone(spec), f"{workers} workers": spec}, workers, begin, limit_s)
        discard(run_of_one)
        if found.findings and found.findings[0].kind == "batch":
            larger = _alone(replace(spec, verify=replace(spec.verify, batch_of=workers)))
            ((one, run_of_one),) = _worlds({ONE: begin(larger)}, limit_s)
            found = with_larger_batch(found, compare(one, many, workers))
            discard(run_of_one)
    _keep(run, found)
    return found


def _compare(
    specs: Mapping[str, ClusterSpec], workers: int, begin: Callable[[ClusterSpec], Run], limit_s: float
) -> tuple[Comparison, World, RunDir, RunDir]:
    """Compare one process with several workers, which run side by side, or one after the other if they disturb each other.

    They do where both write to one path and differ, or where one writes and fails. Gives the workers' world, and both runs, too.
    """
    runs = {title: begin(spec) for title, spec in specs.items()}
    try:
        (one, run_of_one), (many, run) = _worlds(runs, limit_s)
        found = compare(one, many, workers)
        is_disturbed = bool(found.findings) and bool(set.intersection(*map(_wrote, runs.values())))
    except RunFailed:
        if not any(map(_wrote, runs.values())):
            raise
        is_disturbed = True
    if is_disturbed:
        for each in runs.values():
            discard(each._run)
        (one, run_of_one), (many, run) = (_worlds({title: begin(spec)}, limit_s)[0] for title, spec in specs.items())
        found = compare(one, many, workers)
    return found, many, run_of_one, run


def _keep(run: RunDir, found: Comparison) -> None:
    """Keep the run of the workers, for `orch report`, in place of that of the comparison before."""
    for other in list_runs(run.path.parent.parent):
        if (other.path / SAME_TRAINING).exists():
            discard(other)
    run.write(SAME_TRAINING, json.dumps({**to_json(found), "text": sentences(found)}))
    run.make_latest()


def _worlds(runs: Mapping[str, Run], limit_s: float) -> list[tuple[World, RunDir]]:
    """Wait for the end of all runs, and read what they have written down."""
    try:
        _wait(runs, limit_s)
        return [(_world(run, title), run._run) for title, run in runs.items()]
    except BaseException:
        for run in runs.values():
            with run:  # which stops it
                pass
        raise


def _workers(spec: ClusterSpec) -> int:
    """Count the replicas that train together: the workers, or the logical CPU devices of one task."""
    if spec.program.kind == "command":
        raise UsageError("orch verify compares Python programs")
    if not all(host.is_here for host in imagine(spec).hosts):
        raise UsageError("orch verify compares tasks on this machine; leave out the hosts")
    kinds = {tasks.type: tasks for tasks in spec.tasks}
    if named(spec.strategy).replicates_on_cpus:
        workers = next(iter(kinds.values())).devices.settings.cpus or 1
        if workers < 2:
            raise UsageError("orch verify compares several replicas with one: say how many logical CPU devices there are, as in --cpus 2")
    else:
        workers = sum(tasks.count for kind, tasks in kinds.items() if kind in ("chief", "worker"))
        if "ps" in kinds:
            raise UsageError(
                "with parameter servers each worker takes steps of its own, so none is a step of one process. "
                "fix: leave out --ps, if the program takes its strategy from worker.strategy()"
            )
        if spec.strategy != DEFAULT.name:
            also = which(lambda row: row.replicates_on_cpus)
            raise UsageError(f"orch verify compares workers of {DEFAULT.name}, and replicas of {also}; leave out --strategy and --ps")
        if workers < 2:
            raise UsageError("orch verify compares several workers with one process: say how many, as in -n 2")
    return workers


def _alone(spec: ClusterSpec) -> ClusterSpec:
    """The cluster of one worker, with one replica, that runs the same program."""
    worker = next(tasks for tasks in spec.tasks if tasks.type in ("worker", "chief"))
    if named(spec.strategy).replicates_on_cpus:
        worker = replace(worker, devices=replace(worker.devices, settings=replace(worker.devices.settings, cpus=1)))
    return replace(spec, name=f"{spec.name}-one"[-40:], tasks=(replace(worker, count=1, least=0),))


def _wait(runs: Mapping[str, Run], limit_s: float) -> None:
    """Wait for the end of all runs, or of one that fails."""
    limit = time.monotonic() + limit_s
    left = dict(runs)
    while left:
        for title, run in list(left.items()):
            if not run.is_running:
                result = run.wait()
                if result.exit_code:
                    raise RunFailed(result)
                del left[title]
        if time.monotonic() > limit:
            raise OrchError(f"{' and '.join(left)} took longer than {limit_s:g} s; --limit gives more time, --steps takes fewer steps")
        time.sleep(_POLL_S)


def _tasks(run: Run) -> dict[str, Mapping[str, Any]]:
    """Read what each task of a run has written down."""
    found = sorted((run.run_dir / "attempt-1").glob(f"*/{task_files.VERIFIED}"))
    return {path.parent.name: json.loads(task_files.read(os.fspath(path), most=1 << 30)) for path in found}


def _wrote(run: Run) -> set[str]:
    return {path for task in _tasks(run).values() for path in task["wrote"]}


def _world(run: Run, title: str) -> World:
    found = _tasks(run)
    made = world(found)
    if not made.steps:
        if off := next((task["off"] for task in found.values() if task["off"]), ""):
            raise OrchError(off)
        why = "it took none that orch knows: one of fit, of train_on_batch, or of strategy.run"
        why = why if found else "it has imported no TensorFlow, or ended by os._exit"
        raise UsageError(f"no step of the training was seen in {title}: {why}; its output: {run.run_dir}")
    return made
