"""What to do, for texts that CPython, TensorFlow 2.21 and Keras 3.15 have printed.

The copy to a GPU that has no room is as users of TensorFlow report it: it was not provoked here.
"""

from __future__ import annotations

import dataclasses
import os
import re
import traceback
import types
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from orchestrator.model.cause import keras_2_names, remedies
from orchestrator.model.state.cluster import TaskStatus
from tests import golden
from worker.protocol.messages import Evidence, Failure
from worker.settings import keras_settings

INSTALL = "/opt/py/bin/python -m pip install --no-deps 'tf-keras~=2.21.0'"


def failed(kind: str, message: str) -> TaskStatus:
    failure = Failure(kind, message, f"Traceback …\n{kind}: {message}\n", 1.0)
    return TaskStatus("worker-0", "a", code=1, failure=failure, evidence=Evidence(python="/opt/py/bin/python", tensorflow="2.21.0"))


@golden.cases("remedies.txt")
def test_a_known_failure_has_its_remedy(case: golden.Case) -> None:
    """The kind of the exception, and its message."""
    kind, _, message = case.given.replace(r"\x1b", "\x1b").partition("\n")
    case.check(remedies.find(failed(kind, message)).text)


@golden.cases("remedies_of_logs.txt")
def test_a_program_that_is_not_python_is_judged_by_the_end_of_its_log(case: golden.Case) -> None:
    """The exit code, and the last words of the log."""
    code, _, words = case.given.partition("\n")
    case.check(remedies.find(TaskStatus("worker-0", "a", code=int(code), evidence=Evidence(last_words=f"{words}\n"))).text)


def test_where_python_names_the_right_word_orch_is_silent() -> None:
    message = "module 'keras.layers' has no attribute 'Dens'"
    task = failed("AttributeError", message)
    assert "--keras legacy" not in remedies.find(task).text, "Keras 2 has no such name either: keras_2_names.INSTEAD has those that it has"
    failure = Failure("AttributeError", message, f"Traceback …\nAttributeError: {message}. Did you mean: 'Dense'?\n", 1.0)
    assert remedies.find(dataclasses.replace(task, failure=failure)).text == ""


def test_a_dataset_without_batches_is_known_by_the_frame_of_tensorflow() -> None:
    frame = '  File "/x/site-packages/tensorflow/python/data/experimental/ops/distribute.py", line 376, in get_static_batch_dim\n'
    failure = Failure("IndexError", "list index out of range", f"{frame}    return output_shape.dims[0].value\n", 1.0)
    task = failed("", "")
    assert ".batch(N)" in remedies.find(dataclasses.replace(task, failure=failure)).text
    other = dataclasses.replace(failure, traceback='  File "train.py", line 3, in <module>\n')
    assert remedies.find(dataclasses.replace(task, failure=other)) == remedies.NONE


def test_a_file_that_lies_one_directory_deeper_is_named() -> None:
    missing = Failure("FileNotFoundError", "[Errno 2] No such file or directory: '/w/data/cats'", "", 1.0)
    for near, is_keras in (("/w/data/pets/cats", False), ("/w/data/pets_extracted/cats", True)):
        found = remedies.find(dataclasses.replace(failed("", ""), failure=dataclasses.replace(missing, near=near)))
        assert found.about == "a-file-that-is-not-found"
        assert f"{near} is there" in found.text
        assert ("get_file(extract=True)" in found.text) is is_keras


class Monitor:
    def on_epoch_end(self, logs: Mapping[str, float]) -> None:
        self.best = logs[os.environ.get("MONITOR", "val_loss")]


