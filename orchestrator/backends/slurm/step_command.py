"""The command that starts an agent on a node of an allocation. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...model.joining import SLURM_STEP
from ...model.settings import NodeSpec
from .. import remote_worker

OPTIONS = ("-N1", "-n1", "--overlap", "--mem=0", "--cpu-bind=none", "--mpi=none", "--no-kill", "--kill-on-bad-exit=0", "--export=ALL")
"""``--overlap --mem=0``: the step takes all of the node that the job has, and other steps may have the same, so none waits for another.
``--no-kill``: the loss of one node ends its own step only."""
KEPT = frozenset(("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT"))
"""The variables that say how Slurm is reached. All others that srun reads are options for a step of the user's own."""
OF_THE_JOB = (
    *("SLURM_JOB_NAME", "SLURM_JOB_NODELIST", "SLURM_JOB_NUM_NODES", "SLURM_JOB_CPUS_PER_NODE", "SLURM_JOB_ACCOUNT", "SLURM_JOB_QOS"),
    *("SLURM_JOB_START_TIME", "SLURM_JOB_END_TIME", "SLURM_RESTART_COUNT", "SLURM_SUBMIT_DIR", "SLURM_SUBMIT_HOST"),
)
"""What Slurm says of the job, and what a step that is started so would say of itself in its place."""


def step_command(job: str, node: NodeSpec, python: str, setup: Sequence[str], env: Mapping[str, str]) -> tuple[str, ...]:
    """`env`: the variables of the process that runs the command, whose options for steps must not reach this one."""
    gpus = (f"--{node.gpus}",) if node.gpus else ()
    unset = [name for name in sorted(env) if name.startswith(("SLURM_", "SRUN_")) and name not in KEPT]
    program = ("bash", "-c", remote_worker.shell_command(python, setup)) if setup else remote_worker.argv(python)
    own = (word for name in unset for word in ("-u", name))
    theirs = (word for name in SLURM_STEP for word in ("-u", name))
    facts = (f"{name}={env[name]}" for name in OF_THE_JOB if name in env)
    return ("env", *own, "srun", f"--jobid={job}", "-w", node.name, *OPTIONS, *gpus, "env", *theirs, *facts, *program)
