"""Finds the terms of a loss: the numbers that the program adds up, each with its factor and the line that has made it.

TensorFlow tells a callback of each operation that runs. Of those that give single numbers, it is kept from which numbers.
"""

from __future__ import annotations

from typing import Any

from .. import failure

_SUMS = frozenset(("AddV2", "Add", "AddN", "Sub"))
_SAME = frozenset(("Identity", "Cast", "Reshape", "Squeeze", "StopGradient", "EnsureShape", "ExpandDims"))
_FACTORS = frozenset(("Mul", "RealDiv", "Div", "DivNoNan"))
_MOST = 64
"""The most terms of one loss."""


class Terms:
    """The single numbers that a step has computed."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[str, tuple[Any, ...], str, Any]] = {}
        """By the number of a tensor: the operation, its inputs, the line, and the tensor, which keeps the number from coming again."""

    def keep(self, kind: str, inputs: Any, output: Any) -> None:
        if output.dtype.is_floating and (output.shape.rank == 0 or kind == "Pack"):
            self._made[output._id] = (kind, tuple(inputs), failure.calling_line(), output)

    def of(self, loss: Any) -> list[dict[str, Any]]:
        """The terms of a loss: value with factor, and line."""
        found: list[dict[str, Any]] = []
        self._walk(loss, 1.0, found)
        return found

    def _walk(self, tensor: Any, factor: float, found: list[dict[str, Any]]) -> None:
        kind, inputs, line, _ = self._made.get(getattr(tensor, "_id", None), ("", (), "", None))  # type: ignore[arg-type]
        if len(found) >= _MOST:
            return
        if kind in _SUMS:
            for place, each in enumerate(inputs):
                self._walk(each, -factor if kind == "Sub" and place else factor, found)
        elif kind in ("Sum", "Mean") and (packed := self._made.get(getattr(inputs[0], "_id", -1))) and packed[0] == "Pack":
            for each in packed[1]:
                self._walk(each, factor / (len(packed[1]) if kind == "Mean" else 1), found)
        elif (kind in _SAME and len(inputs) in (1, 2)) or (kind in ("Sum", "Mean") and inputs[0].shape.rank == 0):
            self._walk(inputs[0], factor, found)
        elif kind in _FACTORS and any(map(self._is_constant, inputs)):
            constant = 1 if self._is_constant(inputs[1]) else 0
            number = float(inputs[constant].numpy())
            if kind == "Mul":
                self._walk(inputs[1 - constant], factor * number, found)
            elif constant == 1 and number:
                self._walk(inputs[0], factor / number, found)
            else:
                found.append(self._term(tensor, factor, line))
        elif kind or not self._is_constant(tensor):
            found.append(self._term(tensor, factor, line))

    def _is_constant(self, tensor: Any) -> bool:
        """True if a number is not computed from tensors of the step."""
        if getattr(getattr(tensor, "shape", None), "rank", None) != 0:
            return False
        kind, inputs, _, _ = self._made.get(getattr(tensor, "_id", None), ("", (), "", None))  # type: ignore[arg-type]
        # A variable, such as the scale of losses in float16, is a factor of all replicas.
        return kind in ("", "ReadVariableOp") or (kind in (*_SAME, *_FACTORS) and all(map(self._is_constant, inputs)))

    def _term(self, tensor: Any, factor: float, line: str) -> dict[str, Any]:
        return {"line": line, "value": factor * float(tensor.numpy().sum())}