@pytest.mark.parametrize(
    ("raising", "said"),
    [
        (lambda: os.environ["DATA"], "--env DATA=VALUE"),
        (lambda: os.environ["VC_TASK_INDEX"], "orch does not set VC_TASK_INDEX"),
        (lambda: os.environ["JOB_COMPLETION_INDEX"], "orch does not set JOB_COMPLETION_INDEX"),
        (lambda: os.environ["SLURM_JOB_NUM_NODES"], "orch does not set SLURM_JOB_NUM_NODES"),
        (lambda: os.environ["SLURM_TMPDIR"], "--env SLURM_TMPDIR=VALUE"),
        (lambda: int(os.getenv("OMPI_COMM_WORLD_RANK")), "orch does not set OMPI_COMM_WORLD_RANK"),  # type: ignore[arg-type]
        (lambda: os.environ.get("VC_WORKER_HOSTS").split(","), "orch does not set VC_WORKER_HOSTS"),  # type: ignore[union-attr]
        (lambda: os.path.join(os.environ.get("DATA"), "x"), "--env DATA=VALUE"),  # type: ignore[arg-type]
        (lambda: len(os.environ.get("DATA", "x").strip), ""),  # type: ignore[arg-type]
        (lambda: {"TASK_INDEX": 1}["JOB_COMPLETION_INDEX"], ""),
        (lambda: Monitor().on_epoch_end({"loss": 0.5}), "fit has reported no val_loss: names with val_ need validation_data="),
        (lambda: types.SimpleNamespace(history={"loss": [0.5]}).history["acc"], "fit has reported no acc: its names are loss, those of"),
        (lambda: types.SimpleNamespace(history={"loss": [0.5]}).history[3], ""),
        (lambda: (lambda history: history["acc"])({"loss": [0.5]}), ""),
        (lambda: {"a": 1}[os.environ.get("NONE", "b")], ""),
    ],
)
def test_what_is_missing_has_a_remedy_where_the_last_line_tells_what_was_read(raising: Callable[[], object], said: str) -> None:
    with pytest.raises((KeyError, TypeError, AttributeError)) as raised:
        raising()
    trace = "".join(traceback.format_exception(raised.value))
    failure = Failure(raised.type.__name__, str(raised.value), trace, 1.0)
    found = remedies.find(dataclasses.replace(failed("KeyError", ""), failure=failure)).text
    assert (said in found) if said else found == ""


def test_an_assertion_of_a_strategy_without_a_word_is_a_model_outside_of_the_scope() -> None:
    frame = '  File "/venv/keras/src/backend/tensorflow/optimizer.py", line 134, in _distributed_tf_update_step\n    {}\n'
    found = []
    for line in ("distribution.extended.update(", "assert x"):
        failure = Failure("AssertionError", "", f"{TRACEBACK}{frame.format(line)}AssertionError\n", 1.0)
        found.append(remedies.find(dataclasses.replace(failed("AssertionError", ""), failure=failure)).about)
    assert found == ["made-outside-of-the-scope", ""]


TRACEBACK = "Traceback (most recent call last):\n"
SCRIPT = f'{TRACEBACK}  File "/w/train.py", line 1, in <module>\n    import absl\n'
PACKAGE = '  File "/venv/lib/python3.11/site-packages/absl/app.py", line 1, in <module>\n    import random\n'
RANDOM = '  File "/w/random.py", line 3, in <module>\n    random.random()\n'
IMPORTLIB = (
    '  File "/usr/lib/python3.11/importlib/__init__.py", line 126, in import_module\n'
    "    return _bootstrap._gcd_import(name[level:], package, level)\n"
    '  File "<frozen importlib._bootstrap>", line 1204, in _gcd_import\n'
)
CAUGHT = f"{SCRIPT}{PACKAGE}KeyError: 'x'\n\nDuring handling of the above exception, another exception occurred:\n\n"


