"""TensorFlow in tasks that are forked from one import of it: everything works, and comes out the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.live import LiveRun
from tests.real.programs import SCHEDULED_SUM

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(300)]

HOW = """
import os, re, sys
from pathlib import Path
FORKED = bool(re.search("forkserver/start_(template|warm)", Path(f"/proc/{os.getppid()}/cmdline").read_text()))
TASK = os.environ["ORCH_TASK"]
"""


@pytest.fixture
def up(orch: Any, tmp_path: Path) -> Any:
    """``up(text, *options)``: run a program; returns what each task has left in ``TASK.json``, and the run as it ended."""

    def run(text: str, *options: str) -> tuple[dict[str, Any], Any]:
        (tmp_path / "s.py").write_text(HOW + textwrap.dedent(text))
        done = orch("up", "s.py", *options, timeout=250, check=0, env={"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1"})
        found = {}
        for path in tmp_path.glob("*.json"):
            found[path.stem] = json.loads(path.read_text())
            path.unlink()
        return found, done

    return run


TRAIN = """
import json
import numpy
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
drawn = [float(tf.random.uniform([])), float(numpy.random.rand()), float(tf.keras.random.uniform([]))]

def reduce():
    return tf.distribute.get_replica_context().all_reduce("sum", tf.constant(10.0**index))

total = float(strategy.run(tf.function(reduce)))

def numbers():
    for number in range(12):
        yield float(number)

tf.keras.utils.set_random_seed(7)
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
dataset = tf.data.Dataset.from_generator(numbers, output_signature=tf.TensorSpec((), tf.float32))
dataset = dataset.map(lambda x: tf.numpy_function(lambda y: y / 12, [x], tf.float32), num_parallel_calls=2)
dataset = dataset.map(lambda x: tf.ensure_shape(x, ())).batch(4, drop_remainder=True).with_options(options)
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((1,)), tf.keras.layers.Dense(5, "tanh"), tf.keras.layers.Dense(1)])
    optimizer = tf.keras.optimizers.Adam(0.1)

@tf.function
def train(batch):
    def step(x):
        x = x[:, tf.newaxis]
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((model(x) - 3 * x) ** 2) / 4
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    strategy.run(step, args=(batch,))

for batch in strategy.experimental_distribute_dataset(dataset):
    train(batch)
weights = [float(number).hex() for array in model.get_weights() for number in array.ravel()]
Path(f"{TASK}.json").write_text(json.dumps([FORKED, drawn, total, weights]))
"""


def test_workers_train_alike_with_and_without_a_template(up: Any, tmp_path: Path) -> None:
    with_one, done = up(TRAIN, "-n", "2")
    assert "which takes longer" not in done.err
    (ready,) = (event for event in LiveRun(tmp_path).events() if event["event"] == "template_ready")
    assert ready["modules"] == ["tensorflow"]
    LiveRun(tmp_path).event("task_up", task="worker-1")
    without, _ = up(TRAIN, "-n", "2", "--set", "preload=[]")
    for found, forked in ((with_one, True), (without, False)):
        assert [(found[name][0], found[name][2]) for name in ("worker-0", "worker-1")] == [(forked, 11.0)] * 2
        # The program has seeded none of these. NumPy and Keras draw alike in all workers of a training, and TensorFlow does not.
        of_tensorflow, of_numpy, of_keras = zip(found["worker-0"][1], found["worker-1"][1], strict=True)
        assert of_tensorflow[0] != of_tensorflow[1]
        assert of_numpy[0] == of_numpy[1]
        assert of_keras[0] == of_keras[1]
    weights = [found[name][3] for found in (with_one, without) for name in ("worker-0", "worker-1")]
    assert len(weights[0]) == 16
    assert weights == [weights[0]] * 4


@pytest.mark.usefixtures("warm_tensorflow")
def test_parameter_servers_are_forked_too(up: Any, tmp_path: Path) -> None:
    head = "import json\nimport worker\nstrategy = worker.strategy()\n"
    tail = """
