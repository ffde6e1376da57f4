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

import pytest

from orchestrator.model.cause import keras_2_names, remedies
from orchestrator.model.state.cluster import TaskStatus
from worker.protocol.messages import Evidence, Failure
from worker.settings import keras_settings

TF = "tensorflow.python.framework.errors_impl."
ON_GPU = "on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc"
INSTALL = "/opt/py/bin/python -m pip install --no-deps 'tf-keras~=2.21.0'"
FAILURES = [
    (
        "ModuleNotFoundError",
        "No module named 'frobnicate'",
        "install frobnicate in /opt/py/bin/python, or choose",
    ),
    ("EOFError", "EOF when reading a line", "a task has no keyboard"),
    (
        TF + "InvalidArgumentError",
        "{{function_node __wrapped__AddV2_device_/job:localhost/task:0/device:CPU:0}} Incompatible shapes: [2] vs. [3] [Op:AddV2]",
        "the shapes [2] and [3] do not fit",
    ),
    (
        TF + "InvalidArgumentError",
        "Serialized sparse should have at least 1 serialized tensor, but has a zero dimension [0,3]",
        "TensorFlow cuts no batch with fewer sparse rows than replicas",
    ),
    (
        "TypeError",
        "BaseOptimizer.apply_gradients() got an unexpected keyword argument 'experimental_aggregate_gradients'",
        "leave the argument out, and your own all_reduce",
    ),
    (
        "TypeError",
        "CollectiveAllReduceStrategy.__init__() got an unexpected keyword argument 'num_workers'",
        "a strategy takes no num_workers: the number of workers comes from orch up -n N",
    ),
    (
        "ValueError",
        "Exception encountered when calling Sequential.call().\n\n\x1b[1mInput 0 with name 'None' of layer 'dense' is incompatible with "
        "the layer: expected axis -1 of input shape to have value 9, but received input with shape (None, 8)\x1b[0m\n\nArguments",
        "dense takes 9 values in axis -1, and the data is (None, 8)",
    ),
    (
        "ValueError",
        "Input 0 with name 'None' of layer 'conv2d' is incompatible with the layer: expected min_ndim=4, found ndim=3. Full shape "
        "received: (None, 28, 28)",
        "conv2d takes data of min_ndim=4 axes, the first is the batch, and got 3: x[None]",
    ),
    (
        "ValueError",
        "Arguments `target` and `output` must have the same rank (ndim). Received: target.shape=(None,), output.shape=(None, 3)",
        "labels that are numbers of classes need a loss with Sparse in its name",
    ),
    (
        "ValueError",
        "Argument `output` must have rank (ndim) `target.ndim - 1`. Received: target.shape=(None, 3), output.shape=(None, 3)",
        "one-hot labels one without",
    ),
    ("ValueError", "Could not interpret optimizer identifier: adm", "no optimizer of the name adm; did you mean adam? (https"),
    (
        "ValueError",
        "Could not interpret activation function identifier: rellu",
        "no activation of the name rellu; did you mean relu?",
    ),
    ("ValueError", "Could not interpret loss identifier: of_mine", "no loss of the name of_mine (https://keras.io/api lists all)"),
    ("ValueError", "Unknown metric function: 'acuracy'. Please ensure", "no metric of the name acuracy; did you mean accuracy?"),
    ("FileNotFoundError", "[Errno 2] No such file or directory: 'data/x.npz'", "data/x.npz begins at the directory of orch up"),
    ("FileNotFoundError", "[Errno 2] No such file or directory: '/nodir/m.keras'", "/nodir/m.keras is not on this host, or the directory"),
    ("PermissionError", "[Errno 13] Permission denied: '/root/m.keras'", "the user of the task may not read or write /root/m.keras"),
    (
        f"{TF}InvalidArgumentError",
        "Graph execution error:\n\nReceived a label value of 1 which is outside the valid range of [0, 1).  Label values: 1 0 1",
        "a label is 1, and the last layer has 1 outputs",
    ),
    (
        "AttributeError",
        "partially initialized module 'tensorflow' has no attribute 'constant' (most likely due to a circular import)",
        "is called tensorflow.py: it hides the module tensorflow",
    ),
    ("bdb.BdbQuit", "", "a task has no keyboard"),
    ("orch.Fault", "exact order of a step: orch's own code has failed: KeyError: 'x' (optimizer.py:1)", "this is a fault of orch"),
    (
        f"{TF}InternalError",
        "Graph execution error:\n\nDelete called on non-empty BufRendezvous",
        "make one MultiWorkerMirroredStrategy before all trainings",
    ),
    (
        f"{TF}FailedPreconditionError",
        "Collective ops is aborted by: group 1 not found. This normally means the server has restarted",
        "make one MultiWorkerMirroredStrategy before all trainings",
    ),
    ("ValueError", "There is no id for task_type 'ps'", "leave out --ps (ps: in orch.yaml), or make ParameterServerStrategy in the script"),
    ("OSError", "[Errno 28] No space left on device", "the disk is full"),
    ("OSError", "[Errno 122] Disk quota exceeded: 'x'", "the disk is full"),
    ("OSError", "[Errno 98] Address already in use", "a port was taken"),
    ("OSError", "[Errno 24] Too many open files: 'x'", "ulimit -n"),
    (
        f"{TF}ResourceExhaustedError",
        "{{function_node __wrapped__WriteFile}} /dev/full; No space left on device [Op:WriteFile]",
        "the disk is full",
    ),
    (
        f"{TF}ResourceExhaustedError",
        "OOM when allocating tensor with shape[1048576,1048576,64] and type float on "
        "/job:localhost/replica:0/task:0/device:CPU:0 by allocator cpu [Op:Fill] name: ",
        "less data at once",
    ),
    (
        f"{TF}ResourceExhaustedError",
        f"OOM when allocating tensor with shape[8] and type float {ON_GPU}",
        "--memory-growth or --gpu-memory MB",
    ),
    (f"{TF}InternalError", "failed call to cuInit: CUDA_ERROR_OUT_OF_MEMORY: out of memory", "--memory-growth or --gpu-memory MB"),
    (
        f"{TF}InternalError",
        "Failed copying input tensor from /job:localhost/replica:0/task:0/device:CPU:0 to /job:localhost/replica:0/task:0/device:GPU:0 "
        "in order to run _EagerConst: Dst tensor is not initialized.",
        "--memory-growth or --gpu-memory MB",
    ),
    ("MemoryError", "", "less data at once"),
    (
        f"{TF}InvalidArgumentError",
        "{{function_node __wrapped__IteratorGetNextAsOptional}} Could not apply FILE based sharding: the dataset only has 1 file(s), "
        "which is not enough for the required 2 shards/workers. If you are using datasets with distribution strategy, consider [...]",
        "--auto-shard data, or at least 2 files (1 now)",
    ),
    (
        f"{TF}NotFoundError",
        'Found an unshardable source dataset: name: "RangeDataset/_3"',
        "this dataset reads no files that could be shared out: --auto-shard data",
    ),
    ("numpy._core._exceptions._ArrayMemoryError", "Unable to allocate 8.00 PiB for an array", "less data at once"),
    (f"{TF}UnknownError", "Could not start gRPC server", "a port was taken"),
    ("RuntimeError", "Collective ops must be configured at program startup", "make the strategy before anything else"),
    ("RuntimeError", "Mixing different tf.distribute.Strategy objects: <a> is not <b>", "all inside of `with strategy.scope():`"),
    (
        "ValueError",
        "Attempt to convert a value (PerReplica:{\n  0: <tf.Tensor: shape=(2, 2), dtype=float32, numpy=\narray([[1., 1.]], "
        "dtype=float32)>\n}) with an unsupported type (<class 'tensorflow.python.distribute.values.PerReplica'>) to a Tensor.",
        "without --keras off; or Keras 2",
    ),
    ("ValueError", "Invalid reduction dimension 0 for input with 0 dimensions", "without --keras off; or Keras 2"),
    (
        "ValueError",
        "Invalid reduction dimension 0 for input with 0 dimensions",
        "pip install 'keras>=3.10,<3.17'",
    ),
    (
        "ValueError",
        "To use this dataset, you need to pass this dataset to ClusterCoordinator.create_per_worker_dataset.",
        "write the training loop yourself (examples/parameter_server.py)",
    ),
    (
        f"{TF}InvalidArgumentError",
        "Collective ops is aborted by: Shape mismatch in the collective instance 116. Op at device /job:worker/replica:0/task:0 "
        "expected shape [1] but another member in the group expected shape [0].",
        "batch(…, drop_remainder=True): a worker's part of a batch had no rows",
    ),
    (
        f"{TF}InvalidArgumentError",
        "Failed to get element from worker 127.0.0.1:50239: Failed to get an element, with a nonretryable error: Failed to get element: "
        "ValueError: Could not find callback with key=pyfunc_1 in the registry.",
        "apply it after distribute()",
    ),
    ("ModuleNotFoundError", "No module named 'horovod'", "in place of Horovod"),
    ("ModuleNotFoundError", "No module named 'tensorboard'", "or leave its summaries and its callback out"),
    ("ModuleNotFoundError", "No module named 'pkg_resources'", "/opt/py/bin/python -m pip install 'setuptools<82'"),
    (
        "tensorflow.python.summary.tb_summary.TBNotInstalledError",
        "TensorBoard is not installed, missing implementation for tf.summary.scalar",
        "/opt/py/bin/python -m pip install tensorboard",
    ),
    ("RuntimeError", "SLURM_PROCID not found in environment. Not running inside a SLURM step?", "orch sets no SLURM_PROCID"),
    (
        f"{TF}AlreadyExistsError",
        "There appears to be a concurrent caching iterator running - cache lockfile already exists ('c/train_0.lockfile'). If you are sure",
        "if no other run writes this cache now: rm c/train_*.lockfile",
    ),
    (
        f"{TF}NotFoundError",
        "Graph execution error:\n\nc/train_0.lockfile; No such file or directory\n",
        "the directory of the cache c/train",
    ),
    (
        "FileNotFoundError",
        "[Errno 2] No such file or directory: '/home/me/.keras/datasets/d/t.txt'",
        "Keras 3 returns the directory NAME_extracted",
    ),
    ("RuntimeError", "`merge_call` called while defining a new graph or a tf.function. This can", "gradient_accumulation_steps=4"),
    (
        "ValueError",
        "Only instances of `keras.Layer` can be added to a Sequential model. Received: <tensorflow_hub.keras_layer.KerasLayer object "
        "at 0x7f> (of type <class 'tensorflow_hub.keras_layer.KerasLayer'>)",
        "tensorflow_hub has layers of Keras 2: use Keras 2 for all",
    ),
    ("ImportError", "tensorflow_recommenders requires tf.keras to be Keras version 2. Got Keras version 3.15", "--keras legacy"),
    (
        "ValueError",
        "A KerasTensor cannot be used as input to a TensorFlow function. A KerasTensor is",
        "use keras.ops or a layer of your own",
    ),
    ("ValueError", "Please provide a TPU Name to connect to.", "--tpu local for the TPU of this machine"),
    (f"{TF}NotFoundError", "TPUs not found in the cluster. Failed in initialization: No OpKernel was", "the package tensorflow-tpu"),
    # What scripts for TensorFlow 1 and for Keras 2 run into; tests/real/test_remedies.py has TensorFlow say the like.
    ("AttributeError", "module 'tensorflow' has no attribute 'estimator'", "migrate/migrating_estimator"),
    ("ModuleNotFoundError", "No module named 'tensorflow_estimator'", "migrate/migrating_estimator"),
    ("ModuleNotFoundError", "No module named 'tensorflow.examples'", "of a script for TensorFlow 1"),
    ("ImportError", "cannot import name 'logging' from 'tensorflow' (/x/tensorflow/__init__.py)", "tf_upgrade_v2 --infile SCRIPT"),
    ("AttributeError", "module 'tensorflow._api.v2.train' has no attribute 'AdamOptimizer'", "of a script for TensorFlow 1"),
    ("RuntimeError", "tf.placeholder() is not compatible with eager execution.", "of a script for TensorFlow 1"),
    ("ModuleNotFoundError", "No module named 'tensorflow.foo'", "the TensorFlow in /opt/py/bin/python has no tensorflow.foo"),
    ("ImportError", "Keras cannot be imported. Check that it is installed.", f"{INSTALL} installs Keras 2 for"),
    ("ModuleNotFoundError", "No module named 'tf_keras'", INSTALL),
    ("AttributeError", "module 'keras.callbacks' has no attribute 'experimental'", "tf.keras.callbacks.BackupAndRestore"),
    ("ImportError", "`keras.optimizers.legacy` is not supported in Keras 3. When using `tf.keras`, to continue", "without `legacy`"),
    (
        "AttributeError",
        "'Mean' object has no attribute 'reset_states'",
        f"and a model none; or Keras 2, --keras legacy (to install: {INSTALL})",
    ),
    ("AttributeError", "'Adam' object has no attribute 'lr'", "Keras 3 has learning_rate for lr"),
    ("AttributeError", "'Sequential' object has no attribute 'fit_generator'", "fit, evaluate and predict of Keras 3 take generators"),
    ("ValueError", "The filename must end in `.weights.h5`. Received: filepath=w", ".weights.h5 (for weights)"),
    ("ValueError", "The filepath provided must end in `.keras` (Keras model format). Received: filepath=w", ".keras (for a model)"),
    ("ValueError", "Invalid filepath extension for saving. Please add either a `.keras` extension", "model.export(path)"),
    ("ValueError", "Argument(s) not recognized: {'lr': 0.1}", "learning_rate for lr"),
    ("AttributeError", "module 'keras._tf_keras.keras.layers' has no attribute 'DenseFeatures'", "Keras 3 has nothing of that name"),
    ("ModuleNotFoundError", "No module named 'keras.engine'", "neither Keras 3 nor Keras 2 has this name"),
    ("ValueError", "Argument(s) not recognized: {'nonsense': 0.1}", "leave the argument out, which Keras 3 does not take"),
]


