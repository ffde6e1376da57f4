"""Assigns the GPUs of each host to its tasks.

1. A task with a list gets these GPUs.
2. A task with a number gets so many of the free GPUs.
3. The other tasks (``auto``) get the rest in blocks of one size. Under MultiWorkerMirroredStrategy this size is the same on all hosts: each
   worker assumes that the others have as many devices as it has (``group_size=len(local_devices) * self._num_workers`` in
   tensorflow/python/distribute/collective_all_reduce_strategy.py).

A GPU is free if it has no owner. An owner is a task, or another run. Owners share a GPU only if all of them have `share_gpus`.
orch neither assigns nor holds the GPUs of a task that has CUDA_VISIBLE_DEVICES in the spec.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from worker.protocol.messages import Gpu, TakeGpus
from worker.protocol.task_id import TaskId
from worker.settings.device_settings import DeviceSettings
from worker.values.fast_dataclass import dataclass
from worker.values.words import count_of

from ...errors import Problem
from ..settings import ClusterSpec
from ..settings.device_rules import VISIBLE
from ..settings.findings import listed
from ..slots import Assignment
from ..strategies import named
from ..task_names import group_tasks
from .facts_of_hosts import HostFacts

NONE_VISIBLE = "-1"
"""Hides all GPUs: for CUDA the list ends before the first GPU that does not exist."""
_MOST_LISTED = 4


@dataclass(frozen=True, slots=True)
class TaskGpus:
    visible: str | None
    """CUDA_VISIBLE_DEVICES of the task; None: orch does not set this variable."""
    settings: DeviceSettings


@dataclass(frozen=True, slots=True)
class GpuAssignment:
    tasks: Mapping[TaskId, TaskGpus]
    notes: tuple[str, ...]
    problems: tuple[Problem, ...]
    """Why the assignment is not possible."""
    claims: Mapping[str, TakeGpus]
    """The GPUs that the agent of each host must hold."""


def assign_gpus(spec: ClusterSpec, assignment: Assignment, facts: Mapping[str, HostFacts]) -> GpuAssignment:
    """The devices of every task. `assignment`: the tasks of each host."""
    hosts = [_Host(spec, facts[name], ids) for name, ids in assignment.items()]
    for host in hosts:
        host.assign_requested()
    in_step = {tasks.type for tasks in spec.tasks if named(spec.strategy).role(tasks.type).synchronous}
    limits = [host.fair_size() for host in hosts if host.is_known and any(task.type in in_step for task in host.auto)]
    if limits:
        limits += [len(gpus) for host in hosts for task, gpus in host.assigned.items() if task.type in in_step]
    for host in hosts:
        host.assign_rest(min([host.fair_size(), *limits]))
        host.check_memory()
    problems = [problem for host in hosts for problem in host.problems()] or [*_unequal(spec, hosts, in_step)]
    notes = [*_summary(hosts), *(note for host in hosts for note in host.notes())]
    tasks = {task: host.task_gpus(task) for host in hosts for task in host.devices}
    claims = {host.name: host.claim() for host in hosts if any(host.assigned.values())}
    return GpuAssignment(tasks, tuple(notes), tuple(problems), claims)


class _Host:
    def __init__(self, spec: ClusterSpec, facts: HostFacts, tasks: Sequence[TaskId]) -> None:
        self.name, self.gpus, self.is_known = facts.name, facts.gpus or (), facts.gpus is not None
        by_type = {tasks.type: tasks for tasks in spec.tasks}
        self.devices = {task: by_type[task.type].devices_of(task.index) for task in tasks}
        self.own = {task for task in tasks if VISIBLE in {**spec.env, **by_type[task.type].env}}
        """The tasks with CUDA_VISIBLE_DEVICES in the spec."""
        computing = [task for task in tasks if named(spec.strategy).role(task.type).uses_gpus]
        self.auto = [task for task in computing if self.devices[task].gpus.is_auto and task not in self.own]
        self.assigned: dict[TaskId, tuple[Gpu, ...]] = {}
        self.owners: dict[str, dict[str, bool]] = {gpu.uuid: {} for gpu in self.gpus}
        """By the UUID of each GPU: the tasks that get the GPU and the other runs that hold it, and whether they share it."""
        for holder in facts.taken:
            run = f"run {holder.run_id} (process {holder.pid})" if holder.pid else "an unknown run"
            self.owners.setdefault(holder.uuid, {})[run] = holder.shares
        self.other_runs = self._describe_owners(self.gpus)
        self.complaints: dict[tuple[str, str], list[TaskId]] = {}
        """The tasks with each (wish, answer)."""

    # --- assignment ----------------------------------------------------------------------------

    def assign_requested(self) -> None:
        """Assign the GPUs of the tasks with a list or a number."""
        if not self.is_known:
            return
        for task, devices in self.devices.items():
            if devices.gpus.ids:
                self._assign(task, [gpu for id in devices.gpus.ids for gpu in self._find(task, id)])
        for task, devices in self.devices.items():
            if count := devices.gpus.count:
                found = self._available(task)
                if count > len(found):
                    self._complain(task, count_of(count, "GPU"), self.gpus if count <= len(self.gpus) else ())
                else:
                    self._assign(task, found[:count])

    def fair_size(self) -> int:
        """Return how many GPUs each task with ``auto`` can have."""
        free = [gpu for gpu in self.gpus if not self.owners[gpu.uuid]]
        size = len(free) // max(1, len(self.auto))
        # CUDA shows a process at most one part of a GPU ("CUDA Device Enumeration" in NVIDIA's MIG User Guide).
        return min(size, 1) if any(gpu.is_part for gpu in free) else size

    def assign_rest(self, size: int) -> None:
        """Assign `size` GPUs to each task with ``auto``. If there are too few, tasks that share get one."""
        for task in self.auto:
            self._assign(task, self._available(task)[: size or int(self.devices[task].share_gpus)])

    def _available(self, task: TaskId) -> list[Gpu]:
        """The GPUs that a task may have; those with the fewest owners first."""
        shares = self.devices[task].share_gpus
        found = [gpu for gpu in self.gpus if all(shares and others_share for others_share in self.owners[gpu.uuid].values())]
        return sorted(found, key=lambda gpu: len(self.owners[gpu.uuid]))

    def _find(self, task: TaskId, id: str) -> list[Gpu]:
        """The GPU with an index, or with the beginning of a UUID; empty if the task cannot have this GPU."""
        found = [gpu for gpu in self.gpus if (gpu.index == int(id) if id.isdigit() else gpu.uuid.lower().startswith(id.lower()))]
        if len(found) == 1 and found[0] in self._available(task):
            return found
        self._complain(task, f"GPU {id}" if id.isdigit() else id, found)
        return []

    def _assign(self, task: TaskId, gpus: Sequence[Gpu]) -> None:
        self.assigned[task] = tuple(dict.fromkeys(gpus))
        for gpu in self.assigned[task]:
            self.owners[gpu.uuid][str(task)] = self.devices[task].share_gpus

    def _complain(self, task: TaskId, wish: str, gpus: Sequence[Gpu]) -> None:
        """A task cannot have its wish. `gpus`: those whose owners are in the way."""
        owners = self._describe_owners(gpus)
        ways = f"; {owners}: name others with --gpus, or let all of them share (defaults.devices.share_gpus: true)" if owners else ""
        if not self.gpus:
            ways = ": leave out --gpus (or gpus: in orch.yaml), and the task runs on the CPU"
        self.complaints.setdefault((wish, f"host {self.name} has {_described(self.gpus)}{ways}"), []).append(task)

    def _describe_owners(self, gpus: Sequence[Gpu]) -> str:
        """``worker-0 has GPU 0, run a-1 (process 7) has GPUs 1, 2``; empty if no GPU has an owner."""
        having: dict[str, list[Gpu]] = {}
        for gpu in gpus:
            for owner in self.owners[gpu.uuid]:
                having.setdefault(owner, []).append(gpu)
        return ", ".join(f"{name} has {_described(theirs)}" for name, theirs in having.items())

    def check_memory(self) -> None:
        """Complain about tasks whose limits are more than the memory of their GPU."""
        for gpu in self.gpus:
            limits = {task: _megabytes(self.devices[task].settings) for task, gpus in self.assigned.items() if gpu in gpus}
            limited = [task for task, megabytes in limits.items() if megabytes]
            if gpu.memory_mb and sum(limits.values()) > gpu.memory_mb:
                has = f"host {self.name}'s {_described([gpu])} ({gpu.name}) has {gpu.memory_mb:,} MB"
                self.complaints[f"{sum(limits.values()):,} MB{' together' * (len(limited) > 1)}", has] = limited

    # --- results -------------------------------------------------------------------------------

    def claim(self) -> TakeGpus:
        shares = {gpu.uuid: self.devices[task].share_gpus for task, gpus in self.assigned.items() for gpu in gpus}
        return TakeGpus(tuple(uuid for uuid in shares if not shares[uuid]), tuple(uuid for uuid in shares if shares[uuid]))

    def problems(self) -> Iterator[Problem]:
        for (wish, answer), tasks in self.complaints.items():
            verb = "asks" if len(tasks) == 1 else "ask"
            yield Problem("", f"{group_tasks(map(str, tasks))} {verb} for {wish}; {answer}")

    def notes(self) -> Iterator[str]:
        if self.auto and self.other_runs:
            yield f"host {self.name}: {self.other_runs}; this run divides the other GPUs"
        left_out = [str(task) for task in self.auto if not self.assigned[task]]
        if left_out and self.gpus:
            why = f"there are too few for all tasks ({_described(self.gpus)})"
            yield f"{group_tasks(left_out)} on {self.name}: no GPU, because {why}; gpus: 1 with share_gpus: true lets them share"
        split = [str(task) for task, devices in self.devices.items() if devices.settings.logical_gpus]
        if split and self.is_known and not self.gpus:
            yield f"{group_tasks(split)} on {self.name}: logical_gpus has no effect, as the host has no GPU"

    def task_gpus(self, task: TaskId) -> TaskGpus:
        wish, settings = self.devices[task].gpus, self.devices[task].settings
        gpus = self.assigned.get(task, ())
        if task in self.own:
            return TaskGpus(None, settings)
        if wish.count == 0:
            return TaskGpus(NONE_VISIBLE, settings)
        if not self.is_known and not wish.is_auto:
            return TaskGpus(",".join(wish.ids) or f"<{wish.count} of the GPUs of {self.name}>", settings)
        if gpus:
            settings = replace(settings, gpus_given=len(gpus)) if wish.is_auto else replace(settings, gpus=len(gpus))
        return TaskGpus(",".join(gpu.id for gpu in gpus) or NONE_VISIBLE if self.gpus else None, settings)


def _unequal(spec: ClusterSpec, hosts: Sequence[_Host], in_step: set[str]) -> Iterator[Problem]:
    """Tasks that train in step with different numbers of GPUs: they would wait for ever for replicas that do not exist."""
    by_count: dict[int, list[str]] = {}
    for host in hosts:
        for task, devices in host.devices.items():
            if task.type in in_step and host.is_known and task not in host.own:
                count = len(host.assigned.get(task, ())) * len(devices.settings.logical_gpus or (1,))
                by_count.setdefault(count, []).append(str(task))
    if len(by_count) > 1:
        counts = listed(f"{group_tasks(who)} {'has' if len(who) == 1 else 'have'} {count}" for count, who in by_count.items())
        yield Problem("", f"{spec.strategy} needs as many GPUs in every task; {counts}")


def _summary(hosts: Sequence[_Host]) -> Iterator[str]:
    """One line with the GPUs of the first tasks, if several tasks have a GPU."""
    having = [f"{task}: {', '.join(map(_short, gpus))}" for host in hosts for task, gpus in host.assigned.items() if gpus]
    if len(having) > 1:
        yield "GPUs: " + "; ".join(having[:_MOST_LISTED] + ["…"] * (len(having) > _MOST_LISTED))


def _megabytes(settings: DeviceSettings) -> int:
    """The limit of a task on each of its GPUs; 0 if it has none."""
    return settings.memory_limit_mb or sum(settings.logical_gpus or ())


def _described(gpus: Sequence[Gpu]) -> str:
    """``GPUs 0, 1``, ``GPU 0``, ``no GPU``."""
    return f"GPU{'s' * (len(gpus) > 1)} {', '.join(map(_short, gpus))}" if gpus else "no GPU"


def _short(gpu: Gpu) -> str:
    return gpu.uuid if gpu.is_part else str(gpu.index)