@pytest.mark.parametrize(
    ("trace", "message", "name"),
    [
        (SCRIPT + PACKAGE + RANDOM, "'module' object is not callable", "random"),
        (f'{SCRIPT}{PACKAGE}  File "<frozen importlib._bootstrap>", line 1, in f\n{RANDOM}', "bad", "random"),
        (SCRIPT + PACKAGE + IMPORTLIB + RANDOM, "a package that imports by name", "random"),
        (SCRIPT.replace("/w/train", "/w/tasks/train") + PACKAGE + RANDOM, "python -m tasks.train", "random"),
        (CAUGHT + SCRIPT + PACKAGE + RANDOM, "bad", "random"),
        (SCRIPT + PACKAGE, "cannot import name 'Random' from 'random' (/w/random.py)", "random"),
        (SCRIPT + PACKAGE, "cannot import name 'Random' from 'random' (/usr/lib/python3.11/random.py)", ""),
        (f'{SCRIPT}{PACKAGE}  File "/w/model.py", line 3, in <module>\n', "bad", ""),
        (f'{SCRIPT}{PACKAGE}  File "/w/random.py", line 3, in build\n', "a function of the user that a package calls", ""),
        (f'{SCRIPT}  File "/w/queue.py", line 3, in <module>\n', "its own error", ""),
        ((CAUGHT + SCRIPT).replace("/w/train", "/w/test"), "raised while another one was handled", ""),
        (SCRIPT + IMPORTLIB + RANDOM, "a file that the user's code imports by name", ""),
        (SCRIPT + IMPORTLIB + RANDOM.replace("/w/", "/w/tasks/"), "importlib.import_module('tasks.random')", ""),
        (SCRIPT + PACKAGE + IMPORTLIB + RANDOM.replace("/w/", "/w/tasks/"), "a package that imports tasks.random by name", ""),
    ],
)
def test_a_file_that_hides_a_module_from_a_package_is_named(trace: str, message: str, name: str) -> None:
    task = dataclasses.replace(failed("TypeError", message), failure=Failure("TypeError", message, trace, 1.0))
    remedy = remedies.find(task).text
    assert (f"rename {name}.py, " in remedy) if name else ("it hides the module" not in remedy)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("AttributeError", "module 'keras' has no attribute 'Sequential'"),
        ("ModuleNotFoundError", "No module named 'keras.layers'; 'keras' is not a package"),
        ("AttributeError", "module 'tensorflow' has no attribute 'constant'"),
    ],
)
def test_a_file_that_hides_a_module_from_the_script_is_named(kind: str, message: str) -> None:
    name = message.split("'")[1].partition(".")[0]
    task = dataclasses.replace(failed(kind, message), failure=Failure(kind, message, TRACEBACK, 1.0, name))
    assert f"rename {name}.py, " in remedies.find(task).text


def test_every_remedy_is_reached() -> None:
    known = [case.answer for case in golden.read(Path(__file__).with_name("remedies.txt"))]
    all_advice = {remedy.text for remedy in (*remedies.ABOUT_NAMES.values(), *remedies.OTHERS.values())}
    tabled = {
        advice for advice in all_advice for instead in keras_2_names.INSTEAD.values() if instead in advice
    }  # tests/real/test_keras_2.py
    for advice in all_advice - tabled:
        assert any(_is_of(advice, found) for found in known), advice


def _is_of(advice: str, found: str) -> bool:
    return re.match(re.sub(r"\\\{\w+\\\}", ".+", re.escape(advice)), found) is not None


def test_where_the_version_of_tensorflow_is_not_known_the_command_says_so() -> None:
    assert keras_settings.install_keras_2("", "") == "python -m pip install --no-deps 'tf-keras~=MAJOR.MINOR.0'"
    assert keras_settings.install_keras_2("/p", "of unknown version") == "/p -m pip install --no-deps 'tf-keras~=MAJOR.MINOR.0'"
    assert keras_settings.install_keras_2("/p", "2.21.0-rc1") == "/p -m pip install --no-deps 'tf-keras~=2.21.0'"


def test_for_a_tensorflow_without_a_keras_2_another_one_is_named() -> None:
    said = keras_settings.install_keras_2("/p", "2.22.0rc0")
    assert said == "choose a Python with TensorFlow 2.21 and tf-keras 2.21 (--python), because orch knows no tf-keras for TensorFlow 2.22"


def test_a_killed_task_ran_out_of_memory_only_if_the_kernel_says_so() -> None:
    seen = Evidence(out_of_memory="the kernel killed a process in its memory cgroup")
    assert remedies.find(TaskStatus("worker-0", "a", code=137, evidence=seen)).text.startswith(
        "likely out of memory: the kernel killed a process in"
    )
    assert "out of memory" not in remedies.find(TaskStatus("worker-0", "a", code=137)).text


def test_a_server_that_left_is_told_otherwise_than_a_worker() -> None:
    task = TaskStatus("worker-0", "a", code=0)
    assert "--set serve=true" in remedies.find(task, serves=True).text
    assert remedies.find(task).text.startswith("look for a return or sys.exit() before the training: worker-0 took no step")
    assert remedies.find(dataclasses.replace(task, report={"step": 3})).text.startswith("give all workers the same calls")
