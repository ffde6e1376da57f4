"""The releases of Keras and TensorFlow that orch knows: docs, extras, remedies and the table of patches name these."""

from __future__ import annotations

OLDEST_KERAS = "3.10"
NEWEST_KERAS = "3.16"
OLDEST_TENSORFLOW = "2.16"
NEWEST_TENSORFLOW = "2.22"


def _bounds(oldest: str, newest: str) -> str:
    major, minor = newest.split(".")
    return f">={oldest},<{major}.{int(minor) + 1}"


KERAS = f"keras{_bounds(OLDEST_KERAS, NEWEST_KERAS)}"
TENSORFLOW = f"tensorflow{_bounds(OLDEST_TENSORFLOW, NEWEST_TENSORFLOW)}"
"""As pip takes them."""
INSTALL_KERAS = f"pip install '{KERAS}'"
KNOWN_KERAS = f"Keras {OLDEST_KERAS} to {NEWEST_KERAS}"
REMEDY = f"orch knows {KNOWN_KERAS} and TensorFlow {OLDEST_TENSORFLOW} to {NEWEST_TENSORFLOW}: {INSTALL_KERAS}"
