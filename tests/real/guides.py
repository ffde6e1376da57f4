"""Training scripts as TensorFlow's guides and tutorials have them: nothing in them is made for orch, and each also runs by hand.

https://www.tensorflow.org/tutorials/distribute/multi_worker_with_ctl, …/parameter_server_training, …/custom_training, …/input;
https://www.tensorflow.org/guide/distributed_training.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass

DONE = "the training is done"
"""What a script prints when it has come to its end."""


@dataclass(frozen=True)
class Guide:
    """A script and how it is started. `servers`: tasks of these types never end by themselves.

    `lone`: one process is the whole cluster.
    """

    text: str
    options: tuple[str, ...] = ()
    lone: bool = False
    servers: tuple[str, ...] = ()

    def tasks(self, count: int) -> dict[str, int]:
        """The tasks by type when the cluster is to have `count` processes, or as many as it needs at least."""
        if self.lone:
            return {"worker": 1}
        if self.servers:
            return {"chief": 1, "worker": max(1, count - 2), "ps": 1}
        if "--evaluator" in self.options:
            return {"worker": max(1, count - 1), "evaluator": 1}
        return {"worker": count}

    def words(self, count: int) -> list[str]:
        """What `orch up SCRIPT` is told beside the script."""
        tasks = self.tasks(count)
        return ["-n", str(tasks["worker"]), *(["--ps", "1"] if "ps" in tasks else []), *self.options]


_MODEL = """
    class Model(tf.Module):
        def __init__(self):
            self.hidden = tf.Variable(tf.random.stateless_normal([16, 32], [1, 2]))
            self.output = tf.Variable(tf.random.stateless_normal([32, 1], [3, 4]))

        def __call__(self, inputs):
            return tf.matmul(tf.nn.relu(tf.matmul(inputs, self.hidden)), self.output)

    def replica_step(inputs, labels):
        with tf.GradientTape() as tape:
            loss = tf.nn.compute_average_loss((model(inputs)[:, 0] - labels) ** 2, global_batch_size=GLOBAL_BATCH)
        variables = [model.hidden, model.output]
        context = tf.distribute.get_replica_context()
        for variable, gradient in zip(variables, context.all_reduce("sum", tape.gradient(loss, variables))):
            variable.assign_sub(0.001 * gradient)
        return loss
"""

_EXAMPLES = """
    def examples():
        def make(number):
            return tf.random.stateless_normal([16], tf.stack([number, number])), tf.cast(number, tf.float32) / 512.0
        return tf.data.Dataset.range(512).map(make, num_parallel_calls=tf.data.AUTOTUNE)
"""

_EPOCHS = """
    @tf.function
    def train_step(iterator):
        losses = strategy.run(replica_step, args=next(iterator))
        return strategy.reduce("sum", losses, axis=None)

    iterator = iter(dataset)
    for step in range(40):
        loss = train_step(iterator)
    assert float(loss) == float(loss), "not a number"
"""


def _script(*parts: str) -> str:
    return "".join(map(textwrap.dedent, parts))


_MWMS = """
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    GLOBAL_BATCH = 8 * strategy.num_replicas_in_sync
"""
_SCOPE = """
    with strategy.scope():
        model = Model()
"""
_DISTRIBUTED = """
    dataset = strategy.experimental_distribute_dataset(examples().shuffle(64).repeat().batch(GLOBAL_BATCH))
"""
_FROM_FUNCTION = """
    def make_dataset(context):
        batch = context.get_per_replica_batch_size(GLOBAL_BATCH)
        mine = examples().shard(context.num_input_pipelines, context.input_pipeline_id)
        return mine.shuffle(64).repeat().batch(batch).prefetch(tf.data.AUTOTUNE)

    dataset = strategy.distribute_datasets_from_function(make_dataset)
"""
_END = f"""
    print("{DONE}")
"""

_PARAMETER_SERVER = """
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        server = tf.distribute.Server(
            resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc", start=True
        )
        server.join()

    strategy = tf.distribute.ParameterServerStrategy(resolver)
    GLOBAL_BATCH = 8
"""
_COORDINATED = """
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

    def make_dataset(context):
        return examples().shuffle(64).repeat().batch(8).prefetch(tf.data.AUTOTUNE)

    @tf.function
    def make_worker_dataset():
        return strategy.distribute_datasets_from_function(make_dataset)

    iterator = iter(coordinator.create_per_worker_dataset(make_worker_dataset))

    @tf.function
    def train_step(iterator):
        losses = strategy.run(replica_step, args=next(iterator))
        return strategy.reduce("sum", losses, axis=None)

    for epoch in range(3):
        for _ in range(10):
            loss = coordinator.schedule(train_step, args=(iterator,))
        coordinator.join()
    assert float(loss.fetch()) == float(loss.fetch()), "not a number"
