"""One order of the elements in all workers, where each worker reads all elements and keeps its share (the policies DATA and HINT).

A shuffle without a seed has another order in each worker. A worker that keeps "its" elements of another order than the other workers' gives
some elements twice, and others never. So a dataset that TensorFlow divides by elements gets a seed that all workers have, drawn for each
run, for each shuffle that has none. The seed is given when the dataset is divided, in a copy of its graph: the dataset itself,
datasets from functions, and datasets under FILE and OFF keep the worker's own order. A program that has a seed (`tf.random.set_seed`, or an
argument) keeps its order.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import sys
import weakref
from collections import Counter
from collections.abc import Iterator
from typing import Any

from .. import failure, patches
from ..observe import recorder
from ..patches.features import ORDER as ORDERS
from ..patches.features import WARNINGS
from ..patches.import_hooks import print_once
from ..shared import shared
from . import same_numbers, shuffle_graph

COPIED = "_orch_copied"
MOST_COPIED = 1 << 30
"""The graph of a dataset with more bytes of arrays is not copied: TensorFlow's limit is 2 GiB."""
_LATER = re.compile("Repeat|Concatenate|Cache|Snapshot")
"""The classes of tf.data that begin a part of the dataset again, or never more, while they are read."""
_COUNTING = re.compile("Take|Skip|Zip|Window|Scan|Unique|Shard|Concatenate")
"""The classes of tf.data whose elements are others where a worker has only some of the files: `enumerate` is a zip."""
_DECIDING = {"Filter|TakeWhile": "Random", "FlatMap|Interleave": "RandomShuffle"}
"""The classes of tf.data whose functions decide which elements there are, or in which order, and what these must not draw."""
_CHOOSING = "DirectedInterleave"
"""The class of tf.data that `choose_from_datasets` and `sample_from_datasets` make."""
_ALIKE = (3, 5, 9, 12)
"""The codes of TensorFlow's errors InvalidArgument, NotFound, FailedPrecondition and Unimplemented: of a dataset whose graph cannot be
copied they follow from the dataset, and so all workers have them."""
_DISTRIBUTE = "tensorflow.python.distribute.distribute_lib"
_ITERATE = "tensorflow.python.distribute.input_lib"
_OTHERS = ("keras.", "tf_keras.", "worker.task.", "_orch_worker.task.")
"""The beginnings of the names of modules whose rows are not those of the program: they put them in order themselves."""
_DATASETS = "tensorflow.python.data.ops.dataset_ops"
_DRAWS = "_orch_draws"
"""An attribute of a dataset whose elements several workers share, and which draws seeds after its first element: how (`_how_it_draws`)."""
_BEGUN = "_orch_begun"
"""An attribute of what draws seeds in a dataset: how many iterators it has given."""
_LEFT = "_orch_left"
"""An attribute of the same: whether a loop has left the last iterator before its end."""
_AHEAD = re.compile("Map|Prefetch|Interleave|Parallel")
"""The classes of tf.data that read ahead of what is taken from them: TensorFlow makes a `map` parallel by itself."""
_drawn: Counter[str] = Counter()
"""How many seeds this process has drawn, by purpose."""
_training: list[str] = shared("training", list)
"""The training for which seeds are drawn; empty: none is known."""


def apply_soon() -> None:
    """Give the datasets of an unchanged script one order, as soon as the script has imported TensorFlow."""
    patches.after(ORDERS, _DISTRIBUTE, lambda module: _mend())
    patches.after(ORDERS, _DATASETS, lambda module: patches.replace(ORDERS, "DatasetV2.shuffle", _shuffle))
    patches.after(ORDERS, _ITERATE, lambda module: patches.replace(ORDERS, "DistributedDataset.__iter__", _begin))


def _mend() -> None:
    def distribute(real: Any, strategy: Any, dataset: Any, options: Any = None) -> Any:
        return real(strategy, in_one_order(_ending(dataset, strategy), strategy), options)

    def gather(real: Any, strategy: Any, value: Any, axis: int) -> Any:
        caller: Any = sys._getframe(1)
        while caller.f_code in failure.stand_ins:
            caller = caller.f_back
        is_of_program = not caller.f_globals.get("__name__", "").startswith(_OTHERS)
        if is_of_program and has_several_workers(strategy) and strategy.num_replicas_in_sync > strategy.extended._num_workers:
            print_once(
                f"gather at {failure.calling_line()}: the rows of a batch come worker by worker, not in the order of the dataset. "
                "fix: gather the labels, or numbers of the rows, with them"
            )
        return real(strategy, value, axis)

    patches.replace(ORDERS, "StrategyBase.experimental_distribute_dataset", distribute)
    patches.replace(ORDERS, "Strategy.gather", gather)


