"""What several workers read, element by element: nothing twice in an epoch, nothing never, and no array of the program is written."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import itertools
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator.model.planning.sharding import File, Sharding, steps
from orchestrator.testing import cluster
from tests.real.shard_draws import tally
from worker.task.input.worker_parts import WorkerParts

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.usefixtures("warm_tensorflow")]

COUNT = 50
"""The number of elements of most datasets: neither the batches of 8 nor the workers divide it."""
EPOCHS = 3
DRAWS = random.Random(24)


def at_boundary(values: Any) -> Any:
    """A copy of an array that begins where TensorFlow takes its memory as it is."""
    import numpy as np

    memory = np.empty(values.nbytes + 64, "uint8")
    begin = -memory.ctypes.data % 64
    copy = memory[begin : begin + values.nbytes].view(values.dtype).reshape(values.shape)
    copy[:] = values
    return copy


def with_policy(dataset: Any, name: str) -> Any:
    import tensorflow as tf

    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy[name]
    return dataset.with_options(options)


def text_files(directory: str, *sizes: int) -> list[str]:
    """Files of lines, each a number, counted through. Each task writes files of its own, in a directory of its own."""
    numbers = itertools.count()
    names = []
    os.makedirs(f"{directory}/{os.environ['ORCH_TASK']}", exist_ok=True)
    for index, size in enumerate(sizes):
        names.append(f"{directory}/{os.environ['ORCH_TASK']}/{'-'.join(map(str, sizes))}.{index}.txt")
        Path(names[-1]).write_text("".join(f"{next(numbers)}\n" for _ in range(size)))
    return names


def lines(directory: str, *sizes: int) -> Any:
    import tensorflow as tf

    return tf.data.TextLineDataset(text_files(directory, *sizes)).map(lambda line: tf.strings.to_number(line, tf.int64))


# --- memory ----------------------------------------------------------------------------------------


def written(strategy: Any, directory: str) -> dict[str, int]:
    """In each task: how many numbers of the program's own arrays have changed after a step that may write into its input."""
    import numpy as np
    import tensorflow as tf

    import worker

    signature = tf.TensorSpec([None, 1], tf.float32)
    np.save(f"{directory}/{os.environ['ORCH_TASK']}.npy", np.arange(192, dtype="float32")[:, None])

    def steps(array: Any) -> Callable[[], Iterator[Any]]:
        return lambda: (array[at : at + 96] for at in (0, 96))

    def generator(array: Any) -> Any:
        return tf.data.Dataset.from_generator(steps(array), output_signature=signature)

    makers: dict[str, Callable[[Any], Any]] = {
        "a generator": generator,
        "a generator, deep inside": lambda array: tf.data.Dataset.range(1).interleave(lambda _: generator(array)).prefetch(1),
        "numpy_function": lambda array: tf.data.Dataset.range(0, 192, 96).map(
            lambda at: tf.ensure_shape(tf.numpy_function(lambda at: array[at : at + 96], [at], tf.float32), [None, 1])
        ),
        "slices": lambda array: tf.data.Dataset.from_tensor_slices(array).batch(96),
    }

    def squares(values: Any) -> Any:
        return tf.reduce_sum(tf.square(values - 0.5))

    def changed(make: Callable[[Any], Any], distribute: Callable[..., Any], array: Any) -> int:
        step = tf.function(lambda iterator: strategy.reduce("SUM", strategy.run(squares, args=(next(iterator),)), axis=None))
        iterator = iter(distribute(make(array), **({"batch": False} if distribute is worker.distribute else {})))
        total = sum(float(step(iterator)) for _ in range(2))
        assert total == pytest.approx(sum((number - 0.5) ** 2 for number in range(192)))
        return int((array[:, 0] != np.arange(192)).sum())

    found = {}
    for name, make in makers.items():
        found[name] = changed(make, strategy.experimental_distribute_dataset, at_boundary(np.arange(192, dtype="float32")[:, None]))
    on_disk = np.load(f"{directory}/{os.environ['ORCH_TASK']}.npy", mmap_mode="r")
    found["a file, worker.distribute"] = changed(generator, worker.distribute, on_disk)
    return found


def test_no_array_of_the_program_is_written(tmp_path: Path) -> None:
    with cluster(workers=2) as c:
        for found in c.run(written, str(tmp_path)).values():
            assert set(found.values()) == {0}, found


def test_no_array_of_the_program_is_written_under_mirrored_strategy(tmp_path: Path) -> None:
    with cluster(workers=1, strategy="mirrored", cpus=2) as c:
        (found,) = c.run(written, str(tmp_path)).values()
        assert set(found.values()) == {0}, found


# --- the order -------------------------------------------------------------------------------------


