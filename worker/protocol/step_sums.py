"""Sums over the steps of a task since the start of its program, mostly seconds: a task sends them to `orch scale`. Pure."""

from __future__ import annotations

from typing import Any, NamedTuple


class StepSums(NamedTuple):
    """The sums at one time, in seconds unless another unit is named."""

    time: float
    """The time itself, without what was left out."""
    steps: float
    """The number of steps."""
    inside: float
    """In TensorFlow."""
    peers: float
    """Of `inside`: for the task's peers."""
    input: float
    """Of `inside`: for input."""
    examples: float
    """The elements of the task's batches."""
    messages: float
    """The number of collectives."""
    bytes: float
    """What the task gave to these."""
    between: float
    """Between epochs. All other sums leave this out."""
    waits: Any
    """Pairs of a step and the seconds for peers until then, at most so many that those of two times overlap."""
