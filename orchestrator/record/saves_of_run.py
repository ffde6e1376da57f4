"""The saves of a run (`worker/formats`): where they are, and from which of them another run continues."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from worker.formats import saves

from ..errors import UsageError
from ..model.settings import ClusterSpec
from .run_directory import RunDir
from .run_store import find_run


def directory(run: RunDir) -> str:
    """The directory in which a run saves; with a scheme if TensorFlow's file systems reach it."""
    given = run.read_spec().checkpoints.dir
    if not given:
        return str(run.path / "checkpoints")
    return given_directory(given, run.read_spec().workdir, run.run_id)


def given_directory(given: str, workdir: str, run_id: str) -> str:
    """The directory of a run in that of the setting, which starts at the working directory of the tasks."""
    return saves.join(given if "://" in given else str(Path(workdir) / given), run_id)


def is_remote(base: str) -> bool:
    """True if only TensorFlow can read this directory."""
    return "://" in base


def newest(base: str) -> saves.Save | None:
    """The newest save of a local directory that has a manifest: of the series that was begun last."""
    whole = [
        save
        for home in saves.homes_of(saves.LOCAL, base)
        for series in saves.series_of(saves.LOCAL, home)
        for save in saves.list_saves(saves.LOCAL, home, series)
        if save.manifest is not None
    ]
    return max(whole, key=lambda save: float((save.manifest or {})["at"]), default=None)


def resumed(home: Path, spec: ClusterSpec, find: Callable[[Path, str], RunDir] = find_run) -> ClusterSpec:
    """The spec of a new run with the directory of the saves of the run that it continues, and with the order of its shuffles.

    What continues a `fit` saves it, too, whether or not the new run was asked to: only a `fit` that is saved is restored.
    `find`: `engine_jobs.find`, where runs may be submitted. Raises `UsageError` for a run that still goes on, or has no save.
    """
    asked = spec.checkpoints.resume
    if not asked:
        return spec
    order, older, fit, every = "", spec.checkpoints.resume_older, spec.checkpoints.fit, spec.checkpoints.every
    if is_remote(asked) or Path(asked).is_dir():
        base = asked if is_remote(asked) else str(Path(asked).resolve())
        what = base
    else:
        run = find(home, asked)
        if run.is_alive():
            raise UsageError(f"the run {run.run_id} still goes on: wait until it ends, or end it with: orch down {run.run_id}")
        before = run.read_spec().checkpoints
        base, what, order = directory(run), f"the run {run.run_id}", before.order or run.run_id
        fit, every = fit or before.fit, every or before.every
        chain = [each for each in (before.resume, *before.resume_older) if each and (is_remote(each) or newest(each) is not None)]
        if chain and not is_remote(base) and newest(base) is None:
            base, *chain = chain  # it ended before its first save
        older = tuple(chain)
    if not is_remote(base):
        save = newest(base)
        if save is None:
            how = "start again with --checkpoint (a fit), or worker.checkpoints (a loop)"
            raise UsageError(f"{what} has no checkpoint in {base}", how, "resume")
        if not (order or spec.checkpoints.order):  # a directory
            order, fit = str((save.manifest or {})["order"]), fit or save.series.rpartition("/")[2].startswith("fit-")
    order = spec.checkpoints.order or order
    return replace(spec, checkpoints=replace(spec.checkpoints, resume=base, resume_older=older, order=order, fit=fit, every=every))
