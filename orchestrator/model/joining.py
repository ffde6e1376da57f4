"""Tables of what an engine tells a program that it has started on each of its nodes: a row for each engine. Pure.

`orch up --join` is such a program. The first row whose sign is there counts. A launcher that runs in a job of another engine leaves the
variables of both: so launchers come first, then what programs for several nodes read, and batch systems last.
"""

from __future__ import annotations

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
    sources: Mapping[str, str] = field(default_factory=dict)
    """The variables from which each fact comes."""


class Variables:
    """The environment of a process, with the names of those that were read."""

    def __init__(self, env: Mapping[str, str], host: str, files: Mapping[str, str]) -> None:
        self._env, self.host, self._files = env, host, files
        """`host`: the full name of this machine. `files`: the texts of `FILES`."""
        self.names: list[str] = []

    def text(self, *names: str) -> str:
        """The first of these that is set; empty: none is."""
        found = next((name for name in names if self._env.get(name)), "")
        self.names += [found] if found else []
        return self._env.get(found, "")

    def number(self, *names: str) -> int | None:
        text = self.text(*names)
        return int(text) if re.fullmatch(r"\d{1,9}", text) else None

    def data(self, name: str) -> Any:
        """The value as JSON; an empty mapping if it is none."""
        try:
            return json.loads(self.text(name) or "{}")
        except (ValueError, RecursionError):
            return {}

    def hosts(self, name: str) -> list[str]:
        """The hosts in the file that a variable names: the first word of each line, each host once."""
        self.text(name)
        return [*dict.fromkeys(line.split()[0] for line in self._files.get(name, "").splitlines() if line.strip())]

    def several(self, name: str) -> int | None:
        """A number of processes on this node, if it is more than one: so many tasks the user wants there."""
        return found if (found := self.number(name) or 0) > 1 else None

    def share(self, whole: str, part: str) -> int | None:
        """Count the nodes of `part` processes each, if they are alike."""
        size, each = self.number(whole), self.number(part)
        return size // each if size and each and size % each == 0 else None


FILES = ("PBS_NODEFILE", "PE_HOSTFILE")
"""Variables with the paths of files that the table reads."""
Rule = str | Callable[[Variables], Any]
"""How a fact is read: the names of variables, of which the first one that is set counts, or a function."""


@dataclass(frozen=True, slots=True)
class EngineRow:
    """The signs of an engine, and the places of the facts of a `Seat` there. `requeue`: the way to make the engine start a run again
    that ends with 42."""

    engine: str
    sign: Rule
    nodes: Rule = ""
    index: Rule = ""
    first: Rule = ""
    slots: Rule = ""
    job: Rule = ""
    attempt: Rule = ""
    local_rank: Rule = ""
    advice: Rule = ""
    shares_files: bool = False
    requeue: str = ""


def _tf_tasks(env: Variables) -> list[tuple[str, int, str]]:
    """The tasks of a TF_CONFIG, the first one leading: type, index, address."""
    cluster = data.get("cluster") if isinstance(data := env.data("TF_CONFIG"), dict) else None
    kinds = cluster if isinstance(cluster, dict) else {}
    order = sorted(kinds, key=lambda kind: (kind not in ("chief", "master"), kind != "worker"))
    return [(kind, at, str(where)) for kind in order if isinstance(kinds[kind], list) for at, where in enumerate(kinds[kind])]


def _tf_index(env: Variables) -> int | None:
    task = data.get("task") if isinstance(data := env.data("TF_CONFIG"), dict) else None
    own = (task.get("type"), str(task.get("index"))) if isinstance(task, dict) else ()
    return next((place for place, (kind, at, _) in enumerate(_tf_tasks(env)) if (kind, str(at)) == own), None)


def _pools(env: Variables) -> list[tuple[str, int, str]]:
    """The machines of a CLUSTER_SPEC of Vertex AI."""
    cluster = data.get("cluster") if isinstance(data := env.data("CLUSTER_SPEC"), dict) else None
    pools = cluster if isinstance(cluster, dict) else {}
    return [(pool, at, str(where)) for pool in sorted(pools) if isinstance(pools[pool], list) for at, where in enumerate(pools[pool])]


