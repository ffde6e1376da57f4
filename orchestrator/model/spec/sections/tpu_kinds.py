"""Types of TPU settings: a topology, a computation shape, the partition of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from worker.fast_dataclass import dataclass
from worker.settings.declare import Setting
from worker.settings.tpu_settings import Partition
from worker.tensorflow_facts.partition import ITEM_BYTES

from ... import tpu_topology
from ..findings import Findings, quoted, shown
from ..kinds import JsonSchema, Numbers, OneOf, Struct, Text
from ..tree import Node


@dataclass(frozen=True, slots=True)
class Topology:
    """A name (``v3-8``) or four numbers (``2x2x1x2``). The value is the text."""

    def check(self, node: Node, path: str, findings: Findings) -> str | None:
        text = Text().check(node, path, findings)
        try:
            return text and tpu_topology.parse(text).name
        except tpu_topology.ShapeError as error:
            findings.add(node, path, str(error), error.hint)
            return None

    def json_schema(self) -> JsonSchema:
        return {"type": "string"}


@dataclass(frozen=True, slots=True)
class ComputationShape:
    """Four numbers: the devices of one replica in x, y, z and core."""

    def check(self, node: Node, path: str, findings: Findings) -> tuple[int, ...] | None:
        found = Numbers("[1, 1, 1, 2]").check(node, path, findings)
        if found is None:
            return None
        shape = tuple(number for number in found if number is not None)
        if problem := tpu_topology.shape_problem(shape):
            findings.add(node, path, problem, "write [1, 1, 1, 2] for two devices of one chip")
            return None
        return shape

    def json_schema(self) -> JsonSchema:
        return Numbers("").json_schema()


_PARTITION = Struct(
    {
        "dims": Setting("Into how many equal parts each dimension of the tensor is split.", "[1, 2, 4, 1]", kind=Numbers("[1, 2, 4, 1]")),
        "shape": Setting(
            "The tensor's shape; null where it is not known.", "[null, 224, 224, 3]", kind=Numbers("[128, 224, 224, 3]", unknown=True)
        ),
        "dtype": Setting("The type of its elements.", "float32", "float32", kind=OneOf(tuple(ITEM_BYTES), "the types")),
    },
    hint="write [1, 2, 4, 1], or {dims: [1, 2, 4, 1], shape: [128, 224, 224, 3]}",
)


@dataclass(frozen=True, slots=True)
class Partitions:
    """A mapping from the name of a tensor to its numbers of parts, alone or with shape and type."""

    def check(self, node: Node, path: str, findings: Findings) -> tuple[Partition, ...] | None:
        if not isinstance(node.value, dict):
            findings.add(node, path, f"must be a mapping, not {shown(node)}", "write {image: [1, 2, 4, 1]}")
            return None
        found = []
        for name, item in node.value.items():
            place = f"{path}.{quoted(name)[1:-1]}"
            short = Node({"dims": item}, item.place) if not isinstance(item.value, dict) else item
            value = _PARTITION.check(short, place, findings)
            if value is not None and "dims" not in value and findings.sound([f"{place}.dims"]):
                findings.add(item, place, "says nothing of the parts", "write dims: [1, 2, 4, 1]")
            elif value is not None and "dims" in value:
                found.append(Partition(name, value["dims"], value.get("shape"), value.get("dtype", "float32")))
        return tuple(found)

    def write(self, partitions: Sequence[Partition]) -> dict[str, Any]:
        return {one.name: _written(one) for one in partitions}

    def json_schema(self) -> JsonSchema:
        return {"type": "object", "additionalProperties": {"anyOf": [_PARTITION.definition(), Numbers("").json_schema()]}}


def _written(one: Partition) -> dict[str, Any]:
    shape = {} if one.shape is None else {"shape": list(one.shape)}
    return {"dims": list(one.dims), **shape, "dtype": one.dtype}
