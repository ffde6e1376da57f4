"""The releases of Keras and TensorFlow that orch knows: docs, extras, remedies and the table of patches name these."""

from __future__ import annotations

OLDEST_KERAS = "3.10"
NEWEST_KERAS = "3.16"
OLDEST_TENSORFLOW = "2.16"
NEWEST_TENSORFLOW = "2.22"


def _next(release: str) -> str:
    major, minor = release.split(".")
    return f"{major}.{int(minor) + 1}"


KERAS = f"keras>={OLDEST_KERAS},<{_next(NEWEST_KERAS)}"
"""As pip takes it."""
REMEDY = (
    f"orch knows Keras {OLDEST_KERAS} to {NEWEST_KERAS} and TensorFlow {OLDEST_TENSORFLOW} to {NEWEST_TENSORFLOW}: pip install '{KERAS}'"
)