def orders(strategy: Any, directory: str) -> dict[str, Any]:
    """In each task: the elements that it gets in each epoch, in their order, by case."""
    import keras
    import numpy as np
    import tensorflow as tf

    import worker

    parts = importlib.import_module("_orch_worker.task.keras.parts")
    data = tf.data.Dataset
    on_the_way = data.range(COUNT).shuffle(COUNT).batch(8)
    ten = data.range(10).shuffle(10)

    def epochs(distributed: Any) -> list[list[int]]:
        parts = [[strategy.experimental_local_results(batch)[0] for batch in distributed] for _ in range(EPOCHS)]
        return [[int(number) for part in epoch for number in np.ravel(part)] for epoch in parts]

    def divided(dataset: Any) -> list[list[int]]:
        return epochs(strategy.experimental_distribute_dataset(dataset))

    class Reader(keras.Model):
        def train_step(self, batch: Any) -> Any:
            rows: Any
            (rows,) = batch if isinstance(batch, tuple) else (batch,)
            values: Any = np.ravel(rows)
            of_part = int(parts.current().rows)  # a row stands in for a part without rows
            seen[-1].append([int(number) - 1 for number in values[:of_part]])
            return {"loss": tf.constant(0.0)}

    def fit(dataset: Any, epochs: int = EPOCHS, **arguments: Any) -> int | None:
        """The number of steps of an epoch, where Keras knows it at the start. `seen` gets the batches of each epoch."""
        seen.clear()
        known: list[int | None] = []
        notes: Any = keras.callbacks.LambdaCallback(
            on_train_begin=lambda logs: known.append(notes.params["steps"]), on_epoch_begin=lambda epoch, logs: seen.append([])
        )
        with strategy.scope():
            reader = Reader()
            reader.compile("adam", run_eagerly=True)  # which computes with the number of steps
        reader.fit(dataset, epochs=epochs, verbose=0, callbacks=[notes], **arguments)
        return known[0]

    seen: list[list[list[int]]] = []

    def fitted(dataset: Any, **arguments: Any) -> Any:
        """The elements of each epoch of `fit`, and its number of steps."""
        fit(dataset, **arguments)
        return {"steps": [len(epoch) for epoch in seen], "epochs": [[number for batch in epoch for number in batch] for epoch in seen]}

    def left(dataset: Any, count: int) -> list[list[int]]:
        """The elements of three epochs of so many batches, the first and the last two, of a loop that leaves a dataset without an end.

        The loop leaves the epochs between these two batches earlier, where TensorFlow, which reads ahead, may have begun the next pass.
        """
        distributed, found = strategy.experimental_distribute_dataset(dataset), []
        for batches in (count, *[count - 2] * 20, count, count):
            found.append(list[int]())
            for number, batch in enumerate(distributed, 1):
                found[-1].extend(int(element) for element in np.ravel(strategy.experimental_local_results(batch)[0]))
                if number == batches:
                    break
            strategy.gather(tf.constant([0]), axis=0)
        return [found[0], *found[-2:]]

    rows, from_1 = np.arange(1, COUNT + 1), data.range(1, COUNT + 1)
    off = {
        "off": from_1.batch(8),
        "off, whole batches": from_1.batch(8, drop_remainder=True),
        "off, parts that change": from_1.batch(7),
        "off, a map at the end": from_1.take(48).batch(8).map(lambda batch: batch + 0),
    }
    found = {
        "worker.distribute": epochs(worker.distribute(data.range(COUNT).shuffle(COUNT), batch=8)),
        "a script": divided(on_the_way),
        "by data": divided(with_policy(data.range(COUNT).shuffle(10).batch(7).prefetch(1), "DATA")),
        "files by data": divided(with_policy(lines(directory, 9, 30, 11).shuffle(20).batch(8), "DATA")),
        "shuffles in a function": divided(data.range(5).interleave(lambda at: data.range(at * 10, at * 10 + 10).shuffle(10)).batch(8)),
        "a shuffle that a function has": divided(data.range(5).flat_map(lambda at: ten.map(lambda one: at * 10 + one)).batch(8)),
        "samples": divided(data.sample_from_datasets([data.range(25), data.range(25, COUNT)]).batch(8)),
        "left before its end": left(on_the_way.repeat(), 7),
        "left before its end, with a seed": left(data.range(COUNT).shuffle(COUNT, seed=5).batch(8).repeat(), 7),
        "left before its end, of a function": left(
            data.range(5).repeat().flat_map(lambda at: ten.map(lambda one: at * 10 + one)).batch(10), 5
        ),
        "left before its end, samples": left(
            data.sample_from_datasets([on_the_way.unbatch(), on_the_way.unbatch().skip(COUNT)], [0.5, 0.5]).batch(8).repeat(), 7
        ),
        "with a seed": divided(data.range(COUNT).shuffle(COUNT, seed=5).batch(8)),
        "one file each": divided(lines(directory, 16, 16, 16).shuffle(16).batch(6)),
        "own order: off": divided(with_policy(on_the_way, "OFF")),
        "own order: a function": epochs(strategy.distribute_datasets_from_function(lambda context: on_the_way)),
        "fit, arrays": fitted(rows, batch_size=8, shuffle=True),
        "fit, arrays, batches": fitted(rows, batch_size=8, shuffle="batch"),
        "fit, a dataset": fitted(from_1.shuffle(COUNT).batch(8)),
        **{name: fitted(with_policy(dataset, "OFF")) for name, dataset in off.items()},
    }
    fit(with_policy(from_1.repeat().batch(8), "OFF"), epochs=1, steps_per_epoch=2)
    for dataset in (from_1.batch(8), from_1.batch(8).filter(lambda _: True)):
        print("a fit", fit(dataset, epochs=1), file=sys.stderr)
    keras.utils.set_random_seed(1)
    return {**found, "fit, arrays, with a seed": fitted(rows, batch_size=8, shuffle=True)}


