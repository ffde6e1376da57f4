"""Types of TPU settings: a topology, a computation shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from worker.fast_dataclass import dataclass
from worker.tensorflow_facts.partition import ITEM_BYTES

from ... import tpu_topology
from ..findings import Findings
from ..kinds import JsonSchema, Kind, Numbers, OneOf, Text
from ..tree import Node


@dataclass(frozen=True, slots=True)
class Checked:
    """A type whose value has rules of its own."""

    kind: Kind
    rule: Callable[[Any], Any]
    """The value for the spec. Raises `ShapeError`."""

    def check(self, node: Node, path: str, findings: Findings) -> Any:
        found = self.kind.check(node, path, findings)
        try:
            return None if found is None else self.rule(found)
        except tpu_topology.ShapeError as error:
            findings.add(node, path, str(error), error.hint)
            return None

    def json_schema(self) -> JsonSchema:
        return self.kind.json_schema()


TOPOLOGY = Checked(Text(), lambda text: tpu_topology.parse(text).name)
COMPUTATION_SHAPE = Checked(Numbers("[1, 1, 1, 2]"), tpu_topology.computation_shape)
PARTS = Numbers("[1, 2, 4, 1]")
TENSOR_SHAPE = Numbers("[128, 224, 224, 3]", unknown=True)
DTYPE = OneOf(tuple(ITEM_BYTES), "the types")
