"""The releases of Python, Keras and TensorFlow that orch is made for, both ends included. Texts and checks take them from here."""

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
