"""A worker that is killed costs no finished step, though snapshots in memory are rare: the others keep what they have computed.

Each program trains several models, one after the other, and in each training another worker dies. It ends as without: the same SHA-256 of
all saved tensors. So that nothing else can help, only the first two steps of an attempt have a snapshot in memory.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.record.storage.run_directory import RunDir
from tests.real.test_resume import (
    FIT,
    FIT_OPTIONS,
    HEAD,
    LOOP,
    ORDER,
    Uninterrupted,
    check_as,
    check_whenever_killed,
    latest,
    saved,
    steps_of,
    words,
)

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.usefixtures("warm_tensorflow")]

RARE = """
import gc

def make_snapshots_rare():  # orch and the program have each their own copy of this class
    for kind in [one for one in gc.get_objects() if isinstance(one, type) and one.__name__ == "Schedule"]:
        def made(schedule, seconds):
            schedule._made += 1
            schedule._wait = 1 if schedule._made < 2 else 10**6
        kind.made = made
"""
LOOPS = (
    HEAD
    + RARE
    + """
import contextlib, worker
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

CASES["open"] = CASES["decay"]

def fill(path):  # the disk
    with open(path, "wb", buffering=0) as file:
        for size in (1 << 12, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                pass

def leave_gate_open():  # the optimizer's changes come after its counters, by operations that Python does not see
    from worker.task.snapshots import step_gate
    real = step_gate.StepGate.bracket

    @contextlib.contextmanager
    def bracket(gate, added):
        with real(gate, added):
            pass
        gate.by_python.brackets += 1
        yield
        gate.by_python.brackets -= 1
    step_gate.StepGate.bracket = bracket

def train(case):
    make_layers, make_optimizer = CASES[case]
    options = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=PACKS.get(case, 0))
    strategy.extended._communication_options = options  # as its constructor sets them
    if case == "open":
        leave_gate_open()
    with strategy.scope():
        model = keras.Sequential([keras.Input((8,)), *make_layers(), dense(1, **weights(2))])
        optimizer, metric = make_optimizer(), keras.metrics.MeanAbsoluteError()
        saver = worker.checkpoints(model=model, optimizer=optimizer, metric=metric, every=1000)
    make_snapshots_rare()
    data = np.abs(x * 3).astype("int32") % 9 if case == "sparse" else x
    dataset = tf.data.Dataset.from_tensor_slices((data, y, np.arange(48))).shuffle(48).batch(12)
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
            if after == "norm":
                metric.update_state([0.0], [tf.linalg.global_norm([one.value for one in model.trainable_variables])])
            if after == "clip":
                model.trainable_variables[0].assign(tf.clip_by_value(model.trainable_variables[0], -0.5, 0.5))
            return loss
        return strategy.reduce("SUM", strategy.run(of_replica, args=(batch,)), axis=None)

    with open(os.path.join(os.environ["ORCH_RUN_DIR"], f"ids-{case}-{TASK}"), "a") as seen:
        for epoch in saver.epochs(4):
            for batch in saver.batches(dataset):
                at = saver.steps + 1
                if after == "unequal" and at == 10 and TASK == "worker-1" and ATTEMPT == "1":
                    kernel = model.trainable_variables[0].value.values[0]
                    tf.raw_ops.AssignAddVariableOp(resource=kernel.handle, value=tf.fill(kernel.shape, 1e-3))
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
OPTIONS, OF_TWO = ("-n", "3", *ORDER), ("-n", "2", *ORDER)
BEGIN = "    def on_epoch_begin(self, epoch, logs=None):\n"
RARE_FIT = FIT.replace("class Death(", f"{RARE}\nclass Death(").replace(BEGIN, f"{BEGIN}        make_snapshots_rare()\n")
SAVER = "saver = worker.checkpoints(model=model, optimizer=optimizer, every=5)\n"
RARE_LOOP = LOOP.replace(SAVER, f"{SAVER}{RARE}\nmake_snapshots_rare()\n")


