"""The releases of Keras 3 that orch changes, and what is said of an older one: of the check of a host, and of the doctor."""

from __future__ import annotations

from .releases import OLDEST_KERAS


def release(version: str) -> tuple[int, ...]:
    """``3.4.1`` as (3, 4). A version that cannot be read counts as new."""
    words = version.split(".")[:2]
    return tuple(int(word) for word in words) if len(words) == 2 and all(word.isdigit() for word in words) else (4,)


def is_old(version: str) -> bool:
    """True if this is a Keras 3 that orch leaves as it is, because it is older than those that orch knows."""
    return (3,) <= release(version) < release(OLDEST_KERAS)


def describe_old(version: str) -> str:
    """Return what an old release does wrongly on several replicas: seen with 3.3 to 3.9."""
    fit = f"fit() of Keras {version} fails on several workers, and trains or counts wrongly on several replicas of one process"
    return f"{fit}; before Keras 3.5 a training loop of your own trains wrongly too"
