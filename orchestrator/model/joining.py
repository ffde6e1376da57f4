"""Tables of what an engine tells a program that it has started on each of its nodes: a row for each engine. Pure.

`orch up --join` is such a program. The first row whose sign is there counts. A launcher that runs in a job of another engine leaves the
variables of both: so launchers come first, then what programs for several nodes read, and batch systems last.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from worker.values.fast_dataclass import dataclass

TOKEN = "ORCH_JOIN_TOKEN"
"""The variable with the secret of a run, which all its nodes have, and its tasks have not."""
SLURM_STEP = (
    *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_GTIDS", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NNODES", "SLURM_TASK_PID"),
    *("SLURM_NODELIST", "SLURM_TASKS_PER_NODE", "SLURM_STEPID", "SLURM_STEP_ID", "SLURM_STEP_NODELIST", "SLURM_STEP_NUM_NODES"),
    *("SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE", "SLURM_STEP_LAUNCHER_PORT", "SLURM_STEP_RESV_PORTS", "SLURM_SRUN_COMM_HOST"),
    *("SLURM_SRUN_COMM_PORT", "SLURM_LAUNCH_NODE_IPADDR", "SLURM_CPU_BIND", "SLURM_CPU_BIND_LIST", "SLURM_CPU_BIND_TYPE"),
    *("SLURM_CPU_BIND_VERBOSE", "SLURM_DISTRIBUTION", "SLURM_UMASK", "SLURM_PRIO_PROCESS"),
)
"""What Slurm says of a step. To a task these variables would say that it is alone: each of them would train for itself."""
_STRIPPED = ("TF_CONFIG", "CLUSTER_SPEC", TOKEN, "PMI_", "PMIX_", "OMPI_", "PRTE_", "HYDI_", "I_MPI_HYDRA_", "PALS_", "PET_", *SLURM_STEP)


@dataclass(frozen=True, slots=True)
class Seat:
    """Facts about the nodes of its job, and of itself among them. A fact that the engine does not tell is None, or empty."""

    engine: str = ""
    """In words; empty: no engine was recognised."""
    nodes: int | None = None
    index: int | None = None
    """0 on the node that takes the controller. Each node has another one; in the order of the nodes."""
    first: str = ""
    """Where node 0 is: ``NAME`` or ``NAME:PORT``."""
    slots: int | None = None
    """How many tasks this node takes."""
    job: str = ""
    """What no other job has."""
    attempt: str = ""
    """What tells the starts of one job apart."""
    local_rank: int | None = None
    """Of the processes that the engine has started on this node: 0 for the one that counts."""
    advice: str = ""
    """Why this process cannot join, and what to do; empty: it can."""
    shares_files: bool = False
    """The nodes of such an engine usually have a file system in common."""
    requeue: str = ""
    """The way to make the engine start a run again that ends with 42; empty: it cannot tell one code from another."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """The variables from which each fact comes."""

    @property
    def is_rank(self) -> bool:
        """True if `index` counts the processes of all nodes, of which this node has several."""
        return (self.slots or 1) > 1 and self.local_rank is not None and "NODE" not in self.sources["index"]


FILES = ("PBS_NODEFILE", "PE_HOSTFILE")
"""Variables with the paths of files that the table reads."""


class Variables:
    """The environment of a process, with the names of those that were read."""

    def __init__(self, env: Mapping[str, str], host: str, files: Mapping[str, str]) -> None:
        self._env, self.host, self._files = env, host, files
        """`host`: the full name of this machine. `files`: the texts of `FILES`."""
        self.names: list[str] = []

    def text(self, name: str) -> str:
        """The value of a variable; empty: it is not set."""
        self.names += [name] if self._env.get(name) else []
        return self._env.get(name, "")

    def read(self, rule: Rule) -> Any:
        """What a rule finds; empty if it finds nothing."""
        return next(filter(None, map(self._read_words, rule.split())), "") if isinstance(rule, str) else rule(self)

    def _read_words(self, words: str) -> str:
        """See `Rule`."""
        first, *others = re.split(r"\W", words)
        found = [self.text(name) for name in (first, *others) if not name.isdecimal()]
        match words[len(first) : len(first) + 1]:
            case "&":
                return found[-1] if all(found) else ""
            case "+":
                return "-".join(filter(None, found))
            case ":":
                return ":".join(filter(None, found)) if found[0] else ""
            case ">":
                return found[0] if (number(found[0]) or 0) > int(others[0]) else ""
            case "/":
                whole, each = map(number, found)
                return str(whole // each) if whole and each and whole % each == 0 else ""
        return found[0]

    def nodes(self, name: str) -> tuple[list[str], int | None]:
        """The addresses of the nodes, from a list, a file or a cluster of TensorFlow; and the place of this node among them."""
        text = self.text(name)
        if text.startswith("{"):
            cluster, task = (part if isinstance(part := _data(text, {}).get(key), dict) else {} for key in ("cluster", "task"))
            kinds = sorted(cluster, key=lambda kind: (kind not in ("chief", "master"), kind != "worker", kind))
            tasks = {
                f"{kind}/{at}": str(where) for kind in kinds if isinstance(cluster[kind], list) for at, where in enumerate(cluster[kind])
            }
            own = f"{task.get('type')}/{task.get('index')}"
            return [*tasks.values()], [*tasks].index(own) if own in tasks else None
        if name in FILES:
            found = [line.split()[0] for line in self._files.get(name, "").splitlines() if line.strip()]
        elif text.startswith("["):
            found = sorted(map(str, _data(text, [])), key=lambda each: (len(each), each))
        else:
            found = [word for word in re.split(r"[\s,;]+", text) if word and not word.isdecimal()]  # LSF: each with its slots
        found, own = [*dict.fromkeys(found)], self.text("SM_CURRENT_HOST") or self.host.partition(".")[0]
        return found, next((place for place, each in enumerate(found) if each.partition(".")[0] == own), None)


def number(text: str) -> int | None:
    return int(text) if re.fullmatch(r"\d{1,9}", text) else None


def _data(text: str, otherwise: Any) -> Any:
    """JSON of the type of `otherwise`, or `otherwise`."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return otherwise
    return found if type(found) is type(otherwise) else otherwise


