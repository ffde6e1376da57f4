"""Defines what callbacks of Keras remember between two steps: `EarlyStopping.wait`, `ReduceLROnPlateau.cooldown_counter`, `History`.

They keep it in plain attributes, and begin again in `on_train_begin`. So the attributes are read and set from outside, in every callback.
A save has those that the training has changed: paths and settings stay those that the program gives.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import itertools
import json
import math
import os
from collections.abc import Iterable, Mapping
from typing import Any

from ...formats.tensor_file import DamagedError
from ...values.words import few
from ..patches import refusal
from ..patches.import_hooks import print_once
from . import variables

ARRAYS = "callbacks"
_LEFT_OUT = frozenset({"model", "_model", "params", "validation_data"})
_SIGNED_LATE = "min_delta"
"""A setting whose sign Keras 3 changes in the first comparison of a program, when it chooses `monitor_op`
(keras/src/callbacks/monitor_callback.py): a restored one would be changed a second time, back."""
_KERAS = ("keras.", "tf_keras.")
_OWN = f"{__name__.partition('.')[0]}."


_logs_before: dict[str, bytes] = {}
"""What the files of logs had when this program began: a training that is over takes the rows of the next one out of a file of both."""


class _UnknownError(Exception):
    """A value that a save cannot have."""


def of_program(callbacks: list[Any]) -> list[Any]:
    """The callbacks without those of orch, which remember nothing that a restart needs."""
    return [callback for callback in callbacks if not type(callback).__module__.startswith(_OWN)]


def begin(callbacks: list[Any]) -> list[dict[str, str]]:
    """Return what each callback has when the training begins, before a save is restored: a checksum of each attribute."""
    return [{name: _sum(value) for name, value in vars(callback).items()} for callback in of_program(callbacks)]


def save(callbacks: list[Any], begun: list[dict[str, str]]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return what each callback remembers, as JSON, and its arrays by name, no copies. `begun`: what `begin` has said."""
    arrays: dict[str, Any] = {}
    told = []
    for index, callback in enumerate(of_program(callbacks)):
        kept, at_begin = {}, begun[index] if index < len(begun) else {}
        for name, value in vars(callback).items():
            if name not in _LEFT_OUT and not _is_signed_late(callback, name):
                try:
                    plain, found = _plain(value, f"{ARRAYS}/{index}/{name}")
                except _UnknownError:
                    _tell(callback, name, value)
                    continue
                if _sum(value) != at_begin.get(name):
                    kept[name] = plain
                    arrays |= found
        told.append({"class": type(callback).__name__, "kept": kept, **({"written": written} if (written := _log_bytes(callback)) else {})})
    return told, arrays


def logs(callbacks: list[Any]) -> list[bytes]:
    """Return what the file of each callback has before the training begins: `CSVLogger` empties its file in `on_train_begin`."""
    return [_log(callback) for callback in of_program(callbacks)]


def _has_log(callback: Any) -> bool:
    return any(kind.__name__ == "CSVLogger" for kind in type(callback).__mro__)


def _log_bytes(callback: Any) -> int:
    """The length of the file of a `CSVLogger`; 0: there is none."""
    if _has_log(callback):
        import tensorflow as tf

        with contextlib.suppress(tf.errors.OpError):
            return int(tf.io.gfile.stat(callback.filename).length)
    return 0


def _log(callback: Any) -> bytes:
    """The file of a `CSVLogger`; empty: there is none."""
    if _has_log(callback):
        import tensorflow as tf

        with contextlib.suppress(tf.errors.OpError), tf.io.gfile.GFile(callback.filename, "rb") as file:
            found = bytes(file.read())
            before = _logs_before.setdefault(callback.filename, found)
            return before if before.startswith(found) else found
    return b""


def _write_again(callback: Any, log: bytes) -> None:
    """Put back the rows that a `CSVLogger` had written before the save."""
    if callback.append:
        callback.csv_file.truncate(0)
    callback.csv_file.write(log.decode())
    callback.csv_file.flush()
    callback.append_header = False


