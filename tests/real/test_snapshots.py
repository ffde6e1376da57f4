"""A worker that is killed, or that hangs, costs at most about the last second of the training, which ends with the same bits.

Each program trains several models, one after the other, and in each training another worker dies. A step takes a third of a second, and no
save on the disk is due but that of the end of an epoch. The end has the SHA-256 of all saved tensors that it has without a restart.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.record.run_directory import RunDir
from tests.real.test_resume import FIT, FIT_OPTIONS, HEAD, ORDER, Uninterrupted, check_as, latest, saved, steps_of, words

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.usefixtures("warm_tensorflow")]

STEP_S = 0.3
LOOPS = (
    HEAD
    + """
import worker
# TensorFlow's optimizer of graphs takes a third of the time here. The programs of test_resume.py train with it, and so does `fit` below.
tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
strategy = tf.distribute.MultiWorkerMirroredStrategy()
PACKS = {"decay": 100, "sparse": 100}  # bytes: so the gradients of these models are added in several packs
SGD, AdamW = keras.optimizers.SGD, keras.optimizers.AdamW
dense = keras.layers.Dense

def weights(seed):
    return {"kernel_initializer": keras.initializers.GlorotUniform(seed)}

CASES = {
    "momentum": (lambda: [dense(16, "relu", **weights(1)), keras.layers.Dropout(0.3, seed=3)], lambda: SGD(0.01, momentum=0.9)),
    "decay": (lambda: [dense(16, "relu", **weights(1)), keras.layers.Dropout(0.3, seed=3)], lambda: AdamW(0.01, weight_decay=0.1)),
    "statistics": (lambda: [dense(16, **weights(1)), keras.layers.BatchNormalization()], lambda: AdamW(0.01, use_ema=True)),
    "sparse": (
        lambda: [keras.layers.Embedding(9, 4, embeddings_initializer=keras.initializers.GlorotUniform(1)), keras.layers.Flatten()],
        lambda: keras.optimizers.Adam(0.01),
    ),
}

def fill(path):  # the disk
    with open(path, "wb", buffering=0) as file:
        for size in (1 << 12, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                pass

def train(case):
    make_layers, make_optimizer = CASES[case]
    options = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=PACKS.get(case, 0))
    strategy.extended._communication_options = options  # as its constructor sets them
    with strategy.scope():
        model = keras.Sequential([keras.Input((8,)), *make_layers(), dense(1, **weights(2))])
        optimizer, metric = make_optimizer(), keras.metrics.MeanAbsoluteError()
        saver = worker.checkpoints(model=model, optimizer=optimizer, metric=metric, every=1000)
    data = np.abs(x * 3).astype("int32") % 9 if case == "sparse" else x
    dataset = tf.data.Dataset.from_tensor_slices((data, y, np.arange(48))).shuffle(48).batch(3)
    after = dict(one.split(":") for one in os.environ.get("AFTER", "").split()).get(case, "")
    filled = os.path.join(os.environ.get("DISK", ""), "filled")
    if after == "full" and TASK == "worker-0" and os.path.exists(filled):
        os.unlink(filled)

    @tf.function
    def step(batch):
        def of_replica(batch):
            inputs, wanted, _ = batch
            with tf.GradientTape() as tape:
                found = model(inputs, training=True)
                loss = tf.reduce_mean((found - wanted) ** 2) / strategy.num_replicas_in_sync
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
            metric.update_state(wanted, found)
            if after == "clip":
                model.trainable_variables[0].assign(tf.clip_by_value(model.trainable_variables[0], -0.5, 0.5))
            return loss
        return strategy.reduce("SUM", strategy.run(of_replica, args=(batch,)), axis=None)

    with open(os.path.join(os.environ["ORCH_RUN_DIR"], f"ids-{case}-{TASK}"), "a") as seen:
        for epoch in saver.epochs(1):
            for batch in saver.batches(dataset):
                at = saver.steps + 1
                time.sleep(float(os.environ.get("PACE", 0)))
                if DEATH and TASK in DEATH[0].split() and DEATH[1:] == [case, at]:
                    if after == "full":
                        fill(filled)
                    os.kill(os.getpid(), {"stop": signal.SIGSTOP}.get(after, signal.SIGKILL))
                print(at, *strategy.experimental_local_results(batch[2])[0].numpy(), file=seen, flush=True)
                loss = step(batch)
                if after == "pull":
                    for variable in model.trainable_variables:
                        variable.assign(variable * 0.99)
                saver.step(loss=loss)

for case in os.environ.get("CASES", "momentum decay statistics sparse").split():
    train(case)
