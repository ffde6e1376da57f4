"""The section `backend:`, where the tasks run. Each backend has a subclass of `BackendSpec` and a row of `BACKENDS`.

``backend:`` accepts the keys of all backends; the value in a spec is of the chosen class.
docs/adding.md explains how to add a backend.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal, TypeAlias

from worker.protocol.task_files import SAVED_CODE
from worker.settings.declare import Setting, setting
from worker.values.fast_dataclass import dataclass
from worker.values.words import count_of

from .derive import make, struct_of
from .host_list import MAX_SLOTS, SETUP, Hosts, HostSpec
from .kinds import ANY_TEXT, Listing, Mapping_, OneOf, Struct, Text
from .pod_section import DNS_LABEL, OF_A_POD, PodSettings
from .tree import Node

Section: TypeAlias = "type[BackendSpec]"
MAX_PODS = 1000
CODE_SECRETS = "Also copy files whose names are those of secrets, such as .env, id_rsa and *.pem; the page on security lists them."


@dataclass(frozen=True, slots=True)
class BackendSpec:
    """The place where the tasks of a spec run."""

    SHORTHAND = "type"
    IMPLIED_BY = ""
    """The key that chooses this backend if there is no `type`."""

    type: str = setting(
        "local",
        "Where the tasks run.",
        kind=lambda: OneOf(tuple(BACKENDS), same=SAME),
        example="ssh",
        words="local; ssh with hosts; slurm inside an allocation of Slurm; join with --join",
        flag="--backend",
    )

    INSIDE = ""
    """The variable that an engine sets inside of an allocation. Started there, orch uses the allocation unless the spec says otherwise."""
    IS_EVERYWHERE = False
    """Whether the same command runs on each host: an engine tells it there of the others, and sends a signal to all of them."""
    HAS_PRIVATE_NETWORK = False
    """Whether the tasks can have a network that nothing outside reaches."""

    @property
    def named_slots(self) -> Mapping[str, int | None]:
        """The hosts in the spec, each with its slots; empty if only the backend knows its hosts."""
        return {}

    def room_for(self, gpus: int) -> int:
        """Return how many tasks the named hosts take together, if each task wants so many GPUs."""
        return sum(number or 1 for number in self.named_slots.values())

    @property
    def copies_workdir(self) -> bool:
        """True if orch copies the working directory, so that its path on the hosts differs."""
        return False

    @property
    def requeues(self) -> bool:
        """True if an engine starts the run again that ends because its allocation does."""
        return False

    @property
    def mark(self) -> str:
        """Eight characters that stand for the job of an engine: when it starts again, its run goes on. Empty: each start is a new run."""
        return ""

    def exit_code(self, code: int) -> int:
        """The exit code of orch for that of its run."""
        return code

    def detached(self) -> BackendSpec:
        """The section for a run that no one looks at (`orch up -d`)."""
        return self

    def attached(self) -> BackendSpec:
        """The section for a controller that is a process of this machine, if its place can have one."""
        return self

    def complaint(self) -> tuple[str, str] | None:
        """Return what is wrong between the keys, and what to do; None: nothing."""
        return None

    @staticmethod
    def class_of(data: Mapping[str, Any]) -> Section:
        """The class of a value's plain data (see worker/values/codec.py)."""
        return BACKENDS.get(str(data.get("type", "local")), BackendSpec)


@dataclass(frozen=True, slots=True)
class LocalSettings(BackendSpec):
    HAS_PRIVATE_NETWORK = True

    @property
    def named_slots(self) -> Mapping[str, int | None]:
        return {"": None}


