"""What will be: (spec, host facts) -> plan. Every task with its host, address, environment and order.

Made in two steps, because addresses and ports must be facts before a ``TF_CONFIG`` is written:
`place` says which tasks go where (so that a host can be asked for as many ports), `make` completes the plan
with what the hosts answered.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field, replace

from worker.fast_dataclass import dataclass
from worker.protocol.messages import (
    DATA_SERVICE,
    PREPARE,
    DeviceSettings,
    Gpu,
    GpuHolder,
    Program,
    StartTasks,
    TakeGpus,
    TaskId,
    TaskOrder,
    TaskSettings,
)
from worker.settings.keras_settings import LEGACY
from worker.task_environment import default_environment, tf_config_text

from ...errors import OrchError, SpecError
from ..spec import ClusterSpec, TaskDevices, TaskSpec, trains
from ..spec.rules.device_rules import GROWTH
from ..strategies import named
from . import data_service, gpu_assignment, slots, tf_config
from .addresses import with_port
from .gpu_assignment import HostGpus, TaskGpus
from .slots import Assignment


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What a plan needs to know of a host. `ports`: held there, one per task; empty in a dry run, when nothing is held.

    `address`: the name or number by which the other hosts reach it. `run_dir`: where tasks there find the run
    directory; None if they do not see it. `gpus`: those that tasks there may use; None in a dry run, when nobody has looked.
    `interface`: the network interface that was chosen, if one was.
    """

    name: str
    address: str
    cores: int
    ports: tuple[int, ...] = ()
    run_dir: str | None = None
    gpus: tuple[Gpu, ...] | None = None
    interface: str = ""
    workdir: str | None = None
    """Where the working directory lies there; None: where the spec says."""
    taken: tuple[GpuHolder, ...] = ()
    """What other runs have of `gpus`."""
    is_here: bool = True
    """It is the machine that the controller runs on."""


@dataclass(frozen=True, slots=True)
class PlannedTask:
    """One task, fully resolved. `address`: what stands for it in TF_CONFIG."""

    id: TaskId
    host: str
    address: str
    order: TaskOrder


@dataclass(frozen=True, slots=True)
class Plan:
    """All tasks, as the first attempt starts them, and what they share. `clusters`: JSON texts by name (see `tf_config.clusters`).

    `notes`: what orch decided that nobody has said, a line each. `claims`: by host, the GPUs that this run is to have there.
    """

    run_id: str
    spec: ClusterSpec
    tasks: tuple[PlannedTask, ...]
    clusters: Mapping[str, str]
    env: Mapping[str, str]
    hosts: tuple[HostFacts, ...]
    notes: tuple[str, ...] = ()
    claims: Mapping[str, TakeGpus] = field(default_factory=dict)

    @property
    def hosts_by_task(self) -> dict[str, str]:
        """The host of each task, by the task's name."""
        return {str(task.id): task.host for task in self.tasks}

    @property
    def members(self) -> tuple[PlannedTask, ...]:
        """All tasks but those that prepare a host."""
        return tuple(task for task in self.tasks if task.id.type != PREPARE)

    @property
    def places(self) -> dict[str, str]:
        """Each task's ``host:port`` by its name; empty with one host, where a place tells nobody anything."""
        tasks = self.tasks if len(self.hosts) > 1 else ()
        return {str(task.id): f"{task.host}:{task.order.port}" for task in tasks if task.order.port is not None}

    def tf_config(self, task: PlannedTask) -> str | None:
        """The text of a task's TF_CONFIG, made when asked for: ten thousand of them do not fit in memory."""
        if task.order.cluster is None:
            return None
        return tf_config_text(self.clusters[task.order.cluster], task.id)

    def orders(self, host: str, attempt: int = 1, names: Collection[str] | None = None, *, since: int | None = None) -> StartTasks:
        """What the agent on `host` is told to start: all of its tasks, or those in `names`. Their TF_CONFIGs are made there.

        `since`: the attempt in which the whole cluster was started; None: this one.
        """
        facts = next(facts for facts in self.hosts if facts.name == host)
        mine = [task for task in self.tasks if task.host == host]
        chosen = (task.order for task in mine if names is None or task.order.task in names)
        if self.spec.restart.max:
            chosen = (data_service.in_attempt(order, since or attempt) for order in chosen)
        peers = tuple(dict.fromkeys(("localhost", *(facts.address for facts in self.hosts))))
        return StartTasks(
            orders=tuple(
                replace(order, attempt=attempt, log_dir=log_dir(attempt, order.task), cwd=facts.workdir or order.cwd) for order in chosen
            ),
            clusters=self.clusters,
            env={**_interface(facts), **self.env, "ORCH_ATTEMPT": str(attempt), **_run_directories(facts)},
            env_defaults=default_environment(
                facts.cores,
                slots.count_computing(task.id for task in mine),
                named(self.spec.strategy).fewest_inter_op_threads(self.spec.counts),
            ),
            peers=peers if self.clusters or self.spec.data_workers else (),
        )


