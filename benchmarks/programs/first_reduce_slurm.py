"""`first_reduce.py` for tasks of ``srun``: TensorFlow's own resolver reads the cluster from Slurm's variables.

Usage: ``first_reduce_slurm.py DIRECTORY``. Node names without numbers, for the resolver sorts names as texts. The settings of GPUs keep
it from looking for ``nvidia-smi``.
"""

import json
import os
import sys
import time

begun = time.time()
if __name__ == "__main__":
    import tensorflow as tf

    imported = time.time()
    resolver = tf.distribute.cluster_resolver.SlurmClusterResolver(port_base=28888, gpus_per_node=1, gpus_per_task=1, auto_set_gpu=False)
    strategy = tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
    formed = time.time()

    @tf.function
    def total():
        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(lambda: tf.constant(1.0)), axis=None)

    assert total().numpy() == strategy.num_replicas_in_sync == int(os.environ["SLURM_STEP_NUM_TASKS"])
    path = os.path.join(sys.argv[1], f"{os.environ['SLURM_PROCID']}.json")
    with open(path + ".part", "w") as file:
        json.dump({"begun": begun, "imported": imported, "formed": formed, "reduced": time.time()}, file)
    os.rename(path + ".part", path)
