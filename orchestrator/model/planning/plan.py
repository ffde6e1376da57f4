"""The plan of a run: (spec, facts of the hosts) -> each task with its host, address, environment and order.

There are two steps, because a ``TF_CONFIG`` needs the real addresses and ports. `place` chooses the host of each task, so that each host
can hold enough ports. `make` completes the plan with the answers of the hosts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field, replace

from worker.protocol.messages import Program, StartTasks, TakeGpus, TaskOrder
from worker.protocol.task_environment import default_environment, tf_config_text
from worker.protocol.task_id import DATA_SERVICE, PREPARE, TENSORBOARD, TaskId
from worker.settings.device_settings import DeviceSettings
from worker.settings.keras_settings import LEGACY
from worker.settings.task_settings import TaskSettings
from worker.values.fast_dataclass import dataclass
from worker.values.words import count_of

from ...errors import OrchError, Problem, SpecError
from .. import slots
from ..settings import ClusterSpec, TaskSpec, trains
from ..settings.device_rules import GROWTH, LEVEL, VISIBLE
from ..slots import Assignment
from ..strategies import named
from . import elastic, gpu_assignment
from .addresses import with_port
from .facts_of_hosts import HostFacts
from .gpu_assignment import TaskGpus

DISPATCHER = TaskId(DATA_SERVICE[0], 0)
"""The dispatcher of a tf.data service, whose address a reader needs. A dispatcher and its workers make the input that a script passes to
`tf.data.experimental.service.distribute`. orch runs these servers (worker/task/strategy/servers.py). They have no TF_CONFIG
and no rank."""


@dataclass(frozen=True, slots=True)
class PlannedTask:
    id: TaskId
    host: str
    address: str
    """``host:port`` for TF_CONFIG."""
    order: TaskOrder


@dataclass(frozen=True, slots=True)
class Plan:
    """All tasks as the first attempt starts them, and what they have in common."""

    run_id: str
    spec: ClusterSpec
    tasks: tuple[PlannedTask, ...]
    clusters: Mapping[str, str]
    """The clusters of TF_CONFIG by name, as JSON (see `Strategy.clusters`)."""
    env: Mapping[str, str]
    hosts: tuple[HostFacts, ...]
    notes: tuple[str, ...] = ()
    """Decisions of orch that the spec does not contain, one line each."""
    claims: Mapping[str, TakeGpus] = field(default_factory=dict)
    """The GPUs that the agent of each host must hold."""

    @property
    def members(self) -> tuple[PlannedTask, ...]:
        """All tasks but those that prepare a host."""
        return tuple(task for task in self.tasks if task.id.type != PREPARE)

    def tf_config(self, task: PlannedTask) -> str | None:
        """The text of a task's TF_CONFIG, made on each call: ten thousand texts do not fit in memory."""
        if task.order.cluster is None:
            return None
        return tf_config_text(self.clusters[task.order.cluster], task.id)

    def orders(self, host: str, attempt: int = 1, names: Collection[str] | None = None, *, since: int | None = None) -> StartTasks:
        """The order to the agent on `host`; see `all_orders`."""
        return dict(self.all_orders(attempt, names, since=since))[host]

    def all_orders(
        self, attempt: int = 1, names: Collection[str] | None = None, *, since: int | None = None
    ) -> Iterator[tuple[str, StartTasks]]:
        """The order to each host to start its tasks, or those in `names`. `since`: the attempt of the whole cluster; None: this one."""
        names = None if names is None else frozenset(names)
        by_host: dict[str, list[PlannedTask]] = {facts.name: [] for facts in self.hosts}
        for task in self.tasks:
            by_host[task.host].append(task)
        peers = tuple(dict.fromkeys(("localhost", *(facts.address for facts in self.hosts))))
        for facts in self.hosts:
            yield facts.name, self._order_of(facts, by_host[facts.name], peers, attempt, names, since)

    def _order_of(
        self,
        facts: HostFacts,
        mine: Sequence[PlannedTask],
        peers: tuple[str, ...],
        attempt: int,
        names: Collection[str] | None,
        since: int | None,
    ) -> StartTasks:
        orders = []
        for task in mine:
            if names is not None and task.order.task not in names:
                continue
            program = task.order.program
            if task.id == DISPATCHER and self.spec.restart.max:
                # A dispatcher that restarts alone finds its jobs again. A dispatcher that starts with all other tasks has no jobs: the
                # training starts again, too, and must not continue in the middle of an epoch.
                program = replace(program, args=(*program.args, f"data_service/attempt-{since or attempt}"))
            cwd, directory = facts.workdir or task.order.cwd, log_dir(attempt, task.id)
            orders.append(replace(task.order, attempt=attempt, program=program, cwd=cwd, log_dir=directory))
        return StartTasks(
            orders=tuple(orders),
            clusters=self.clusters,
            env={**self.env, "ORCH_ATTEMPT": str(attempt), **facts.env()},
            env_defaults=default_environment(
                facts.cores or f"cores of {facts.name}",
                slots.count_computing(task.id for task in mine),
                named(self.spec.strategy).fewest_inter_op_threads(self.spec.counts),
            ),
            call=self.spec.call,
            peers=peers if self.clusters or self.spec.data_workers else (),
            may_restart=self.spec.restart.max > 0,
        )


