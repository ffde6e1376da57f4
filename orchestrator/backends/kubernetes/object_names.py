"""The names of the objects of a run, and the labels by which they are found. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

PREFIX = "orch-"
MOST = 50
"""The most characters of a run's name: a pod adds its number, and 63 are allowed (RFC 1123)."""
MAIN = "main"
"""The container of a pod that runs orch and the tasks."""
INSIDE = "CONTROLLER_OF_ORCH"
"""The variable that tells a controller that it is in a pod, to which the others dial."""
INSTANCE, MANAGER = "app.kubernetes.io/instance", "app.kubernetes.io/managed-by"


def object_name(spec_name: str, run_id: str) -> str:
    """The name of a run's objects, a DNS label with the random end of the run's id: ``orch-train-1a2b3c4d``."""
    end = run_id.rpartition("-")[2]
    name = re.sub("[^a-z0-9]+", "-", spec_name.lower()).strip("-")[: MOST - len(PREFIX) - len(end) - 1].strip("-")
    return "-".join(filter(None, (f"{PREFIX}{name}".strip("-"), end)))


def of_turn(name: str, turn: int) -> str:
    """The name of the objects that a run gets in its n-th allocation: those of the one before may still be ending."""
    return name if turn == 1 else f"{name}-r{turn}"


def labels_of(name: str) -> Mapping[str, str]:
    return {INSTANCE: name, MANAGER: "orch"}


def selector_of(name: str) -> str:
    """`labels_of`, as an option of kubectl."""
    return f"{INSTANCE}={name},{MANAGER}=orch"
