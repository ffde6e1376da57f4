"""What stands in for a part without rows, in a graph that TensorFlow optimizes, as in a training of a user.

Where a condition about the number of rows is followed, in its branch, by a check of the shape, TensorFlow takes the checked shape for that
of the rows in front of the condition, too, and leaves the condition out. A process of its own: the tests of this one may turn that off.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.worker.agent_double import ROOT, run_plainly

pytestmark = [pytest.mark.tensorflow]

PROGRAM = """
import json
import tensorflow as tf
from worker.task.keras.rows import StandingRow, count

def rows_of(shapes):
    standing = StandingRow()
    standing.prepare(tuple(tf.TensorSpec(shape) for shape in shapes))

    def step(*data):
        rows = count(data)
        found = standing.or_row(data, rows > 0)
        # As in a step, the model relies upon the shapes.
        found = [tf.ensure_shape(leaf, [None, *shape[1:]]) for leaf, shape in zip(found, shapes)]
        return rows, [tf.concat([tf.reshape(leaf, [-1]), tf.cast(tf.shape(leaf), tf.float32)], 0) for leaf in found]

    step = tf.function(step, input_signature=[tf.TensorSpec([None, *shape[1:]]) for shape in shapes])
    told = []
    for size in (0, 2, 0):
        rows, found = step(*(tf.ones([size, *(length or 3 for length in shape[1:])]) for shape in shapes))
        told.append([int(rows), [leaf.numpy().tolist() for leaf in found]])
    return told

print(json.dumps(rows_of([(None, 2), (None, 1), (None,), (None, None)])))
"""


def test_a_row_stands_in_also_where_tensorflow_optimizes_the_graph(tmp_path: Path) -> None:
    path = tmp_path / "standing.py"
    path.write_text(PROGRAM)
    done = run_plainly(["standing.py"], tmp_path, {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"})
    assert done.code == 0, done.err
    assert json.loads(done.out) == [
        [0, [[0, 0, 1, 2], [0, 1, 1], [0, 1], [0, 0, 0, 1, 3]]],
        [2, [[1, 1, 1, 1, 2, 2], [1, 1, 2, 1], [1, 1, 2], [1, 1, 1, 1, 1, 1, 2, 3]]],
        [0, [[1, 1, 1, 2], [1, 1, 1], [1, 1], [1, 1, 1, 1, 3]]],
    ]
