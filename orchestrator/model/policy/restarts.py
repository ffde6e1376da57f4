"""When a restart follows a failure, and after which pause. Pure.

`restart.max` limits the restarts. A restart after a preemption, or on request, does not count.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from itertools import pairwise, takewhile

from worker.protocol.task_files import SAVED_CODE

from ..settings import Restart
from ..state.cluster import Cause, Cluster, Outcome, PastAttempt, Phase, Policy, TaskStatus

PREEMPTED, _PREEMPTED_ON_GCE = SAVED_CODE, 143
"""The exit codes of TensorFlow's `PreemptionCheckpointHandler` after it has saved: 143 on Google Compute Engine, 42 elsewhere
(tensorflow/python/distribute/failure_handling/failure_handling.py and failure_handling_util.py). They request a restart. A task that
SIGTERM has killed also has code 143, and requests nothing."""
JITTER = 0.25
"""A pause is up to this share longer or shorter, so that runs that failed together do not restart together."""


def is_preemption(policy: Policy, code: int | None) -> bool:
    """True if a task that exits by itself with this code asks for a restart. A shell exits with 143 for other reasons, too."""
    return code == PREEMPTED or (code == _PREEMPTED_ON_GCE and not policy.is_command)


def is_requested_restart(cluster: Cluster) -> bool:
    """True if the user has requested a restart, without a failure."""
    return cluster.again and cluster.ending is not None and cluster.ending.outcome is Outcome.CANCELLED


def past_attempt(cluster: Cluster, ended_at: float, cause: Cause | None, task: TaskStatus | None = None) -> PastAttempt:
    """The attempt that has just ended: of the whole cluster, or of a task that has failed alone.

    It has advanced the training if it saved a checkpoint or reported a higher step than any attempt before. If the program does neither,
    the attempt must have lasted `restart.progress_s`.
    """
    name, number = (task.name, task.attempt) if task is not None else ("", cluster.attempt)
    began_at = task.started_at if task is not None and task.started_at is not None else cluster.attempt_at
    before = next((attempt for attempt in reversed(cluster.past) if attempt.task in ("", name)), PastAttempt(0, 0.0, 0.0))
    if cluster.saved_at > before.saved_at or is_requested_restart(cluster):
        progressed = True
    elif cluster.reached is not None:
        progressed = before.reached is None or cluster.reached > before.reached
    else:
        progressed = not cluster.saved_at and ended_at - began_at >= cluster.policy.restart.progress_s
    is_preempted = cause is not None and bool(cause.task) and is_preemption(cluster.policy, cause.code) and not cause.killed
    free = is_preempted or is_requested_restart(cluster)
    workers = cluster.workers if cluster.policy.workers else 0
    return PastAttempt(number, began_at, ended_at, cause, name, free, progressed, cluster.reached, cluster.saved_at, workers)


def will_restart(cluster: Cluster) -> bool:
    """True if another attempt will follow the one that is stopping, as far as is known now."""
    if cluster.phase is not Phase.STOPPING or cluster.ending is None:
        return False
    ended = past_attempt(cluster, cluster.ending.ended_at, cluster.ending.cause)
    return pause(cluster, (*cluster.past, ended)) is not None


def pause(cluster: Cluster, past: Sequence[PastAttempt]) -> float | None:
    """Seconds until the attempt after `past`; None: there is none."""
    if is_requested_restart(cluster):
        return 0.0
    return pause_after(cluster.policy.restart, relevant(past), cluster.run) if cluster.again else None


def pause_after(policy: Restart, past: Sequence[PastAttempt], seed: str) -> float | None:
    """Seconds from the last failure of `past` to the restart; None: no restart follows (see `explain_end`).

    The first restart comes at once, because most failures are short, such as a lost connection. After the second attempt in a row without
    progress the pause is `backoff_s`. It doubles with each further attempt without progress. All pauses have jitter.
    """
    spent = sum(not attempt.free for attempt in past)
    if _is_stuck(policy, past) or (not past[-1].free and spent > policy.max):
        return None
    streak = _streak(past)
    if streak < 2:
        return 0.0
    doubled = min(policy.backoff_s * 2.0 ** min(30, streak - 2), policy.backoff_max_s)
    drawn = zlib.crc32(f"{seed}/{len(past)}".encode()) / 0xFFFFFFFF  # a fold of the same events gives the same pause
    return doubled * (1 - JITTER + 2 * JITTER * drawn)


def broken_hosts(past: Sequence[PastAttempt]) -> dict[str, str]:
    """The hosts that an elastic cluster does without from now on, each with the reason: in two attempts in a row, neither of which has
    advanced the training, a task there was the first to fail."""
    found = {}
    for before, ended in pairwise(attempt for attempt in relevant(past) if not attempt.free):
        first, cause = before.cause, ended.cause
        if before.progressed or ended.progressed or first is None or cause is None:
            continue
        if first.task and cause.task and first.host == cause.host:
            found[cause.host] = (
                f"host {cause.host} is left out, because {cause.task} was the first to fail there in attempts {before.attempt} and "
                f"{ended.attempt}, without progress"
            )
    return found


def explain_end(policy: Restart, past: Sequence[PastAttempt]) -> str:
    """Why no restart follows; empty if the spec allows none."""
    if _is_stuck(policy, past) and (policy.max or any(attempt.free for attempt in past)):
        return f"gave up: {_streak(past)} attempts in a row made no progress (restart.without_progress)"
    if not policy.max:
        return ""
    return f"gave up: {'the 1 restart' if policy.max == 1 else f'all {policy.max} restarts'} that --max-restarts allows had been used"


def relevant(past: Sequence[PastAttempt], task: str = "") -> list[PastAttempt]:
    """The failures that share one limit: an evaluator has its own limit, all other tasks have a common one."""
    own = task if task.startswith("evaluator-") else ""
    return [attempt for attempt in past if (attempt.task == own if own else not attempt.task.startswith("evaluator-"))]


def _streak(past: Sequence[PastAttempt]) -> int:
    """Return how many of the latest attempts, of the last attempt's task or of the whole cluster, made no progress in a row."""
    latest = (attempt for attempt in reversed(past) if attempt.task == past[-1].task)
    return sum(1 for _ in takewhile(lambda attempt: not attempt.progressed, latest))


def _is_stuck(policy: Restart, past: Sequence[PastAttempt]) -> bool:
    return bool(policy.without_progress) and _streak(past) >= policy.without_progress
