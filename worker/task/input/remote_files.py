"""Lists files and counts their elements by TensorFlow's file systems (``gs://``, ``s3://``, ``hdfs://``): for ``orch shards``.

A program of its own, because it imports TensorFlow. It prints JSON objects, one on each line. The last one has ``end`` or ``error``.
"""

from __future__ import annotations

import json
from typing import Any

from ...data_files import element_counts


def main(request: str) -> None:
    """`request`: JSON with `patterns`, `kind` and `elements`, as `orchestrator.insight.input.input_files.list_remote` takes them."""
    wanted = json.loads(request)
    try:
        import tensorflow as tf
    except ImportError:
        _print(error="files with a scheme, such as gs://, are read by TensorFlow, which is not installed here: pip install tensorflow")
        return
    names = set()
    for pattern in wanted["patterns"]:
        try:
            fitting = tf.io.gfile.glob(pattern)
        except tf.errors.OpError as error:
            _print(error=f"{pattern}: {error.message}")
            return
        if not fitting:
            _print(error=f"no file fits {pattern!r}")
            return
        names.update(fitting)
    for name in sorted(names):
        try:
            _print(name=name, **_count(tf, name, wanted["kind"] or element_counts.kind_by_name(name) or "other", wanted["elements"]))
        except tf.errors.OpError as error:
            _print(name=name, size=0, elements=None, kind="other", problem=f"{name}: {error.message}")
    _print(end=True)


def _count(tf: Any, name: str, kind: str, counted: int | None) -> dict[str, Any]:
    size, problem = tf.io.gfile.stat(name).length, ""
    if counted is None:
        try:
            with tf.io.gfile.GFile(name, "rb") as file:
                counted = element_counts.count(file, size, kind)
        except element_counts.Damaged as damage:
            problem = f"{name}: {damage}"
    return {"size": size, "elements": counted, "kind": kind, "problem": problem}


def _print(**values: Any) -> None:
    print(json.dumps(values), flush=True)