def run(orch: Any, deaths: dict[str, list[Any]], *options: str, **env: str) -> str:
    """What a run says in which some workers die."""
    env = {"DEATHS": json.dumps(deaths), **env}
    return words(orch("up", "loops.py", *OPTIONS, "--max-restarts", str(len(deaths)), *options, env=env, check=0, timeout=300))


def check(tmp_path: Path, whole: RunDir, *numbers: int) -> None:
    """`numbers`: of the trainings."""
    killed = latest(tmp_path)
    for number in numbers:
        assert saved(killed, f"loop-{number}") == saved(whole, f"loop-{number}"), f"training {number}"
    found, wanted = steps_of(killed), steps_of(whole)
    assert found == {name: wanted[name] for name in found}


def test_a_killed_worker_costs_no_finished_step(orch: Any, script: Any, tmp_path: Path, uninterrupted: Uninterrupted) -> None:
    """Momentum, the decay of AdamW with dropout, statistics of BatchNormalization with moving averages of the weights, and gradients of an
    embedding. Each of the workers dies once, and two of them at once. With gradients in one pack; and, for two of the models, in several.
    """
    script(LOOPS, "loops.py")
    places = [("worker-1", "momentum", 12), ("worker-0", "decay", 11), ("worker-2", "statistics", 15), ("worker-0 worker-2", "sparse", 12)]
    whole = uninterrupted(LOOPS, *OPTIONS)
    said = run(orch, {str(attempt): list(place) for attempt, place in enumerate(places, 1)})
    for number, (_, _, at) in enumerate(places, 1):
        assert re.search(
            rf"loop-{number} continues at step {at - 1} .{{,80}} by attempt {number} by those that had survived; no step", said
        )
    check(tmp_path, whole, *range(1, len(places) + 1))
    for case in ("momentum", "decay", "statistics", "sparse"):
        of_case = [steps for name, steps in steps_of(whole).items() if name.startswith(f"ids-{case}-")]
        assert len(of_case) == 3
        for first in range(1, 17, 4):  # four steps are an epoch
            assert sorted(each for steps in of_case for step in range(first, first + 4) for each in steps[step]) == list(range(48))


def test_a_stopped_worker_costs_no_finished_step_and_replicas_that_differ_are_not_saved(
    orch: Any, script: Any, tmp_path: Path, uninterrupted: Uninterrupted
) -> None:
    script(LOOPS, "loops.py")
    whole = uninterrupted(LOOPS, *OPTIONS)
    stopped = run(orch, {"1": ["worker-1", "momentum", 12]}, "--hang-timeout", "25", CASES="momentum", AFTER="momentum:stop")
    # orch continues the worker that was stopped, so that it can end by itself, and it may go on with the training meanwhile.
    assert re.search(r"loop-1 continues at step 1[1-6]\b.{,80} by those that had survived; no step is lost", stopped)
    # Whoever sees it first, orch or TensorFlow.
    cause = r"\(--hang-timeout\); worker-1 \(stopped by SIGSTOP\) did not come|lost worker-1 \([^)]+\), which was stopped \(SIGSTOP\)"
    assert re.search(rf"attempt 1 ended after .{{,200}}({cause})", stopped)
    check(tmp_path, whole, 1)
    unequal = run(orch, {"1": ["worker-2", "momentum", 12]}, CASES="momentum", AFTER="momentum:unequal")
    differ = r"step-0000000011 in memory is not saved: the replicas have diverged: worker-\d has another model/\S*dense\S*/kernel than"
    assert re.search(differ, unequal)
    assert re.search(r"attempt 1 ended after .{,200}worker-2", unequal), "the cause is the worker that was killed"
    check_older_save(unequal)
    check(tmp_path, whole, 1)


def check_older_save(said: str) -> None:
    assert "loop-1 continues at step 8 (epoch 3, after 0 batches), saved" in said, "the end of an epoch is on the disk"
    assert "the training had finished step 11: 3 steps are done again" in said


