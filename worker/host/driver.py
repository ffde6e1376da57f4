"""NVIDIA's driver, asked by a process of its own (gpus.py): a broken one may hang or crash whoever asks."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ..contract import Gpu, from_json
from ..records import dataclass
from .loop import Loop

if TYPE_CHECKING:
    from .question import Question

ANSWER_S = 25.0
"""How long it may take to tell of its GPUs: longer than `gpus.SMI_S`."""
_FILES = ("/dev/nvidiactl", "/proc/driver/nvidia/version", "/dev/dxg")
"""One of these is there if the driver is, the last one under WSL."""


@dataclass(frozen=True, slots=True)
class Driver:
    """What it has told. `problem`: why it tells of no GPUs."""

    version: str = ""
    gpus: tuple[Gpu, ...] = ()
    problem: str = ""


def is_there() -> bool:
    """Whether it works is another question."""
    return any(map(os.path.exists, _FILES))


def command() -> list[str]:
    """What asks it, and prints a `Driver`; the GPUs are those that a ``CUDA_VISIBLE_DEVICES`` in its environment leaves."""
    return [sys.executable, "-I", os.path.join(os.path.dirname(os.path.abspath(__file__)), "start.py"), "gpus"]


def read(out: str, code: int | None, reason: str = "") -> Driver:
    """What `command` printed until it ended with this code, or None: was stopped, for the reason. What it has told counts all the same."""
    try:
        return from_json(Driver, json.loads(out))
    except ValueError:
        return Driver(problem=reason or f"what asked it for its GPUs has died (exit code {code})")


def ask(loop: Loop, env: Mapping[str, str], on_told: Callable[[Driver], None]) -> Question | Driver:
    """Have it tell of the GPUs that this environment leaves. Where that is known without asking, it is returned instead."""
    if not is_there() or env.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return Driver()
    from .question import Question  # a host without a driver need not load what starts processes

    try:
        return Question(loop, command(), env, (ANSWER_S, ANSWER_S), lambda ending: on_told(read(ending.out, ending.code, ending.reason)))
    except OSError as error:
        return Driver(problem=f"what asks it for its GPUs cannot be started: {error.strerror or error}")