Rule = str | Callable[[Variables], Any]
"""How a fact is read: the names of variables, of which the first one that is set counts, or a function. ``A&B``: all are set. ``A+B``:
``a-b``, of those that are set. ``A:B``: ``NAME:PORT``, or the name alone. ``A>1``: a number above 1. ``A/B``: how many nodes have
B of A processes each, if they are alike."""


@dataclass(frozen=True, slots=True)
class EngineRow:
    """The signs of an engine, and the places of the facts of a `Seat` there. `nodes`, `index` and `first` may also come from a list of all
    nodes, in the variable `listed`."""

    engine: str
    sign: Rule
    nodes: Rule = ""
    index: Rule = ""
    first: Rule = ""
    slots: Rule = ""
    job: Rule = ""
    attempt: Rule = ""
    local_rank: Rule = ""
    listed: str = ""
    advice: str = ""
    shares_files: bool = False
    requeue: str = ""


def _pod_0(env: Variables) -> str:
    """The name of the pod with the index 0, where each has its index at the end of its own name."""
    pod, dot, domain = env.host.partition(".")
    return f"{pod.rpartition('-')[0]}-0{dot}{domain}" if pod.rpartition("-")[0] and domain else ""


def _pod_job(env: Variables) -> str:
    return env.host.partition(".")[0].rpartition("-")[0]


def _slurm_slots(env: Variables) -> str:
    """The processes of the step on this node, if there are several; else one task for each GPU."""
    found = re.findall(r"(\d{1,6})(?:\(x(\d{1,5})\))?", env.text("SLURM_STEP_TASKS_PER_NODE"))
    ends, index = itertools.accumulate(int(times or 1) for _, times in found), number(env.text("SLURM_NODEID")) or 0
    here = next((count for (count, _), end in zip(found, ends, strict=True) if end > index), "1")
    return here if int(here) > 1 else env.text("SLURM_GPUS_ON_NODE")


