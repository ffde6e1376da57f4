"""The setting `gpus`, which has several notations."""

from __future__ import annotations

import re
from typing import Any

from worker.values.fast_dataclass import dataclass

from .. import device_names
from .findings import quoted, shown
from .kinds import MAX_NUMBER, Integer, JsonSchema, Kind, is_scalar, parts_of
from .tree import Node, refusal

_UUID = "(GPU|MIG)-[A-Za-z0-9/-]{1,120}"


@dataclass(frozen=True, slots=True)
class GpuWish:
    """The GPUs that a task requests: a number, or a list, or (``auto``) its share of the host's GPUs."""

    count: int | None = None
    ids: tuple[str, ...] = ()

    @property
    def is_auto(self) -> bool:
        return self.count is None and not self.ids


class Gpus(Kind):
    """``auto``, a count, or a list of GPUs: indices, UUIDs, device names. ``0,2`` is a list as well."""

    __slots__ = ()

    def read(self, node: Node) -> Any:
        if isinstance(node.value, int) and not isinstance(node.value, bool):
            return GpuWish(count=Integer(0, MAX_NUMBER).read(node))
        if node.text.strip().lower() == "auto":
            return GpuWish()
        ids = tuple(_id(item) for item in parts_of(node))
        if twice := [found for found in ids if ids.count(found) > 1]:
            raise refusal(node.place, f"names GPU {twice[0]} twice")
        return GpuWish(ids=ids) if ids else GpuWish(count=0)

    def write(self, wish: GpuWish) -> int | list[str] | None:
        return list(wish.ids) or wish.count

    def json_schema(self) -> JsonSchema:
        return {"type": ["integer", "string", "array"]}


def _id(item: Node) -> str:
    """The digits of an index, or a UUID. Raises `SpecError`."""
    text = item.text.strip() if is_scalar(item) else ""
    if re.fullmatch("[0-9]{1,4}", text):
        return str(int(text))
    name = device_names.parse(text)
    if re.fullmatch(_UUID, text):
        return text
    if name is None:
        hint = "write auto" if text.lower() == "all" else "write auto, 2 or 0,2 (or GPU-…, /device:GPU:0)"
        raise refusal(item.place, f"must be auto, a number or a list of GPUs, not {shown(item)}", hint)
    if name.kind != "GPU" or not name.is_local:
        raise refusal(item.place, f"{quoted(text)} is not a GPU of the task's own host", "write GPU:0; for logical CPU devices cpus: 2")
    return str(name.index)
