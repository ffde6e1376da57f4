"""Waits until the pods of a run are ready: one watch, whose end is no loss, because the next one begins with the whole state."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Any

from worker.machine.clock import patience

from ...errors import OrchError, UnansweredError
from ...model.settings import KubernetesSettings
from .holder import RENEW, RENEW_S
from .kubectl import ask, kubectl_argv, watch
from .kubectl_errors import ABOUT, PassingError
from .object_names import MAIN
from .pod_states import PULLS, REMEDIES, PodState, describe_end, describe_waiting, read

TICK_S = 1.0
ASK_AGAIN_S = 1.0
"""The pause before the next watch."""
PULL_S, ABSENT_S, EVENTS_S = patience(60.0), patience(30.0), patience(10.0)
"""How long an image may be impossible to pull; how long a pod that was made may be unseen; and how long a pod may be starting before its
events are asked for, and again."""


class PodWait:
    """One wait: ``states = await PodWait(settings, selector, names, python, on_waiting).run()``."""

    def __init__(
        self, settings: KubernetesSettings, selector: str, names: Sequence[str], python: str, on_waiting: Callable[[str], None]
    ) -> None:
        self._settings, self._selector, self._names, self._python, self._on_waiting = settings, selector, names, python, on_waiting
        self._states: dict[str, PodState] = {}
        self._since: dict[str, tuple[str, float]] = {}
        """Since when a pod has had its reason."""
        self._events: dict[str, str] = {}
        self._told = ""
        self._trouble = ""
        """Why Kubernetes cannot be asked now."""
        self._events_at = self._renewed_at = time.monotonic()
        self._unseen_since = dict.fromkeys(names, self._events_at)
        """Since when no watch has shown a pod. A watch that ends again and again does not begin this time again."""

    async def run(self) -> dict[str, PodState]:
        """The pods, when all are ready. Raises `OrchError` if one never will be."""
        following = asyncio.create_task(self._follow())
        try:
            while not all(name in self._states and self._states[name].is_ready for name in self._names):
                await self._find_absent()
                self._refuse()
                self._tell()
                await asyncio.wait([following], timeout=TICK_S if self._told else 0.05)
                if following.done():
                    following.result()
                await self._look_closer()
            return self._states
        finally:
            following.cancel()
            with contextlib.suppress(asyncio.CancelledError, OrchError):
                await following

    async def _follow(self) -> None:
        words = ("get", "pods", "-l", self._selector, "-o", "json", "--watch", "--output-watch-events")
        while True:
            try:
                async with aclosing(watch(kubectl_argv(self._settings, *words), "cannot watch the pods")) as items:
                    async for item in items:
                        self._take(item)
            except (PassingError, UnansweredError) as error:
                self._trouble = error.line
            await asyncio.sleep(ASK_AGAIN_S)
            self._unseen_since |= dict.fromkeys(self._states, time.monotonic())
            self._states = {}

    def _take(self, item: Any) -> None:
        pod, self._trouble = item.get("object", {}), ""
        name = pod.get("metadata", {}).get("name", "")
        if pod.get("kind") != "Pod" or name not in self._names:
            return
        state = read(pod)
        if item.get("type") == "DELETED" and not state.has_ended:
            state = PodState(name, node=state.node, waits=describe_end(None), has_ended=True)
        self._states[name] = state
        if name not in self._since or self._since[name][0] != self._kind(state):
            self._since[name] = self._kind(state), time.monotonic()

    @staticmethod
    def _kind(state: PodState) -> str:
        """The reason; the two reasons of a pull that fails come in turns."""
        return "pull" if state.reason in PULLS else state.reason

    async def _find_absent(self) -> None:
        """Ask for a pod that the watch has not shown for long: kubectl itself may be late on a busy machine. Raises `OrchError`."""
        if self._trouble:
            return
        for name in self._names:
            if name not in self._states and time.monotonic() - self._unseen_since[name] > ABSENT_S:
                try:
                    pod = await asyncio.to_thread(read_pod, self._settings, name)
                except (PassingError, UnansweredError) as error:
                    self._trouble = error.line
                    return
                if pod is None:
                    raise OrchError(f"{name}: {describe_end(None)}")
                if name not in self._states:
                    self._take({"object": pod})

    def _refuse(self) -> None:
        """Raise `OrchError` for a pod that will never be ready."""
        now = time.monotonic()
        for name, state in self._states.items():
            pulls = state.reason in PULLS and now - self._since[name][1] > PULL_S
            if state.has_ended or pulls:
                remedy = REMEDIES.get(state.reason, "")
                told = self._events.get(name, "") if state.reason in PULLS else ""
                raise OrchError(f"{name}: {told or state.waits}", remedy, ABOUT)

    def _tell(self) -> None:
        words = self._trouble or describe_waiting(self._names, self._states, self._events)
        if words != self._told and (self._states or self._trouble):
            self._told = words
            self._on_waiting(words)

    async def _look_closer(self) -> None:
        """Ask for the events of pods that start and do not get on; and ask the pods that are ready to wait for the others."""
        now = time.monotonic()
        late = [state for state in self._states.values() if not state.is_ready and now - self._since[state.name][1] > EVENTS_S]
        if late and now - self._events_at > EVENTS_S:
            self._events_at = now
            with contextlib.suppress(OrchError):  # the right to see events may be missing
                self._events = await asyncio.to_thread(read_events, self._settings, [state.name for state in late])
        if now - self._renewed_at > RENEW_S:
            self._renewed_at = now
            for state in list(self._states.values()):  # a watch that ends meanwhile begins with none
                if state.is_ready:
                    words = ("exec", state.name, "-c", MAIN, "--", self._python, "-I", "-c", RENEW)
                    with contextlib.suppress(OrchError):  # its end is seen by the watch
                        await asyncio.to_thread(ask, kubectl_argv(self._settings, *words), "")


def read_events(settings: KubernetesSettings, names: Sequence[str]) -> dict[str, str]:
    """The newest warning about each of these pods. Blocks. Raises `OrchError`."""
    words = ("get", "events", "--field-selector=involvedObject.kind=Pod,type=Warning", "-o", "json")
    found: dict[str, tuple[str, str]] = {}
    for event in json.loads(ask(kubectl_argv(settings, *words), "cannot see the events")).get("items", ()):
        name = event.get("involvedObject", {}).get("name", "")
        at = event.get("lastTimestamp") or event.get("eventTime") or ""
        if name in names and at >= found.get(name, ("", ""))[0]:
            found[name] = at, f"{event.get('reason', '')}: {' '.join(event.get('message', '').split())}"
    return {name: text for name, (_, text) in found.items()}


def read_pod(settings: KubernetesSettings, name: str) -> dict[str, Any] | None:
    """The object of a pod; None: there is none. Blocks. Raises `OrchError`."""
    text = ask(kubectl_argv(settings, "get", "pod", name, "--ignore-not-found", "-o", "json"), "cannot see the pod")
    found: dict[str, Any] | None = json.loads(text) if text.strip() else None
    return found