MOST_PORTS = 65_535
UNKNOWN_PORT = 0
"""In a dry run, for a port that the agent would hold."""


def place(spec: ClusterSpec, hosts: Mapping[str, int | None]) -> dict[str, tuple[TaskId, ...]]:
    """The tasks of each host. `hosts`: the slots of each. Raises `SpecError` if there are too few slots, or too few ports in the range."""
    assignment, strategy = slots.assign(spec.counts, hosts), named(spec.strategy)
    needed = {host: slots.ports_needed(ids, strategy) for host, ids in assignment.items()}
    host = max(needed, key=needed.__getitem__)
    where = f" on host {host}" if len(needed) > 1 else ""
    if spec.ports and needed[host] > (count := spec.ports[1] - spec.ports[0] + 1):
        message = f"ports: {spec.ports[0]}-{spec.ports[1]} has {count_of(count, 'port')}; {needed[host]} tasks{where} need one each"
        raise SpecError(Problem("", message, "give a wider range, or none: free ports are found"))
    if needed[host] > MOST_PORTS:
        raise SpecError(Problem("", f"a host has {MOST_PORTS:,} ports; {needed[host]:,} tasks{where} need one each", "name more hosts"))
    return assignment


def gpus_of_host(spec: ClusterSpec, assignment: Assignment) -> int:
    """Return the most GPUs that the tasks of one host want, by their `gpus`: what an engine is asked for on each host."""
    by_type, most = {tasks.type: tasks for tasks in spec.tasks}, 0
    for tasks in assignment.values():
        devices = [by_type[task.type].devices_of(task.index) for task in tasks]
        wanted = [found.gpus.count or len(found.gpus.ids) for found in devices]
        most = max(most, max(wanted, default=0) if all(found.share_gpus for found in devices) else sum(wanted))
    return most


def programs(spec: ClusterSpec) -> tuple[Program, ...]:
    """The different programs that the tasks run, without their arguments."""
    found = [_program(spec, tasks) for tasks in spec.tasks]
    if spec.prepare.run:
        found.append(_preparation(spec))
    return tuple(dict.fromkeys(Program(program.kind, program.target) for program in found))


_SEARCHED = ("HOME", "PATH", LEGACY)


def search_envs(spec: ClusterSpec) -> tuple[dict[str, str], ...]:
    """The variables of the tasks that decide where programs and Python modules are found; each different set once."""
    envs = ({**spec.env, **tasks.env} for tasks in spec.tasks)
    found = (tuple((name, env[name]) for name in sorted(env) if name.startswith("PYTHON") or name in _SEARCHED) for env in envs)
    return tuple(map(dict, dict.fromkeys(found)))


