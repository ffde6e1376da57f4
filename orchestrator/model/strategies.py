"""The table of strategies of `tf.distribute`: one row for each strategy, with a role for each type of its tasks. Pure.

Other modules read a row and never compare or list the names of strategies. The table in worker/task/strategy/strategy_builder.py creates
the strategy in a task.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from typing import Any

from worker.protocol.task_id import DATA_SERVICE, PREPARE, TASK_TYPES, TaskId
from worker.settings.task_settings import TaskSettings
from worker.values.fast_dataclass import dataclass

TRAINING = "training"
EVALUATION = "evaluation"
"""The same cluster with the evaluator in it, for the evaluator alone."""

Counts = Mapping[str, int]
"""The number of tasks of each type; 0 is possible."""
Complaint = tuple[str, str, str]
"""The path of the wrong key, what is wrong, what to do."""


@dataclass(frozen=True, slots=True)
class Role:
    """The tasks of one type under a strategy."""

    count: int = 0
    required: bool = False
    """There must be at least one task of this type."""
    cluster: str | None = TRAINING
    """The cluster in the task's TF_CONFIG; None: the task gets no TF_CONFIG."""
    decides: bool = False
    """The run succeeds when all tasks that decide have exited with code 0."""
    serves: bool = False
    """The task is a server until the training is done. A server that ends before has failed, even with code 0."""
    restarts_alone: bool = False
    """A failed task can restart while the others continue."""
    uses_gpus: bool = True
    """The task computes on GPUs, so it gets a share of them."""
    synchronous: bool = False
    """The task trains in step with all other synchronous tasks: these need the same number of GPUs and wait for each other."""


EVALUATOR = Role(cluster=EVALUATION, restarts_alone=True)
DATA_SERVER = Role(cluster=None, serves=True, restarts_alone=True, uses_gpus=False)
"""A server of the tf.data service, with any strategy.

A reader repeats a request until the server answers (`grpc_util::Retry` without a deadline in
tensorflow/core/data/service/client/data_service_client.cc), so the server can restart alone.
"""

_STRANGER = Role(cluster=None, uses_gpus=False)


@dataclass(frozen=True, slots=True)
class Strategy:
    name: str
    summary: str
    roles: Mapping[str, Role]
    """The possible types of tasks. Servers of the tf.data service are possible with every strategy."""
    one_process: bool = False
    """The strategy has exactly one task and no cluster."""
    opens_ports: bool = True
    """TensorFlow listens on a port in each task: the task is up when its port is open."""
    implied_by: str = ""
    """A type of tasks, or a section, that selects this strategy if the spec names none."""
    imports_ahead: bool = True
    """A template may import TensorFlow before the task starts. False if the import depends on the state of the host at the start."""
    sections: tuple[str, ...] = ()
    drives_all_hosts: bool = False
    """One program feeds the replicas of all hosts of a TPU."""
    no_fit_under: str = ""
    """The class in tf.distribute, if `Model.fit` of Keras 3 does not work under this strategy."""
    mends_fit: bool = False
    """Several replicas may train in step under this strategy, with Keras's `fit` as orch changes it."""
    no_sharding: str = ""
    """Why TensorFlow does not divide a dataset among the workers, if it does not: a sentence."""
    replicates_on_cpus: bool = False
    """Without GPUs each logical CPU device has a replica (`devices: {cpus: 4}`), not only the first."""
    fewest_inter_op_threads: Callable[[Counts], int | None] = field(default=lambda counts: None)
    """The fewest inter-op threads of each task; None: TensorFlow's own number."""

    def role(self, task_type: str) -> Role:
        """The role of a type of tasks; for a type that this strategy does not have, a role without any duty."""
        return DATA_SERVER if task_type in DATA_SERVICE else self.roles.get(task_type, _STRANGER)

    def opens_port(self, task_type: str) -> bool:
        """True if TensorFlow listens on a port in tasks of this type."""
        return task_type in DATA_SERVICE or (self.opens_ports and task_type != PREPARE)

    @property
    def sections_inside(self) -> set[str]:
        """The sections that the bootstrap applies in Python tasks that train."""
        return set(self.sections) & TaskSettings.__dataclass_fields__.keys()

    @property
    def default_counts(self) -> dict[str, int]:
        """The default numbers of chiefs and workers."""
        return {kind: self.roles[kind].count if kind in self.roles else 0 for kind in ("chief", "worker")}

    def clusters(self, addresses: Mapping[TaskId, str]) -> dict[str, str]:
        """The clusters of ``TF_CONFIG`` by name, each as JSON text: ``{"worker": ["host:port", …], …}``.

        Tested with TensorFlow 2.21: an evaluator must be in the cluster of its own TF_CONFIG (else ``KeyError: 'evaluator'`` from
        multi_worker_util.py), but not in the cluster of any other task (under ParameterServerStrategy the chief then never comes up;
        tensorflow#46169).
        """
        members: dict[str | None, dict[str, list[str]]] = {}
        for task in sorted(addresses, key=lambda task: (TASK_TYPES.index(task.type), task.index)):
            members.setdefault(self.role(task.type).cluster, {}).setdefault(task.type, []).append(addresses[task])
        training = members.get(TRAINING, {})
        found = {TRAINING: training, EVALUATION: {**training, **members.get(EVALUATION, {})}}
        return {name: json.dumps(cluster) for name, cluster in found.items() if name in members}

    def complaints(self, counts: Counts) -> Iterator[Complaint]:
        """The mistakes in the numbers of tasks."""
        training = {kind: count for kind, count in counts.items() if kind not in DATA_SERVICE}
        strangers = [kind for kind, count in training.items() if count and kind not in self.roles]
        if self.one_process and not strangers and sum(training.values()) != 1:
            rest = "write 1: TensorFlow drives all hosts of a TPU from it" if self.drives_all_hosts else f"for several use {DEFAULT.name}"
            yield "tasks", f"strategy {self.name} runs in one process: it takes 1 task", rest
        for kind in strangers:
            what = f"{kind} tasks are for strategy {with_tasks(kind)}, not {self.name}"
            yield f"tasks.{kind}.count", what, f"leave out the strategy, or {kind}"
        for kind in (kind for kind, role in self.roles.items() if role.required and not counts.get(kind)):
            path = f"tasks.{kind}.count" if kind in counts else "strategy"
            yield path, f"strategy {self.name} needs at least 1 {kind} task", f"write tasks: {{{kind}: 1}}"

    def refuses(self, section: str) -> Complaint | None:
        """The complaint about a section that is for other strategies only."""
        theirs = with_section(section)
        if not theirs or section in self.sections:
            return None
        return section, f"{section}: is for strategy {theirs}, not {self.name}", ""


