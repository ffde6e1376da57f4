"""The variables by which coverage.py measures the tasks of clusters, where it measures the test's process, and nothing else of orch."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from worker.task.calls import task_coverage

_OF_COVERAGE = ("COVERAGE_PROCESS_CONFIG", "COVERAGE_PROCESS_START")
"""With these (``patch = subprocess``), each Python process measures itself: the controller too, and the import of TensorFlow."""


def without_coverage(env: Mapping[str, str]) -> dict[str, str]:
    """`env` for orch's own processes."""
    return {name: value for name, value in env.items() if name not in _OF_COVERAGE}


def coverage_of_tasks() -> dict[str, str]:
    """Variables for the tasks of a run. coverage.py before 7.10 cannot hand its configuration on: the tasks are not measured then."""
    coverage = sys.modules.get("coverage")
    current = coverage.Coverage.current() if coverage is not None else None
    if current is None or not hasattr(current.config, "serialize"):
        return {}
    return {task_coverage.VARIABLE: current.config.serialize()}
