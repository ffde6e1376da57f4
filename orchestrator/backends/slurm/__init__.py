"""Nodes that Slurm lends: those of an allocation in which orch was started, or of a job that orch submits and that runs the controller.

Slurm's own programs do the work: one `srun` per node is the transport of an agent, as ssh is elsewhere; `sbatch` submits, `squeue` tells.

May import: orchestrator.backends, orchestrator.errors, orchestrator.model, worker.machine.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

from worker.machine.clock import now

from ...errors import OrchError, Problem
from ...model.planning import plan
from ...model.settings import ClusterSpec, NodeSpec, SlurmSettings
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
from ..engines import controller_argv
from . import allocation
from .allocation import JobDetails
from .batch_script import NAME, OUTPUT, BatchScript
from .complaints import ABOUT, explain_step
from .engine import SlurmEngine, find_details
from .step_command import step_command

REACHING = Reaching(at_once=32, tries=4, first_wait_s=1.0)
"""Slurm itself limits nothing here; a step is refused while the steps before it are being cleaned up."""
SAVE_BEFORE_S = 120.0
"""The key timeouts.save_before_s of a user who does not give it, in seconds."""
ENDING_S = 10.0
"""How long before the time limit a training that saves itself is stopped: so that the run ends before Slurm ends its job."""
START_S = 120.0
"""How long a step may take to begin: on a busy cluster slurmctld answers late."""


class Slurm(Backend):
    def problems(self, spec: ClusterSpec) -> Sequence[Problem]:
        if _settings(spec).allocation and not _has_programs():
            message = "Slurm's programs are not on PATH here: there is no srun"
            return (Problem("backend.type", message, "load Slurm's module, or run on a login node; --backend local uses this machine"),)
        return ()

    def request(self, run: RunFacts) -> Request:
        """In an allocation, its nodes. Else the batch script, and stand-ins for the nodes."""
        settings = _settings(run.spec)
        if settings.allocation:
            return Request(run, _hosts(run.spec, settings.job, settings.nodes_to_use), reaching=REACHING)
        command = controller_argv(run.directory)
        asked = replace(settings, gpus_per_node=_gpus_per_node(run.spec, settings))
        script = BatchScript(run.spec.name, os.path.join(run.directory, OUTPUT), command, asked)
        return Request(run, _hosts(run.spec, "JOB", settings.nodes_to_use), {NAME: script.text()}, REACHING)

    @asynccontextmanager
    async def allocate(self, request: Request, on_waiting: Callable[[str], None]) -> AsyncIterator[tuple[Host, ...]]:
        """The nodes of the allocation in which this process runs: after a requeue, others than before."""
        spec = request.run.spec
        settings, job = _settings(spec), os.environ.get("SLURM_JOB_ID", "")
        if not (settings.job or job):
            raise OrchError("this process is in no allocation of Slurm: its job file is request/job.sbatch, for sbatch")
        details = await asyncio.to_thread(find_details, settings.job or job)
        if not settings.allocation:
            with suppress(OSError):  # Slurm has made this file, as open as the user's umask lets it be
                os.chmod(os.path.join(request.run.directory, OUTPUT), 0o600)
        hosts = request.hosts if settings.allocation else _hosts(spec, job, allocation.read(os.environ, details).nodes)
        if (end := details.end) is not None:
            before_s = time_before(spec.timeouts.save_before_s, end - now())
            hosts = tuple(replace(host, until=end - before_s, spare_s=max(0.0, before_s - ENDING_S)) for host in hosts)
        yield tuple(hosts)

    def engine(self, spec: ClusterSpec) -> Engine | None:
        return None if _settings(spec).allocation else SlurmEngine()

    def explain(self, host: Host, failure: StartFailure) -> Diagnosis:
        told = explain_step(failure) or remote_worker.explain(host.name, failure, by="srun")
        return replace(told, about=ABOUT)

    def cancel(self, run: RunFacts) -> Cleanup:
        """An agent without a controller ends its tasks by itself, and Slurm ends whatever is left when the job ends."""
        settings = _settings(run.spec)
        hint = f"an agent ends its tasks and itself once its srun ends, or after {settings.lost_after_s:g} s without a word"
        return Cleanup(unseen=tuple(settings.named_slots), hint=f"{hint}\nto make sure: squeue -s -j {settings.job} names the steps left")


def time_before(asked_s: float | None, left_s: float) -> float:
    """Return the time between the request to save and the time limit; `left_s`: the whole time of the job."""
    return min(SAVE_BEFORE_S if asked_s is None else asked_s, left_s / 2)


def make() -> Backend:
    return Slurm()


def inside(env: Mapping[str, str]) -> tuple[Mapping[str, Any], str]:
    """The keys of `backend:` for the allocation in which a program with these variables runs, and a line for the user."""
    allocation.refuse(env)
    details = find_details(env["SLURM_JOB_ID"]) if _has_programs() else JobDetails()  # else `Slurm.problems` says so
    found = allocation.read(env, details)
    nodes = {
        node.name: {key: value for key in ("slots", "gpus", "slots_are_gpus") if (value := getattr(node, key))} for node in found.nodes
    }
    return {"job": found.job, "allocation": nodes}, found.describe()


def _has_programs() -> bool:
    return shutil.which("srun") is not None


def _settings(spec: ClusterSpec) -> SlurmSettings:
    assert isinstance(spec.backend, SlurmSettings)
    return spec.backend


def _gpus_per_node(spec: ClusterSpec, settings: SlurmSettings) -> str:
    """The GPUs for which a job asks on each node: those of the settings, or as many as the tasks of a node want (`--gpus`)."""
    others = (name for name in settings.options if "gpu" in name or name in ("gres", "exclusive") or name.startswith("tres"))
    if settings.gpus_per_node or settings.gres or any(others):
        return settings.gpus_per_node
    return str(plan.gpus_of_host(spec, plan.place(spec, settings.named_slots)) or "")


def _hosts(spec: ClusterSpec, job: str, nodes: Sequence[NodeSpec]) -> tuple[Host, ...]:
    settings, python = _settings(spec), interpreters.find(spec, is_here=False, has_ours=True)
    return tuple(
        Host(
            node.name,
            "",
            sees_run_dir=False,  # a node that sees it says so; but what one machine writes there, NFS shows another one late
            slots=node.slots,
            lost_after_s=settings.lost_after_s,
            is_here=False,
            workdir=Workdir("shared"),
            python=python,
            transport=Transport(
                step_command(job, node, python, settings.setup, os.environ), brings_worker=True, forwards_lines=True, limit_s=START_S
            ),
        )
        for node in nodes
    )
