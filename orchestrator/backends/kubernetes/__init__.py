"""Pods of a Kubernetes as hosts: orch makes them for a run, starts its agents there with `kubectl exec`, and deletes them at the end.

kubectl does the work, as ssh does elsewhere, so that contexts, login plugins and proxies are those of the user. Nothing is installed in the
cluster, and nothing of orch in the image.

With `orch up -d` the controller is in the cluster, too, and nothing on the submitting machine is needed while the run goes on:

the submitting machine                the pod of the controller                     the pods of the tasks
kubectl create (kubernetes_engine,  →   start_program → orchestrator.controller   ←   dialler: dials, and proves that it knows the token
unattended_objects, packed_files)     with inside
kubectl exec: requests, the mirror →  keeper_program

May import: orchestrator.backends, orchestrator.backends.connection, orchestrator.errors, orchestrator.model, worker,
    worker.host.network.dialler, worker.host.network.proof, worker.machine.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from worker.machine.clock import patience

from ...errors import OrchError, Problem, SpecError, UnansweredError, UsageError
from ...model.planning import plan
from ...model.settings import ClusterSpec, KubernetesSettings
from .. import (
    Backend,
    Cleanup,
    Diagnosis,
    Engine,
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
from . import pod_states
from .kubectl import ask, by_hand, create, create_owner, delete_owner, kubectl_argv, refuse_without_exec
from .kubectl_errors import ABOUT, explain_exec, without_end
from .object_names import INSIDE, MAIN, object_name, of_turn, selector_of
from .pod_wait import PodWait, read_pod
from .pods import PodWish, pod_template
from .run_objects import OWNER_UID, attached_objects, pod_names, to_text

NAME = "pods.yaml"
REACHING = Reaching(at_once=16, tries=5, first_wait_s=0.5)
"""Each connection is a kubectl of some 50 MB on this machine, and a stream through the API server."""
START_S = 90.0
SETTLED_S = patience(5.0)
"""How long the status of a pod may lag behind the end of its container."""
LOOK_S = 0.5


class Kubernetes(Backend):
    def __init__(self) -> None:
        self._turn = 0
        """How many allocations there were: the pods of each have names of their own."""
        self._used = KubernetesSettings()
        """The settings of the latest one."""
        self._seen: dict[str, dict[str, Any]] = {}
        """The pods whose end was looked into, as they were: a kubelet removes a pod half a second after SIGTERM."""

    def problems(self, spec: ClusterSpec) -> Sequence[Problem]:
        if spec.python.startswith("~"):
            return (Problem("python", "in a pod no shell expands '~'", "name a program of the image: python: python3"),)
        try:
            pod_template(_settings(spec), PodWish(()))
        except SpecError as error:
            return error.problems
        return ()

    def request(self, run: RunFacts) -> Request:
        return _request_unattended(run) if _settings(run.spec).is_unattended else _request(run, 1)

    def engine(self, spec: ClusterSpec) -> Engine | None:
        if not _settings(spec).is_unattended:
            return None
        from .kubernetes_engine import engine_of  # an attached run has none

        return engine_of(_settings(spec))

    @asynccontextmanager
    async def allocate(self, request: Request, on_waiting: Callable[[str], None]) -> AsyncIterator[tuple[Host, ...]]:
        self._turn += 1
        if self._turn > 1:
            request = _request(request.run, self._turn)
        spec = request.run.spec
        settings, run = _settings(spec), object_name(spec.name, request.run.run_id)
        self._used = settings
        made = _Made()
        creating = asyncio.create_task(asyncio.to_thread(_create, settings, request.files[NAME], len(request.hosts), made))

        async def give_back() -> None:
            await asyncio.wait([creating])  # what is on its way cannot be called back
            if made.is_tried:
                await asyncio.to_thread(delete_owner, settings, of_turn(run, self._turn))

        try:
            await asyncio.shield(creating)
            wait = PodWait(settings, selector_of(run), [host.name for host in request.hosts], _python(spec), on_waiting)
            states = await wait.run()
            yield tuple(replace(host, address=states[host.name].address) for host in request.hosts)
        except BaseException as error:
            try:
                await give_back()
            except UsageError:
                pass  # the same options have not made anything either
            except OrchError as left:
                if not isinstance(error, OrchError):
                    raise
                if not (made.is_there or isinstance(error, UnansweredError)):
                    raise error from None  # there is nothing to delete
                error.args = (f"{error}\n{left}",)  # the first error says more, and comes first
            raise
        await give_back()

    def explain(self, host: Host, failure: StartFailure) -> Diagnosis:
        return replace(self._explain(host, failure), about=ABOUT)

    def _explain(self, host: Host, failure: StartFailure) -> Diagnosis:
        if failure.error is not None:
            return Diagnosis(failure.text, "install kubectl, or name it with backend.kubectl")
        if failure.had_answered:
            return self._explain_loss(host.name, failure)
        if (told := explain_exec(failure.said, failure.code)) is not None:
            return told
        return remote_worker.explain(host.name, replace(failure, said=without_end(failure.said)), by="kubectl exec")

    def _explain_loss(self, pod: str, failure: StartFailure) -> Diagnosis:
        """Why an agent is gone, or is about to end, from the status of its pod, which comes a moment later. Blocks for seconds."""
        limit = time.monotonic() + SETTLED_S
        while True:
            try:
                found = read_pod(self._used, pod)
            except OrchError as error:
                return Diagnosis(f"{failure.text}; {error.line}", passing=True)
            if found is not None:
                self._seen[pod] = found
            last = self._seen.get(pod)
            if end := pod_states.describe_end(last) or (pod_states.describe_end(None) if found is None else ""):
                return Diagnosis(end, pod_states.remedy_of(last))
            if time.monotonic() > limit:
                node = (found or {}).get("spec", {}).get("nodeName", "")
                return Diagnosis(f"the connection of kubectl exec was cut ({failure.text}), and the pod goes on on {node}", passing=True)
            time.sleep(LOOK_S)

    def cancel(self, run: RunFacts) -> Cleanup:
        """Delete what a dead controller has left. A pod without a controller ends by itself too."""
        settings, name = _settings(run.spec), object_name(run.spec.name, run.run_id)
        try:
            words = ("delete", "service", "-l", selector_of(name), "--ignore-not-found", "--wait=false", "-o", "name")
            gone = ask(kubectl_argv(settings, *words), "the pods were not deleted").split()
        except OrchError as error:
            return Cleanup(hint=f"{error.line}\n{by_hand(settings, '-l', selector_of(name))}")
        return Cleanup(hint=f"its pods were deleted, with the Service {gone[0].rpartition('/')[2]}" if gone else "it has no pods left")


def make() -> Backend:
    if os.environ.get(INSIDE):
        from .inside import DialledPods  # only a controller in a pod

        return DialledPods()
    return Kubernetes()


def _settings(spec: ClusterSpec) -> KubernetesSettings:
    assert isinstance(spec.backend, KubernetesSettings)
    return spec.backend


def _python(spec: ClusterSpec) -> str:
    return interpreters.find(spec, is_here=False, has_ours=False)


def _request(run: RunFacts, turn: int) -> Request:
    settings, python = _settings(run.spec), _python(run.spec)
    of_run = object_name(run.spec.name, run.run_id)
    name = of_turn(of_run, turn)
    hosts = tuple(_host(settings, pod, python) for pod in pod_names(settings, run.spec, name))
    gpus = plan.gpus_of_host(run.spec, plan.place(run.spec, {host.name: host.slots for host in hosts}))
    objects = attached_objects(settings, run.spec, of_run, name, gpus, python)
    return Request(run, hosts, {NAME: to_text(objects)}, REACHING)


def _request_unattended(run: RunFacts) -> Request:
    from . import unattended_objects
    from .inside import stand_ins
    from .kubernetes_engine import NAME as RUN

    settings, hosts = _settings(run.spec), stand_ins(run)
    gpus = plan.gpus_of_host(run.spec, plan.place(run.spec, {host.name: host.slots for host in hosts}))
    name = object_name(run.spec.name, run.run_id)
    made = unattended_objects.manifests(settings, run.spec, run.run_id, name, len(hosts), gpus, _python(run.spec))
    return Request(run, hosts, {RUN: to_text(made)}, REACHING)


def _host(settings: KubernetesSettings, pod: str, python: str) -> Host:
    command = kubectl_argv(settings, "exec", "-i", pod, "-c", MAIN, "--", *remote_worker.argv(python))
    return Host(
        pod,
        "",
        sees_run_dir=False,
        slots=settings.tasks_per_pod,
        lost_after_s=settings.lost_after_s,
        is_here=False,
        workdir=Workdir("unchecked" if settings.code_in_image else "ship", settings.code_limit_mb, settings.code_secrets),
        python=python,
        transport=Transport(command, brings_worker=True, explains_end=True, returns=True, limit_s=START_S),
    )


class _Made:
    """Tells whether the Service of an allocation, which owns all else, was asked for, and whether the server has said that it exists."""

    is_tried = is_there = False


def _create(settings: KubernetesSettings, text: str, pods: int, made: _Made) -> None:
    """Make the objects of a request: first the Service, whose uid the others then name. Blocks. Raises `OrchError`."""
    doing, (owner, _, rest) = "cannot make the pods", text.partition("---\n")
    refuse_without_exec(settings, doing)
    made.is_tried = True
    uid = create_owner(settings, owner, doing)
    made.is_there = True
    create(settings, rest.replace(OWNER_UID, uid), doing, pods)
