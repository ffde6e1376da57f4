"""The values that a task has reported last, as text. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