@dataclass(frozen=True, slots=True)
class SshSettings(BackendSpec):
    IMPLIED_BY = "hosts"

    hosts: tuple[HostSpec, ...] = setting(
        (),
        "The hosts for ssh, each with its number of slots (tasks), or with settings of its own.",
        kind=Hosts(HostSpec),
        example="[hostA:2, hostB:2]",
        flag="-H --hosts",
        metavar="HOST:N,…",
    )
    code: Literal["shared", "ship", "unchecked"] = setting(
        "shared",
        "How hosts get the working directory. shared: each host has the directory, and orch compares the program and the commit; ship: "
        "orch copies the directory, without files that git ignores; unchecked: as shared, and orch compares nothing.",
    )
    code_limit_mb: float = setting(100.0, "The largest directory that orch copies, in megabytes.", most=1_000_000)
    code_secrets: bool = setting(False, CODE_SECRETS, example="true")
    setup: tuple[str, ...] = setting(
        (), "Lines that each host's shell (bash) runs before Python starts.", kind=SETUP, example='["module load cuda"]'
    )
    ssh: tuple[str, ...] = setting(
        ("ssh",), "The ssh program and its options.", kind=Listing(Text()), example='["ssh", "-F", "cluster.conf"]'
    )
    lost_after_s: float = setting(20.0, "Seconds without a message after which a host counts as lost and its tasks end.", most=1_000_000)

    @property
    def named_slots(self) -> Mapping[str, int | None]:
        return {host.name: host.slots for host in self.hosts}

    @property
    def copies_workdir(self) -> bool:
        return self.code == "ship"

    def complaint(self) -> tuple[str, str] | None:
        return None if self.hosts else ("backend ssh has no hosts", "name them: -H hostA:2,hostB:2, or backend: {hosts: ...}")


_WORD = Text(r"[^\s#]+", "must be one word")
_JOB_TIME = Text(
    r"[0-9]+(:[0-9]{2}){0,2}|[0-9]+-[0-9]+(:[0-9]{2}){0,2}|(?i:unlimited|infinite)|(?=[0-9])([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?",
    "must be a time as for sbatch (2:00:00, or minutes), or one with units such as 2h30m",
)
_OURS = {
    **dict.fromkeys(("output", "error", "input", "open-mode"), "is set by orch: the output of a run is in its directory"),
    **dict.fromkeys(("chdir", "wrap", "parsable", "test-only"), "is set by orch"),
    "job-name": "is the name of the run: write name:",
    "array": "makes several jobs, and a run is one job: start one run for each",
    "requeue": "is a key of its own: write backend.requeue",
    "no-requeue": "is a key of its own: write backend.requeue",
}
"""Options of sbatch that a spec cannot have, and why."""


def _option_complaint(name: str) -> str:
    if not re.fullmatch("[a-z][a-z0-9-]+", name):
        return "must be the long name of an option of sbatch, without dashes in front, such as mail-type"
    if name.replace("-", "_") in struct_of(SlurmSettings).keys:
        return f"is a key of its own: write backend.{name.replace('-', '_')}"
    return _OURS.get(name, "")


@dataclass(frozen=True, slots=True)
class NodeSpec:
    SHORTHAND = "slots"

    name: str
    slots: int | None = setting(None, "The number of tasks that the node takes.", example="2", words="unknown", least=1, most=MAX_SLOTS)
    gpus: str = setting(
        "", "The option of srun that asks for the GPUs of the node.", kind=_WORD, example="gres=gpu:2", words="none: the step has them all"
    )
    slots_are_gpus: bool = setting(False, "The slots are the GPUs of the node; a task may want several.")


