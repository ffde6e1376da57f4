"""Handwritten digits for the examples: 1,797 real images of 8 x 8 pixels, from scikit-learn.

    python examples/digits.py

writes them once to examples/data/digits (or to $ORCH_EXAMPLES_DATA/digits), from where the examples read them:

    train.npz, test.npz         x: float32 [n, 64], from 0 to 1; y: int64 [n]
    train-0.csv ... train-3.csv the training images once more, as text: 64 pixels and the label on each line
"""

import os
import shutil
import tempfile
from pathlib import Path

import numpy as np

DIRECTORY = Path(os.environ.get("ORCH_EXAMPLES_DATA") or Path(__file__).parent / "data") / "digits"
TEST_SIZE = 360
SHARDS = 4


def load(part):
    """The images and labels of "train" or "test"."""
    with np.load(prepare() / f"{part}.npz") as arrays:
        return arrays["x"], arrays["y"]


def prepare():
    """The directory with the files. Several processes may call this at once: each writes a directory of its own, and one is kept."""
    if not DIRECTORY.exists():
        DIRECTORY.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=".digits-", dir=DIRECTORY.parent))
        try:
            write(temporary)
            temporary.chmod(0o755)
            temporary.rename(DIRECTORY)
        except OSError:
            if not DIRECTORY.exists():
                raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return DIRECTORY


def write(directory):
    from sklearn.datasets import load_digits

    found = load_digits()
    order = np.random.default_rng(seed=0).permutation(len(found.target))
    x = (found.data[order] / 16).astype("float32")
    y = found.target[order].astype("int64")
    np.savez_compressed(directory / "test.npz", x=x[:TEST_SIZE], y=y[:TEST_SIZE])
    x, y = x[TEST_SIZE:], y[TEST_SIZE:]
    np.savez_compressed(directory / "train.npz", x=x, y=y)
    for shard in range(SHARDS):
        rows = np.column_stack([x[shard::SHARDS], y[shard::SHARDS]])
        np.savetxt(directory / f"train-{shard}.csv", rows, fmt="%g", delimiter=",")


if __name__ == "__main__":
    print(prepare())
