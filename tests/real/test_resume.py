"""Trainings that are killed end as one without a restart: the same SHA-256 of all saved tensors, each element read exactly once."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from orchestrator.record.run_directory import RunDir
from tests.bed import Bed
from tests.worker.agent_double import ROOT
from worker.formats import saves
from worker.formats.saves import LOCAL

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.usefixtures("warm_tensorflow")]

Uninterrupted = Callable[..., RunDir]
ORDER = ("--set", "checkpoints.order=one")
"""Two runs with the same order of their shuffles."""
HEAD = """
import json, os, random, signal, sys, threading, time
import keras, numpy as np, tensorflow as tf
TASK, ATTEMPT = os.environ["ORCH_TASK"], os.environ["ORCH_ATTEMPT"]
DEATH = json.loads(os.environ.get("DEATHS", "{}")).get(ATTEMPT)
x = np.random.default_rng(0).normal(size=(48, 8)).astype("float32")
y = x.sum(1, keepdims=True)

def die_at(*place):
    time.sleep(float(os.environ.get("PACE", 0)))
    if DEATH in ([TASK, *place], ["all", *place]):
        os.kill(os.getpid(), signal.SIGKILL)
    if DEATH == [f"step of {TASK}", *place]:  # a step that takes longer than the grace, and SIGTERM in it
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(600)
    if DEATH == [f"agent of {TASK}", *place]:
        os.kill(int(os.environ["ORCH_SNAPSHOTS"].split("/")[2]), signal.SIGKILL)

KILLS, SEED = int(os.environ.get("KILLS", 0)), os.environ.get("SEED")
alike, own = random.Random(f"{SEED}/{ATTEMPT}"), random.Random(f"{SEED}/{ATTEMPT}/{TASK}")
dies = int(ATTEMPT) <= KILLS and TASK in alike.choice((["worker-0"], ["worker-1"], ["worker-0", "worker-1"]))
steps_left = alike.choice((None, 1, 2, 4, 8))  # None: it dies while it starts, or restores

def die_within(seconds):
    dying = threading.Timer(own.uniform(0, seconds), os.kill, (os.getpid(), signal.SIGKILL))
    dying.daemon = True
    dying.start()

def step_begins():  # this task dies at a moment that is drawn: in a step, a snapshot, a save on the disk, or between them
    global steps_left
    if dies and steps_left is not None:
        steps_left -= 1
        if steps_left == 0:
            die_within(0.03)

if dies and steps_left is None:
    die_within(1.5)

def layers():
    return [
        keras.Input((8,)),
        keras.layers.Dense(16, "relu", kernel_initializer=keras.initializers.GlorotUniform(1)),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.3, seed=3),
        keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(2)),
    ]
"""
LOOP = (
    HEAD
    + """
import worker
name = os.environ.get("OPTIMIZER", "SGD")
strategy = tf.distribute.MultiWorkerMirroredStrategy() if name == "SGD" else worker.strategy()
with strategy.scope():
    model = keras.Sequential(layers())
    optimizer = keras.optimizers.AdamW(0.01, weight_decay=0.1) if name == "AdamW" else keras.optimizers.SGD(0.01, momentum=0.9)
damage = os.environ.get("DAMAGE") and ATTEMPT == "2" and TASK == "worker-0"
if damage:  # one bit of the newest save, and a save that was not finished
    series = os.path.join(os.environ["ORCH_CHECKPOINT_DIR"], "loop-1")
    newest = max(name for name in os.listdir(series) if name.startswith("step-"))
    with open(os.path.join(series, newest, "model.safetensors"), "r+b") as file:
        file.seek(-5, 2)
        byte = file.read(1)
        file.seek(-5, 2)
        file.write(bytes([byte[0] ^ 1]))
    os.makedirs(os.path.join(series, "step-0000000099"))
dataset = tf.data.Dataset.from_tensor_slices((x, y, np.arange(48))).shuffle(48).batch(8)
saver = worker.checkpoints(model=model, optimizer=optimizer, every=5)

@tf.function
def step(batch):
    def of_replica(batch):
        x, y, _ = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2) / strategy.num_replicas_in_sync
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss
    return strategy.reduce("SUM", strategy.run(of_replica, args=(batch,)), axis=None)

