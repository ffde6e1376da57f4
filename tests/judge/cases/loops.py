"""Training loops of one's own, as TensorFlow's guides "Custom training" and "Distributed input" teach them."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ..case import CLIPPED, Case, Result, add, case
from ..place import BATCH, Place, give_weights


def _distributed(place: Place, how: str, x: Any, y: Any) -> Any:
    import worker

    tf = place.tf
    data = tf.data.Dataset.from_tensor_slices((x, y))
    if how == "worker.distribute of a dataset":
        return worker.distribute(data, batch=BATCH, strategy=place.strategy)
    if how == "experimental_distribute_dataset":
        return place.strategy.experimental_distribute_dataset(data.batch(BATCH))

    def make(context: Any) -> Any:
        size = context.get_per_replica_batch_size(BATCH)
        return data.batch(size).shard(context.num_input_pipelines, context.input_pipeline_id)

    if how == "worker.distribute of a function":
        return worker.distribute(make, strategy=place.strategy)
    return place.strategy.distribute_datasets_from_function(make)


SOURCES = (
    "worker.distribute of a dataset",
    "worker.distribute of a function",
    "experimental_distribute_dataset",
    "distribute_datasets_from_function",
)
STEPS = ("optimizer.apply", "optimizer.apply with global_clipnorm", "an update of one's own")


def _model(place: Place) -> Any:
    keras = place.keras
    with place.strategy.scope():
        model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)])
    give_weights(model)
    return model


def _step(place: Place, model: Any, update: str) -> Any:
    """The guide's step: the loss of the examples of this replica, divided by the global batch."""
    tf, variables = place.tf, model.trainable_variables
    with place.strategy.scope():
        options = {"global_clipnorm": 0.1} if "clip" in update else {}
        optimizer = place.keras.optimizers.SGD(0.05, momentum=0.9, **options)
        if not place.is_keras_2:
            optimizer.build(variables)

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            of_rows = tf.reduce_sum(tf.square(y - model(x, training=True)), axis=-1)
            loss = tf.nn.compute_average_loss(of_rows, global_batch_size=BATCH)
        gradients = tape.gradient(loss, variables)
        if update.startswith("optimizer"):
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
        else:
            gradients = tf.distribute.get_replica_context().all_reduce("SUM", gradients)
            for variable, gradient in zip(variables, gradients, strict=True):
                variable.assign_sub(0.05 * gradient)
        return loss, tf.cast(tf.shape(x)[0], "float32")

    return step


def _loop(place: Place, source: str, update: str) -> Result:
    x = place.draws(8)
    strategy, model = place.strategy, _model(place)
    data = _distributed(place, source, x, place.target(x))
    step = _step(place, model, update)

    def train(x: Any, y: Any) -> Any:
        losses, counts = strategy.run(step, args=(x, y))
        return strategy.reduce("SUM", losses, axis=None), strategy.reduce("SUM", counts, axis=None)

    traced, found = place.tf.function(train), []
    for _ in range(2):
        found += [[float(loss), float(count)] for loss, count in (traced(x, y) for x, y in data)]
    return {"steps": found, "weights": [np.asarray(weight, "float64").ravel().tolist() for weight in model.get_weights()]}


for source in SOURCES:
    for update in STEPS if source == SOURCES[0] else STEPS[:1]:
        # The function of the guide makes batches for each pipeline: a partial batch is then of one worker.
        forms = ("even",) if "function" in source else ("even", "uneven", "tiny")
        add(Case(f"{source}, {update}", "loops", functools.partial(_loop, source=source, update=update), forms=forms, says=CLIPPED))


@case("loops", "an epoch in one tf.function, with get_next_as_optional")
def as_optional(place: Place) -> Result:
    tf, strategy, x = place.tf, place.strategy, place.draws(8)
    model = _model(place)
    data = strategy.experimental_distribute_dataset(place.dataset(x, place.target(x)))
    step = _step(place, model, STEPS[0])

    def epoch(iterator: Any) -> Any:
        total, steps = 0.0, 0
        element = iterator.get_next_as_optional()
        while element.has_value():
            losses, _ = strategy.run(step, args=element.get_value())
            total += strategy.reduce("SUM", losses, axis=None)
            steps += 1
            element = iterator.get_next_as_optional()
        return total, steps

    traced = tf.function(epoch)
    found = [[float(value) for value in traced(iter(data))] for _ in range(2)]
    return {"epochs": found, "weights": [np.asarray(weight, "float64").ravel().tolist() for weight in model.get_weights()]}


