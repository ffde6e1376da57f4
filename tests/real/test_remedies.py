"""What to do about names that TensorFlow and Keras do not have any more: the errors are those of the TensorFlow that is installed here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.model.cause import remedies
from orchestrator.model.state.cluster import TaskStatus
from orchestrator.testing import cluster
from worker.protocol.messages import Evidence, Failure
from worker.values.codec import from_json

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(300)]

TENSORFLOW_1, ESTIMATOR = "tf_upgrade_v2 --infile", "migrating_estimator"
WITHOUT_KERAS_2 = "import sys; sys.modules['tf_keras'] = None; os.environ['TF_USE_LEGACY_KERAS'] = '1'"
STATEMENTS = {
    "tf.keras.optimizers.Adam(nonsense=0.1)": "which Keras 3 does not take",
    "tf.keras.wrappers.scikit_learn": "neither Keras 3 nor Keras 2 has this name",
    "from keras.utils import np_utils": "neither Keras 3 nor Keras 2 has this name",
    "from keras.layers.normalization import BatchNormalization": "neither Keras 3 nor Keras 2 has this name",
    f"{WITHOUT_KERAS_2}; tf.keras.Sequential()": "or unset TF_USE_LEGACY_KERAS",
    "tf.estimator.RunConfig()": ESTIMATOR,
    "tf.compat.v1.estimator": ESTIMATOR,
    "tf.keras.estimator.model_to_estimator(None)": ESTIMATOR,
    "from tensorflow import estimator": ESTIMATOR,
    "import tensorflow_estimator": ESTIMATOR,
    "from tensorflow.examples.tutorials.mnist import input_data": TENSORFLOW_1,
    "import tensorflow.contrib.slim as slim": TENSORFLOW_1,
    "from tensorflow import logging": TENSORFLOW_1,
    "tf.contrib.distribute": TENSORFLOW_1,
    "tf.logging.set_verbosity(0)": TENSORFLOW_1,
    "tf.Session()": TENSORFLOW_1,
    "tf.placeholder(tf.float32)": TENSORFLOW_1,
    "tf.compat.v1.placeholder(tf.float32)": TENSORFLOW_1,
    "tf.app.flags": TENSORFLOW_1,
    "tf.train.Server({})": TENSORFLOW_1,
    "tf.train.MonitoredTrainingSession()": TENSORFLOW_1,
    "tf.train.AdamOptimizer(0.1)": TENSORFLOW_1,
    "tf.summary.merge_all()": TENSORFLOW_1,
    "tf.data.Dataset.range(2).make_one_shot_iterator()": TENSORFLOW_1,
    "import tensorflow.no_such_part": "has no tensorflow.no_such_part",
    "tf.no_such_name": TENSORFLOW_1,
    "tf.constant(1).no_such_name": "",
    "tf.keras.layers.Dens": "",
    "import horovod.tensorflow": "instead of Horovod",
    "tf.distribute.cluster_resolver.SlurmClusterResolver()": "without a resolver: it reads TF_CONFIG",
    "import sys; sys.modules['tensorboard.summary.v2'] = None; tf.summary.scalar('a', 1.0, step=0)": "-m pip install tensorboard",
    "tf.keras.Sequential([tf.keras.Input((9,)), tf.keras.layers.Dense(1)])(tf.zeros((4, 8)))": "dense takes 9 values in axis -1",
    "tf.keras.layers.Conv2D(3, 3)(tf.zeros((4, 28, 28)))": "data with min_ndim=4, the batch included (it got ndim=3)",
    "tf.keras.losses.CategoricalCrossentropy()(tf.zeros((4,)), tf.zeros((4, 3)))": "class numbers, use a loss with Sparse",
    "tf.keras.Sequential().compile('adm')": "no optimizer named adm; did you mean adam?",
    "tf.keras.layers.Dense(1, activation='rellu')": "no activation named rellu; did you mean relu?",
    "tf.distribute.MultiWorkerMirroredStrategy(num_workers=2)": "remove num_workers: orch up -n N",
    "tf.constant([1.0, 2.0]) + tf.constant([1.0, 2.0, 3.0])": "make the shapes [2] and [3] fit",
    "os.environ['NO_SUCH_VARIABLE']": "--env NO_SUCH_VARIABLE=VALUE",
    "tf.keras.Input": None,
}


def provoke(directory: str) -> None:
    from tests.programs import provoke

    provoke.run(list(STATEMENTS), directory)


@pytest.fixture(scope="module")
def provoked(_session: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("provoked")
    with cluster(workers=1, strategy="none", keras="off") as c:
        c.run(provoke, str(directory))
    return directory


@pytest.mark.parametrize("statement", STATEMENTS)
def test_an_error_of_another_tensorflow_s_script_has_its_remedy(provoked: Path, statement: str) -> None:
    expected, path = STATEMENTS[statement], provoked / str(list(STATEMENTS).index(statement)) / "error.json"
    if expected is None:  # it raises nothing: the others are not just anything that goes wrong here
        assert not path.exists()
        return
    failure = from_json(Failure, json.loads(path.read_text()))
    task = TaskStatus("worker-0", "a", code=1, failure=failure, evidence=Evidence(python="/py", tensorflow="2.21.0"))
    found = remedies.find(task).text
    assert (expected in found) if expected else found == "", failure.message
    assert "or Keras 2," not in found or "--keras legacy (to install: /py -m pip install --no-deps 'tf-keras~=2.21.0')" in found