def failed(kind: str, message: str) -> TaskStatus:
    failure = Failure(kind, message, f"Traceback …\n{kind}: {message}\n", 1.0)
    return TaskStatus("worker-0", "a", code=1, failure=failure, evidence=Evidence(python="/opt/py/bin/python", tensorflow="2.21.0"))


@pytest.mark.parametrize(("kind", "message", "remedy"), FAILURES)
def test_a_known_failure_has_its_remedy(kind: str, message: str, remedy: str) -> None:
    assert remedy in remedies.find(failed(kind, message)).text


def test_where_python_names_the_right_word_orch_is_silent() -> None:
    message = "module 'keras.layers' has no attribute 'Dens'"
    task = failed("AttributeError", message)
    assert "--keras legacy" not in remedies.find(task).text, "Keras 2 has no such name either: keras_2_names.INSTEAD has those that it has"
    failure = Failure("AttributeError", message, f"Traceback …\nAttributeError: {message}. Did you mean: 'Dense'?\n", 1.0)
    assert remedies.find(dataclasses.replace(task, failure=failure)).text == ""


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
        (lambda: os.environ["VC_TASK_INDEX"], "orch sets no VC_TASK_INDEX"),
        (lambda: os.environ["JOB_COMPLETION_INDEX"], "orch sets no JOB_COMPLETION_INDEX"),
        (lambda: os.environ["SLURM_JOB_NUM_NODES"], "orch sets no SLURM_JOB_NUM_NODES"),
        (lambda: os.environ["SLURM_TMPDIR"], "--env SLURM_TMPDIR=VALUE"),
        (lambda: int(os.getenv("OMPI_COMM_WORLD_RANK")), "orch sets no OMPI_COMM_WORLD_RANK"),  # type: ignore[arg-type]
        (lambda: os.environ.get("VC_WORKER_HOSTS").split(","), "orch sets no VC_WORKER_HOSTS"),  # type: ignore[union-attr]
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
    assert (f"is called {name}.py: it hides" in remedy) if name else ("it hides the module" not in remedy)


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
    assert f"is called {name}.py: it hides" in remedies.find(task).text