"""
)
OPTIONS = ("-n", "3", *ORDER)


def run(orch: Any, deaths: dict[str, list[Any]], *options: str, **env: str) -> str:
    """What a run says in which some workers die."""
    env = {"DEATHS": json.dumps(deaths), "PACE": str(STEP_S), **env}
    return words(orch("up", "loops.py", *OPTIONS, "--max-restarts", str(len(deaths)), *options, env=env, check=0, timeout=300))


def check_lost(said: str, series: str, finished: int, by: str = r"attempt \d+") -> int:
    """Whether a training has lost about the last second, or the interval that a line has told, of the steps that were finished. Returns the
    number of the lost steps."""
    told = [float(seconds) for seconds in re.findall(r"so one is made every (\d+) s", said)]
    longest = max([1.5, *(2 * seconds for seconds in told)])
    found = re.search(rf"{series} continues at step (\d+) .{{,80}} by {by} in memory; (?:no step is lost|the training had)", said)
    assert found is not None, said
    lost = finished - int(found[1])
    assert 0 <= lost <= longest / STEP_S
    return lost


def check(tmp_path: Path, whole: RunDir, *numbers: int) -> None:
    killed = latest(tmp_path)
    for number in numbers:
        assert saved(killed, f"loop-{number}") == saved(whole, f"loop-{number}"), f"training {number}"
    found, wanted = steps_of(killed), steps_of(whole)
    assert found == {name: wanted[name] for name in found}


def test_a_killed_worker_costs_about_a_second(orch: Any, script: Any, tmp_path: Path, uninterrupted: Uninterrupted) -> None:
    """Momentum, the decay of AdamW with dropout, statistics of BatchNormalization with moving averages of the weights, and gradients of an
    embedding. Each of the workers dies once, and two of them at once. With gradients in one pack; and, for two of the models, in several.
    """
    script(LOOPS, "loops.py")
    places = [("worker-1", "momentum", 12), ("worker-0", "decay", 11), ("worker-2", "statistics", 15), ("worker-0 worker-2", "sparse", 12)]
    whole = uninterrupted(LOOPS, *OPTIONS)
    said = run(orch, {str(attempt): list(place) for attempt, place in enumerate(places, 1)})
    lost = [check_lost(said, f"loop-{number}", at - 1, f"attempt {number}") for number, (_, _, at) in enumerate(places, 1)]
    assert any(lost), "not each step has a snapshot"
    check(tmp_path, whole, *range(1, len(places) + 1))
    for case in ("momentum", "decay", "statistics", "sparse"):
        of_case = [steps for name, steps in steps_of(whole).items() if name.startswith(f"ids-{case}-")]
        assert len(of_case) == 3
        assert sorted(each for steps in of_case for of_step in steps.values() for each in of_step) == list(range(48))


def test_a_stopped_worker_costs_about_a_second(orch: Any, script: Any, tmp_path: Path, uninterrupted: Uninterrupted) -> None:
    script(LOOPS, "loops.py")
    whole = uninterrupted(LOOPS, *OPTIONS)
    said = run(orch, {"1": ["worker-1", "momentum", 12]}, "--hang-timeout", "25", CASES="momentum", AFTER="momentum:stop")
    check_lost(said, "loop-1", 11)
    # Whoever sees it first, orch or TensorFlow.
    cause = r"\(--hang-timeout\); worker-1 \(stopped by SIGSTOP\) did not come|lost worker-1 \([^)]+\), which was stopped \(SIGSTOP\)"
    assert re.search(rf"attempt 1 ended after .{{,200}}({cause})", said)
    check(tmp_path, whole, 1)


@pytest.mark.root
def test_a_disk_that_is_full_when_a_snapshot_is_saved_leaves_the_save_before(
    orch: Any, script: Any, tmp_path: Path, uninterrupted: Uninterrupted, mounted: Callable[[str], Path]
) -> None:
    """There is no save before: the training begins anew."""
    script(LOOPS, "loops.py")
    whole = uninterrupted(LOOPS, *OPTIONS)
    disk = mounted("size=2m")
    deaths = {"1": ["worker-1", "momentum", 12]}
    said = run(orch, deaths, "--set", f"checkpoints.dir={disk}", CASES="momentum", AFTER="momentum:full", DISK=str(disk))
    why = r"the snapshot in memory of \S+/loop-1 is not saved: No space left on device; an older checkpoint is used"
    assert re.search(why, said)
    orch("report", "-o", "page.html", check=0)
    assert re.search(why, (tmp_path / "page.html").read_text())
    assert (
        "loop-1 begins at step 0, for there is no complete checkpoint; the training had finished step 11: 11 steps are done again" in said
    )
    (found,) = disk.glob("*/loop-1/*-final/manifest.json")
    assert json.loads(found.read_text())["sha256"] == saved(whole, "loop-1")


def test_what_a_program_does_beside_the_optimizer_is_in_a_snapshot(
    orch: Any, script: Any, tmp_path: Path, uninterrupted: Uninterrupted
) -> None:
    """A change of the weights in the step itself, or by Python after it."""
    script(LOOPS, "loops.py")
    env = {"CASES": "decay momentum", "AFTER": "decay:clip momentum:pull"}
    whole = uninterrupted(LOOPS, *OPTIONS, **env)
    said = run(orch, {"1": ["worker-1", "decay", 12], "2": ["worker-0", "momentum", 11]}, **env)
    check_lost(said, "loop-1", 11)
    check_lost(said, "loop-2", 10)
    check(tmp_path, whole, 1, 2)


def test_fit_that_is_killed_costs_about_a_second(orch: Any, script: Any, tmp_path: Path, uninterrupted: Uninterrupted) -> None:
    """`History`, the callbacks and the metrics of the epoch included."""
    program = str(script(FIT, "fit.py"))
    whole = uninterrupted(FIT, *FIT_OPTIONS)
    deaths = json.dumps({"1": ["worker-1", 1, 4], "2": ["worker-0", 2, 3]})
    options = ("up", program, *FIT_OPTIONS, "--set", "checkpoints.every=1000", "--max-restarts", "2")
    said = words(orch(*options, env={"DEATHS": deaths, "PACE": str(STEP_S)}, check=0))
    # A worker kills itself before orch has noted its step; the other one may have finished the step, or not.
    check_lost(said, "fit-1", 11, "attempt 1")
    check_lost(said, "fit-1", 16, "attempt 2")
    check_as(latest(tmp_path), whole)
