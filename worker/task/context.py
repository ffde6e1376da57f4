"""The task of this process, read from its environment."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path

from ..settings.task_settings import VARIABLE, TaskSettings
from ..values.codec import from_json
from .patches import refusal
from .strategy.pasted_cluster import strategy_of

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
    cluster, type_, index = _read_tf_config(os.environ.get("TF_CONFIG", ""))
    env: Mapping[str, str] = {}  # without orch, these variables are left over from another program
    if "ORCH_TASK" in os.environ:
        env = os.environ
        type_, _, digits = env["ORCH_TASK"].rpartition("-")
        index = int(digits)
    rank, world_size, local_rank, local_world_size = _ranks(cluster, type_, index)
    # As is_chief in tensorflow/python/distribute/multi_worker_util.py: without a chief, worker 0 is the chief.
    leads = type_ == "chief" or (type_ == "worker" and index == 0 and "chief" not in cluster)
    return Context(
        task=f"{type_}-{index}",
        type=type_,
        index=index,
        is_chief=env["ORCH_IS_CHIEF"] == "1" if "ORCH_IS_CHIEF" in env else leads,
        run_id=env.get("ORCH_RUN_ID", ""),
        attempt=int(env.get("ORCH_ATTEMPT", 1)),
        rank=int(env.get("RANK", rank)),
        world_size=int(env.get("WORLD_SIZE", world_size)),
        local_rank=int(env.get("LOCAL_RANK", local_rank)),
        local_world_size=int(env.get("LOCAL_WORLD_SIZE", local_world_size)),
        cluster=cluster,
        run_dir=Path(env["ORCH_RUN_DIR"]) if "ORCH_RUN_DIR" in env else None,
        checkpoint_dir=Path(env["ORCH_CHECKPOINT_DIR"]) if "ORCH_CHECKPOINT_DIR" in env else None,
        settings=_settings(env, cluster),
        data_service=os.environ.get("ORCH_DATA_SERVICE") or None,
    )


def _ranks(cluster: Mapping[str, tuple[str, ...]], type_: str, index: int) -> tuple[int, int, int, int]:
    """The rank and the number of the tasks in a cluster, and the same among the tasks on this host."""
    order = [*(name for name in _TYPES if name in cluster), *(name for name in cluster if name not in _TYPES)]
    tasks = [(name, i) for name in order for i in range(len(cluster[name]))]
    hosts = [address.rpartition(":")[0] for name in order for address in cluster[name]]
    # The evaluator of a cluster may be missing in TF_CONFIG's cluster.
    rank = tasks.index((type_, index)) if (type_, index) in tasks else 0
    here = [i for i, host in enumerate(hosts) if host == hosts[rank]] or [0]
    return rank, len(tasks) or 1, here.index(rank), len(here)


def _settings(env: Mapping[str, str], cluster: Mapping[str, tuple[str, ...]]) -> TaskSettings:
    return from_json(TaskSettings, json.loads(env.get(VARIABLE, "{}"))) if env else TaskSettings(strategy=strategy_of(cluster))


# --- TF_CONFIG ---------------------------------------------------------------------------------


_FORM = '{"cluster": {"worker": ["HOST:PORT", ...]}, "task": {"type": "worker", "index": 0}}, with a task of this cluster'


def _read_tf_config(text: str) -> tuple[Mapping[str, tuple[str, ...]], str, int]:
    """The cluster, the task's type and index, read and checked as TensorFlow does; a chief without TF_CONFIG."""
    if not text.strip():
        return {}, "chief", 0
    try:
        config = json.loads(text)
        cluster = {name: tuple(addresses) for name, addresses in config.get("cluster", {}).items() if addresses}
        task = config.get("task", {})
        if not task and not cluster:
            return {}, "chief", 0
        type_, index = task["type"], int(task.get("index", 0))
        count = len(cluster.get(type_, ()))
        # Under ParameterServerStrategy an evaluator is not in the cluster.
        is_known = index < count or not cluster or (type_ == "evaluator" and not count)
        is_valid = isinstance(type_, str) and index >= 0 and all(":" in address for found in cluster.values() for address in found)
    except (ValueError, TypeError, AttributeError, LookupError):
        is_known = is_valid = False
    if not (is_known and is_valid):
        raise refusal(ValueError(f"TF_CONFIG: expected {_FORM}, got {text:.200}"))
    return cluster, type_, index
