"""Applies the section `input:` to the datasets of `worker.distribute`, and to those of a script that does not call it.

An unchanged script passes its datasets to `tf.distribute` itself, or Keras's `fit` does. Both call two methods of `StrategyBase`
(tensorflow/python/distribute/distribute_lib.py), which this module replaces: the spec's settings hold where the script has left
TensorFlow's defaults, and the script's own settings stay.

TensorFlow does not record that a script has set AUTO (`merge_options` in tensorflow/python/data/util/options.py leaves out values that are
equal to the default), so AUTO always counts as the default.
"""

from __future__ import annotations

import os

from .. import failure, patches
from ..patches import import_hooks
from ..patches.features import COUNTS, INPUT, ORDER
from ..shared import shared
from . import private_memory, same_numbers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    JsonSettings = dict[str, Any]
    """An `InputSettings` as JSON data, without the fields at their defaults."""

_DISTRIBUTE = "tensorflow.python.distribute.distribute_lib"
_ITERATORS = "tensorflow.python.distribute.input_lib"
_DATASETS = "tensorflow.python.data.ops.dataset_ops"
_FOR_DATASETS = ("auto_shard", "deterministic", "prefetch")
OPTIONS = ("fetch_to_device", "per_replica_buffer_size", "replication_mode")
"""The settings that are fields of `tf.distribute.InputOptions`."""
SHARED = "_orch_shared"
"""An attribute of the datasets of `worker.files`, which has applied the policy itself."""
starts_given = 0
"""How many calls of `worker.files` in this process have said where they start."""
START = "_orch_start"
"""An attribute of these datasets: the number of batches that they leave out at the beginning."""


def is_elastic() -> bool:
    """True if other attempts of this run may have another number of workers."""
    return bool(os.environ.get("ORCH_ELASTIC"))


def apply_soon(settings: JsonSettings, log_dir: str) -> None:
    """Change TensorFlow's functions so that they apply the settings, as soon as TensorFlow is imported."""
    private_memory.copy_soon()
    patches.after(COUNTS, _ITERATORS, lambda module: _count())
    if "TF_CONFIG" in os.environ or shared("verify", dict):  # first: the policy of the section comes before the order
        same_numbers.seed_soon()
        patches.after(ORDER, _DISTRIBUTE, lambda module: _give_order())
    if not settings.get("apply", True):
        return
    if "shuffle_seed" in settings:
        patches.after(INPUT, _DATASETS, lambda module: _seed_lists_of_files(settings["shuffle_seed"]))
    if any(name in settings for name in (*_FOR_DATASETS, *OPTIONS)):
        patches.after(INPUT, _DISTRIBUTE, lambda module: _apply_to_strategies(settings))


def _count() -> None:
    from . import input_counter

    input_counter.begin()


def _give_order() -> None:
    from . import given, shuffle_order  # TensorFlow has imported by now what these import: no file of the program can stand in its place

    shuffle_order.apply_soon()
    given.compare_soon()


def _apply_to_strategies(settings: JsonSettings) -> None:
    def distribute(
        real: Any, strategy: Any, source: Any = None, options: Any = None, *, dataset: Any = None, dataset_fn: Any = None
    ) -> Any:
        import tensorflow as tf

        if source is None:
            source = dataset if dataset_fn is None else dataset_fn
        if callable(source) or (isinstance(source, tf.data.Dataset) and tf.executing_eagerly()):
            source, options = apply(source, options, strategy, settings, Changes(real.__name__))
        return real(strategy, source, options)

    for name in ("experimental_distribute_dataset", "distribute_datasets_from_function"):
        patches.replace(INPUT, f"StrategyBase.{name}", distribute)


def original(name: str) -> Any:
    """TensorFlow's own method of `StrategyBase`, for `worker.distribute`, which applies the section itself."""
    from tensorflow.python.distribute import distribute_lib

    from ..patches import stand_in

    return stand_in.original(getattr(distribute_lib.StrategyBase, name))


def _seed_lists_of_files(seed: int) -> None:
    """Use this seed in calls of `Dataset.list_files` without one: otherwise each worker would divide a list in another order."""

    def list_files(real: Any, file_pattern: Any, shuffle: Any = None, seed: Any = seed, *args: Any, **kwargs: Any) -> Any:
        return real(file_pattern, shuffle, seed, *args, **kwargs)

    patches.replace(INPUT, "DatasetV2.list_files", list_files)


# --- one dataset -----------------------------------------------------------------------------------


