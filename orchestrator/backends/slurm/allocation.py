"""What a program inside of an allocation knows of it, from the variables that Slurm sets (salloc, sbatch). Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from worker.values.fast_dataclass import dataclass
from worker.values.words import count_of, few

from ...errors import OrchError, UsageError
from ...model.spec.sections.backend_sections import count_gpus
from .node_list import expand, expand_counts


@dataclass(frozen=True, slots=True)
class Allocation:
    """The nodes of a job, in Slurm's order."""

    job: str
    slots: Mapping[str, int | None]
    """How many tasks each node takes; None: the request of the job did not say."""
    until: float | None = None
    """The time limit, in seconds since 1970; None: Slurm has not set the variable (before 23.02), or there is no limit."""
    restarts: int = 0
    """How often Slurm has queued the job again."""

    def describe(self) -> str:
        """For the line that tells the user where the tasks run."""
        names, counts = [*self.slots], {*self.slots.values()}
        slots = sum(count or 1 for count in self.slots.values())
        each = counts.pop() if len(counts) == 1 else 0
        told = "" if each is None else f" with {count_of(slots, 'slot')}" if not each or len(names) == 1 else f" with {each} slots each"
        return f"the allocation of Slurm's job {self.job} is used: {count_of(len(names), 'node')} ({few(names, 4)}){told}"


def read(env: Mapping[str, str]) -> Allocation:
    """The allocation in which a program runs that has these variables. Raises `OrchError`."""
    job = env["SLURM_JOB_ID"]
    if int(env.get("SLURM_HET_SIZE", "0") or 0) > 1:
        raise UsageError(
            f"Slurm's job {job} is a heterogeneous one (SLURM_HET_SIZE={env['SLURM_HET_SIZE']}), which orch cannot use: "
            "ask for one kind of nodes, with as many tasks as each shall take; --backend local uses this machine alone"
        )
    try:
        names = expand(env.get("SLURM_JOB_NODELIST") or env.get("SLURM_NODELIST", ""))
        slots = _slots(env, len(names))
    except ValueError as error:
        raise OrchError(f"the variables of Slurm's job {job} cannot be read: {error}") from None
    until = env.get("SLURM_JOB_END_TIME", "")
    restarts = env.get("SLURM_RESTART_COUNT", "")
    return Allocation(
        job,
        dict(zip(names, slots, strict=True)),
        float(until) if until.isdecimal() else None,
        int(restarts) if restarts.isdecimal() else 0,
    )


def refuse_steps(env: Mapping[str, str]) -> None:
    """Refuse a program that srun has started several times: each would be an orch of its own. Raises `UsageError`."""
    count = env.get("SLURM_STEP_NUM_TASKS", "1")
    if count.isdecimal() and int(count) > 1 and "SLURM_PROCID" in env:
        raise UsageError(
            f"srun has started orch {count} times; orch starts the tasks on the nodes itself: leave srun out in front of it, and name the "
            "number of tasks with --workers"
        )


def _slots(env: Mapping[str, str], nodes: int) -> tuple[int | None, ...]:
    """The task slots of each node: those that were asked for, else one for each GPU, else unknown. Raises `ValueError`."""
    if "SLURM_NTASKS" in env or "SLURM_NPROCS" in env or "SLURM_NTASKS_PER_NODE" in env:
        counts = expand_counts(env.get("SLURM_TASKS_PER_NODE", f"1(x{nodes})"))
        if len(counts) != nodes:
            raise ValueError(f"SLURM_TASKS_PER_NODE={env.get('SLURM_TASKS_PER_NODE')} has {len(counts)} numbers for {nodes} nodes")
        return tuple(max(1, count) for count in counts)
    return (_gpus(env, nodes) or None,) * nodes


def _gpus(env: Mapping[str, str], nodes: int) -> int:
    """The GPUs of each node; 0: none, or their number is unknown."""
    if per_node := env.get("SLURM_GPUS_PER_NODE", ""):
        return sum(count_gpus(word, "") for word in per_node.split(","))
    if all_of_them := env.get("SLURM_GPUS", ""):
        total = sum(count_gpus(word, "") for word in all_of_them.split(","))
        return total // nodes if total % nodes == 0 else 0
    return len(env["SLURM_JOB_GPUS"].split(",")) if re.fullmatch(r"\d+(,\d+)*", env.get("SLURM_JOB_GPUS", "")) else 0
