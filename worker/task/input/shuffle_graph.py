"""The graph of a dataset: its shuffles, and their seeds."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import Any

_READERS = re.compile(r"(FixedLengthRecord|RecordIO|SSTable|TextLine|TFRecord)Dataset(V\d+)?$")
"""The operations by which TensorFlow can divide files (`kReaderDatasetOps` in tensorflow/core/grappler/optimizers/data/auto_shard.cc)."""
_SHUFFLES = re.compile(r"(ShuffleDataset|ShuffleAndRepeatDataset|RandomDataset|GlobalShuffleDataset)(V\d+)?$")
_INT64 = 9
"""DT_INT64 in tensorflow/core/framework/types.proto."""


def bodies(graph: Any) -> list[Any]:
    """The nodes of a graph, and those of each function in it."""
    return [graph.node, *(function.node_def for function in graph.library.function)]


def has_reader(nodes: Any) -> bool:
    return any(_READERS.match(node.op) for node in nodes)


def draws(nodes: Any, kind: str) -> bool:
    """True if an operation of this kind, such as ``RandomShuffle``, draws numbers without a seed: each worker draws others."""
    unseeded = (node for node in nodes if node.op.startswith(kind) and "seed2" in node.attr)
    return any(not node.attr["seed"].i and not node.attr["seed2"].i for node in unseeded)


def _seeded(nodes: Any) -> Iterator[tuple[Any, list[int]]]:
    """The shuffles, and which inputs of each are its two seeds."""
    from tensorflow.python.framework import op_def_registry

    for node in nodes:
        if _SHUFFLES.match(node.op):
            names = [argument.name for argument in op_def_registry.get(node.op).input_arg]
            if at := [index for index, name in enumerate(names) if name in ("seed", "seed2")]:
                yield node, at


def unseeded(nodes: Any) -> list[tuple[Any, list[int]]]:
    """The shuffles whose two seeds are the constant 0, which stands for no seed."""
    zeros = {node.name for node in nodes if node.op == "Const" and _is_zero(node)}
    return [(node, at) for node, at in _seeded(nodes) if all(node.input[index].partition(":")[0] in zeros for index in at)]


def other_seeds(nodes: Any, number: int) -> list[tuple[Any, list[int], int]]:
    """The shuffles that have another order in each pass, each with a seed that follows from a number and from the seeds that it has."""
    import tensorflow as tf

    values = {node.name: node.attr["value"].tensor for node in nodes if node.op == "Const"}
    found = []
    for node, at in _seeded(nodes):
        if any(name in node.attr and node.attr[name].b for name in ("reshuffle_each_iteration", "rerandomize_each_iteration")):
            seeds = [int(tf.make_ndarray(values[node.input[index].partition(":")[0]])) for index in at]
            found.append((node, at, number_of(f"{seeds} {number}")))
    return found


def _is_zero(node: Any) -> bool:
    """True if a constant is the number 0 of 64 bits, as the seeds of tf.data are."""
    tensor = node.attr["value"].tensor
    return node.attr["dtype"].type == _INT64 and not tensor.tensor_shape.dim and not any(tensor.int64_val) and not tensor.tensor_content


def set_seeds(graph: Any, body: Any, node: Any, at: list[int], seed: int) -> None:
    """Make a number the seeds of a shuffle, which are its inputs `at`. `body`: the nodes of the graph, or of a function in it."""
    for index in at:
        name = f"orch_seed_{seed}_{index}"
        made = body.add(name=name, op="Const")
        made.attr["dtype"].type = _INT64
        made.attr["value"].tensor.dtype = _INT64
        made.attr["value"].tensor.tensor_shape.SetInParent()
        made.attr["value"].tensor.int64_val.append(seed)
        node.input[index] = name + node.input[index][len(node.input[index].partition(":")[0]) :]
    if body is graph.node:
        _make_generator_again(body, node, f"orch_generator_{seed}")


def _make_generator_again(body: Any, node: Any, name: str) -> None:
    """Let a shuffle make its generator from its seeds. Its graph has the generator of the dataset that was copied."""
    from tensorflow.python.framework import op_def_registry

    names = [argument.name for argument in op_def_registry.get(node.op).input_arg]
    if "seed_generator" in names:
        body.add(name=name, op="DummySeedGenerator")
        node.input[names.index("seed_generator")] = name


def number_of(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