def _pool_index(env: Variables) -> int | None:
    task = data.get("task") if isinstance(data := env.data("CLUSTER_SPEC"), dict) else None
    own = (task.get("type"), str(task.get("index"))) if isinstance(task, dict) else ()
    return next((place for place, (pool, at, _) in enumerate(_pools(env)) if (pool, str(at)) == own), None)


def _sage_hosts(env: Variables) -> list[str]:
    found = env.data("SM_HOSTS")
    return sorted(map(str, found), key=lambda name: (len(name), name)) if isinstance(found, list) else []


def _place_of(name: str, names: list[str]) -> int | None:
    return names.index(name) if name in names else None


def _words(env: Variables, name: str) -> list[str]:
    return re.split(r"[\s,;]+", env.text(name).strip()) if env.text(name).strip() else []


def _with_port(name: str, port: str) -> Callable[[Variables], str]:
    """``NAME:PORT`` of two variables, or the name alone."""
    return lambda env: ":".join(filter(None, (env.text(name), env.text(port)))) if env.text(name) else ""


def _pod_0(env: Variables) -> str:
    """The name of the pod with the index 0, where each has its index at the end of its own name."""
    pod, dot, domain = env.host.partition(".")
    return f"{pod.rpartition('-')[0]}-0{dot}{domain}" if pod.rpartition("-")[0] and domain else ""


def _pod_job(env: Variables) -> str:
    return env.host.partition(".")[0].rpartition("-")[0]


def _lsf_hosts(env: Variables) -> list[str]:
    return _words(env, "LSB_MCPU_HOSTS")[::2]


def _lsf_index(env: Variables) -> int | None:
    rank = env.number("JSM_NAMESPACE_RANK")
    return rank if rank is not None else _place_of(env.host.partition(".")[0], _lsf_hosts(env))


def _joined(*names: str) -> Rule:
    return lambda env: "-".join(filter(None, map(env.text, names)))


def _slurm_slots(env: Variables) -> int | None:
    """The processes of the step on this node, if there are several; else one task for each GPU."""
    found = re.findall(r"(\d{1,6})(?:\(x(\d{1,6})\))?", env.text("SLURM_STEP_TASKS_PER_NODE"))
    at, here = env.number("SLURM_NODEID") or 0, 1
    for count, times in found:
        here, at = int(count), at - int(times or 1)
        if at < 0:
            break
    return here if here > 1 else env.number("SLURM_GPUS_ON_NODE") or None


