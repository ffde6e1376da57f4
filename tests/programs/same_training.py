"""Small trainings after public examples, one for each word of `orch up same_training.py -- WORD`, that are the same on several workers.

A word of `wrong` has one planted error; `# HERE` marks its line.
"""

# mypy: ignore-errors
import os
import sys

import numpy as np
import tensorflow as tf

import worker

keras = tf.keras
word = sys.argv[1]
strategy = tf.distribute.MultiWorkerMirroredStrategy() if "TF_CONFIG" in os.environ else tf.distribute.get_strategy()
strategy = tf.distribute.MirroredStrategy() if os.environ.get("ORCH_RUN_STRATEGY") == "mirrored" else strategy
workers, index = strategy.num_replicas_in_sync, int(os.environ.get("ORCH_TASK", "worker-0").rpartition("-")[2])
BATCH = 16
draw = np.random.default_rng(3)
x = draw.normal(size=(96, 8)).astype("float32")
y = np.tanh(x.sum(1, keepdims=True)).astype("float32")
classes = (y[:, 0] > 0).astype("int64")
keras.utils.set_random_seed(1)
layers, losses, optimizers = keras.layers, keras.losses, keras.optimizers


def arrays(*parts):
    return tf.data.Dataset.from_tensor_slices(parts).batch(BATCH)  # HERE wrong_never


def small(*more, units=1, shape=(8,)):
    return keras.Sequential([keras.Input(shape), *more, layers.Dense(8, "tanh"), layers.Dense(units)])


def fit(model, data=None, **options):
    model.fit(data if data is not None else arrays(x, y), epochs=2, verbose=0, **options)


def compiled(model, loss="mse", optimizer=None, **options):
    model.compile(optimizer or optimizers.SGD(0.1), loss, **options)
    return model


def loop(model, step_loss, data=None, optimizer=None, *, by_function=0, change=lambda gradients: gradients, after=float):
    """A loop of one's own with strategy.run, as in TensorFlow's guide."""
    data = data if data is not None else arrays(x, y)
    if by_function:
        parts = strategy.distribute_datasets_from_function(
            lambda context: data.unbatch().shard(by_function, context.input_pipeline_id % by_function).batch(BATCH // workers)
        )
    else:
        parts = strategy.experimental_distribute_dataset(data)
    with strategy.scope():
        optimizer = optimizer or optimizers.SGD(0.1)

    def replica(inputs, targets):
        with tf.GradientTape() as tape:
            loss = step_loss(model, inputs, targets)
        gradients = change(tape.gradient(loss, model.trainable_variables))
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))  # HERE wrong_accumulator
        return loss

    @tf.function
    def step(batch):
        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(replica, args=batch), axis=None)

    for _ in range(2):
        for batch in parts:
            after(step(batch))


def by_hand(model, rate):
    """A loop that changes the variables itself."""

    def replica(inputs, targets):
        with tf.GradientTape() as tape:
            loss = mean_of_batch(square(model, inputs, targets))
        gradients = tape.gradient(loss, model.trainable_variables)
        gradients = tf.distribute.get_replica_context().all_reduce("sum", gradients)
        for gradient, variable in zip(gradients, model.trainable_variables, strict=True):
            variable.value.assign_sub(rate * gradient)

    for batch in strategy.experimental_distribute_dataset(arrays(x, y)):
        strategy.run(replica, args=batch)


class Steps(keras.Model):
    """A model whose loss `of_batch` computes."""

    of_batch = None

    def train_step(self, data):
        inputs, targets = data
        with tf.GradientTape() as tape:
            loss = self.of_batch(inputs, targets)
        self.optimizer.apply_gradients(zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables, strict=True))
        return {"x": tf.constant(0.0)}


def steps(of_batch, *more):
    inputs = keras.Input((8,))
    made = small(*more)
    model = Steps(inputs=inputs, outputs=made(inputs))
    model.of_batch = lambda inputs, targets: of_batch(model, inputs, targets)
    return compiled(model)


def mean_of_batch(rows):
    return tf.nn.compute_average_loss(rows, global_batch_size=BATCH)


def square(model, inputs, targets):
    return tf.reduce_mean(tf.square(targets - model(inputs, training=True)), 1)


