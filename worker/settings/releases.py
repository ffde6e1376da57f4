"""The releases of Python, Keras and TensorFlow that orch is made for, both ends included; and what is said of an older Keras 3. Texts and
checks take them from here."""

from __future__ import annotations

NEWEST_PYTHON = (3, 13)
"""The newest Python for which there is a TensorFlow."""
OLDEST_KERAS, NEWEST_KERAS = "3.10", "3.16"
OLDEST_TENSORFLOW, NEWEST_TENSORFLOW = "2.16", "2.22"
KNOWN_KERAS = f"Keras {OLDEST_KERAS} to {NEWEST_KERAS}"


def bounds(oldest: str, newest: str) -> str:
    """These releases as pip's condition: ``>=3.10,<3.17``."""
    major, minor = newest.split(".")
    return f">={oldest},<{major}.{int(minor) + 1}"


INSTALL_KERAS = f"pip install 'keras{bounds(OLDEST_KERAS, NEWEST_KERAS)}'"
KNOWN = f"orch knows {KNOWN_KERAS} and TensorFlow {OLDEST_TENSORFLOW} to {NEWEST_TENSORFLOW}"
REMEDY = f"{KNOWN}: {INSTALL_KERAS}"


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
