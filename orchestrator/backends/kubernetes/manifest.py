"""The manifest of a training that runs without a controller of orch: what `orch plan --kubernetes` prints. Pure.

A headless Service, a NetworkPolicy, a ConfigMap with the code, and a JobSet with a Job for each type of tasks; or these Jobs alone, for a
cluster without JobSet. Each pod runs one task. Its ``TF_CONFIG`` stands in the manifest: the addresses are names that Kubernetes gives
(kubernetes.io, "Indexed Job", "pod hostname"; jobset.sigs.k8s.io, "network"), and the index is `JOB_COMPLETION_INDEX`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from worker.host.pod_entry import ORDERS, RESTARTS
from worker.protocol.messages import TaskOrder
from worker.protocol.task_environment import EXEC_LIMIT
from worker.protocol.task_id import DATA_SERVICE, TaskId
from worker.values.codec import to_json
from worker.values.fast_dataclass import dataclass
from worker.values.redact import hide_secrets
from worker.values.words import count_of

from ...errors import Problem, SpecError, UsageError
from ...model.planning import plan
from ...model.planning.facts_of_hosts import HostFacts
from ...model.planning.plan import Plan
from ...model.settings import ClusterSpec, KubernetesSettings, Restart, trains
from ...model.strategies import named
from .job_set import INDEX_VARIABLE, Group, job_set, jobs
from .object_names import labels_of
from .pods import HOME, Manifest, PodWish, literal, pod_template
from .run_objects import network_policy, service

Form = Literal["jobset", "job"]
DEFAULT_PORT = 2222
"""What TensorFlow's operator for Kubernetes (TFJob) opens, too."""
CODE_DIR = f"{HOME}/code"
FILES_DIR = "/orch-files"
MOST_BYTES = 1024 * 1024
"""What a ConfigMap may hold (kubernetes.io, "ConfigMaps")."""
MOST_NAME = 63
_INDEX = "batch.kubernetes.io/job-completion-index"
"""The annotation of a pod with its number in its Job."""
_RESTARTS = (
    "jobset.sigs.k8s.io/restart-attempt",
    "batch.kubernetes.io/job-index-failure-count",
    "batch.kubernetes.io/job-index-ignored-failure-count",
)
"""The annotations with what `RESTARTS` says: the first of a pod in a JobSet, the others of one that its Job replaces."""
_SUFFIX = len("-abcde")
"""What Kubernetes adds to the names of the pods of a Job."""


def _is_given(name: str, spec: ClusterSpec) -> bool:
    """True if the spec gives a value for this key of `restart`: Kubernetes starts pods again in its own way."""
    return bool(getattr(spec.restart, name) != getattr(Restart(), name))


_NOT_THERE: dict[str, Callable[[ClusterSpec], Any]] = {
    "timeouts.start_s": lambda spec: spec.timeouts.start_s,
    "timeouts.hang_s": lambda spec: spec.timeouts.hang_s,
    "timeouts.save_before_s": lambda spec: spec.timeouts.save_before_s,
    "fail_on_nan": lambda spec: spec.fail_on_nan,
    "log_limit": lambda spec: spec.log_limit,
    "prepare": lambda spec: spec.prepare.run,
    "tensorboard": lambda spec: spec.tensorboard,
    "tasks.worker as MIN:MAX": lambda spec: spec.least_workers,
    **{
        f"restart.{name}": partial(_is_given, name)
        for name in ("backoff_s", "backoff_max_s", "without_progress", "lost_host", "progress_s")
    },
}
"""What only a controller or an agent of orch can do."""


@dataclass(frozen=True, slots=True)
class ManifestFiles:
    """The files of the ConfigMap, by name."""

    texts: Mapping[str, str]
    packed: Mapping[str, bytes]


def manifest_name(spec: ClusterSpec) -> str:
    """The name of the objects: the spec's, as a DNS label that begins with a letter (RFC 1035, as Services want it).

    It is the same each time, as `kubectl apply` wants.
    """
    name = re.sub("[^a-z0-9]+", "-", spec.name.lower()).strip("-")
    return name if re.match("[a-z]", name) else f"orch-{name}".strip("-")


def imagine(spec: ClusterSpec, form: Form) -> Plan:
    """The plan of the tasks in their pods. Raises `SpecError` for a spec that needs a controller, or whose names or numbers do not fit."""
    name = manifest_name(spec)
    _refuse(spec, name)
    hosts, assignment = [], {}
    port = spec.ports[0] if spec.ports else DEFAULT_PORT
    for task in (TaskId(kind, index) for kind, count in spec.counts.items() for index in range(count)):
        host = host_name(name, task, form)
        # The name of the Service is enough: the pods search in their own namespace.
        ports = (port,) if named(spec.strategy).opens_port(task.type) else ()
        hosts.append(
            HostFacts(host, f"{host}.{name}", None, ports, workdir=CODE_DIR if spec.backend.copies_workdir else None, is_here=False)
        )
        assignment[host] = (task,)
    return plan.make(name, _alone(spec), assignment, hosts)


