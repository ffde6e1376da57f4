"""One way to test an all-reduce of two workers, one test for each line on stdin.

Usage: ``reduce_tests.py WAY``. A line on stdin asks for one test; its seconds are the answer, a line on stdout. A test gets its cluster,
forms it under MultiWorkerMirroredStrategy, has every worker reduce once, compares what the workers return, and gives its cluster back.

WAY is ``mpr`` (TensorFlow's multi_process_runner, fresh processes each time), ``mpr-pool`` (its MultiProcessPoolRunner: the same processes
each time), ``orch``, ``orch-reuse`` or ``subprocess`` (two interpreters with TF_CONFIG).

multi_process_runner expects a Bazel test. What is done about that is said in ``first_reduce_mpr.py``.
"""

import json
import os
import subprocess
import sys
import time

WORKERS = 2
CHILD = """
import sys
sys.path.insert(0, sys.argv[1])
from reduce_tests import all_reduce
print("total", all_reduce())
"""


def all_reduce():
    """The body of every test: what the workers' ones add up to."""
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()

    @tf.function
    def total():
        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(lambda: tf.constant(1.0)), axis=None)

    return float(total())


def runner():
    from tensorflow.python.distribute import multi_process_lib, multi_process_runner

    multi_process_lib._test_main_called = True
    multi_process_lib.multiprocessing.set_forkserver_preload(["tensorflow.python.distribute.multi_process_runner"])
    return multi_process_runner


def cluster_spec():
    from tensorflow.python.distribute import multi_worker_test_base

    return multi_worker_test_base.create_cluster_spec(num_workers=WORKERS)


def mpr():
    module = runner()
    return lambda: module.run(all_reduce, cluster_spec()).return_value


def mpr_pool():
    pool = runner().MultiProcessPoolRunner(cluster_spec())
    return lambda: pool.run(all_reduce)


def orch(**options):
    from orchestrator import testing

    def once():
        with testing.cluster(workers=WORKERS, **options) as c:
            return list(c.run(all_reduce).values())

    return once


def by_subprocess():
    from benchmarks.measure import free_addresses

    def once():
        addresses = free_addresses(WORKERS)
        started = []
        for index in range(WORKERS):
            config = json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}})
            command = [sys.executable, "-c", CHILD, os.path.dirname(os.path.abspath(__file__))]
            started.append(subprocess.Popen(command, env={**os.environ, "TF_CONFIG": config}, stdout=subprocess.PIPE, text=True))
        return [float(one.communicate()[0].split()[-1]) for one in started]

    return once


WAYS = {"mpr": mpr, "mpr-pool": mpr_pool, "orch": orch, "orch-reuse": lambda: orch(reuse=True), "subprocess": by_subprocess}


def main(way: str) -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the tasks print is not for whoever reads the answers
    once = WAYS[way]()
    for _ in sys.stdin:
        since = time.perf_counter()
        totals = once()
        seconds = time.perf_counter() - since
        if totals != [float(WORKERS)] * WORKERS:
            raise SystemExit(f"{way}: the workers returned {totals}")
        print(f"{seconds:.4f}", file=answers)


if __name__ == "__main__":
    main(sys.argv[1])
