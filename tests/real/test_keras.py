"""Keras under several workers: the cut of the judge in each of its worlds, other releases of Keras, and parameter servers."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator.testing import TaskFailed, cluster
from tests.conftest import ROOT, Orch
from tests.judge import cases, cut, findings
from tests.judge.__main__ import install
from tests.judge.tasks import Unit
from tests.judge.verdicts import ABSENT, AS_ONE, BAD, SAYS_SO
from tests.judge.worlds import ALONE, OLDEST, WORLDS, Answers, World, judge_world
from tests.live import LiveRun

assert cases  # importing them has filled the list of the judge

DEADLINE_S = 900

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(2 * DEADLINE_S), pytest.mark.slow, pytest.mark.usefixtures("warm_tensorflow")]

TABLE = ROOT / "docs" / "keras.md"
SERVERS = "| of Keras 2's API, under ParameterServerStrategy | |\n"
"""The header of the table of the tests with parameter servers: its rows with yes, in the order of the page, are these cases."""
SERVED = (
    *("dataset_creator", "datasets_and_validation", "numpy_arrays", "steps_per_execution", "early_stopping_and_plateaus"),
    *("evaluate", "predict", "files", "backup_and_restore"),
)
Cases = dict[str, dict[str, Any]]

needs_keras_2 = pytest.mark.skipif(
    importlib.util.find_spec("tf_keras") is None,
    reason="NOT TESTED: tf-keras is not installed here (pip install --no-deps tf-keras, of TensorFlow's version)",
)


def installed(version: str) -> Path:
    """Where this release of Keras is; its dependencies are installed."""
    try:
        return install(version)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"NOT TESTED: pip cannot install Keras {version}: {error}")


def judged(world: World, units: Sequence[Unit], directory: Path) -> dict[Unit, Answers]:
    packages = {world.keras: installed(world.keras)} if world.keras else {}
    return judge_world(world, list(units), directory, packages, lambda text: print(text, flush=True))


def verdicts(world: World, answers: dict[Unit, Answers], reference: dict[Unit, Answers]) -> findings.Words:
    found = findings.verdicts({world.name: answers, world.reference: reference}, {world.name: world})
    print(*findings.wrong(found), sep="\n")
    return findings.words(found)


def in_the_table(world: str, units: Sequence[Unit]) -> findings.Words:
    """What `make judge` has found of the same units."""
    table: findings.Words = findings.read()["rows"]
    return {
        row: {world: {form: table[row][world][form] for form in case.forms if (case.name, form) in units}}
        for row, case in findings.row_names().items()
        if any(name == case.name for name, _ in units)
    }


@pytest.mark.parametrize(
    ("name", "units"),
    [*(pytest.param("two", units, id=part) for part, units in cut.TWO.items()), pytest.param("two-of-two", cut.TWO_OF_TWO, id="2 x 2")],
)
def test_the_judge_finds_again_what_the_table_says(tmp_path: Path, name: str, units: tuple[Unit, ...]) -> None:
    reference = judged(WORLDS["one"], units, tmp_path / "one")
    answers = judged(WORLDS[name], units, tmp_path / "world")
    assert verdicts(WORLDS[name], answers, reference) == in_the_table(name, units)
    warned = {case for (case, _), of_tasks in answers.items() for answer in of_tasks.values() if "computes a loss" in str(answer["lines"])}
    assert warned <= {"a train_step and a test_step, without call(): a GAN"}, "a line about the program's own train_step, and it has none"


@needs_keras_2
def test_two_workers_give_with_keras_2_what_one_process_gives_or_say_so(tmp_path: Path) -> None:
    world = WORLDS["two-keras-2"]
    reference = judged(WORLDS["one-keras-2"], cut.KERAS_2, tmp_path / "one")
    found = verdicts(world, judged(world, cut.KERAS_2, tmp_path / "world"), reference)
    assert found == in_the_table(world.name, cut.KERAS_2)
    assert {word for of_row in found.values() for word in of_row[world.name].values()} == {ABSENT, AS_ONE, SAYS_SO}


@pytest.mark.parametrize(("version", "units"), [(OLDEST, cut.OLDER), ("3.11.3", cut.BETWEEN), ("3.12.4", cut.BETWEEN)])
def test_two_workers_give_with_an_older_keras_what_one_process_gives(tmp_path: Path, version: str, units: tuple[Unit, ...]) -> None:
    """One release for each form of what is replaced; the installed one is the newest."""
    one, two = World("one", "one process", ALONE, keras=version), World("two", "2 workers", {"workers": 2}, "one", keras=version)
    reference = judged(one, units, tmp_path / "one")
    found = verdicts(two, judged(two, units, tmp_path / "world"), reference)
    assert found == {row: {"two": of_world["two-oldest"]} for row, of_world in in_the_table("two-oldest", units).items()}


@pytest.mark.core
def test_the_page_has_every_row_and_no_bad_word() -> None:
    kept = findings.read()
    assert list(kept["rows"]) == list(findings.row_names())
    bad = {(row, world) for row, worlds in kept["rows"].items() for world, forms in worlds.items() if {*forms.values()} & {*BAD}}
    assert bad == set()
    missing = [(row, world) for world in findings.COLUMNS for row in findings.row_names() if not kept["rows"][row].get(world)]
    assert missing == []
    assert findings.table_of_page() == findings.render(kept)
    assert findings.TABLE.read_text() == findings.render_all(kept)


TWO_EPOCHS = {"steps": 40, "epochs": 2}


def run_with_servers(directory: str) -> Cases:
    from tests.programs import keras_servers

    return keras_servers.run(directory)


def back_up_with_servers(directory: str, dies: bool) -> dict[str, Any]:
    from tests.programs import keras_servers

    return keras_servers.backup_and_restore(directory, dies)


@needs_keras_2
def test_keras_2_trains_with_parameter_servers(tmp_path: Path) -> None:
    with cluster(workers=2, ps=1, strategy="parameter_server", keras="legacy", timeout=DEADLINE_S) as c:
        found: Cases = c.run(run_with_servers, str(tmp_path))["chief-0"]
        with pytest.raises(TaskFailed, match="chief-0: SIGKILL"):
            c.run(back_up_with_servers, str(tmp_path), dies=True)
        c.restart()
        found["backup_and_restore"] = c.run(back_up_with_servers, str(tmp_path), dies=False)["chief-0"]
    learnt = [name for name in found if found[name].pop("accuracy", 0) > 0.8]
    assert found == {
        **dict.fromkeys(("dataset_creator", "datasets_and_validation", "numpy_arrays", "steps_per_execution"), TWO_EPOCHS),
        "early_stopping_and_plateaus": TWO_EPOCHS,
        "evaluate": {"is_exact": True, "values": 2},
        "predict": {"shape": [64, 2], "in_order": True},
        "files": {**TWO_EPOCHS, "is_the_same": True, "checkpoints": ["1.keras", "2.keras"]},
        "backup_and_restore": {"steps": 60, "epochs": 2},  # the epochs after the death; the steps before it, too
    }
    assert set(found) == set(SERVED)
    assert len(rows_with_yes(SERVERS)) == len(SERVED), "a row of the page without a case, or the reverse"
    assert set(found) - set(learnt) == {"evaluate", "predict"}


def with_packages(directory: Path) -> dict[str, Any]:
    return {"workers": 2, "env": {"PYTHONPATH": f"{directory}{os.pathsep}{os.environ['PYTHONPATH']}"}, "timeout": DEADLINE_S}


def fit_a_dataset() -> None:
    import keras
    import numpy as np
    import tensorflow as tf

    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(tf.data.Dataset.from_tensor_slices((np.zeros((8, 4)), np.zeros((8, 1)))).batch(4), verbose=0)


def test_fit_of_a_keras_that_is_too_old_is_refused_on_several_workers() -> None:
    """The check of a host has told of it before (tests/worker/host/test_keras_use.py), so that a task prints no line."""
    with cluster(**with_packages(installed("3.9.2"))) as c:
        with pytest.raises(RuntimeError, match="orch: fit on several workers: off, because this release is unknown"):
            c.run(fit_a_dataset)
        assert not [name for name in c.tasks if "this release is unknown" in c.logs(name)]


@pytest.mark.core
def test_fit_of_a_keras_that_orch_does_not_know_ends_all_workers_with_the_remedy(tmp_path: Path) -> None:
    (place,) = importlib.util.find_spec("keras").submodule_search_locations  # type: ignore[union-attr]
    shutil.copytree(place, tmp_path / "packages" / "keras", ignore=shutil.ignore_patterns("*_test.py"))
    trainer = tmp_path / "packages/keras/src/backend/tensorflow/trainer.py"
    before = trainer.read_text()
    trainer.write_text(
        before.replace("def potentially_ragged_concat(tensors):\n", "def potentially_ragged_concat(tensors, otherwise=0):\n")
    )
    assert trainer.read_text() != before
    with cluster(**with_packages(tmp_path / "packages")) as c:
        for _ in range(2):
            with pytest.raises(
                RuntimeError, match=r"orch: fit on several workers: off, because .*potentially_ragged_concat.*pip install 'keras"
            ):
                c.run(fit_a_dataset)
        said = [
            re.findall("^orch: warning: fit on several workers: off, because this release is unknown", c.logs(name), re.M)
            for name in c.tasks
        ]
        assert [len(each) for each in said] == [1, 0]


def rows_with_yes(header: str) -> list[str]:
    """The rows of the table of the docs with this header whose second column begins with yes: their first column."""
    text = TABLE.read_text().partition(header)[2].partition("\n\n")[0]
    return re.findall(r"^\| ([^|]*) \| yes\b", text, re.MULTILINE)


@pytest.mark.parametrize(("mode", "reports"), [("v3", True), pytest.param("legacy", True, marks=needs_keras_2), ("v3", False)])
def test_fit_reports_to_whoever_asks(orch: Orch, script: Any, mode: str, reports: bool) -> None:
    script("""
        import sys
        print("imported ahead:", *{"keras", "tf_keras"} & set(sys.modules))
        import numpy as np, tensorflow as tf
        model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=["mae"])
        model.fit(np.zeros((8, 4)), np.zeros((8, 1)), batch_size=2, epochs=2, verbose=0)
    """)
    done = orch("up", "script.py", "--strategy", "none", "--keras", mode, "--set", f"keras.report={str(reports).lower()}", check=0)
    assert f"imported ahead: {'tf_keras' if mode == 'legacy' else 'keras'}\n" in done.out
    (task,) = json.loads(orch("ps", "--json", check=0).out)["tasks"]
    found = task.get("report") or {}
    assert [found.get("epoch"), found.get("step")] == ([2, 4] if reports else [None, None])
    assert {"steps_per_s", "loss", "mae"}.isdisjoint(found) != reports


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["v3", pytest.param("legacy", marks=needs_keras_2)])
def test_fit_says_how_far_it_is(orch: Orch, script: Any, mode: str, run: LiveRun) -> None:
    script("""
        import time, numpy as np, tensorflow as tf
        slow = tf.keras.callbacks.LambdaCallback(on_train_batch_begin=lambda batch, logs: time.sleep(0.1))
        model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.fit(np.zeros((80, 4)), np.zeros((80, 1)), batch_size=2, epochs=3, verbose=0, callbacks=[slow])
    """)
    orch("up", "script.py", "--strategy", "none", "--keras", mode, check=0)
    events = [json.loads(line) for line in (run.path / "events.jsonl").read_text().splitlines()]
    told = [event["values"]["orch_progress"] for event in events if "orch_progress" in event.get("values", {})]
    assert told[-1] == {"fit": 1, "fraction": 1.0}
    known = [one for one in told if "left_s" in one]
    assert known
    for one in known:
        assert one["fraction"] * 120 == pytest.approx(round(one["fraction"] * 120), abs=0.01), "whole steps"
        assert 0.09 * 120 * (1 - one["fraction"]) <= one["left_s"] < 10 * 120 * (1 - one["fraction"]) + 5


@pytest.mark.parametrize(("mode", "then"), [("v3", "fit"), pytest.param("legacy", "evaluate", marks=needs_keras_2)])
def test_a_model_outside_of_the_scope_is_said_to_train_alone(orch: Orch, script: Any, mode: str, then: str) -> None:
    script(f"""
        import numpy as np, tensorflow as tf
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.fit(np.zeros((8, 4)), np.zeros((8, 1)), batch_size=2, epochs=2, verbose=0)
        with strategy.scope():
            inside = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
            inside.compile("sgd", "mse")
        model.evaluate(np.zeros((8, 4)), np.zeros((8, 1)), verbose=0)
        inside.{then}(np.zeros((8, 4)), np.zeros((8, 1)), batch_size=4, verbose=0)
    """)
    done = orch("up", "script.py", "-n", "2", "--keras", mode, check=0)
    assert len(re.findall("fit trains a model made outside of a strategy's scope", done.out + done.err)) == 1
    remark = "orch:   worker-0..1: a fit has trained a model from outside of the scope of the strategy"
    assert (remark in done.err) == (then != "fit"), "at the end, too, unless a later fit has trained in all workers together"
