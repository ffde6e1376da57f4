"""What the training programs of these tests have in common: texts to be put together, each for one task of a cluster."""

from __future__ import annotations

SUM = """
with strategy.scope():
    total = tf.Variable(0.0, aggregation=tf.VariableAggregation.MEAN)
    step = tf.Variable(0, dtype=tf.int64, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
checkpoint = tf.train.Checkpoint(total=total, step=step)
# As TensorFlow's guide has it: every worker saves, for the variables are read together; only the chief's is kept.
chiefs = os.environ["ORCH_CHECKPOINT_DIR"]
own = chiefs if worker.context().is_chief else f"{chiefs}-of-{TASK}"
manager = tf.train.CheckpointManager(checkpoint, own, max_to_keep=2)
newest = tf.train.latest_checkpoint(chiefs)
if newest:
    checkpoint.restore(newest).assert_consumed()
began_at = int(step.numpy())

@tf.function
def train():
    def replica():
        total.assign_add(tf.distribute.get_replica_context().all_reduce("sum", tf.constant(1.0)))
        step.assign_add(1)
    strategy.run(replica)
"""
"""Under a synchronous `strategy`: each call of ``train()`` adds the number of replicas to `total` and 1 to `step`, from the newest
checkpoint on; ``manager.save()`` saves both. Wants ``os``, ``tf``, ``worker`` and ``TASK``."""

SCHEDULED_SUM = """
import tensorflow as tf
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    total = tf.Variable(0.0)

@tf.function
def step():
    total.assign_add(1.0)

for _ in range(20):
    coordinator.schedule(step)
coordinator.join()
"""
"""In the chief of a parameter server's `strategy`: `total` is 20.0 in the end."""