def _ending(dataset: Any, strategy: Any) -> Any:
    """A dataset that TensorFlow wrongly takes for endless, as one of unknown length: it gives each worker an end of its own otherwise."""
    import tensorflow as tf

    if not (has_several_workers(strategy) and isinstance(dataset, tf.data.Dataset)):
        return dataset
    if int(dataset.cardinality()) != tf.data.INFINITE_CARDINALITY or is_endless(dataset):
        return dataset
    return dataset.filter(tf.autograph.experimental.do_not_convert(lambda *_: True))


def _shuffle(
    real: Any, self: Any, buffer_size: Any, seed: Any = None, reshuffle_each_iteration: Any = True, *args: Any, **kwargs: Any
) -> Any:
    """A shuffle with one order for ever has the same one in all workers, and wherever the program uses it: in the parts that `take` and
    `skip` make of it, in a second `predict`, and in a loop that is not divided."""
    import tensorflow as tf
    from tensorflow.python.eager import context

    is_unseeded = seed is None and context.global_seed() is None
    if (
        (reshuffle_each_iteration is False or recorder.is_on())
        and is_unseeded
        and tf.executing_eagerly()
        and same_numbers.trains_together()
    ):
        seed = draw_seed(f"shuffle {os.path.basename(failure.calling_line())}")  # hosts may have the program in different directories
    return real(self, buffer_size, seed, reshuffle_each_iteration, *args, **kwargs)


def _begin(real: Any, self: Any) -> Any:
    """An iterator of a distributed dataset, whose order does not depend on how far another iterator of the dataset has read.

    All iterators of a dataset draw their seeds from one generator. Most draw once, at the start. One that draws later, such as a pair for
    each pass of `repeat`, has read ahead when the program leaves it before its end, in each worker another distance, and so would the
    seeds of the next iterator differ. So the next one gets a generator of its own, whose seeds follow from those of the program and from
    its number.
    """
    import tensorflow as tf

    dataset: Any = getattr(self, "_original_dataset", None)
    draws = getattr(getattr(dataset, COPIED, dataset), _DRAWS, None)
    if draws is None or not tf.executing_eagerly():
        return real(self)
    sources = [dataset] if hasattr(dataset, COPIED) else [part for part in parts(dataset) if _is_shuffle(part) or _captured(part)]
    number = max(getattr(part, _BEGUN, 0) for part in sources)
    is_left = draws == "ahead" or any(getattr(part, _LEFT, False) for part in sources)
    for part in sources:
        setattr(part, _BEGUN, number + 1)
    if number and is_left:
        print_once(
            f"input: {failure.calling_line()} begins a dataset again that shuffles without an end, so its order now differs from one "
            "process. fix: one iterator for all epochs, iterator = iter(dataset) before the loop"
        )
        if (copy := _copied(dataset, number)) is not None:
            self._create_cloned_datasets_from_dataset(
                copy, self._input_context, self._input_workers, self._strategy, self._num_replicas_in_sync
            )
    iterator = real(self)
    if draws == "later":
        _watch(iterator, sources, int(dataset.cardinality()))
    return iterator


def _watch(iterator: Any, sources: list[Any], batches: int) -> None:
    """Note in the datasets whether a loop of Python has left an iterator before its end. What a graph takes cannot be seen here.

    `batches`: how many the iterator has; below 0: unknown.
    """
    import tensorflow as tf

    watched, counter = weakref.ref(iterator), itertools.count(1)

    def note(is_left: bool) -> None:
        for part in sources:
            setattr(part, _LEFT, is_left)

    def get_next(name: Any = None) -> Any:
        note(tf.executing_eagerly() and next(counter) != batches)
        taken: Any = watched()
        try:
            return type(taken).get_next(taken, name)
        except tf.errors.OutOfRangeError:
            note(False)
            raise

    iterator.get_next = get_next


def word() -> str:
    """The word from which the order is drawn: the same in all workers, in all attempts of a run, and in a run that continues it.

    Without orch there is no run, and the word depends on the cluster.
    """
    return same_numbers.word() or re.sub(r'"task".*?}', "", os.environ.get("TF_CONFIG", ""))


def is_kept() -> bool:
    """True if the order must come again after a restart, because the training continues from a save: then each shuffle gets a seed."""
    return same_numbers.ORDER in os.environ