"""

_WITH_EVALUATOR = """
    import json, os, time
    import tensorflow as tf

    if json.loads(os.environ["TF_CONFIG"])["task"]["type"] == "evaluator":
        total = tf.Variable(0.0)
        while not tf.train.latest_checkpoint(os.environ["MODEL_DIR"]):
            time.sleep(0.2)
        tf.train.Checkpoint(total=total).restore(tf.train.latest_checkpoint(os.environ["MODEL_DIR"])).assert_consumed()
        values = tf.data.Dataset.range(100).map(lambda i: tf.cast(i, tf.float32) * total, num_parallel_calls=tf.data.AUTOTUNE)
        print("evaluated", float(values.batch(10).prefetch(tf.data.AUTOTUNE).reduce(0.0, lambda a, b: a + tf.reduce_sum(b))))
        raise SystemExit

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    GLOBAL_BATCH = 8 * strategy.num_replicas_in_sync
"""
_SAVED = """
    with strategy.scope():
        total = tf.Variable(1.0)
    task = strategy.cluster_resolver.task_id
    own = os.environ["MODEL_DIR"] + (f"-of-worker-{task}" if task else "")
    tf.train.Checkpoint(total=total).save(os.path.join(own, "model"))
"""

_LOGICAL_CPUS = """
    import tensorflow as tf

    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 4)
    strategy = tf.distribute.MirroredStrategy([device.name for device in tf.config.list_logical_devices("CPU")])
    GLOBAL_BATCH = 8 * strategy.num_replicas_in_sync
"""
_ONE_DEVICE = """
    import tensorflow as tf

    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    GLOBAL_BATCH = 8
"""
_NONE = """
    import tensorflow as tf

    strategy = tf.distribute.get_strategy()
    GLOBAL_BATCH = 8
"""
_KERAS = """
    model = tf.keras.Sequential([tf.keras.Input([16]), tf.keras.layers.Dense(32, "relu"), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(examples().batch(8).prefetch(tf.data.AUTOTUNE), epochs=2, verbose=2)
"""

GUIDES: Mapping[str, Guide] = {
    "mwms-dataset": Guide(_script(_MWMS, _MODEL, _EXAMPLES, _SCOPE, _DISTRIBUTED, _EPOCHS, _END)),
    "mwms-from-function": Guide(_script(_MWMS, _MODEL, _EXAMPLES, _SCOPE, _FROM_FUNCTION, _EPOCHS, _END)),
    "mwms-evaluator": Guide(
        _script(_WITH_EVALUATOR, _MODEL, _EXAMPLES, _SCOPE, _FROM_FUNCTION, _EPOCHS, _SAVED, _END), options=("--evaluator",)
    ),
    "parameter-server": Guide(_script(_PARAMETER_SERVER, _MODEL, _EXAMPLES, _SCOPE, _COORDINATED, _END), servers=("worker", "ps")),
    "mirrored": Guide(
        _script(_LOGICAL_CPUS, _MODEL, _EXAMPLES, _SCOPE, _DISTRIBUTED, _EPOCHS, _END), options=("--strategy", "mirrored"), lone=True
    ),
    "one-device": Guide(
        _script(_ONE_DEVICE, _MODEL, _EXAMPLES, _SCOPE, _FROM_FUNCTION, _EPOCHS, _END), options=("--strategy", "one_device"), lone=True
    ),
    "none": Guide(_script(_NONE, _EXAMPLES, _KERAS, _END), options=("--strategy", "none"), lone=True),
}

# --- the calls of the guide to distributed input, with the values that it has --------------------------

_TWO_REPLICAS = """
    import tensorflow as tf

    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 5)

    def of(replicas):
        return tf.distribute.MirroredStrategy([f"CPU:{number}" for number in range(replicas)])

    def values(strategy, result):
        return [value.numpy().tolist() for value in strategy.experimental_local_results(result)]

    def batches(elements, size, replicas):
        strategy = of(replicas)
        return [values(strategy, x) for x in strategy.experimental_distribute_dataset(tf.data.Dataset.range(elements).batch(size))]

    # A batch is cut into as many as there are replicas.
    assert batches(6, 4, 2) == [[[0, 1], [2, 3]], [[4], [5]]]
    assert batches(4, 4, 5) == [[[0], [1], [2], [3], []]]
    assert batches(8, 4, 3) == [[[0, 1], [2, 3], []], [[4, 5], [6, 7], []]]

    # iter, next and get_next; get_next_as_optional, at whose end nothing is raised.
    strategy = of(2)
    NINE = [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8], []]]
    dataset = strategy.experimental_distribute_dataset(tf.data.Dataset.range(9).batch(4))
    iterator = iter(dataset)
    assert values(strategy, next(iterator)) == NINE[0]
    assert values(strategy, iterator.get_next()) == NINE[1]
    found, iterator = [], iter(dataset)
    while bool((optional := iterator.get_next_as_optional()).has_value()):
        found.append(values(strategy, optional.get_value()))
    assert found == NINE

    # Several steps in one tf.function: OutOfRange in its middle, or an optional that says so beforehand.
    @tf.function
    def two_steps(iterator):
        for _ in tf.range(2):
            strategy.run(lambda x: 2 * x, args=(next(iterator),))

    iterator = iter(dataset)
    two_steps(iterator)
    try:
        two_steps(iterator)
        raise AssertionError("the dataset has not ended")
    except tf.errors.OutOfRangeError:
        pass

    @tf.function
    def all_steps(iterator):
        steps = 0
        for _ in tf.range(5):
            optional = iterator.get_next_as_optional()
            if not optional.has_value():
                break
            strategy.run(lambda x: 2 * x, args=(optional.get_value(),))
            steps += 1
        return steps

    assert int(all_steps(iter(dataset))) == 3

    # element_spec as the signature of a tf.function.
    @tf.function(input_signature=[dataset.element_spec])
    def doubled(x):
        return strategy.run(lambda x: 2 * x, args=(x,))

    assert [values(strategy, doubled(x)) for x in dataset] == [[[0, 2], [4, 6]], [[8, 10], [12, 14]], [[16], []]]
    assert two_steps.experimental_get_tracing_count() == doubled.experimental_get_tracing_count() == 1

    # Predictions in order: numbered, gathered, sorted.
    predicted = []
    for number, x in strategy.experimental_distribute_dataset(tf.data.Dataset.range(24).enumerate().batch(6)):
        predicted += zip(*(strategy.gather(part, axis=0).numpy().tolist() for part in (number, strategy.run(lambda x: 2 * x, args=(x,)))))
    assert [value for _, value in sorted(predicted)] == list(range(0, 48, 2))

    # Values that are no dataset; and a generator.
    made = strategy.experimental_distribute_values_from_function(lambda context: tf.constant(context.replica_id_in_sync_group))
    assert values(strategy, strategy.run(lambda x: x + 1, args=(made,))) == [1, 2]
    numbers = tf.data.Dataset.from_generator(lambda: iter(range(4)), output_signature=tf.TensorSpec((), tf.int32))
    assert [values(strategy, x) for x in strategy.experimental_distribute_dataset(numbers.batch(2))] == [[[0], [1]], [[2], [3]]]

    # Datasets from a function.
    def make(context):
        assert (context.num_input_pipelines, context.input_pipeline_id, context.num_replicas_in_sync) == (1, 0, 2)
        return tf.data.Dataset.range(8).batch(context.get_per_replica_batch_size(4))

    assert [values(strategy, x) for x in strategy.distribute_datasets_from_function(make)] == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
