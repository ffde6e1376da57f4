"""Runs a script in a test as `orch up` does, until the end of the run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from worker.values.fast_dataclass import dataclass

from ..api import read_spec, start
from ..handle import Result
from ..record.text.noise import Noise
from .session import Session, environment
from .tasks import quiet_noise

TIMEOUT_S = 120.0


@dataclass(frozen=True, repr=False)
class ScriptRun(Result):
    """The result of a script: an `orchestrator.Result` (`exit_code`, `cause`, `reports`, `report`, `run_dir`, …) with logs and events."""

    logs: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The output of each task, by its name: stdout, then stderr."""
    events: tuple[dict[str, Any], ...] = field(default=(), repr=False)
    """The objects of `events.jsonl`, oldest first."""


def run_script(
    script: str | os.PathLike[str],
    /,
    *args: str | int | float,
    home: str | os.PathLike[str],
    timeout: float | str = TIMEOUT_S,
    env: Mapping[str, str | int | float] | None = None,
    **settings: Any,
) -> ScriptRun:
    """Run a script with these arguments until the run ends. Each line that a task writes is printed with the name of the task before it.

    `home`: the directory in which the run's directory is made. `timeout`: after this number of seconds the run ends with exit code 124,
    and the report shows where each task was. `settings`: the other keywords of `orchestrator.launch`. TensorFlow is imported once for all
    runs and clusters of this process. Raises `SpecError` for wrong settings. A run that fails raises nothing: the result says how it ended.
    """
    session = Session.get()
    quiet = {**session.log_level, **(env or {})}
    spec = read_spec(os.fspath(script), {"timeout": timeout, "preload": ["tensorflow"], **settings, "args": list(args), "env": quiet})
    surroundings = environment()
    if spec.preload:
        session.warm_up({**surroundings, **spec.env})
    with start(spec, home, {**surroundings, **session.runtime}) as run:
        warnings: set[str] = set()
        noises: dict[tuple[str, str], Noise | None] = {}
        for line in run.lines():
            noise = noises.setdefault((line.task, line.stream), quiet_noise(warnings))
            if noise is None or not noise.hides(line.text):
                print(f"[{line.task}] {line.text}")
        result = run.wait()
        events = tuple(run.events)
        logs = {name: run.logs(name) for name in result.tasks}
    return ScriptRun(**vars(result), logs=logs, events=events)