def two_terms(model, inputs, targets):
    share = losses.MeanSquaredError()(targets, model(inputs))
    return share + 0.1 * tf.reduce_mean(tf.abs(model(inputs)))  # HERE wrong_term


def penalized(model, inputs, targets):
    share = mean_of_batch(square(model, inputs, targets))
    return share + sum(model.losses)  # HERE wrong_regularizer


def contrast(model, inputs, targets):
    """A loss that compares the rows of a batch."""
    rows, own = model(inputs), tf.eye(tf.shape(inputs)[0])
    return mean_of_batch(tf.nn.softmax_cross_entropy_with_logits(own, rows @ tf.transpose(rows)))  # HERE wrong_contrast


def remembering(memory):
    """A loss that a mean over earlier rows changes. Each replica has its own."""

    def of_batch(model, inputs, targets):
        rows = square(model, inputs, targets)
        share = mean_of_batch(rows / (1 + 0.03 * memory.read_value()))
        memory.assign(tf.reduce_mean(rows))
        return share

    return of_batch


def accumulated(sums):
    """Keeps gradients in variables, which take the sum of those of the replicas."""

    def change(gradients):
        for kept, gradient in zip(sums, gradients, strict=True):
            kept.assign(gradient)
        return [kept.read_value() for kept in sums]

    return change


class Gan(keras.Model):
    """keras.io's GAN: two optimizers, random vectors, labels that are made in the step."""

    def __init__(self):
        super().__init__()
        self.critic, self.maker = small(), small(units=8, shape=(4,))

    def compile(self, critic_optimizer, maker_optimizer):
        super().compile()
        self.critic_optimizer, self.maker_optimizer = critic_optimizer, maker_optimizer
        self.loss_fn = losses.BinaryCrossentropy(from_logits=True)

    def train_step(self, data):
        real = data[0]
        vectors = tf.random.normal((tf.shape(real)[0], 4))
        with tf.GradientTape() as tape:
            both = tf.concat([self.maker(vectors), real], 0)
            labels = tf.concat([tf.ones((tf.shape(real)[0], 1)), tf.zeros((tf.shape(real)[0], 1))], 0)
            loss = self.loss_fn(labels, self.critic(both))
        self.critic_optimizer.apply_gradients(
            zip(tape.gradient(loss, self.critic.trainable_weights), self.critic.trainable_weights, strict=True)
        )
        vectors = tf.random.normal((tf.shape(real)[0], 4))
        with tf.GradientTape() as tape:
            loss = self.loss_fn(tf.zeros((tf.shape(real)[0], 1)), self.critic(self.maker(vectors)))
        self.maker_optimizer.apply_gradients(
            zip(tape.gradient(loss, self.maker.trainable_weights), self.maker.trainable_weights, strict=True)
        )
        return {"x": tf.constant(0.0)}


