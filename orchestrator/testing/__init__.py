"""Real TensorFlow clusters in tests: `cluster` gives one, and runs functions in its tasks (docs/testing.md).

    with orchestrator.testing.cluster(workers=2) as c:
        got = c.run(train_step, 3)              # {"worker-0": …, "worker-1": …}
        c["worker-1"].kill()

Which process is called what in this package, and who holds its state::

    the test's process          one `Session`: a directory, and the socket that all others connect to
      warm process              has imported TensorFlow; each resident is forked from it
      a `PooledRun`             a run of `orchestrator.launch`, kept between tests in `Session.runs`
        controller, agent       as in any run
        resident of worker-0    the task that the agent started; it runs no function, it forks
          process of worker-0   `Task`: what the test sees; it runs the functions, and dies with the cluster
        resident of worker-1    …

The life of a cluster: `Cluster.__enter__` takes a run that no other cluster uses (`pool.acquire`), and the residents of the run fork a
process each (`PooledRun.fork`). `Cluster.start` sends a function to these processes, and returns a `Job`, which holds the outcome of the
function in each task. `Cluster.close` has the processes killed, and gives the run back; with ``reuse`` the run keeps them.

All processes tell what happens to them by messages. A `Connection` leads from the test's process to one of them; its first message is
the name of the process. `Session.poll` reads them, and calls who waits for them: `Task` gets the answer of a function from its process, and
`PooledRun` gets from a resident how this process has ended.

Importing this costs nothing; the names that it has are imported when they are first used.

May import: orchestrator.api, orchestrator.backends, orchestrator.checks, orchestrator.errors, orchestrator.functions, orchestrator.handle,
    orchestrator.model, orchestrator.record, orchestrator.verify, worker.host.forkserver.import_environment, worker.protocol,
    worker.task.fixture, worker.task.sent_function.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .assertions import assert_same_training as assert_same_training
    from .clusters import Cluster as Cluster
    from .clusters import cluster as cluster
    from .failures import TaskFailed as TaskFailed
    from .failures import TimedOut as TimedOut
    from .jobs import Job as Job
    from .outcomes import Outcome as Outcome
    from .tasks import Task as Task

_HOMES = {
    "Task": "tasks",
    **dict.fromkeys(("Cluster", "cluster"), "clusters"),
    "Job": "jobs",
    "assert_same_training": "assertions",
    "Outcome": "outcomes",
    **dict.fromkeys(("TaskFailed", "TimedOut"), "failures"),
}
__all__ = [*_HOMES, "barrier"]


def barrier(timeout: float | None = None) -> None:
    """Wait, in a function that runs in tasks, until all of its tasks have made this call as often as this one.

    Raises `TimeoutError` after `timeout` seconds, which names the missing tasks. Without `timeout`, the limit is that of the whole call.
    Raises RuntimeError outside a function that a cluster runs.
    """
    import sys
    from importlib import import_module

    # A task has orch's code under a name of its own. A test that calls this function itself gets the error.
    barriers = sys.modules.get("_orch_worker.task.fixture.barriers") or import_module("worker.task.fixture.barriers")
    barriers.wait(timeout)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found = globals()[name] = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    return found
