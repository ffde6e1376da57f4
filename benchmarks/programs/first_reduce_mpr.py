"""``first_reduce.py`` under TensorFlow's own multi_process_runner: twice, the second time with its fork server there already.

Usage: ``first_reduce_mpr.py DIRECTORY WORKERS``. Each time's beginning is in a file ``began``; the second time's files are in
``DIRECTORY/again``.

The runner expects a Bazel test. Outside one it runs once it believes that its ``test_main`` has been called; that is the
first line of `main`. Its fork server should import `__main__`, and with it TensorFlow, before it forks; Python 3.11's does not
(python/cpython#126631), so it is told what to import, for the figure to be the runner's and not that fault's.
"""

import os
import sys
import time

from first_reduce import reduce_once
from tensorflow.python.distribute import multi_process_lib, multi_process_runner, multi_worker_test_base


def main(directory: str, workers: int) -> None:
    multi_process_lib._test_main_called = True
    multi_process_lib.multiprocessing.set_forkserver_preload(["tensorflow.python.distribute.multi_process_runner"])
    for where in (directory, os.path.join(directory, "again")):
        os.makedirs(where, exist_ok=True)
        began = time.time()
        cluster = multi_worker_test_base.create_cluster_spec(num_workers=workers)
        multi_process_runner.run(reduce_once, cluster, args=(where,))
        with open(os.path.join(where, "began"), "w") as file:
            file.write(str(began))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