@dataclass(frozen=True, slots=True)
class SlurmSettings(BackendSpec):
    """The nodes that Slurm lends: those of the allocation in which orch was started, or of a job that orch submits."""

    INSIDE = "SLURM_JOB_ID"

    nodes: int | None = setting(None, "The number of nodes.", example="3", words="Slurm's default", flag="--nodes", least=1, most=MAX_SLOTS)
    ntasks: int | None = setting(
        None, "The number of task slots on all nodes together.", example="6", words="none", least=1, most=MAX_SLOTS
    )
    ntasks_per_node: int | None = setting(
        None, "The number of task slots on each node.", example="2", words="none", least=1, most=MAX_SLOTS
    )
    cpus_per_task: int | None = setting(None, "CPUs for each task slot.", example="8", words="Slurm's default", least=1, most=MAX_SLOTS)
    gpus_per_node: str = setting(
        "", "GPUs on each node, such as 4 or h200:4.", kind=Text(r"([^\s:,]+:)?[0-9]+", "must be 4, or h200:4"), example="4", words="none"
    )
    gres: str = setting("", "Generic resources on each node, as for sbatch.", kind=_WORD, example="gpu:4", words="none")
    mem: str = setting("", "Memory on each node, as for sbatch.", kind=_WORD, example="64G", words="Slurm's default")
    time: str = setting(
        "",
        "The time limit of the job: as for sbatch, or 2h30m. A number alone is minutes, as for sbatch.",
        kind=_JOB_TIME,
        example="'4:00:00'",
        words="the partition's",
        flag="--time",
        metavar="TIME",
    )
    partition: str = setting("", "The partition.", kind=_WORD, example="gpu", words="Slurm's default")
    account: str = setting(
        "", "The account that pays.", kind=_WORD, example="ml", words="Slurm's default", flag="--account", metavar="NAME"
    )
    qos: str = setting("", "The quality of service.", kind=_WORD, example="normal", words="Slurm's default")
    constraint: str = setting("", "Features that the nodes must have.", kind=_WORD, example="ib", words="none")
    options: Mapping[str, str] = setting(
        {},
        "Any other options of sbatch, by their long names; true stands for an option without a value.",
        kind=Mapping_(ANY_TEXT, _option_complaint),
        example="{exclusive: true, mail-type: END}",
    )
    setup: tuple[str, ...] = setting(
        (), "Lines that each host's shell (bash) runs before Python starts.", kind=SETUP, example='["module load cuda"]'
    )
    lost_after_s: float = setting(20.0, "Seconds without a message after which a host counts as lost and its tasks end.", most=1_000_000)
    requeue: Literal["no", "preempted", "always"] = setting(
        "preempted",
        "When Slurm queues the job again, which then continues in its run directory. preempted: after a preemption or the loss of a node; "
        "always: also when the time limit has ended it; no: never.",
    )
    job: str = setting("", "The job in whose allocation orch was started.", is_own=True, kind=_WORD, example="'4711'", words="none")
    allocation: tuple[NodeSpec, ...] = setting((), "The nodes of that allocation.", is_own=True, example="{n1: 2, n2: 2}", words="none")

    @property
    def nodes_to_use(self) -> tuple[NodeSpec, ...]:
        """The nodes of the allocation, or those that are asked for. What an allocation leaves open, the other keys decide."""
        if not self.allocation:
            are_gpus = self.ntasks is None and self.ntasks_per_node is None
            slots = enumerate(self._slots(self._node_count()))
            return tuple(NodeSpec(f"node-{number}", count, slots_are_gpus=are_gpus) for number, count in slots)
        used = self.allocation[: min(self.nodes or MAX_SLOTS, self.ntasks or MAX_SLOTS)]
        return tuple(replace(node, slots=node.slots or slots) for node, slots in zip(used, self._slots(len(used)), strict=True))

    @property
    def named_slots(self) -> Mapping[str, int | None]:
        return {node.name: node.slots for node in self.nodes_to_use}

    def room_for(self, gpus: int) -> int:
        return sum(max(1, (node.slots or 1) // (gpus if node.slots_are_gpus else 1)) for node in self.nodes_to_use)

    @property
    def requeues(self) -> bool:
        return self.requeue == "always" and not self.allocation

    def _node_count(self) -> int:
        per_node = self.ntasks_per_node
        return self.nodes or (-(-self.ntasks // per_node) if self.ntasks and per_node else 1)

    def _slots(self, nodes: int) -> tuple[int | None, ...]:
        """The slots of each node; None: the options do not say how many tasks a node takes."""
        per_node = self.ntasks_per_node
        if per_node is None and self.ntasks is not None:
            return tuple(self.ntasks // nodes + (place < self.ntasks % nodes) for place in range(nodes))
        return (per_node or count_gpus(self.gpus_per_node, self.gres) or None,) * nodes

    def complaint(self) -> tuple[str, str] | None:
        if bool(self.job) != bool(self.allocation):
            return "job and allocation describe an allocation together, and orch sets both", "leave them out"
        if self.ntasks is not None and self.nodes is not None and self.ntasks < self.nodes:
            return f"ntasks: {self.ntasks} is less than nodes: {self.nodes}", "ask for fewer nodes"
        if self.allocation and self.nodes is not None and self.nodes > len(self.allocation):
            has = f"Slurm's job {self.job} has {count_of(len(self.allocation), 'node')}, and nodes is {self.nodes}"
            return has, "leave nodes out, or ask for a larger allocation"
        return None


def count_gpus(per_node: str, gres: str) -> int:
    """The GPUs of a node, from the options ``gpus-per-node`` and ``gres`` of Slurm: ``4``, ``h200:4``, ``gpu:h200:4,license:1``."""
    found = [per_node] if per_node else [word for word in gres.split(",") if re.match(r"gpu(:|$)", word)]
    counts = (re.search(r"(?:^|:)([0-9]+)(?:\(.*\))?$", word) for word in found)
    return sum(int(match[1]) if match else 1 for match in counts)


@dataclass(frozen=True, slots=True)
class KubernetesSettings(BackendSpec):
    """Pods of a Kubernetes, which orch makes for a run and deletes at its end."""

    pods: int | None = setting(
        None, "The number of pods. All are alike.", example="2", words="as many as the tasks need", flag="--pods", least=1, most=MAX_PODS
    )
    tasks_per_pod: int = setting(1, "The number of tasks in each pod.", least=1, most=MAX_SLOTS)
    pod: PodSettings = setting(PodSettings(), "", inline=PodSettings)
    namespace: str = setting("", "The namespace.", kind=DNS_LABEL, example="ml", words="the context's", flag="--namespace", metavar="NAME")
    context: str = setting("", "The context of the kubeconfig.", example="lab", words="the current one", flag="--context", metavar="NAME")
    kubeconfig: str = setting("", "The file by which kubectl reaches the cluster.", example="lab.kubeconfig", words="kubectl's own rules")
    kubectl: tuple[str, ...] = setting(
        ("kubectl",), "The kubectl program and its options.", kind=Listing(Text()), example='["kubectl", "--as", "me"]'
    )
    deadline_s: float = setting(
        7 * 86400.0,
        "Seconds after which Kubernetes ends the pods, whatever happens. With timeouts.run_s, they end soon after that time.",
        example="2d",
        most=1_000_000_000,
    )
    code_in_image: bool = setting(
        False, "The image has the working directory, at the path of workdir, and orch copies nothing.", example="true"
    )
    code_limit_mb: float = setting(100.0, "The largest directory that orch copies, in megabytes.", most=1_000_000)
    code_secrets: bool = setting(False, CODE_SECRETS, example="true")
    lost_after_s: float = setting(20.0, "Seconds without a message after which a host counts as lost and its tasks end.", most=1_000_000)
    controller: str = setting(
        "auto",
        "Where the controller of a run is. here: a process of this machine, which reaches the pods by kubectl exec. cluster: a pod, so "
        "that this machine is not needed once the run is submitted. auto: cluster with -d, else here.",
        kind=OneOf(("auto", "here", "cluster")),
    )
    keep_s: float = setting(
        3 * 86400.0,
        "Seconds for which a controller's pod keeps the record of a run that has ended, until a command of orch fetches it.",
        example="1h",
        most=1_000_000_000,
    )

    @property
    def is_unattended(self) -> bool:
        """True if the controller is in the cluster."""
        return self.controller == "cluster"

    def detached(self) -> KubernetesSettings:
        return replace(self, controller="cluster") if self.controller == "auto" else self

    def attached(self) -> KubernetesSettings:
        return replace(self, controller="here")

    @property
    def named_slots(self) -> Mapping[str, int | None]:
        return {f"pod-{number}": self.tasks_per_pod for number in range(self.pods or 0)}

    @property
    def copies_workdir(self) -> bool:
        return not self.code_in_image

    def pods_for(self, tasks: int) -> int:
        """Return how many pods a run with so many tasks gets."""
        return self.pods or -(-tasks // self.tasks_per_pod)

    def complaint(self) -> tuple[str, str] | None:
        if not self.pod.image:
            return "a pod needs an image", "name one with Python and TensorFlow: --image NAME, or backend: {image: NAME}"
        return None


@dataclass(frozen=True, slots=True)
class JoinSettings(BackendSpec):
    """The nodes on which an engine, or a person, starts the same command: node 0 takes the controller, the others dial in."""

    IMPLIED_BY = "join"
    IS_EVERYWHERE = True

    join: bool = setting(
        False,
        "This same command runs on each node: node 0 controls the run, and the others join it.",
        example="true",
        words="no",
        flag="--join",
    )
    nodes: int | None = setting(None, "The number of nodes.", example="3", words="the engine's", flag="--nodes", least=1, most=MAX_SLOTS)
    node_index: int | None = setting(
        None, "Which of the nodes this is. 0 takes the controller.", example="0", words="the engine's", flag="--node-index", most=MAX_SLOTS
    )
    join_at: str = setting(
        "",
        "Where the others reach node 0, if they share no file and no engine passes it on: NAME, or NAME:PORT.",
        kind=Text(r"([\w.-]+|\[[0-9a-fA-F:.]+\])(:[0-9]{1,5})?", "must be NAME or NAME:PORT"),
        example="n1:7468",
        words="what node 0 publishes",
        flag="--join-at",
        metavar="HOST:PORT",
    )
    join_dir: str = setting(
        "",
        "A directory that all nodes see: node 0 writes there how it is reached.",
        example="/shared/me",
        words="that of the runs",
        flag="--join-dir",
        metavar="DIR",
    )
    requeue_code: str = setting(
        "",
        "The exit code in place of 42 (saved, start me again), if the engine starts again what ends with another one; scontrol: orch tells "
        "Slurm to queue the job again.",
        kind=Text("[0-9]{1,3}|scontrol", "must be a number, or scontrol"),
        example="99",
        words="42",
        flag="--requeue-code",
        metavar="CODE",
    )
    wait_s: float = setting(900.0, "Seconds for which the nodes wait for each other.", example="30m", most=1_000_000)
    slots: int | None = setting(
        None, "The number of tasks that each node takes.", example="8", words="the engine's processes or GPUs", least=1, most=MAX_SLOTS
    )
    job: str = setting("", "The job in whose allocation orch was started.", is_own=True, kind=_WORD, example="'4711'", words="none")
    lost_after_s: float = setting(20.0, "Seconds without a message after which a host counts as lost and its tasks end.", most=1_000_000)

    @property
    def mark(self) -> str:
        import hashlib  # most runs have no job

        return hashlib.sha256(self.job.encode()).hexdigest()[:8] if self.job else ""

    @property
    def requeues(self) -> bool:
        return bool(self.requeue_code)

    @property
    def named_slots(self) -> Mapping[str, int | None]:
        return {f"node-{number}": self.slots for number in range(self.nodes or 0)}

    def exit_code(self, code: int) -> int:
        return int(self.requeue_code) if code == SAVED_CODE and self.requeue_code.isdecimal() else code


BACKENDS: dict[str, Section] = {
    "local": LocalSettings,
    "ssh": SshSettings,
    "slurm": SlurmSettings,
    "kubernetes": KubernetesSettings,
    "join": JoinSettings,
}
"""The section of each backend, by name. The first is the default."""
SAME: dict[str, str] = {
    **dict.fromkeys(("k8s", "kube", "kubectl", "gke", "eks"), "kubernetes"),
    **dict.fromkeys(("localhost", "here", "none"), "local"),
    **dict.fromkeys(("sbatch", "srun"), "slurm"),
}


def read(given: Mapping[str, Any]) -> BackendSpec:
    """The value of `backend:` from its checked keys."""
    implied = (name for name, section in BACKENDS.items() if given.get(section.IMPLIED_BY, False) is not False)
    name = given.get("type") or next(implied, next(iter(BACKENDS)))
    return make(BACKENDS[name], given, type=name)


def misplaced(name: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The keys that backend `name` does not have; each with the backends that have the key."""
    if name not in BACKENDS:
        return
    for key in keys_of_all().keys:
        if key not in struct_of(BACKENDS[name]).keys:
            yield key, tuple(other for other, section in BACKENDS.items() if key in struct_of(section).keys)


class AnyBackend(Struct):
    """The mapping of any backend. Of an unknown key, a message names the keys of the backend that the document has chosen."""

    __slots__ = ()

    def offered(self, node: Node) -> Mapping[str, Setting]:
        given = node.value if isinstance(node.value, dict) else {}
        chosen = BACKENDS.get(given["type"].text) if "type" in given else None
        return struct_of(chosen).keys if chosen else self.keys


def keys_of_all() -> Struct:
    """The type of the mapping `backend:`, with the keys of all backends."""
    keys = {name: key for section in BACKENDS.values() for name, key in struct_of(section).keys.items()}
    return AnyBackend(keys, BackendSpec.SHORTHAND, {**OF_A_POD, "python": "--python PATH, or python: PATH at the top of orch.yaml"})
