"""The places that call `recorder`, and changes that let two worlds of `orch verify` be compared.

A program's functions are not made into graphs, so each number can be read where it is computed. What a replica draws for the rows of its
part are those numbers that one process draws for these rows. The dataset of the program stays as it is.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import re
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable
from typing import Any

from .. import failure, patches
from ..patches import guard
from ..patches.features import NO_SAVES, VERIFY, VERIFY_2
from ..patches.import_hooks import print_once
from . import recorder
from .recorder import Recorder, is_variable

_DRAWS = (
    *("random_uniform", "random_standard_normal", "truncated_normal", "random_uniform_int"),
    *(f"stateless_{name}_v2" for name in ("random_uniform", "random_normal", "truncated_normal", "random_uniform_int")),
)
"""The functions of TensorFlow that draw numbers."""
_STATELESS = {
    "random_uniform": "stateless_uniform",
    "random_standard_normal": "stateless_normal",
    "truncated_normal": "stateless_truncated_normal",
    "random_uniform_int": "stateless_uniform",
}
_GRAPHS = ("tensorflow.", "tensorflow_", "_orch_worker.task.input", "worker.task.input")
"""The beginnings of the names of modules whose functions stay graphs: a collective that gathers has no other form."""
_SAVES = ("Checkpoint.save", "Checkpoint.write", "CheckpointManager.save", "save_and_return_nodes")
_SAVES_OF_KERAS = ("saving_lib.save_model", "saving_lib.save_weights_only", "legacy_h5_format.save_model_to_hdf5")
_WRITERS = ("ModelCheckpoint", "BackupAndRestore", "TensorBoard", "CSVLogger", "SwapEMAWeights")
_SCALE = 16.0
"""The factor of losses in float16 with which a training begins."""
_SOURCES = ("TensorSliceDataset", "TensorDataset")
"""The datasets with which a program begins: files begin with a slice of their names, a generator with its number."""
_DATASETS = (*_SOURCES, "BatchDatasetV2", "ParallelBatchDataset", "PaddedBatchDatasetV2", "ShardDataset", "AutoShardDataset")


_OTHER_DRAWS = re.compile("^Random|Multinomial|StatelessRandom(Gamma|Poisson|Binomial|Shuffle)|^Stateful(Uniform|Standard|Trunc)")
"""The operations that draw numbers, other than those of `_DRAWS`."""


def watch(log_dir: str) -> None:
    """Write down the first steps of the program, as soon as it has imported TensorFlow."""
    made = Recorder(log_dir)
    recorder.recorders.append(made)
    save_nothing(log_dir, lambda: made.done)
    sys.addaudithook(patches.guarded(VERIFY)(_note_files(made)))
    threading.Thread(target=end_at_fault, args=({VERIFY, VERIFY_2},), name="orch verify", daemon=True).start()
    patches.after(VERIFY, "tensorflow", lambda module: _hook_tensorflow(made, module))
    patches.after(VERIFY, "keras", lambda module: _hook_keras(made))
    patches.after(VERIFY_2, "tf_keras", lambda module: _hook_keras_2(made))


def save_nothing(log_dir: str, trains: Callable[[], object]) -> None:
    """Let the calls that save a training or a model do nothing once it `trains`: what a few steps have trained is for no file of the
    program. Before, it may save what it then loads.
    """
    tempfile.tempdir = log_dir  # for the files of AutoGraph, which a process leaves that is ended

    def replace(names: tuple[str, ...]) -> None:
        for name in names:
            patches.replace(NO_SAVES, name, functools.partial(_save_nothing, trains, name))

    patches.after(NO_SAVES, "tensorflow", lambda _: replace(_SAVES))
    patches.after(NO_SAVES, "keras", lambda _: replace(_SAVES_OF_KERAS))


def _save_nothing(trains: Callable[[], object], name: str, real: Any, *args: Any, **kwargs: Any) -> Any:
    """Give the path that would have been written, or what a caller within TensorFlow takes apart."""
    if not trains():
        return real(*args, **kwargs)
    path = args[1] if len(args) > 1 else kwargs.get("file_prefix")
    return ([], {}) if name == "save_and_return_nodes" else path if isinstance(path, str) else None


def end_at_fault(features: set[str]) -> None:
    """End the process if one of these features has failed: what was written down would be taken for all."""
    while not features & guard.off:
        time.sleep(0.2)
    os._exit(1)


def _note_files(made: Recorder) -> Any:
    """A hook of Python for each file that the program opens to write."""
    own = (os.path.realpath(made.log_dir), os.path.realpath(tempfile.gettempdir()), "/dev", "/proc")

    def note(event: str, args: tuple[Any, ...]) -> None:
        if event != "open" or not isinstance(args[1], str) or not set("wax+") & set(args[1]) or not isinstance(args[0], str):
            return
        path = os.path.realpath(args[0])
        if not path.startswith(own) and "__pycache__" not in path and len(made.found["wrote"]) < 100:
            made.found["wrote"].setdefault(path, failure.calling_line())

    return note


def _hook_tensorflow(made: Recorder, module: Any) -> None:
    from tensorflow.python.framework import op_callbacks

    atexit.register(patches.guarded(VERIFY)(lambda: made.write("the end of the program")))
    put = property(lambda function: not str(getattr(function._python_function, "__module__", "")).startswith(_GRAPHS))
    patches.put(VERIFY, "Function._run_functions_eagerly", lambda real: put)
    if recorder.batch_of():
        _see_more_workers(made)
    module.random.set_seed(zlib.crc32(recorder.word().encode()))  # for graphs of tf.data; `_drawn` draws the others
    patches.replace(VERIFY, "map_op._map_v2", _map)
    patches.replace(VERIFY, "CollectiveReplicaLauncher.all_gather", _all_gather)
    patches.replace(VERIFY, "GradientTape.gradient", _of(made, _gradient))
    patches.replace(VERIFY, "StrategyBase.run", _of(made, _run))
    patches.replace(VERIFY, "StrategyBase.reduce", _of(made, _reduce))
    patches.replace(VERIFY, "ReplicaContextBase.all_reduce", _of(made, _all_reduce))
    for name in _DRAWS:
        patches.replace(VERIFY, name, _drawing(made, name))
    op_callbacks.add_op_callback(_Operations(made))


def _of(made: Recorder, function: Any) -> Any:
    def replacement(real: Any, *args: Any, **kwargs: Any) -> Any:
        return real(*args, **kwargs) if made.here.is_own else function(made, real, *args, **kwargs)

    return replacement


class _Operations:
    """A callback for TensorFlow, which calls it after each operation."""

    def __init__(self, made: Recorder) -> None:
        self._made = made

    def __call__(self, kind: Any, inputs: Any, attrs: Any, outputs: Any, op_name: Any = None, graph: Any = None) -> None:
        made = self._made
        if graph is not None or made.here.is_own:
            return
        kind = kind.decode() if isinstance(kind, bytes) else kind
        with made.of_own(), contextlib.suppress(Exception):
            if kind in _DATASETS:
                numbers = [int(each.numpy()) for each in inputs if each.dtype.is_integer and each.shape.rank == 0]
                if kind in _SOURCES:
                    numbers = [int(inputs[0].shape[0])] if inputs and inputs[0].shape.rank else []
                made.found["datasets"].setdefault(f"{kind} {failure.calling_line()}", numbers)
            elif made.step is not None and _OTHER_DRAWS.search(kind):
                made.step.random.setdefault(failure.calling_line(), "own")
            elif made.step is not None and len(outputs) == 1 and hasattr(outputs[0], "_id"):
                made.step.terms.keep(kind, inputs, outputs[0])
                made.operation(kind, outputs[0])


def _see_more_workers(made: Recorder) -> None:
    """Let the program find several workers where it computes the size of a batch. TensorFlow finds the one that there is."""
    real, workers = os.environ.get("TF_CONFIG", "{}"), recorder.batch_of()
    addresses = [f"127.0.0.1:{port}" for port in range(1, workers + 1)]
    shown = json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": 0}})
    # Not by `os.environ` itself, which notices a program that sets the variable (own_tf_config).
    dict.__setitem__(os.environ._data, b"TF_CONFIG", shown.encode())  # type: ignore[attr-defined]
    patches.replace(VERIFY, "tfconfig._load_tf_config", lambda _: json.loads(real))

    def replaced(real: Any) -> Any:
        def replicas(self: Any) -> int:
            count = int(real.fget(self))
            return count * workers if made.step is None and _direct_line() else count

        return property(replicas)

    patches.put(VERIFY, "StrategyBase.num_replicas_in_sync", replaced)


# --- TensorFlow ---------------------------------------------------------------------------------


def _map(real: Any, data: Any, map_func: Any, num_parallel_calls: Any = None, deterministic: Any = None, *args: Any, **kwargs: Any) -> Any:
    """One element after the other, so that a function that draws numbers, such as for a flip of an image, draws them in one order."""
    return real(data, map_func, None, None, *args, **kwargs)


def _all_gather(real: Any, self: Any, input_tensor: Any, axis: Any, options: Any = None) -> Any:
    """TensorFlow gathers in a graph only."""
    import tensorflow as tf

    if not tf.executing_eagerly():
        return real(self, input_tensor, axis, options)
    gather = tf.function(lambda value: real(self, value, axis, options), autograph=False)
    return gather.get_concrete_function(tf.convert_to_tensor(input_tensor))(tf.convert_to_tensor(input_tensor))


def _gradient(made: Recorder, real: Any, self: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
    import tensorflow as tf

    given = real(self, target, sources, *args, **kwargs)
    if tf.executing_eagerly():
        flat, grads = tf.nest.flatten(sources), _flat(given)
        if len(flat) == len(grads) and any(map(is_variable, flat)):
            made.loss(target, flat, grads)
    return given


def _flat(values: Any) -> list[Any]:
    """The gradients of a structure, of which one may be None or have several tensors."""
    if isinstance(values, dict):
        return [each for key in sorted(values) for each in _flat(values[key])]
    return [each for value in values for each in _flat(value)] if isinstance(values, (list, tuple)) else [values]


def _run(made: Recorder, real: Any, self: Any, fn: Any, args: Any = (), kwargs: Any = None, options: Any = None) -> Any:
    import tensorflow as tf

    if not tf.executing_eagerly() or made.step is not None:
        return real(self, fn, args, kwargs, options)
    made.stop_if_done()
    unconverted = tf.autograph.experimental.do_not_convert(fn)  # what autograph makes of a function has no lines of the program

    def of_replica(*args: Any, **kwargs: Any) -> Any:
        with made.in_step((args, kwargs)):
            return patches.theirs(unconverted, *args, **kwargs)

    return real(self, of_replica, args, kwargs, options)


def _reduce(made: Recorder, real: Any, self: Any, reduce_op: Any, value: Any, axis: Any) -> Any:
    found = real(self, reduce_op, value, axis)
    if (line := _direct_line()) and made.step is None:
        made.shown("reduce", line, {"": found})
    return found


def _all_reduce(made: Recorder, real: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    if made.step is not None and (line := _direct_line()):
        made.step.adds.append(line)
    return real(self, *args, **kwargs)


def _direct_line() -> str:
    """The line of the program that has called the replaced function itself; empty: a library has."""
    frame = failure.caller()
    name = frame.f_code.co_filename if frame is not None else "<"
    return "" if name.startswith("<") or f"{os.sep}site-packages{os.sep}" in name else failure.calling_line()


# --- random numbers -------------------------------------------------------------------------------


def _drawing(made: Recorder, name: str) -> Any:
    """A function that draws numbers as one process does."""

    def draw(real: Any, shape: Any, *args: Any, **kwargs: Any) -> Any:
        import tensorflow as tf

        if made.here.is_own or not tf.executing_eagerly():
            return real(shape, *args, **kwargs)
        with made.of_own():
            return _rows_of_all(made, name, lambda sizes: _drawn(made, name, real, sizes, args, kwargs), [int(each) for each in shape])

    return draw


def _rows_of_all(made: Recorder, name: str, draw: Any, sizes: list[int]) -> Any:
    """In a step of several replicas, what one process draws for the rows of this replica's part, where the parts are of one size."""
    import tensorflow as tf

    step, context = made.step, tf.distribute.get_replica_context()
    if step is None:
        return draw(sizes)
    if _makes_variable():
        return draw(sizes)
    line = failure.calling_line()
    replicas = int(tf.distribute.get_strategy().extended._num_replicas_in_sync)
    rows, has_rows = len(step.rows[0]), bool(sizes) and sizes[0] > 0
    if not has_rows or replicas == 1 or context is None or rows == 0 or sizes[0] % rows:
        step.random.setdefault(line, f"{sizes[:1]}")
        return draw(sizes)
    step.random[line] = "rows"
    place = int(context.replica_id_in_sync_group) * sizes[0]
    return draw([sizes[0] * replicas, *sizes[1:]])[place : place + sizes[0]]