def restore(callbacks: list[Any], told: list[dict[str, Any]], arrays: Mapping[str, Any], logs: Iterable[bytes] = ()) -> None:
    """Set what the callbacks remembered, and put back what they had written. If the program has other callbacks now, say so, and set those
    that are there still. `logs`: of `logs`."""
    callbacks = of_program(callbacks)
    names = [type(callback).__name__ for callback in callbacks]
    before = [one["class"] for one in told]
    if names != before:
        print_once(f"checkpoints: the callbacks were {few(before)} and are {few(names)}: those of another class or place begin again")
    for callback, one, log in zip(callbacks, told, itertools.chain(logs, itertools.repeat(b"")), strict=False):
        if type(callback).__name__ == one["class"]:
            written = one.get("written", 0)
            if 0 < written <= len(log):
                _write_again(callback, log[:written])
            for name, value in one["kept"].items():
                if _is_given(callback, name):
                    if value != vars(callback).get(name):
                        print_once(f"checkpoints: {type(callback).__name__}.{name} stays as the program gives it, and is not restored")
                elif not _is_signed_late(callback, name):
                    try:
                        made = _value(value, arrays)
                    except (LookupError, TypeError, ValueError, SyntaxError, ArithmeticError, RecursionError, MemoryError):
                        what = f"a checkpoint has no value that orch has written for {type(callback).__name__}.{name}"
                        raise refusal(DamagedError(what)) from None
                    setattr(callback, name, made)


def _is_given(callback: Any, name: str) -> bool:
    """True if the program, or the class, gives this attribute: no save may name another file to write, no matter who has made the save.

    A text may be a path. What a callback of Keras takes as an argument is a setting, though Keras keeps it next to its counters.
    """
    of_class = getattr(type(callback), name, None)  # a counter that begins as 0 in the class is no such thing
    is_of_class = callable(of_class) or hasattr(of_class, "__get__") or _has_text(of_class)
    if name in _LEFT_OUT or is_of_class or _has_text(vars(callback).get(name)):
        return True
    of_keras = (one for one in type(callback).__mro__ if one.__module__.startswith(_KERAS) and "__init__" in vars(one))
    return any(name in inspect.signature(vars(one)["__init__"]).parameters for one in of_keras)


def _has_text(value: Any) -> bool:
    """True if a value is a text or a path, or has one in it."""
    if isinstance(value, (list, tuple, set, frozenset)):
        return any(map(_has_text, value))
    return any(map(_has_text, value.values())) if isinstance(value, dict) else isinstance(value, (str, bytes, os.PathLike)) and bool(value)


def _is_signed_late(callback: Any, name: str) -> bool:
    return name == _SIGNED_LATE and hasattr(callback, "monitor_op")


def _tell(callback: Any, name: str, value: Any) -> None:
    """Name an attribute of a callback of the program that no save has. Functions are no state; Keras's own callbacks are known."""
    if not (callable(value) or type(callback).__module__.startswith(_KERAS)):
        print_once(
            f"checkpoints: {type(callback).__name__}.{name} is of type {type(value).__name__}, which no checkpoint has: a restart begins "
            "it again"
        )


def _sum(value: Any) -> str:
    """A checksum of a value; empty for a value that a save cannot have."""
    try:
        plain, arrays = _plain(value, "")
    except _UnknownError:
        return ""
    told = [(name, array.dtype.name, array.shape, hashlib.sha256(array.tobytes()).hexdigest()) for name, array in arrays.items()]
    return hashlib.sha256(json.dumps([plain, told]).encode()).hexdigest()


def _plain(value: Any, path: str) -> tuple[Any, dict[str, Any]]:
    """A value for JSON, and the arrays in it by their names. Raises `_UnknownError`."""
    arrays: dict[str, Any] = {}
    try:
        return _to_json(value, path, arrays), arrays
    except RecursionError:  # a list that contains itself
        raise _UnknownError from None


def _to_json(value: Any, path: str, arrays: dict[str, Any]) -> Any:
    """Return what JSON does not have becomes a list with the name of its kind."""
    import numpy as np

    if value is None or isinstance(value, (bool, int, str)) or (type(value) is float and math.isfinite(value)):
        return value
    if type(value) is float:
        return ["float", repr(value)]
    if isinstance(value, (np.generic, np.ndarray)) and (value.dtype.kind not in "fiub" or not variables.is_known(value.dtype.name)):
        raise _UnknownError
    if isinstance(value, np.generic):
        return ["number", value.dtype.name, repr(value.item())]
    if isinstance(value, np.ndarray):
        arrays[path] = value
        return ["array", path]
    if type(value) in (list, tuple):
        return [type(value).__name__, [_to_json(item, f"{path}/{index}", arrays) for index, item in enumerate(value)]]
    if type(value) is dict and all(isinstance(key, str) for key in value):
        return {key: _to_json(item, f"{path}/{key}", arrays) for key, item in value.items()}
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
