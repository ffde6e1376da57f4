"""What orch knows of each strategy of `tf.distribute`: one row for a strategy, with one role for each type of its tasks. Pure.

No other module compares the names of strategies or lists them: it asks a row. What TensorFlow is told of a strategy, inside a task, is in
the table of worker/task/strategy/strategy_builder.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from typing import Any

from worker.fast_dataclass import dataclass
from worker.protocol.messages import DATA_SERVICE, PREPARE, TaskSettings

TRAINING = "training"
"""The cluster of the tasks that train."""
EVALUATION = "evaluation"
"""The same cluster with the evaluator in it, for the evaluator alone."""

Counts = Mapping[str, int]
"""How many tasks there are of each type; a type that was set to 0 is there."""
Complaint = tuple[str, str, str]
"""The path of the key that is to blame, what is wrong, what to do."""


@dataclass(frozen=True, slots=True)
class Role:
    """What the tasks of one type are under a strategy."""

    count: int = 0
    """How many there are if the spec says nothing."""
    cluster: str | None = TRAINING
    """The cluster that such a task is told in its TF_CONFIG; None: it gets no TF_CONFIG."""
    decides: bool = False
    """The run has succeeded when all tasks that decide have exited with code 0."""
    serves: bool = False
    """The task is a server that runs until the training is done. If it ends before that, even with code 0, it has failed."""
    restarts_alone: bool = False
    """A failed task can be started again while the others go on."""
    uses_gpus: bool = True
    """The task computes on GPUs, so it gets its share of them. To others a GPU would only be locked away."""
    synchronous: bool = False
    """The task trains in step with all others of which this is said: each needs as many GPUs, and they wait for each other."""


EVALUATOR = Role(cluster=EVALUATION, restarts_alone=True)
DATA_SERVER = Role(cluster=None, serves=True, restarts_alone=True, uses_gpus=False)
"""A server of the tf.data service, beside any strategy.

