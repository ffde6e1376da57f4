"""Device settings that contradict each other or have no effect, found in the document before orch connects to a host.

The contradictions come from TensorFlow: growth and limits, "Cannot set memory growth on device when virtual devices
configured" (tensorflow/python/eager/context.py); a variable that beats the program, ``GetAllowGrowthValue`` in
tensorflow/core/common_runtime/gpu; placement that is logged at level INFO.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from worker.fast_dataclass import dataclass

from ...strategies import Complaint
from ..findings import listed
from ..sections.task_sections import DEVICES

VISIBLE = "CUDA_VISIBLE_DEVICES"
GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"
LEVEL = "TF_CPP_MIN_LOG_LEVEL"
OUTSIDE = frozenset(name for name, key in DEVICES.keys.items() if key.everywhere)
"""The settings for any program, by its environment or its agent. The bootstrap applies the others, so they need a Python program."""


@dataclass(frozen=True, slots=True)
class Layers:
    """The mappings with `devices` and `env` of one task, or of all tasks of a type."""

    owners: tuple[tuple[str, Mapping[str, Any]], ...]
    """(path, mapping), the most general first."""

    def find(self, group: str, key: str) -> tuple[str, Any] | None:
        """The path and the value of a key of `devices` or `env` in the last mapping that has it."""
        for path, owner in reversed(self.owners):
            if key in owner.get(group, {}):
                return f"{path}.{group}.{key}", owner[group][key]
        return None

    def device(self, key: str) -> tuple[str, Any] | None:
        return self.find("devices", key)

    def variable(self, name: str) -> tuple[str, Any] | None:
        return self.find("env", name)


def complaints(given: Mapping[str, Any], counts: Mapping[str, int], command: bool) -> Iterator[Complaint]:
    """All contradictions, each once. `given`: a checked document; `counts`: the number of tasks by type."""
    found: dict[Complaint, None] = {}
    for kind, count in counts.items():
        own = given.get("tasks", {}).get(kind, {})
        base = (("defaults", given.get("defaults", {})), (f"tasks.{kind}", own))
        if not count:
            continue
        found |= dict.fromkeys(_of(Layers(base), command))
        for index, override in own.get("overrides", {}).items():
            path = f"tasks.{kind}.overrides.{index}"
            if int(index) >= count:
                last = f"the last is {kind}-{count - 1}" if count > 1 else f"there is only {kind}-0"
                found[(path, f"{path}: there is no {kind}-{index}", last)] = None
            else:
                found |= dict.fromkeys(_of(Layers((*base, (path, override))), command))
    yield from found


def _of(layers: Layers, command: bool) -> Iterator[Complaint]:
    yield from _memory_settings(layers)
    yield from _variables(layers)
    if command:
        yield from _not_for_commands(layers)


def _memory_settings(layers: Layers) -> Iterator[Complaint]:
    """A GPU has either memory growth, or one limit, or logical GPUs."""
    growth = layers.device("memory_growth")
    words = [("memory_growth", growth)] if growth and growth[1] else []
    words += [(key, found) for key in ("memory_limit_mb", "logical_gpus") if (found := layers.device(key))]
    for (first, there), (second, here) in itertools.pairwise(words):
        hint = f"{there[0]} is given too"
        if first == "memory_growth":
            hint += "; TensorFlow allows one of them: set memory_growth: false here, or take the other away"
        else:
            hint += ": logical_gpus: [1024] is a limit as well; keep one"
        yield here[0], f"{here[0]}: {first} and {second} cannot both hold on one GPU", hint


def _variables(layers: Layers) -> Iterator[Complaint]:
    gpus, visible = layers.device("gpus"), layers.variable(VISIBLE)
    if gpus and visible and not gpus[1].is_auto:
        yield visible[0], f"{visible[0]}: the GPUs are given by {gpus[0]} already", "keep one of the two"
    growth, forced = layers.device("memory_growth"), layers.variable(GROWTH)
    if growth and forced and (forced[1].lower() in ("1", "true")) != growth[1]:
        text = "memory growth differs from that of"
        yield forced[0], f"{forced[0]}: {text} {growth[0]}; TensorFlow follows the variable", "keep one of the two"


def _not_for_commands(layers: Layers) -> Iterator[Complaint]:
    for path, owner in layers.owners:
        inside = [key for key in owner.get("devices", {}) if key not in OUTSIDE]
        if inside:
            text = f"{path}.devices: {listed(inside)} would be set inside a Python program, and this cluster runs a command"
            yield f"{path}.devices.{inside[0]}", text, "run the script itself: script: train.py, or a module"
