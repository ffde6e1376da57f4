"""Device settings that contradict each other or have no effect, found in the document before orch connects to a host.

The contradictions come from TensorFlow: growth and limits, "Cannot set memory growth on device when virtual devices
configured" (tensorflow/python/eager/context.py); a variable that beats the program, ``GetAllowGrowthValue`` in
tensorflow/core/common_runtime/gpu; placement that is logged at level INFO.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from worker.protocol.task_id import DATA_SERVICE

from ..strategies import Complaint
from .draft import Draft
from .findings import listed
from .task_sections import DEVICES

VISIBLE = "CUDA_VISIBLE_DEVICES"
GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"
LEVEL = "TF_CPP_MIN_LOG_LEVEL"
OUTSIDE = frozenset(name for name, key in DEVICES.keys.items() if key.everywhere)
"""The settings for any program, by its environment or its agent. The bootstrap applies the others, so they need a Python program."""
INSIDE = "would be set inside a Python program, and this cluster runs a command"
RUN_PYTHON = "run the script itself: script: train.py, or a module"

Layers = tuple[tuple[str, Mapping[str, Any]], ...]
"""The path of each mapping with `devices` and `env` of one task, or of all tasks of a type, and the mapping: the most general first."""


def complaints(draft: Draft) -> Iterator[Complaint]:
    """All contradictions, each once."""
    found: dict[Complaint, None] = {}
    for kind, count in draft.counts.items():
        if not count or kind in DATA_SERVICE:
            continue
        own = draft.given.get("tasks", {}).get(kind, {})
        base = (("defaults", draft.given.get("defaults", {})), (f"tasks.{kind}", own))
        found |= dict.fromkeys(_of(base, draft))
        for index, override in own.get("overrides", {}).items():
            path = f"tasks.{kind}.overrides.{index}"
            if int(index) >= count:
                found[(path, f"{path}: there is no {kind}-{index}", f"name one up to {kind}-{count - 1}")] = None
            else:
                found |= dict.fromkeys(_of((*base, (path, override)), draft))
    yield from found


def _of(layers: Layers, draft: Draft) -> Iterator[Complaint]:
    yield from _memory_settings(layers)
    yield from _variables(layers)
    if "command" in draft.given:
        yield from _not_for_commands(layers)


def _find(layers: Layers, group: str, key: str) -> tuple[str, Any] | None:
    """The path and the value of a key of `devices` or `env` in the last mapping that has the key."""
    for path, owner in reversed(layers):
        if key in owner.get(group, {}):
            return f"{path}.{group}.{key}", owner[group][key]
    return None


def _memory_settings(layers: Layers) -> Iterator[Complaint]:
    """A GPU has either memory growth, or one limit, or logical GPUs."""
    growth = _find(layers, "devices", "memory_growth")
    words = [("memory_growth", growth)] if growth and growth[1] else []
    words += [(key, found) for key in ("memory_limit_mb", "logical_gpus") if (found := _find(layers, "devices", key))]
    for (first, there), (second, here) in itertools.pairwise(words):
        hint = f"keep one of the two; {there[0]} is the other"
        yield here[0], f"{here[0]}: {first} and {second} cannot both hold on one GPU", hint


def _variables(layers: Layers) -> Iterator[Complaint]:
    gpus, visible = _find(layers, "devices", "gpus"), _find(layers, "env", VISIBLE)
    if gpus and visible and not gpus[1].is_auto:
        yield visible[0], f"{visible[0]}: the GPUs are given by {gpus[0]} already", "keep one of the two"
    growth, forced = _find(layers, "devices", "memory_growth"), _find(layers, "env", GROWTH)
    if growth and forced and (forced[1].lower() in ("1", "true")) != growth[1]:
        text = "memory growth differs from that of"
        yield forced[0], f"{forced[0]}: {text} {growth[0]}; TensorFlow follows the variable", "keep one of the two"


def _not_for_commands(layers: Layers) -> Iterator[Complaint]:
    for path, owner in layers:
        inside = [key for key in owner.get("devices", {}) if key not in OUTSIDE]
        if inside:
            yield f"{path}.devices.{inside[0]}", f"{path}.devices: {listed(inside)} {INSIDE}", RUN_PYTHON