A task that reads from a server that does not answer asks again until the server does (`grpc_util::Retry` without a deadline in
tensorflow/core/data/service/client/data_service_client.cc): so the server may be started again alone.
"""

_STRANGER = Role(cluster=None, uses_gpus=False)


@dataclass(frozen=True, slots=True)
class Strategy:
    """One strategy: everything in which it differs from the others."""

    name: str
    summary: str
    roles: Mapping[str, Role]
    """Its types of tasks. A type that is missing here cannot be had; the servers of the tf.data service go with every strategy."""
    one_process: bool = False
    """It takes exactly one task, and has no cluster."""
    opens_ports: bool = True
    """TensorFlow listens on a port in each of its tasks: such a task is up when its port is open."""
    implied_by: str = ""
    """The type of tasks, or the section of the spec, that means this strategy where the spec names none."""
    one_process_because: str = ""
    """Why several tasks are no use under a strategy of one process, if there is more to say than that."""
    imports_ahead: bool = True
    """TensorFlow may be imported before the task is there to be forked. No: its import depends on what the task finds on its host."""
    sections: tuple[str, ...] = ()
    """The keys of the spec that are for this strategy."""
    rules: tuple[Callable[[Counts], Complaint | None], ...] = ()
    """What else must hold of the counts of its tasks."""
    drives_all_hosts: bool = False
    """One program feeds the replicas of all hosts of a TPU."""
    shares_input: bool = True
    """TensorFlow shares a dataset out among its workers, by a policy."""
    no_fit_under: str = ""
    """Its class in tf.distribute, if `Model.fit` of Keras 3 cannot work under it."""
    no_sharding: str = ""
    """Why TensorFlow does not share a dataset out among its workers, if it does not: a sentence."""
    replicates_on_cpus: bool = False
    """Where there is no GPU, each logical CPU device has a replica (`devices: {cpus: 4}`), and not the first alone."""
    fewest_inter_op_threads: Callable[[Counts], int | None] = field(default=lambda counts: None)
    """How many inter-op threads each task needs at least; None: as many as TensorFlow itself makes."""

    def role(self, task_type: str) -> Role:
        """What the tasks of a type are under this strategy; of a type that it does not have, as little as possible."""
        return DATA_SERVER if task_type in DATA_SERVICE else self.roles.get(task_type, _STRANGER)

    def opens_port(self, task_type: str) -> bool:
        """Whether TensorFlow listens in the tasks of a type."""
        return task_type in DATA_SERVICE or (self.opens_ports and task_type != PREPARE)

    @property
    def sections_inside(self) -> set[str]:
        """Those of its sections that are put into effect inside the tasks, which train and are Python programs."""
        return set(self.sections) & TaskSettings.__dataclass_fields__.keys()

    @property
    def default_counts(self) -> dict[str, int]:
        """How many chiefs and workers there are if the spec says nothing: 0 or more."""
        return {kind: self.roles[kind].count if kind in self.roles else 0 for kind in ("chief", "worker")}

    def complaints(self, counts: Counts) -> Iterator[Complaint]:
        """What is wrong with the counts of the tasks."""
        training = {kind: count for kind, count in counts.items() if kind not in DATA_SERVICE}
        strangers = [kind for kind, count in training.items() if count and kind not in self.roles]
        if self.one_process and not strangers and sum(training.values()) != 1:
            rest = self.one_process_because or f"for several use {DEFAULT.name}"
            yield "tasks", f"strategy {self.name} runs in one process: it takes 1 task; {rest}", ""
        for kind in strangers:
            yield f"tasks.{kind}.count", f"tasks.{kind}: {kind} tasks are for strategy {with_tasks(kind)}, not {self.name}", ""
        for rule in self.rules:
            if complaint := rule(counts):
                yield complaint

    def refuses(self, section: str) -> Complaint | None:
        """What is wrong with a key of the spec that is for other strategies only."""
        theirs = with_section(section)
        if not theirs or section in self.sections:
            return None
        return section, f"{section}: is for strategy {theirs}, not {self.name}", ""


# --- rules of one strategy -----------------------------------------------------------------------


def _has_servers(counts: Counts) -> Complaint | None:
    if counts.get("ps"):
        return None
    path = "tasks.ps.count" if "ps" in counts else "strategy"
    return path, "strategy parameter_server needs at least 1 ps task", "write tasks: {ps: 1}"


def _has_a_chief(counts: Counts) -> Complaint | None:
    if counts["chief"]:
        return None
    message = "tasks.chief: must be 1 under strategy parameter_server, whose chief leads the others"
    return "tasks.chief.count", message, "leave it out: 1 is the default"


# --- the rows ------------------------------------------------------------------------------------


def _in_one_process(name: str, summary: str, *, uses_gpus: bool = True, **more: Any) -> Strategy:
    role = Role(count=1, cluster=None, decides=True, uses_gpus=uses_gpus)
    return Strategy(name, summary, {"worker": role}, one_process=True, opens_ports=False, **more)


DEFAULT = Strategy(
    name="multi_worker_mirrored",
    summary="every worker has a copy of the model, and all train in step: tf.distribute.MultiWorkerMirroredStrategy",
    roles={
        "chief": Role(decides=True, synchronous=True),
        "worker": Role(count=1, decides=True, synchronous=True),
        "evaluator": EVALUATOR,
    },
    sections=("collectives",),
)

STRATEGIES: dict[str, Strategy] = {
    row.name: row
    for row in (
        DEFAULT,
        Strategy(
            name="parameter_server",
            summary="the chief hands steps to workers, which share variables on servers: tf.distribute.ParameterServerStrategy",
            roles={
                "chief": Role(count=1, decides=True, uses_gpus=False),
                "worker": Role(count=1, serves=True, restarts_alone=True),
                "ps": Role(serves=True, uses_gpus=False),
                "evaluator": EVALUATOR,
            },
            implied_by="ps",
            sections=("serve",),
            rules=(_has_servers, _has_a_chief),
            shares_input=False,
            no_fit_under="ParameterServerStrategy",
            no_sharding="ParameterServerStrategy has no auto-sharding: every worker is given the whole dataset, whatever auto_shard says",
            # TensorFlow's guide to ParameterServerStrategy asks for more threads than there are workers ("Workers need some inter_ops
            # threads to work properly"). Four: with two, steps that read a dataset on a worker were seen to stall for up to a minute.
            fewest_inter_op_threads=lambda counts: max(4, counts.get("worker", 0) + 1),
        ),
        _in_one_process(
            "mirrored", "one task with a copy of the model on each of its devices: tf.distribute.MirroredStrategy", replicates_on_cpus=True
        ),
        _in_one_process("one_device", "one task on one device: tf.distribute.OneDeviceStrategy"),
        _in_one_process(
            "tpu",
            "one task that trains on all hosts of a TPU: tf.distribute.TPUStrategy",
            uses_gpus=False,
            implied_by="tpu",
            sections=("tpu",),
            drives_all_hosts=True,
            one_process_because="TensorFlow drives all hosts of a TPU from one process",
            imports_ahead=False,
        ),
        _in_one_process("none", "one task, whose script does what it likes"),
    )
}
"""Every strategy by its name, in the order in which they are listed to users."""


def named(name: str) -> Strategy:
    """The strategy of this name. Raises KeyError if there is none."""
    return STRATEGIES[name]


def implied(counts: Counts) -> Strategy:
    """The strategy of a spec that names none, by the counts that it gives; a section of the spec that it has counts as 1."""
    return next((row for row in STRATEGIES.values() if counts.get(row.implied_by)), DEFAULT)


def with_tasks(task_type: str) -> str:
    """The names of the strategies that have tasks of a type, in words."""
    return which(lambda row: task_type in row.roles)


def with_section(section: str) -> str:
    """The names of the strategies that a key of the spec is for, in words; empty: it is for all."""
    return which(lambda row: section in row.sections)


def which(holds: Callable[[Strategy], bool]) -> str:
    """The names of the strategies of which something holds, in words: ``mirrored, one_device or none``."""
    names = [row.name for row in STRATEGIES.values() if holds(row)]
    return " or ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))