def test_every_remedy_is_reached() -> None:
    tasks = [failed(kind, message) for kind, message, _ in FAILURES]
    all_advice = {remedy.text for remedy in (*remedies.ABOUT_NAMES.values(), *remedies.OTHERS.values())}
    tabled = {
        advice for advice in all_advice for instead in keras_2_names.INSTEAD.values() if instead in advice
    }  # tests/real/test_keras_2.py
    for advice in all_advice - tabled:
        assert any(_is_of(advice, remedies.find(task).text) for task in tasks), advice


def _is_of(advice: str, found: str) -> bool:
    return re.match(re.sub(r"\\\{\w+\\\}", ".+", re.escape(advice)), found) is not None


def test_where_the_version_of_tensorflow_is_not_known_the_command_says_so() -> None:
    assert keras_settings.install_keras_2("", "") == "python -m pip install --no-deps 'tf-keras~=MAJOR.MINOR.0'"
    assert keras_settings.install_keras_2("/p", "of unknown version") == "/p -m pip install --no-deps 'tf-keras~=MAJOR.MINOR.0'"
    assert keras_settings.install_keras_2("/p", "2.21.0-rc1") == "/p -m pip install --no-deps 'tf-keras~=2.21.0'"


def test_for_a_tensorflow_without_a_keras_2_another_one_is_named() -> None:
    said = keras_settings.install_keras_2("/p", "2.22.0rc0")
    assert said == "choose a Python with TensorFlow 2.21 and tf-keras 2.21 (--python), because orch knows no tf-keras for TensorFlow 2.22"


