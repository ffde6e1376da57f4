"""The forms of TensorFlow's guide to distributed input, on several workers; each prints what it has found.

    orch up examples/input_forms.py --workers 2

A dataset from a function, a loop that ends without an exception, a dataset's element_spec as a signature, predictions that come back in
order, values that are no dataset, and a generator.
"""

import digits
import numpy as np
import tensorflow as tf

import worker


def predict_in_order(strategy, predict, dataset, batch):
    """What `predict` makes of the elements of a dataset, in the dataset's order: they are numbered, gathered and sorted."""
    numbers, values = [], []
    for number, element in worker.distribute(dataset.enumerate(), batch=batch):
        numbers.append(strategy.gather(number, axis=0))
        values.append(strategy.gather(strategy.run(predict, args=(element,)), axis=0))
    order = np.argsort(np.concatenate(numbers))
    return np.concatenate(values)[order]


def main():
    strategy = worker.strategy()
    images, labels = digits.load("test")

    def say(*words):
        if worker.context().is_chief:
            print(*words)

    # From a function: each worker makes its own part, in batches for one replica.
    def make(context):
        mine = tf.data.Dataset.from_tensor_slices(labels).shard(context.num_input_pipelines, context.input_pipeline_id)
        return mine.batch(context.get_per_replica_batch_size(60))

    # Until the end, in one tf.function and without an exception.
    @tf.function
    def count(iterator):
        total = tf.constant(0, tf.int32)
        goes_on = tf.constant(True)
        while goes_on:
            optional = iterator.get_next_as_optional()
            goes_on = optional.has_value()
            if goes_on:
                total += strategy.reduce("SUM", strategy.run(tf.size, args=(optional.get_value(),)), axis=None)
        return total

    say("images counted:", int(count(iter(worker.distribute(make)))))

    # The element_spec as a signature: traced once, though the last batch is smaller.
    dataset = worker.distribute(tf.data.Dataset.from_tensor_slices(images), batch=100)

    @tf.function(input_signature=[dataset.element_spec])
    def brightness(batch):
        return strategy.reduce("SUM", strategy.run(tf.reduce_sum, args=(batch,)), axis=None)

    say(f"brightness: {sum(float(brightness(batch)) for batch in dataset):.0f}, traced {brightness.experimental_get_tracing_count()} time")

    # In order: the result for element i stands at position i, whichever worker has computed it.
    doubled = predict_in_order(strategy, lambda x: 2 * x, tf.data.Dataset.range(24), batch=6)
    say("doubled:", doubled.tolist())

    # Not a dataset: a value for each replica.
    seeds = strategy.experimental_distribute_values_from_function(lambda context: tf.constant(10 * context.replica_id_in_sync_group))
    say("seeds, summed:", int(strategy.reduce("SUM", seeds, axis=None)))

    # A generator runs in Python in each worker. It cannot be shared out by file; each worker reads all of it and keeps its share.
    squares = tf.data.Dataset.from_generator(lambda: (number**2 for number in range(8)), output_signature=tf.TensorSpec((), tf.int64))
    total = sum(int(strategy.reduce("SUM", strategy.run(tf.reduce_sum, args=(x,)), axis=None)) for x in worker.distribute(squares, batch=4))
    say("squares, summed:", total)


if __name__ == "__main__":
    main()