COMMON = (
    "worker.distribute",
    "a script",
    "by data",
    "files by data",
    "shuffles in a function",
    "a shuffle that a function has",
    "samples",
    "with a seed",
    "left before its end",
    "left before its end, with a seed",
    "left before its end, of a function",
    "left before its end, samples",
)
FITTED = ("fit, arrays", "fit, arrays, batches", "fit, a dataset", "fit, arrays, with a seed")


def test_each_element_comes_once_in_an_epoch(tmp_path: Path) -> None:
    workers = 3  # of which not even the batches of 8 are a multiple
    with cluster(workers=workers, timeout=400) as c:  # it makes some thirty datasets
        found = list(c.run(orders, str(tmp_path)).values())
        said, *others = (c.logs(f"worker-{index}") for index in range(workers))
    assert not [line for log in (said, *others) for line in log.splitlines() if "orch cannot give all workers one order" in line]
    assert said.count(f"under the policy OFF each worker reads all of its dataset, so an epoch goes {workers} times over") == 1
    assert said.count(f"under the policy OFF each worker reads all of its dataset, so each row comes {workers} times, of data that") == 1
    assert "begins a dataset again that shuffles without an end, so its order now differs from one process" in said
    known, unknown = said.split("a fit ")[1:]
    assert (known[0], unknown[:4]) == ("7", "None")
    assert ["the length of the dataset is unknown" in part for part in (said.split("a fit 7")[0], known)] == [False, True]
    for name in (*COMMON, *FITTED):
        epochs = [task[name]["epochs"] if name in FITTED else task[name] for task in found]
        for number in range(EPOCHS):
            got = [element for task in epochs for element in task[number]]
            assert sorted(got) == [*range(COUNT)], (name, number, got)
    for name in ("worker.distribute", "a script", "by data", "files by data", "left before its end", "left before its end, with a seed"):
        assert found[0][name][0] != found[0][name][1], f"{name}: the epochs have one order"
    for name in ("fit, arrays", "fit, a dataset"):
        assert found[0][name]["epochs"][0] != found[0][name]["epochs"][1], f"{name}: the epochs have one order"
    check_own_orders(found)
    check_off(found, workers)


def check_own_orders(found: list[dict[str, Any]]) -> None:
    for name in ("own order: off", "own order: a function"):
        for task in found:
            assert [sorted(epoch) for epoch in task[name]] == [[*range(COUNT)]] * EPOCHS
        assert found[0][name] != found[1][name], f"{name}: the workers train on equal batches"


def check_off(found: list[dict[str, Any]], workers: int) -> None:
    for name, elements, batch in (("off", COUNT, 8), ("off, whole batches", 48, 8), ("off, parts that change", COUNT, 7)):
        planned = steps_of_plan(elements, batch, workers)
        for task in found:
            assert task[name] == {"steps": [planned] * EPOCHS, "epochs": [[*range(elements)]] * EPOCHS}, name
    for task in found:
        assert task["off, a map at the end"]["epochs"] == [[*range(48)]] * EPOCHS


def steps_of_plan(elements: int, batch: int, workers: int) -> int:
    return sum(1 for _ in steps(Sharding("off", workers=workers, batch=batch), tally([File("rows.txt", elements, elements)], workers)))


