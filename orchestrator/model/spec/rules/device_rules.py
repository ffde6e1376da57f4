"""Device settings that contradict each other, or cannot have an effect: known from the document alone, before any host is asked.

Each source of a contradiction is TensorFlow's: growth and limits, "Cannot set memory growth on device when virtual devices
configured" (tensorflow/python/eager/context.py); a variable that beats the program, ``GetAllowGrowthValue`` in
tensorflow/core/common_runtime/gpu; placement that is logged at level INFO.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from worker.fast_dataclass import dataclass

from ..findings import listed
from ..sections.task_sections import DEVICES

VISIBLE = "CUDA_VISIBLE_DEVICES"
GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"
LEVEL = "TF_CPP_MIN_LOG_LEVEL"
OUTSIDE = frozenset(name for name, key in DEVICES.keys.items() if key.everywhere) | {"threads"}
"""What reaches any program, by its environment or its agent. The rest is applied inside the task, by Python."""


@dataclass(frozen=True, slots=True)
class Said:
    """What a document says of one task, or of all of a type: owners of `devices` and `env` with their paths, the most general first.

    `name` is how these tasks are called in a message.
    """

    name: str
    owners: tuple[tuple[str, Mapping[str, Any]], ...]

    def find(self, group: str, key: str) -> tuple[str, Any] | None:
        """The path and value of a key of `devices` or `env` that holds in the end."""
        for path, owner in reversed(self.owners):
            if key in owner.get(group, {}):
                return f"{path}.{group}.{key}", owner[group][key]
        return None

    def device(self, key: str) -> tuple[str, Any] | None:
        return self.find("devices", key)

    def variable(self, name: str) -> tuple[str, Any] | None:
        return self.find("env", name)


Complaint = tuple[str, str, str]
"""The path that is to blame, what is wrong, what to do."""


def complaints(given: Mapping[str, Any], counts: Mapping[str, int], command: bool) -> Iterator[Complaint]:
    """Everything that is wrong, once. `given`: a checked document; `counts`: of its tasks, by type."""
    found: dict[Complaint, None] = {}
    for kind, count in counts.items():
        own = given.get("tasks", {}).get(kind, {})
        base = (("defaults", given.get("defaults", {})), (f"tasks.{kind}", own))
        if not count:
            continue
        found |= dict.fromkeys(_of(Said(kind, base), command))
        for index, override in own.get("overrides", {}).items():
            path = f"tasks.{kind}.overrides.{index}"
            if int(index) >= count:
                last = f"the last is {kind}-{count - 1}" if count > 1 else f"there is only {kind}-0"
                found[(path, f"{path}: there is no {kind}-{index}", last)] = None
            else:
                found |= dict.fromkeys(_of(Said(f"{kind}-{index}", (*base, (path, override))), command))
    yield from found


def _of(said: Said, command: bool) -> Iterator[Complaint]:
    yield from _two_words_on_memory(said)
    yield from _variables(said)
    yield from _silent_log(said)
    if command:
        yield from _not_for_commands(said)


def _two_words_on_memory(said: Said) -> Iterator[Complaint]:
    """A GPU either grows, or has one limit, or is split."""
    growth = said.device("memory_growth")
    words = [("memory_growth", growth)] if growth and growth[1] else []
    words += [(key, found) for key in ("memory_limit_mb", "logical_gpus") if (found := said.device(key))]
    for (first, there), (second, here) in itertools.pairwise(words):
        hint = f"{there[0]} is given too"
        if first == "memory_growth":
            hint += "; TensorFlow allows one of them: set memory_growth: false here, or take the other away"
        else:
            hint += ": logical_gpus: [1024] is a limit as well; keep one"
        yield here[0], f"{here[0]}: {first} and {second} cannot both hold on one GPU", hint


def _variables(said: Said) -> Iterator[Complaint]:
    gpus, visible = said.device("gpus"), said.variable(VISIBLE)
    if gpus and visible and not gpus[1].is_auto:
        yield visible[0], f"{visible[0]}: the GPUs are given by {gpus[0]} already", "keep one of the two"
    growth, forced = said.device("memory_growth"), said.variable(GROWTH)
    if growth and forced and (forced[1].lower() in ("1", "true")) != growth[1]:
        text = "memory growth differs from that of"
        yield forced[0], f"{forced[0]}: {text} {growth[0]}; TensorFlow follows the variable", "keep one of the two"


def _silent_log(said: Said) -> Iterator[Complaint]:
    log, level = said.device("log_placement"), said.find("env", LEVEL)
    if not (log and log[1]):
        return
    if level and level[1] not in ("0", ""):
        yield level[0], f"{level[0]}: TensorFlow logs placement at level 0, and {log[0]} wants to see it", f"leave {LEVEL} out"
    for path, owner in said.owners:
        if owner.get("log_level") in ("warning", "error") and not level:
            text = f"{path}.log_level: TensorFlow logs placement as info, and {log[0]} wants to see it"
            yield f"{path}.log_level", text, "leave it out, or write info"


def _not_for_commands(said: Said) -> Iterator[Complaint]:
    for path, owner in said.owners:
        inside = [key for key in owner.get("devices", {}) if key not in OUTSIDE]
        if inside:
            text = f"{path}.devices: {listed(inside)} would be set inside a Python program, and this cluster runs a command"
            yield f"{path}.devices.{inside[0]}", text, "run the script itself: script: train.py, or a module"