with open(os.path.join(os.environ["ORCH_RUN_DIR"], f"ids-{TASK}"), "a") as seen:
    for epoch in saver.epochs(4):
        for batch in saver.batches(dataset):
            die_at(saver.steps + 1)
            step_begins()
            # First: a step that has a snapshot is not trained again.
            print(saver.steps + 1, *strategy.experimental_local_results(batch[2])[0].numpy(), file=seen, flush=True)
            loss = step(batch)
            saver.step(loss=loss)
            if os.environ.get("DAMAGE"):  # so that the test knows the newest save
                saver.wait()
"""
)
COMPILED = (
    HEAD
    + """
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = keras.Sequential(layers())
    model.compile(keras.optimizers.AdamW(0.01, weight_decay=0.1), "mse", metrics=["mae"])

"""
)
FIT = (
    COMPILED
    + """
class Death(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch
    def on_train_batch_begin(self, batch, logs=None):
        step_begins()
    def on_train_batch_end(self, batch, logs=None):
        die_at(self.epoch, batch)

# No epoch is better than the first one by so much.
stops = keras.callbacks.EarlyStopping("val_loss", patience=9, min_delta=1000)
slows = keras.callbacks.ReduceLROnPlateau("val_loss", patience=1, min_delta=1000)
data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(48).batch(8) if os.environ.get("DATA") == "dataset" else x
found = model.fit(
    data, None if data is not x else y, batch_size=None if data is not x else 8, epochs=3, verbose=0,
    callbacks=[Death(), stops, slows], validation_data=(x[:8] * 2, -y[:8]),
)
print("END", json.dumps([found.epoch, found.history, stops.wait, stops.best, slows.wait], default=float))
"""
)

FIT_OPTIONS = ("-n", "2", *ORDER, "--checkpoint")
# Its dropout draws by operations whose position no checkpoint has.
FIT_OF_KERAS_2 = (
    FIT.replace("import keras, numpy", "import tf_keras as keras, numpy")
    .replace("Dropout(0.3, seed=3)", "Activation('tanh')")
    .replace("compile(keras", "compile(keras.mixed_precision.LossScaleOptimizer(keras", 1)
    .replace("weight_decay=0.1),", "weight_decay=0.1), dynamic_growth_steps=4),", 1)
)

GAN = (
    HEAD
    + """
strategy = tf.distribute.MultiWorkerMirroredStrategy()

class Gan(keras.Model):  # as keras.io has them: no `call`, and optimizers that the first step builds
    def __init__(self, discriminator, generator):
        super().__init__()
        self.discriminator, self.generator = discriminator, generator
        self.seed = keras.random.SeedGenerator(7)
        self.d_loss, self.g_loss = keras.metrics.Mean(name="d_loss"), keras.metrics.Mean(name="g_loss")

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile()
        self.d_optimizer, self.g_optimizer, self.loss_fn = d_optimizer, g_optimizer, loss_fn

    @property
    def metrics(self):
        return [self.d_loss, self.g_loss]

    def _descend(self, optimizer, part, real, labels):
        with tf.GradientTape() as tape:
            made = self.generator(keras.random.normal((tf.shape(real)[0], 3), seed=self.seed))
            loss = self.loss_fn(labels, self.discriminator(tf.concat([made, real], 0)))
        optimizer.apply_gradients(zip(tape.gradient(loss, part.trainable_weights), part.trainable_weights))
        return loss

    def train_step(self, real):
        ones = tf.ones((tf.shape(real)[0], 1))
        self.d_loss.update_state(self._descend(self.d_optimizer, self.discriminator, real, tf.concat([ones, 0 * ones], 0)))
        self.g_loss.update_state(self._descend(self.g_optimizer, self.generator, real, tf.concat([0 * ones, 0 * ones], 0)))
        return {each.name: each.result() for each in self.metrics}

class Death(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch
    def on_train_batch_end(self, batch, logs=None):
        die_at(self.epoch, batch)

keras.utils.set_random_seed(5)
with strategy.scope():
    made = [
        keras.Sequential([keras.Input((width,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(outputs)])
        for width, outputs in ((8, 1), (3, 8))
    ]
    model = Gan(*made)
    model.compile(keras.optimizers.Adam(0.01), keras.optimizers.Adam(0.02), keras.losses.BinaryCrossentropy(from_logits=True))
found = model.fit(x, batch_size=8, epochs=3, verbose=0, callbacks=[Death()])
print("END", [found.history, float(sum(abs(each).sum() for each in model.get_weights()))], flush=True)
"""
)
FITS = (
    COMPILED
    + """
class Death(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch
    def on_train_batch_end(self, batch, logs=None):
        die_at(self.epoch, batch)

data = tf.data.Dataset.from_tensor_slices((x, y)).cache().shuffle(48, seed=1).repeat(2).batch(16)
found = []
for first in (0, 2):
    files = [keras.callbacks.BackupAndRestore(f"backup-{first}"), keras.callbacks.CSVLogger("log.csv", append=first > 0)]
    made = model.fit(data, epochs=first + 2, initial_epoch=first, verbose=0, callbacks=[*files, Death()])
    found.append([made.epoch, made.history, open("log.csv").read() if TASK == "worker-0" else ""])
print("END", json.dumps(found, default=float))
"""
)
COORDINATED = """
import json, os, signal
import tensorflow as tf
import worker

strategy = worker.strategy()  # workers and parameter servers stay in here
with strategy.scope():
    count = tf.Variable(0, dtype=tf.int64)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
saver = worker.checkpoints(count=count, every=10)
print("BEGIN", saver.steps, int(count), flush=True)

@tf.function
def compute():
    count.assign_add(1)

def kill(name):
    with open(os.path.join(os.environ["ORCH_RUN_DIR"], "events.jsonl")) as file:
        pids = {one["task"]: one["pid"] for one in map(json.loads, file) if one["event"] == "task_started"}
    os.kill(pids[name], signal.SIGKILL)

while saver.steps < 60:
    coordinator.schedule(compute)
    saver.step()
    if os.environ["ORCH_ATTEMPT"] == "1" and saver.steps in (24, 35):
        coordinator.join()
        kill("worker-1" if saver.steps == 24 else "ps-0")
        if saver.steps == 35:
            while True:
                signal.pause()  # orch stops it; a signal that orch handles in the task ends a pause, too
coordinator.join()
print("END", saver.steps, int(count), flush=True)
"""


def saved(run: RunDir, series: str) -> str:
    """The SHA-256 of all tensors at the end of a training, checked."""
    save = next(saves.list_saves(LOCAL, str(run.path / "checkpoints"), series))
    assert save.is_final
    assert saves.check(LOCAL, save) == ""
    assert save.manifest is not None
    return str(save.manifest["sha256"])


def latest(tmp_path: Path) -> RunDir:
    return RunDir((tmp_path / ".orch/latest").resolve())


def steps_of(*runs: RunDir) -> dict[str, dict[int, tuple[int, ...]]]:
    """What each task has read in each step; a step that was done again must have read the same."""
    found: dict[str, dict[int, tuple[int, ...]]] = {}
    for run in runs:
        for path in run.path.glob("ids-*"):
            for line in path.read_text().splitlines():
                step, *ids = map(int, line.split())
                assert found.setdefault(path.name, {}).setdefault(step, tuple(ids)) == tuple(ids)
    return found


def check_each_once(steps: dict[str, dict[int, tuple[int, ...]]]) -> None:
    for first in range(1, 25, 6):
        ids = [number for of_task in steps.values() for step in range(first, first + 6) for number in of_task[step]]
        assert sorted(ids) == list(range(48)), f"the epoch of step {first}"


def words(done: Any) -> str:
    return " ".join(done.err.split())


def test_a_loop_that_is_killed_twice_ends_as_without(orch: Any, script: Any, tmp_path: Path, uninterrupted: Uninterrupted) -> None:
    """And with a save of which one bit has changed, one that was not finished, and a run that continues another one."""
    program = str(script(LOOP, "loop.py"))
    whole = uninterrupted(LOOP, "-n", "2", *ORDER)
    check_each_once(steps_of(whole))

    deaths = json.dumps({"1": ["worker-1", 14], "2": ["worker-0", 17]})
    on_disk = ("--set", "checkpoints.snapshots=false")
    done = orch("up", program, "-n", "2", *ORDER, *on_disk, "--max-restarts", "2", env={"DEATHS": deaths, "DAMAGE": "1"}, check=0)
    killed = latest(tmp_path)
    said = words(done)
    assert "loop-1/step-0000000012-epoch is damaged and stays aside: model.safetensors: the bytes of" in said
    assert "step-0000000010 is used" in said
    assert "loop-1 continues at step 10 (epoch 2, after 4 batches)" in said
    assert "the training had finished step 13: 3 steps are done again" in said
    assert "loop-1 continues at step 15 (epoch 3, after 3 batches)" in said
    assert steps_of(killed) == steps_of(whole)
    assert saved(killed, "loop-1") == saved(whole, "loop-1")
    names = {path.name for path in (killed.path / "checkpoints/loop-1").iterdir()}
    assert "step-0000000012-epoch.damaged-1" in names
    assert "step-0000000099" not in names
    shown = orch("checkpoints", "--verify", killed.run_id, check=1)
    assert "step-0000000012-epoch.damaged-1" in shown.out
    assert "end of the training, attempt 3" in shown.out
    (series,) = json.loads(orch("checkpoints", "--json", killed.run_id, check=0).out)
    assert [row["step"] for row in series["saves"] if row["is_next"]] == [24]
    assert series["reached"] == 24

    orch("up", program, "-n", "2", *ORDER, env={"DEATHS": json.dumps({"1": ["worker-1", 9]}), "DAMAGE": "1"}, check=137)
    ended = latest(tmp_path)
    done = orch("up", program, "-n", "2", "--resume", ended.run_id, check=0)
    assert "loop-1 continues at step 6 (epoch 2, after 0 batches), saved" in words(done)
    assert f"by attempt 1 of {ended.run_id}; the training had finished step 8: 2 steps are done again" in words(done)
    assert saved(latest(tmp_path), "loop-1") == saved(whole, "loop-1")
    assert steps_of(ended, latest(tmp_path)) == steps_of(whole)


def test_a_coordinator_loses_nothing_with_a_worker_and_the_steps_since_the_save_with_a_ps(orch: Any, script: Any, tmp_path: Path) -> None:
    done = orch("up", str(script(COORDINATED, "ps.py")), "-n", "2", "--ps", "1", "--max-restarts", "3", check=0)
    past = json.loads((latest(tmp_path).path / "result.json").read_text())["past"]
    assert [each["task"] for each in past] == ["worker-1", ""], "the worker alone, and then the whole cluster"
    assert "under ParameterServerStrategy a restart is not exact" in words(done)
    assert "loop-1 continues at step 30" in words(done)
    assert "the training had scheduled step 35: 5 steps are done again" in words(done)
    (began, count), (steps, end) = (map(int, pair) for pair in re.findall(r"(?:BEGIN|END) (\d+) (\d+)", done.out)[-2:])
    assert (began, steps) == (30, 60)
    assert count >= 30
    assert end == count + 30


@pytest.mark.parametrize("keras", ["3", "2"])
def test_fit_that_is_killed_twice_ends_as_without(orch: Any, script: Any, tmp_path: Path, uninterrupted: Uninterrupted, keras: str) -> None:
    """`History`, and the state of callbacks and metrics, included. The script knows nothing of orch. With Keras 3, arrays, and saves on the
    disk alone; with Keras 2 (tf-keras) and a dataset."""
    text, saved_by, env = FIT, ("--set", "checkpoints.snapshots=false"), dict[str, str]()
    if keras == "2":
        if find_spec("tf_keras") is None:
            pytest.skip("NOT TESTED: tf-keras is not installed here")
        text, saved_by, env = FIT_OF_KERAS_2, ("--keras", "legacy"), {"DATA": "dataset"}
    program = str(script(text, "fit.py"))
    whole = uninterrupted(text, *FIT_OPTIONS, *(saved_by if keras == "2" else ()), **env)
    deaths = json.dumps({"1": ["worker-1", 1, 4], "2": ["worker-0", 2, 1]})
    options = ("up", program, *FIT_OPTIONS, *saved_by, "--set", "checkpoints.every=4", "--max-restarts", "2")
    done = orch(*options, env={**env, "DEATHS": deaths}, check=0)
    began = [int(step) for step in re.findall(r"fit-1 continues at step (\d+)", words(done))]
    assert [step > 0 for step in began] == [True, True], "a save is written in the background, so the newest may be lost"
    check_as(latest(tmp_path), whole)


def test_a_gan_whose_optimizers_are_built_in_its_first_step_ends_as_without(
    orch: Any, script: Any, tmp_path: Path, uninterrupted: Uninterrupted
) -> None:
    program, deaths = str(script(GAN, "gan.py")), json.dumps({"1": ["worker-1", 1, 2]})
    whole = uninterrupted(GAN, *FIT_OPTIONS)
    done = orch("up", program, *FIT_OPTIONS, "--max-restarts", "1", env={"DEATHS": deaths}, check=0)
    assert re.search(r"fit-1 continues at step [1-9]", words(done)), done.err
    check_as(latest(tmp_path), whole)


def test_two_fits_with_a_backup_of_keras_and_one_log_end_as_without(
    orch: Any, script: Any, tmp_path: Path, uninterrupted: Uninterrupted
) -> None:
    """The data shuffle within an epoch. The backup begins at the epoch of the restart; the log has the rows of both."""
    deaths = json.dumps({"1": ["worker-1", 1, 2], "2": ["worker-0", 3, 3]})
    whole, again = uninterrupted(FITS, *FIT_OPTIONS), ("--set", "checkpoints.every=4", "--max-restarts", "2")
    done = orch("up", str(script(FITS, "fits.py")), *FIT_OPTIONS, *again, env={"DEATHS": deaths}, check=0)
    assert re.search(r"fit-2 continues at step [1-9]", words(done)), done.err
    assert "begins a dataset again" not in words(done)
    check_as(latest(tmp_path), whole)


def check_as(run: RunDir, whole: RunDir) -> None:
    """Whether a `fit` has ended as the one without a restart."""
    ends = [sorted(line for log in one.path.glob("attempt-*/worker-*/stdout.log") for line in end_of(log)) for one in (run, whole)]
    assert len(ends[0]) == 2
    assert ends[0] == ends[1]
    assert saved(run, "fit-1") == saved(whole, "fit-1")


def end_of(log: Path) -> list[str]:
    return [f"{log.parent.name} {line}" for line in log.read_text().splitlines() if line.startswith("END [")]


@pytest.mark.core
def test_a_training_continues_with_its_snapshot_in_memory(orch: Any, script: Any, tmp_path: Path, uninterrupted: Uninterrupted) -> None:
    """The first steps have a snapshot each. No step that was finished is lost, though no save on the disk is due, and whoever dies: one of
    the workers, or all at once, or a worker that gets SIGTERM in a step which takes longer than the grace."""
    program = str(script(LOOP.replace("every=5", "every=1000"), "loop.py"))
    whole = uninterrupted(LOOP, "-n", "2", *ORDER)
    options = ("up", program, "-n", "2", *ORDER, "--set", "checkpoints.keep=9", "--max-restarts", "3", "--set", "timeouts.grace_s=1")
    deaths = {"1": ["worker-1", 4], "2": ["all", 6], "3": ["step of worker-1", 9]}
    done = orch(*options, env={"DEATHS": json.dumps(deaths)}, check=0)
    assert "loop-1 continues at step 3 (epoch 1, after 3 batches)" in words(done)
    assert "loop-1 continues at step 5 (epoch 1, after 5 batches)" in words(done)
    assert "loop-1 continues at step 8 (epoch 2, after 2 batches)" in words(done)
    assert "worker-1 received SIGTERM; the training did not save itself in time" in words(done)
    assert "(restart 3 of 3)" in words(done), "it counts"
    assert words(done).count(" in memory; no step is lost") == 3
    assert orch("checkpoints", "--verify", check=0).out.count("snapshot in memory, attempt") == 3
    assert steps_of(latest(tmp_path)) == steps_of(whole)
    assert saved(latest(tmp_path), "loop-1") == saved(whole, "loop-1")


@pytest.mark.root
def test_hosts_keep_snapshots_when_all_tasks_die_and_when_one_host_is_lost(
    orch: Any, bed: Bed, script: Any, tmp_path: Path, uninterrupted: Uninterrupted
) -> None:
    """One worker on each of two hosts, which have the directory of the saves in common. The training continues with the snapshots of
    all tasks, then with that of the worker whose host is not lost, and then with those of both hosts. The end is that of a training on one
    host."""
    text = LOOP.replace("every=5", "every=1000").replace('os.path.join(os.environ["ORCH_RUN_DIR"], f"ids-{TASK}")', "os.devnull")
    on_hosts = ("-H", "hostA,hostB", "--set", f"backend.ssh={json.dumps(bed.ssh)}", "--set", f"checkpoints.dir={tmp_path / 'saves'}")
    options = ("up", str(script(text, "loop.py")), *on_hosts, *ORDER, "--set", "restart.lost_host=retry", "--env", f"PYTHONPATH={ROOT}")

    def weights(base: Path) -> dict[str, str]:
        save = next(saves.list_saves(LOCAL, str(base), "loop-1"))
        assert save.is_final
        return {name: one["sha256"] for name, one in (save.manifest or {})["files"][saves.MODEL]["tensors"].items()}

    deaths = json.dumps({"1": ["all", 4], "2": ["agent of worker-1", 9], "3": ["worker-0", 17]})
    done = orch(*options, "--max-restarts", "3", "--env", f"DEATHS={deaths}", check=0, timeout=300)
    said = words(done)
    assert re.search(r"loop-1 continues at step 3 .{,60} by attempt 1 in memory; no step is lost", said)
    # A snapshot of the last steps may be there, or not: this follows from how long a step and a snapshot take.
    assert re.search(r"loop-1 continues at step [78] .{,60} by attempt 2 in memory; ", said)
    assert "worker-1 is lost with its host" in said
    began = re.search(r"loop-1 continues at step (\d+) .{,60} by attempt 3 in memory; ", said)
    assert began is not None
    assert 8 < int(began[1]) <= 16, "each of the first steps of an attempt has a snapshot"
    assert weights(tmp_path / "saves" / latest(tmp_path).run_id) == weights(uninterrupted(LOOP, "-n", "2", *ORDER).path / "checkpoints")


@pytest.mark.soak
@pytest.mark.timeout(5400)
@pytest.mark.parametrize(("text", "series"), [(LOOP, "loop-1"), (FIT, "fit-1")])
def test_whenever_it_is_killed_it_ends_as_without(
    orch: Any, script: Any, tmp_path: Path, uninterrupted: Uninterrupted, soaks: bool, text: str, series: str
) -> None:
    """One worker, the other or both are killed, five times (`make chaos`: ten, with ten seeds) in a training of 24 or 18 steps: while they
    start, restore, compute, make a snapshot in memory, or write a save on the disk."""
    script(text, "train.py")
    check_whenever_killed(orch, tmp_path, series, uninterrupted, soaks=soaks)


def check_whenever_killed(orch: Any, tmp_path: Path, series: str, uninterrupted: Uninterrupted, *, soaks: bool) -> None:
    """With `soaks`, the two tests that call this kill at more than a hundred moments."""
    seeds, kills = (10, 10) if soaks else (1, 5)
    options = ("up", "train.py", *FIT_OPTIONS, "--set", "checkpoints.every=3", "--set", "timeouts.grace_s=1", "--max-restarts", "12")
    rules = ("--set", "restart.without_progress=0", "--set", "restart.backoff_s=0")
    moments = 0
    for seed in range(seeds):
        env = {"DATA": "dataset"} if series == "fit-1" and seed % 2 else {}
        if series == "loop-1":
            whole, env = uninterrupted(LOOP, *FIT_OPTIONS, OPTIMIZER="AdamW"), {"OPTIMIZER": "AdamW"}
        else:
            whole = uninterrupted(FIT, *FIT_OPTIONS, **env)
        orch(*options, *rules, env={**env, "KILLS": str(kills), "SEED": str(seed)}, check=0, timeout=600)
        killed = latest(tmp_path)
        moments += len(list(killed.path.glob("attempt-*"))) - 1
        print(f"seed {seed}: killed at {moments} moments so far")
        assert saved(killed, series) == saved(whole, series), f"seed {seed}"
        assert steps_of(killed) == steps_of(whole), f"seed {seed}"
    assert moments > seeds * kills // 2, "the trainings were over before they were killed often"
