"""The section `input:` put into effect: on a dataset that `worker.distribute` is given, and on those of a script that does not call it.

An unchanged script hands its datasets to `tf.distribute` itself, or Keras's `fit` does. Both ways lead through two methods of
`StrategyBase` (tensorflow/python/distribute/distribute_lib.py), which are completed here: what the script has left at TensorFlow's default
becomes what the spec says, and what the script says stands.

TensorFlow keeps no record of an AUTO that a script sets (`merge_options` in tensorflow/python/data/util/options.py leaves out what
is equal to the default): AUTO is the default, whoever says it.
"""

from __future__ import annotations

import os
import sys

from .. import import_hooks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Said = dict[str, Any]
    """An `InputSettings` as JSON data: what is at its default is not there."""

_DISTRIBUTE = "tensorflow.python.distribute.distribute_lib"
_DATASETS = "tensorflow.python.data.ops.dataset_ops"
_FOR_DATASETS = ("auto_shard", "deterministic", "prefetch")
OPTIONS = ("fetch_to_device", "per_replica_buffer_size", "replication_mode")
"""The settings that are fields of `tf.distribute.InputOptions`."""
SHARED = "_orch_shared"
"""An attribute of a dataset of `worker.files`, which has put the policy into effect itself."""

_DONE = "_orch_has_shaped"
"""An attribute of `StrategyBase`: how many calls of `worker.distribute` are at work, which has put the section into effect itself.
A function that it is given may call it again.

There, and not here: in a task this module is loaded twice, under our private name before the program starts, and by the program."""


class done:
    """While this is entered, the methods of `StrategyBase` leave datasets as they are."""

    def __enter__(self) -> None:
        base = _base()
        base._orch_has_shaped = getattr(base, _DONE, 0) + 1

    def __exit__(self, *_: object) -> None:
        _base()._orch_has_shaped -= 1


def _base() -> Any:
    from tensorflow.python.distribute import distribute_lib

    return distribute_lib.StrategyBase


def apply_soon(settings: Said) -> None:
    """Put settings into effect in TensorFlow's own functions, as soon as they are there."""
    if not settings.get("apply", True):
        return
    if "shuffle_seed" in settings:
        import_hooks.after(_DATASETS, lambda module: _seed_lists_of_files(module, settings["shuffle_seed"]))
    if any(name in settings for name in (*_FOR_DATASETS, *OPTIONS)):
        import_hooks.after(_DISTRIBUTE, lambda module: _complete(module, settings))


def _complete(module: Any, settings: Said) -> None:
    base = module.StrategyBase
    real_dataset, real_function = base.experimental_distribute_dataset, base.distribute_datasets_from_function

    from . import input_counter

    def experimental_distribute_dataset(self: Any, dataset: Any, options: Any = None) -> Any:
        input_counter.begin()
        if not getattr(base, _DONE, 0) and _is_dataset(dataset) and _is_eager():
            changes = Changes("experimental_distribute_dataset")
            dataset = shape(dataset, settings, changes)
            options = input_options(settings, options, self, changes, is_function=False)
            changes.say()
        return real_dataset(self, dataset, options)

    def distribute_datasets_from_function(self: Any, dataset_fn: Any, options: Any = None) -> Any:
        input_counter.begin()
        if not getattr(base, _DONE, 0):
            changes = Changes("distribute_datasets_from_function")
            dataset_fn = shaped(dataset_fn, settings, changes)
            options = input_options(settings, options, self, changes, is_function=True)
        return real_function(self, dataset_fn, options)

    base.experimental_distribute_dataset = import_hooks.named_like(real_dataset, experimental_distribute_dataset)
    base.distribute_datasets_from_function = import_hooks.named_like(real_function, distribute_datasets_from_function)


def _seed_lists_of_files(module: Any, seed: int) -> None:
    """Give `Dataset.list_files` this seed, where it would shuffle with none: each worker would have an order of its own to share out."""
    datasets = module.DatasetV2
    real = datasets.list_files

    def list_files(file_pattern: Any, shuffle: Any = None, seed: Any = seed, *args: Any, **kwargs: Any) -> Any:
        return real(file_pattern, shuffle, seed, *args, **kwargs)

    datasets.list_files = staticmethod(import_hooks.named_like(real, list_files))


# --- one dataset -----------------------------------------------------------------------------------


class Changes:
    """What was done to one dataset, and what was not, for one line of the log."""

    def __init__(self, how: str) -> None:
        self.what, self.where = how, _caller()
        self.done: list[str] = []
        self.kept: list[str] = []

    def say(self) -> None:
        """Write the line, in one task of each type; nothing if there is nothing to say."""
        parts = [", ".join(self.done), *self.kept]
        if any(parts):
            say_once(f"input: {'; '.join(filter(None, parts))} ({self.what} at {self.where})")