def _alone(spec: ClusterSpec) -> ClusterSpec:
    """The spec without what only a controller does."""
    return replace(
        spec,
        prepare=type(spec.prepare)(),
        tensorboard="",
        timeouts=replace(spec.timeouts, save_before_s=None),
        tasks=tuple(replace(tasks, least=0) for tasks in spec.tasks),
    )


def host_name(name: str, task: TaskId, form: Form) -> str:
    """The host name of a task's pod: that of its Job, and its index; a JobSet numbers the Jobs of a type, of which there is one."""
    return f"{name}-{task.type}-0-{task.index}" if form == "jobset" else f"{name}-{task.type}-{task.index}"


def _refuse(spec: ClusterSpec, name: str) -> None:
    problems = []
    longest = max(len(host_name(name, TaskId(kind, max(count - 1, 0)), "jobset")) for kind, count in spec.counts.items())
    if longest + _SUFFIX > MOST_NAME:
        most = len(name) - (longest + _SUFFIX - MOST_NAME)
        problems.append(
            Problem("name", f"name: {spec.name!r} gives pods names of more than {MOST_NAME} characters", f"take at most {most}")
        )
    if any(spec.counts.get(kind) for kind in DATA_SERVICE):
        problems.append(Problem("tasks", "a manifest alone has no servers of the tf.data service", "use orch up --backend kubernetes"))
    if spec.network == "private":
        problems.append(
            Problem("network", "network: private is for tasks on one machine", "leave it out: the NetworkPolicy is in the manifest")
        )
    variables = dict.fromkeys(spec.env, "defaults.env") | {name: f"tasks.{one.type}.env" for one in spec.tasks for name in one.env}
    for variable, place in variables.items():
        if hide_secrets(f"{variable}=x") != f"{variable}=x":
            said = f"{variable} looks like a secret, and everybody who reads the manifest would read it"
            problems.append(Problem(place, said, "put it into a Secret of the namespace, and name that one in backend.secrets"))
    if problems:
        raise SpecError(*problems)


def notes(spec: ClusterSpec, form: Form) -> Iterator[str]:
    """Return what the manifest lacks, one line each."""
    lacking = [key for key, value in _NOT_THERE.items() if value(spec)]
    if lacking:
        yield f"{', '.join(lacking)}: not in a manifest, which runs without a controller; orch up --backend kubernetes has them"
    strategy = named(spec.strategy)
    servers = [kind for kind, count in spec.counts.items() if count and not strategy.role(kind).decides]
    if form == "job" and servers:
        yield f"Jobs alone do not end the {' and '.join(servers)} pods when the training is done; a JobSet does"
    if form == "job" and any(strategy.role(kind).synchronous and count for kind, count in spec.counts.items()) and spec.size > 1:
        yield "a Job starts a failed pod again, and the others fail and follow; a JobSet starts all at once"
    if spec.restart.max and not spec.checkpoints.dir:
        yield "restart: a new pod has no file of the old: mount a claim (backend.volumes), and name a directory of it (checkpoints.dir)"


def objects(planned: Plan, settings: KubernetesSettings, files: ManifestFiles, form: Form) -> tuple[Manifest, ...]:
    """All objects, in the order in which they are to be made. Raises `SpecError` or `UsageError` if one of them would be too large."""
    spec, name = planned.spec, planned.run_id
    labels = labels_of(name)
    held = ManifestFiles({**files.texts, ORDERS: json.dumps(_orders(planned), indent=1) + "\n"}, files.packed)
    groups = [_group(planned, settings, kind, count, form) for kind, count in spec.counts.items() if count]
    made: list[Manifest] = [network_policy(name, labels, labels), _config_map(name, labels, held)]
    if form == "jobset":
        made.append(job_set(name, labels, groups, spec, settings))
    else:
        made = [service(name, labels, labels), *made, *jobs(name, labels, groups, spec, settings)]
    if settings.namespace:
        for one in made:
            one["metadata"] = {"name": one["metadata"]["name"], "namespace": settings.namespace, **one["metadata"]}
    return tuple(made)


def _config_map(name: str, labels: Mapping[str, str], files: ManifestFiles) -> Manifest:
    import base64

    size = sum(len(text.encode()) for text in files.texts.values()) + sum(map(len, files.packed.values()))
    if size > MOST_BYTES:
        largest = max(files.packed, key=lambda key: len(files.packed[key]), default="")
        raise UsageError(
            f"the code takes {size / 1024:,.0f} KiB packed, of which {largest} has {len(files.packed.get(largest, b'')) / 1024:,.0f}, "
            f"and a ConfigMap holds {MOST_BYTES // 1024:,} KiB. "
            "fix: put it into the image (backend.code_in_image: true), or name data in .gitignore"
        )
    packed = {key: base64.b64encode(data).decode("ascii") for key, data in files.packed.items()}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "labels": dict(labels)},
        "data": dict(files.texts),
        "binaryData": packed,
    }


