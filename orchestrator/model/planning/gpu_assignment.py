"""Assigns the GPUs of each host to its tasks. Tasks share a GPU only if the spec allows it, also with tasks of other runs.

1. Tasks that name GPUs, by a setting or by ``CUDA_VISIBLE_DEVICES`` in the spec, get these GPUs.
2. Tasks with a number get so many of the free GPUs.
3. The other tasks (``auto``) get the rest in blocks of one size. Under MultiWorkerMirroredStrategy this size is the same on all hosts: each
   worker assumes that the others have as many devices as it has (``group_size=len(local_devices) * self._num_workers`` in
   tensorflow/python/distribute/collective_all_reduce_strategy.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace

from worker.fast_dataclass import dataclass
from worker.protocol.messages import Gpu, GpuHolder, TakeGpus
from worker.protocol.task_id import TaskId
from worker.settings.device_settings import DeviceSettings
from worker.words import count_of

from ...errors import Problem
from ..spec import ClusterSpec, GpuWish, TaskDevices, TaskSpec
from ..spec.findings import listed
from ..spec.rules.device_rules import LEVEL, VISIBLE
from ..strategies import named
from ..task_names import group_tasks

NONE_VISIBLE = "-1"
"""Hides all GPUs: for CUDA the list ends before the first GPU that does not exist."""
_WAYS = "wait for its end, name others with --gpus, or let both runs share (--share-gpus)"


@dataclass(frozen=True, slots=True)
class HostGpus:
    """A host, its GPUs and its tasks."""

    name: str
    gpus: tuple[Gpu, ...] | None
    """The GPUs that tasks may use; None in a dry run."""
    tasks: tuple[TaskId, ...]
    taken: tuple[GpuHolder, ...] = ()
    """The GPUs that other runs hold."""


@dataclass(frozen=True, slots=True)
class TaskGpus:
    """The devices of one task."""

    env: Mapping[str, str]
    """The variables that choose the devices."""
    settings: DeviceSettings
    """The settings that the bootstrap applies in the task."""
    gpus: tuple[Gpu, ...] | None = None
    """None: unknown, in a dry run."""


@dataclass(frozen=True, slots=True)
class GpuAssignment:
    """The devices of all tasks."""

    tasks: Mapping[TaskId, TaskGpus]
    notes: tuple[str, ...]
    """Lines for the user."""
    problems: tuple[Problem, ...]
    """Why the assignment is not possible."""
    claims: Mapping[str, TakeGpus]
    """The GPUs that the agent of each host must hold."""


def assign_gpus(spec: ClusterSpec, hosts: Sequence[HostGpus]) -> GpuAssignment:
    """The devices of every task."""
    tables = [_Table(spec, host) for host in hosts]
    for table in tables:
        table.assign_named()
    for table in tables:
        table.assign_counted()
    sizes = {table.host.name: table.fair_size() for table in tables}
    known = [table for table in tables if table.host.gpus is not None]
    in_step = {tasks.type for tasks in spec.tasks if named(spec.strategy).role(tasks.type).synchronous}
    waiting = [sizes[table.host.name] for table in known if any(task.type in in_step for task in table.auto)]
    asked = [len(gpus) for table in tables for task, gpus in table.assigned.items() if task.type in in_step]
    if waiting:
        sizes = {host: min(size, *waiting, *asked) for host, size in sizes.items()}
    for table in tables:
        table.assign_rest(sizes[table.host.name])
        table.check_memory()
    tasks = {task: gpus for table in tables for task, gpus in table.task_gpus()}
    problems = [problem for table in tables for problem in table.problems()]
    notes = [note for table in tables for note in table.notes()]
    if not problems:
        problems += _unequal(spec, tasks)
    claims = {table.host.name: table.claim() for table in tables if table.users}
    return GpuAssignment(tasks, (*_summary(tasks), *notes), tuple(problems), claims)


@dataclass(slots=True)
class _Table:
    """One host during the assignment."""

    spec: ClusterSpec
    host: HostGpus
    assigned: dict[TaskId, tuple[Gpu, ...]] = field(default_factory=dict)
    users: dict[str, list[TaskId]] = field(default_factory=dict)
    """The tasks of each GPU, by UUID."""
    complaints: dict[tuple[str, str], list[TaskId]] = field(default_factory=dict)
    """The tasks with each (wish, answer)."""
    left_out: list[TaskId] = field(default_factory=list)
    """Tasks with ``auto`` that get no GPU."""
    types: dict[str, TaskSpec] = field(init=False)
    visible_in_spec: dict[str, str | None] = field(init=False)
    """CUDA_VISIBLE_DEVICES in the spec, by type of task. orch never changes this value."""

    def __post_init__(self) -> None:
        self.types = {tasks.type: tasks for tasks in self.spec.tasks}
        self.visible_in_spec = {kind: tasks.env.get(VISIBLE, self.spec.env.get(VISIBLE)) for kind, tasks in self.types.items()}

    # --- wishes --------------------------------------------------------------------------------

    def devices(self, task: TaskId) -> TaskDevices:
        return self.types[task.type].devices_of(task.index)

    def wish(self, task: TaskId) -> GpuWish:
        wish, own = self.devices(task).wish, self.visible_in_spec[task.type]
        if wish.is_auto and own is not None:
            return GpuWish(ids=tuple(part.strip() for part in own.split(",") if part.strip()), share=True)
        return wish

    @property
    def auto(self) -> list[TaskId]:
        users = (task for task in self.host.tasks if named(self.spec.strategy).role(task.type).uses_gpus)
        return [task for task in users if self.visible_in_spec[task.type] is None and self.wish(task).is_auto]

    @property
    def free(self) -> list[Gpu]:
        taken = {holder.uuid for holder in self.host.taken}
        return [gpu for gpu in self.host.gpus or () if gpu.uuid not in self.users and gpu.uuid not in taken]

    def holders(self, gpu: Gpu) -> list[GpuHolder]:
        """The other runs that hold a GPU."""
        return [holder for holder in self.host.taken if holder.uuid == gpu.uuid]

    def _may_be_shared(self) -> list[Gpu]:
        return [gpu for gpu in self.host.gpus or () if all(holder.shares for holder in self.holders(gpu))]

    # --- assignment ----------------------------------------------------------------------------

    def assign_named(self) -> None:
        for task in self.host.tasks:
            wish = self.wish(task)
            if wish.ids and self.host.gpus is not None:
                chosen = [self._find(task, id) for id in wish.ids]
                self._assign(task, [gpu for gpu in chosen if gpu is not None])

    def _find(self, task: TaskId, id: str) -> Gpu | None:
        gpus = self.host.gpus or ()
        if id.isdigit():
            matching = [gpu for gpu in gpus if gpu.index == int(id)]
        else:
            matching = [gpu for gpu in gpus if gpu.uuid.lower().startswith(id.lower())]
        if len(matching) == 1:
            return matching[0]
        if self.visible_in_spec[task.type] is not None and self.wish(task).share:
            return None  # CUDA reads this list itself
        asked = f"GPU {id}" if id.isdigit() else id
        if matching:
            self._complain(task, f"for {asked}", f"which stands for {listed(map(_name, matching))}; name one of them")
        else:
            self._complain(task, f"for {asked}", f"host {self.host.name} has {_described(gpus)}")
        return None

    def assign_counted(self) -> None:
        for task in self.host.tasks:
            wish = self.wish(task)
            if wish.count and self.host.gpus is not None:
                self._assign(task, self._choose(task, wish.count, wish.share))

    def _choose(self, task: TaskId, count: int, share: bool) -> list[Gpu]:
        """`count` free GPUs; if there are too few and sharing is allowed, the GPUs with the fewest users."""
        gpus, free = self.host.gpus or (), self.free
        if count <= len(free):
            return free[:count]
        shared = self._may_be_shared() if share else []
        if share and count <= len(shared):
            return sorted(shared, key=lambda gpu: len(self.users.get(gpu.uuid, ())) + len(self.holders(gpu)))[:count]
        has = f"host {self.host.name} has {_described(gpus)}"
        taken = sorted({other for users in self.users.values() for other in users}, key=self.host.tasks.index)
        if taken and count <= len(gpus):
            has += f", and {len(free) or 'none'} of them left by {group_tasks(map(str, taken))} (share_gpus: true lets tasks share)"
        if count <= len(gpus) and (others := self._others()):
            has += f"; {others}: {_WAYS}"
        self._complain(task, f"for {count_of(count, 'GPU')}", has)
        return []

    def fair_size(self) -> int:
        """How many GPUs each task with ``auto`` can have."""
        size = len(self.free) // max(1, len(self.auto))
        # CUDA shows a process at most one part of a GPU ("CUDA Device Enumeration" in NVIDIA's MIG User Guide).
        return min(size, 1) if any(gpu.is_part for gpu in self.free) else size

    def assign_rest(self, size: int) -> None:
        if self.host.gpus is None:
            return
        for task in self.auto:
            if not size and self._may_be_shared() and self.wish(task).share:
                self._assign(task, self._choose(task, 1, share=True))
            else:
                self._assign(task, self.free[:size])
        self.left_out = [task for task in self.auto if not self.assigned[task]] if self.host.gpus else []

    def _assign(self, task: TaskId, gpus: Sequence[Gpu]) -> None:
        for gpu in gpus:
            holders = [holder for holder in self.holders(gpu) if not (holder.shares and self.wish(task).share)]
            if holders:
                who = listed(map(_run, holders))
                self._complain(task, f"for {_name(gpu)}", f"which {who} {_has(holders)} on host {self.host.name}: {_WAYS}")
            others = [other for other in self.users.get(gpu.uuid, ()) if not (self.wish(other).share and self.wish(task).share)]
            if others and others != [task]:
                hint = f"which {group_tasks(map(str, others))} {_has(others)} on host {self.host.name}; share_gpus: true lets tasks share"
                self._complain(task, f"for {_name(gpu)}", hint)
            self.users.setdefault(gpu.uuid, []).append(task)
        if len(gpus) > 1 and any(gpu.is_part for gpu in gpus):
            self._complain(task, f"for {listed(map(_name, gpus))}", "of which CUDA shows a process only one; ask for one part of a GPU")
        if len({gpu.uuid for gpu in gpus}) < len(gpus):
            self._complain(task, "for one GPU under two names", f"host {self.host.name} has {_described(self.host.gpus or ())}")
        self.assigned[task] = tuple(gpus)

    def check_memory(self) -> None:
        for gpu in self.host.gpus or ():
            users = self.users.get(gpu.uuid, [])
            wanted = {task: _megabytes(self.devices(task).settings) for task in users}
            total = sum(wanted.values())
            if gpu.memory_mb and total > gpu.memory_mb:
                who = [task for task in users if wanted[task]]
                has = f"host {self.host.name}'s {_name(gpu)} ({gpu.name}) has {gpu.memory_mb:,} MB"
                self.complaints.setdefault((f"for {total:,} MB{' together' * (len(who) > 1)}", has), []).extend(who)

    # --- results -------------------------------------------------------------------------------

    def claim(self) -> TakeGpus:
        shared = {uuid for uuid, tasks in self.users.items() if all(self.wish(task).share for task in tasks)}
        return TakeGpus(tuple(uuid for uuid in self.users if uuid not in shared), tuple(uuid for uuid in self.users if uuid in shared))

    def _others(self) -> str:
        """``run a-1 (process 7) has GPU 0``, …; empty if no other run holds a GPU."""
        having: dict[str, list[Gpu]] = {}
        for gpu in self.host.gpus or ():
            for holder in self.holders(gpu):
                having.setdefault(_run(holder), []).append(gpu)
        return ", ".join(f"{run} has {listed(map(_name, gpus))}" for run, gpus in having.items())

    def _complain(self, task: TaskId, wish: str, answer: str) -> None:
        self.complaints.setdefault((wish, answer), []).append(task)

    def problems(self) -> Iterator[Problem]:
        for (wish, answer), tasks in self.complaints.items():
            verb = "asks" if len(tasks) == 1 else "ask"
            yield Problem("", f"{group_tasks(map(str, tasks))} {verb} {wish}; {answer}")

    def notes(self) -> Iterator[str]:
        name, gpus = self.host.name, self.host.gpus
        others = self._others()
        if self.left_out and gpus:
            who = group_tasks(map(str, self.left_out))
            hint = "" if self.wish(self.left_out[0]).share else "; gpus: 1 with share_gpus: true lets them share"
            rest = f"; {others}: {_WAYS}" if others else hint
            yield f"{who} on {name}: no GPU, because there are too few for all tasks ({_described(gpus)}){rest}"
        elif self.auto and others:
            yield f"host {name}: {others}; this run divides the other GPUs"
        if gpus is not None and not gpus:
            split = [task for task in self.host.tasks if self.devices(task).settings.logical_gpus]
            if split:
                yield f"{group_tasks(map(str, split))} on {name}: logical_gpus has no effect, as the host has no GPU"

    def task_gpus(self) -> Iterator[tuple[TaskId, TaskGpus]]:
        for task in self.host.tasks:
            settings = self.devices(task).settings
            env = {LEVEL: "0"} if settings.log_placement else {}
            env |= {"TF_DETERMINISTIC_OPS": str(int(settings.determinism))} if settings.determinism is not None else {}
            visible, gpus = self._given(task)
            if gpus and self.visible_in_spec[task.type] is None:
                number = len(gpus)
                settings = replace(settings, gpus_given=number) if self.wish(task).is_auto else replace(settings, gpus=number)
            yield task, TaskGpus(env if visible is None else env | {VISIBLE: visible}, settings, gpus)

    def _given(self, task: TaskId) -> tuple[str | None, tuple[Gpu, ...] | None]:
        """A task's CUDA_VISIBLE_DEVICES (None: orch does not set the variable), and its GPUs (None: unknown, in a dry run)."""
        wish, is_dry = self.wish(task), self.host.gpus is None
        gpus = None if is_dry else self.assigned.get(task, ())
        if self.visible_in_spec[task.type] is not None:
            return None, gpus
        if wish.count == 0:
            return NONE_VISIBLE, ()
        if is_dry and not wish.is_auto:
            return ",".join(wish.ids) or f"<{wish.count} of the GPUs of {self.host.name}>", None
        if not self.host.gpus:
            return None, gpus
        return ",".join(gpu.id for gpu in gpus or ()) or NONE_VISIBLE, gpus


