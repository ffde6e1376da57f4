"""Which files fit a pattern, and what they hold, by TensorFlow's file systems (``gs://``, ``s3://``, ``hdfs://``): for ``orch shards``.

A program of its own, since it imports TensorFlow: a JSON object a line on stdout, the last says ``end``, or what is wrong.
"""

from __future__ import annotations

import json
from typing import Any

from ...data_files import element_counts


def main(request: str) -> None:
    """`request`: JSON with `patterns`, `kind` and `elements`, as `orchestrator.insight.input.input_files.look` takes them."""
    asked = json.loads(request)
    try:
        import tensorflow as tf
    except ImportError:
        _say(error="files with a scheme, such as gs://, are read by TensorFlow, which is not installed here: pip install tensorflow")
        return
    names = set()
    for pattern in asked["patterns"]:
        try:
            fitting = tf.io.gfile.glob(pattern)
        except tf.errors.OpError as error:
            _say(error=f"{pattern}: {error.message}")
            return
        if not fitting:
            _say(error=f"no file fits {pattern!r}")
            return
        names.update(fitting)
    for name in sorted(names):
        try:
            _say(name=name, **_look(tf, name, asked["kind"] or element_counts.kind_by_name(name) or "other", asked["elements"]))
        except tf.errors.OpError as error:
            _say(name=name, size=0, elements=None, kind="other", problem=f"{name}: {error.message}")
    _say(end=True)


def _look(tf: Any, name: str, kind: str, counted: int | None) -> dict[str, Any]:
    size, problem = tf.io.gfile.stat(name).length, ""
    if counted is None:
        try:
            with tf.io.gfile.GFile(name, "rb") as file:
                counted = element_counts.count(file, size, kind)
        except element_counts.Damaged as damage:
            problem = f"{name}: {damage}"
    return {"size": size, "elements": counted, "kind": kind, "problem": problem}


def _say(**told: Any) -> None:
    print(json.dumps(told), flush=True)