# --- the rows ------------------------------------------------------------------------------------


def _in_one_process(name: str, summary: str, *, uses_gpus: bool = True, **more: Any) -> Strategy:
    role = Role(count=1, cluster=None, decides=True, uses_gpus=uses_gpus)
    return Strategy(name, summary, {"worker": role}, one_process=True, opens_ports=False, **more)


DEFAULT = Strategy(
    name="multi_worker_mirrored",
    summary="every worker has a copy of the model, and all train in step: tf.distribute.MultiWorkerMirroredStrategy",
    roles={"chief": Role(decides=True, synchronous=True), "worker": Role(count=1, decides=True, synchronous=True), "evaluator": EVALUATOR},
    sections=("collectives",),
    mends_fit=True,
)

STRATEGIES: dict[str, Strategy] = {
    row.name: row
    for row in (
        DEFAULT,
        Strategy(
            name="parameter_server",
            summary="the chief hands steps to workers, which share variables on servers: tf.distribute.ParameterServerStrategy",
            roles={
                "chief": Role(count=1, required=True, decides=True, uses_gpus=False),
                "worker": Role(count=1, serves=True, restarts_alone=True),
                "ps": Role(required=True, serves=True, uses_gpus=False),
                "evaluator": EVALUATOR,
            },
            implied_by="ps",
            sections=("serve",),
            no_fit_under="ParameterServerStrategy",
            no_sharding="ParameterServerStrategy has no auto-sharding: every worker is given the whole dataset, whatever auto_shard says",
            # TensorFlow's guide to ParameterServerStrategy asks for more threads than there are workers ("Workers need some inter_ops
            # threads to work properly"). Four: with two, steps that read a dataset on a worker were seen to stall for up to a minute.
            fewest_inter_op_threads=lambda counts: max(4, counts.get("worker", 0) + 1),
        ),
        _in_one_process(
            "mirrored",
            "one task with a copy of the model on each of its devices: tf.distribute.MirroredStrategy",
            mends_fit=True,
            replicates_on_cpus=True,
        ),
        _in_one_process("one_device", "one task on one device: tf.distribute.OneDeviceStrategy"),
        _in_one_process(
            "tpu",
            "one task that trains on all hosts of a TPU: tf.distribute.TPUStrategy",
            uses_gpus=False,
            implied_by="tpu",
            sections=("tpu",),
            drives_all_hosts=True,
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
    """The strategy of a spec that names none. `counts`: the number of tasks by type, and 1 for each section of the spec."""
    return next((row for row in STRATEGIES.values() if counts.get(row.implied_by)), DEFAULT)


def with_tasks(task_type: str) -> str:
    """The strategies with a type of tasks: ``mirrored or one_device``."""
    return which(lambda row: task_type in row.roles)


def with_section(section: str) -> str:
    """The strategies with a section of the spec; empty: the section is for all."""
    return which(lambda row: section in row.sections)


def which(holds: Callable[[Strategy], bool]) -> str:
    """The names of the rows for which `holds` is true: ``mirrored, one_device or none``."""
    names = [row.name for row in STRATEGIES.values() if holds(row)]
    return " or ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))