def make(run_id: str, spec: ClusterSpec, assignment: Assignment, hosts: Sequence[HostFacts]) -> Plan:
    """The plan of a run; a dry run has no ports. Raises `SpecError` if a host lacks devices, `OrchError` if they are taken."""
    facts = {host.name: host for host in hosts}
    devices = _gpus(spec, assignment, facts)
    strategy = named(spec.strategy)
    addresses: dict[TaskId, str] = {}
    ports: dict[TaskId, int] = {}
    for host, ids in assignment.items():
        held = iter(facts[host].ports)
        for task in ids:
            if strategy.opens_port(task.type):
                ports[task] = next(held, UNKNOWN_PORT)
            addresses[task] = with_port(facts[host].address, ports.get(task) or f"<port of {task}>")
    by_type = {tasks.type: tasks for tasks in spec.tasks}
    ranks = _ranks(spec)
    planned = []
    for host, ids in assignment.items():
        local_size = sum(task.type not in DATA_SERVICE for task in ids)
        parts = [task for task in ids if slots.count_computing([task])]
        for local_rank, task in enumerate(ids):  # servers of the data service come last
            rank, size = (local_rank, local_size) if local_rank < local_size else (0, 1)
            env = {**ranks[task], "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(size)}
            gpus = devices.tasks[task]
            if by_type[task.type].devices_of(task.index).affinity:
                gpus = replace(gpus, settings=replace(gpus.settings, cores=(parts.index(task), len(parts))))
            order = _order(spec, by_type[task.type], task, ports.get(task), env, gpus)
            if task.type in DATA_SERVICE:
                order = replace(order, program=replace(order.program, args=(addresses[task],)), settings=TaskSettings())
            planned.append(PlannedTask(task, host, addresses[task], order))
    first = planned[0]
    boards = _tensorboards(spec, facts[first.host], len([task for task in assignment[first.host] if task in ports]))
    planned += [*boards, *_preparations(spec, assignment)]
    address = facts[first.host].address
    master = address, str(ports[first.id] or f"<port of {first.id}>") if first.id in ports else "0"
    env = _environment(run_id, spec, master, addresses.get(DISPATCHER, ""))
    notes = (
        *_describe_threads(spec, assignment, facts),
        *_describe_cpus(spec),
        *devices.notes,
        *_describe_input(spec),
        *elastic.describe(spec),
    )
    notes += tuple(_describe_tensorboard(board, facts[board.host]) for board in boards)
    return Plan(run_id, spec, tuple(planned), strategy.clusters(addresses), env, tuple(hosts), notes, devices.claims)


def _gpus(spec: ClusterSpec, assignment: Assignment, facts: Mapping[str, HostFacts]) -> gpu_assignment.GpuAssignment:
    """The GPUs of the tasks. Raises as `make` does."""
    devices = gpu_assignment.assign_gpus(spec, assignment, facts)
    if devices.problems:
        without_others = {name: replace(host, taken=()) for name, host in facts.items()}
        is_possible = not gpu_assignment.assign_gpus(spec, assignment, without_others).problems
        raise OrchError("\n".join(map(str, devices.problems))) if is_possible else SpecError(*devices.problems)
    return devices


def _environment(run_id: str, spec: ClusterSpec, master: tuple[str, str], dispatcher: str) -> dict[str, str]:
    """Return what all tasks have in their environment. `master`: address and port of the first task. `dispatcher`: of the data service."""
    env = {
        **spec.env,
        "ORCH_RUN_ID": run_id,
        "ORCH_RUN_STRATEGY": spec.strategy,
        "ORCH_ATTEMPT": "1",
        "MASTER_ADDR": master[0],
        "MASTER_PORT": master[1],
    }
    if spec.least_workers:
        env[elastic.ELASTIC] = str(spec.least_workers)
    if dispatcher:
        env["ORCH_DATA_SERVICE"] = f"grpc://{dispatcher}"
    return env


def log_dir(attempt: int, task: TaskId | str) -> str:
    """The directory of a task's output, below the run directory."""
    return f"attempt-{attempt}/{task}"


def _order(spec: ClusterSpec, tasks: TaskSpec, task: TaskId, port: int | None, ranks: Mapping[str, str], gpus: TaskGpus) -> TaskOrder:
    cluster = named(spec.strategy).role(task.type).cluster
    # With a TF_CONFIG of the user's shell, a single task would wait for a cluster that does not exist.
    unset = () if cluster else ("TF_CONFIG",)
    growth = gpus.settings.memory_growth
    forced = {}
    if growth is not None and spec.program.kind == "command":
        forced = {GROWTH: str(growth).lower()}  # orch cannot call TensorFlow inside a command
    elif growth is not None and GROWTH not in {**spec.env, **tasks.env}:
        unset = (*unset, GROWTH)  # a value of the user's shell would win over the spec and the script
    return TaskOrder(
        task=str(task),
        attempt=1,
        program=_program(spec, tasks),
        cwd=spec.workdir,
        log_dir=log_dir(1, task),
        env={**_threads(gpus.settings, spec.env), **tasks.env, **_devices(gpus), **forced, **ranks, "ORCH_TASK": str(task)},
        unset=unset,
        port=port,
        cluster=cluster,
        settings=_settings(spec, tasks, gpus.settings),
    )


def _preparation(spec: ClusterSpec) -> Program:
    return Program("command", spec.prepare.run[0], spec.prepare.run[1:])


def _preparations(spec: ClusterSpec, assignment: Assignment) -> list[PlannedTask]:
    """The tasks that prepare the hosts: one for each host with tasks, or for the first such host."""
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
            env={**spec.env, "ORCH_TASK": str(task)},
            unset=("TF_CONFIG",),
            settings=TaskSettings(strategy=spec.strategy),
        )
        found.append(PlannedTask(task, host, "", order))
    return found


