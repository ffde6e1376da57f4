"""Defines what the rules between keys look at: a document whose keys are checked one by one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from worker.protocol.task_id import TASK_TYPES
from worker.values.fast_dataclass import dataclass

from .. import strategies
from ..strategies import Strategy
from . import backend_sections
from .backend_sections import BackendSpec
from .document import Node, place_of


@dataclass(frozen=True, slots=True)
class Draft:
    document: Node
    given: Mapping[str, Any]
    """The values of the document, without those with a mistake."""
    strategy: Strategy
    counts: Mapping[str, int]
    """The number of tasks of each type, with defaults and zeros."""
    backend: BackendSpec

    @property
    def least_workers(self) -> int:
        """The fewest workers of an elastic cluster; 0: the cluster is none."""
        count = self.given.get("tasks", {}).get("worker", {}).get("count")
        return count[0] if isinstance(count, tuple) else 0

    def place(self, paths: str) -> str:
        """The place of the value at a path; or those of several values, whose paths are given with blanks between them."""
        return ", ".join(dict.fromkeys(place_of(self.document, path) for path in paths.split() or [""]))


def _most(count: int | tuple[int, int]) -> int:
    return count[1] if isinstance(count, tuple) else count


def draft_of(document: Node, given: Mapping[str, Any]) -> Draft:
    asked = {kind: _most(tasks.get("count", 1)) for kind, tasks in given.get("tasks", {}).items()}
    strategy = strategies.named(given["strategy"]) if given.get("strategy") else strategies.implied(dict.fromkeys(given, 1) | asked)
    place = backend_sections.read(given.get("backend", {}))
    counts = strategy.default_counts | ({"dispatcher": 1} if asked.get("data_worker") else {}) | asked
    if "count" not in given.get("tasks", {}).get("worker", {}) and not strategy.one_process:
        free = place.room_for(_gpus_of_worker(given))
        counts["worker"] = max(1, free - sum(counts.values()) + counts["worker"])  # one worker for each slot that no other task uses
    return Draft(document, given, strategy, {kind: counts[kind] for kind in TASK_TYPES if kind in counts}, place)


def _gpus_of_worker(given: Mapping[str, Any]) -> int:
    """The GPUs that a worker has for itself; 1 if nothing is said of them."""
    of_all, of_workers = given.get("defaults", {}).get("devices", {}), given.get("tasks", {}).get("worker", {}).get("devices", {})
    devices = {**of_all, **of_workers}
    wish = devices.get("gpus")
    return 1 if wish is None or devices.get("share_gpus") else wish.count or len(wish.ids) or 1