@contextlib.contextmanager
def of_training(name: str) -> Iterator[None]:
    """While this is entered, numbers are drawn for a training of the program: they must not depend on trainings that are over, and that a
    restart leaves out."""
    _training[:] = [name]
    try:
        yield
    finally:
        _training.clear()


def draw_seed(purpose: str) -> int:
    """A number that all workers draw alike in all attempts of the run, and another one at the next call for the same purpose."""
    purpose = " ".join([*_training, purpose])
    _drawn[purpose] += 1
    return shuffle_graph.number_of(f"{word()} {purpose} {_drawn[purpose]}")


def has_several_workers(strategy: Any) -> bool:
    """True if several workers divide a dataset among them: under MultiWorkerMirroredStrategy."""
    extended = getattr(strategy, "extended", None)
    return type(extended).__name__ == "CollectiveAllReduceExtended" and int(getattr(extended, "_num_workers", 1)) > 1


def in_one_order(dataset: Any, strategy: Any) -> Any:
    """The dataset, in the same order in all workers if they divide its elements. All workers must make the same calls."""
    import tensorflow as tf

    is_shared = has_several_workers(strategy)
    if not ((is_shared or is_kept()) and isinstance(dataset, tf.data.Dataset) and tf.executing_eagerly()):
        return dataset
    policy = dataset.options().experimental_distribute.auto_shard_policy.name
    if is_shared and policy == "FILE":
        recorder.note_files(failure.calling_line())
    is_shared = is_shared and policy not in ("OFF", "FILE")
    if not (is_shared or is_kept()):
        return dataset
    before = list(parts(dataset))
    if policy == "AUTO" and is_shared and any(map(_reads_files, before)):
        if counting := next((part for part in _behind_readers(dataset) if _COUNTING.search(type(part).__name__)), None):
            dataset = _by_elements(dataset, counting)
            before = [dataset, *before]
        else:
            is_shared = False  # AUTO is FILE here
            recorder.note_files(failure.calling_line())
    if is_shared:
        _warn_of_other_orders(dataset, before)
        setattr(dataset, _DRAWS, _how_it_draws(dataset))
    elif not is_kept():
        return dataset
    try:
        is_unseeded = has_unseeded(before)
    except Exception as error:  # the program must run as without orch
        print_once(
            f"input: orch cannot look into a dataset that a function of the dataset of {failure.calling_line()} uses ({_in_short(error)}). "
            "fix: if it shuffles, give it a seed, the same in all workers; else elements come twice or never"
        )
        return dataset
    if not is_unseeded:
        return dataset
    copy = _copied(dataset)
    return dataset if copy is None else copy


def _copied(dataset: Any, number: int = 0) -> Any:
    """A copy of the dataset with other seeds (`_with_seeds`). None: the graph of this dataset cannot be copied, which is so in all workers
    alike; then the program must run as without orch. Any other error ends all workers: one alone would have an order of its own."""
    import tensorflow as tf

    found: list[Any] = []

    def copy() -> None:
        try:
            if (size := _size(list(parts(dataset)))) > MOST_COPIED:
                raise ValueError(f"its arrays have {size >> 20:,} MiB")
            found.append(_with_seeds(dataset, number))
        except (ValueError, tf.errors.OpError) as error:
            if isinstance(error, tf.errors.OpError) and error.error_code not in _ALIKE:
                raise
            why = "is begun a second time" if number else "shuffles without a seed"
            remedy = "use one iterator for all epochs" if number else "give shuffle(…, seed=…) a seed, the same in all workers"
            print_once(
                f"input: the dataset of {failure.calling_line()} {why}, and orch cannot give all workers one order ({_in_short(error)}): "
                f"elements come twice or never. fix: {remedy}",
                in_each_task=True,
            )

    patches.attempt(ORDERS, copy)
    return found[0] if found else None


def _in_short(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]:.200}"


@patches.guarded(WARNINGS)
def _warn_of_other_orders(dataset: Any, before: list[Any]) -> None:
    if dataset.options().deterministic is False or any(getattr(part, "_deterministic", None) == "false" for part in before):
        print_once(
            f"input: the dataset of {failure.calling_line()} has deterministic=False, so elements come twice or never in an epoch. "
            "fix: deterministic=True, or divide by file"
        )
    chosen = [(part, kind) for part in before for classes, kind in _DECIDING.items() if re.search(classes, type(part).__name__)]
    if any(shuffle_graph.draws(graph.node, kind) for part, kind in chosen for graph in function_graphs(part)):
        print_once(
            f"input: the dataset of {failure.calling_line()} chooses elements by random numbers of each worker: some come twice, others "
            "never. fix: tf.random.set_seed(…) before it is made"
        )


