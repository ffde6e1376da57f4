"""When a failure is followed by another start: pure rules over what has failed so far.

The words are TensorFlow's and torchelastic's: an attempt is one try; a budget limits the restarts; a preemption is free of charge.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from ..spec import Restart
from .cluster import Cause, Cluster, Outcome, PastAttempt, Phase, TaskStatus

PREEMPTED_CODES = (42, 143)
"""What TensorFlow's `PreemptionCheckpointHandler` exits with once it has saved: "restart me". 143 on Google Compute Engine, 42 elsewhere
(tensorflow/python/distribute/failure_handling/failure_handling.py and failure_handling_util.py). A task that SIGTERM has killed also
shows 143, but has said nothing."""
JITTER = 0.25
"""By how much a pause is longer or shorter, at most: runs that failed together must not come back together."""


def is_preemption(cause: Cause | None) -> bool:
    """The task has saved its state and asks for a restart."""
    return cause is not None and bool(cause.task) and cause.code in PREEMPTED_CODES and not cause.killed


def is_asked(cluster: Cluster) -> bool:
    """Nothing has failed: the user wants the cluster to be started anew."""
    return cluster.again and cluster.ending is not None and cluster.ending.outcome is Outcome.CANCELLED


def has_progressed(cluster: Cluster, seconds: float, saved_before: float, step_before: float | None) -> bool:
    """Whether the training came forward: a higher step was reported, a checkpoint came, or, if neither ever happens, by its length.

    `saved_before`, `step_before`: what had been reached when it began.
    """
    if cluster.saved_at > saved_before:
        return True
    if cluster.reached is not None:
        return step_before is None or cluster.reached > step_before
    return not cluster.saved_at and step_before is None and seconds >= cluster.policy.restart.progress_s


def of_cluster(cluster: Cluster, at: float) -> PastAttempt:
    """What has just ended: the attempt of the whole cluster."""
    ending = cluster.ending
    cause = ending.cause if ending is not None else None
    asked = is_asked(cluster)
    seconds = (cluster.stopping_at or at) - cluster.attempt_at
    progressed = asked or has_progressed(cluster, seconds, cluster.saved_before, cluster.furthest)
    return PastAttempt(cluster.attempt, cluster.attempt_at, at, cause, free=asked or is_preemption(cause), progressed=progressed)


def of_task(cluster: Cluster, task: TaskStatus, cause: Cause) -> PastAttempt:
    """What has just ended: a task that can go on alone."""
    since = cluster.attempt_at if task.started_at is None else task.started_at
    progressed = has_progressed(cluster, cause.at - since, task.saved_before, task.step_before)
    return PastAttempt(task.attempt, since, cause.at, cause, task.name, free=is_preemption(cause), progressed=progressed)


def comes_again(cluster: Cluster, at: float) -> bool:
    """Whether another attempt will follow the one that is being stopped, as far as is known by now."""
    if cluster.phase is not Phase.STOPPING:
        return False
    return pause(cluster, (*cluster.past, of_cluster(cluster, at))) is not None


def pause(cluster: Cluster, past: Sequence[PastAttempt]) -> float | None:
    """Seconds until the attempt after `past`; None: there is none."""
    if not cluster.again or is_asked(cluster):
        return 0.0 if cluster.again else None
    return pause_after(cluster.policy.restart, relevant(past), cluster.seed)


def pause_after(policy: Restart, past: Sequence[PastAttempt], seed: str) -> float | None:
    """Seconds until the next start, after the last of `past`; None: there is none, and `explain_end` says why.

    The first restart comes at once: most failures are of their moment, such as a lost connection. After the second attempt in a row
    without progress the pause is `backoff_s`, and after each further one twice as long as before; all with jitter.
    """
    if _is_stuck(policy, past) or (not past[-1].free and _spent(past) > policy.max):
        return None
    streak = _streak(past)
    if streak < 2:
        return 0.0
    doubled = min(policy.backoff_s * 2.0 ** min(30, streak - 2), policy.backoff_max_s)
    drawn = zlib.crc32(f"{seed}/{len(past)}".encode()) / 0xFFFFFFFF  # the same when a run's events are folded again
    return doubled * (1 - JITTER + 2 * JITTER * drawn)


def explain_end(policy: Restart, past: Sequence[PastAttempt]) -> str:
    """Why there is no further start; empty where nobody expected one."""
    if not policy.max and not any(attempt.free for attempt in past):
        return ""
    if _is_stuck(policy, past):
        return f"gave up: {_streak(past)} attempts in a row made no progress (restart.without_progress)"
    if not policy.max:
        return ""
    return f"gave up: {'the 1 restart' if policy.max == 1 else f'all {policy.max} restarts'} that --max-restarts allows had been used"


def relevant(past: Sequence[PastAttempt], task: str = "") -> list[PastAttempt]:
    """The failures that count together: an evaluator has a budget of its own, all others share one."""
    if task.startswith("evaluator-"):
        return [attempt for attempt in past if attempt.task == task]
    return [attempt for attempt in past if not attempt.task.startswith("evaluator-")]


def _spent(past: Sequence[PastAttempt]) -> int:
    return sum(not attempt.free for attempt in past)


def _streak(past: Sequence[PastAttempt]) -> int:
    """How many in a row, up to the last and of the same task or of the whole cluster, made no progress."""
    count = 0
    for attempt in reversed(past):
        if attempt.task == past[-1].task:
            if attempt.progressed:
                break
            count += 1
    return count


def _is_stuck(policy: Restart, past: Sequence[PastAttempt]) -> bool:
    return bool(policy.without_progress) and _streak(past) >= policy.without_progress
