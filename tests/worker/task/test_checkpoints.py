"""`worker.checkpoints` in one process: generators, files, another model's save, and inputs without a position."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests import tfrecords
from tests.worker.agent_double import ROOT, run_plainly
from worker.formats import saves
from worker.formats.saves import LOCAL

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(300)]

PROGRAM = """
import itertools, json, os, random, sys
import keras, numpy as np, tensorflow as tf
import worker
from worker.task.checkpoints import saver as module
from worker.task.input import shuffle_order

def anew():
    "As in a process that has just started."
    module._loops = itertools.count(1)
    shuffle_order._drawn.clear()
    keras.backend.clear_session()

def model(width=3):
    made = keras.Sequential([keras.Input((4,)), keras.layers.Dense(width), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
    return {"model": made, "optimizer": keras.optimizers.SGD(0.1, momentum=0.9)}

told = {}
given = model()
generator = tf.random.Generator.from_seed(7)
saver = worker.checkpoints(**given, generator=generator, dir="general")
keras.random.normal((1,))
generator.normal((1,))
saver.step()
saver.save()
saver.wait()
def draws(given, generator):
    drawn = [random.random(), float(np.random.rand()), float(keras.random.normal((1,))[0]), float(generator.normal((1,))[0])]
    return drawn + given["model"](tf.ones((1, 4)), training=True).numpy().ravel().tolist()
told["before"] = draws(given, generator)
anew()
given, generator = model(), tf.random.Generator.from_seed(1)
again = worker.checkpoints(**given, generator=generator, dir="general")
told["steps"], told["after"] = again.steps, draws(given, generator)

anew()
try:
    worker.checkpoints(**model(5), generator=generator, dir="general")
except ValueError as error:
    told["other"] = str(error)
anew()
try:
    worker.checkpoints(table=tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, 0), dir="general")
except ValueError as error:
    told["table"] = str(error)

def numbers(saver):
    decode = lambda record: tf.strings.to_number(record, tf.int64)
    return worker.files("*.tfrecord", decode, batch=4, repeat=2, shuffle=8, start=saver.steps)
anew()
saver = worker.checkpoints(v=tf.Variable(0), dir="files", every=3)
told["read"] = []
for batch in numbers(saver):
    told["read"].append(batch.numpy().tolist())
    saver.step()
    if saver.steps == 3:
        break
saver.wait()
anew()
saver = worker.checkpoints(v=tf.Variable(0), dir="files", every=3)
told["read"] += [batch.numpy().tolist() for batch in numbers(saver)]
anew()
saver = worker.checkpoints(v=tf.Variable(0), dir="whole")
told["whole"] = [batch.numpy().tolist() for batch in numbers(saver)]

for kind, data in {
    "random": tf.data.Dataset.range(8).map(lambda x: tf.random.uniform([])),
    "python": tf.data.Dataset.range(8).map(lambda x: tf.numpy_function(lambda x: x, [x], tf.int64)),
    "generator": tf.data.Dataset.from_generator(lambda: iter(range(8)), output_signature=tf.TensorSpec([], tf.int64)),
    "variable": tf.data.Dataset.range(8).map(lambda x, v=tf.Variable(0): v.assign_add(1)),
    "shuffled": tf.data.Dataset.range(8).shuffle(8),
    "seeded": tf.data.Dataset.range(8).shuffle(8, seed=1).map(lambda x: x + 1).cache().batch(2),
}.items():
    from worker.task.checkpoints import input_check
    told[kind] = input_check.tell(worker.distribute(data))
told["orders"] = {}
eight = tf.data.Dataset.range(8)

def passes(inner):
    "Two passes over a dataset that a function has from outside. TensorFlow must not read ahead, and so draw what nobody has asked for."
    options = tf.data.Options()
    options.autotune.enabled = options.experimental_optimization.inject_prefetch = False
    return tf.data.Dataset.range(2).flat_map(lambda _: inner).batch(8).with_options(options)

for kind, make in {
    "plain": lambda: eight.shuffle(8).batch(4),
    "repeat": lambda: eight.shuffle(8).repeat(2).batch(4),
    "cache": lambda: eight.shuffle(8).cache().batch(4),
    "concatenate": lambda: eight.shuffle(8).concatenate(eight.shuffle(8)).batch(4),
    "flat map": lambda: passes(eight.shuffle(8, seed=1)),
    "flat map without a seed": lambda: passes(eight.shuffle(8)),
}.items():
    told["orders"][kind] = []
    batches = 4 if kind in ("repeat", "concatenate") else 2  # in an epoch
    for place, last in ((f"{kind} whole", 99), (f"{kind} killed", batches), (f"{kind} killed", 99)):
        anew()
        saver, data = worker.checkpoints(v=tf.Variable(0), dir=place), make()
        for _ in (epoch for epoch in saver.epochs(4) if epoch < last):
            for batch in saver.batches(data):
                told["orders"][kind].append(batch.numpy().tolist())
                saver.step()
                if saver.steps == last + 1:  # within the second epoch
                    break
            if saver.steps == last + 1:
                break
        saver.save()
        saver.wait()
anew()
saver = worker.checkpoints(v=tf.Variable(0), dir="plain")
tf.random.normal([1])
saver.step()
with open("told.json", "w") as file:
    json.dump(told, file)
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    place = tmp_path_factory.mktemp("saves")
    for name, first in (("a", 0), ("b", 8)):
        tfrecords.write(place / f"{name}.tfrecord", [str(number).encode() for number in range(first, first + 8)])
    (place / "program.py").write_text(PROGRAM)
    done = run_plainly([str(place / "program.py")], place, env={"PYTHONPATH": str(ROOT)}).check()
    found: dict[str, Any] = json.loads((place / "told.json").read_text())
    return {**found, "err": " ".join(done.err.split()), "place": place}


def test_generators_go_on(told: dict[str, Any]) -> None:
    assert told["steps"] == 1
    assert told["before"] == told["after"]


def test_another_model_is_refused(told: dict[str, Any]) -> None:
    assert "has the shape [4, 3] (F32) there and [4, 5] (F32) here" in told["other"]
    assert "model/sequential/dense/kernel" in told["other"]
    assert "start the program that has made it" in told["other"]
    assert "table is of type MutableHashTable, whose state is not saved" in told["table"]


def test_files_begin_where_the_saver_is(told: dict[str, Any]) -> None:
    assert told["read"] == told["whole"]
    assert sorted(number for batch in told["read"] for number in batch) == sorted([*range(16)] * 2)


@pytest.mark.parametrize("kind", ["plain", "repeat", "cache", "concatenate", "flat map", "flat map without a seed"])
def test_shuffles_within_an_epoch_come_in_the_same_order(told: dict[str, Any], kind: str) -> None:
    """Each epoch draws its order when it begins; these datasets draw again within it, or keep the order of the first one."""
    read = told["orders"][kind]
    assert len(read) % 2 == 0
    assert read[len(read) // 2 :] == read[: len(read) // 2]


def test_what_cannot_be_positioned_is_said_at_the_start(told: dict[str, Any]) -> None:
    assert "a function of it draws random numbers (RandomUniform)" in told["random"][0]
    assert "a function of Python" in told["python"][0]
    assert any("generator" in reason for reason in told["generator"])
    assert "changes a variable (AssignAdd" in told["variable"][0]
    assert told["shuffled"] == told["seeded"] == []
    assert "checkpoints: the input of program.py:" in told["err"]
    assert "draws random numbers that no checkpoint can restore" in told["err"]
    assert "the input of this loop begins again after a restart" in told["err"]


def test_a_changed_bit_anywhere_is_found(told: dict[str, Any]) -> None:
    (save,) = saves.list_saves(LOCAL, str(told["place"] / "general"), "loop-1")
    assert saves.check(LOCAL, save) == ""
    for name in ("model.safetensors", "chief-0.safetensors", "manifest.json"):
        path = Path(save.directory) / name
        whole = path.read_bytes()
        for place in (0, len(whole) // 2, len(whole) - 3):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
            assert saves.check(LOCAL, saves.read_save(LOCAL, str(told["place"] / "general"), "loop-1", save.name)), f"{name}, byte {place}"
        path.write_bytes(whole[:-9])
        assert saves.check(LOCAL, saves.read_save(LOCAL, str(told["place"] / "general"), "loop-1", save.name)), f"{name}, cut off"
        path.write_bytes(whole)


FITS = """
import json, os, signal, sys
import keras, numpy as np, tensorflow as tf
import worker
dies = sys.argv[2:]
x = np.random.default_rng(0).normal(size=(48, 8)).astype("float32")
class Model(keras.Model):
    "With a stateful layer and a variable that Keras does not count."
    def __init__(self):
        super().__init__()
        one, two = map(keras.initializers.GlorotUniform, (1, 2))
        self.recurrent = keras.layers.GRU(4, stateful=True, seed=3, kernel_initializer=one, recurrent_initializer=two)
        self.dropout = keras.layers.Dropout(0.5, seed=1)
        self.mean = tf.Variable(1.0, trainable=False, name="mean")
        self.recurrent.build((8, 1, 8))
        self.built = True
    def call(self, x, training=False):
        y = self.recurrent(x[:, None])
        if training:
            self.mean.assign(0.9 * self.mean + 0.1 * tf.reduce_mean(y))
        return self.dropout(y, training=training) + self.mean
model = Model()
model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
class Death(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch
    def on_train_batch_end(self, batch, logs=None):
        if dies == [str(self.epoch), str(batch)]:
            os.kill(os.getpid(), signal.SIGKILL)
data = tf.data.Dataset.from_tensor_slices((x, x[:, :4])).shuffle(48).batch(8)
validation = tf.data.Dataset.from_tensor_slices((x, -x[:, :4])).shuffle(48).batch(8)
place = "file://" + os.path.abspath(sys.argv[1])
first = model.fit(
    data, epochs=3, verbose=0, validation_data=validation, validation_steps=2,
    callbacks=[Death(), worker.KerasCheckpoint(every=4, dir=place)],
)
second = model.fit(
    data, epochs=9, initial_epoch=5, verbose=0, validation_data=validation, validation_freq=2,
    callbacks=[Death(), worker.KerasCheckpoint(dir=place)],
)
print(json.dumps([first.history, second.history]))
"""


def test_the_callback_continues_in_one_process_and_by_tensorflows_file_systems(tmp_path: Path) -> None:
    """Also where `fit` was looked up before the callback was made, with no seed for the shuffles, also not for those of the validation
    data, and two fits in one program, both killed, whose model has states of a layer and a variable that Keras counts among none."""
    (tmp_path / "fits.py").write_text(FITS)

    def run(*words: str) -> Any:
        return run_plainly([str(tmp_path / "fits.py"), *words], tmp_path, env={"PYTHONPATH": str(ROOT)})

    whole = run("whole").check()
    assert run("killed", "1", "4").code == -9
    again = run("killed", "7", "2")
    assert again.code == -9
    assert "checkpoints: fit-1 continues at step" in again.err
    done = run("killed").check()
    assert "checkpoints: fit-2 continues at step" in done.err
    assert done.out == whole.out
    for series in ("fit-1", "fit-2"):
        sums = [next(saves.list_saves(LOCAL, str(tmp_path / place), series)).manifest for place in ("whole", "killed")]
        assert sums[0] is not None
        assert sums[1] is not None
        assert sums[0]["sha256"] == sums[1]["sha256"]


FIT_OF_KERAS_2 = """
import json, os, signal, sys
import numpy as np, tensorflow as tf
import worker
keras, dies = tf.keras, sys.argv[2:]
x = np.random.default_rng(0).normal(size=(48, 8)).astype("float32")
model = keras.Sequential([keras.layers.Dense(4, "relu", kernel_initializer=keras.initializers.GlorotUniform(1), input_shape=(8,))])
model.compile("adam", "mse", metrics=["mae"])
class Death(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch
    def on_train_batch_end(self, batch, logs=None):
        if dies == [str(self.epoch), str(batch)]:
            os.kill(os.getpid(), signal.SIGKILL)
place = "file://" + os.path.abspath(sys.argv[1])
fit = dict(x=x, y=x[:, :4], batch_size=8, verbose=0, validation_split=0.25)
model.fit(**fit, shuffle=False)
backup = keras.callbacks.BackupAndRestore(f"{sys.argv[1]}-backup")  # which begins with the epoch of the restart
found = model.fit(**fit, epochs=3, callbacks=[backup, Death(), worker.KerasCheckpoint(every=2, dir=place)])
print(json.dumps([found.history, found.params]))
"""


def test_the_callback_continues_with_keras_2(tmp_path: Path) -> None:
    """Also after a `fit` that is not saved. `fit` was looked up before the callback was made."""
    if find_spec("tf_keras") is None:
        pytest.skip("NOT TESTED: tf-keras is not installed here")
    (tmp_path / "fit.py").write_text(FIT_OF_KERAS_2)

    def run(*words: str) -> Any:
        return run_plainly([str(tmp_path / "fit.py"), *words], tmp_path, env={"PYTHONPATH": str(ROOT), "TF_USE_LEGACY_KERAS": "1"})

    whole = run("whole").check()
    assert run("killed", "1", "4").code == -9
    done = run("killed").check()
    assert "fit-1 continues at step" in done.err
    assert done.out == whole.out


OTHER_BATCHES = """
import itertools, json, os
import keras, numpy as np, tensorflow as tf
import worker
from worker.task.checkpoints import keras_saves, saver as module

class Steps(keras.callbacks.Callback):
    def __init__(self, last=None):
        super().__init__()
        self.last, self.seen, self.epochs = last, [], []
    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(batch + 1)
        if batch + 1 == self.last:
            raise KeyboardInterrupt
    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append(epoch)

def fit(place, *, batches=18, size=1, execution=1, last=None):
    keras_saves.Fit.numbers = itertools.count(1)  # as in a process that has just started
    keras.backend.clear_session()
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", steps_per_execution=execution)
    x = np.zeros((18, 1), "float32")
    data = tf.data.Dataset.from_tensor_slices((x, x)).batch(size).take(batches)
    if batches == 7:  # Keras does not know how many there are
        data = data.filter(lambda *_: True)
    steps = Steps(last)
    try:
        model.fit(data, epochs=1, verbose=0, callbacks=[steps, worker.KerasCheckpoint(every=10, dir=place)])
    except KeyboardInterrupt:
        pass
    return steps.seen, steps.epochs, int(model.optimizer.iterations)

fit("execution", last=12)
fit("fewer", last=12)
fit("size", last=12)
module._loops = itertools.count(1)
saver = worker.checkpoints(v=tf.Variable(0), dir="loop", every=2)
for _ in saver.epochs(1):
    for number, _ in enumerate(saver.batches(tf.data.Dataset.range(8).batch(2))):
        if number == 2:
            break
        saver.step()
    break
saver.wait()
module._loops = itertools.count(1)
saver = worker.checkpoints(v=tf.Variable(0), dir="loop", every=2)
rest = [batch.numpy().tolist() for _ in saver.epochs(1) for batch in saver.batches(tf.data.Dataset.range(8).batch(4))]
print(json.dumps([fit("execution", execution=4), fit("fewer", batches=7), fit("size", size=2)[2], rest]))
"""


def test_other_batches_than_before_are_said_and_other_executions_go_on_exactly(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text(OTHER_BATCHES)
    done = run_plainly([str(tmp_path / "other.py")], tmp_path, env={"PYTHONPATH": str(ROOT)}).check()
    execution, fewer, of_size, rest = json.loads(done.out.strip().splitlines()[-1])
    said = " ".join(done.err.split())
    assert execution == [[*range(1, 11), 14, 18], [0], 18], "ten of 18 steps were saved, and four belong to an execution"
    assert "steps_per_execution was 1 and is 4: callbacks come after other steps" in said
    assert fewer == [[*range(1, 11)], [0], 10]
    assert "the data have only 7 batches in an epoch, and the training before had trained on 10" in said
    assert of_size == 10
    assert "the batch size was 1 and is 2: in this epoch some elements may come twice" in said
    assert rest == []
    assert "the batch size was 2 and is 4" in said