# --- the dataset as Python objects -------------------------------------------------------------------


def parts(dataset: Any) -> Iterator[Any]:
    """The dataset and all datasets before it."""
    seen, waiting = set(), [dataset]
    while waiting:
        part = waiting.pop()
        if id(part) not in seen:
            seen.add(id(part))
            waiting += part._inputs()
            yield part


def has_unseeded(before: list[Any]) -> bool:
    """True if one of these parts of a dataset shuffles without a seed, or a function of them, or a dataset that a function has.

    Raises `ValueError` for a dataset that a function has and whose graph cannot be read.
    """
    if any(map(_is_unseeded, before)):
        return True
    # The graph of a dataset that a function has is a copy of its arrays too: it is made last, and one at a time.
    graphs = (graph for graphs_of in (function_graphs, captured_graphs) for part in before for graph in graphs_of(part))
    return any(shuffle_graph.unseeded(nodes) for graph in graphs for nodes in shuffle_graph.bodies(graph))


def _is_unseeded(part: Any) -> bool:
    if not re.search("Shuffle|Random", type(part).__name__) or not hasattr(part, "_seed2"):
        return False
    return int(part._seed) == 0 == int(part._seed2)


def draws_later(dataset: Any) -> bool:
    """True if a pass over a dataset draws the order of a shuffle also after its first element: in a second pass over a part of it, or over
    a dataset that a function, such as that of `flat_map`, has from outside (one that it makes itself begins from its seed each time); or
    whether later passes need the whole first one, as those of `cache` do.

    Then the order of an epoch follows only from whole passes before it.
    """
    before = list(parts(getattr(dataset, COPIED, dataset)))
    if any(_captured(part) for part in before):
        return True
    return any(_LATER.search(type(part).__name__) and any(map(_is_shuffle, parts(part))) for part in before)


def is_endless(dataset: Any) -> bool:
    """True if a dataset repeats without an end. TensorFlow does not know this of one behind a `filter`, a `flat_map` or an `interleave`.
    And it takes one for endless that chooses from endless ones, though its choices end."""
    import tensorflow as tf

    known, dataset = int(dataset.cardinality()), getattr(dataset, COPIED, dataset)
    is_unsure = known == tf.data.INFINITE_CARDINALITY and any(_CHOOSING in type(part).__name__ for part in parts(dataset))
    if known != tf.data.UNKNOWN_CARDINALITY and not is_unsure:
        return known == int(tf.data.INFINITE_CARDINALITY)
    if _CHOOSING in type(dataset).__name__:
        choices, *chosen = dataset._inputs()
        return is_endless(choices) and (all if dataset._stop_on_empty_dataset else any)(map(is_endless, chosen))
    ends = all if "Zip" in type(dataset).__name__ else any
    return "Take" not in type(dataset).__name__ and bool(dataset._inputs()) and ends(map(is_endless, dataset._inputs()))


def _how_it_draws(dataset: Any) -> str | None:
    """Return how a dataset draws the seeds of its shuffles after its first element: ``later``, by what has been taken from it; or
    ``ahead``, by how far TensorFlow has read ahead, even where all has been taken. None: once, at the start."""
    if not draws_later(dataset):
        return None
    if is_endless(dataset):
        return "ahead"
    ahead = [part for part in parts(getattr(dataset, COPIED, dataset)) if _AHEAD.search(type(part).__name__)]
    read = [before for part in ahead if _CHOOSING not in type(part).__name__ for before in part._inputs()]
    return "ahead" if any(is_endless(before) and comes_in_other_orders(before) for before in read) else "later"


def comes_in_other_orders(dataset: Any) -> bool:
    """True if each pass over a dataset may have another order of elements."""
    before = list(parts(getattr(dataset, COPIED, dataset)))
    return any(_is_shuffle(part) or _captured(part) for part in before)


def draws_once(distributed: Any) -> bool:
    """True if each iterator of a distributed dataset draws an order, at its start, from a generator that the program's datasets share."""
    dataset: Any = getattr(distributed, "_original_dataset", None)
    return dataset is not None and not hasattr(dataset, COPIED) and not draws_later(dataset) and comes_in_other_orders(dataset)


def _is_shuffle(part: Any) -> bool:
    return "Shuffle" in type(part).__name__ and getattr(part, "_reshuffle_each_iteration", True) is not False


def _reads_files(part: Any) -> bool:
    if re.search("FixedLengthRecord|TextLine|TFRecord", type(part).__name__):
        return True
    return any(shuffle_graph.has_reader(nodes) for graph in function_graphs(part) for nodes in shuffle_graph.bodies(graph))