def _tensorboards(spec: ClusterSpec, host: HostFacts, ports_used: int) -> list[PlannedTask]:
    """TensorBoard, if the spec wants it. `ports_used`: how many of the ports that the host holds are those of other tasks."""
    if not spec.tensorboard:
        return []
    task, port = TaskId(TENSORBOARD, 0), next(iter(host.ports[ports_used:]), UNKNOWN_PORT)
    order = TaskOrder(
        task=str(task),
        attempt=1,
        program=Program("tensorboard", args=(spec.tensorboard, str(port))),
        cwd=spec.workdir,
        log_dir=log_dir(1, task),
        env={"ORCH_TASK": str(task), VISIBLE: ""},
        unset=("TF_CONFIG",),
        port=port,
        settings=TaskSettings(strategy=spec.strategy),
    )
    return [PlannedTask(task, host.name, with_port("127.0.0.1", port or f"<port of {task}>"), order)]


def _describe_tensorboard(board: PlannedTask, host: HostFacts) -> str:
    shown = f"TensorBoard for {board.order.program.args[0]}: http://{board.address}/"
    if host.is_here:
        return shown
    port = board.order.port
    return f"{shown} on {host.name}; from another machine: ssh -L {port}:127.0.0.1:{port} {host.name}"


def _settings(spec: ClusterSpec, tasks: TaskSpec, devices: DeviceSettings) -> TaskSettings:
    """The settings that the bootstrap applies in a task. The sections of a strategy are for Python tasks that train."""
    reached = trains(tasks.type) and spec.program.kind != "command"
    own = named(spec.strategy).sections_inside if reached else ()
    sections = {section: getattr(spec, section) for section in (*own, "keras", "checkpoints", "verify", "scale")}
    # Under FILE, which AUTO may be, another number of workers would read other global batches.
    read = replace(tasks.input, auto_shard="data") if spec.least_workers else tasks.input
    return TaskSettings(strategy=spec.strategy, devices=devices, input=read, **sections)


