"""Settings of GPUs with several notations: the GPUs, memory growth, the split into logical GPUs."""

from __future__ import annotations

import re

from worker.fast_dataclass import dataclass

from ... import device_names
from ..findings import Findings, quoted, shown
from ..kinds import Flag, Integer, JsonSchema, is_scalar, parts_of
from ..tree import Node

MAX_GPUS = 1024
_UUID = re.compile("(GPU|MIG)-[A-Za-z0-9/-]{1,120}")


@dataclass(frozen=True, slots=True)
class GpuWish:
    """The GPUs that a task requests: a number, or a list, or (``auto``) its share of the host's GPUs."""

    count: int | None = None
    ids: tuple[str, ...] = ()
    """Indices and UUIDs."""

    @property
    def is_auto(self) -> bool:
        return self.count is None and not self.ids


_FORMS = "must be auto, a number of GPUs, or a list of GPUs: 0,2, GPU-… or /device:GPU:0"


@dataclass(frozen=True, slots=True)
class Gpus:
    """``auto``, a count, or a list of GPUs: indices, UUIDs, device names. ``0,2`` is a list as well."""

    def check(self, node: Node, path: str, findings: Findings) -> GpuWish | None:
        if isinstance(node.value, int) and not isinstance(node.value, bool):
            count = Integer(0, MAX_GPUS).check(node, path, findings)
            return None if count is None else GpuWish(count=count)
        if node.text.strip().lower() == "auto":
            return GpuWish()
        before = len(findings.found)
        ids = tuple(self._id(item, path, findings) for item in parts_of(node))
        if twice := [found for found in ids if found and ids.count(found) > 1]:
            findings.add(node, path, f"names GPU {twice[0]} twice")
        if len(findings.found) > before:
            return None
        return GpuWish(ids=ids) if ids else GpuWish(count=0)

    def _id(self, item: Node, path: str, findings: Findings) -> str:
        """The digits of an index, or a UUID; empty after a mistake."""
        text = item.text.strip() if is_scalar(item) else ""
        if _UUID.fullmatch(text):
            return text
        if re.fullmatch("[0-9]{1,4}", text):
            return str(int(text))
        name = device_names.parse(text)
        if name is None:
            findings.add(item, path, f"{_FORMS}, not {shown(item)}")
        elif name.kind != "GPU":
            findings.add(item, path, f"{quoted(text)} is not a GPU", "for logical CPU devices write cpus: 2")
        elif not name.is_local:
            findings.add(
                item, path, f"{quoted(text)} is a device of another task", f"write {name}: a task can only be given GPUs of its own host"
            )
        else:
            return str(name.index)
        return ""

    def json_schema(self) -> JsonSchema:
        return {"type": ["integer", "string", "array"]}

    def write(self, wish: GpuWish) -> int | list[str] | None:
        return list(wish.ids) or wish.count


class Growth(Flag):
    """``true`` or ``false``, for all GPUs of a task."""

    __slots__ = ()

    def check(self, node: Node, path: str, findings: Findings) -> bool | None:
        if isinstance(node.value, list):
            findings.add(node, path, "must be the same for all GPUs of one task, as TensorFlow wants", "write true or false")
            return None
        return Flag.check(self, node, path, findings)