# fmt: off
ROWS: tuple[EngineRow, ...] = (
    EngineRow("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_MCA_orte_num_nodes OMPI_COMM_WORLD_SIZE/OMPI_COMM_WORLD_LOCAL_SIZE",
        "OMPI_COMM_WORLD_RANK", slots="OMPI_COMM_WORLD_LOCAL_SIZE>1", job="PMIX_NAMESPACE OMPI_MCA_ess_base_jobid",
        local_rank="OMPI_COMM_WORLD_LOCAL_RANK", shares_files=True),
    EngineRow("Cray PALS", "PALS_APID", "PMI_SIZE/PMI_LOCAL_SIZE", "PMI_RANK", slots="PMI_LOCAL_SIZE>1", job="PALS_APID",
        local_rank="PMI_LOCAL_RANK", shares_files=True),
    EngineRow("MPICH or Intel MPI", "PMI_RANK&MPI_LOCALNRANKS", "PMI_SIZE/MPI_LOCALNRANKS", "PMI_RANK", slots="MPI_LOCALNRANKS>1",
        job="I_MPI_HYDRA_UUID PBS_JOBID SLURM_JOB_ID LSB_JOBID", local_rank="MPI_LOCALRANKID", shares_files=True),
    EngineRow("Flux", "FLUX_JOB_ID&FLUX_TASK_RANK", "FLUX_JOB_NNODES", "FLUX_TASK_RANK", job="FLUX_JOB_ID",
        local_rank="FLUX_TASK_LOCAL_ID", shares_files=True),
    EngineRow("a job for torchrun (PET_*)", "PET_NNODES&PET_NODE_RANK", "PET_NNODES", "PET_NODE_RANK",
        "PET_RDZV_ENDPOINT PET_MASTER_ADDR:PET_MASTER_PORT", "PET_NPROC_PER_NODE", lambda env: env.text("PET_RDZV_ID") or _pod_job(env)),
    EngineRow("a job with TF_CONFIG", lambda env: len(env.nodes("TF_CONFIG")[0]) > 1, listed="TF_CONFIG",
        job=lambda env: env.text("CLOUD_ML_JOB_ID") or env.nodes("TF_CONFIG")[0][0]),
    EngineRow("Vertex AI", "CLUSTER_SPEC", job="CLOUD_ML_JOB_ID", listed="CLUSTER_SPEC"),
    EngineRow("SageMaker", "SM_HOSTS", slots="SM_NUM_GPUS", job="TRAINING_JOB_NAME", listed="SM_HOSTS"),
    EngineRow("AzureML", "AZUREML_RUN_ID", "AZUREML_NODE_COUNT WORLD_SIZE", "AZUREML_CR_NODE_RANK NODE_RANK",
        lambda env: env.read("AZ_BATCHAI_MPI_MASTER_NODE MASTER_ADDR") or env.text("AZ_BATCH_MASTER_NODE").partition(":")[0],
        job="AZUREML_RUN_ID"),
    EngineRow("AWS Batch", "AWS_BATCH_JOB_NUM_NODES", "AWS_BATCH_JOB_NUM_NODES", "AWS_BATCH_JOB_NODE_INDEX",
        "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS", job=lambda env: env.text("AWS_BATCH_JOB_ID").partition("#")[0],
        attempt="AWS_BATCH_JOB_ATTEMPT", requeue='retryStrategy: evaluateOnExit with {"onExitCode": "42", "action": "retry"}'),
    EngineRow("SkyPilot", "SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES", "SKYPILOT_NODE_RANK", slots="SKYPILOT_NUM_GPUS_PER_NODE",
        job="SKYPILOT_TASK_ID", listed="SKYPILOT_NODE_IPS", requeue="job_recovery: {recover_on_exit_codes: [42]}"),
    EngineRow("dstack", "DSTACK_NODE_RANK", "DSTACK_NODES_NUM", "DSTACK_NODE_RANK", "DSTACK_MASTER_NODE_IP", "DSTACK_GPUS_PER_NODE",
        "DSTACK_RUN_NAME", requeue="retry: {on_events: [error]}, for any code"),
    EngineRow("RunPod", "PRIMARY_ADDR", "NUM_NODES", "NODE_RANK", "PRIMARY_ADDR", "NUM_TRAINERS"),
    EngineRow("Alibaba PAI", "MASTER_ADDR&NPROC_PER_NODE&RANK", "WORLD_SIZE", "RANK", "MASTER_ADDR:MASTER_PORT", "NPROC_PER_NODE"),
    EngineRow("LeaderWorkerSet", "LWS_WORKER_INDEX", "LWS_GROUP_SIZE", "LWS_WORKER_INDEX", "LWS_LEADER_ADDRESS",
        advice="a LeaderWorkerSet starts its pods again for ever, also after a success: use a Job, a JobSet or a TrainJob"),
    EngineRow("Volcano", "VC_TASK_INDEX&VC_WORKER_HOSTS", index="VC_TASK_INDEX", job=_pod_job, listed="VC_WORKER_HOSTS"),
    EngineRow("a TPU of several machines", lambda env: len(env.nodes("TPU_WORKER_HOSTNAMES")[0]) > 1, index="TPU_WORKER_ID",
        listed="TPU_WORKER_HOSTNAMES"),
    EngineRow("an Indexed Job of Kubernetes", "JOB_COMPLETION_INDEX", index="JOB_COMPLETION_INDEX", first=_pod_0, job=_pod_job,
        requeue="podFailurePolicy: onExitCodes {operator: In, values: [42]}, action Ignore"),
    EngineRow("Nomad", "NOMAD_ALLOC_INDEX", index="NOMAD_ALLOC_INDEX", job="NOMAD_JOB_ID+NOMAD_GROUP_NAME"),
    EngineRow("HTCondor", "_CONDOR_PROCNO", "_CONDOR_NPROCS", "_CONDOR_PROCNO", requeue="checkpoint_exit_code = 42"),
    EngineRow("Slurm", "SLURM_STEP_ID&SLURM_PROCID SLURM_STEPID&SLURM_PROCID", "SLURM_STEP_NUM_NODES", "SLURM_NODEID", slots=_slurm_slots,
        job="SLURM_CLUSTER_NAME+SLURM_JOB_ID+SLURM_STEP_ID", attempt="SLURM_RESTART_COUNT", local_rank="SLURM_LOCALID", shares_files=True,
        requeue="--requeue-code scontrol"),
    EngineRow("Slurm", "SLURM_JOB_ID", "SLURM_JOB_NUM_NODES", advice="this is no step of srun: write srun --ntasks-per-node=1 orch up … "
        "--join, or leave --join out: orch takes the allocation"),
    EngineRow("LSF", "LSB_JOBID", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK", job="LSB_JOBID+LSB_JOBINDEX", attempt="LSB_RESTART",
        local_rank="JSM_NAMESPACE_LOCAL_RANK", listed="LSB_MCPU_HOSTS", shares_files=True, requeue="bsub -Q 42"),
    EngineRow("PBS", "PBS_JOBID", lambda env: str(len(env.nodes("PBS_NODEFILE")[0]) or env.text("PBS_NUM_NODES")), "PBS_NODENUM",
        job="PBS_JOBID", listed="PBS_NODEFILE", shares_files=True),
    EngineRow("Grid Engine", "JOB_ID&NHOSTS", "NHOSTS", job="JOB_ID+SGE_TASK_ID", attempt="RESTARTED", listed="PE_HOSTFILE",
        shares_files=True, requeue="--requeue-code 99"),
)
# fmt: on
"""In the order of belief."""
FACTS = ("nodes", "index", "first", "slots", "job", "attempt", "local_rank")
_NUMBERS = ("nodes", "index", "slots", "local_rank")


