"""Real TensorFlow clusters in tests: `cluster` gives one, and runs functions in its tasks (docs/testing.md).

    with orchestrator.testing.cluster(workers=2) as c:
        got = c.run(train_step, 3)              # {"worker-0": …, "worker-1": …}
        c["worker-1"].kill()

Importing this costs nothing; what it gives is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .barriers import barrier as barrier
    from .clusters import Cluster as Cluster
    from .clusters import cluster as cluster
    from .failures import TaskFailed as TaskFailed
    from .failures import TimedOut as TimedOut
    from .jobs import Job as Job
    from .jobs import Outcome as Outcome
    from .tasks import Task as Task

_HOMES = {
    "barrier": "barriers",
    "Task": "tasks",
    **dict.fromkeys(("Cluster", "cluster"), "clusters"),
    **dict.fromkeys(("Job", "Outcome"), "jobs"),
    **dict.fromkeys(("TaskFailed", "TimedOut"), "failures"),
}
__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found = globals()[name] = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