def _makes_variable() -> bool:
    """True if the first values of a variable are drawn, for a layer that a step builds: they are of no row."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "add_weight" or f"{os.sep}initializers{os.sep}" in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


def _drawn(made: Recorder, name: str, real: Any, sizes: list[int], args: Any, kwargs: Any) -> Any:
    """Numbers of this shape. Those that TensorFlow draws from a state of the process come from the word of both worlds and their count."""
    import tensorflow as tf

    if name.startswith("stateless"):
        return real(sizes, *args, **kwargs)
    step = made.step
    if step is not None:
        step.draws += 1
    else:
        made.draws += 1
    number = made.done.get(step.replica, 0) * 1000 + step.draws if step is not None else made.draws
    seed = [zlib.crc32(recorder.word().encode()) >> 1, number + (1 << 20 if step is not None else 0)]
    given = dict(zip(_ARGUMENTS[name], args, strict=False)) | kwargs
    dtype = given.get("dtype") or given["maxval"].dtype
    limits = {key: given[key] for key in ("minval", "maxval") if key in given}
    return getattr(tf.random, _STATELESS[name])(sizes, seed=seed, dtype=dtype, **limits)


_ARGUMENTS = {name: ("minval", "maxval", "seed", "seed2") if name.endswith("_int") else ("dtype", "seed", "seed2") for name in _STATELESS}


# --- Keras ----------------------------------------------------------------------------------------


def _hook_keras(made: Recorder) -> None:
    if "keras.src.backend.tensorflow.trainer" not in sys.modules:  # Keras 2, or another backend
        return
    callback = _callback(made, sys.modules["keras.src.callbacks"].Callback)
    patches.replace(VERIFY, "Trainer.make_train_function", _of(made, _make_train_function))
    patches.replace(VERIFY, "Trainer.fit", _fit(made, callback))
    patches.replace(VERIFY, "BaseOptimizer.apply", _of(made, _apply))
    patches.replace(VERIFY, "TFOptimizer._all_reduce_sum_gradients", _of(made, _added))


def _hook_keras_2(made: Recorder) -> None:
    callback = _callback(made, sys.modules["tf_keras.src.callbacks"].Callback)
    patches.replace(VERIFY_2, "tf_keras.Model.make_train_function", _of(made, _make_train_function))
    patches.replace(VERIFY_2, "tf_keras.Model.fit", _fit(made, callback))
    for name in ("Optimizer", "OptimizerV2"):
        patches.replace(VERIFY_2, f"tf_keras.{name}.apply_gradients", _of(made, _apply_gradients))


def _make_train_function(made: Recorder, real: Any, self: Any, force: bool = False) -> Any:
    _mark(made, self)
    return real(self, force)


def _mark(made: Recorder, model: Any) -> None:
    """Let the recorder know what the steps of a model are computed from."""
    if "train_step" in vars(model):
        return
    import tensorflow as tf

    step = tf.autograph.experimental.do_not_convert(model.train_step)

    def train_step(data: Any) -> Any:
        with made.in_step(data):
            return patches.theirs(step, data)

    vars(model)["train_step"] = train_step
    optimizer: Any = getattr(model, "optimizer", None)
    if hasattr(optimizer, "initial_scale"):  # of mixed precision: no gradient shall overflow on one side alone
        optimizer.initial_scale = min(optimizer.initial_scale, _SCALE)
        if optimizer.built:
            optimizer.dynamic_scale.assign(optimizer.initial_scale)
    layers = [type(layer).__name__ for layer in model._flatten_layers()]
    made.found["layers"] = sorted({*made.found["layers"], *layers})


def _fit(made: Recorder, callback: Any) -> Any:
    def fit(real: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        made.line_of_fit = failure.calling_line()
        args, kwargs = with_callbacks(callback, args, kwargs, "orch verify")
        return real(self, *args, **kwargs)

    return fit


def with_callbacks(callback: Any, args: tuple[Any, ...], kwargs: dict[str, Any], who: str, others: tuple[str, ...] = ()) -> tuple[Any, Any]:
    """The arguments of `fit` with a callback of orch's, and without those of the program that write files, or have one of these names."""
    place = 5  # of the callbacks, in Keras 3 and in Keras 2
    given = args[place] if len(args) > place else kwargs.get("callbacks")
    if type(given).__name__ == "CallbackList":
        return args, kwargs
    own = list(given) if isinstance(given, (list, tuple)) else [] if given is None else [given]
    left = [each for each in own if type(each).__name__ not in (*_WRITERS, *others)]
    if len(left) < len(own):
        what = "callbacks that write files" + (", or stop" if others else "")
        print_once(f"{who} leaves out {what}: " + ", ".join(sorted({type(each).__name__ for each in own if each not in left})))
    if len(args) > place:
        return (*args[:place], [callback(), *left], *args[place + 1 :]), kwargs
    return args, {**kwargs, "callbacks": [callback(), *left]}