def place(spec: ClusterSpec, hosts: Mapping[str, int | None]) -> dict[str, tuple[TaskId, ...]]:
    """Which tasks go to which of the hosts, given each with its slots; a host may get none. Raises `SpecError` if there are too few."""
    return slots.assign(spec.counts, hosts)


def programs(spec: ClusterSpec) -> tuple[Program, ...]:
    """The different programs that the tasks run, without their arguments."""
    found = [_program(spec, tasks) for tasks in spec.tasks]
    if spec.prepare.run:
        found.append(_preparation(spec))
    return tuple(dict.fromkeys(Program(program.kind, program.target) for program in found))


_SEARCHED = ("HOME", "PATH", LEGACY)


def search_envs(spec: ClusterSpec) -> tuple[dict[str, str], ...]:
    """What of the tasks' variables decides where they look for programs, and which modules Python takes; each set of them once."""
    found: dict[tuple[tuple[str, str], ...], None] = {}
    for tasks in spec.tasks:
        env = {**spec.env, **tasks.env}
        found[tuple((name, env[name]) for name in sorted(env) if name.startswith("PYTHON") or name in _SEARCHED)] = None
    return tuple(map(dict, found))


def make(run_id: str, spec: ClusterSpec, assignment: Assignment, hosts: Sequence[HostFacts]) -> Plan:
    """The plan of a run. A host without ports gets a word in their place: nothing is held in a dry run.

    Raises `SpecError` for devices that are asked for and are not there, `OrchError` if it is other runs that have them.
    """
    facts = {host.name: host for host in hosts}
    tables = [HostGpus(host, facts[host].gpus, tuple(ids), facts[host].taken) for host, ids in assignment.items()]
    shares = gpu_assignment.share_out(spec, tables)
    if shares.problems:
        is_possible = not gpu_assignment.share_out(spec, [replace(table, taken=()) for table in tables]).problems
        raise OrchError("\n".join(map(str, shares.problems))) if is_possible else SpecError(*shares.problems)
    strategy = named(spec.strategy)
    addresses: dict[TaskId, str] = {}
    ports: dict[TaskId, int] = {}
    for host, ids in assignment.items():
        held = iter(facts[host].ports)
        for task in ids:
            if facts[host].ports and strategy.opens_port(task.type):
                ports[task] = next(held)
            addresses[task] = with_port(facts[host].address, ports.get(task, f"<port of {task}>"))
    by_type = {tasks.type: tasks for tasks in spec.tasks}
    ranks = _ranks(spec)
    planned = []
    for host, ids in assignment.items():
        local_size = sum(task.type not in DATA_SERVICE for task in ids)
        parts = [task for task in ids if slots.count_computing([task])]
        for local_rank, task in enumerate(ids):  # those of the data service come last
            env = {**ranks[task], **(_local(local_rank, local_size) if local_rank < local_size else _local(0, 1))}
            order = _order(spec, by_type[task.type], task, ports.get(task), env, shares.tasks[task])
            if task.type in DATA_SERVICE:
                order = data_service.serve(order, addresses[task])
            elif by_type[task.type].devices_of(task.index).affinity:
                order = replace(order, cores=(parts.index(task), len(parts)))
            planned.append(PlannedTask(task, host, addresses[task], order))
    first = planned[0]
    planned += _preparations(spec, assignment)
    env = {
        **spec.env,
        "ORCH_RUN_ID": run_id,
        "ORCH_RUN_STRATEGY": spec.strategy,
        "ORCH_ATTEMPT": "1",
        "MASTER_ADDR": facts[first.host].address,
        "MASTER_PORT": str(ports.get(first.id, 0)),
        **data_service.environment(addresses),
    }
    notes = (*_describe_threads(spec, assignment, facts), *shares.notes, *_describe_input(spec))
    return Plan(run_id, spec, tuple(planned), tf_config.clusters(strategy, addresses), env, tuple(hosts), notes, shares.claims)


def log_dir(attempt: int, task: TaskId | str) -> str:
    """Where a task's output goes, below the run directory."""
    return f"attempt-{attempt}/{task}"


def _order(spec: ClusterSpec, tasks: TaskSpec, task: TaskId, port: int | None, ranks: Mapping[str, str], gpus: TaskGpus) -> TaskOrder:
    cluster = named(spec.strategy).role(task.type).cluster
    # A TF_CONFIG of the caller's shell would make a lone task wait for a cluster that is not there.
    unset = () if cluster else ("TF_CONFIG",)
    growth = gpus.settings.memory_growth
    forced = {}
    if growth is not None and spec.program.kind == "command":
        forced = {GROWTH: str(growth).lower()}  # there is no other way into a program that is not ours to start
    elif growth is not None and GROWTH not in {**spec.env, **tasks.env}:
        unset = (*unset, GROWTH)  # the shell's would beat the spec and the script
    return TaskOrder(
        task=str(task),
        attempt=1,
        program=_program(spec, tasks),
        cwd=spec.workdir,
        log_dir=log_dir(1, task),
        env={**_threads(gpus.settings), **gpus.env, **forced, **tasks.env, **ranks, "ORCH_TASK": str(task)},
        unset=unset,
        port=port,
        cluster=cluster,
        settings=_settings(spec, tasks, gpus.settings),
    )


