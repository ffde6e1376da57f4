"""The input of a spec's tasks, in the form that the planner in sharding.py needs. Pure."""

from __future__ import annotations

from worker.values.fast_dataclass import dataclass

from .. import tpu_topology
from ..settings import ClusterSpec
from ..settings.task_sections import TaskSpec
from ..slots import task_ids
from ..strategies import named
from .sharding import Sharding


@dataclass(frozen=True, slots=True)
class SpecInput:
    files: tuple[str, ...] = ()
    names: tuple[str, ...] = ("worker-0",)
    sharding: Sharding = Sharding()
    ignored: str = ""
    """Why the strategy shards nothing, if it does not."""


def input_of(spec: ClusterSpec) -> SpecInput:
    """The input of the tasks that train in step; under ParameterServerStrategy, which has no such tasks, of the workers."""
    row = named(spec.strategy)
    sharing = [tasks for tasks in spec.tasks if row.role(tasks.type).synchronous and tasks.count]
    sharing = sharing or [tasks for tasks in spec.tasks if tasks.type == "worker" and tasks.count]
    if not sharing:
        return SpecInput(spec.input.files, ignored=row.no_sharding)
    own = sharing[-1].input
    names = tuple(str(task) for task in task_ids({tasks.type: tasks.count for tasks in sharing}))
    sharding = Sharding(
        own.auto_shard or "auto",
        len(names),
        _replicas_of_tpu(spec) if row.drives_all_hosts else _replicas(sharing[-1], on_cpus=row.replicates_on_cpus),
        own.global_batch_size,
        bool(own.drop_remainder),
    )
    return SpecInput(own.files, names, sharding, row.no_sharding)


def _replicas_of_tpu(spec: ClusterSpec) -> int:
    """`num_replicas`, or as many as fit into the topology, or 1 if the spec has neither."""
    tpu = spec.tpu
    if tpu.num_replicas or not tpu.topology:
        return tpu.num_replicas or 1
    return tpu_topology.count_replicas(tpu_topology.parse(tpu.topology), tpu.computation_shape or (1,) * tpu_topology.RANK)


def _replicas(tasks: TaskSpec, *, on_cpus: bool) -> int:
    """The replicas of each task, as far as the spec tells: only the host knows the number for ``gpus: auto``."""
    wish, cpus = tasks.devices.gpus, tasks.devices.settings.cpus
    gpus = len(wish.ids) or wish.count or 0
    return max(1, gpus or ((cpus or 1) if on_cpus else 1))
