"""What callbacks of Keras remember between two steps: `EarlyStopping.wait`, `ReduceLROnPlateau.cooldown_counter`, `History`.

They keep it in plain attributes, and begin anew in `on_train_begin`. So the attributes are read and set from outside, in every callback.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ...values.words import few
from ..import_hooks import print_once

ARRAYS = "callbacks"
_LEFT_OUT = frozenset({"model", "_model", "params", "validation_data"})


class _UnknownError(Exception):
    """A value that a save cannot have."""


def save(callbacks: list[Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What each callback remembers, as JSON, and the arrays in it by their names."""
    arrays: dict[str, Any] = {}
    told = []
    for index, callback in enumerate(callbacks):
        kept = {}
        for name, value in vars(callback).items():
            if name not in _LEFT_OUT:
                try:
                    kept[name] = _plain(value, f"{ARRAYS}/{index}/{name}", arrays)
                except _UnknownError:
                    _tell(callback, name, value)
        told.append({"class": type(callback).__name__, "kept": kept})
    return told, arrays


def restore(callbacks: list[Any], told: list[dict[str, Any]], arrays: Mapping[str, Any]) -> None:
    """Set what the callbacks remembered. If the program has other callbacks now, say so, and set those that are there still."""
    names = [type(callback).__name__ for callback in callbacks]
    before = [one["class"] for one in told]
    if names != before:
        print_once(f"checkpoints: the callbacks were {few(before)} and are {few(names)}: those of another class or place begin anew")
    for callback, one in zip(callbacks, told, strict=False):
        if type(callback).__name__ == one["class"]:
            for name, value in one["kept"].items():
                setattr(callback, name, _value(value, arrays))


def _tell(callback: Any, name: str, value: Any) -> None:
    """Name an attribute of a callback of the program that no save has. Functions are no state; Keras's own callbacks are known."""
    if not (callable(value) or type(callback).__module__.startswith(("keras.", "tf_keras.")) or hasattr(type(callback), "_orch_own")):
        print_once(
            f"checkpoints: {type(callback).__name__}.{name} is of type {type(value).__name__}, which no save has: after a restart it is "
            "what the program makes anew"
        )


def _plain(value: Any, path: str, arrays: dict[str, Any]) -> Any:
    """A value for JSON. What JSON does not have becomes a list with the name of its kind."""
    import numpy as np

    if value is None or isinstance(value, (bool, int, str)) or (type(value) is float and math.isfinite(value)):
        return value
    if type(value) is float:
        return ["float", repr(value)]
    if isinstance(value, np.generic):
        return ["number", value.dtype.name, repr(value.item())]
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "fiub":
            raise _UnknownError
        arrays[path] = value
        return ["array", path]
    if type(value) in (list, tuple):
        return [type(value).__name__, [_plain(item, f"{path}/{index}", arrays) for index, item in enumerate(value)]]
    if type(value) is dict and all(isinstance(key, str) for key in value):
        return {key: _plain(item, f"{path}/{key}", arrays) for key, item in value.items()}
    raise _UnknownError


def _value(told: Any, arrays: Mapping[str, Any]) -> Any:
    import numpy as np

    if isinstance(told, dict):
        return {key: _value(item, arrays) for key, item in told.items()}
    if not isinstance(told, list):
        return told
    kind, what = told[0], told[1]
    if kind == "float":
        return float(what)
    if kind == "number":
        return np.dtype(what).type(float(told[2]) if told[2] in ("nan", "inf", "-inf") else _literal(told[2]))
    if kind == "array":
        return arrays[what].copy()
    items = [_value(item, arrays) for item in what]
    return tuple(items) if kind == "tuple" else items


def _literal(text: str) -> Any:
    import ast

    return ast.literal_eval(text)