def _callback(made: Recorder, base: Any) -> Any:
    """A class of callbacks that writes down what `fit` shows, and ends the process."""

    is_keras_3 = base.__module__.startswith("keras.")

    class Callback(base):  # type: ignore[misc]
        def on_train_batch_end(self, batch: Any, logs: Any = None) -> None:
            if is_keras_3:  # Keras 2 gives callbacks sums of the replicas' values here, and shows them nowhere
                made.shown("batch", made.line_of_fit, dict(logs or {}))
            made.stop_if_done()

        def on_epoch_end(self, epoch: Any, logs: Any = None) -> None:
            made.shown("epoch", made.line_of_fit, dict(logs or {}))

    patches.guard_hooks(VERIFY, Callback)
    return Callback


def _apply(made: Recorder, real: Any, self: Any, grads: Any, trainable_variables: Any = None) -> Any:
    import tensorflow as tf

    grads = list(grads)
    variables = self._trainable_variables if trainable_variables is None else list(trainable_variables)
    if tf.executing_eagerly():
        made.apply(self, grads, variables)
    return real(self, grads, trainable_variables if trainable_variables is None else variables)


def _added(made: Recorder, real: Any, self: Any, grads_and_vars: Any) -> Any:
    import tensorflow as tf

    pairs = list(real(self, grads_and_vars))
    if tf.executing_eagerly():
        made.applied(pairs)
    return pairs


def _apply_gradients(made: Recorder, real: Any, self: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
    import tensorflow as tf

    pairs = list(grads_and_vars)
    if tf.executing_eagerly() and pairs:
        is_added = not kwargs.get("skip_gradients_aggregation") and kwargs.get("experimental_aggregate_gradients", True)
        made.apply(self, [grad for grad, _ in pairs], [variable for _, variable in pairs], is_added=bool(is_added))
    return real(self, pairs, *args, **kwargs)