class Rmse(keras.metrics.Metric):
    def __init__(self):
        super().__init__(name="rmse_of_own")
        self.sum, self.count = self.add_weight(name="sum", initializer="zeros"), self.add_weight(name="count", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.sum.assign_add(tf.reduce_sum(tf.square(y_true - y_pred)))
        self.count.assign_add(tf.cast(tf.size(y_true), tf.float32))

    def result(self):
        return tf.sqrt(self.sum / self.count)


def files():
    import tempfile

    directory = tempfile.mkdtemp()
    with open(f"{directory}/rows.csv", "w") as file:
        file.writelines(",".join(map(str, row)) + "\n" for row in np.concatenate([x, y], 1))
    rows = tf.data.TextLineDataset([f"{directory}/rows.csv"]).map(lambda line: tf.strings.to_number(tf.strings.split(line, ",")))
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return rows.map(lambda row: (tf.ensure_shape(row[:8], [8]), row[8:])).shuffle(96).batch(BATCH).with_options(options)


def frozen(model):
    model.layers[0].trainable = False
    return model


def same():
    with strategy.scope():
        if word == "fit":
            fit(compiled(small(), metrics=["mae", Rmse()]), validation_data=arrays(x, y))
        elif word == "arrays":
            compiled(small()).fit(x, y, batch_size=BATCH, epochs=2, verbose=0)
        elif word == "adam":
            fit(
                compiled(small(units=3), losses.SparseCategoricalCrossentropy(from_logits=True), "adam", metrics=["accuracy"]),
                arrays(x, classes),
            )
        elif word == "frozen":
            fit(compiled(frozen(small())))
        elif word == "weighted":
            model = compiled(
                keras.Model(i := keras.Input((8,)), [layers.Dense(1, name="a")(i), layers.Dense(1, name="b")(i)]),
                ["mse", "mae"],
                loss_weights=[1.0, 0.3],
            )
            fit(model, arrays(x, (y, y)))
        elif word == "sample_weight":
            fit(compiled(small()), arrays(x, y, np.linspace(0.5, 1.5, 96).astype("float32")))
        elif word == "accumulation":
            fit(compiled(small(), optimizer=optimizers.Adam(0.01, gradient_accumulation_steps=2)))
        elif word == "dropout":
            fit(compiled(small(layers.Dropout(0.5), layers.GaussianNoise(0.1))))
        elif word == "sync_bn":
            fit(compiled(small(layers.BatchNormalization(synchronized=True))))
        elif word == "regularized":
            fit(compiled(small(layers.Dense(8, kernel_regularizer="l2"))))
        elif word == "clipped":
            fit(compiled(small(), optimizer=optimizers.Adam(0.01, global_clipnorm=0.1)))
        elif word == "schedule":
            fit(compiled(small(), optimizer=optimizers.SGD(optimizers.schedules.CosineDecay(0.1, 10))))
        elif word == "files":
            fit(compiled(small()), files())
        elif word == "uneven":
            fit(compiled(small()), tf.data.Dataset.from_tensor_slices((x[:35], y[:35])).batch(BATCH))
        elif word == "images":
            made = keras.Sequential(
                [keras.Input((8, 8, 1)), layers.Conv2D(4, 3, activation="relu"), layers.MaxPooling2D(), layers.Flatten(), layers.Dense(1)]
            )
            pictures = draw.normal(size=(96, 8, 8, 1)).astype("float32")
            fit(compiled(made, optimizer="adam"), arrays(pictures, y))
        elif word == "words":
            made = keras.Sequential([keras.Input((6,)), layers.Embedding(50, 8), layers.LSTM(4), layers.Dense(1)])
            fit(compiled(made, "binary_crossentropy", "rmsprop"), arrays(draw.integers(0, 50, (96, 6)), classes[:, None]))
        elif word == "train_on_batch":
            model = compiled(small(), optimizer="adam")
            for at in range(0, 96, BATCH):
                model.train_on_batch(x[at : at + BATCH], y[at : at + BATCH])
        elif word == "train_step":
            fit(steps(lambda model, inputs, targets: mean_of_batch(square(model, inputs, targets))))
        elif word == "rows_of_losses":
            fit(steps(square))
        elif word == "two_terms":
            fit(steps(two_terms))
        elif word == "penalized":
            fit(steps(penalized, layers.Dense(8, kernel_regularizer="l2")))
        elif word == "compute_loss":
            fit(steps(lambda model, inputs, targets: model.compute_loss(x=inputs, y=targets, y_pred=model(inputs, training=True))))
        elif word == "gan":
            model = Gan()
            model.compile(optimizers.Adam(0.01), optimizers.Adam(0.01))
            fit(model, arrays(x, y))
        elif word in ("loop", "loop_adam", "loop_function", "loop_ragged", "by_hand", "saved"):
            model = small()
    if word == "loop":
        loop(model, lambda *given: mean_of_batch(square(*given)))
    elif word == "by_hand":
        by_hand(model, 0.1)
    elif word == "saved":
        saver = worker.checkpoints(model=model, every=2, dir="saved")
        manager = tf.train.CheckpointManager(tf.train.Checkpoint(model=model), "saved", max_to_keep=2)

        def save(loss):
            saver.step(loss=float(loss))
            manager.save()
            model.save_weights("saved/model.weights.h5")

        loop(model, lambda *given: mean_of_batch(square(*given)), after=save)
    elif word == "loop_adam":
        with strategy.scope():
            adam = optimizers.Adam(0.01)
        loop(
            model,
            lambda *given: (
                mean_of_batch(square(*given)) + tf.nn.scale_regularization_loss(1e-3 * tf.nn.l2_loss(given[0].trainable_variables[0]))
            ),
            optimizer=adam,
        )
    elif word == "loop_function":
        loop(model, lambda *given: mean_of_batch(square(*given)), by_function=workers)
    elif word == "loop_ragged":
        lengths = draw.integers(1, 9, 96)
        rows = tf.RaggedTensor.from_row_lengths(draw.normal(size=lengths.sum()).astype("float32"), lengths)
        ragged = tf.data.Dataset.from_tensor_slices((rows, y)).batch(BATCH)
        loop(model, lambda model, inputs, targets: mean_of_batch(square(model, inputs.to_tensor(shape=(None, 8)), targets)), ragged)


def wrong():
    with strategy.scope():
        if word == "wrong_bn":
            fit(compiled(small(layers.BatchNormalization())))
        elif word == "wrong_batch":
            fit(compiled(small()), tf.data.Dataset.from_tensor_slices((x, y)).batch(8 * workers))  # HERE wrong_batch
        elif word == "wrong_rate":
            fit(compiled(small(), optimizer=optimizers.SGD(0.1 * workers)))
        elif word == "wrong_shard":
            data = tf.data.Dataset.from_tensor_slices((x, y)).shard(workers, index)  # HERE wrong_shard
            fit(compiled(small()), data.batch(BATCH))
        elif word == "wrong_constant":
            noise = np.random.RandomState(index).normal(size=8).astype("float32")
            fit(steps(lambda model, inputs, targets: mean_of_batch(square(model, inputs + noise, targets))))  # HERE wrong_constant
        elif word == "wrong_order":
            order = np.random.RandomState(index).permutation(96)
            data = tf.data.Dataset.from_tensor_slices((x[order], y[order]))  # HERE wrong_order
            fit(compiled(small()), data.batch(BATCH))
        elif word == "wrong_contrast":
            fit(steps(contrast))
        elif word == "wrong_memory":
            model = small()
            options = {"synchronization": tf.VariableSynchronization.ON_READ, "aggregation": tf.VariableAggregation.MEAN}
            memory = tf.Variable(0.0, trainable=False, **options)
        elif word == "wrong_accumulator":
            model = small()
            sums = [tf.Variable(each.value, trainable=False, aggregation=tf.VariableAggregation.SUM) for each in model.trainable_variables]
        elif word in ("wrong_loop", "wrong_clip", "wrong_never", "wrong_start", "wrong_by_hand", "wrong_term"):
            model = small()
        elif word == "wrong_regularizer":
            model = small(layers.Dense(8, kernel_regularizer="l2"))
    if word == "wrong_term":
        loop(model, two_terms)
    elif word == "wrong_regularizer":
        loop(model, penalized)
    elif word == "wrong_start":
        for variable in model.trainable_variables:
            variable.assign(variable * (1.0 + 0.1 * (workers - 1)))
        loop(model, lambda *given: mean_of_batch(square(*given)))
    elif word == "wrong_by_hand":
        by_hand(model, 0.1 * workers)
    elif word == "wrong_never":
        loop(model, lambda *given: mean_of_batch(square(*given)), by_function=1)
    elif word == "wrong_clip":
        clip = lambda gradients: tf.clip_by_global_norm(gradients, 0.01)[0]  # noqa: E731  # HERE wrong_clip
        loop(model, lambda *given: mean_of_batch(square(*given)), change=clip)
    elif word == "wrong_memory":
        loop(model, remembering(memory))
    elif word == "wrong_accumulator":
        loop(model, lambda *given: mean_of_batch(square(*given)), change=accumulated(sums))
    elif word == "wrong_loop":
        loop(model, lambda *given: tf.reduce_mean(square(*given)))  # HERE wrong_loop
    elif word == "wrong_apart":
        fit(compiled(small()))


if __name__ == "__main__":
    if word == "wrong_apart":
        strategy = tf.distribute.get_strategy()
        tf.distribute.MultiWorkerMirroredStrategy()
    wrong() if word.startswith("wrong") else same()
