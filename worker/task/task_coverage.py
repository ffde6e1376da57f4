"""Coverage of the functions that run in a task, by the coverage.py that measures the test's own process."""

from __future__ import annotations

import os
from collections.abc import Callable

VARIABLE = "ORCH_CALLS_COVERAGE"
"""The configuration of the test's coverage, as coverage.py hands it to processes that a program starts (its COVERAGE_PROCESS_CONFIG)."""


def prepare() -> None:
    """Import what `start` needs, before the forks that call it."""
    if VARIABLE in os.environ:
        import inspect

        import coverage  # noqa: F401

        inspect.stack()  # coverage.py calls this; the first call reads the file of every module


def start() -> Callable[[], object]:
    """Measure this process from now on, if the test's process is measured. The returned function saves the measurements so far."""
    config = os.environ.pop(VARIABLE, None)
    if config is None:
        return lambda: None
    import coverage

    # A file of its own, beside the test's, for `coverage combine`, which pytest-cov does at the end.
    measured = coverage.Coverage(config_file=f":data:{config}", data_suffix=True)
    measured._warn_no_data = measured._warn_unimported_source = measured._warn_preimported_source = False
    measured.start()
    return measured.save
