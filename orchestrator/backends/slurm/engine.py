"""Jobs of Slurm that run controllers. See `Engine`."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Mapping
from pathlib import Path

from worker.machine.file_system import kind_of
from worker.values.fast_dataclass import dataclass

from ...errors import OrchError, UnansweredError, UsageError
from ...model import slots
from ...model.policy.submission import Submission, Word
from ...model.settings import BackendSpec, SlurmSettings
from .. import Request, RunFacts, slots_of
from ..engines import Channel
from .allocation import JobDetails, parse_details
from .batch_script import NAME, sbatch_argv
from .complaints import ABOUT, diagnose
from .programs import run_program, try_program
from .queue import FORMAT, parse_queue

_MEMORY = ("tmpfs", "ramfs")
"""Kinds of file systems that no other machine sees."""
REFUSES = "Slurm refuses the job"
_UNKNOWN = "Invalid job id"
_NOTHING_FITS = "Requested node configuration is not available"


@dataclass(frozen=True, slots=True)
class SlurmEngine:
    """The Slurm that this machine's programs talk to."""

    def submit(self, request: Request) -> Submission:
        _refuse(request)
        file = str(Path(request.run.directory, "request", NAME))
        _try_out(file, request.run.spec.backend)
        place = _cluster()
        try:
            job = run_program(sbatch_argv(file), "cannot submit to Slurm").strip().partition(";")[0]
        except UnansweredError as error:
            look = f"squeue --me --name {shlex.quote(request.run.spec.name)} names the job, and scancel ends it"
            what = f"{error.line}\nthe job may be queued all the same, so its run is kept: {request.run.directory}"
            raise UnansweredError(what, look, ABOUT) from None
        if not job.isdecimal():
            raise OrchError(f"sbatch has named no job: {job!r}")
        return Submission(job, f"Slurm's job {job}", time.time(), place=place, is_shared=True)

    def ask(self, jobs: Mapping[str, Submission]) -> Mapping[str, Word]:
        argv = ("squeue", "-h", "-t", "all", "-j", ",".join(jobs), "-o", FORMAT)
        out, complaint = try_program(argv, "cannot ask Slurm")
        if complaint and _UNKNOWN not in complaint:  # said if Slurm has forgotten all of the jobs
            told = diagnose(complaint)
            raise OrchError(f"cannot ask Slurm: {told.cause}", told.remedy, ABOUT)
        found, now = parse_queue(out), time.time()
        words = {job: found[job].word(now) for job, made in jobs.items() if job in found and found[job].is_of(made.run_id)}
        for job in jobs.keys() - words.keys() if len(words) < len(jobs) else ():
            words |= _elsewhere(jobs[job])
        return words

    def withdraw(self, run: RunFacts, job: str) -> None:
        _, complaint = try_program(("scancel", job), "cannot cancel Slurm's job")
        if complaint and _UNKNOWN not in complaint:
            raise OrchError(f"cannot cancel Slurm's job {job}: {complaint}")

    def channel(self, run: RunFacts, job: str) -> Channel | None:
        """None: login nodes and compute nodes share the file system of the run's directory."""
        return None

    def forget(self, run: RunFacts, job: str) -> bool:
        """Slurm itself removes its jobs."""
        return False


def _elsewhere(job: Submission) -> Mapping[str, Word]:
    """The word for a job that Slurm does not know here, if another Slurm may know the job; or none: it is forgotten."""
    here = _cluster()
    if job.place in ("", here):
        return {}
    return {job.job: Word("unknown", f"job {job.job} of Slurm's cluster {job.place}; Slurm's programs here ask {here} (SLURM_CONF)")}


def _cluster() -> str:
    """The name of the cluster that Slurm's programs ask. Raises `OrchError`."""
    out = run_program(("scontrol", "show", "config"), "cannot ask Slurm for the name of its cluster")
    return next((line.partition("=")[2].strip() for line in out.splitlines() if line.startswith("ClusterName")), "")


def find_details(job: str) -> JobDetails:
    """Return what Slurm says of a job and of its nodes. Raises `OrchError` if Slurm cannot be asked, or knows no such job."""
    out = run_program(("scontrol", "--local", "show", "job", "--details", job), f"cannot ask Slurm for its job {job}")
    try:
        return parse_details(out)
    except ValueError as error:
        raise OrchError(f"the words of scontrol about Slurm's job {job} cannot be read: {error}") from None


def _try_out(file: str, settings: BackendSpec) -> None:
    """Let Slurm examine a script without queueing a job. Raises `OrchError`."""
    argv = sbatch_argv(file, ["--test-only"])
    _, complaint = try_program(argv, REFUSES)
    if not complaint:
        return
    # Of a request that no nodes fit now, Slurm says the same as of one that none will ever fit.
    if _NOTHING_FITS in complaint and _has_absent_nodes(settings):
        return
    run_program(argv, REFUSES)


def _has_absent_nodes(settings: BackendSpec) -> bool:
    """True if nodes that could be used are away for a time: drained, down, reserved."""
    assert isinstance(settings, SlurmSettings)
    partition = ("--partition", settings.partition) if settings.partition else ()
    states = run_program(("sinfo", "--noheader", *partition, "--format", "%T"), "cannot ask Slurm for its nodes").split()
    return not all(state.rstrip("*~#$@^!%-") in ("idle", "allocated", "mixed", "completing") for state in states)


def _refuse(request: Request) -> None:
    """Refuse what would fail only after hours in the queue. Raises `OrchError`."""
    spec = request.run.spec
    slots.assign(spec.counts, slots_of(request.hosts))
    script = os.path.join(spec.workdir, spec.program.target)
    if spec.program.kind == "script" and not os.path.isfile(script):
        raise UsageError(f"there is no script {script}")
    for host in request.hosts[:1]:
        if os.path.isabs(host.python) and not os.access(host.python, os.X_OK):
            raise UsageError(f"there is no Python {host.python}", "set python: or --python", ABOUT)
    for what, path in (("run directory", request.run.directory), ("working directory", spec.workdir)):
        if (kind := kind_of(path)) in _MEMORY:
            raise UsageError(
                f"the {what} {path} is in the memory of this machine ({kind}), which no node sees",
                "--home DIR, in a directory that all machines share, such as your home (findmnt -T DIR names its file system)",
                ABOUT,
            )