def _behind_readers(dataset: Any) -> list[Any]:
    """The dataset and those before it, up to the readers of files."""
    found, waiting = [], [dataset]
    while waiting:
        part = waiting.pop()
        if not _reads_files(part):
            found.append(part)
            waiting += part._inputs()
    return found


def _by_elements(dataset: Any, counting: Any) -> Any:
    """A dataset that counts or pairs the rows of its files, which must be those of all files: each worker reads all and keeps its share."""
    import tensorflow as tf

    name = re.sub(r"^_|Dataset(V\d+)?$", "", type(counting).__name__).lower()
    print_once(f"input: {name} in the dataset of {failure.calling_line()} compares rows of all files, so auto_shard is data", is_note=True)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return dataset.with_options(options)


def function_graphs(part: Any) -> list[Any]:
    """The graphs of the functions that a dataset calls, such as that of `flat_map`."""
    return [function.function.graph.as_graph_def() for function in part._functions()]


def captured_graphs(part: Any) -> list[Any]:
    """The graphs of the datasets that these functions have from outside: TensorFlow has them as tensors, without Python objects.

    Raises `ValueError` for one with arrays of more than 2 GiB.
    """
    import tensorflow as tf
    from tensorflow.core.framework import graph_pb2
    from tensorflow.python.data.ops.options import ExternalStatePolicy

    found = []
    for tensor in _captured(part):
        graph = graph_pb2.GraphDef()
        with contextlib.suppress(tf.errors.InvalidArgumentError):  # it is no dataset
            text = tf.raw_ops.DatasetToGraphV2(
                input_dataset=tensor, external_state_policy=ExternalStatePolicy.IGNORE.value, strip_device_assignment=True
            )
            graph.ParseFromString(_not_empty(text.numpy()))
        found.append(graph)
    return found


def _not_empty(text: bytes) -> bytes:
    """The serialized graph of a dataset. Of one that is too long TensorFlow makes an empty text, with a line of its log alone."""
    if not text:
        raise ValueError("its arrays have more than 2 GiB")
    return text


def _captured(part: Any) -> list[Any]:
    return [tensor for tensor in _from_outside(part) if tensor.dtype.name == "variant"]


def _from_outside(part: Any) -> list[Any]:
    """The tensors that the functions of a dataset have from outside."""
    return [tensor for function in part._functions() for tensor in function.function.captured_inputs]


def _size(before: list[Any]) -> int:
    """The bytes of the arrays of `from_tensor_slices`, of `from_tensors` and of functions, without texts and those of captured datasets."""
    tensors = [tensor for part in before for tensor in (*getattr(part, "_tensors", ()), *_from_outside(part)) if hasattr(tensor, "shape")]
    return sum(tensor.dtype.size * (tensor.shape.num_elements() or 0) for tensor in tensors if tensor.dtype.size)


def _with_seeds(dataset: Any, number: int = 0) -> Any:
    """A copy of the dataset in which each shuffle without a seed has one that all workers draw alike.

    `number`: of an iterator; from 1 on each shuffle gets other seeds, which follow from those that it has.
    """
    import tensorflow as tf
    from tensorflow.core.framework import graph_pb2
    from tensorflow.python.data.ops import dataset_ops
    from tensorflow.python.data.ops.options import ExternalStatePolicy

    graph = graph_pb2.GraphDef()
    text = _not_empty(dataset._as_serialized_graph(external_state_policy=ExternalStatePolicy.IGNORE).numpy())
    if len(text) > MOST_COPIED:  # also the datasets that functions have are in it
        raise ValueError(f"its arrays have {len(text) >> 20:,} MiB")
    graph.ParseFromString(text)
    if number:
        for node, at, seed in shuffle_graph.other_seeds(graph.node, number):
            shuffle_graph.set_seeds(graph, graph.node, node, at, seed)
    else:
        seed = draw_seed(" ".join(node.op for node in graph.node if node.op != "Const"))
        for body in sorted(
            shuffle_graph.bodies(graph), key=lambda nodes: [node.op for node in nodes]
        ):  # the names of functions are those of one process
            for node, at in shuffle_graph.unseeded(body):
                seed += 1
                shuffle_graph.set_seeds(graph, body, node, at, seed)
    variant = tf.raw_ops.DatasetFromGraph(graph_def=graph.SerializeToString())
    copy = dataset_ops._VariantDataset(variant, dataset.element_spec).with_options(dataset.options())
    setattr(copy, COPIED, dataset)
    return copy