def read_ahead(strategy: Any) -> dict[str, Any]:
    """In each task: what it gets of an epoch that begins after another one was left, by case. Worker 1 reads ahead far more slowly."""
    import numpy as np
    import tensorflow as tf

    data, is_slow = tf.data.Dataset, strategy.extended._id_in_cluster == 1
    ten = data.range(10).shuffle(10)

    def pause(batch: Any) -> Any:
        def wait(numbers: Any) -> Any:
            time.sleep(0.02 * is_slow)
            return numbers

        return tf.ensure_shape(tf.numpy_function(wait, [batch], tf.int64), batch.shape)

    def ahead(dataset: Any) -> Any:
        return dataset.batch(10).map(pause).prefetch(40)

    def read(distributed: Any, batches: int, wait: float = 0.0) -> list[int]:
        found: list[int] = []
        for number, batch in enumerate(distributed, 1):
            found.extend(int(element) for element in np.ravel(strategy.experimental_local_results(batch)[0]))
            if number == batches:
                break
        time.sleep(wait)  # the fast workers read ahead
        strategy.gather(tf.constant([0]), axis=0)
        return found

    numbers = data.range(COUNT)
    whole = strategy.experimental_distribute_dataset(numbers.shuffle(COUNT).repeat(2).batch(10))
    found = {}
    for name in ("whole", "whole, again"):
        iterator = iter(whole)  # of ten batches: no one asks for an eleventh
        found[name] = [int(number) for _ in range(5) for number in np.ravel(strategy.experimental_local_results(next(iterator))[0])]
        for _ in range(5):
            next(iterator)
    print("whole passes", file=sys.stderr)
    cases = {
        "endless": ahead(numbers.shuffle(COUNT).repeat()),
        "endless, of unknown length": ahead(numbers.shuffle(COUNT).repeat().filter(lambda number: number >= 0)),
        "endless, of a function": ahead(data.range(5).repeat().flat_map(lambda at: ten.map(lambda one: at * 10 + one))),
        "cut": ahead(numbers.shuffle(COUNT, seed=3).repeat()).take(5),
        "several passes": ahead(numbers.shuffle(COUNT).repeat(20)),
    }
    for name, dataset in cases.items():
        distributed = strategy.experimental_distribute_dataset(dataset)
        read(distributed, 3, 0.3)
        found[name] = read(distributed, 5)
    seeded = ahead(numbers.shuffle(COUNT, seed=5).repeat())  # is not copied when it is divided
    read(strategy.experimental_distribute_dataset(seeded), 3, 0.3)
    found["divided twice"] = read(strategy.experimental_distribute_dataset(seeded), 5)
    return found


def test_what_one_worker_has_read_ahead_does_not_change_the_next_order() -> None:
    with cluster(workers=3) as c:
        found = list(c.run(read_ahead).values())
        before, after = c.logs("worker-0").split("whole passes")
    assert ["begins a dataset again that shuffles without an end" in said for said in (before, after)] == [False, True]
    assert len(found[0]) == 8
    for name in found[0]:
        assert sorted(element for task in found for element in task[name]) == [*range(COUNT)], name


# --- files -----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Files:
    sizes: tuple[int, ...]
    batch: int
    shard: str
    repeat: int
    shuffle: int
    drop_remainder: bool