class Changes:
    """Holds what is done to one dataset, and which settings are not applied, for one line of the log."""

    def __init__(self, function: str) -> None:
        self.where = f"{function} at {failure.calling_line()}"
        self.told: list[str] = []

    def print(self) -> None:
        """Print the line in one task of each type; nothing if there is nothing to tell."""
        if self.told:
            import_hooks.print_once(f"input: {'; '.join(self.told)} ({self.where})", is_note=True)


def apply(source: Any, options: Any, strategy: Any, settings: JsonSettings, changes: Changes) -> tuple[Any, Any]:
    """A dataset, or a function from an `InputContext` to one, and its `InputOptions`, with all settings that the script leaves open."""
    import tensorflow as tf

    is_function = not isinstance(source, tf.data.Dataset)
    options = _input_options(settings, options, strategy, changes, is_function=is_function)
    if not is_function:
        source = _apply_to_dataset(source, settings, changes)
        changes.print()
        return source, options

    of_options = list(changes.told)

    @patches.guarded(INPUT)
    def function(*args: Any) -> Any:
        changes.told = list(of_options)  # TensorFlow may call the function several times
        dataset = patches.theirs(source, *args)
        if isinstance(dataset, tf.data.Dataset):
            if "auto_shard" in settings:
                told = "auto_shard does not apply to datasets from a function, which divides them itself"
                changes.told.append(told + _risk(dataset))
            dataset = _apply_to_dataset(dataset, {name: settings[name] for name in settings if name != "auto_shard"}, changes)
        changes.print()
        return dataset

    return function, options


def _apply_to_dataset(dataset: Any, settings: JsonSettings, changes: Changes) -> Any:
    """The dataset with the policy, the order and the prefetching of the settings, except for those that the script has set itself."""
    import tensorflow as tf

    # Inside a function, TensorFlow cannot read the options from the graph: then those of the Python object.
    found = dataset.options() if tf.executing_eagerly() else dataset._options_attr
    options = tf.data.Options()
    if "auto_shard" in settings and not getattr(dataset, SHARED, False):
        wanted, current = settings["auto_shard"], found.experimental_distribute.auto_shard_policy.name.lower()
        if current == "auto" != wanted:
            options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy[wanted.upper()]
            changes.told.append(f"auto_shard {wanted}")
        elif current != wanted:
            changes.told.append(f"auto_shard stays {current}, which the program has set, and not {wanted}{_risk(dataset)}")
    if "deterministic" in settings and found.deterministic is None:
        options.deterministic = settings["deterministic"]
        changes.told.append(f"deterministic {str(settings['deterministic']).lower()}")
    if options != tf.data.Options():
        dataset = dataset.with_options(options)
    if settings.get("prefetch") and "Prefetch" not in type(dataset).__name__:
        dataset = dataset.prefetch(settings["prefetch"])
        changes.told.append(f"prefetch {settings['prefetch']}")
    return dataset


def _risk(dataset: Any) -> str:
    """Return what a division of the program's own means in an elastic cluster."""
    if not is_elastic() or _is_of_files(dataset):
        return ""
    return ", and with another number of workers (--workers MIN:MAX) some elements may come twice and others never"


def _is_of_files(dataset: Any) -> bool:
    """True if `worker.files` has divided the elements of a dataset."""
    return getattr(dataset, SHARED, False) or any(map(_is_of_files, dataset._inputs()))


def _input_options(settings: JsonSettings, given: Any, strategy: Any, changes: Changes, *, is_function: bool) -> Any:
    """The `tf.distribute.InputOptions` of the settings; `given` if the script has options of its own."""
    import tensorflow as tf

    wanted = {name: settings[name] for name in OPTIONS if name in settings}
    if given is not None and wanted:
        changes.told.append(f"{' and '.join(wanted)}: the program's own InputOptions apply")
    if given is not None or not wanted:
        return given
    if wanted.get("replication_mode") == "per_replica" and not (is_function and type(strategy) is tf.distribute.MirroredStrategy):
        changes.told.append("replication_mode per_replica is only for functions, under tf.distribute.MirroredStrategy")
        del wanted["replication_mode"]
    changes.told += [f"{name} {str(value).lower()}" for name, value in wanted.items()]
    if "replication_mode" in wanted:
        wanted["replication_mode"] = tf.distribute.InputReplicationMode[wanted["replication_mode"].upper()]
    return tf.distribute.InputOptions(**{f"experimental_{name}": value for name, value in wanted.items()}) if wanted else None
