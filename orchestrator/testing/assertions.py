"""A test's question whether a program trains on several workers as in one process."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from ..api import read_spec
from ..backends.warm_process import one_import
from ..checks.same_training import Comparison, sentences
from ..checks.training_steps import STEPS
from ..verify import verify


def assert_same_training(
    program: str | os.PathLike[str],
    *words: str | int | float,
    workers: int | Sequence[int] = 2,
    steps: int = STEPS,
    timeout: float = 300.0,
    home: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> list[Comparison]:
    """Raise AssertionError with the causes if the first steps of a program differ between one process and several workers.

    `words`: the arguments of the program. `workers`: numbers of workers, each of which is compared with one process; 1 is one process
    itself. `settings`: as for `orchestrator.launch`. Returns the comparisons.
    """
    __tracebackhide__ = True
    counts = [count for count in ((workers,) if isinstance(workers, int) else workers) if count > 1]
    given = {**settings, **({"args": words} if words else {})}
    specs = {count: read_spec(program, {**given, "workers": count}, os.environ) for count in counts}
    runs = os.path.join(home or os.environ.get("ORCH_HOME") or ".orch", "verify")
    found: list[Comparison] = []
    if not counts:
        return found
    with one_import(specs[counts[0]]) as imported:
        for count, spec in specs.items():
            found.append(verify(spec, runs, steps=steps, limit_s=timeout, imported=imported))
            if not found[-1].is_same:
                raise AssertionError(f"{os.fspath(program)} with {count} workers: " + "\n".join(sentences(found[-1])))
    return found
