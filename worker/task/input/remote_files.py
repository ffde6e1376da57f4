"""Lists files and counts their elements by TensorFlow's file systems (``gs://``, ``s3://``, ``hdfs://``): for ``orch shards``.

A program of its own, because it imports TensorFlow. It prints a JSON object with ``files`` or ``error``.
"""

from __future__ import annotations

import json
import os
from typing import Any

from ...formats import element_counts


def main(request: str) -> None:
    """`request`: JSON with `patterns`, `kind` and `elements`, as `orchestrator.checks.input_files.list_remote` takes them."""
    out = os.dup(1)
    os.dup2(2, 1)  # the output of libraries goes to stderr
    with open(out, "w") as file:
        json.dump(_answer(json.loads(request)), file)


def _answer(wanted: dict[str, Any]) -> dict[str, Any]:
    try:
        import tensorflow as tf
    except ImportError:
        return {"error": "files with a scheme, such as gs://, are read by TensorFlow, which is not installed here: pip install tensorflow"}
    names = set()
    for pattern in wanted["patterns"]:
        try:
            fitting = tf.io.gfile.glob(pattern)
        except tf.errors.OpError as error:
            return {"error": f"{pattern}: {error.message}"}
        if not fitting:
            return {"error": f"no file fits {pattern!r}"}
        names.update(fitting)
    return {"files": [_inspect(tf, name, wanted["kind"], wanted["elements"]) for name in sorted(names)]}


def _inspect(tf: Any, name: str, kind: str, counted: int | None) -> dict[str, Any]:
    kind = kind or element_counts.kind_by_name(name) or "other"
    size, problem = 0, ""
    try:
        size = tf.io.gfile.stat(name).length
        if counted is None:
            with tf.io.gfile.GFile(name, "rb") as file:
                counted = element_counts.count(file, size, kind)
    except element_counts.Damaged as damage:
        problem = f"{name}: {damage}"
    except tf.errors.OpError as error:
        problem = f"{name}: {error.message}"
    return {"name": name, "size": size, "elements": counted, "kind": kind, "problem": problem}