@case("loops", "an epoch in one tf.function, with for over the dataset")
def in_for(place: Place) -> Result:
    tf, strategy, x = place.tf, place.strategy, place.draws(8)
    model = _model(place)
    data = strategy.experimental_distribute_dataset(place.dataset(x, place.target(x)))
    step = _step(place, model, STEPS[0])

    def epoch(data: Any) -> Any:
        total = 0.0
        for batch in data:
            losses, _ = strategy.run(step, args=batch)
            total += strategy.reduce("SUM", losses, axis=None)
        return total

    traced = tf.function(epoch)
    epochs = [float(traced(data)) for _ in range(2)]
    return {"epochs": epochs, "weights": [np.asarray(weight, "float64").ravel().tolist() for weight in model.get_weights()]}


@case("loops", "reduce of rows: SUM and MEAN, along the axis")
def reduced(place: Place) -> Result:
    tf, strategy, x = place.tf, place.strategy, place.draws(8)
    data = strategy.experimental_distribute_dataset(place.dataset(x))

    def one(x: Any) -> Any:
        rows = strategy.run(lambda x: tf.reduce_sum(x, axis=1), args=(x,))
        return strategy.reduce("SUM", rows, axis=0), strategy.reduce("MEAN", rows, axis=0)

    traced = tf.function(one)
    return {"steps": [[float(value) for value in traced(batch)] for batch in data]}


@case("loops", "gather and experimental_local_results of a batch", says="come worker by worker")
def gathered(place: Place) -> Result:
    strategy, x = place.strategy, place.draws(8)
    data = strategy.experimental_distribute_dataset(place.dataset(x))
    return {"rows": [np.asarray(strategy.gather(batch, axis=0), "float64").tolist() for batch in data]}


@case("loops", "metrics of Keras in the scope")
def metrics(place: Place) -> Result:
    tf, strategy, x = place.tf, place.strategy, place.draws(8)
    data = strategy.experimental_distribute_dataset(place.dataset(x, place.target(x)))
    made = place.keras.metrics
    with strategy.scope():
        shown = [made.MeanSquaredError(), made.Mean(), made.AUC()]

    def step(x: Any, y: Any) -> None:
        shown[0].update_state(y, x[:, :1])
        shown[1].update_state(x)
        shown[2].update_state(y > 0, tf.sigmoid(x[:, :1]))

    def one(x: Any, y: Any) -> None:
        strategy.run(step, args=(x, y))

    traced = tf.function(one)
    for batch in data:
        traced(*batch)
    return {"shown": [float(metric.result()) for metric in shown]}


@case("loops", "variables: ON_READ with SUM and MEAN, ON_WRITE with MEAN")
def variables(place: Place) -> Result:
    tf, strategy, x = place.tf, place.strategy, place.draws(8)
    data = strategy.experimental_distribute_dataset(place.dataset(x))
    read, mean = tf.VariableSynchronization.ON_READ, tf.VariableAggregation.MEAN
    with strategy.scope():
        total = tf.Variable(0.0, synchronization=read, aggregation=tf.VariableAggregation.SUM, trainable=False)
        written = tf.Variable(0.0, aggregation=mean, trainable=False)

    def step(x: Any) -> None:
        total.assign_add(tf.reduce_sum(x))
        written.assign_add(tf.distribute.get_replica_context().all_reduce("SUM", tf.reduce_sum(x)))

    def one(x: Any) -> None:
        strategy.run(step, args=(x,))

    traced = tf.function(one)
    for batch in data:
        traced(batch)
    return {"total": float(total.read_value().numpy()), "written": float(written.numpy())}