# --- the tasks -----------------------------------------------------------------------------------


def _orders(planned: Plan) -> dict[str, Any]:
    """Return what pod_entry.py reads: an order for each type of tasks, and one for each task that has settings of its own."""
    spec, found = planned.spec, {}
    first_rank = 0
    inter_op = named(spec.strategy).fewest_inter_op_threads(spec.counts)
    peers = sorted({facts.address for facts in planned.hosts}) if planned.clusters else []
    for kind, count in spec.counts.items():
        tasks = [task for task in planned.tasks if task.id.type == kind]
        for task in tasks:
            order = _order(planned, task.order)
            data = {"first_rank": first_rank, "trains": trains(kind), "inter_op": inter_op, "peers": peers, **order}
            if kind not in found:
                found[kind] = data
            elif found[kind] != data:
                found[str(task.id)] = data
        first_rank += count if trains(kind) else 0
    return found


def _order(planned: Plan, order: TaskOrder) -> dict[str, Any]:
    """The order of one task, without what its index says."""
    indexed = ("ORCH_TASK", "RANK", "ORCH_IS_CHIEF", "ORCH_ATTEMPT")
    spec = planned.spec
    env = {**planned.env, **_checkpoint_dir(planned)} | dict(order.env)
    data = to_json(
        replace(order, task="worker-0", port=None, log_dir="log", cwd=CODE_DIR if spec.backend.copies_workdir else spec.workdir, env={})
    )
    is_ours = trains(TaskId.parse(order.task).type)
    return {"env": {name: value for name, value in env.items() if name not in indexed or not is_ours}, "order": data}


def _checkpoint_dir(planned: Plan) -> dict[str, str]:
    directory = planned.spec.checkpoints.dir
    return {"ORCH_CHECKPOINT_DIR": f"{directory.rstrip('/')}/{planned.run_id}"} if directory else {}


def _group(planned: Plan, settings: KubernetesSettings, kind: str, count: int, form: Form) -> Group:
    spec = planned.spec
    tasks = [task for task in planned.tasks if task.id.type == kind]
    strategy = named(spec.strategy)
    # Kubernetes adds the index as the last variable, and only those before it can be used in the next ones.
    env: dict[str, Any] = {INDEX_VARIABLE: _field(f"metadata.annotations['{_INDEX}']")}
    first, last = int(form == "job"), 3 if form == "job" or strategy.role(kind).restarts_alone else 1
    env |= {name: _field(f"metadata.annotations['{key}']") for name, key in [*zip(RESTARTS, _RESTARTS, strict=True)][first:last]}
    if (text := planned.tf_config(tasks[0])) is not None:
        if len(text) > EXEC_LIMIT:
            said = f"the TF_CONFIG of {count_of(spec.size, 'task')} has {len(text):,} bytes, and a variable of a process holds 128 KiB"
            raise SpecError(Problem("tasks", said, "use orch up --backend kubernetes"))
        env["TF_CONFIG"] = _with_index(text)
    python = spec.python or "python3"
    wish = PodWish(
        command=tuple(map(literal, (python, f"{FILES_DIR}/start.py", FILES_DIR, kind))),
        labels=labels_of(planned.run_id),
        env=env,
        gpus=_gpus(spec, kind),
        grace_s=spec.timeouts.grace_s,
        ports=tuple(planned.hosts[0].ports) if strategy.opens_port(kind) else (),
    )
    template = pod_template(replace(settings, pod=replace(settings.pod, queue="")), wish)
    _mount(template, planned.run_id)
    return Group(kind, count, template, strategy.role(kind))


def _field(path: str) -> Manifest:
    return {"valueFrom": {"fieldRef": {"fieldPath": path}}}


def _gpus(spec: ClusterSpec, kind: str) -> int:
    """The GPUs of a pod: all pods of a type are alike, so as many as any of its tasks wants."""
    tasks = next(tasks for tasks in spec.tasks if tasks.type == kind)
    return max((tasks.devices_of(index).gpus.count or 0 for index in range(tasks.count)), default=0)


def _with_index(tf_config: str) -> str:
    """The text for all tasks of a type: Kubernetes puts the index in (`$(NAME)` in the value of a variable)."""
    head, mark, tail = tf_config.rpartition('"index": 0')
    assert mark, tf_config
    return f'{literal(head)}"index": $({INDEX_VARIABLE}){literal(tail)}'


def _mount(template: Manifest, name: str) -> None:
    """The ConfigMap, as files; and the last lines of a container's output as its termination message, if the task has written none."""
    spec = template["spec"]
    main = next(one for one in spec["containers"] if one["name"] == "main")
    main["terminationMessagePolicy"] = "FallbackToLogsOnError"
    main.setdefault("volumeMounts", []).append({"name": "orch-files", "mountPath": FILES_DIR, "readOnly": True})
    spec.setdefault("volumes", []).append({"name": "orch-files", "configMap": {"name": name}})
