"""The task of this process, read from its environment."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..settings.task_settings import TaskSettings

_TYPES = ("chief", "worker", "ps", "evaluator")


@dataclasses.dataclass(frozen=True, slots=True)  # not fast_dataclass: a user's script gets the usual checks
class Context:
    """This task, its cluster and its run."""

    task: str
    """`type` and `index`: ``worker-0``."""
    type: str
    """TensorFlow's task type: ``worker``."""
    index: int
    """TensorFlow's index within the type, from 0."""
    is_chief: bool
    run_id: str
    """Empty outside orch."""
    attempt: int
    """From 1; a restart is another attempt."""
    rank: int
    """The number of this task among all tasks of the cluster, from 0."""
    world_size: int
    """The number of tasks of the cluster."""
    local_rank: int
    """As `rank`, among the tasks on this host."""
    local_world_size: int
    """As `world_size`, of the tasks on this host."""
    cluster: Mapping[str, tuple[str, ...]]
    """The cluster of TF_CONFIG: the ``host:port`` of each task, by task type. Empty without TF_CONFIG."""
    run_dir: Path | None
    """None outside orch, as `checkpoint_dir`."""
    checkpoint_dir: Path | None
    settings: TaskSettings
    """The spec's settings for the inside of this task; the defaults outside orch."""
    data_service: str | None = None
    """The argument of `tf.data.experimental.service.distribute`, such as ``grpc://localhost:41000``; None without data workers."""

    @property
    def strategy(self) -> str:
        """The spec's name of the strategy, such as ``multi_worker_mirrored``."""
        return self.settings.strategy


def context() -> Context:
    """See `worker.context`."""
    env = os.environ
    cluster, type_, index = _read_tf_config(env.get("TF_CONFIG", ""))
    if "ORCH_TASK" not in env:
        return _by_hand(cluster, type_ or "chief", index)
    task = env["ORCH_TASK"]
    type_, _, digits = task.rpartition("-")
    if not (type_ and digits.isdecimal()):
        raise ValueError(f"ORCH_TASK: expected TYPE-INDEX, such as worker-0, got {task!r}")
    index = int(digits)
    is_chief = env.get("ORCH_IS_CHIEF")
    return Context(
        task=task,
        type=type_,
        index=index,
        is_chief=is_chief == "1" if is_chief else _leads(cluster, type_, index),
        run_id=env.get("ORCH_RUN_ID", ""),
        attempt=_number("ORCH_ATTEMPT", 1),
        rank=_number("RANK", 0),
        world_size=_number("WORLD_SIZE", 1),
        local_rank=_number("LOCAL_RANK", 0),
        local_world_size=_number("LOCAL_WORLD_SIZE", 1),
        cluster=cluster,
        run_dir=_path("ORCH_RUN_DIR"),
        checkpoint_dir=_path("ORCH_CHECKPOINT_DIR"),
        settings=_settings(),
        data_service=env.get("ORCH_DATA_SERVICE") or None,
    )


def _by_hand(cluster: Mapping[str, tuple[str, ...]], type_: str, index: int) -> Context:
    order = [*(name for name in _TYPES if name in cluster), *(name for name in cluster if name not in _TYPES)]
    tasks = [(name, i) for name in order for i in range(len(cluster[name]))]
    hosts = [address.rpartition(":")[0] for name in order for address in cluster[name]]
    # The evaluator of a cluster may be missing in TF_CONFIG's cluster.
    rank = tasks.index((type_, index)) if (type_, index) in tasks else 0
    here = [i for i, host in enumerate(hosts) if host == hosts[rank]] or [0]
    from ..settings.task_settings import TaskSettings
    from .strategy.strategy_builder import of_cluster

    return Context(
        task=f"{type_}-{index}",
        type=type_,
        index=index,
        is_chief=_leads(cluster, type_, index),
        run_id="",
        attempt=1,
        rank=rank,
        world_size=len(tasks) or 1,
        local_rank=here.index(rank),
        local_world_size=len(here),
        cluster=cluster,
        run_dir=None,
        checkpoint_dir=None,
        settings=TaskSettings(strategy=of_cluster(cluster)),
        data_service=os.environ.get("ORCH_DATA_SERVICE") or None,
    )


def _settings() -> TaskSettings:
    from ..protocol.codec import from_json
    from ..settings.task_settings import VARIABLE, TaskSettings

    try:
        return from_json(TaskSettings, json.loads(os.environ.get(VARIABLE) or "{}"))
    except ValueError as error:
        raise ValueError(f"{VARIABLE}: {error}") from None


def _leads(cluster: Mapping[str, tuple[str, ...]], type_: str, index: int) -> bool:
    # tensorflow/python/distribute/multi_worker_util.py, is_chief: without a chief, worker 0 is the chief.
    return type_ == "chief" or (type_ == "worker" and index == 0 and "chief" not in cluster)


def _number(name: str, default: int) -> int:
    text = os.environ.get(name) or str(default)
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{name}: expected a whole number, got {text!r}") from None


def _path(name: str) -> Path | None:
    text = os.environ.get(name)
    return Path(text) if text else None


# --- TF_CONFIG ---------------------------------------------------------------------------------


_FORM = '{"cluster": {"worker": ["HOST:PORT", ...]}, "task": {"type": "worker", "index": 0}}, with a task of this cluster'


def _read_tf_config(text: str) -> tuple[Mapping[str, tuple[str, ...]], str | None, int]:
    """The cluster, the task type and the task index. Read as in TensorFlow (TFConfigClusterResolver), and checked."""
    if not text.strip():
        return {}, None, 0
    try:
        config = json.loads(text)
        cluster = {name: tuple(addresses) for name, addresses in config.get("cluster", {}).items() if addresses}
        task = config.get("task", {})
        if not task and not cluster:
            return {}, None, 0
        type_, index = task["type"], int(task.get("index", 0))
        count = len(cluster.get(type_, ()))
        # Under ParameterServerStrategy an evaluator is not in the cluster.
        is_known = index < count or not cluster or (type_ == "evaluator" and not count)
        is_valid = isinstance(type_, str) and index >= 0 and all(":" in address for found in cluster.values() for address in found)
    except (ValueError, TypeError, AttributeError, LookupError):
        is_known = is_valid = False
    if not (is_known and is_valid):
        raise ValueError(f"TF_CONFIG: expected {_FORM}, got {text:.200}")
    return cluster, type_, index
