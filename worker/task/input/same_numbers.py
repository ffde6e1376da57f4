"""The same random numbers in all workers of one training, in a program that gives no seed.

Each worker keeps a share of the files, rows or batches that its program has made. So `random.shuffle(files)`, the `permutation` of NumPy,
`train_test_split`, the readers of Keras, `ImageDataGenerator` and a `PyDataset` that shuffles itself must have one order in all workers.
They draw from the global generators of Python and NumPy, which get one seed here, another one in each run. A seed that the program gives
comes later, and stays.
"""

from __future__ import annotations

import json
import os

from .. import patches
from ..patches.features import ORDER as ORDERS
from ..shared import shared

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ORDER = "ORCH_ORDER"
"""The variable with the word of `word`, where saves are made: an empty one stands for the id of the run."""


def word() -> str:
    """The word from which all workers draw: the same in all attempts of a run, and in a run that continues it. Empty: there is no run."""
    return os.environ.get(ORDER) or os.environ.get("ORCH_RUN_ID", "")


def trains_together() -> bool:
    """True if this process is one of several workers that train one model in step: each task of such a cluster is a worker or its chief.

    The one process with which `orch verify` compares such workers draws as they do.
    """
    if shared("verify", dict):  # what the recorder has been told, which is not imported at the start of each task
        return True
    try:
        cluster = json.loads(os.environ.get("TF_CONFIG", "{}"))["cluster"]
        return "ps" not in cluster and sum(len(cluster.get(kind, ())) for kind in ("chief", "worker")) > 1
    except (ValueError, KeyError, TypeError, AttributeError):
        return False


def seed_soon() -> None:
    """Seed the generators: now, or once the program has imported them."""
    if word() and trains_together():
        patches.after(ORDERS, "random", _seed_python)
        patches.after(ORDERS, "numpy.random", lambda module: module.seed(list(word().encode())))


def _seed_python(module: Any) -> None:
    if hasattr(module, "setstate"):  # not a file of the program with this name
        module.seed(word())