def draw_files(workers: int) -> Files:
    sizes = tuple(DRAWS.randrange(workers * 2, 16) for _ in range(DRAWS.randrange(workers, workers + 3)))
    least = min(sizes) * workers
    batch = DRAWS.randrange(workers, max(workers + 1, min(13, least // 2)))
    shard = DRAWS.choice(("file", "data", "off"))
    return Files(sizes, batch, shard, DRAWS.randrange(1, 4), DRAWS.choice((0, 30)), DRAWS.random() < 0.6)


def read_files(strategy: Any, directory: str, draws: list[Files]) -> list[list[list[int]]]:
    import worker

    found = []
    for draw in draws:
        given = dataclasses.asdict(draw)
        names = text_files(directory, *given.pop("sizes"))
        dataset = worker.files(names, reader="lines", **given)
        divided = strategy.experimental_distribute_dataset(dataset)
        found.append([[int(line) for line in strategy.experimental_local_results(part)[0].numpy()] for part in divided])
    return found


def test_worker_files_keeps_whole_batches_and_the_common_end(tmp_path: Path) -> None:
    workers = 3  # the test after this one has the parts of 2 and 4 workers
    draws = [Files((17,), 5, "data", 1, 0, True), Files((17,), 5, "data", 1, 0, False), *(draw_files(workers) for _ in range(12))]
    with cluster(workers=workers) as c:
        found = list(c.run(read_files, str(tmp_path), draws).values())
    for draw, *tasks in zip(draws, *found, strict=True):
        assert len({len(parts) for parts in tasks}) == 1, (draw, [[len(part) for part in parts] for parts in tasks])
        assert all(part for parts in tasks for part in parts), f"{draw}: an empty part"
        sizes = [sum(map(len, parts)) for parts in zip(*tasks, strict=True)]
        assert {*sizes[:-1]} <= {draw.batch}, (draw, sizes)
        if draw.drop_remainder:
            assert sizes[-1] == draw.batch, (draw, sizes)
        taken = Counter(element for parts in (tasks[:1] if draw.shard == "off" else tasks) for part in parts for element in part)
        assert max(taken.values()) <= draw.repeat, (draw, taken)
        # Each epoch leaves out less than one element of each worker, or one batch, beyond what the smallest share has.
        if draw.shard == "data":
            least = draw.repeat * (sum(draw.sizes) - workers - (draw.batch + workers if draw.drop_remainder else 0)) - 2 * workers
            assert taken.total() >= least, (draw, taken)


def parts_of_tensorflow(strategy: Any) -> list[tuple[int, int, int, list[list[int]]]]:
    from tensorflow.python.data.experimental.ops.distribute import batch_sizes_for_worker

    def sizes(batch: int, workers: int, replicas: int, worker: int) -> list[int]:
        parts = batch_sizes_for_worker(batch, workers, replicas, worker).numpy().tolist()
        return [sum(parts[at : at + replicas]) for at in range(0, len(parts), replicas)]

    draws = [(batch, workers, replicas) for workers in (2, 3, 4) for replicas in (1, 2) for batch in range(workers * replicas, 20)]
    return [(*draw, [sizes(*draw, worker) for worker in range(draw[1])]) for draw in draws]


def begun(strategy: Any) -> list[list[list[int]]]:
    """In a task that is the only worker: the elements of the two epochs of a `fit`, and of the first passes of an equal dataset.

    Then the same with a strategy that the program has made.
    """
    import keras
    import tensorflow as tf

    import worker.task.strategy.strategy_builder as builder

    def train() -> list[list[int]]:
        seen: list[list[int]] = []

        class Own(keras.Model):
            def __init__(self) -> None:
                super().__init__()
                self.dense = keras.layers.Dense(1)

            def call(self, x: Any) -> Any:
                return self.dense(x)

            def train_step(self, batch: Any) -> Any:
                seen[-1].extend(int(number) for number in batch[0][:, 0])
                return super().train_step(batch)

        with strategy.scope():
            model = Own()
            model.compile("sgd", "mse", run_eagerly=True)
        dataset = tf.data.Dataset.range(10).shuffle(10, seed=3).batch(4).map(lambda at: (tf.cast(at, tf.float32)[:, None],) * 2)
        begin = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: seen.append([]))
        model.fit(dataset, epochs=2, verbose=0, callbacks=[begin])
        return seen

    shuffled = tf.data.Dataset.range(10).shuffle(10, seed=3)
    passes = [[int(number) for number in shuffled] for _ in range(2)]
    with_ours = train()
    delattr(strategy, builder.BUILT_HERE)
    print("its own strategy", file=sys.stderr)
    return [passes, with_ours, train()]


def test_the_parts_of_the_workers_are_those_of_tensorflow_and_one_worker_has_the_orders_of_a_process_without_a_strategy() -> None:
    with cluster(workers=1) as c:
        (found,) = c.run(parts_of_tensorflow).values()
        (first, second), with_ours, with_its_own = c.run(begun)["worker-0"]
        said = c.logs("worker-0").split("its own strategy")
    assert (with_ours[0], with_its_own[0]) == (first, second)
    assert ["with one worker, Keras begins with the second order of a shuffle" in part for part in said] == [False, True]
    for batch, workers, replicas, theirs in found:
        parts = WorkerParts(batch, workers, replicas)
        assert [parts.sizes(worker) for worker in range(workers)] == theirs, parts


# --- predictions -------------------------------------------------------------------------------------


def predicted(strategy: Any, directory: str) -> dict[str, Any]:
    """In each task: what `predict` returns for the numbers from 0 on, in batches of 4, by case."""
    import keras
    import numpy as np
    import tensorflow as tf

    import worker

    with strategy.scope():
        inputs = keras.Input((1,))
        model = keras.Model(inputs, keras.layers.Rescaling(1.0)(inputs))

    def of_files(*sizes: int) -> Any:
        return lines(directory, *sizes).map(lambda number: tf.cast([number], tf.float32)).batch(4)

    def predict(data: Any) -> list[int]:
        return [int(value) for value in model.predict(data, verbose=0).ravel()]

    with pytest.raises(ValueError, match=r"predict: a dataset of worker.files is divided already") as refused:
        predict(worker.files(text_files(directory, 9, 8, 8), reader="lines", batch=4).map(lambda line: line))
    assert "make the dataset by tf.data" in str(refused.value)
    numbers: Any = np.arange(25, dtype="float32")[:, None]
    return {
        "auto is file": predict(of_files(9, 8, 8)),
        "file": predict(with_policy(of_files(9, 8, 8), "FILE")),
        "off": predict(with_policy(of_files(25), "OFF")),
        "data": predict(with_policy(of_files(12, 13), "DATA")),
        "arrays": predict(numbers),
    }


@pytest.mark.core
def test_predictions_come_in_the_order_of_the_data(tmp_path: Path) -> None:
    with cluster(workers=3) as c:
        for name, found in c.run(predicted, str(tmp_path)).items():
            assert found == {case: [*range(25)] for case in found}, name
        said = c.logs("worker-0")
    for policy in ("file", "off"):
        assert f"predict: auto_shard data instead of {policy}, so that the predictions come in the order of the data" in said


def predicted_forms(strategy: Any) -> dict[str, Any]:
    """In each task: what `predict` returns for outputs, data and callbacks of many kinds, and how often a step is traced."""
    import keras
    import numpy as np
    import tensorflow as tf

    def of(output: Any) -> Any:
        if isinstance(output, dict):
            return {name: of(each) for name, each in output.items()}
        if isinstance(output, list | tuple):
            return [of(each) for each in output]
        if isinstance(output, tf.SparseTensor):
            output = tf.sparse.to_dense(output).numpy()
        name = getattr(output.dtype, "name", str(output.dtype))
        return [type(output).__name__, name, output.to_list() if isinstance(output, tf.RaggedTensor) else output.tolist()]

    class Own(keras.Model):
        """Predicts what a function makes of the data."""

        def __init__(self, function: Any) -> None:
            super().__init__()
            self.function, self.traced = function, 0

        def predict_step(self, data: Any) -> Any:
            self.traced += 1
            return self.function(data[0] if isinstance(data, tuple) else data)

    class Shown(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[Any] = []

        def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
            self.seen.append([batch, of(np.asarray(logs["outputs"]))])

    def predict(function: Any, data: Any, steps_per_execution: int = 1, eagerly: bool = False, **more: Any) -> Any:
        with strategy.scope():
            model = Own(function)
            model.compile(steps_per_execution=steps_per_execution, run_eagerly=eagerly, jit_compile=False)
        found = of(model.predict(data, verbose=0, **{"batch_size": 4, **more}))
        traced = model.traced
        if strategy.extended._num_workers > 1 and not more.get("callbacks"):
            assert of(model.predict(data, verbose=0, **{"batch_size": 4, **more})) == found
            assert model.traced == traced or eagerly
        return found

    x: Any = np.arange(25, dtype="float32")[:, None]
    rows = tf.data.Dataset.from_tensor_slices(x)

    def of_several_shapes(batch: Any) -> Any:
        return tf.repeat(batch, tf.cast(1 + batch[0, 0] % 3, tf.int32), axis=1)

    def in_batches() -> Any:
        yield from ((x[:4],), (x[4:5],), (x[5:10],))

    types = ("bool", "uint8", "int8", "int64", "float64", "float16", "bfloat16", "complex64")
    shown = Shown()
    found = {
        **{name: predict(lambda batch, name=name: tf.cast(batch, name), x) for name in types},
        "string": predict(tf.as_string, x),
        "string, one row": predict(tf.as_string, x[:1]),
        "structure": predict(lambda batch: {"b": batch, "a": [batch + 1, (tf.cast(batch, "uint8"),)]}, x, 3),
        "ragged": predict(lambda batch: tf.RaggedTensor.from_tensor(tf.repeat(batch, 2, 1), lengths=tf.cast(batch[:, 0] % 3, "int64")), x),
        "sparse": predict(tf.sparse.from_dense, x),
        "several shapes": predict(lambda batch: batch, rows.batch(4).map(of_several_shapes)),
        **{f"{steps} steps": predict(lambda batch: batch, x, steps) for steps in (2, 10)},
        "eagerly": predict(lambda batch: batch, x, 3, True),
        "tiny": predict(lambda batch: batch, rows.batch(1).take(3)),
        "one row of unknown length": predict(lambda batch: batch, rows.filter(lambda row: row[0] < 1).batch(4)),
        "unknown length": predict(lambda batch: batch, rows.filter(lambda row: row[0] < 17).batch(4), 3),
        "endless": predict(lambda batch: batch, rows.repeat().batch(4), steps=9),
        "endless, several steps": predict(lambda batch: batch, rows.repeat().batch(4), 2, steps=4),
        "more steps than data": predict(lambda batch: batch, rows.batch(4), steps=9),
        "fewer steps than data": predict(lambda batch: batch, rows.batch(4), 2, steps=4),
        "with a callback": predict(lambda batch: batch, x, callbacks=[shown]),
        "with a callback, several steps": predict(lambda batch: batch, x, 3, callbacks=[shown]),
        "with a callback, unknown length": predict(lambda batch: batch, rows.filter(lambda row: row[0] < 17).batch(4), callbacks=[shown]),
        "a generator": of(Own(lambda batch: batch).predict(in_batches(), verbose=0)),
    }
    return {**found, "shown": shown.seen}


def test_predictions_of_every_kind_are_those_of_one_worker() -> None:
    with cluster(workers=1) as c:
        (alone,) = c.run(predicted_forms).values()
    with cluster(workers=3) as c:
        for name, found in c.run(predicted_forms).items():
            assert found.keys() == alone.keys()
            assert {case: value for case, value in found.items() if value != alone[case]} == {}, name


def predicted_with_a_callback_of_the_chief(strategy: Any) -> Any:
    import keras
    import numpy as np

    seen: list[int] = []
    show = keras.callbacks.LambdaCallback(
        on_predict_batch_end=lambda batch, logs: seen.extend(np.asarray(logs["outputs"])[:, 0].astype(int))
    )
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Rescaling(1.0)])
    numbers: Any = np.arange(25, dtype="float32")[:, None]
    found = model.predict(numbers, batch_size=4, verbose=0, callbacks=[show] if os.environ["ORCH_TASK"] == "worker-0" else None)
    return found[:, 0].astype(int).tolist(), list(map(int, seen))


def test_a_callback_of_the_chief_alone_gets_the_rows_of_all_workers() -> None:
    with cluster(workers=2) as c:
        assert c.run(predicted_with_a_callback_of_the_chief) == {"worker-0": ([*range(25)], [*range(25)]), "worker-1": ([*range(25)], [])}


# --- arrays that are not the same ----------------------------------------------------------------------


def told_of_other_arrays(strategy: Any, how: str) -> str:
    """In each task: what orch prints when the arrays of `fit` have an order of this worker's own, or the same order in all workers."""
    import contextlib
    import io

    import keras
    import numpy as np
    import tensorflow as tf

    own = np.random.default_rng(int(os.environ["ORCH_TASK"][-1])).permutation(COUNT)
    order = np.arange(COUNT) if how == "the same" else own
    x = np.arange(COUNT * 2, dtype="float32").reshape(COUNT, 2)[order]
    data: Any = tf.data.Dataset.from_tensor_slices((x, x)).shuffle(COUNT).batch(10)
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(2)])
        model.compile("sgd", "mse")
    for name, module in list(sys.modules.items()):  # orch's own modules, and those of the repository, which the tests import
        if name.endswith("task.patches.import_hooks"):
            module._printed.clear()
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        if how in ("the same", "arrays"):
            model.fit(x, x, batch_size=10, verbose=0)
        else:
            model.fit(with_policy(data, "OFF") if how == "divided by the program" else data, verbose=0)
    return said.getvalue()