def shape(dataset: Any, settings: Said, changes: Changes) -> Any:
    """The dataset with the policy, the order and the reading ahead that the settings say, where the script has not said anything."""
    import tensorflow as tf

    options, found = tf.data.Options(), _options_of(dataset)
    is_changed = False
    if "auto_shard" in settings and not getattr(dataset, SHARED, False):
        wanted, current = settings["auto_shard"], found.experimental_distribute.auto_shard_policy.name.lower()
        if current == "auto" != wanted:
            options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy[wanted.upper()]
            is_changed = True
            changes.done.append(f"auto_shard {wanted}")
        elif current != wanted:
            changes.kept.append(f"auto_shard stays {current}, which the program has set, and not {wanted}")
        _compare(wanted if current == "auto" else current, changes)
    if "deterministic" in settings and found.deterministic is None:
        options.deterministic = settings["deterministic"]
        is_changed = True
        changes.done.append(f"deterministic {str(settings['deterministic']).lower()}")
    return _read_ahead(dataset.with_options(options) if is_changed else dataset, settings, changes)


def shaped(dataset_fn: Any, settings: Said, changes: Changes) -> Any:
    """A function of an `InputContext` whose datasets have what the settings say of their order and of reading ahead."""

    def function(*args: Any) -> Any:
        dataset = dataset_fn(*args)
        if _is_dataset(dataset):
            if "auto_shard" in settings:
                changes.kept.append("auto_shard does not apply to datasets from a function, which divides them itself")
            dataset = shape(dataset, {name: settings[name] for name in settings if name != "auto_shard"}, changes)
        changes.say()
        return dataset

    return function


def _read_ahead(dataset: Any, settings: Said, changes: Changes) -> Any:
    if not settings.get("prefetch") or "Prefetch" in type(dataset).__name__:
        return dataset
    changes.done.append(f"prefetch {settings['prefetch']}")
    return dataset.prefetch(settings["prefetch"])


def input_options(settings: Said, given: Any, strategy: Any, changes: Changes, *, is_function: bool) -> Any:
    """The `tf.distribute.InputOptions` that the settings say; `given`, if the script has options of its own."""
    import tensorflow as tf

    wanted = {name: settings[name] for name in OPTIONS if name in settings}
    if not wanted:
        return given
    if given is not None:
        changes.kept.append(f"{' and '.join(wanted)}: the program's own InputOptions apply")
        return given
    mode = wanted.pop("replication_mode", "")
    if mode == "per_replica" and not (is_function and type(strategy) is tf.distribute.MirroredStrategy):
        changes.kept.append("replication_mode per_replica is only for functions, under tf.distribute.MirroredStrategy")
        mode = ""
    values: dict[str, Any] = {f"experimental_{name}": value for name, value in wanted.items()}
    if mode:
        values["experimental_replication_mode"] = tf.distribute.InputReplicationMode[mode.upper()]
    changes.done += [f"{name} {str(settings[name]).lower()}" for name in (*wanted, *(["replication_mode"] if mode else []))]
    return tf.distribute.InputOptions(**values) if values else None


# --- what is told ------------------------------------------------------------------------------------

_policies: dict[str, str] = {}
_said: set[str] = set()


def _compare(policy: str, changes: Changes) -> None:
    """Say where two datasets of one program are shared out in different ways: that is seldom meant."""
    _policies.setdefault(policy, changes.where)
    if len(_policies) > 1:
        both = ", ".join(f"{name} at {where}" for name, where in _policies.items())
        say_once(f"input: datasets of this program are divided in different ways: {both}")


def say_once(text: str) -> None:
    """Write a line of orch's to stderr: once in this process, and only in the first task of each type. The others would say the same."""
    if text not in _said and os.environ.get("ORCH_TASK", "-0").endswith("-0"):
        _said.add(text)
        print(f"orch: {text}", file=sys.stderr)


def _caller() -> str:
    """``train.py:12``: the innermost line of the program that is neither a package's nor ours."""
    ours = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    frame = sys._getframe(1)
    while frame.f_back is not None:
        name = frame.f_code.co_filename
        if not (f"{os.sep}site-packages{os.sep}" in name or name.startswith(("<", ours, os.path.dirname(os.__file__)))):
            break
        frame = frame.f_back
    return f"{frame.f_code.co_filename.removeprefix(os.getcwd() + os.sep)}:{frame.f_lineno}"


def _is_dataset(value: Any) -> bool:
    import tensorflow as tf

    return isinstance(value, tf.data.Dataset)


def _is_eager() -> bool:
    import tensorflow as tf

    return bool(tf.executing_eagerly())


def _options_of(dataset: Any) -> Any:
    """Its `tf.data.Options`. Inside a function, where TensorFlow cannot read them from the graph, those that Python knows of."""
    return dataset.options() if _is_eager() else dataset._options_attr