def detect(variables: Mapping[str, str], host: str = "", files: Mapping[str, str] | None = None) -> Seat:
    """The seat of a process with these variables, on the machine with this full name. `files`: the texts of `FILES`, by variable."""
    env = Variables(variables, host, files or {})
    row = next((row for row in ROWS if env.read(row.sign)), None)
    if row is None:
        return Seat()
    nodes, place = env.nodes(row.listed) if row.listed else ([], None)
    listed = {"nodes": str(len(nodes) or ""), "index": "" if place is None else str(place)}
    listed["first"] = "" if row.shares_files else next(iter(nodes), "")  # with files in common, the nodes meet there
    found: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for fact in FACTS:
        env.names.clear()
        text = env.read(getattr(row, fact))
        if not text and listed.get(fact):
            text, env.names = listed[fact], [row.listed]
        value = number(text) if fact in _NUMBERS else text
        if value or (value == 0 and fact != "slots"):
            found[fact], sources[fact] = value, ", ".join(dict.fromkeys(env.names)) or "the name of this machine"
    return Seat(row.engine, **found, advice=row.advice, shares_files=row.shares_files, requeue=row.requeue, sources=sources)


def stripped(names: Mapping[str, str]) -> list[str]:
    """Return those of these variables that no task may see: they would tell it of another cluster, or of the secret."""
    return [name for name in names if name.startswith(tuple(each for each in _STRIPPED if each.endswith("_"))) or name in _STRIPPED]
