"""`orch verify` with real trainings: what is the same is called the same, and each planted error is named with its line."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from orchestrator.testing import assert_same_training
from tests.conftest import ROOT

PROGRAM = ROOT / "tests/programs/same_training.py"
LINES = {found[1]: number for number, line in enumerate(PROGRAM.read_text().splitlines(), 1) if (found := re.search(r"# HERE (\w+)", line))}
_TEXT = PROGRAM.read_text()
SAME = tuple(dict.fromkeys(re.findall(r'word == "(\w+)"', _TEXT.partition("def wrong")[0])))
WRONG = {
    "wrong_term": ("loss", 2.0),
    "wrong_regularizer": ("loss", 2.0),
    "wrong_loop": ("loss", 2.0),
    "wrong_bn": ("gradient", None),
    "wrong_batch": ("batch", 2.0),
    "wrong_rate": ("rate", 2.0),
    "wrong_shard": ("rows", None),
    "wrong_constant": ("gradient", None),
    "wrong_contrast": ("gradient", None),
    "wrong_start": ("start", None),
    "wrong_by_hand": ("variable", 2.0),
    "wrong_apart": ("apart", None),
    "wrong_never": ("rows", None),
    "wrong_order": ("rows", None),
    "wrong_clip": ("gradient", None),
    "wrong_accumulator": ("gradient", 2.0),
    "wrong_memory": ("gradient", None),
}
"""The kind of the first difference, and how many times the number of one process it is."""
SAID = {
    "wrong_never": "all workers read the same ones; divide the data",
    "wrong_order": "the workers have the data in other orders",
    "wrong_clip": "the program changes those of each replica, as by clipping, before they are added",
    "wrong_accumulator": "the program adds up the gradients of the replicas, and the optimizer adds them again",
}
"""The cause that is named."""
DEADLINE_S = 400.0


def verify(word: str, home: Path, *more: str, tasks: tuple[str, ...] = ("-n", "2")) -> tuple[int, str]:
    """The exit code and the output of `orch verify` for one of the trainings."""
    command = [sys.executable, "-m", "orchestrator", "verify", str(PROGRAM), *tasks, "--home", str(home), *more, "--", word]
    temporary = home / "temporary"
    temporary.mkdir()
    env = {**os.environ, "TMPDIR": str(temporary)}
    done = subprocess.run(command, cwd=home, env=env, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode in (0, 1), done.stderr
    assert list(temporary.iterdir()) == []
    return done.returncode, done.stdout


def _assert_named(word: str, home: Path) -> None:
    code, output = verify(word, home, "--json")
    found = json.loads(output)
    first = found["findings"][0]
    kind, ratio = WRONG[word]
    assert code == 1
    assert (found["same"], first["kind"], first["step"]) == (False, kind, 2 if word == "wrong_memory" else 1), found
    assert SAID.get(word, "") in f"{first['what']}; {first['remedy']}"
    assert (first["ratio"] is None) if ratio is None else first["ratio"] == pytest.approx(ratio, rel=0.02)
    if word in LINES:
        assert first["place"].endswith(f"same_training.py:{LINES[word]}"), found


def test_a_fit_is_the_same_training_on_two_workers_in_interpreters_of_their_own(tmp_path: Path) -> None:
    code, output = verify("fit", tmp_path, "--set", "preload=[]")
    assert code == 0
    assert re.match(r"the same training as in one process: 5 steps, 80 rows, 4 variables, largest difference \de-0[5-9]\n", output)
    page = subprocess.run(
        [sys.executable, "-m", "orchestrator", "report", "--home", str(tmp_path / "verify"), "-o", str(tmp_path / "page.html")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert page.stderr == ""
    assert "the same training as in one process: 5 steps, 80 rows" in (tmp_path / "page.html").read_text()
    assert len(list((tmp_path / "verify/runs").iterdir())) == 1


def test_a_term_that_counts_twice_is_named_with_its_line(tmp_path: Path) -> None:
    _assert_named("wrong_term", tmp_path)
    (run,) = (tmp_path / "verify/runs").iterdir()
    assert "tasks are forked from the warm process" in (run / "events.jsonl").read_text(), "each world has imported TensorFlow for itself"


def test_a_comparison_that_is_ended_leaves_nothing(tmp_path: Path) -> None:
    temporary = Path(tempfile.mkdtemp(prefix="orch-ended-", dir="/tmp"))
    try:
        command = [sys.executable, "-m", "orchestrator", "verify", str(PROGRAM), "-n", "2", "--home", str(tmp_path), "--", "fit"]
        process = subprocess.Popen(command, env={**os.environ, "TMPDIR": str(temporary)})
        until = time.monotonic() + DEADLINE_S
        while not list(temporary.glob("orch-*/orch/warm.log")):
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 143
        assert list(temporary.iterdir()) == []
    finally:
        shutil.rmtree(temporary)


def test_a_test_asserts_that_a_loop_is_the_same_training(tmp_path: Path) -> None:
    (found,) = assert_same_training(PROGRAM, "loop", workers=(1, 2), steps=3, timeout=DEADLINE_S, home=tmp_path)
    assert (found.workers, found.steps, found.rows, found.variables) == (2, 3, 48, 4)
    assert 0 <= found.largest < 1e-4
    with pytest.raises(AssertionError, match=rf"the loss counts 2 times: .*same_training\.py:{LINES['wrong_loop']}"):
        assert_same_training(PROGRAM, "wrong_loop", steps=2, timeout=DEADLINE_S, home=tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("word", "kind"), [("fit", ""), ("loop", ""), ("wrong_loop", "loss")])
def test_the_replicas_of_a_mirrored_strategy_are_compared_with_one(word: str, kind: str, tmp_path: Path) -> None:
    code, output = verify(word, tmp_path, "--json", "--strategy", "mirrored", "--cpus", "2", tasks=())
    found = json.loads(output)
    assert (code, found["same"], found["workers"]) == (int(bool(kind)), not kind, 2)
    assert [each["kind"] for each in found["findings"]][:1] == [kind][: len(kind)]


@pytest.mark.slow
@pytest.mark.parametrize("word", SAME)
def test_there_is_no_false_alarm(word: str, tmp_path: Path) -> None:
    code, output = verify(word, tmp_path)
    assert (code, output.startswith("the same training as in one process: 5 steps")) == (0, True), output
    assert not (tmp_path / "saved").exists()  # where the program saves after each step, in three ways


@pytest.mark.slow
@pytest.mark.parametrize("word", WRONG)
def test_each_planted_error_is_named(word: str, tmp_path: Path) -> None:
    _assert_named(word, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("word", "code"), [("fit", 0), ("wrong_loop", 1)])
def test_a_run_begins_only_if_its_first_steps_are_those_of_one_process(word: str, code: int, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "orchestrator", "up", str(PROGRAM), "-n", "2", "--home", str(tmp_path), "--set", "verify.before=2"]
    done = subprocess.run([*command, "--", word], cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == code, done.stderr
    told = "not the same training as in one process: the loss counts 2 times" if code else "the same training as in one process: 2 steps"
    assert f"orch: {told}" in done.stderr
    assert re.search(r"orch: note: to compare 2 steps with one process took \d+\.\d s", done.stderr)
    assert (tmp_path / "runs").exists() is not bool(code)


_ALONE = """
import fcntl
import os
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
file = Path(__file__).with_name(os.environ["ORCH_TASK"]).open("w")
fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # it fails while another process has this file
with strategy.scope():
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
rows = np.random.RandomState(0).rand(40, 4).astype("float32")
model.fit(tf.data.Dataset.from_tensor_slices((rows, rows[:, :1])).batch(8), verbose=0)
"""


@pytest.mark.slow
def test_programs_that_need_a_file_for_themselves_run_one_after_the_other(tmp_path: Path) -> None:
    place = tmp_path / "program"  # not in the directory for temporary files
    place.mkdir()
    (place / "train.py").write_text(_ALONE)
    command = [sys.executable, "-m", "orchestrator", "verify", str(place / "train.py"), "-n", "2", "--home", str(tmp_path)]
    done = subprocess.run(
        command, cwd=place, env={**os.environ, "TMPDIR": "/dev/shm"}, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert (done.returncode, done.stdout.partition(", largest")[0]) == (
        0,
        "the same training as in one process: 5 steps, 40 rows, 2 variables",
    )
    assert len(list((tmp_path / "verify/runs").iterdir())) == 1
