"""Finds whether a dataset gives the same elements in the same order when a restart reads it again: said at the start of the run.

A restart begins a dataset again and leaves out what was trained on. So the order must follow from seeds, and elements from the files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ...values.words import count_of, few
from .. import failure
from ..input import given, input_policy, shuffle_graph, shuffle_order
from ..patches.import_hooks import print_once

_RANDOM = re.compile(
    r"Random(Uniform|StandardNormal|Gamma|Poisson|Shuffle|UniformInt)|TruncatedNormal|Multinomial|SampleDistorted|Stateful[A-Z]"
)
_ASSIGNS = re.compile(r"Assign(Add|Sub)?VariableOp$|ResourceScatter")
_PYTHON = re.compile(r"(Eager)?PyFunc(Stateless)?$")
_SERVICE = re.compile(r"DataServiceDataset")


def tell(dataset: Any, where: str = "") -> list[str]:
    """Print a line if the order of a dataset does not come again; returns the reasons."""
    reasons = list(dict.fromkeys(_reasons(dataset)))
    if reasons:
        print_once(
            f"checkpoints: the input of {where or failure.calling_line()} cannot be positioned exactly: {'; '.join(reasons)}. "
            "A restart leaves out as many batches as were trained on. more: orch help resume"
        )
    return reasons


def is_read_whole(data: Any) -> bool:
    """True if an epoch that is left out must be read to its end, because the order of the next one depends on it.

    Says so in a line if the data have no end.
    """
    import tensorflow as tf

    dataset = getattr(data, "_original_dataset", data)
    if not isinstance(dataset, tf.data.Dataset) or not shuffle_order.draws_later(dataset):
        return False
    if shuffle_order.is_endless(dataset):
        print_once(
            "checkpoints: the dataset shuffles and repeats without an end, so this epoch may have another order after the restart. "
            "fix: count epochs by saver.epochs, and repeat(1)"
        )
        return False
    return True


def shuffles(data: Any) -> bool:
    """True if each pass over a dataset has an order of its own."""
    import tensorflow as tf

    dataset = getattr(data, "_original_dataset", data)
    return isinstance(dataset, tf.data.Dataset) and shuffle_order.comes_in_other_orders(dataset)


def facts(data: Any) -> dict[str, Any]:
    """Return what a save says of the data, so that a restart can compare."""
    return {"fingerprint": fingerprint(data), "batch_sizes": batch_sizes(data)}


def batch_sizes(data: Any) -> list[int] | None:
    """The sizes of the batches that a dataset makes, the last step first; None: unknown."""
    import tensorflow as tf

    dataset = getattr(data, "_original_dataset", data)
    if not isinstance(dataset, tf.data.Dataset):
        return None
    copied = getattr(dataset, shuffle_order.COPIED, None)
    sizes = [getattr(part, "_batch_size", None) for part in shuffle_order.parts(dataset if copied is None else copied)]
    return [int(size) for size in sizes if isinstance(size, (int, tf.Tensor))] or None


def fingerprint(data: Any) -> int:
    """A number of some rows of the arrays in a dataset; 0: it has none."""
    import tensorflow as tf

    dataset = getattr(data, "_original_dataset", data)
    return given.fingerprint(dataset) if isinstance(dataset, tf.data.Dataset) else 0


def tell_of_other(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Say that the data or their batches are not those of the training before the restart."""
    if _differ(before, now, "batch_sizes"):
        print_once(
            f"checkpoints: the batch size was {few(list(map(str, before['batch_sizes'])))} and is "
            f"{few(list(map(str, now['batch_sizes'])))}: in this epoch some elements may come twice and others never"
        )
    if _differ(before, now, "steps_per_execution"):
        print_once(
            f"checkpoints: steps_per_execution was {before['steps_per_execution']} and is {now['steps_per_execution']}: "
            "callbacks come after other steps than before"
        )
    if _differ(before, now, "fingerprint"):
        print_once(
            "checkpoints: the arrays are not those of the training before, so examples come twice or never in this epoch. "
            "fix: give every shuffle and split of the arrays a seed"
        )


def tell_of_fewer(found: int, wanted: int) -> None:
    """Say that the epoch has ended before the place of the save."""
    print_once(
        f"checkpoints: the data have only {count_of(found, 'batch')} in an epoch, and the training before had trained on {wanted} of this "
        "one: the epoch ends here"
    )


def _differ(before: Mapping[str, Any], now: Mapping[str, Any], name: str) -> bool:
    return before.get(name) is not None and now.get(name) is not None and before[name] != now[name]


def _reasons(dataset: Any) -> Iterator[str]:
    import tensorflow as tf

    dataset = getattr(dataset, "_original_dataset", dataset)
    if not isinstance(dataset, tf.data.Dataset):
        yield f"of a {type(dataset).__name__}, orch does not know the order"
        return
    if dataset.options().deterministic is False:
        yield "it has deterministic=False"
    copied = getattr(dataset, shuffle_order.COPIED, None)
    before = list(shuffle_order.parts(dataset if copied is None else copied))
    graphs = [shuffle_order.function_graphs(part) for part in before]
    try:
        graphs = [[*found, *shuffle_order.captured_graphs(part)] for found, part in zip(graphs, before, strict=True)]
        if copied is None and shuffle_order.has_unseeded(before):
            yield "it shuffles without a seed"
    except Exception as error:  # such as one with more than 2 GiB of arrays
        yield f"a function of it has a dataset that orch cannot read ({type(error).__name__})"
    for part, of_part in zip(before, graphs, strict=True):
        if getattr(part, "_deterministic", None) == "false":
            yield "a map has deterministic=False"
        if _SERVICE.search(type(part).__name__):
            yield "the tf.data service gives each batch to the worker that asks first"
        is_of_files = any(getattr(part, input_policy.SHARED, False) for part in before)
        for graph in of_part:
            for node in (node for nodes in shuffle_graph.bodies(graph) for node in nodes):
                if _RANDOM.match(node.op):
                    yield f"a function of it draws random numbers ({node.op}), whose position no checkpoint has"
                elif _ASSIGNS.match(node.op):
                    yield f"a function of it changes a variable ({node.op}), ahead of the training"
                elif node.op == "GeneratorDataset":
                    yield "it comes from a generator, which must give the same in each run"
                elif _PYTHON.match(node.op) and not is_of_files:
                    yield "it calls a function of Python, which must give the same in each run"
                elif _SERVICE.match(node.op):
                    yield "the tf.data service gives each batch to the worker that asks first"
