"""Variables that are read on one device and used on another, from the names in a placement log.

TensorFlow adds a copy between devices when it partitions a graph, after placement; so the log has no line for the copy. The log has the
names of all nodes, and two rules of TensorFlow show the device of a variable:

- A ``ReadVariableOp`` always lands on its variable's device (colocation with the resource, placer.cc), whatever `tf.device` says.
- A variable that is handed to an op is read inside the op's own name scope: the read of node ``layer/MatMul`` is called
  ``layer/MatMul/ReadVariableOp`` (`convert_to_tensor` in ops.py). If the two nodes have different devices, the value is copied.

Keras reads its variables in a ``Cast`` scope without another node (``dense/Cast/ReadVariableOp``). There the read is compared with the ops
of the enclosing scope, the layer, and the finding is called probable. Eager ops have no names in the log, so they give no finding.
Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import field
from typing import Literal

from worker.values.fast_dataclass import dataclass

MAX_FOUND = 1_000
"""The most different findings of one task."""

_READ = b"/ReadVariableOp"
_ARGUMENTS = frozenset((b"_Arg", b"_DeviceArg"))
# Ops that compute nothing, or that follow a resource rather than a value.
_SILENT = frozenset((b"Const", b"Identity", b"IdentityN", b"NoOp", b"_Retval", b"_DeviceRetval", b"VarHandleOp"))
_FOLLOWS = (b"Assign", b"Resource")
# Scopes that stand for a whole function and not for a layer.
_OUTER = frozenset((b"", b"StatefulPartitionedCall", b"PartitionedCall"))

PairedBy = Literal["name", "scope"]


@dataclass(frozen=True, slots=True)
class VariableRead:
    """An op on `device` that uses a variable on `variable_device`."""

    node: str
    """The name of the op's node, or of its scope."""
    op: str
    device: str
    variable_device: str
    evidence: PairedBy
    """``name``: certain. ``scope``: the read and the op are in one scope, a layer."""


@dataclass(slots=True)
class GraphReads:
    """Gets the nodes of one stream, in order. A new graph begins with its arguments, or when `end` is called."""

    found: Counter[tuple[bytes, bytes, bytes, bytes, PairedBy]] = field(default_factory=Counter)
    """Name, op, device, device of the variable, and evidence; as in `VariableRead`."""
    _pending: dict[bytes, bytes] = field(default_factory=dict)
    """The reads of this graph whose op has not come yet: the op's name, and the variable's device."""
    _users: dict[bytes, set[tuple[bytes, bytes]]] = field(default_factory=dict)
    """The ops of this graph that came after such a read, with their devices, by scope."""

    def add(self, name: bytes, op: bytes, device: bytes) -> None:
        """Adds the next node."""
        if op in _ARGUMENTS:
            self.end()
        elif op == b"ReadVariableOp":
            user, mark, _ = name.rpartition(_READ)
            if mark:
                self._pending[user] = device
        elif name in self._pending:
            self._note(name, op, device, self._pending.pop(name), "name")
        elif self._pending and op not in _SILENT and not op.startswith(_FOLLOWS):
            self._users.setdefault(name.rpartition(b"/")[0], set()).add((op, device))

    def end(self) -> None:
        """Ends the present graph."""
        for user, source in self._pending.items():
            scope = user.rpartition(b"/")[0]
            if scope not in _OUTER:
                for op, device in self._users.get(scope, ()):
                    self._note(scope, op, device, source, "scope")
        self._pending.clear()
        self._users.clear()

    def _note(self, name: bytes, op: bytes, device: bytes, source: bytes, evidence: PairedBy) -> None:
        key = (name, op, device, source, evidence)
        if device != source and (key in self.found or len(self.found) < MAX_FOUND):
            self.found[key] += 1