def _unequal(spec: ClusterSpec, tasks: Mapping[TaskId, TaskGpus]) -> Iterator[Problem]:
    """Tasks that train in step with different numbers of GPUs: they would wait for ever for replicas that do not exist."""
    by_count: dict[int, list[TaskId]] = {}
    for task, found in tasks.items():
        if named(spec.strategy).role(task.type).synchronous and found.gpus is not None:
            by_count.setdefault(len(found.gpus or ()) * len(found.settings.logical_gpus or (1,)), []).append(task)
    if len(by_count) > 1:
        counts = listed(f"{group_tasks(map(str, who))} {_has(who)} {count}" for count, who in by_count.items())
        yield Problem("", f"{spec.strategy} needs as many GPUs in every task; {counts}")


def _summary(tasks: Mapping[TaskId, TaskGpus]) -> Iterator[str]:
    """One line with the GPUs of each task, if several tasks have a GPU."""
    having = {task: found.gpus for task, found in tasks.items() if found.gpus}
    if len(having) < 2:
        return
    sizes = Counter(map(len, having.values()))
    if len(having) <= 4:
        yield "GPUs: " + "; ".join(f"{task}: {', '.join(map(_short, gpus))}" for task, gpus in having.items())
    else:
        parts = [(size, [task for task, gpus in having.items() if len(gpus) == size]) for size in sizes]
        yield "GPUs: " + "; ".join(f"{size} for each of {group_tasks(map(str, who))}" for size, who in parts)


def _megabytes(settings: DeviceSettings) -> int:
    """The limit of a task on each of its GPUs; 0 if it has none."""
    return settings.memory_limit_mb or sum(settings.logical_gpus or ())


def _described(gpus: Iterable[Gpu]) -> str:
    """``GPUs 0, 1``, ``GPU 0``, ``no GPU``."""
    names = [_short(gpu) for gpu in gpus]
    return f"GPU{'s' * (len(names) > 1)} {', '.join(names)}" if names else "no GPU"


def _short(gpu: Gpu) -> str:
    return gpu.uuid if gpu.is_part else str(gpu.index)


def _name(gpu: Gpu) -> str:
    return gpu.uuid if gpu.is_part else f"GPU {gpu.index}"


def _run(holder: GpuHolder) -> str:
    return f"run {holder.run_id} (process {holder.pid})" if holder.pid else "an unknown run"


def _has(owners: Sequence[object]) -> str:
    return "has" if len(owners) == 1 else "have"
