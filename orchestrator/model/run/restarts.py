"""When a restart follows a failure, and after which pause. Pure.

`restart.max` limits the restarts. A restart after a preemption, or on request, does not count.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from itertools import takewhile

from ..spec import Restart
from .cluster import Cause, Cluster, Outcome, PastAttempt, Phase, TaskStatus

PREEMPTED_CODES = (42, 143)
"""The exit codes of TensorFlow's `PreemptionCheckpointHandler` after it has saved: 143 on Google Compute Engine, 42 elsewhere
(tensorflow/python/distribute/failure_handling/failure_handling.py and failure_handling_util.py). They request a restart. A task that
SIGTERM has killed also has code 143, and requests nothing."""
JITTER = 0.25
"""A pause is up to this share longer or shorter, so that runs that failed together do not restart together."""


def is_preemption(cause: Cause | None) -> bool:
    """Whether the task has saved its state and requests a restart."""
    return cause is not None and bool(cause.task) and cause.code in PREEMPTED_CODES and not cause.killed


def is_requested_restart(cluster: Cluster) -> bool:
    """Whether the user has requested a restart, without a failure."""
    return cluster.again and cluster.ending is not None and cluster.ending.outcome is Outcome.CANCELLED


def has_progressed(cluster: Cluster, seconds: float, saved_before: float, step_before: float | None) -> bool:
    """Whether an attempt of `seconds` advanced the training: it reported a higher step or saved a checkpoint. If the program does neither,
    the attempt must have lasted `restart.progress_s`. `saved_before`, `step_before`: the state when the attempt began.
    """
    if cluster.saved_at > saved_before:
        return True
    if cluster.reached is not None:
        return step_before is None or cluster.reached > step_before
    return not cluster.saved_at and seconds >= cluster.policy.restart.progress_s


def of_cluster(cluster: Cluster, at: float) -> PastAttempt:
    """The attempt of the whole cluster that has just ended."""
    ending = cluster.ending
    cause = ending.cause if ending is not None else None
    asked = is_requested_restart(cluster)
    seconds = (cluster.stopping_at or at) - cluster.attempt_at
    progressed = asked or has_progressed(cluster, seconds, cluster.saved_before, cluster.step_before)
    return PastAttempt(cluster.attempt, cluster.attempt_at, at, cause, free=asked or is_preemption(cause), progressed=progressed)


def of_task(cluster: Cluster, task: TaskStatus, cause: Cause) -> PastAttempt:
    """The attempt of one task that has just failed alone."""
    since = cluster.attempt_at if task.started_at is None else task.started_at
    progressed = has_progressed(cluster, cause.at - since, task.saved_before, task.step_before)
    return PastAttempt(task.attempt, since, cause.at, cause, task.name, free=is_preemption(cause), progressed=progressed)


def will_restart(cluster: Cluster, at: float) -> bool:
    """Whether another attempt will follow the one that is stopping, as far as is known now."""
    if cluster.phase is not Phase.STOPPING:
        return False
    return pause(cluster, (*cluster.past, of_cluster(cluster, at))) is not None


def pause(cluster: Cluster, past: Sequence[PastAttempt]) -> float | None:
    """Seconds until the attempt after `past`; None: there is none."""
    if not cluster.again or is_requested_restart(cluster):
        return 0.0 if cluster.again else None
    return pause_after(cluster.policy.restart, relevant(past), cluster.seed)


def pause_after(policy: Restart, past: Sequence[PastAttempt], seed: str) -> float | None:
    """Seconds from the last failure of `past` to the restart; None: no restart follows (see `explain_end`).

    The first restart comes at once, because most failures are short, such as a lost connection. After the second attempt in a row without
    progress the pause is `backoff_s`. It doubles with each further attempt without progress. All pauses have jitter.
    """
    if _is_stuck(policy, past) or (not past[-1].free and _spent(past) > policy.max):
        return None
    streak = _streak(past)
    if streak < 2:
        return 0.0
    doubled = min(policy.backoff_s * 2.0 ** min(30, streak - 2), policy.backoff_max_s)
    drawn = zlib.crc32(f"{seed}/{len(past)}".encode()) / 0xFFFFFFFF  # a fold of the same events gives the same pause
    return doubled * (1 - JITTER + 2 * JITTER * drawn)


def explain_end(policy: Restart, past: Sequence[PastAttempt]) -> str:
    """Why no restart follows; empty if the spec allows none."""
    if not policy.max and not any(attempt.free for attempt in past):
        return ""
    if _is_stuck(policy, past):
        return f"gave up: {_streak(past)} attempts in a row made no progress (restart.without_progress)"
    if not policy.max:
        return ""
    return f"gave up: {'the 1 restart' if policy.max == 1 else f'all {policy.max} restarts'} that --max-restarts allows had been used"


def relevant(past: Sequence[PastAttempt], task: str = "") -> list[PastAttempt]:
    """The failures that share one limit: an evaluator has its own limit, all other tasks have a common one."""
    own = task if task.startswith("evaluator-") else ""
    return [attempt for attempt in past if (attempt.task == own if own else not attempt.task.startswith("evaluator-"))]


def _spent(past: Sequence[PastAttempt]) -> int:
    return sum(not attempt.free for attempt in past)


def _streak(past: Sequence[PastAttempt]) -> int:
    """How many of the latest attempts, of the last attempt's task or of the whole cluster, made no progress in a row."""
    latest = (attempt for attempt in reversed(past) if attempt.task == past[-1].task)
    return sum(1 for _ in takewhile(lambda attempt: not attempt.progressed, latest))


def _is_stuck(policy: Restart, past: Sequence[PastAttempt]) -> bool:
    return bool(policy.without_progress) and _streak(past) >= policy.without_progress