agent = Path(f"/proc/{os.getppid()}/task/{os.getppid()}/children").read_text().split()
Path(f"{TASK}.json").write_text(json.dumps([FORKED, total.device, float(total.numpy()), len(agent)]))
"""
    text = head + SCHEDULED_SUM + tail
    found, done = up(text, "--strategy", "parameter_server", "--set", "tasks.chief=1", "-n", "1", "--ps", "1", "--set", "serve=true")
    assert "which takes longer" not in done.err
    # The template's children: the chief, the worker and the ps.
    assert found == {"chief-0": [True, "/job:ps/replica:0/task:0/device:CPU:0", 20.0, 3]}


MIRRORED = """
import json
import tensorflow as tf
strategy = tf.distribute.MirroredStrategy([f"CPU:{index}" for index in range(4)])
values = strategy.run(tf.function(lambda: tf.distribute.get_replica_context().all_reduce("sum", tf.constant(1.0))))
Path(f"{TASK}.json").write_text(json.dumps([FORKED, len(tf.config.list_logical_devices("CPU")), float(values.values[3])]))
"""


def test_logical_devices_in_a_fork(up: Any) -> None:
    # All cores for one task, and so helper threads of OpenBLAS in the template.
    found, done = up(MIRRORED, "--strategy", "mirrored", "--cpus", "4")
    assert "which takes longer" not in done.err
    assert found == {"worker-0": [True, 4, 4.0]}


def test_an_import_that_computes_is_not_forked_from(up: Any, tmp_path: Path) -> None:
    (tmp_path / "computes.py").write_text("import tensorflow as tf\none = tf.constant(1) + 1\n")
    found, done = up(MIRRORED + "import computes", "--strategy", "mirrored", "--cpus", "4", "--set", "preload=[computes]")
    assert found == {"worker-0": [False, 4, 4.0]}
    assert "worker-0: TensorFlow is imported again, which takes longer: an import has started TensorFlow's runtime" in done.err


@pytest.mark.usefixtures("warm_tensorflow")
def test_tasks_of_a_warm_template_compute_alike(up: Any) -> None:
    """Under fewer or more threads than those that it was started with, twice from the same, and under all cores of one task."""
    found, done = up(TRAIN, "-n", "2")
    again, done_again = up(TRAIN, "-n", "2")
    for one in (done, done_again):
        assert "tasks are forked from the warm process of " in one.err
        assert "which takes longer" not in one.err
    for each in (found, again):
        assert [(each[name][0], each[name][2]) for name in ("worker-0", "worker-1")] == [(True, 11.0)] * 2
    drawn = [each[name][1] for each in (found, again) for name in ("worker-0", "worker-1")]
    assert len({json.dumps(numbers) for numbers in drawn}) == 4
    assert len({json.dumps(each[name][3]) for each in (found, again) for name in ("worker-0", "worker-1")}) == 1
    mirrored, done = up(MIRRORED, "--strategy", "mirrored", "--cpus", "4")
    assert "tasks are forked from the warm process of " in done.err
    assert mirrored == {"worker-0": [True, 4, 4.0]}


THREADS = """
import ctypes, json, os, re
import numpy, tensorflow

threads = len(os.listdir("/proc/self/task"))  # first: to be asked, OpenBLAS starts its threads
path = re.search(r"/\\S*libscipy_openblas64_[^/]*$", open("/proc/self/maps").read(), re.MULTILINE)[0]
asked = ctypes.CDLL(path).scipy_openblas_get_num_threads64_()
with open(TASK + ".json", "w") as file:
    json.dump([FORKED, threads, asked], file)
"""


@pytest.mark.usefixtures("warm_tensorflow")
@pytest.mark.parametrize("wanted", [1, 3])
def test_a_fork_of_the_warm_process_has_as_many_math_threads_as_it_wants(up: Any, wanted: int) -> None:
    """With one thread, nothing is started for it: a thread that OpenBLAS starts keeps a core busy for some 50 ms."""
    found, _ = up(THREADS, "--workers", "1", "--env", f"OMP_NUM_THREADS={wanted}")
    forked, threads, asked = found["worker-0"]
    assert (forked, asked) == (True, wanted)
    assert threads == 1 or wanted > 1


CHANGES = """
import json, os, sys
import tensorflow
from worker.task import bootstrap, keras
keras.prepare_forks()
before = {*sys.modules}
compiled = []
sys.addaudithook(lambda event, arguments: compiled.append(arguments) if event == "compile" else None)
os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 0}})
for change in bootstrap._import_changes({"tf_config": os.environ["TF_CONFIG"], "settings": {}}):
    change(os.environ["TMPDIR"])
print(sorted(name for name in {*sys.modules} - before if ".keras" in name or ".input" in name), len(compiled))
"""


def test_a_fork_changes_keras_without_an_import_of_its_own(tmp_path: Path) -> None:
    """Each of these imports would be done once for each task, and each compilation too."""
    env = {**os.environ, "TMPDIR": str(tmp_path), "TF_CPP_MIN_LOG_LEVEL": "2"}
    done = subprocess.run([sys.executable, "-c", CHANGES], env=env, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "[] 0\n"
