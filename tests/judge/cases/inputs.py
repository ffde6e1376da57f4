"""Every form of input of `fit`: which rows an epoch trains on, in which order, and that nothing of the program's own memory changes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..case import Case, Result, add, case
from ..place import BATCH, MOST_ROWS, Place, aligned

COUNTED = "the model whose rows are counted"
SHUFFLED = "without a seed the order is another one in each run: each row is counted"


def fit_and_count(place: Place, x: Any, y: Any = None, *, shuffled: bool = False, **options: Any) -> Result:
    """Train a model with a metric that counts how often each row of `_rows_of` is trained on."""
    tf, keras = place.tf, place.keras
    epochs: list[list[float]] = []

    class Times(keras.metrics.Metric):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__(name="rows")
            self.times = self.add_weight(name="times", shape=(MOST_ROWS,), initializer="zeros")

        def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
            ids = tf.cast(tf.round(y_true[:, 1] * 128), "int32")
            self.times.assign_add(tf.cast(tf.math.bincount(ids, minlength=MOST_ROWS, maxlength=MOST_ROWS), "float32"))

        def result(self) -> Any:
            return tf.reduce_sum(self.times)

        def reset_state(self) -> None:  # Keras 2 assigns one number to variables of any shape
            self.times.assign(tf.zeros((MOST_ROWS,)))

    class Epochs(keras.callbacks.Callback):  # type: ignore[name-defined]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            (metric,) = place.shown
            epochs.append(np.asarray(metric.times.read_value() if place.is_keras_2 else metric.times, "float64").tolist())

    def build() -> Any:
        # The second output is the number of the row, as it came: its error is always 0.
        inputs = keras.Input((8,))
        guess = keras.layers.Dense(1)(keras.layers.Dense(4, "tanh")(inputs))
        place.shown[:] = [Times()]
        model = keras.Model(inputs, keras.layers.Concatenate()([guess, inputs[:, :1]]))
        model.compile(keras.optimizers.SGD(0.05), "mse", metrics=place.shown)
        return model

    found = place.fit(place.kept(build), x, y, callbacks=[Epochs()], **options)
    has_length = not isinstance(x, tf.data.Dataset) or int(x.cardinality()) != tf.data.UNKNOWN_CARDINALITY
    if not has_length:  # Keras 3 in one process counts a step without data at the end of each epoch
        del found["iterations"]
    return {"times": epochs} if shuffled else {**found, "times": epochs}


def _rows_of(place: Place) -> tuple[Any, Any]:
    """Rows, and for each a number to learn and the number of the row, divided by 128."""
    x = place.ids()
    return x, aligned(np.concatenate([place.target(x), x[:, :1]], axis=1))


def _unchanged(place: Place, run: Callable[[Any, Any], Result]) -> Result:
    """The result of `run` with arrays of the program, and whether the arrays are what they were."""
    x, y = _rows_of(place)
    before = x.copy(), y.copy()
    found = run(x, y)
    return {**found, "the arrays are unchanged": bool((x == before[0]).all() and (y == before[1]).all())}


Make = Callable[[Place, Any, Any], dict[str, Any]]


def sliced(place: Place, form: str, parts: tuple[Any, ...], batch: int = BATCH, **options: Any) -> dict[str, Any]:
    """The arguments of `fit` for a generator, a PyDataset or a dataset from a generator, whose batches are views of the arrays."""
    places = [slice(first, first + batch) for first in range(0, len(parts[0]), batch)]

    def at(index: int) -> Any:
        return place.tf.nest.map_structure(lambda part: part[places[index]], parts)

    class Batches(place.keras.utils.PyDataset if not place.is_keras_2 else place.keras.utils.Sequence):
        def __len__(self) -> int:
            return len(places)

        def __getitem__(self, index: int) -> Any:
            return at(index)

    def forever() -> Iterator[Any]:
        while True:
            yield from map(at, range(len(places)))

    if form == "generator":
        return {"x": forever(), "steps_per_epoch": len(places)}
    if form == "PyDataset" and place.is_keras_2:  # whose `fit` takes the options
        return {"x": Batches(), "shuffle": False, **options}
    if form == "PyDataset":
        return {"x": Batches(**options), "shuffle": False}
    tf = place.tf
    signature = place.tf.nest.map_structure(lambda part: tf.TensorSpec((None, *part.shape[1:]), part.dtype), parts)
    return {"x": tf.data.Dataset.from_generator(lambda: map(at, range(len(places))), output_signature=signature)}


def _rows(place: Place, x: Any, y: Any, policy: str = "AUTO") -> Any:
    options = place.tf.data.Options()
    options.experimental_distribute.auto_shard_policy = place.tf.data.experimental.AutoShardPolicy[policy]
    return place.tf.data.Dataset.from_tensor_slices((x, y)).with_options(options)


def _with_policy(policy: str) -> Make:
    return lambda place, x, y: {"x": _rows(place, x, y, policy).batch(BATCH)}


def _arrays(place: Place, x: Any, y: Any) -> dict[str, Any]:
    return {"x": x, "y": y, "batch_size": BATCH, "shuffle": False}


def _changed(change: Callable[[Any], Any], **options: Any) -> Make:
    return lambda place, x, y: {"x": change(place.dataset(x, y)), **options}


FORMS: dict[str, Make] = {
    "arrays": _arrays,
    "tensors": lambda place, x, y: _arrays(place, place.tf.constant(x), place.tf.constant(y)),
    "a dataset": _changed(lambda data: data),
    "a dataset with prefetch and cache": _changed(lambda data: data.cache().prefetch(2)),
    "a dataset of unknown length": _changed(lambda data: data.unbatch().filter(lambda x, y: True).batch(BATCH)),
    "a dataset with drop_remainder": lambda place, x, y: {"x": _rows(place, x, y).batch(BATCH, drop_remainder=True)},
    "a dataset that repeats, steps_per_epoch": _changed(lambda data: data.repeat(), steps_per_epoch=3),
    "a dataset of rows, batched after a map": lambda place, x, y: {
        "x": _rows(place, x, y).map(lambda x, y: (x, y), num_parallel_calls=2).batch(BATCH)
    },
    "a dataset of padded batches": lambda place, x, y: {"x": _rows(place, x, y).padded_batch(BATCH)},
    "a dataset, rebatched": _changed(lambda data: data.rebatch(BATCH)),
    "a dataset with policy DATA": _with_policy("DATA"),
    "a dataset with policy OFF": _with_policy("OFF"),
    "a generator": lambda place, x, y: sliced(place, "generator", (x, y)),
    "a PyDataset": lambda place, x, y: sliced(place, "PyDataset", (x, y)),
    "a PyDataset with workers": lambda place, x, y: sliced(place, "PyDataset", (x, y), workers=2),
    "a dataset from_generator": lambda place, x, y: sliced(place, "from_generator", (x, y)),
}
SHUFFLES: dict[str, Make] = {
    "arrays, shuffled": lambda place, x, y: {"x": x, "y": y, "batch_size": BATCH},
    "a PyDataset, shuffled": lambda place, x, y: {**sliced(place, "PyDataset", (x, y)), "shuffle": True},
    "a dataset, shuffled": lambda place, x, y: {"x": _rows(place, x, y).shuffle(MOST_ROWS).batch(BATCH)},
    "a dataset, shuffled once": lambda place, x, y: {
        "x": _rows(place, x, y).shuffle(MOST_ROWS, reshuffle_each_iteration=False).batch(BATCH)
    },
    "a dataset, shuffled after the batches": _changed(lambda data: data.shuffle(8)),
    "a dataset, shuffled and prefetched, DATA": lambda place, x, y: {
        "x": _rows(place, x, y, "DATA").shuffle(MOST_ROWS).batch(BATCH).prefetch(1)
    },
}


def _run(place: Place, make: Make, shuffled: bool) -> Result:
    if shuffled:
        forget_seeds(place)
    return _unchanged(place, lambda x, y: fit_and_count(place, **make(place, x, y), shuffled=shuffled))


def forget_seeds(place: Place) -> None:
    """The state of a process that has given no seed."""
    import random

    from tensorflow.python.eager import context

    context.context()._seed = None
    context.context()._rng = None
    np.random.seed()
    random.seed()
    if not place.is_keras_2:
        from keras.src.backend.common import global_state
        from keras.src.utils import rng_utils

        global_state.set_global_attribute(rng_utils.GLOBAL_RANDOM_SEED, None)


for name, make in FORMS.items():
    says = "under the policy OFF each worker reads all" if "OFF" in name else ""
    add(Case(name, "inputs", functools.partial(_run, make=make, shuffled=False), says=says, model=COUNTED))
for name, make in SHUFFLES.items():
    add(Case(name, "inputs", functools.partial(_run, make=make, shuffled=True), because=SHUFFLED, model=COUNTED))


@case("inputs", "arrays, validation_split and class_weight")
def validation_split(place: Place) -> Result:
    x = place.draws(8)
    y = (place.target(x) > 0).astype("int64")
    options: dict[str, Any] = {"batch_size": BATCH, "shuffle": False, "validation_split": 0.25, "class_weight": {0: 1.0, 1: 3.0}}
    return place.fit(place.small(loss="binary_crossentropy"), x, y, **options)


@case("inputs", "arrays, validation_data of arrays, sample_weight")
def validation_data(place: Place) -> Result:
    x = place.draws(8)
    y = place.target(x)
    options: dict[str, Any] = {"batch_size": BATCH, "shuffle": False, "validation_data": (x[:49], y[:49], y[:49, 0] + 2)}
    return place.fit(place.small(), x, y, sample_weight=aligned(np.linspace(0, 2, place.rows).astype("float32")), **options)


@case("inputs", "arrays, shuffled, with set_random_seed", model=COUNTED)
def seeded(place: Place) -> Result:
    place.keras.utils.set_random_seed(7)
    return _unchanged(place, lambda x, y: fit_and_count(place, x, y, batch_size=BATCH))


@case("inputs", "an array of a file, mmap_mode='r'", model=COUNTED)
def read_only_file(place: Place) -> Result:
    return _mapped(place, "r")


@case("inputs", "an array of a file, mmap_mode='r+', in a PyDataset", model=COUNTED)
def mapped_py_dataset(place: Place) -> Result:
    return _mapped(place, "r+")


def _mapped(place: Place, mode: Any) -> Result:
    directory = place.directory(f"mapped-{place.task}-{mode}")
    x, y = _rows_of(place)
    np.save(directory / "x.npy", x)
    np.save(directory / "y.npy", y)
    mapped = [np.load(directory / f"{name}.npy", mmap_mode=mode) for name in "xy"]
    found = fit_and_count(place, **sliced(place, "PyDataset", tuple(mapped)))
    again = [np.load(directory / f"{name}.npy") for name in "xy"]
    return {**found, "the files are unchanged": bool((again[0] == x).all() and (again[1] == y).all())}


# --- files ---------------------------------------------------------------------------------------


def _write(place: Place, sizes: list[int], kind: str) -> list[str]:
    """Files with so many rows each; the first worker writes them."""
    tf, directory, x = place.tf, place.directory(kind), place.ids()
    paths = [str(directory / f"{number}.{kind}") for number in range(len(sizes))]
    if place.task == "worker-0":
        begin = 0
        for path, size in zip(paths, sizes, strict=True):
            lines = [",".join(f"{value:.7g}" for value in row) for row in x[begin : begin + size]]
            begin += size
            if kind == "tfrecord":
                with tf.io.TFRecordWriter(path) as file:
                    for line in lines:
                        file.write(line.encode())
            else:
                with open(path, "w") as text:
                    text.write("".join(f"{line}\n" for line in lines))
    place.meet()
    return paths


def _decode(place: Place) -> Callable[[Any], Any]:
    tf = place.tf

    def decode(line: Any) -> Any:
        x = tf.strings.to_number(tf.strings.split(line, ","))
        x = tf.ensure_shape(x, (8,))
        return x, tf.stack([tf.tanh(tf.reduce_sum(x)), x[0]])

    return decode


def _sizes(place: Place) -> list[int]:
    """Six files: as even as the rows are, or the last of them longer."""
    return [16] * 5 + [place.rows - 80]


def _read(place: Place, kind: str, policy: str) -> Result:
    tf = place.tf
    paths = _write(place, _sizes(place), kind)
    reader = tf.data.TFRecordDataset if kind == "tfrecord" else tf.data.TextLineDataset
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy[policy]
    data = reader(paths).map(_decode(place)).batch(BATCH).with_options(options)
    found = fit_and_count(place, data)
    return found if policy == "DATA" else {"times": found["times"]}


for policy in ("AUTO", "FILE", "DATA"):
    for kind in ("tfrecord", "text"):
        add(Case(f"files of {kind}, {policy}", "inputs", functools.partial(_read, kind=kind, policy=policy), model=COUNTED))


@case("inputs", "files of unequal length, FILE: the share of a worker ends early", model=COUNTED)
def unequal(place: Place) -> Result:
    tf = place.tf
    paths = _write(place, [30, 10, 5, place.rows - 45], "text")
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.FILE
    return {"times": fit_and_count(place, tf.data.TextLineDataset(paths).map(_decode(place)).batch(BATCH).with_options(options))["times"]}


@case("inputs", "files, predicted in order")
def predicted(place: Place) -> Result:
    paths = _write(place, _sizes(place), "text")
    data = place.tf.data.TextLineDataset(paths).map(_decode(place)).batch(BATCH)
    found = place.small().predict(data.map(lambda x, y: x), verbose=0)
    return {"predicted": np.asarray(found, "float64").tolist()}


WHOLE = "worker.files leaves rows out, so that all workers end together: no row twice, and the workers are compared"


@case("inputs", "worker.files", compare="workers", because=WHOLE, model=COUNTED)
def worker_files(place: Place) -> Result:
    import worker

    paths = _write(place, _sizes(place), "text")
    data = worker.files(paths, _decode(place), reader="lines", batch=BATCH)
    found = fit_and_count(place, data)
    return {**found, "most": max(max(epoch) for epoch in found["times"])}


@case("inputs", "a distributed dataset of the program", model=COUNTED)
def distributed(place: Place) -> Result:
    def run(x: Any, y: Any) -> Result:
        data = place.dataset(x, y)
        if not place.is_alone:
            data = place.strategy.experimental_distribute_dataset(data)
        return _without_steps(fit_and_count(place, data))

    return _unchanged(place, run)


@case("inputs", "a distributed dataset from a function", forms=("even",), model=COUNTED)
def from_function(place: Place) -> Result:
    def run(x: Any, y: Any) -> Result:
        def make(context: Any) -> Any:
            # Each pipeline has its part of each global batch, as TensorFlow's guide says.
            size = context.get_per_replica_batch_size(BATCH)
            return _rows(place, x, y).batch(size).shard(context.num_input_pipelines, context.input_pipeline_id)

        data = place.dataset(x, y) if place.is_alone else place.strategy.distribute_datasets_from_function(make)
        return _without_steps(fit_and_count(place, data))

    return _unchanged(place, run)


def _without_steps(found: Result) -> Result:
    """Distributed data has no length, and Keras by hand counts a step without data at the end of each epoch."""
    del found["iterations"]
    return found


# --- structures ------------------------------------------------------------------------------------


@case("inputs", "dicts, with sample_weight and validation_data")
def dicts(place: Place) -> Result:
    keras, layers = place.keras, place.keras.layers

    def build() -> Any:
        inputs = {name: keras.Input((4,), name=name) for name in ("left", "right")}
        both = layers.Concatenate()([inputs["left"], inputs["right"]])
        outputs = {"kind": layers.Dense(2, name="kind")(both), "size": layers.Dense(1, name="size")(both)}
        model = keras.Model(inputs, outputs)
        losses = {"kind": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "size": "mse"}
        model.compile("sgd", losses, loss_weights={"kind": 1.0, "size": 0.5}, metrics={"kind": ["accuracy"], "size": ["mae"]})
        return model

    x = place.draws(8)
    y = place.target(x)
    rows = ({"left": x[:, :4], "right": x[:, 4:]}, {"kind": (y[:, 0] > 0).astype("int64"), "size": y})
    weights = aligned(np.linspace(0, 2, place.rows).astype("float32"))
    model = place.kept(build)
    found = place.fit(model, place.dataset(*rows, {"kind": weights, "size": weights}), validation_data=place.dataset(*rows))
    predicted = model.predict(place.dataset(rows[0]), verbose=0)
    return {**found, "predicted": {name: np.asarray(value, "float64").tolist() for name, value in predicted.items()}}


@case("inputs", "ragged rows, padded in the dataset")
def ragged(place: Place) -> Result:
    layers = place.keras.layers
    words = place.tf.ragged.constant([list(range(1, number % 4 + 2)) for number in range(place.rows)], dtype="int32")
    data = place.tf.data.Dataset.from_tensor_slices((words, place.target(place.draws(8))))
    data = data.map(lambda x, y: (x.to_tensor()[0] if hasattr(x, "to_tensor") else x, y)).padded_batch(BATCH, padded_shapes=((5,), (1,)))
    made = (layers.Embedding(8, 3, mask_zero=True), layers.GlobalAveragePooling1D(), layers.Dense(1))
    return place.fit(place.kept(lambda: place.sequential(*made, shape=(5,))), data)


@case("inputs", "a sparse matrix in the dataset", forms=("even", "tiny"))
def sparse(place: Place) -> Result:
    x = place.draws(8)
    x[x < 0] = 0
    matrix = place.tf.sparse.from_dense(x)
    data = place.tf.data.Dataset.from_tensor_slices((matrix, place.target(x))).batch(BATCH)
    return place.fit(place.small(), data.map(lambda x, y: (place.tf.sparse.to_dense(x), y)))
