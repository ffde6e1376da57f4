"""Words for what the status of a pod means. Pure.

The words of Kubernetes (reasons, messages) are kept: they are what a user looks up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from worker.values.fast_dataclass import dataclass
from worker.values.words import count_of, few

from .object_names import MAIN

NEVER = ("InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError", "CreateContainerError", "RunContainerError")
"""Reasons why a container waits that no time mends."""
PULLS = ("ErrImagePull", "ImagePullBackOff")
"""A registry may have a bad moment: these count after some time."""
REMEDIES = {
    "InvalidImageName": "correct --image",
    "ErrImageNeverPull": "the image is on no node, and image_pull_policy is Never",
    "CreateContainerConfigError": "do the Secrets and ConfigMaps exist? may the image run as backend.user?",
    "ImagePullBackOff": "is the name right, and may the nodes pull it (backend.image_pull_secrets)?",
    "ErrImagePull": "is the name right, and may the nodes pull it (backend.image_pull_secrets)?",
    "OOMKilled": "raise backend.resources.memory, or make the batches smaller",
    "Evicted": "ask for what the pod uses in backend.resources, so that the node has it",
    "DeadlineExceeded": "raise backend.deadline_s, or timeouts.run_s",
    "StartError": "does the image have this Python? name it with python: or --python",
    "ContainerCannotRun": "does the image have this Python? name it with python: or --python",
}


@dataclass(frozen=True, slots=True)
class PodState:
    name: str
    is_ready: bool = False
    address: str = ""
    node: str = ""
    waits: str = ""
    """Why it is not ready, in words."""
    reason: str = ""
    has_ended: bool = False


def read(pod: Mapping[str, Any]) -> PodState:
    name, status = pod["metadata"]["name"], pod.get("status", {})
    node = pod.get("spec", {}).get("nodeName", "")
    running = _container(status).get("state", {}).get("running")
    is_over = pod["metadata"].get("deletionTimestamp") or status.get("phase") == "Failed"  # of a lost node, the container still "runs"
    if running and status.get("podIP") and not is_over:
        return PodState(name, is_ready=True, address=status["podIP"], node=node)
    if end := describe_end(pod):
        return PodState(name, node=node, waits=end, reason=_end_reason(pod), has_ended=True)
    waiting = _container(status).get("state", {}).get("waiting", {})
    reason = waiting.get("reason", "")
    if reason not in ("", "ContainerCreating", "PodInitializing"):
        text = _joined(reason, waiting.get("message", ""))
        return PodState(name, node=node, waits=text, reason=reason, has_ended=reason in NEVER)
    conditions: Sequence[Mapping[str, Any]] = status.get("conditions", ())
    scheduled = next((one for one in conditions if one.get("type") == "PodScheduled"), {})
    if scheduled.get("status") == "False":
        reason = scheduled.get("reason", "")
        text = _joined(reason.lower() if reason == "Unschedulable" else reason, scheduled.get("message", ""))
        gates = ", ".join(one.get("name", "") for one in pod.get("spec", {}).get("schedulingGates", ()))  # such as that of Kueue's queue
        return PodState(name, waits=f"{text} ({gates})" if gates else text, reason=reason)
    return PodState(name, node=node, waits=f"is starting on {node}" if node else "is not scheduled yet", reason=reason)


def _container(status: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Sequence[Mapping[str, Any]] = [one for one in status.get("containerStatuses", ()) if one.get("name") == MAIN]
    return found[0] if found else {}


def _joined(reason: str, message: str) -> str:
    message = " ".join(message.split()).rstrip(".")
    return ": ".join(filter(None, (reason, message)))


def _terminated(status: Mapping[str, Any]) -> Mapping[str, Any]:
    container = _container(status)
    found: Mapping[str, Any] = container.get("state", {}).get("terminated") or container.get("lastState", {}).get("terminated") or {}
    return found


def _disruption(status: Mapping[str, Any]) -> str:
    """Return who has taken the pod away: a preemption, an eviction, Kueue."""
    for condition in status.get("conditions", ()):
        if condition.get("type") in ("DisruptionTarget", "TerminationTarget") and condition.get("status") == "True":
            return _joined(condition.get("reason", ""), condition.get("message", ""))
    return ""


def _end_reason(pod: Mapping[str, Any]) -> str:
    status = pod.get("status", {})
    reason: str = status.get("reason") or _terminated(status).get("reason") or ""
    return reason


def describe_end(pod: Mapping[str, Any] | None) -> str:
    """Return how a pod ended, or why it is ending; empty: it goes on. None: there is no such pod any more."""
    if pod is None:
        return "the pod was deleted"
    status, node = pod.get("status", {}), pod.get("spec", {}).get("nodeName", "")
    where = f" on {node}" if node else ""
    terminated = _terminated(status)
    taken = _disruption(status)
    if status.get("reason"):  # Evicted, DeadlineExceeded, NodeLost, Preempting, OutOfcpu, ...
        return f"the pod{where} has ended: {_joined(status['reason'], status.get('message', ''))}"
    if terminated.get("reason") == "OOMKilled":
        return f"the pod{where} was OOMKilled{_memory_of(pod)}"
    if pod["metadata"].get("deletionTimestamp"):
        return f"the pod{where} was deleted" + (f": {taken}" if taken else "")
    if taken:
        return f"the pod{where} is taken away: {taken}"
    if terminated:
        code, reason = terminated.get("exitCode", 0), terminated.get("reason", "")
        told = _joined("" if reason in ("Error", "Completed") else reason, terminated.get("message", ""))
        return f"the container of the pod{where} has ended with exit code {code}" + (f": {told}" if told else "")
    if status.get("phase") in ("Failed", "Succeeded"):
        return f"the pod{where} has ended: {status['phase']}"
    if status.get("phase") == "Unknown":
        return f"the node {node} does not answer: nothing is known of the pod"
    return ""


def _memory_of(pod: Mapping[str, Any]) -> str:
    containers = pod.get("spec", {}).get("containers", ())
    limit = next((one.get("resources", {}).get("limits", {}).get("memory") for one in containers if one.get("name") == MAIN), None)
    return f": its memory limit is {limit}" if limit else ": its node had no memory left"


def remedy_of(pod: Mapping[str, Any] | None) -> str:
    """Return what to do about the end of a pod; empty if orch does not know."""
    return REMEDIES.get(_end_reason(pod), "") if pod is not None else ""


def describe_waiting(names: Sequence[str], states: Mapping[str, PodState], events: Mapping[str, str]) -> str:
    """Return what a run waits for: how many pods are ready, and why the others are not. `events`: what Kubernetes has told of pods."""
    late = [states.get(name, PodState(name, waits="is not there yet")) for name in names]
    late = [state for state in late if not state.is_ready]
    reasons: dict[str, list[str]] = {}
    for state in late:
        starts = state.waits.startswith("is ")
        told = events.get(state.name, "") if starts else ""
        reasons.setdefault(": ".join(filter(None, (state.waits, told))), []).append(state.name)
    why = "; ".join(f"{few(pods)} {reason}" if reason.startswith("is ") else f"{few(pods)}: {reason}" for reason, pods in reasons.items())
    return f"{len(names) - len(late)} of {count_of(len(names), 'pod')} ready; {why}"