def _preparation(spec: ClusterSpec) -> Program:
    return Program("command", spec.prepare.run[0], spec.prepare.run[1:])


def _preparations(spec: ClusterSpec, assignment: Assignment) -> list[PlannedTask]:
    """The tasks that prepare the hosts, one for each host that has tasks, or for the first of them."""
    if not spec.prepare.run:
        return []
    hosts = [host for host, ids in assignment.items() if ids]
    found = []
    for index, host in enumerate(hosts if spec.prepare.hosts == "all" else hosts[:1]):
        task = TaskId(PREPARE, index)
        order = TaskOrder(
            task=str(task),
            attempt=1,
            program=_preparation(spec),
            cwd=spec.workdir,
            log_dir=log_dir(1, task),
            env={**spec.env, "ORCH_TASK": str(task)},  # a stamp of once_for names the variables of the order
            unset=("TF_CONFIG",),
            settings=TaskSettings(strategy=spec.strategy),
            once_for=spec.prepare.once_for,
        )
        found.append(PlannedTask(task, host, "", order))
    return found


def _settings(spec: ClusterSpec, tasks: TaskSpec, devices: DeviceSettings) -> TaskSettings:
    """What the spec says of the inside of a task. The strategy's own sections are for those that train, and for Python."""
    reached = trains(tasks.type) and spec.program.kind != "command"
    own = named(spec.strategy).sections_inside if reached else ()
    sections = {section: getattr(spec, section) for section in (*own, "keras")}
    return TaskSettings(strategy=spec.strategy, devices=devices, input=tasks.input, **sections)


def _program(spec: ClusterSpec, tasks: TaskSpec) -> Program:
    if tasks.type in DATA_SERVICE:
        return data_service.PROGRAM
    if spec.serve and named(spec.strategy).role(tasks.type).serves:
        return Program("serve")
    if tasks.args is None:
        return spec.program
    return Program(spec.program.kind, spec.program.target, tasks.args)


def _ranks(spec: ClusterSpec) -> dict[TaskId, dict[str, str]]:
    """RANK and WORLD_SIZE among the tasks of the training cluster; any other is a world of its own."""
    ids = list(slots.task_ids(spec.counts))
    trainers = [task for task in ids if trains(task.type)]
    chief = trainers[0]
    found = {task: {"RANK": "0", "WORLD_SIZE": "1", "ORCH_IS_CHIEF": "0"} for task in ids}
    for rank, task in enumerate(trainers):
        found[task] = {"RANK": str(rank), "WORLD_SIZE": str(len(trainers)), "ORCH_IS_CHIEF": str(int(task == chief))}
    return found


def _local(rank: int, size: int) -> dict[str, str]:
    return {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(size)}


def _threads(devices: DeviceSettings) -> dict[str, str]:
    wanted = {"TF_NUM_INTRAOP_THREADS": devices.intra_op_threads, "TF_NUM_INTEROP_THREADS": devices.inter_op_threads}
    return {name: str(number) for name, number in wanted.items() if number is not None}


def _describe_threads(spec: ClusterSpec, assignment: Assignment, facts: Mapping[str, HostFacts]) -> Iterator[str]:
    """One line on what `default_environment` gives, if any host has more than one task and not everything is said."""
    settings = [found.settings for found in _all_devices(spec)]
    said = all(one.intra_op_threads is not None for one in settings) and not spec.data_workers
    shared = {(facts[host].cores, slots.count_computing(ids)) for host, ids in assignment.items() if slots.count_computing(ids) > 1}
    if said or not shared:
        return
    parts = [f"{max(1, cores // tasks)} for each task ({cores} cores, {tasks} tasks)" for cores, tasks in sorted(shared)]
    beside = ", the dispatcher not counted" if spec.data_workers else ""
    beside += ", tied to cores of its own" if all(found.affinity for found in _all_devices(spec)) else ""
    shares = " or ".join(parts[:3]) + " or …" * (len(parts) > 3)
    yield f"compute threads: {shares}{beside}; --set defaults.devices.threads.intra=N sets another number"


def _describe_input(spec: ClusterSpec) -> Iterator[str]:
    """A line for a policy that this strategy does not know."""
    policies = dict.fromkeys(tasks.input.auto_shard for tasks in spec.tasks if trains(tasks.type))
    said = [policy for policy in policies if policy not in (None, "off")]
    if said and not named(spec.strategy).shares_input:
        yield f"input.auto_shard: {said[0]} has no effect under strategy {spec.strategy}: each worker reads the whole dataset"


def _all_devices(spec: ClusterSpec) -> Iterator[TaskDevices]:
    for tasks in spec.tasks:
        yield from (tasks.devices, *tasks.overrides.values())


def _interface(facts: HostFacts) -> dict[str, str]:
    """What the collectives' own libraries are told, which find an interface by themselves otherwise."""
    return {name: facts.interface for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME") if facts.interface}


def _run_directories(facts: HostFacts) -> dict[str, str]:
    if facts.run_dir is None:
        return {}
    return {"ORCH_RUN_DIR": facts.run_dir, "ORCH_CHECKPOINT_DIR": f"{facts.run_dir}/checkpoints"}