@pytest.mark.parametrize(
    ("kind", "message"), [("ValueError", "boom"), ("KeyError", "'evaluator'"), ("OSError", "[Errno 5] Input/output error")]
)
def test_what_is_not_known_has_none(kind: str, message: str) -> None:
    assert remedies.find(failed(kind, message)).text == ""


def test_a_killed_task_ran_out_of_memory_only_if_the_kernel_says_so() -> None:
    seen = Evidence(out_of_memory="the kernel killed a process in its memory cgroup")
    assert remedies.find(TaskStatus("worker-0", "a", code=137, evidence=seen)).text.startswith(
        "likely out of memory: the kernel killed a process in"
    )
    assert "out of memory" not in remedies.find(TaskStatus("worker-0", "a", code=137)).text


@pytest.mark.parametrize(
    ("code", "words", "remedy"),
    [
        (
            1,
            "Traceback (most recent call last):\n  File 'x'\nModuleNotFoundError: No module named 'a.b'\n",
            "install a.b in the tasks' Python",
        ),
        (1, "MemoryError\n", "less data at once"),
        (134, "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n", "less data at once"),
        (127, "./run.sh: line 3: frobnicate: command not found\n", "a program was not found"),
        (139, "", "a crash in native code"),
        (3, "it did not work\n", ""),
        (2, "usage: t.py [-h] --x X\nt.py: error: the following arguments are required: --x\n", "orch up SCRIPT -- --x VALUE"),
        (2, "usage: t.py [-h] --x X\nt.py: error: argument --x: invalid int value: 'a'\n", "orch up SCRIPT -- --epochs 5"),
        (2, "usage: t.py [-h]\nt.py: error: no such model\n", ""),
    ],
)
def test_a_program_that_is_not_python_is_judged_by_the_end_of_its_log(code: int, words: str, remedy: str) -> None:
    found = remedies.find(TaskStatus("worker-0", "a", code=code, evidence=Evidence(last_words=words))).text
    assert (remedy in found) if remedy else found == ""


def test_a_server_that_left_is_told_otherwise_than_a_worker() -> None:
    task = TaskStatus("worker-0", "a", code=0)
    assert "--set serve=true" in remedies.find(task, serves=True).text
    assert remedies.find(task).text.startswith("worker-0 took no step: look for a return or a sys.exit()")
    assert remedies.find(dataclasses.replace(task, report={"step": 3})).text.startswith("give all workers the same number of steps")