_NO_STEP = "this is no step of srun: write srun --ntasks-per-node=1 orch up … --join, or leave --join out: orch takes the allocation"
# fmt: off
ROWS: tuple[EngineRow, ...] = (
    EngineRow("Open MPI", "OMPI_COMM_WORLD_RANK",
        lambda env: env.number("OMPI_MCA_orte_num_nodes") or env.share("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
        "OMPI_COMM_WORLD_RANK", slots=lambda env: env.several("OMPI_COMM_WORLD_LOCAL_SIZE"),
        job="PMIX_NAMESPACE OMPI_MCA_ess_base_jobid", local_rank="OMPI_COMM_WORLD_LOCAL_RANK", shares_files=True),
    EngineRow("Cray PALS", "PALS_APID", lambda env: env.share("PMI_SIZE", "PMI_LOCAL_SIZE"), "PMI_RANK",
        slots=lambda env: env.several("PMI_LOCAL_SIZE"), job="PALS_APID", local_rank="PMI_LOCAL_RANK", shares_files=True),
    EngineRow("MPICH or Intel MPI", lambda env: env.text("PMI_RANK") and env.text("MPI_LOCALNRANKS"),
        lambda env: env.share("PMI_SIZE", "MPI_LOCALNRANKS"), "PMI_RANK", slots=lambda env: env.several("MPI_LOCALNRANKS"),
        job="I_MPI_HYDRA_UUID PBS_JOBID SLURM_JOB_ID LSB_JOBID", local_rank="MPI_LOCALRANKID", shares_files=True),
    EngineRow("Flux", lambda env: env.text("FLUX_JOB_ID") and env.text("FLUX_TASK_RANK"), "FLUX_JOB_NNODES", "FLUX_TASK_RANK",
        job="FLUX_JOB_ID", local_rank="FLUX_TASK_LOCAL_ID", shares_files=True),
    EngineRow("a job for torchrun (PET_*)", lambda env: env.text("PET_NNODES") and env.text("PET_NODE_RANK"), "PET_NNODES", "PET_NODE_RANK",
        lambda env: env.text("PET_RDZV_ENDPOINT") or _with_port("PET_MASTER_ADDR", "PET_MASTER_PORT")(env), "PET_NPROC_PER_NODE",
        lambda env: env.text("PET_RDZV_ID") or _pod_job(env)),
    EngineRow("a job with TF_CONFIG", lambda env: len(_tf_tasks(env)) > 1, lambda env: len(_tf_tasks(env)), _tf_index,
        lambda env: _tf_tasks(env)[0][2], job=lambda env: env.text("CLOUD_ML_JOB_ID") or _tf_tasks(env)[0][2]),
    EngineRow("Vertex AI", "CLUSTER_SPEC", lambda env: len(_pools(env)) or None, _pool_index,
        lambda env: next(iter(_pools(env)), ("", 0, ""))[2], job="CLOUD_ML_JOB_ID"),
    EngineRow("SageMaker", "SM_HOSTS", lambda env: len(_sage_hosts(env)) or None,
        lambda env: _place_of(env.text("SM_CURRENT_HOST"), _sage_hosts(env)), lambda env: next(iter(_sage_hosts(env)), ""),
        lambda env: env.number("SM_NUM_GPUS") or None, "TRAINING_JOB_NAME"),
    EngineRow("AzureML", "AZUREML_RUN_ID", "AZUREML_NODE_COUNT WORLD_SIZE", "AZUREML_CR_NODE_RANK NODE_RANK",
        lambda env: env.text("AZ_BATCHAI_MPI_MASTER_NODE", "MASTER_ADDR") or env.text("AZ_BATCH_MASTER_NODE").partition(":")[0],
        job="AZUREML_RUN_ID"),
    EngineRow("AWS Batch", "AWS_BATCH_JOB_NUM_NODES", "AWS_BATCH_JOB_NUM_NODES", "AWS_BATCH_JOB_NODE_INDEX",
        "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS", job=lambda env: env.text("AWS_BATCH_JOB_ID").partition("#")[0],
        attempt="AWS_BATCH_JOB_ATTEMPT", requeue='retryStrategy: evaluateOnExit with {"onExitCode": "42", "action": "retry"}'),
    EngineRow("SkyPilot", "SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES", "SKYPILOT_NODE_RANK",
        lambda env: next(iter(_words(env, "SKYPILOT_NODE_IPS")), ""), lambda env: env.number("SKYPILOT_NUM_GPUS_PER_NODE") or None,
        "SKYPILOT_TASK_ID", requeue="job_recovery: {recover_on_exit_codes: [42]}"),
    EngineRow("dstack", "DSTACK_NODE_RANK", "DSTACK_NODES_NUM", "DSTACK_NODE_RANK", "DSTACK_MASTER_NODE_IP",
        lambda env: env.number("DSTACK_GPUS_PER_NODE") or None, "DSTACK_RUN_NAME", requeue="retry: {on_events: [error]}, for any code"),
    EngineRow("RunPod", "PRIMARY_ADDR", "NUM_NODES", "NODE_RANK", "PRIMARY_ADDR", "NUM_TRAINERS"),
    EngineRow("Alibaba PAI", lambda env: env.text("MASTER_ADDR") and env.text("NPROC_PER_NODE") and env.text("RANK"),
        *("WORLD_SIZE", "RANK", _with_port("MASTER_ADDR", "MASTER_PORT"), "NPROC_PER_NODE")),
    EngineRow("LeaderWorkerSet", "LWS_WORKER_INDEX", "LWS_GROUP_SIZE", "LWS_WORKER_INDEX", "LWS_LEADER_ADDRESS",
        advice=lambda _: "a LeaderWorkerSet starts its pods again for ever, also after a success: use a Job, a JobSet or a TrainJob"),
    EngineRow("Volcano", lambda env: env.text("VC_TASK_INDEX") and env.text("VC_WORKER_HOSTS"),
        lambda env: len(_words(env, "VC_WORKER_HOSTS")) or None, "VC_TASK_INDEX",
        lambda env: next(iter(_words(env, "VC_WORKER_HOSTS")), ""), job=_pod_job),
    EngineRow("a TPU of several machines", lambda env: len(_words(env, "TPU_WORKER_HOSTNAMES")) > 1,
        lambda env: len(_words(env, "TPU_WORKER_HOSTNAMES")), "TPU_WORKER_ID",
        lambda env: next(iter(_words(env, "TPU_WORKER_HOSTNAMES")), "")),
    EngineRow("an Indexed Job of Kubernetes", "JOB_COMPLETION_INDEX", index="JOB_COMPLETION_INDEX", first=_pod_0, job=_pod_job,
        requeue="podFailurePolicy: onExitCodes {operator: In, values: [42]}, action Ignore"),
    EngineRow("Nomad", "NOMAD_ALLOC_INDEX", "", "NOMAD_ALLOC_INDEX", job=_joined("NOMAD_JOB_ID", "NOMAD_GROUP_NAME")),
    EngineRow("HTCondor", "_CONDOR_PROCNO", "_CONDOR_NPROCS", "_CONDOR_PROCNO", requeue="checkpoint_exit_code = 42"),
    EngineRow("Slurm", lambda env: env.text("SLURM_STEP_ID", "SLURM_STEPID") and env.text("SLURM_PROCID"), "SLURM_STEP_NUM_NODES",
        "SLURM_NODEID", slots=_slurm_slots, job=_joined("SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_STEP_ID"),
        attempt="SLURM_RESTART_COUNT", local_rank="SLURM_LOCALID", shares_files=True, requeue="--requeue-code scontrol"),
    EngineRow("Slurm", "SLURM_JOB_ID", "SLURM_JOB_NUM_NODES", advice=lambda _: _NO_STEP),
    EngineRow("LSF", "LSB_JOBID", lambda env: env.number("JSM_NAMESPACE_SIZE") or len(dict.fromkeys(_lsf_hosts(env))) or None, _lsf_index,
        job=_joined("LSB_JOBID", "LSB_JOBINDEX"), attempt="LSB_RESTART", local_rank="JSM_NAMESPACE_LOCAL_RANK", shares_files=True,
        requeue="bsub -Q 42"),
    EngineRow("PBS", "PBS_JOBID", lambda env: len(env.hosts("PBS_NODEFILE")) or env.number("PBS_NUM_NODES"), "PBS_NODENUM", job="PBS_JOBID",
        shares_files=True),
    EngineRow("Grid Engine", lambda env: env.text("JOB_ID") and env.text("NHOSTS"), "NHOSTS",
        lambda env: _place_of(env.host.partition(".")[0], [name.partition(".")[0] for name in env.hosts("PE_HOSTFILE")]),
        job=_joined("JOB_ID", "SGE_TASK_ID"), attempt="RESTARTED", shares_files=True, requeue="--requeue-code 99"),
)
# fmt: on
"""In the order of belief."""
FACTS = ("nodes", "index", "first", "slots", "job", "attempt", "local_rank")
_NUMBERS = ("nodes", "index", "slots", "local_rank")


def detect(variables: Mapping[str, str], host: str = "", files: Mapping[str, str] | None = None) -> Seat:
    """The seat of a process with these variables, on the machine with this full name. `files`: the texts of `FILES`, by variable."""
    env = Variables(variables, host, files or {})
    row = next((row for row in ROWS if _read(row.sign, env)), None)
    if row is None:
        return Seat()
    found: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for fact in FACTS:
        env.names.clear()
        value = _read(getattr(row, fact), env, is_number=fact in _NUMBERS)
        if value not in (None, ""):
            found[fact], sources[fact] = value, ", ".join(dict.fromkeys(env.names)) or "the name of this machine"
    return Seat(row.engine, **found, advice=_read(row.advice, env), shares_files=row.shares_files, sources=sources)


def _read(rule: Rule, env: Variables, *, is_number: bool = False) -> Any:
    if not isinstance(rule, str):
        return rule(env)
    return (env.number if is_number else env.text)(*rule.split())


def requeue_of(engine: str) -> str:
    """The way to make this engine start a run again that ends with 42; empty: it cannot tell one code from another."""
    return next((row.requeue for row in ROWS if row.engine == engine and row.requeue), "")


def stripped(names: Mapping[str, str]) -> list[str]:
    """Return those of these variables that no task may see: they would tell it of another cluster, or of the secret."""
    return [name for name in names if name.startswith(tuple(each for each in _STRIPPED if each.endswith("_"))) or name in _STRIPPED]
