"""Runs Slurm's programs. Their errors become messages with a remedy."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from ...errors import OrchError, UnansweredError, UsageError
from .complaints import ABOUT, UNREACHED, complaint_of, diagnose

ANSWER_S = 60.0
"""How long one of Slurm's programs may take. A slurmctld that is busy answers late."""
_MISTAKES = (
    *("Invalid partition", "Invalid account", "Invalid qos", "Invalid feature", "Invalid generic resource", "Invalid --", "invalid option"),
    *(
        "unrecognized option",
        "Invalid numeric value",
        "Invalid time limit",
        "Invalid node",
        "Requested node configuration",
        "not available",
    ),
    *("more processors requested than permitted", "Requested time limit", "Node count specification", "Memory required"),
    *("reservation is invalid", "This does not look like a batch script"),
)
"""Signs of a request that Slurm will never accept."""


def run_program(argv: Sequence[str], doing: str) -> str:
    """The output of a program. `doing`: what fails, in words. Raises `OrchError`, and `UsageError` for what Slurm never accepts."""
    out, complaint, said = _call(argv, doing)
    if complaint:
        told = diagnose(complaint, said)
        if any(sign in said for sign in UNREACHED):
            raise OrchError(f"slurmctld cannot be asked: {told.cause}", told.remedy, ABOUT)
        raise (UsageError if any(sign in said for sign in _MISTAKES) else OrchError)(f"{doing}: {told.cause}", told.remedy, ABOUT)
    return out


def try_program(argv: Sequence[str], doing: str) -> tuple[str, str]:
    """The output and the complaint of a program; no complaint: it has succeeded. Raises `OrchError` if it cannot be run at all."""
    return _call(argv, doing)[:2]


def _call(argv: Sequence[str], doing: str) -> tuple[str, str, str]:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL, timeout=ANSWER_S)
    except FileNotFoundError:
        raise OrchError(f"{doing}: there is no {argv[0]} on PATH here", "load Slurm's module, or go to a login node", ABOUT) from None
    except subprocess.TimeoutExpired:
        what = f"{doing}: {argv[0]} has not answered for {ANSWER_S:g} s"
        raise UnansweredError(what, "is slurmctld up? scontrol ping tells", ABOUT) from None
    except OSError as error:
        raise OrchError(f"{doing}: {argv[0]}: {error.strerror or error}") from None
    if done.returncode == 0:
        return done.stdout, "", done.stderr
    last = done.stderr.strip().rpartition("\n")[2]
    return done.stdout, complaint_of(done.stderr) or last or f"{argv[0]} ended with exit code {done.returncode}", done.stderr
