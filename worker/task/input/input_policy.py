"""Applies the section `input:` to the datasets of `worker.distribute`, and to those of a script that does not call it.

An unchanged script passes its datasets to `tf.distribute` itself, or Keras's `fit` does. Both call two methods of `StrategyBase`
(tensorflow/python/distribute/distribute_lib.py), which this module replaces: the spec's settings hold where the script has left
TensorFlow's defaults, and the script's own settings stay.

TensorFlow does not record that a script has set AUTO (`merge_options` in tensorflow/python/data/util/options.py leaves out values that are
equal to the default), so AUTO always counts as the default.
"""

from __future__ import annotations

import contextlib

from .. import failure, import_hooks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    JsonSettings = dict[str, Any]
    """An `InputSettings` as JSON data, without the fields at their defaults."""

_DISTRIBUTE = "tensorflow.python.distribute.distribute_lib"
_DATASETS = "tensorflow.python.data.ops.dataset_ops"
_FOR_DATASETS = ("auto_shard", "deterministic", "prefetch")
OPTIONS = ("fetch_to_device", "per_replica_buffer_size", "replication_mode")
"""The settings that are fields of `tf.distribute.InputOptions`."""
SHARED = "_orch_shared"
"""An attribute of the datasets of `worker.files`, which has applied the policy itself."""

_DEPTH = "_orch_input_depth"
"""An attribute of `StrategyBase`: the number of calls of `worker.distribute` that are running, which apply the section themselves. (The
function that `worker.distribute` gets may call it again.) The number is not in this module, because a task imports this module twice: orch
before the program starts, and the program under another name."""


@contextlib.contextmanager
def applied() -> Iterator[None]:
    """While this is entered, the methods of `StrategyBase` do not change datasets."""
    from tensorflow.python.distribute import distribute_lib

    base = distribute_lib.StrategyBase
    setattr(base, _DEPTH, getattr(base, _DEPTH, 0) + 1)
    try:
        yield
    finally:
        setattr(base, _DEPTH, getattr(base, _DEPTH) - 1)


def apply_soon(settings: JsonSettings, log_dir: str) -> None:
    """Change TensorFlow's functions so that they apply the settings, as soon as TensorFlow is imported."""
    if not settings.get("apply", True):
        return
    if "shuffle_seed" in settings:
        import_hooks.after(_DATASETS, lambda module: _seed_lists_of_files(module, settings["shuffle_seed"]))
    if any(name in settings for name in (*_FOR_DATASETS, *OPTIONS)):
        import_hooks.after(_DISTRIBUTE, lambda module: _complete(module, settings))


def _complete(module: Any, settings: JsonSettings) -> None:
    base = module.StrategyBase
    real_dataset, real_function = base.experimental_distribute_dataset, base.distribute_datasets_from_function

    from . import input_counter

    def experimental_distribute_dataset(self: Any, dataset: Any, options: Any = None) -> Any:
        input_counter.begin()
        if not getattr(base, _DEPTH, 0) and _is_dataset(dataset) and _is_eager():
            changes = Changes("experimental_distribute_dataset")
            dataset = apply_to_dataset(dataset, settings, changes)
            options = input_options(settings, options, self, changes, is_function=False)
            changes.print()
        return real_dataset(self, dataset, options)

    def distribute_datasets_from_function(self: Any, dataset_fn: Any, options: Any = None) -> Any:
        input_counter.begin()
        if not getattr(base, _DEPTH, 0):
            changes = Changes("distribute_datasets_from_function")
            dataset_fn = apply_to_function(dataset_fn, settings, changes)
            options = input_options(settings, options, self, changes, is_function=True)
        return real_function(self, dataset_fn, options)

    base.experimental_distribute_dataset = import_hooks.named_like(real_dataset, experimental_distribute_dataset)
    base.distribute_datasets_from_function = import_hooks.named_like(real_function, distribute_datasets_from_function)


def _seed_lists_of_files(module: Any, seed: int) -> None:
    """Use this seed in calls of `Dataset.list_files` without one: otherwise each worker would divide a list in another order."""
    datasets = module.DatasetV2
    real = datasets.list_files

    def list_files(file_pattern: Any, shuffle: Any = None, seed: Any = seed, *args: Any, **kwargs: Any) -> Any:
        return real(file_pattern, shuffle, seed, *args, **kwargs)

    datasets.list_files = staticmethod(import_hooks.named_like(real, list_files))


# --- one dataset -----------------------------------------------------------------------------------


class Changes:
    """The changes of one dataset, for one line of the log."""

    def __init__(self, function: str) -> None:
        self.function, self.where = function, failure.calling_line(in_packages=False)
        self.done: list[str] = []
        """The settings that were applied."""
        self.kept: list[str] = []
        """Sentences about settings that were not applied."""

    def print(self) -> None:
        """Print the line in one task of each type; nothing if there were no changes."""
        parts = [", ".join(self.done), *self.kept]
        if any(parts):
            import_hooks.print_once(f"input: {'; '.join(filter(None, parts))} ({self.function} at {self.where})")


def apply_to_dataset(dataset: Any, settings: JsonSettings, changes: Changes) -> Any:
    """The dataset with the policy, the order and the prefetching of the settings, except for those that the script has set itself."""
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
    if "deterministic" in settings and found.deterministic is None:
        options.deterministic = settings["deterministic"]
        is_changed = True
        changes.done.append(f"deterministic {str(settings['deterministic']).lower()}")
    dataset = dataset.with_options(options) if is_changed else dataset
    if not settings.get("prefetch") or "Prefetch" in type(dataset).__name__:
        return dataset
    changes.done.append(f"prefetch {settings['prefetch']}")
    return dataset.prefetch(settings["prefetch"])


def apply_to_function(dataset_fn: Any, settings: JsonSettings, changes: Changes) -> Any:
    """A function from an `InputContext` to a dataset, with the order and the prefetching of the settings."""

    def function(*args: Any) -> Any:
        dataset = dataset_fn(*args)
        if _is_dataset(dataset):
            if "auto_shard" in settings:
                changes.kept.append("auto_shard does not apply to datasets from a function, which divides them itself")
            dataset = apply_to_dataset(dataset, {name: settings[name] for name in settings if name != "auto_shard"}, changes)
        changes.print()
        return dataset

    return function


def input_options(settings: JsonSettings, given: Any, strategy: Any, changes: Changes, *, is_function: bool) -> Any:
    """The `tf.distribute.InputOptions` of the settings; `given` if the script has options of its own."""
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


def _is_dataset(value: Any) -> bool:
    import tensorflow as tf

    return isinstance(value, tf.data.Dataset)


def _is_eager() -> bool:
    import tensorflow as tf

    return bool(tf.executing_eagerly())


def _options_of(dataset: Any) -> Any:
    """The dataset's `tf.data.Options`. Inside a function, TensorFlow cannot read them from the graph: then those of its Python object."""
    return dataset.options() if _is_eager() else dataset._options_attr