def _program(spec: ClusterSpec, tasks: TaskSpec) -> Program:
    if tasks.type in DATA_SERVICE:
        return Program("data_service")
    if spec.serve and named(spec.strategy).role(tasks.type).serves:
        return Program("serve")
    return spec.program if tasks.args is None else replace(spec.program, args=tasks.args)


def _ranks(spec: ClusterSpec) -> dict[TaskId, dict[str, str]]:
    """RANK and WORLD_SIZE among the tasks of the training cluster; any other task has rank 0 of 1."""
    ids = list(slots.task_ids(spec.counts))
    trainers = [task for task in ids if trains(task.type)]
    found = {task: {"RANK": "0", "WORLD_SIZE": "1", "ORCH_IS_CHIEF": "0"} for task in ids}
    for rank, task in enumerate(trainers):
        found[task] = {"RANK": str(rank), "WORLD_SIZE": str(len(trainers)), "ORCH_IS_CHIEF": str(int(rank == 0))}
    return found


def _threads(devices: DeviceSettings, given: Mapping[str, str]) -> dict[str, str]:
    """`given`: the variables of the spec, of which OMP_NUM_THREADS wins."""
    intra, inter = devices.threads.intra, devices.threads.inter
    wanted = {"TF_NUM_INTRAOP_THREADS": intra, "OMP_NUM_THREADS": intra, "TF_NUM_INTEROP_THREADS": inter}
    wanted = {name: number for name, number in wanted.items() if name != "OMP_NUM_THREADS" or name not in given}
    return {name: str(number) for name, number in wanted.items() if number is not None}


def _devices(gpus: TaskGpus) -> dict[str, str]:
    """The variables for devices that win over the variables of the spec."""
    settings = gpus.settings
    found = {LEVEL: "0"} if settings.log_placement else {}
    if settings.determinism is not None:
        found["TF_DETERMINISTIC_OPS"] = str(int(settings.determinism))
    return found if gpus.visible is None else {**found, VISIBLE: gpus.visible}


def _describe_threads(spec: ClusterSpec, assignment: Assignment, facts: Mapping[str, HostFacts]) -> Iterator[str]:
    """One line about the threads of `default_environment`, if a host has several tasks and the spec does not set all threads."""
    devices = [found for tasks in spec.tasks for found in (tasks.devices, *tasks.overrides.values())]
    are_set = all(found.settings.threads.intra is not None for found in devices) and not spec.data_workers
    computing = ((facts[host].cores, slots.count_computing(ids)) for host, ids in assignment.items())
    shared = {(cores, tasks) for cores, tasks in computing if tasks > 1 and cores is not None}  # a host that was not asked has no number
    if are_set or not shared:
        return
    shares = " or ".join(f"{max(1, cores // tasks)} for each task ({cores} cores, {tasks} tasks)" for cores, tasks in sorted(shared))
    beside = ", tied to cores of its own" if all(found.affinity for found in devices) else ""
    yield f"compute threads: {shares}{beside}; --threads N sets another number"


def _describe_cpus(spec: ClusterSpec) -> Iterator[str]:
    """A line about logical CPU devices of which the strategy takes the first alone."""
    trained_on = [found.settings for tasks in spec.tasks if trains(tasks.type) for found in (tasks.devices, *tasks.overrides.values())]
    most = max((settings.cpus or 1 for settings in trained_on), default=1)
    if most > 1 and any(role.synchronous for role in named(spec.strategy).roles.values()):
        uses = f"{spec.strategy} trains on the first of the {most} logical CPU devices of a task"
        yield f"devices.cpus: {uses}: the others do no work unless the program names them; --threads N sets the number of threads"


def _describe_input(spec: ClusterSpec) -> Iterator[str]:
    """A line about a policy that has no effect under this strategy."""
    policies = [tasks.input.auto_shard for tasks in spec.tasks if trains(tasks.type) and tasks.input.auto_shard not in (None, "off")]
    if policies and named(spec.strategy).no_sharding:
        yield f"input.auto_shard: {policies[0]} has no effect under strategy {spec.strategy}: each worker reads the whole dataset"
