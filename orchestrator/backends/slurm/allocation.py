"""Defines what a program inside of an allocation knows of it, from the variables that Slurm sets (salloc, sbatch) and from `scontrol`.
Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field

from worker.values.fast_dataclass import dataclass
from worker.values.words import count_of, few

from ...errors import OrchError, UsageError
from ...model.settings import NodeSpec
from .complaints import ABOUT
from .queue import parse_time

MOST = 100_000
"""More nodes than any cluster has: a list that names more is a mistake."""
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_TIMES = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def expand(text: str) -> tuple[str, ...]:
    """The names of a node list in Slurm's order, which is not the order of texts: ``n[9-11],gpu-a`` is n9, n10, n11, gpu-a.

    Zeros in front stay (``n[07-12]``), and a name may have several brackets (``r[1-2]n[01-04]``), of which the last one counts fastest.
    Raises `ValueError`.
    """
    names = []
    for part in _parts(text):
        pieces = _BRACKETS.split(part)  # text and the inside of a bracket, in turn
        if any("[" in piece or "]" in piece for piece in pieces) or not part:
            raise ValueError(f"{text!r} is no list of nodes")
        choices = [list(_numbers(piece, text)) if place % 2 else [piece] for place, piece in enumerate(pieces)]
        for words in itertools.product(*choices):
            names.append("".join(words))
            if len(names) > MOST:
                raise ValueError(f"a list of more than {MOST:,} nodes")
    return tuple(names)


def _parts(text: str) -> list[str]:
    """The parts between the commas that are in no bracket."""
    return re.split(r",(?![^\[]*\])", text)


def _numbers(inside: str, text: str) -> Iterator[str]:
    for word in inside.split(","):
        found = _RANGE.fullmatch(word)
        if found is None:
            raise ValueError(f"{text!r} is no list of nodes")
        first, last = found[1], found[2] or found[1]
        if int(last) - int(first) >= MOST:
            raise ValueError(f"a list of more than {MOST:,} nodes")
        for number in range(int(first), int(last) + 1):
            yield f"{number:0{len(first)}}"


def expand_counts(text: str) -> tuple[int, ...]:
    """A number for each node: ``2(x3),1`` is 2, 2, 2, 1. Raises `ValueError`."""
    counts: list[int] = []
    for word in text.split(","):
        found = _TIMES.fullmatch(word)
        if found is None or int(found[2] or 1) > MOST:
            raise ValueError(f"{text!r} is no list of numbers")
        counts += [int(found[1])] * int(found[2] or 1)
    return tuple(counts)


_END = re.compile(r"\bEndTime=(\S+)")
_NODES = re.compile(r"\bNodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)")
_PER_NODE = re.compile(r"\bTresPerNode=\S*gpu")
_NEWER = re.compile(r"\bAllocTRES=")
_GPUS = re.compile(r"(?:^|,)gpu(?::[^:,()]+)?:(\d+)")


@dataclass(frozen=True, slots=True)
class JobDetails:
    """Holds what `scontrol show job --details` says, and no variable."""

    end: float | None = None
    """The time limit, in seconds since 1970; None: there is no limit."""
    gpus: Mapping[str, int] = field(default_factory=dict)
    steps_share: bool = True
    """A step gets all GPUs that the job has on its node. Those of ``--gpus`` and ``--gpus-per-task`` it gets only if it asks for them."""
    is_newer: bool = False
    """A Slurm that answers like 24.11, and not like 22.05."""

    def ask_for(self, node: str) -> str:
        """The option for a step that shall have all GPUs of its node; empty: it needs none.

        Where a job has asked with ``--gpus``, 22.05 refuses ``--gres`` to a step; and 24.11 lets a step with ``--gpus`` wait for ever on a
        node that has fewer than the first one.
        """
        count = 0 if self.steps_share else self.gpus.get(node, 0)
        return "" if not count else f"gres=gpu:{count}" if self.is_newer else f"gpus={count}"


def parse_details(text: str) -> JobDetails:
    """The output of `scontrol`. Raises `ValueError`."""
    end = _END.search(text)
    gpus: dict[str, int] = {}
    for names, resources in _NODES.findall(text):
        if count := sum(int(number) for number in _GPUS.findall(resources)):
            gpus |= dict.fromkeys(expand(names), count)
    return JobDetails(parse_time(end[1]) if end else None, gpus, bool(_PER_NODE.search(text)), bool(_NEWER.search(text)))


@dataclass(frozen=True, slots=True)
class Allocation:
    """The nodes of a job, in Slurm's order."""

    job: str
    nodes: tuple[NodeSpec, ...]
    until: float | None = None
    """The time limit, in seconds since 1970; None: there is no limit."""

    def describe(self) -> str:
        """For the line that tells the user where the tasks run."""
        counts = {node.slots for node in self.nodes}
        slots = sum(node.slots or 1 for node in self.nodes)
        each = counts.pop() if len(counts) == 1 else 0
        names = [node.name for node in self.nodes]
        told = "" if each is None else f" with {count_of(slots, 'slot')}" if not each or len(names) == 1 else f" with {each} slots each"
        return f"the allocation of Slurm's job {self.job} is used: {count_of(len(names), 'node')} ({few(names, 4)}){told}"


def read(env: Mapping[str, str], details: JobDetails) -> Allocation:
    """The allocation in which a program runs that has these variables. Raises `OrchError`."""
    job = env["SLURM_JOB_ID"]
    try:
        names = expand(env.get("SLURM_JOB_NODELIST") or env.get("SLURM_NODELIST", ""))
        asked = _slots_asked_for(env, names)
        slots: Sequence[int | None] = asked or [details.gpus.get(name) for name in names]
    except ValueError as error:
        raise OrchError(f"the variables of Slurm's job {job} cannot be read: {error}") from None
    nodes = (NodeSpec(name, count, details.ask_for(name), not asked and bool(count)) for name, count in zip(names, slots, strict=True))
    return Allocation(job, tuple(nodes), details.end)


def refuse(env: Mapping[str, str]) -> None:
    """Refuse an allocation, or a place in it, that orch cannot use: srun would start several orchs. Raises `UsageError`."""
    job, count, kinds = env["SLURM_JOB_ID"], env.get("SLURM_STEP_NUM_TASKS", "1"), env.get("SLURM_HET_SIZE", "0")
    if kinds.isdecimal() and int(kinds) > 1:
        raise UsageError(
            f"Slurm's job {job} is a heterogeneous one (SLURM_HET_SIZE={kinds}), which orch cannot use",
            "ask for one kind of nodes; --backend local uses this machine alone",
            ABOUT,
        )
    if count.isdecimal() and int(count) > 1 and "SLURM_PROCID" in env:
        raise UsageError(
            f"srun has started orch {count} times; orch starts the tasks on the nodes itself",
            "leave srun out, and name the number of tasks with --workers; or add --join, and orch is one run on all of them",
            ABOUT,
        )


def _slots_asked_for(env: Mapping[str, str], names: Sequence[str]) -> tuple[int, ...]:
    """The task slots of each node; none if the job asked for no number of tasks: each GPU is one then. Raises `ValueError`."""
    if not {"SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE"} & env.keys():
        return ()
    counts = expand_counts(env.get("SLURM_TASKS_PER_NODE", f"1(x{len(names)})"))
    if len(counts) != len(names):
        raise ValueError(f"SLURM_TASKS_PER_NODE={env.get('SLURM_TASKS_PER_NODE')} has {len(counts)} numbers for {len(names)} nodes")
    return tuple(max(1, count) for count in counts)