def test_arrays_that_each_worker_has_in_another_order_are_said() -> None:
    with cluster(workers=2) as c:
        for how, is_said in {"the same": False, "arrays": True, "a dataset": True, "divided by the program": False}.items():
            first = c.run(told_of_other_arrays, how=how)["worker-0"]
            assert ("the data given in worker 1 are not those in worker 0" in first) == is_said, how


def alike(strategy: Any, directory: str) -> dict[str, Any]:
    """In each task: what a program draws that gives no seed, and what the workers train on where it draws the order itself."""
    import keras
    import numpy as np
    import tensorflow as tf

    def rows(dataset: Any) -> list[int]:
        parts = [strategy.experimental_local_results(batch)[0] for batch in strategy.experimental_distribute_dataset(dataset)]
        return [int(number) for part in parts for number in np.ravel(part)]

    numbers = tf.data.Dataset.range(COUNT)
    names = text_files(directory, *[5] * 10)
    random.shuffle(names)
    once = numbers.shuffle(COUNT, reshuffle_each_iteration=False)
    x = np.linspace(-1, 1, 16, dtype="float32")[:, None]
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, "sigmoid", kernel_initializer="ones")])
        model.compile("sgd", "binary_crossentropy", metrics=[keras.metrics.TruePositives(name="positive"), "accuracy"])
    counted = [model.train_on_batch(x, x > 0, return_dict=True), model.test_on_batch(x, x > 0, return_dict=True)]
    images = tf.keras.preprocessing.image.ImageDataGenerator().flow(np.arange(COUNT, dtype="float32").reshape(COUNT, 1, 1, 1), batch_size=5)
    pairs = rows(lines(directory, 20, 10, 20).enumerate().map(lambda at, row: 100 * at + row).batch(8))
    return {
        "drawn": [random.random(), np.random.random(), list({f"word {number}" for number in range(30)})],
        "order": [int(number) for number in once] + [int(number) for number in once],
        "counted": [[logs["positive"], logs["accuracy"]] for logs in counted],
        "read": {
            "skip": rows(once.skip(20).batch(8)) + rows(once.take(20).batch(8)),
            "names": rows(tf.data.TextLineDataset(names).map(lambda line: tf.strings.to_number(line, tf.int64)).batch(8)),
            "generator": [int(number) for at in range(len(images)) for number in np.ravel(images[at])][
                strategy.extended._id_in_cluster :: 2
            ],
            "split": [
                int(number)
                for part in keras.utils.split_dataset(np.arange(COUNT, dtype="int64"), 0.5, shuffle=True)
                for number in rows(part.batch(5))
            ],
            "pairs": [number // 100 for number in pairs if number // 100 == number % 100],
            "take and skip of files": rows(lines(directory, 20, 10, 30).skip(5).take(COUNT).map(lambda number: number - 5).batch(8)),
        },
    }


def test_what_a_program_draws_without_a_seed_is_the_same_in_all_workers(tmp_path: Path) -> None:
    with cluster(workers=2) as c:
        found = list(c.run(alike, str(tmp_path)).values())
        said = c.logs("worker-0")
    assert found[0]["drawn"] == found[1]["drawn"]
    assert found[0]["order"] == found[1]["order"]
    assert found[0]["order"][:COUNT] == found[0]["order"][COUNT:]
    assert found[0]["counted"] == [[8, 1], [8, 1]]
    for name in found[0]["read"]:
        assert sorted(number for task in found for number in task["read"][name]) == [*range(COUNT)], name
    assert "input: zip in the dataset of " in said
    assert "compares rows of all files, so auto_shard is data" in said
    assert "are not those in worker 0" not in said


def told_of_a_loop(strategy: Any, directory: str, how: str) -> str:
    """In each task: what orch prints when a loop begins over data that may be this worker's own."""
    import contextlib
    import io

    import numpy as np
    import tensorflow as tf

    index = strategy.extended._id_in_cluster
    own = np.random.default_rng(index).permutation(COUNT)
    names = text_files(directory, *[5] * 10)  # in each task in another directory
    whole = tf.data.Dataset.range(COUNT)
    data: Any = {
        "arrays": lambda: tf.data.Dataset.from_tensor_slices(own),
        "texts": lambda: tf.data.Dataset.from_tensor_slices([f"row {number}" for number in own]),
        "files": lambda: tf.data.TextLineDataset(sorted(names, reverse=bool(index))),
        "a share": lambda: whole.shard(2, index),
        "a share, off": lambda: with_policy(whole.shard(2, index), "OFF"),
        "halves": lambda: whole.shard(2, 1),
        "equal files": lambda: tf.data.TextLineDataset(names),
    }[how]()
    for name, module in list(sys.modules.items()):
        if name.endswith("task.patches.import_hooks"):
            module._printed.clear()
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        for _ in strategy.experimental_distribute_dataset(data.batch(10)):
            pass
    return said.getvalue()


def test_data_of_a_loop_that_the_workers_do_not_share_are_said(tmp_path: Path) -> None:
    other, share = "the data given in worker 1 are not those in worker 0", "the program takes one of 2 shares in each worker, by shard(…)"
    wanted = {"arrays": other, "texts": other, "files": other, "a share": share, "a share, off": "", "halves": "", "equal files": ""}
    with cluster(workers=2) as c:
        for how, line in wanted.items():
            said = c.run(told_of_a_loop, str(tmp_path), how=how)["worker-0"]
            assert [each for each in (other, share) if each in said] == ([line] if line else []), how


def fit_rows(keras: Any, fitted: Sequence[int], evaluated: Sequence[int]) -> list[float]:
    """In the task: `fit` and `evaluate` of so many rows, in batches of 16, under MirroredStrategy. Returns how far the losses that are
    evaluated are from those of the rows."""
    import numpy as np
    import tensorflow as tf

    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    for rows in fitted:
        print("fed", rows, file=sys.stderr)
        model.fit(np.ones((rows, 2), "float32"), np.ones((rows, 1), "float32"), batch_size=16, verbose=0)
    apart = []
    for rows in evaluated:
        print("fed", rows, file=sys.stderr)
        x = np.random.default_rng(rows).normal(size=(rows, 2)).astype("float32")
        found = model.evaluate(x, x[:, :1], batch_size=16, verbose=0)
        apart.append(float(abs(found - np.mean((model(x).numpy() - x[:, :1]) ** 2))))
    return apart


def fit_rows_of_keras_2(*numbers: Sequence[int]) -> list[float]:
    import tf_keras

    return fit_rows(tf_keras, *numbers)


def fit_rows_of_keras_3(*numbers: Sequence[int]) -> list[float]:
    import keras

    return fit_rows(keras, *numbers)


needs_keras_2 = pytest.mark.skipif(importlib.util.find_spec("tf_keras") is None, reason="NOT TESTED: tf-keras is not installed here")


@pytest.mark.parametrize(
    ("mode", "function"), [("v3", fit_rows_of_keras_3), pytest.param("legacy", fit_rows_of_keras_2, marks=needs_keras_2)]
)
def test_parts_of_different_size_are_said_where_keras_gives_them_the_same_weight(mode: str, function: Any) -> None:
    """Not of an evaluation, whose numbers are right, but for a replica without rows."""
    with cluster(workers=1, strategy="mirrored", cpus=2, keras=mode) as c:
        (apart,) = c.run(function, (64, 66, 65), (67, 49)).values()
        _, *fits, even, empty = c.logs("worker-0").split("fed ")
    assert apart[0] < 1e-5
    line = "give 2 replicas parts of different size"
    assert [line in said for said in (*fits, even, empty)] == [False, False, True, False, mode == "v3"]
    assert ["In this training" in fits[-1], "In an evaluation" in empty] == [True, mode == "v3"]
