"""Real TensorFlow clusters in tests: `cluster` gives one, and runs functions in its tasks (docs/testing.md).

    with orchestrator.testing.cluster(workers=2) as c:
        got = c.run(train_step, 3)              # {"worker-0": …, "worker-1": …}
        c["worker-1"].kill()

Which process is called what in this package::

    the test's process          one `Session`: a directory, and the socket that all others connect to
      warm process              has imported TensorFlow; each resident is forked from it
      a bed                     one run of `orchestrator.launch`, kept between tests (`Beds`)
        controller, agent       as in any run
        resident of worker-0    the task that the agent started; it runs no function, it forks
          process of worker-0   `Task`: what the test sees; it runs the functions, and dies with the cluster
        resident of worker-1    …

A `Line` is a connection from the test's process to one of the others; the line to a resident is called a door. What a process says
first is its greeting: which run and task it belongs to. A bed whose cluster was left with ``reuse`` keeps that cluster's tasks `parked`.

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
