"""``first_reduce.py`` in bare forks of one process that has imported TensorFlow: twice, the second time with the import there already.

Usage: ``first_reduce_forked.py DIRECTORY WORKERS``; the files are those of ``first_reduce_mpr.py``. Nothing is done that a launcher
has to do: no port is held, no log kept, nobody watched. What this takes, no launcher that runs TensorFlow can save.
"""

import gc
import json
import os
import sys
import time

gc.disable()  # as orch's template imports

from first_reduce import reduce_once  # noqa: E402

from benchmarks.measure import free_addresses  # noqa: E402


def fork_all(directory: str, workers: int) -> None:
    addresses = free_addresses(workers)
    for index in range(workers):
        if not os.fork():
            os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}})
            failed = True
            try:
                reduce_once(directory)
                failed = False
            finally:
                os._exit(failed)
    for _ in range(workers):
        if os.wait()[1]:
            raise SystemExit("a worker failed")


def main(directory: str, workers: int) -> None:
    import tensorflow  # noqa: F401

    gc.collect()
    gc.freeze()
    for where in (directory, os.path.join(directory, "again")):
        os.makedirs(where, exist_ok=True)
        with open(os.path.join(where, "began"), "w") as file:
            file.write(str(time.time()))
        fork_all(where, workers)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