"""

_TWO_WORKERS = """
    import os
    import tempfile
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    mine = strategy.cluster_resolver.task_id
    directory = tempfile.mkdtemp()

    def write(name, numbers):
        path = os.path.join(directory, name)
        with tf.io.TFRecordWriter(path) as writer:
            for number in numbers:
                writer.write(str(number).encode())
        return path

    def taken(files, policy):
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy[policy]
        dataset = tf.data.TFRecordDataset(files).map(lambda record: tf.strings.to_number(record, tf.int64)).batch(4).with_options(options)
        dataset = strategy.experimental_distribute_dataset(dataset)
        return [strategy.experimental_local_results(x)[0].numpy().tolist() for x in dataset]

    halves = [write("a", range(6)), write("b", range(6, 12))]
    all_in_one = write("all", range(12))
    # The guide has the last two elements of each worker one by one; TensorFlow 2.21 gives them together.
    assert taken(halves, "FILE") == [[[0, 1], [2, 3], [4, 5]], [[6, 7], [8, 9], [10, 11]]][mine]
    assert taken([all_in_one], "DATA") == [[[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [10, 11]]][mine]
    assert taken([all_in_one], "OFF") == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11]]

    # Datasets from a function: each worker's pipeline has a number of its own.
    def make(context):
        assert (context.num_input_pipelines, context.input_pipeline_id) == (2, mine)
        numbers = tf.data.Dataset.range(12).shard(context.num_input_pipelines, context.input_pipeline_id)
        return numbers.batch(context.get_per_replica_batch_size(4))

    found = [strategy.experimental_local_results(x)[0].numpy().tolist() for x in strategy.distribute_datasets_from_function(make)]
    assert found == [[[0, 2], [4, 6], [8, 10]], [[1, 3], [5, 7], [9, 11]]][mine]
"""

SAMPLES: Mapping[str, Guide] = {
    "replicas of one process": Guide(_script(_TWO_REPLICAS, _END), options=("--strategy", "none"), lone=True),
    "two workers": Guide(_script(_TWO_WORKERS, _END)),
}
"""What the guide to distributed input shows: each of its calls, in scripts that know nothing of orch and check their values themselves."""
