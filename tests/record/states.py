"""Clusters as they are after some events, for the tests of what is said of them."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.model.policy import lifecycle
from orchestrator.model.settings import Restart, Timeouts
from orchestrator.model.state import events
from orchestrator.model.state.cluster import Cause, Cluster, Policy, Verdict
from worker.protocol.messages import Failure

BAD = "\x1b[2J\x1b[31mred\x1b]0;title\x07 \x01\x9b"
"""What a task may say to command a terminal; `TAMED` is what is shown of it."""
TAMED = "red \\x01\\x9b"


class Told:
    """A cluster whose history is told, and what has come of it."""

    cluster: Cluster

    @property
    def verdict(self) -> Verdict:
        assert self.cluster.verdict is not None
        return self.cluster.verdict

    @property
    def cause(self) -> Cause:
        assert self.verdict.cause is not None
        return self.verdict.cause


def begun(
    policy: Policy, tasks: Mapping[str, str], at: float = 100.0, *, run: str = "", places: Mapping[str, str] | None = None
) -> Cluster:
    state = Cluster()
    for event in (events.RunBegun(at, run, policy), events.Planned(1, tasks, at, places or {})):
        state, _ = lifecycle.step(state, event)
    return state


def cluster(*happened: events.Event, workers: int = 3, grace_s: float = 5.0, restarts: int = 0) -> Cluster:
    policy = Policy("multi_worker_mirrored", Timeouts(grace_s=grace_s), restart=Restart(max=restarts))
    state = begun(policy, {f"worker-{i}": "local" for i in range(workers)})
    for event in (*(events.TaskStarted(f"worker-{i}", 1, 50 + i, 100.0) for i in range(workers)), *happened):
        state, _ = lifecycle.step(state, event)
    return state


def exited(task: str, code: int, at: float = 110.0, *, stopped: bool = False, failure: Failure | None = None) -> events.TaskExited:
    return events.TaskExited(task, 1, code, stopped, at, failure, killed=code > 128)


def lost(peer: str, at: float) -> Failure:
    message = f"The following tasks are unhealthy (stopped sending heartbeats):\n/job:worker/replica:0/task:{peer}\n"
    return Failure("UnavailableError", message, f"Traceback …\nUnavailableError: {message}", at)
