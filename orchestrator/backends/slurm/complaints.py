"""Words for what Slurm's programs complain of, with a remedy. Pure."""

from __future__ import annotations

import re

from .. import Diagnosis, StartFailure

ABOUT = "slurm"
_SAID = re.compile(
    r"^(?:(?:srun|sbatch|squeue|scancel|scontrol|salloc): (?:error: |fatal: )?|slurm_\w+ error: |allocation failure: )(?P<text>.*)$"
)
_NOTICES = re.compile(r"cluster configuration lacks support|launch/slurm|Step created|step creation|temporarily disabled|Force Terminated")
_OTHER_KEY = "slurmctld does not believe this machine, whose munge key or clock may differ from slurmctld's: munge -n | unmunge tells"
UNREACHED = (
    *("resolve_ctls_from_dns_srv", "fetch_config: ", "Could not establish a configuration source"),
    "Unable to contact slurm controller",
)
"""Signs that no slurmctld has answered: nothing is said of the request itself."""
_NO_CLUSTER = "is this a login node of the cluster? SLURM_CONF names its slurm.conf; scontrol ping tells"
REMEDIES = (
    *((sign, _NO_CLUSTER) for sign in UNREACHED[:-1]),
    ("Unable to contact slurm controller", "is slurmctld up? scontrol ping tells"),
    ("Connection refused", "is slurmctld up? scontrol ping tells"),
    ("Unable to connect to", "is slurmctld up? scontrol ping tells"),
    ("Socket timed out", "slurmctld is busy, or hangs: scontrol ping tells"),
    ("Munge encode failed", "is munged up on this machine? munge -n tells"),
    ("Zero Bytes were transmitted or received", _OTHER_KEY),
    ("Protocol authentication error", _OTHER_KEY),
    ("Invalid authentication credential", _OTHER_KEY),
    ("Invalid job id", "the allocation has ended: make a new one"),
    ("Job/step already completing or completed", "the allocation has ended: make a new one"),
    ("Access/permission denied", "the job belongs to another user"),
    ("Requested nodes are busy", "another step holds the node alone: start it with --overlap, or wait for its end"),
    ("Node failure", "sinfo -R says what Slurm knows of the node"),
    ("Invalid partition name", "sinfo -s names the partitions"),
    ("Invalid account", "sacctmgr show associations user=$USER names yours"),
    ("Invalid qos", "sacctmgr show qos names them"),
    ("Invalid feature specification", "sinfo -o '%P %D %f' names the features"),
    ("generic resource (gres)", "sinfo -o '%P %D %G' shows what the partitions have"),
    ("configuration is not available", "sinfo -o '%P %D %c %m %G' shows what the partitions have"),
    ("Could not find executable", "Slurm cannot run that program on the node"),
)
_PASSING = ("Requested nodes are busy", "Unable to contact slurm controller", "Socket timed out", "Resource temporarily unavailable")


def complaint_of(said: str) -> str:
    """The first complaint with a remedy in the output of a program of Slurm, or else the first; empty: there is none."""
    found = [match["text"].strip().rstrip(".") for line in said.splitlines() if (match := _SAID.match(line.strip()))]
    found = [text for text in found if not _NOTICES.search(text)]
    return next((text for text in found if any(sign in text for sign, _ in REMEDIES)), found[0] if found else "")


def diagnose(complaint: str, said: str = "") -> Diagnosis:
    """A complaint with its remedy. `said`: all that the program said; a later line may tell more."""
    text = f"{complaint}\n{said}"
    remedy = next((told for sign, told in REMEDIES if sign in text), "")
    return Diagnosis(complaint, remedy, passing=any(sign in text for sign in _PASSING))


def explain_step(failure: StartFailure) -> Diagnosis | None:
    """Why a step did not begin; None: it began, and what it started has ended."""
    if failure.error is not None:
        return Diagnosis(failure.text, "Slurm's programs are not on PATH: load Slurm's module")
    if failure.code == 127 and "srun" in failure.said:
        return Diagnosis("there is no srun on PATH here", "load Slurm's module")
    complaint = complaint_of(failure.said)
    started = re.search(r"task 0: (?:Exited with exit code|Killed|Terminated)|slurmstepd: .*execve", failure.said)
    return diagnose(complaint, failure.said) if complaint and not started else None