@pytest.mark.root
def test_a_disk_that_is_full_at_the_save_of_the_survivors_leaves_the_save_before(
    orch: Any, script: Any, tmp_path: Path, uninterrupted: Uninterrupted, mounted: Callable[[str], Path]
) -> None:
    script(LOOPS, "loops.py")
    whole = uninterrupted(LOOPS, *OPTIONS)
    disk = mounted("size=2m")
    deaths = {"1": ["worker-1", "momentum", 12]}
    said = run(orch, deaths, "--set", f"checkpoints.dir={disk}", CASES="momentum", AFTER="momentum:full", DISK=str(disk))
    why = r"the snapshot in memory of \S+/loop-1 is not saved: No space left on device; an older save is taken"
    assert re.search(why, said)
    orch("report", "-o", "page.html", check=0)
    assert re.search(why, (tmp_path / "page.html").read_text())
    check_older_save(said)
    (found,) = disk.glob("*/loop-1/*-final/manifest.json")
    assert json.loads(found.read_text())["sha256"] == saved(whole, "loop-1")


def test_what_a_program_does_beside_the_optimizer_is_named(orch: Any, script: Any, tmp_path: Path, uninterrupted: Uninterrupted) -> None:
    """A change of the weights in the step itself, or by Python after it: a restart continues with the newest save, and ends as without. And
    a metric that reads the new weights: the record of a step cannot come before its gradients are added, so there is none. The same with
    AdamW and no gate: its graph shows which variables it does not hold."""
    script(LOOPS, "loops.py")
    env = {"CASES": "decay momentum statistics open", "AFTER": "decay:clip momentum:pull statistics:norm"}
    whole = uninterrupted(LOOPS, *OF_TWO, **env)
    deaths = {"1": ["worker-1", "decay", 12], "2": ["worker-0", "momentum", 12], "3": ["worker-1", "open", 12], "4": ["nobody", "", 0]}
    said = run(orch, deaths, "-n", "2", **env)
    why = "a worker that is killed may cost the steps since the newest snapshot in memory: model/"
    assert said.count(why) >= 3
    assert "changes also outside of the optimizer's update" in said
    assert re.search(rf"{why}\S+ \(and \d+ other variables\) change also outside of the optimizer's update", said)
    for number in (1, 2, 4):
        assert f"loop-{number} continues at step 8 (epoch 3, after 0 batches), saved" in said, "the end of an epoch is on the disk"
    assert said.count("the training had finished step 11: 3 steps are done again") == 3
    assert "changes after the gradients of the workers are added" in said
    check(tmp_path, whole, 1, 2, 3, 4)


def test_fit_loses_no_step_and_ends_as_without(orch: Any, script: Any, tmp_path: Path, uninterrupted: Uninterrupted) -> None:
    """`History`, the callbacks and the metrics of the epoch included."""
    program = str(script(RARE_FIT, "fit.py"))
    whole = uninterrupted(FIT, *FIT_OPTIONS)
    deaths = json.dumps({"1": ["worker-1", 1, 4], "2": ["worker-0", 2, 3]})
    options = ("up", program, *FIT_OPTIONS, "--checkpoint-every", "1000", "--max-restarts", "2")
    done = orch(*options, env={"DEATHS": deaths}, check=0)
    assert words(done).count("by those that had survived; no step is lost") == 2
    check_as(latest(tmp_path), whole)


@pytest.mark.soak
@pytest.mark.timeout(5400)
@pytest.mark.parametrize(("text", "series"), [(RARE_LOOP, "loop-1"), (RARE_FIT, "fit-1")], ids=["loop", "fit"])
def test_whenever_it_is_killed_it_ends_as_without(
    orch: Any, script: Any, tmp_path: Path, uninterrupted: Uninterrupted, soaks: bool, text: str, series: str
) -> None:
    """As the test of this name in test_resume.py, with few snapshots in memory."""
    script(text, "train.py")
    check_whenever_killed(orch, tmp_path, series, uninterrupted, soaks=soaks)
