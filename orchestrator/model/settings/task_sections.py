"""The keys of `tasks:` and `devices:`: the tasks of each type, and their devices."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from worker.protocol.task_id import DATA_SERVICE, PREPARE, TENSORBOARD
from worker.settings.declare import Setting, setting
from worker.settings.device_settings import DeviceSettings
from worker.settings.input_settings import InputSettings
from worker.values.fast_dataclass import dataclass

from ..strategies import which, with_tasks
from .derive import plain, struct_of
from .gpu_wish import Gpus, GpuWish
from .kinds import Integer, JsonSchema, Mapping_, Struct, is_scalar
from .tree import Node, refusal, scalar

MAX_TASKS = 100_000


def trains(task_type: str) -> bool:
    """True if tasks of this type are in the training cluster. An evaluator, and a task of the tf.data service or of orch's own, are not."""
    return task_type not in ("evaluator", PREPARE, TENSORBOARD, *DATA_SERVICE)


@dataclass(frozen=True, slots=True)
class TaskDevices:
    """The devices of one task: its GPUs, their settings, and whether it is tied to cores."""

    NAME = "devices"

    settings: DeviceSettings = setting(DeviceSettings(), "", inline=DeviceSettings)
    gpus: GpuWish = setting(
        GpuWish(),
        "The GPUs of each task: auto, a number (0 hides all GPUs), or a list of GPUs (0,2 or GPU:1 or UUIDs).",
        kind=Gpus(),
        example="auto",
        words="auto: the host's GPUs, shared out evenly among the tasks that compute",
        flag="--gpus",
        metavar="GPUS",
        everywhere=True,
    )
    share_gpus: bool = setting(False, "Let several tasks use the same GPU.", flag="--share-gpus", everywhere=True)
    affinity: bool = setting(
        False, "Tie each task to its share of the host's cores (Linux).", example="true", flag="--affinity", everywhere=True
    )


class Overrides(Mapping_):
    """Settings of single tasks, by index."""

    __slots__ = ()

    def write(self, overrides: Mapping[int, TaskDevices]) -> dict[str, Any]:
        return {str(index): {"devices": plain(devices)} for index, devices in overrides.items()}


def _index_complaint(name: str) -> str:
    return "" if re.fullmatch("0|[1-9][0-9]{0,8}", name) else "is not the index of a task: write 0 for worker-0"


class Workers(Integer):
    """A number of tasks, or ``2:4``: the fewest and the most of an elastic cluster. The value is then a pair."""

    __slots__ = ()

    def read(self, node: Node) -> Any:
        ends = re.fullmatch("([0-9]{1,6}) *: *([0-9]{1,6})", node.text) if is_scalar(node) else None
        if ends is None:
            return Integer.read(self if node.text == "auto" else replace(self, hint="write a number, or a range such as 2:4"), node)
        least, most = (Integer.read(self, scalar(end, node.place)) for end in ends.groups())
        if least > most:
            raise refusal(node.place, f"{node.text}: at least {least} and at most {most} workers", f"write {most}:{least}")
        return (least, most) if least < most else most

    def json_schema(self) -> JsonSchema:
        return {"anyOf": [Integer.json_schema(self), {"type": "string", "pattern": ":"}]}


DEVICES, INPUT = struct_of(TaskDevices), struct_of(InputSettings)
_OVERRIDE = Struct({"devices": Setting("This task's devices, over those of its type.", "{gpus: [0]}", "those of its type", kind=DEVICES)})


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """All tasks of one type. `args` None: the arguments of the cluster."""

    SHORTHAND = "count"

    type: str
    count: int = setting(..., "The number of tasks.", example="2", words="1", live=True)
    args: tuple[str, ...] | None = setting(
        None, "Arguments of these tasks, in place of the cluster's.", example='["--epochs", "5"]', words="args of the cluster"
    )
    env: Mapping[str, str] = setting({}, "Environment variables of these tasks. They win over defaults.env.", example="{NAME: value}")
    devices: TaskDevices = setting(
        TaskDevices(), "Devices of these tasks. Other keys of defaults.devices stay.", example="{cpus: 1}", words="defaults.devices"
    )
    input: InputSettings = setting(
        InputSettings(), "Input of these tasks. Other keys of the cluster's input stay.", example="data", words="input of the cluster"
    )
    overrides: Mapping[int, TaskDevices] = setting(
        {}, "Settings of single tasks, by index.", kind=Overrides(_OVERRIDE, _index_complaint), example="{0: {devices: {cpus: 1}}}"
    )

    least: int = 0
    """The fewest workers of an elastic cluster, of which `count` is the most; 0: there are always `count`."""

    def devices_of(self, index: int) -> TaskDevices:
        return self.overrides.get(index, self.devices)


def _tasks(least: int, most: int, *names: str, kind: type[Integer] = Integer) -> Struct:
    """The keys of a type with `least` to `most` tasks: those in `names`, or all."""
    keys = {name: key for name, key in struct_of(TaskSpec).keys.items() if not names or name in names}
    return Struct({**keys, "count": replace(keys["count"], kind=kind(least, most))}, shorthand="count")


TASKS = Struct(
    {
        "chief": Setting(
            "A chief, the task that leads the training; in orch.yaml 0 or 1.",
            "1",
            f"one under {which(lambda row: bool(row.default_counts['chief']))}, else none (worker-0 leads)",
            kind=_tasks(0, 1),
            flag="--chief",
        ),
        "worker": Setting(
            "The number of workers, the tasks that train, or a range such as 2:4: as many as the hosts have room for.",
            words="1; with hosts, one for each slot that the other tasks do not use",
            kind=_tasks(1, MAX_TASKS, kind=Workers),
            live=True,
            flag="-n --workers",
        ),
        "ps": Setting(f"Parameter servers, for strategy {with_tasks('ps')} only.", "1", "0", kind=_tasks(0, MAX_TASKS), flag="--ps"),
        "evaluator": Setting(
            "An evaluator, a task that evaluates checkpoints; in orch.yaml 0 or 1.", "1", "none", kind=_tasks(0, 1), flag="--evaluator"
        ),
        "data_worker": Setting(
            "Servers of the tf.data service, with a dispatcher. They prepare the input of the training.",
            "2",
            "0",
            kind=_tasks(0, MAX_TASKS, "count", "env"),
            flag="--data-workers",
        ),
    },
    misplaced={
        "master": "TensorFlow 2 has no such task type: use 'chief'",
        "dispatcher": "leave it out: data_worker: 2 brings a dispatcher",
    },
)
