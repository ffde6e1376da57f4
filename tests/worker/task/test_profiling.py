"""Which tasks TensorFlow's profiler would end."""

from __future__ import annotations

import pytest

from worker.task.observe.profiling import why_not

WORKER, CHIEF = "/job:worker/replica:0/task:0", "/job:chief/replica:0/task:0"


@pytest.mark.parametrize(
    ("task", "leader", "version", "crashes"),
    [
        ("worker-0", WORKER, "2.21.0", False),
        ("worker-1", WORKER, "2.21.0", True),
        ("worker-10", WORKER, "2.18.1", True),
        ("worker-1", WORKER, "2.17.1", False),
        ("worker-1", WORKER, "2.22.0-rc1", True),
        ("worker-1", WORKER, "3.0.0", True),
        ("chief-0", CHIEF, "2.21.0", False),
        ("worker-0", CHIEF, "2.21.0", True),
        ("evaluator-0", "", "2.21.0", False),
        ("worker-1", "", "2.21.0", False),
        ("", "", "2.21.0", False),
    ],
)
def test_a_task_that_the_profiler_would_end_is_told_from_others(task: str, leader: str, version: str, crashes: bool) -> None:
    reason = why_not(leader, task, version)
    assert reason.startswith(f"TensorFlow {version} often crashes when it profiles another task than the first") == crashes
    assert bool(reason) == crashes
