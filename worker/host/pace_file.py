"""Reads how long the steps of a task take, from the file that the task writes (worker/task/observe/step_times.py)."""

from __future__ import annotations

import json
import os
from typing import Any

from ..protocol import task_files

_MOST = 4096
_NUMBERS = ("step", "rate", "work", "peers", "input", "waits", "reads")
_COUNTS = ("window", "came", "met")
_OF_USE = (*_NUMBERS, *_COUNTS)
_HIGHEST = {**dict.fromkeys(_NUMBERS, 1e9), **dict.fromkeys(_COUNTS, 2**31 - 1), "busy": 1e9}


_FEW = 5
"""So often may a program meet the other workers before it trains."""


def has_trained(directory: str) -> bool:
    """True if the task is known to have made steps, or to have met its peers again and again: in graphs, meetings are not counted."""
    found = _load(directory)
    return found.get("step", 0) > 0 or found.get("met", 0) > _FEW or found.get("busy", 0) > 1


def read(directory: str) -> dict[str, Any]:
    """These fields of `TaskUse`; none where the task has written nothing, or where something else has written into the file."""
    found = _load(directory)
    return {name: int(found[name]) if name in _COUNTS else float(found[name]) for name in _OF_USE if name in found}


def _load(directory: str) -> dict[str, float]:
    if not directory:
        return {}
    try:
        found = json.loads(task_files.read(os.path.join(directory, task_files.PACE), most=_MOST))
        values = {name: found[name] for name in _HIGHEST if name in found}
    except (ValueError, TypeError, RecursionError):  # none yet; or in this moment the task writes a new one
        return {}
    if not all(type(value) in (int, float) and 0 <= value <= _HIGHEST[name] for name, value in values.items()):
        return {}
    return values
