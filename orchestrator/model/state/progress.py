"""The progress of a training and the time left, as one of its tasks has counted (worker/task/observe/time_left.py). Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from worker.values.codec import Between, ContractError, Count, Seconds, from_json
from worker.values.fast_dataclass import dataclass

_PROGRESS = ("epoch", "step", "steps_per_s")


def place_of(key: str) -> int:
    """Return the rank of a value of a report where there is little room: first what a training is judged by, last how far it is."""
    return 0 if key.startswith("val_") else 1 if "loss" in key else 3 if key in _PROGRESS else 2


def describe_report(report: Mapping[str, Any]) -> str:
    """``step=12 loss=0.1235``"""
    return " ".join(f"{key}={describe_number(value)}" for key, value in report.items())


def describe_number(value: object) -> str:
    """A value of a report, a number with four digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


STALE_S, STALE_STEPS = 60.0, 3.0
"""After so many seconds, and so many times the seconds of a step, without a report, the time left is not shown: the training may hang."""


@dataclass(frozen=True, slots=True)
class Progress:
    fraction: Annotated[float, Between(0, 1)]
    """Of the present `fit`, or of the steps that `worker.report(step=…, of=…)` names."""
    fit: Count = 1
    """The number of the present `fit` in the program."""
    left_s: Seconds | None = None
    """Seconds that are left at the time of the report; None: not known yet."""
    hedge: Literal["", "about", "at most"] = ""
    """``about`` before the first epoch has ended, ``at most`` with EarlyStopping; else empty."""
    step_s: Seconds = 0.0
    """Seconds of a step; 0: not known yet."""


def read(values: object) -> Progress | None:
    """The progress in a task's report; None if the data are damaged: the program can write into this file too."""
    try:
        return from_json(Progress, values)
    except ContractError:
        return None


def describe(progress: Progress | None) -> str:
    """``62 %, 14 min left``, ``fit 2: 62 %, about 40 s left``; empty if nothing is known."""
    if progress is None:
        return ""
    percent = f"{f'fit {progress.fit}: ' if progress.fit > 1 else ''}{math.floor(100 * progress.fraction)} %"
    if progress.left_s is None:
        return percent
    return f"{percent}, {progress.hedge} {_describe_left(progress.left_s)} left".replace(",  ", ", ")


def _describe_left(seconds: float) -> str:
    """``40 s``, ``14 min``, ``2 h 15 min``: as much as one can trust."""
    if seconds < 59.5:
        return f"{max(1, math.ceil(seconds))} s"
    minutes = math.ceil(seconds / 60 - 0.01)
    return f"{minutes} min" if minutes <= 120 else f"{minutes // 60} h {minutes % 60:02d} min"
