"""Defines what a user can do about a failure: one line for the report, for the failures that orch knows.

A remedy claims no more than is known: orch names memory as the reason of a kill only if the kernel has counted a kill. The texts are
those of CPython and its errno table, TensorFlow 2.21 and Keras 3.15. Each was provoked once, except those of GPUs, which users have
reported; tests/model/cause/test_remedies.py has them. docs/why.md has a heading for each remedy, which `orch help HEADING` prints.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import NamedTuple

from worker.protocol.messages import Evidence, Failure
from worker.protocol.task_id import DATA_SERVICE
from worker.settings.keras_settings import install_keras_2
from worker.settings.releases import INSTALL_KERAS, KNOWN_KERAS

from ..settings.findings import nearest
from ..state.cluster import TaskStatus
from . import graph_errors, keras_2_names

_SIGKILL, _SIGABRT, _SIGBUS, _SIGSEGV, _SIGILL = (128 + number for number in (9, 6, 7, 11, 4))


class Remedy(NamedTuple):
    about: str
    """The anchor of the heading in docs/why.md."""
    text: str


NONE = Remedy("", "")
AGAIN = "orch up …"
"""Stands for the command of the same run: the report has its settings in place of the dots."""

_TENSORFLOW_1 = Remedy(
    "names-of-tensorflow-1",
    "tf_upgrade_v2 --infile SCRIPT --outfile NEW    # TensorFlow 2 has no such name; check its spelling first",
)
_TENSORBOARD = Remedy(
    "tensorboard-is-not-installed",
    "{python} -m pip install tensorboard    # or remove its summaries and its callback",
)
_USE_KERAS_2 = "or Keras 2, --keras legacy (to install: {keras_2})"

_NO_KERAS_NAME = Remedy(
    "a-name-that-keras-does-not-have",
    "neither Keras 3 nor Keras 2 has this name; look it up: https://keras.io/guides/migrating_to_keras_3",
)
_KERAS_2_NAME, _NO_KERAS_2 = "names-of-keras-2", "keras-2-is-not-installed"
_SHAPE, _LAYER = "data-of-other-shapes", r"layer ['\"]?(?P<layer>[\w/.-]+)['\"]? is incompatible with the layer: "
_FIT, _NO_TPU, _PORT, _NATIVE = "fit-on-several-workers", "no-tpu", "a-port-was-taken", "a-crash-in-native-code"

_HIDDEN = Remedy(
    "a-script-with-the-name-of-a-module",
    "rename {name}.py, which is the script or a file next to it: it hides the module {name}",
)
_OUTSIDE = Remedy(
    "made-outside-of-the-scope",
    "make the model, the optimizer, the metrics and the variables inside of `with strategy.scope():`",
)
_NO_BATCHES = Remedy(
    "data-without-batches",
    "the dataset has single elements: call .batch(N) on it before it is distributed; the replicas share each batch",
)
_OF_ENGINES = (
    r"(?:(?:SLURMD?|VC|OMPI_COMM_WORLD|PMIX?|MV2_COMM_WORLD|MPI|PALS|ALPS|PBS|SGE|LSB|AWS_BATCH|AZ_BATCH(?:AI)?|SM|SKYPILOT|TASK_REPLICA|"
    r"PADDLE|DMLC|FLUX|HOROVOD|TPU|JSM)_\w*(?:RANK|RANKID|SIZE|ID|INDEX|LIST|NODEFILE|NTASKS|TASKS|NPROCS|NNODES|PER_NODE|HOSTS?|HOSTNAMES|"
    r"ROLE|PROCID|APP_PE|NUM|NODES|NODENAME|NODENUM|TASKNUM|IPADDR))|(?:\w+_)?(?:NODE|GROUP)_RANK"
    r"|(?:\w+_)?(?:TASK|COMPLETION|ALLOC|POD|REPLICA|GLOBAL)_INDEX|PROCID"
)
"""Variables by which engines, or the launchers of other frameworks, tell a process its place in a cluster."""
_ENGINE = Remedy(
    "a-script-that-asks-an-engine",
    "use tf.distribute.MultiWorkerMirroredStrategy() without a resolver: it reads TF_CONFIG. orch does not set {name}",
)
_EXTRACTED = "get_file(extract=True) of Keras 3 returns the directory NAME_extracted: os.path.join(path, NAME)"
_OF_GET_FILE = r"_extracted/|/\.keras/|/datasets/"
_NEAR = Remedy("a-file-that-is-not-found", "look one directory deeper: {near} is there")
# A pattern for the type and the message of an exception, ``ValueError: …``, and the advice. The first match counts. An advice may use the
# groups of its pattern, ``{python}`` (the task's interpreter) and ``{keras_2}`` (the command that installs Keras 2 there).
ABOUT_NAMES = {
    r"partially initialized module '(?P<name>\w+)'": _HIDDEN,
    r"(?:module '(?:tensorflow|keras)[\w.]*' has no attribute|cannot import name) '(?:tf_)?estimator'"
    r"|No module named 'tensorflow(?:_|\.|\.python\.)estimator": Remedy(
        "estimators",
        "train with Keras or with a loop of your own: https://www.tensorflow.org/guide/migrate/migrating_estimator",
    ),
    r"module 'tensorflow(?:\._api\.v2[\w.]*)?' has no attribute|cannot import name '\w+' from 'tensorflow'"
    r"|object has no attribute 'make_(?:one_shot|initializable)_iterator'|No module named 'tensorflow\.(?:examples|contrib)": _TENSORFLOW_1,
    r"Keras cannot be imported\. Check that it is installed": Remedy(
        _NO_KERAS_2,
        "{keras_2}    # or unset TF_USE_LEGACY_KERAS; if it is not set: pip install keras",
    ),
    r"No module named 'tf_keras'": Remedy(_NO_KERAS_2, "{keras_2}    # Keras 2 is not installed there"),
    **{error: Remedy(_KERAS_2_NAME, f"{instead}; {_USE_KERAS_2}") for error, instead in keras_2_names.INSTEAD.items()},
    r"(?:MirroredStrategy|AllReduceStrategy|ServerStrategy\w*)\.__init__\(\) got an unexpected keyword argument '(?P<name>\w+)'": Remedy(
        "arguments-of-a-strategy",
        "remove {name}: orch up -n N sets the number of workers, and the strategy reads it from TF_CONFIG",
    ),
    r"Argument\(s\) not recognized: \{": Remedy(
        _KERAS_2_NAME,
        "remove the argument, which Keras 3 does not take; " + _USE_KERAS_2,
    ),
    r"module 'keras[\w.]*' has no attribute|No module named '(?:tensorflow\.)?keras\.[\w.]+'"
    r"|cannot import name '\w+' from '(?:tensorflow\.)?keras[\w.]*'": _NO_KERAS_NAME,
    r"No module named '(?P<name>tensorflow\.[^']+)'": Remedy(
        "a-module-that-tensorflow-does-not-have",
        "use another release of TensorFlow: the one in {python} has no {name}",
    ),
    r"No module named 'horovod|cannot import name '\w+' from 'horovod": Remedy(
        "horovod",
        "use tf.distribute.MultiWorkerMirroredStrategy() instead of Horovod, or start the script with horovodrun",
    ),
    r"No module named 'tensorboard": _TENSORBOARD,
    r"No module named 'pkg_resources'": Remedy(
        "setuptools-without-pkg_resources",
        "{python} -m pip install 'setuptools<82'    # or a newer release of the package that imports pkg_resources",
    ),
    r"No module named '(?P<name>[^']+)'": Remedy(
        "a-module-is-not-installed",
        "a module of yours: --env PYTHONPATH=DIR; a package: {python} -m pip install {name}    # or its other name",
    ),
    r"Attempt to convert a value \(PerReplica:[\s\S]*unsupported type|Invalid reduction dimension 0 for input with 0 dimensions": Remedy(
        _FIT,
        f"{INSTALL_KERAS} (orch mends {KNOWN_KERAS}), without --keras off; {_USE_KERAS_2}",
    ),
    r"Only instances of `?keras\.Layer`? can be added[\s\S]*<class "
    r"'(?P<name>tensorflow_(?:hub|probability|recommenders|addons|model_optimization)|tf_keras|keras_nlp|keras_cv)\.": Remedy(
        _KERAS_2_NAME,
        "{name} has layers of Keras 2: use Keras 2 for all, --keras legacy (to install: {keras_2})",
    ),
    r"requires tf\.keras to be Keras version 2": Remedy(
        _KERAS_2_NAME, "a package of this script needs Keras 2: --keras legacy (to install: {keras_2})"
    ),
    r"A KerasTensor cannot be used as input to a TensorFlow function": Remedy(
        _KERAS_2_NAME,
        "use keras.ops or a layer of your own; for layers of tensorflow_hub, --keras legacy (to install: {keras_2})",
    ),
    r"pass this dataset to ClusterCoordinator\.create_per_worker_dataset": Remedy(
        "fit-with-parameter-servers",
        "write the training loop yourself (examples/parameter_server.py), " + _USE_KERAS_2,
    ),
}
"""Names and arguments that a module does not have: for exceptions of the types `_OF_NAMES` only."""
_OF_NAMES = ("AttributeError", "ImportError", "ModuleNotFoundError", "TypeError", "ValueError")
OTHERS = {
    r"`?merge_call`? (?:called|is called)": Remedy(
        "gradients-in-a-branch",
        "call apply_gradients outside of branches and tf.functions; to add up gradients: Adam(gradient_accumulation_steps=4)",
    ),
    r"^(?:orch\.)?Fault: .*: orch's own code has failed": Remedy(
        "a-fault-of-orch",
        "report this fault of orch, with the log of this task; your program is not the cause",
    ),
    r"Delete called on non-empty BufRendezvous|group \d+ not found\. This normally means the server has restarted": Remedy(
        "several-strategies",
        "make one MultiWorkerMirroredStrategy before all trainings, and each model in its scope",
    ),
    r"tf\.\w+\(\) is not compatible with eager execution": _TENSORFLOW_1,
    r"Could not apply FILE based sharding: the dataset only has (?P<files>\d+) file\(s\).* required (?P<workers>\d+) shards": Remedy(
        "fewer-files-than-workers",
        f"{AGAIN} --auto-shard data    # or write at least {{workers}} files, one for each worker; there are {{files}}",
    ),
    "Found an unshardable source dataset": Remedy(
        "a-dataset-without-files",
        f"{AGAIN} --auto-shard data    # this dataset reads no files that TensorFlow could divide",
    ),
    "No space left on device|Disk quota exceeded": Remedy(
        "the-disk-is-full",
        "make room (orch prune --keep 5 removes old runs), or write to another disk (orch's files: --home)",
    ),
    r"OOM when allocating[\s\S]*GPU|CUDA_ERROR_OUT_OF_MEMORY|failed to allocate memory on (?:the )?GPU"
    r"|Dst tensor is not initialized": Remedy(
        "out-of-gpu-memory",
        "use a smaller batch for each replica; if tasks share the GPU: --memory-growth, or --gpu-memory MB",
    ),
    "OOM when allocating|MemoryError|bad_alloc": Remedy(
        "out-of-memory",
        "use a smaller batch for each replica, read less at once (with tf.data), or run fewer tasks on this host",
    ),
    "Address already in use|Could not start gRPC server": Remedy(
        _PORT,
        "use a port of TF_CONFIG, which orch holds free, or find who listens at yours: ss -ltnp",
    ),
    "Too many open files": Remedy("too-many-open-files", "ulimit -n 65536    # before orch up: too many files were open at once"),
    "Collective ops must be configured at program startup": Remedy(
        "the-strategy-comes-too-late",
        "make the strategy directly after the imports, before any tensor or variable",
    ),
    r"Received a label value of (?P<label>-?\d+) which is outside the valid range of \[0, (?P<outputs>\d+)\)": Remedy(
        "a-label-that-has-no-output",
        "give the last layer an output for each label, from 0 on (it has {outputs}; a label is {label}), or use BinaryCrossentropy",
    ),
    rf"{_LAYER}expected axis (?P<axis>-?\d+) of input shape to have value (?P<wanted>\d+), but received input with shape "
    r"(?P<shape>\(.*?\))": Remedy(
        _SHAPE,
        "give keras.Input the shape of one element: {layer} takes {wanted} values in axis {axis}, and the data is {shape}",
    ),
    rf"{_LAYER}expected (?P<wanted>(?:min_|max_)?ndim=\d+), found ndim=(?P<found>\d+)": Remedy(
        _SHAPE,
        "give {layer} data with {wanted}, the batch included (it got ndim={found}): x[None], x[..., None] or Flatten()",
    ),
    r"Arguments `target` and `output` must have the same|Argument `output` must have rank \(ndim\) `target\.ndim - 1`": Remedy(
        _SHAPE,
        "for labels that are class numbers, use a loss with Sparse in its name; for one-hot labels, one without",
    ),
    r"Incompatible shapes: (?P<one>\[[\d,]*\]) vs\. (?P<other>\[[\d,]*\])": Remedy(
        _SHAPE,
        "make the shapes {one} and {other} fit: from the last axis on, each pair must be equal, or one of the two 1",
    ),
    r"Could not interpret (?P<kind>\w+)(?: function)? identifier: '?(?P<name>[\w.-]+)'?$"
    r"|Unknown (?P<kind_2>optimizer|loss|metric|activation|initializer|regularizer|constraint)(?: function)?:? "
    r"'(?P<name_2>[\w.-]+)'": Remedy(
        "a-word-that-keras-does-not-know",
        "Keras has no {kind} named {name}{near} (https://keras.io/api lists all)",
    ),
    r"Mixing different tf\.distribute\.Strategy objects": _OUTSIDE,
    r"There is no id for task_type 'ps'": Remedy(
        "a-strategy-without-parameter-servers",
        "leave out --ps (ps: in orch.yaml), or make ParameterServerStrategy in the script (examples/parameter_server.py)",
    ),
    r"Shape mismatch in the collective instance.*shape \[0[,\]]": Remedy(
        "tensors-of-different-shapes",
        "use batch(…, drop_remainder=True), or return the sum over the rows: a worker's part of a batch had no rows",
    ),
    "Serialized sparse should have at least 1 serialized tensor, but has a zero dimension": Remedy(
        "sparse-rows-that-are-too-few",
        "use batch(…, drop_remainder=True), or map(tf.sparse.to_dense): a batch had fewer sparse rows than replicas",
    ),
    r"unexpected keyword argument '(?:experimental_aggregate_gradients|skip_gradients_aggregation)'": Remedy(
        "gradients-that-keras-3-adds-itself",
        "remove the argument, and your own all_reduce: Keras 3 adds the gradients of all replicas itself",
    ),
    r"TensorBoard is not installed, missing implementation": _TENSORBOARD,  # tensorflow/python/summary/tb_summary.py
    r"(?P<name>SLURM_\w+) not found in environment": _ENGINE,
    r"Please provide a TPU Name to connect to": Remedy(
        _NO_TPU, "name the TPU: --tpu local for the TPU of this machine, or a name or an address"
    ),
    r"TPUs not found in the cluster": Remedy(
        _NO_TPU,
        "use a TPU VM with tensorflow-tpu; on a CPU: worker.strategy() in the script, and --set tpu.fallback=cpu",
    ),
    r"cache lockfile already exists \('(?P<path>[^']+?)(?:_\d+)?\.lockfile'\)": Remedy(
        "a-cache-that-was-not-finished",
        "rm {path}_*.lockfile {path}_*.index {path}_*.data-*    # if no other run writes this cache now",
    ),
    r"(?P<path>[^\s'\"]+?)(?:_\d+)?\.lockfile; No such file or directory": Remedy(
        "a-cache-that-was-not-finished", "make the directory of the cache {path} before fit: tf.data does not make it"
    ),
    r"(?:FileNotFoundError|NotFoundError): .*/\.keras/datasets/.": Remedy("a-file-that-is-not-found", f"put it on this host; {_EXTRACTED}"),
    r"FileNotFoundError: \[Errno 2\] No such file or directory: '(?P<path>[^/'][^'/]*/[^']*)'": Remedy(
        "a-file-that-is-not-found",
        "--set workdir=DIR    # {path} begins in the directory of orch.yaml, or of orch up",
    ),
    r"FileNotFoundError: \[Errno 2\] No such file or directory: '(?P<path>[^/'][^'/]*\.[^'/]*)'": Remedy(
        "a-file-that-is-not-found", "--set workdir=DIR    # {path} begins in the directory of orch.yaml, or of orch up"
    ),
    r"(?:FileNotFoundError|NotFoundError): .*No such file or directory.*?(?P<path>/[^'\";\s]+)": Remedy(
        "a-file-that-is-not-found",
        "put {path} on this host; if the script writes it, make its directory first",
    ),
    r"PermissionError: \[Errno 13\] Permission denied: '(?P<path>[^']+)'": Remedy(
        "a-file-without-permission",
        "use another path, or let the user of the task read and write this one: ls -ld {path}",
    ),
    r"ImportError: attempted relative import with no known parent package": Remedy(
        "a-file-of-a-package", "start it as a module, in the directory above the package: orch up -m PACKAGE.MODULE"
    ),
    r"EOFError: EOF when reading a line|BdbQuit": Remedy(
        "a-script-that-asks-at-the-keyboard",
        "give values after -- on the command line, because a task has no keyboard; to debug: python SCRIPT, or orch stacks",
    ),
    r"Could not find callback with key=pyfunc_": Remedy(
        "a-python-function-in-a-data-worker",
        "apply it after distribute(): a py_function or from_generator cannot run in a data worker",
    ),
}

ENDS_EARLY = "a-worker-that-ends-early"
_LEFT_EARLY = Remedy(
    ENDS_EARLY,
    "give all workers the same calls (no fit on one alone) and steps (dataset.repeat()); if a loss ends the loop, reduce it",
)
_LEFT_AT_ONCE = Remedy(
    ENDS_EARLY,
    "look for a return or sys.exit() before the training: {name} took no step. Else give all workers the same number of steps",
)
_SERVER_LEFT = Remedy("a-server-that-ends-early", "call server.join(), or use --set serve=true: a server must run until the chief is done")
_OWN_TF_CONFIG = Remedy(
    "another-tf_config",
    "leave TF_CONFIG to orch: the task had another one ({tf_config}), and another process uses that port",
)
_KILLED_FOR_MEMORY = Remedy(
    "out-of-memory", "likely out of memory: {seen}; give the tasks less to hold, run fewer on this host, or raise the limit"
)
_BY_CODE = {
    _SIGKILL: Remedy(
        "killed-by-sigkill",
        "dmesg | grep -i 'killed process'    # on its host; if this shows nothing, a person or a scheduler sent it",
    ),
    _SIGSEGV: Remedy(_NATIVE, "read the stacks at the end of its stderr: native code has crashed"),
    _SIGABRT: Remedy(_NATIVE, "read the reason at the end of its stderr: native code gave up (abort)"),
    _SIGBUS: Remedy(_NATIVE, "df -h /dev/shm    # is it full? Else a memory-mapped file was cut short"),
    _SIGILL: Remedy(_NATIVE, "install a TensorFlow that was built for this host: the processor lacks an instruction of this one"),
    126: Remedy("a-program-that-cannot-run", "make the program executable (chmod +x), and check its first line (#!…)"),
    127: Remedy("a-program-that-cannot-run", f"{AGAIN} --env PATH    # copies your PATH to the tasks: a program was not found"),
}
_VARIABLE = Remedy("a-variable-that-is-not-set", f"{AGAIN} --env {{name}}=VALUE    # the script reads this variable")
_NO_SUCH_METRIC = Remedy(
    "a-metric-that-fit-does-not-report",
    "fit has reported no {name}: {why}",
)
_VALIDATION = "names with val_ need validation_data= or validation_split= of fit, in an epoch that validates (validation_freq=)"
_METRICS = "its names are loss, those of the metrics= of compile(), and with validation data the same with val_"
_ARGUMENTS = Remedy("a-script-that-refuses-its-arguments", "orch up SCRIPT -- {option}    # the script's own arguments go after --")
STALLS, UNFORMED, PASSED = "a-task-that-stalls", "no-cluster-was-formed", "a-deadline-that-has-passed"
_DEADLINES = {
    "hang": Remedy(STALLS, f"{AGAIN} --max-restarts 3    # starts again after a hang"),
    "hang again": Remedy(STALLS, f"{AGAIN} --hang-timeout {{twice}}    # if the tasks were busy; else see where they were"),
    "run": Remedy(PASSED, f"{AGAIN} --timeout {{twice}}    # allows twice the time"),
    "start": Remedy(
        UNFORMED, f"{AGAIN} --set timeouts.start_s={{twice}}    # twice the time; for a script without a strategy: --strategy none"
    ),
    "prepare": Remedy(PASSED, f"{AGAIN} --set timeouts.prepare_s={{twice}}    # allows twice the time"),
}
_STALLED = Remedy(STALLS, "look at where {name} was, and at its log: a stalled task often waits for input or for a lock")


_WORDS_OF_KERAS = {
    "optimizer": "adadelta adafactor adagrad adam adamax adamw ftrl lion nadam rmsprop sgd",
    "loss": "binary_crossentropy categorical_crossentropy hinge huber mae mape mse msle poisson sparse_categorical_crossentropy",
    "metric": "accuracy auc binary_accuracy categorical_accuracy mae mse precision recall sparse_categorical_accuracy",
    "activation": "elu gelu leaky_relu linear relu selu sigmoid silu softmax softplus softsign swish tanh",
    "initializer": "glorot_normal glorot_uniform he_normal he_uniform lecun_normal ones orthogonal random_normal random_uniform zeros",
}
"""The words that most programs use, by what the messages of Keras call them."""


def every() -> tuple[Remedy, ...]:
    """All remedies, before words are filled in."""
    others = (_LEFT_EARLY, _LEFT_AT_ONCE, _SERVER_LEFT, _OWN_TF_CONFIG, _KILLED_FOR_MEMORY, _ARGUMENTS, _VARIABLE, _STALLED, _NEAR)
    return *ABOUT_NAMES.values(), *OTHERS.values(), *_BY_CODE.values(), *_DEADLINES.values(), *others, _NO_SUCH_METRIC, _NO_BATCHES


def of_stalled(name: str) -> Remedy:
    """The remedy for a task that others have lost, though the task has not ended."""
    return Remedy(_STALLED.about, _STALLED.text.format(name=name))


def of_deadline(kind: str, seconds: float | None) -> Remedy:
    """The remedy for a deadline of the user that has passed, after so many seconds: ``hang``, ``hang again``, ``run``, …"""
    remedy, twice = _DEADLINES[kind], max(1, round(2 * (seconds or 0)))
    size, unit = next(((size, unit) for size, unit in ((3600, "h"), (60, "m")) if twice % size == 0), (1, ""))
    return remedy._replace(text=remedy.text.format(twice=f"{twice // size}{unit}"))


def find(task: TaskStatus, *, serves: bool = False) -> Remedy:
    """The remedy for the end of a task, or `NONE`. `serves`: the task is a server that must run until others are done."""
    if task.code == 0 and task.type in DATA_SERVICE:
        return NONE  # orch runs these servers; a script cannot end them
    if task.code == 0 and not serves and not task.report and not task.evidence.has_trained:
        return Remedy(_LEFT_AT_ONCE.about, _LEFT_AT_ONCE.text.format(name=task.name))
    if task.code == 0:
        return _SERVER_LEFT if serves else _LEFT_EARLY
    evidence = task.evidence
    if evidence.out_of_memory:
        return Remedy(_KILLED_FOR_MEMORY.about, _KILLED_FOR_MEMORY.text.format(seen=evidence.out_of_memory))
    if evidence.tf_config and task.failure is not None and "Could not start gRPC server" in task.failure.message:
        return Remedy(_OWN_TF_CONFIG.about, _OWN_TF_CONFIG.text.format(tf_config=evidence.tf_config))
    if task.failure is not None:
        if task.failure.type in ("KeyError", "TypeError", "AttributeError") and (found := _of_key(task.failure)) != NONE:
            return found
        # tensorflow/python/distribute/distribute_lib.py, `update`, says no word of it.
        if task.failure.type == "AssertionError" and re.search(
            r"^ +distribution\.extended\.update\(", task.failure.traceback, re.MULTILINE
        ):
            return _OUTSIDE
        if task.failure.type == "IndexError" and ", in get_static_batch_dim\n" in task.failure.traceback:
            return _NO_BATCHES
        if name := task.failure.hides or _hidden_module(task.failure):
            return Remedy(_HIDDEN.about, _HIDDEN.text.format(name=name))
        if near := task.failure.near:
            return Remedy(_NEAR.about, _NEAR.text.format(near=near) + (f". {_EXTRACTED}" if re.search(_OF_GET_FILE, near) else ""))
        found = _match(f"{task.failure.type.rpartition('.')[2]}: {task.failure.message}", evidence)
        # A name that no Keras has is often a typing error, and Python then names the right one at the end of the traceback.
        return NONE if found == _NO_KERAS_NAME and "Did you mean: " in task.failure.traceback else found
    if task.code in (1, 2) and (refused := _REFUSED_ARGUMENTS.search(evidence.last_words)):
        option = f"{refused['missing']} VALUE" if refused["missing"] else "--help"
        return Remedy(_ARGUMENTS.about, _ARGUMENTS.text.format(option=option))
    found = _of_log(evidence.last_words, evidence)
    return found if found != NONE else _BY_CODE.get(task.code or 0, NONE)


def _of_key(failure: Failure) -> Remedy:
    """The remedy for a variable of the environment that is not set, or for what Keras's `fit` has not reported; else `NONE`.

    The last lines of the traceback tell: the frame of `os.environ`, the user's line with ``int(os.environ.get("RANK"))``, or the one that
    reads ``logs["val_loss"]``.
    """
    frames = failure.traceback.rpartition('  File "')
    line = frames[2].partition("\n")[2].partition("\n")[0]
    read = _READS.search(graph_errors.place_in(failure.traceback)) if "NoneType" in failure.message else None
    name = read["name"] if read else failure.message.strip("'")
    if read or re.match(r'[^"\n]*\bos(?:\.py)?>?", line \d+, in __getitem__', frames[2]):
        remedy = _ENGINE if re.fullmatch(_OF_ENGINES, name) else _VARIABLE
        return Remedy(remedy.about, remedy.text.format(name=name))
    in_callback = re.match(r'[^"\n]*", line \d+, in on_', frames[2])
    if failure.message.startswith("'") and re.search(r"\.history\[" + (r"|\blogs\[" if in_callback else ""), line):
        why = _VALIDATION if name.startswith("val_") else _METRICS
        return Remedy(_NO_SUCH_METRIC.about, _NO_SUCH_METRIC.text.format(name=name, why=why))
    return NONE


_READS = re.compile(r"\b(?:environ\.get|getenv)\(\s*['\"](?P<name>\w+)['\"]\s*\)")
_FRAME = re.compile(r'^ *File "(?P<path>[^"<]+)", line \d+, in (?P<what>.+)$', re.MULTILINE)
_INSTALLED = re.compile(r"/(?:lib|lib64)/python3[\d.]*/|/(?:site|dist)-packages/")
_TRACEBACK = "Traceback (most recent call last):"
"""Where a traceback begins: exceptions that are chained have one each, and their frames do not call one another."""
_IMPORTLIB = re.compile(r"/importlib/__init__\.py$")
"""The frame of importlib.import_module, which its caller has given the name."""
_FROM = re.compile(r"cannot import name '\w+' from '\w+' \((?P<path>/[^)]+)\)")
_HIDEABLE = re.compile(
    "abc|ast|calendar|cmd|code|collections|copy|csv|ctypes|datetime|dis|email|enum|functools|glob|gzip|hashlib|html|http|inspect|io|json|"
    "keras|logging|math|numbers|numpy|operator|platform|pickle|profile|queue|random|re|secrets|select|shutil|signal|site|socket|statistics|"
    "string|struct|subprocess|tempfile|tensorflow|test|threading|time|timeit|token|tokenize|trace|traceback|types|typing|uuid|warnings|"
    "weakref|zipfile"
)
"""Modules that TensorFlow imports, or what it imports, and whose names people give to files."""


def _hidden_module(failure: Failure) -> str:
    """The module whose name a file of the user has, so that an installed package has imported the file. Empty: none."""
    traces = [
        [(frame["path"], frame["what"]) for frame in _FRAME.finditer(trace) if not _IMPORTLIB.search(frame["path"])]
        for trace in failure.traceback.split(_TRACEBACK)
    ]
    firsts = (trace[0] for trace in traces if trace)
    *_, script = "", *(path for path, what in firsts if what == "<module>" and not _INSTALLED.search(path))
    places = [path for trace in traces for (by, _), (path, what) in pairwise(trace) if what == "<module>" and _INSTALLED.search(by)]
    places += [found["path"] for found in _FROM.finditer(failure.message)]
    splits = (path.rpartition("/") for path in places if not _INSTALLED.search(path))
    names = (name.removesuffix(".py") for directory, _, name in splits if script.startswith(f"{directory}/"))
    return next((name for name in names if _HIDEABLE.fullmatch(name)), "")


def _match(error: str, evidence: Evidence) -> Remedy:
    """The remedy for an error ``TYPE: message``, or `NONE`."""
    # The patterns about names are long, and to compile them takes time.
    for pattern, remedy in (ABOUT_NAMES | OTHERS if error.startswith(_OF_NAMES) else OTHERS).items():
        if match := re.search(pattern, error):
            keras_2 = install_keras_2(evidence.python, evidence.tensorflow)
            words = {"python": evidence.python or "python", "keras_2": keras_2, "near": ""}
            words |= {key.removesuffix("_2"): said for key, said in match.groupdict().items() if said}
            if near := nearest(words.get("name", ""), _WORDS_OF_KERAS.get(words.get("kind", ""), "").split()):
                words["near"] = f"; did you mean {near}?"
            return Remedy(remedy.about, remedy.text.format(**words))
    return NONE


_ERROR = re.compile(r"^(?:[\w.]+\.)?(?=\w*(?:Error|bad_alloc)\b|terminate called after throwing an instance of)", re.MULTILINE)
"""The place before the name of an exception."""
_REFUSED_ARGUMENTS = re.compile(
    r"^(?:\S+: error: (?:the following arguments are required: (?P<missing>--?[\w-]+)?|unrecognized arguments|argument )"
    r"|FATAL Flags parsing error:|Error: (?:No such option|Missing option|Invalid value for|Missing argument|Got unexpected extra arg))",
    re.MULTILINE,
)
"""The last line of Python's argparse, or one of absl or of click."""


def _of_log(words: str, evidence: Evidence) -> Remedy:
    """The remedy for the last line of a log that looks like an exception, or `NONE`."""
    *_, last = None, *_ERROR.finditer(words)
    return _match(words[last.end() :], evidence) if last else NONE
