"""The table of what only Keras 2 has, held against both: each example fails with Keras 3, with a remedy, and works with Keras 2.

Also the bars of both, which the console shows once.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from orchestrator.model.cause import keras_2_names, remedies
from orchestrator.model.state.cluster import TaskStatus
from orchestrator.record.text.log_view import LogView
from orchestrator.testing import cluster
from worker.protocol.messages import Evidence, Failure
from worker.values.codec import from_json

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(600), pytest.mark.slow]

MODEL = "import numpy as np; x, y = np.ones((2, 2)), np.ones((2, 1)); m = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(2,))])"
COMPILED = f"{MODEL}; m.compile('sgd', 'mse'); m"
EXAMPLES = (
    "tf.keras.optimizers.legacy.SGD(0.1)",
    "from tensorflow.keras.optimizers import legacy; legacy.Adam()",
    "import keras.optimizers; keras.optimizers.legacy.Adam(0.1)",
    "k = tf.keras; k.optimizers.legacy.SGD(0.1)",
    "tf.keras.utils.experimental.DatasetCreator(lambda context: None)",
    "tf.keras.utils.SidecarEvaluator",
    "tf.keras.callbacks.experimental.BackupAndRestore(backup_dir='x')",
    "tf.keras.layers.experimental.preprocessing.Rescaling(1 / 255)",
    "from tensorflow.keras.layers.experimental import preprocessing",
    "tf.keras.optimizers.experimental.Adam(0.1)",
    "tf.keras.experimental.LinearModel()",
    "tf.keras.experimental.CosineDecay(0.1, 10)",
    "tf.keras.losses.mean_squared_error([1.], [1.])",
    "tf.keras.metrics.kl_divergence",
    "from tensorflow.keras import backend as K; K.learning_phase()",
    "tf.keras.backend.function",
    "tf.compat.v1.keras.backend.set_session",
    "import keras.backend as K; K.mean",
    "from keras.preprocessing.text import Tokenizer",
    "import keras; keras.preprocessing.image.ImageDataGenerator()",
    "import keras; keras.losses.Reduction",
    "tf.keras.layers.DenseFeatures([tf.feature_column.numeric_column('a')])",
    "tf.keras.layers.LocallyConnected1D(2, 2)",
    "tf.keras.metrics.MeanTensor()",
    "tf.keras.models.model_from_config",
    "tf.keras.applications.RegNetX002",
    "tf.keras.applications.ResNetRS50",
    "tf.keras.utils.OrderedEnqueuer",
    "tf.keras.constraints.RadialConstraint()",
    "tf.keras.callbacks.BaseLogger()",
    "loss = tf.keras.metrics.Mean(); loss.reset_states()",
    f"{MODEL}; m.reset_states()",
    "optimizer = tf.keras.optimizers.Adam(0.1); optimizer.lr",
    "optimizer = tf.keras.optimizers.SGD(0.1); v = tf.Variable(1.0); optimizer.minimize(lambda: v * v, [v])",
    f"{COMPILED}.optimizer.lr",
    f"{COMPILED}.fit_generator(iter([(x, y)] * 2), steps_per_epoch=1)",
    f"{COMPILED}.evaluate_generator(iter([(x, y)] * 2), steps=1)",
    f"{COMPILED}.predict_generator(iter([x] * 2), steps=1)",
    "o = tf.keras.mixed_precision.LossScaleOptimizer(tf.keras.optimizers.SGD(0.1)); o.get_scaled_loss(tf.constant(1.0))",
    "tf.keras.optimizers.Adam(lr=0.1)",
    f"{MODEL}; m.compile('sgd', 'mse', sample_weight_mode=None)",
    f"{MODEL}; m.compile('sgd', 'mse', experimental_run_tf_function=False)",
    f"{MODEL}; m.compile('sgd', 'mse', experimental_steps_per_execution=5)",
    f"{COMPILED}.fit(x, y, workers=2)",
    f"{COMPILED}.evaluate(x, y, use_multiprocessing=False)",
    f"{COMPILED}.predict(x, max_queue_size=5)",
    f"{COMPILED}.train_on_batch(x, y, reset_metrics=True)",
    "tf.keras.callbacks.ModelCheckpoint('w.keras', period=2)",
    "tf.keras.callbacks.TensorBoard('logs', write_grads=True)",
    "tf.keras.layers.Dense(2, batch_input_shape=(None, 2))",
    "tf.keras.layers.BatchNormalization(fused=False)",
    "tf.keras.layers.LSTM(2, time_major=True)",
    f"{MODEL}; m.save_weights('w.weights.h5', save_format='h5')",
    "self = lambda: 0; self.loss = tf.keras.metrics.Mean(); self.loss.reset_states()",
    "tf.keras.losses.MeanSquaredError(reduction='auto')",
    f"{MODEL}; m.save_weights('weights')",
    f"{MODEL}; m.save_weights(os.path.join('d', 'weights.h5'))",
    "tf.keras.callbacks.ModelCheckpoint('ck-{epoch}', save_weights_only=True)",
    "tf.keras.callbacks.ModelCheckpoint(filepath='a' + 'ck-{epoch}')",
    f"{MODEL}; m.save('directory')",
    f"{COMPILED}.save('directory', save_format='tf')",
    f"{MODEL}; tf.keras.models.save_model(m, 'directory')",
    f"{MODEL}; name = 'd/m'; legacy and m.save(name); m.load_weights('d/m')",
)
FINE = (
    "import numpy as np; np.save('x', np.ones(2))",
    "tf.train.Checkpoint().save('x')",
    "tf.keras.layers.LSTM(2, stateful=True).reset_states",
    "tf.keras.preprocessing.text.Tokenizer()",
    "tf.keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)",
    "tf.keras.callbacks.ModelCheckpoint('ck-{epoch}.weights.h5', save_weights_only=True)",
    "tf.keras.callbacks.ModelCheckpoint('ck-{epoch}' + '.keras', save_weights_only=False)",
    f"{COMPILED}.save('m.keras'); m.save_weights('m.weights.h5'); m.load_weights('m.weights.h5'); tf.keras.models.load_model('m.keras')",
    f"{COMPILED}.fit(x, y, epochs=1, batch_size=2)",
)
BARS = f"{COMPILED}.fit(x, y, epochs=2, batch_size=1); m.fit(x, y, epochs=2, verbose=2); m.evaluate(x, y); m.predict(x); print('mine')"
ALL = (*EXAMPLES, *FINE, BARS)


def run_examples(directory: str) -> None:
    from tests.programs import provoke

    legacy, examples = os.environ.get("TF_USE_LEGACY_KERAS") == "1", list(ALL)
    if legacy:
        moved = [each.replace("import keras; ", "import tf_keras as keras; ").replace("from keras.", "from tf_keras.") for each in examples]
        moved = [each.replace("import keras.optimizers;", "import tf_keras as keras;") for each in moved]
        examples = [each.replace("import keras.", "import tf_keras.") for each in moved]
    provoke.run(examples, directory, legacy=legacy)


def run_both(top: Path) -> dict[str, Path]:
    """What Keras 3 and Keras 2 made of all examples, both at once."""
    alone: dict[str, Any] = {"workers": 1, "strategy": "none", "timeout": 500}
    with cluster(**alone, keras="v3") as three, cluster(**alone, keras="legacy") as two:
        running = [c.start(run_examples, str(top / name)) for name, c in (("3", three), ("2", two))]
        for job in running:
            job.result()
    return {name: top / name for name in ("3", "2")}


def failure_of(directory: Path, example: str) -> Failure | None:
    path = directory / str(ALL.index(example)) / "error.json"
    return from_json(Failure, json.loads(path.read_text())) if path.exists() else None


# One test, so that only one process of pytest-xdist runs the examples.
@pytest.mark.usefixtures("_session")
def test_keras_3_lacks_what_keras_2_has_and_the_report_of_the_failure_says_what_to_do(tmp_path: Path) -> None:
    runs = run_both(tmp_path)
    assert {example: found for example in EXAMPLES if (found := wrong_with(runs, example))} == {}
    for example in FINE:
        assert failure_of(runs["3"], example) is None, example
    said = "".join(advice_for(runs["3"], example) for example in EXAMPLES)
    assert [instead for instead in keras_2_names.INSTEAD.values() if instead not in said] == [], "no example of these rows"
    for directory in runs.values():
        check_bars((directory / str(ALL.index(BARS)) / "out").read_bytes())


def advice_for(directory: Path, example: str) -> str:
    task = TaskStatus("worker-0", "a", code=1, failure=failure_of(directory, example), evidence=Evidence(python="/py", tensorflow="2.21.0"))
    return remedies.find(task).text


def wrong_with(runs: dict[str, Path], example: str) -> str:
    failure = failure_of(runs["3"], example)
    if failure is None or failure_of(runs["2"], example) is not None:
        return "it does not fail with Keras 3, or it fails with Keras 2"
    advice = advice_for(runs["3"], example)
    is_tabled = any(instead in advice for instead in keras_2_names.INSTEAD.values())
    keras_2 = "or Keras 2, --keras legacy (to install: /py -m pip install --no-deps 'tf-keras~=2.21.0')"
    return "" if is_tabled and keras_2 in advice else f"{advice}\n{failure.message}"


def check_bars(written: bytes) -> None:
    """Of a worker behind the chief no progress is shown."""
    assert LogView(["worker-0", "worker-1"], behind=["worker-1"]).render("worker-1", "stdout", written) == "worker-1 | mine\n"
    chief = LogView(["worker-0"]).render("worker-0", "stdout", written)
    assert len(re.findall(r"\| Epoch \d/2\n", chief)) == 4
    assert len(re.findall(r"/step", chief)) == 6
