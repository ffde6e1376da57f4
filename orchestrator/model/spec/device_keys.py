"""The keys below `devices`: how each is checked, what it means to a task, and how it is written back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from worker.contract import DeviceSettings
from worker.records import dataclass

from .. import device_names
from .findings import Findings, quoted, shown
from .kinds import Flag, Integer, JsonSchema, Key, Mapping_, Struct, is_scalar
from .sections import GpuWish, TaskDevices
from .tree import Node, scalar

MAX_CPUS = 1024
MAX_GPUS = 1024
MAX_MEMORY_MB = 100_000_000
_UUID = re.compile("(GPU|MIG)-[A-Za-z0-9/-]{1,120}")


def _parts(node: Node) -> list[Node]:
    """A list that a flag or a variable gives as a text: ``0,2``, ``0,``, ``[0]``."""
    return [scalar(part.strip(), node.place) for part in node.text.strip("[] ").rstrip(",").split(",")]


@dataclass(frozen=True, slots=True)
class Gpus:
    """``auto``, a count, or a list of GPUs: indices, UUIDs, device names. ``0,2`` is a list as well."""

    def check(self, node: Node, path: str, findings: Findings) -> GpuWish | None:
        if isinstance(node.value, int) and not isinstance(node.value, bool):
            count = Integer(0, MAX_GPUS).check(node, path, findings)
            return None if count is None else GpuWish(count=count)
        if isinstance(node.value, str) and node.value.strip().lower() == "auto":
            return GpuWish()
        if isinstance(node.value, list):
            return self._list(node.value, path, findings)
        if isinstance(node.value, str) and node.value.strip():
            return self._list(_parts(node), path, findings)
        findings.add(node, path, f"must be auto, a number of GPUs, or a list of GPUs, not {shown(node)}", "write auto, 2 or [0, 2]")
        return None

    def _list(self, items: list[Node], path: str, findings: Findings) -> GpuWish | None:
        ids: list[str] = []
        for item in items:
            found = self._id(item, path, findings)
            if found is None:
                return None
            if found in ids:
                findings.add(item, path, f"names GPU {found} twice")
                return None
            ids.append(found)
        return GpuWish(ids=tuple(ids)) if ids else GpuWish(count=0)

    def _id(self, item: Node, path: str, findings: Findings) -> str | None:
        """An index as its digits, a UUID as it is."""
        if isinstance(item.value, int) and not isinstance(item.value, bool) and 0 <= item.value < MAX_GPUS:
            return str(item.value)
        text = item.text.strip() if is_scalar(item) else ""
        if _UUID.fullmatch(text):
            return text
        if re.fullmatch("[0-9]{1,4}", text):
            return str(int(text))
        name = device_names.parse(text)
        hint = "an index (0), a UUID (GPU-… or MIG-…) or a device name (/device:GPU:0)"
        if name is None:
            findings.add(item, path, f"{shown(item)} is not a GPU", hint)
        elif name.kind != "GPU":
            findings.add(item, path, f"{quoted(text)} is not a GPU", "for logical CPU devices write cpus: 2")
        elif not name.is_local:
            findings.add(
                item, path, f"{quoted(text)} is a device of another task", f"write {name}: a task can only be given GPUs of its own host"
            )
        else:
            return str(name.index)
        return None

    def json_schema(self) -> JsonSchema:
        item = {"type": ["integer", "string"]}
        return {"anyOf": [{"type": "integer", "minimum": 0, "maximum": MAX_GPUS}, {"type": "string"}, {"type": "array", "items": item}]}


@dataclass(frozen=True, slots=True)
class Growth:
    """``true`` or ``false``; or one for each GPU, as a list or by device name, which must all be the same."""

    def check(self, node: Node, path: str, findings: Findings) -> bool | None:
        if isinstance(node.value, dict):
            for name in node.value:
                device = device_names.parse(name)
                if device is None or device.kind != "GPU" or not device.is_local:
                    findings.add(node, path, f"{quoted(name)} is not a GPU of a task", "write true or false, for all of a task's GPUs")
                    return None
        items = list(node.value.values()) if isinstance(node.value, dict) else node.value if isinstance(node.value, list) else [node]
        found = [Flag().check(item, path, findings) for item in items]
        if None in found:
            return None
        if len(set(found)) != 1:
            wrong = "differs between the GPUs of one task" if found else "is empty"
            findings.add(node, path, f"{wrong}; TensorFlow wants the same for all of them", "write true or false")
            return None
        return found[0]

    def json_schema(self) -> JsonSchema:
        flag = {"type": "boolean"}
        return {"anyOf": [flag, {"type": "array", "items": flag}, {"type": "object", "additionalProperties": flag}]}


@dataclass(frozen=True, slots=True)
class Sizes:
    """A list of sizes in MB. ``1024,1024`` and a lone ``1024`` are lists too."""

    def check(self, node: Node, path: str, findings: Findings) -> tuple[int, ...] | None:
        size = Integer(1, MAX_MEMORY_MB)
        if isinstance(node.value, list):
            items = node.value
        elif isinstance(node.value, str):
            items = _parts(node)
        else:
            items = [node]
        found = [size.check(item, path, findings) for item in items]
        if not found:
            findings.add(node, path, "is empty", "write [1024, 1024] for two logical GPUs of 1 GB")
        return tuple(item for item in found if item is not None) if found and None not in found else None

    def json_schema(self) -> JsonSchema:
        size = Integer(1, MAX_MEMORY_MB).json_schema()
        return {"anyOf": [size, {"type": "array", "items": size, "minItems": 1}, {"type": "string", "pattern": "^[0-9 ,]+$"}]}


_SHARED_OUT = "the host's cores, shared out among its tasks"
_THREADS = Struct(
    {
        "intra": Key(Integer(1, MAX_CPUS), "Threads that one operation may use.", "2", _SHARED_OUT),
        "inter": Key(Integer(1, MAX_CPUS), "Operations that may run at the same time.", "2", _SHARED_OUT),
    }
)
DEVICES = Struct(
    {
        "gpus": Key(
            Gpus(),
            "Each task's GPUs: auto, how many, or which ([0, 2], UUIDs, device names). 0 hides them all.",
            "auto",
            "auto: the host's GPUs, shared out evenly among the tasks that compute",
        ),
        "share_gpus": Key(Flag(), "Let these tasks have GPUs that other tasks have as well.", "false", "false"),
        "memory_growth": Key(
            Growth(), "Let a task take GPU memory as it needs it, and not all at once.", "true", "false (TensorFlow's own)"
        ),
        "memory_limit_mb": Key(
            Integer(1, MAX_MEMORY_MB),
            "The most of each of its GPUs' memory that a task takes.",
            "null  # or 4096, without memory_growth",
            "all of it",
        ),
        "logical_gpus": Key(
            Sizes(),
            "Split each GPU of a task into logical ones of these sizes, in MB.",
            "null  # or [1024, 1024], without both above",
            "one, of all",
        ),
        "cpus": Key(Integer(1, MAX_CPUS), "How many logical CPU devices each task sees.", "1", "1"),
        "threads": Key(_THREADS, "The sizes of TensorFlow's thread pools."),
        "affinity": Key(Flag(), "Tie each task to its share of the host's cores (Linux).", "true", "false"),
        "soft_placement": Key(
            Flag(), "Let TensorFlow take another device where the one asked for is not there.", "false", "true (TensorFlow's own)"
        ),
        "log_placement": Key(Flag(), "Log the device of every operation, from the first one on.", "false", "false"),
        "xla": Key(Flag(), "Have XLA compile what it can (autoclustering).", "true", "false (TensorFlow's own)"),
        "tf32": Key(Flag(), "Let float32 matrices be multiplied in TensorFloat-32.", "false", "true (TensorFlow's own)"),
        "determinism": Key(
            Flag(), "Have every operation give the same result each time. The script must set a seed.", "true", "false (TensorFlow's own)"
        ),
    },
    name="devices",
)

_PLAIN = tuple(field.name for field in fields(DeviceSettings) if field.name in DEVICES.keys and field.name != "gpus")


def _override_complaint(name: str) -> str:
    return "" if re.fullmatch("0|[1-9][0-9]{0,8}", name) else "is not the index of a task: write 0 for worker-0"


_OVERRIDE = Struct({"devices": Key(DEVICES, "This task's devices, over those of its type.", "{gpus: [0]}", "those of its type")})
OVERRIDES = Mapping_(_OVERRIDE, _override_complaint, "^(0|[1-9][0-9]{0,8})$")


def read(*owners: Mapping[str, Any]) -> TaskDevices:
    """What the key `devices` of these checked mappings means in all, a later one over an earlier one."""
    merged: dict[str, Any] = {}
    threads: dict[str, Any] = {}
    for owner in owners:
        devices = owner.get("devices", {})
        merged |= devices
        threads |= devices.get("threads", {})
    wish: GpuWish = merged.get("gpus", GpuWish())
    settings = DeviceSettings(
        intra_op_threads=threads.get("intra"),
        inter_op_threads=threads.get("inter"),
        **{name: merged[name] for name in _PLAIN if name in merged},
    )
    return TaskDevices(settings, GpuWish(wish.count, wish.ids, merged.get("share_gpus", False)), merged.get("affinity", False))


def write(devices: TaskDevices) -> dict[str, Any]:
    """The way back: what `read` makes `devices` of."""
    settings, gpus = asdict(devices.settings), devices.gpus
    written: dict[str, Any] = {name: settings[name] for name in _PLAIN}
    if settings["logical_gpus"] is not None:
        written["logical_gpus"] = list(settings["logical_gpus"])
    written["threads"] = {"intra": settings["intra_op_threads"], "inter": settings["inter_op_threads"]}
    written["gpus"] = list(gpus.ids) if gpus.ids else gpus.count
    written["share_gpus"] = gpus.share
    written["affinity"] = devices.affinity
    return written
