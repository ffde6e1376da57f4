"""Defines what Kubernetes says of the runs whose controllers are in pods, as words of an engine. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from worker.values.excerpts import shorten_line

from ...model.policy.submission import Word
from .object_names import INSTANCE, MAIN
from .objects import AGENT, COMPONENT, CONTROLLER, controller_pod
from .pod_states import PodState, describe_end, describe_waiting, read, remedy_of

GONE = "the pod of its controller is gone"
LONGEST_CAUSE = 400
"""The message of a container may have two thousand characters."""


def words_of(pods: Sequence[Mapping[str, Any]], jobs: Sequence[str]) -> dict[str, Word]:
    """The word about each job, by its name: that of the run's objects."""
    found = {}
    for job in jobs:
        own = [one for one in pods if one["metadata"].get("labels", {}).get(INSTANCE) == job]
        controller = [one for one in own if _component(one) == CONTROLLER]
        agents = [one for one in own if _component(one) == AGENT]
        gone = Word("ended", GONE, f"{GONE}: it was deleted, or its node died", is_gone=True)
        found[job] = _word(job, controller[0], agents) if controller else gone
    return found


def _component(pod: Mapping[str, Any]) -> str:
    found: str = pod["metadata"].get("labels", {}).get(COMPONENT, "")
    return found


def _word(job: str, controller: Mapping[str, Any], agents: Sequence[Mapping[str, Any]]) -> Word:
    name = controller_pod(job)
    containers = controller.get("status", {}).get("containerStatuses", ())
    state: Mapping[str, Any] = next((one.get("state", {}) for one in containers if one.get("name") == MAIN), {})
    if "terminated" in state:
        code = state["terminated"].get("exitCode")
        has_begun = state["terminated"].get("reason") not in ("StartError", "ContainerCannotRun")
        return Word("ended", "its controller has ended", _cause(controller), code, has_exited=has_begun)
    if controller.get("status", {}).get("phase") in ("Failed", "Succeeded"):
        return Word("ended", "its controller has ended", _cause(controller))
    if "running" not in state:
        words = describe_waiting([name], {name: read(controller)}, {})
        return Word("waiting", f"in Kubernetes: {words}")
    states = {one["metadata"]["name"]: read(one) for one in agents}
    late = {name: one for name, one in states.items() if not (one.is_ready or one.has_ended)}
    return Word("running", f"in Kubernetes: {_describe(late)}" if late else "in Kubernetes")


def _describe(late: Mapping[str, PodState]) -> str:
    return describe_waiting([*late], late, {}).partition("; ")[2]


def _cause(pod: Mapping[str, Any]) -> str:
    remedy = remedy_of(pod)
    return shorten_line("; ".join(filter(None, (describe_end(pod), remedy))), LONGEST_CAUSE)
