"""The backend of a controller that is in a pod: its hosts are the pods that dial it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from worker.values.words import count_of

from ...errors import OrchError, Problem
from ...model.settings import ClusterSpec, KubernetesSettings
from .. import (
    Backend,
    Cleanup,
    Diagnosis,
    Host,
    Reaching,
    Request,
    RunFacts,
    StartFailure,
    Transport,
    Workdir,
    interpreters,
    remote_worker,
)
from ..connection.listener import DialledAgent, Listener
from .object_names import object_name
from .unattended_objects import RUN_DIR

REACHING = Reaching(at_once=64, tries=3, first_wait_s=0.5)
START_S = 90.0
LATE_S = 600.0
"""After so long without all pods, the user should look."""


class DialledPods(Backend):
    def problems(self, spec: ClusterSpec) -> Sequence[Problem]:
        return ()

    def request(self, run: RunFacts) -> Request:
        """Stand-ins for the pods, whose names Kubernetes chooses."""
        return Request(run, stand_ins(run), {}, REACHING)

    @asynccontextmanager
    async def allocate(self, request: Request, on_waiting: Callable[[str], None]) -> AsyncIterator[tuple[Host, ...]]:
        """As many pods as there are stand-ins, once they have dialled. They dial again after each allocation."""
        listener = Listener(Path(RUN_DIR, "token").read_bytes().strip())
        try:
            await listener.open()
        except OSError as error:
            raise OrchError(f"the controller cannot listen for its pods: {error.strerror or error}") from None
        try:
            yield await _wait(listener, request, on_waiting)
        finally:
            listener.close()

    def explain(self, host: Host, failure: StartFailure) -> Diagnosis:
        return remote_worker.explain(host.name, failure, by="the pod")

    def cancel(self, run: RunFacts) -> Cleanup:
        return Cleanup(hint="the pods end by themselves")


async def _wait(listener: Listener, request: Request, on_waiting: Callable[[str], None]) -> tuple[Host, ...]:
    model, wanted, told, late_at = request.hosts[0], len(request.hosts), "", time.monotonic() + LATE_S

    def are_here() -> bool:
        nonlocal told
        before, told = told, _describe_wait(len(listener.lines), wanted, model.name, is_late=time.monotonic() > late_at)
        if len(listener.lines) < wanted and told != before:
            on_waiting(told)
        return len(listener.lines) >= wanted

    await listener.until(are_here)
    return tuple(
        replace(
            model,
            name=name,
            address=line.address,
            transport=replace(model.transport, argv=("dial", name), begin=partial(DialledAgent, listener, name)),
        )
        for name, line in sorted(listener.lines.items())[:wanted]
    )


def _describe_wait(here: int, wanted: int, stand_in: str, *, is_late: bool) -> str:
    if not is_late:
        return f"{here} of {count_of(wanted, 'pod')} here; kubectl get pods tells of the others"
    # It may be the queue for nodes, which can take a day; or the Job has given up, and then no pod will ever come.
    return (
        f"{here} of {count_of(wanted, 'pod')} here after {LATE_S / 60:.0f} min: they wait for nodes, or the Job makes no more of them. "
        f"fix: kubectl describe job {stand_in.rpartition('-')[0]} tells; orch down ends the run"
    )


def stand_ins(run: RunFacts) -> tuple[Host, ...]:
    """The hosts of a run, before Kubernetes has named their pods."""
    settings = run.spec.backend
    assert isinstance(settings, KubernetesSettings)
    python, name = interpreters.find(run.spec, is_here=False, has_ours=False), object_name(run.spec.name, run.run_id)
    return tuple(
        Host(
            f"{name}-agents-{number}",
            "",
            sees_run_dir=False,
            slots=settings.tasks_per_pod,
            lost_after_s=settings.lost_after_s,
            is_here=False,
            workdir=Workdir("unchecked" if settings.code_in_image else "ship", settings.code_limit_mb, secrets=True),  # of what was packed
            python=python,
            transport=Transport((), brings_worker=True, returns=True, limit_s=START_S),
        )
        for number in range(settings.pods_for(run.spec.size))
    )
