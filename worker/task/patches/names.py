"""Lists every name of Keras, tf_keras, TensorFlow and Python that orch replaces, or whose code it relies on.

A row fits the installed release if the name is there, has the arguments that orch expects, and, where orch relies on the code of a
function, has a known fingerprint. docs/new-keras.md says how to add the form of a new release.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from ...values.fast_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Name:
    """A name of another package."""

    place: str
    """The module and the name in it: ``keras.src.losses.loss:apply_mask``. Other releases have it elsewhere: places after ``|``. After
    ``@``: another module that has imported the name, and where it is replaced."""
    why: str
    """The reason, with the upstream issue."""
    arguments: str = ""
    """The first arguments of the function, or all of them; empty: they do not matter."""
    forms: Mapping[str, str] = field(default_factory=dict)
    """The fingerprint of each known form of the code, and its releases; empty: the code does not matter."""
    is_read: bool = False
    """orch only relies on the code, and replaces nothing."""
    is_added: bool = False
    """The name is missing so far, and orch adds it."""


TRAINER = "keras.src.backend.tensorflow.trainer"
_LOSS = "keras.src.losses.loss"
BASE = "keras.src.optimizers.base_optimizer:BaseOptimizer"
_SCALE = "keras.src.optimizers.loss_scale_optimizer:LossScaleOptimizer"
_OPTIMIZER = "keras.src.backend.tensorflow.optimizer:TFOptimizer"
_SAVING = "keras.src.saving"
DISTRIBUTE = "tensorflow.python.distribute"
_COLLECTIVES = "tensorflow.python.ops.collective_ops"
_CONTEXT = "tensorflow.python.eager.context:Context"


def _of_trainer(name: str) -> str:
    """A method of Keras's trainer, whose class has had another name since 3.16."""
    return f"{TRAINER}:TensorFlowTrainer.{name}|{TRAINER}:Trainer.{name}"


def _of_backend(module: str, name: str) -> str:
    """A function of Keras's TensorFlow backend, which has the folder ``ops`` since 3.16."""
    return f"keras.src.backend.tensorflow.{module}:{name}|keras.src.backend.tensorflow.ops.{module}:{name}"


_ISSUE = "fit fails on several workers, keras#20585"

NAMES: dict[str, Name] = {
    # Keras 3: the trainer.
    "Trainer.fit": Name(_of_trainer("fit"), "callbacks of orch, the run's seed and saves are added to each fit", "self, x"),
    "Trainer.evaluate": Name(_of_trainer("evaluate"), "gets data of orch's own", "self, x"),
    "Trainer.predict": Name(_of_trainer("predict"), "the workers predict shares of each batch, so that rows come in order", "self, x"),
    "Trainer.make_train_function": Name(
        _of_trainer("make_train_function"), f"{_ISSUE}: its function reduces scalars along an axis", "self, force"
    ),
    "Trainer.make_test_function": Name(_of_trainer("make_test_function"), "as make_train_function", "self, force"),
    "Trainer.make_predict_function": Name(
        _of_trainer("make_predict_function"),
        "a part of a batch may be empty, and predict_on_batch returns each row once for each replica",
        "self, force",
        forms={"85bfcac81c": "3.10 and 3.11", "f52167535c": "3.12 to 3.15", "92bfcf7248": "3.16"},
    ),
    "Trainer._make_function": Name(
        _of_trainer("_make_function"),
        "since 3.16 it gives single batches to the graph of a step, and the losses of outputs have other weights",
        is_read=True,
        forms={"f8b642c9fc": "3.10 and 3.11", "f0e3a34496": "3.12 to 3.15", "a015682177": "3.16"},
    ),
    "get_data_adapter": Name(
        "keras.src.trainers.data_adapters:get_data_adapter",
        "takes an adapter of orch's own for x",
        "x, y, sample_weight, batch_size, steps_per_epoch, shuffle, class_weight",
        is_read=True,
    ),
    "train_validation_split": Name(
        "keras.src.trainers.data_adapters.array_slicing:train_validation_split",
        "divides arrays before they become data of orch's own",
        "arrays, validation_split",
        is_read=True,
    ),
    "DataAdapter": Name("keras.src.trainers.data_adapters.data_adapter:DataAdapter", "the class of an adapter", is_read=True),
    "TFEpochIterator": Name(
        f"{TRAINER}:TFEpochIterator",
        "takes data that are divided already",
        is_read=True,
        forms={"f6cd4a3cd7": "3.10 to 3.16"},
    ),
    "Trainer._maybe_symbolic_build": Name(
        _of_trainer("_maybe_symbolic_build"),
        "takes one batch of the data, keras#20585",
        is_read=True,
        forms={"b4c990171c": "3.10", "3760f262fc": "3.11 to 3.16"},
    ),
    "potentially_ragged_concat": Name(
        f"{TRAINER}:potentially_ragged_concat",
        "predict joins rows of several shapes with it",
        is_read=True,
        forms={"520b41b022": "3.10 to 3.16"},
    ),
    "Trainer.train_step": Name(
        _of_trainer("train_step"),
        "Keras's own step scales the loss after it has counted it",
        is_read=True,
        forms={"c0d1d85943": "3.10 and 3.11", "2cd3b715fc": "3.12 to 3.16"},
    ),
    "EpochIterator.reset": Name(
        "keras.src.trainers.epoch_iterator:EpochIterator.reset",
        "sets the number of batches",
        is_read=True,
        forms={"e16a03c5c5": "3.10 to 3.16"},
    ),
    "EpochIterator.catch_stop_iteration": Name(
        "keras.src.trainers.epoch_iterator:EpochIterator.catch_stop_iteration",
        "the end of an epoch",
        is_read=True,
        forms={"fe1d9f9836": "3.10 to 3.15", "e2ea601ca7": "3.16"},
    ),
    "Loss.__call__": Name(
        "keras.src.losses.loss:Loss.__call__",
        "calls reduce_weighted_values",
        is_read=True,
        forms={"4d9ab76fc7": "3.10 to 3.15", "0935ae2130": "3.16"},
    ),
    # Keras 3: optimizers and losses.
    "BaseOptimizer.apply": Name(
        f"{BASE}.apply",
        "gradients are added before they are clipped, tensorflow#33929",
        "self, grads, trainable_variables",
        forms={"816bf8cbad": "3.10 to 3.16"},
    ),
    "BaseOptimizer._backend_apply_gradients": Name(
        f"{BASE}._backend_apply_gradients",
        "what `apply` does in a step",
        is_read=True,
        forms={"4d3910a168": "3.10 to 3.15", "5e1a91add5": "3.16"},
    ),
    "BaseOptimizer._backend_update_step": Name(
        f"{BASE}._backend_update_step", "what TFOptimizer adds gradients in", is_read=True, forms={"b0d513c5b4": "3.10 to 3.16"}
    ),
    "LossScaleOptimizer.apply": Name(
        f"{_SCALE}.apply", "as BaseOptimizer.apply", "self, grads, trainable_variables", forms={"e6d8564924": "3.10 to 3.16"}
    ),
    "LossScaleOptimizer._tf_apply": Name(
        f"{_SCALE}._tf_apply",
        "an overflow is looked for in the sums",
        is_read=True,
        forms={"d603259e0a": "3.10 to 3.15", "e08c0cb08b": "3.16"},
    ),
    "LossScaleOptimizer._stateful_handle_finite_grads": Name(
        f"{_SCALE}._stateful_handle_finite_grads",
        "runs in another thread",
        "self",
        forms={"b26902550b": "3.10 and 3.11", "33a836f163": "3.12 to 3.15", "50000c6887": "3.16"},
    ),
    "TFOptimizer._all_reduce_sum_gradients": Name(
        f"{_OPTIMIZER}._all_reduce_sum_gradients",
        "the gradients are added already",
        "self, grads_and_vars",
        forms={"61d84ca735": "3.10 to 3.13", "e13eb84e1b": "3.14 to 3.16"},
    ),
    "TFOptimizer._overwrite_model_variables_with_average_value": Name(
        f"{_OPTIMIZER}._overwrite_model_variables_with_average_value",
        "works only outside of the code of a replica",
        "self, trainable_variables",
        forms={"b669a58cf0": "3.10 to 3.16"},
    ),
    "backend.cond": Name(
        _of_backend("core", "cond") + "@keras.src.backend.tensorflow.ops",
        "TensorFlow refuses a meeting of replicas in a branch",
        "pred, true_fn, false_fn",
    ),
    "loss.scale_loss_for_distribution": Name(
        f"{_LOSS}:scale_loss_for_distribution", "divides a loss", "value", is_read=True, forms={"0624b82d45": "3.10 to 3.16"}
    ),
    "loss.reduce_values": Name(
        f"{_LOSS}:reduce_values", "divides a mean of several numbers", "values", is_read=True, forms={"c5548bdb87": "3.10 to 3.16"}
    ),
    "loss.reduce_weighted_values": Name(
        f"{_LOSS}:reduce_weighted_values",
        "Keras divides no loss function's result that is one number",
        "values, sample_weight, mask, reduction, dtype",
        forms={"bafcf9e3c1": "3.10 to 3.16"},
    ),
    "loss.apply_mask": Name(
        f"{_LOSS}:apply_mask", "a mean over what a mask leaves is that of a part", "sample_weight, mask, dtype, reduction"
    ),
    # Keras 3: parts of a batch, layers and metrics.
    "nn._compute_moments_sync": Name(
        _of_backend("nn", "_compute_moments_sync"),
        "an empty part adds nothing to the moments",
        "x, axes, keepdims",
        forms={"cfaa0c6b9c": "3.10 to 3.16"},
    ),
    "Variable.__init__": Name(
        "keras.src.backend.common.variables:Variable.__init__", "a variable that the first step makes must not wait for its data", "self"
    ),
    "Mean.update_state": Name(
        "keras.src.metrics.reduction_metrics:Mean.update_state",
        "a mean over batches counts the share of a part",
        "self, values, sample_weight",
        forms={"f2d518fe62": "3.10 to 3.16"},
    ),
    "Metric.add_variable": Name(
        "keras.src.metrics.metric:Metric.add_variable",
        "the aggregation of a metric's variables",
        is_read=True,
        forms={"43b5272376": "3.10 to 3.16"},
    ),
    # Keras 3: files.
    "saving_lib.save_model": Name(f"{_SAVING}.saving_lib:save_model", "several workers write one path", "model, filepath"),
    "saving_lib.save_weights_only": Name(f"{_SAVING}.saving_lib:save_weights_only", "several workers write one path", "model, filepath"),
    "legacy_h5_format.save_model_to_hdf5": Name(
        "keras.src.legacy.saving.legacy_h5_format:save_model_to_hdf5", "several workers write one path", "model, filepath"
    ),
    "file_utils.makedirs": Name("keras.src.utils.file_utils:makedirs", "another worker may make the directory at the same time", "path"),
    # TensorFlow: files.
    "save_and_return_nodes": Name(
        "tensorflow.python.saved_model.save:save_and_return_nodes", "several workers write one path", "obj, export_dir, signatures, options"
    ),
    "DatasetV2.cache": Name(
        "tensorflow.python.data.ops.dataset_ops:DatasetV2.cache", "several workers write one path, each another share", "self, filename"
    ),
    # What TensorFlow and Keras leave out of tracebacks.
    "keras.traceback": Name("keras.src.utils.traceback_utils:_EXCLUDED_PATHS", "the frames of orch are left out of tracebacks"),
    "tf_keras.traceback": Name("tf_keras.src.utils.traceback_utils:_EXCLUDED_PATHS", "as in Keras 3"),
    "tensorflow.traceback": Name("tensorflow.python.util.traceback_utils:_EXCLUDED_PATHS", "as in Keras 3"),
    "tensorflow.stacks": Name("tensorflow.python.util.tf_stack:_source_filter_stacks", "the same for ``Detected at node … defined at``"),
    # tf_keras.
    "tf_keras.Model.fit": Name("tf_keras.src.engine.training:Model.fit", "as Trainer.fit", "self, x"),
    "tf_keras.single_batch_iterator": Name(
        "tf_keras.src.engine.data_adapter:single_batch_iterator", "train_on_batch and test_on_batch: a warning about sums", "strategy, x, y"
    ),
    "tf_keras.get_data_handler": Name(
        "tf_keras.src.engine.data_adapter:get_data_handler", "saves: where the data are; warnings about parts"
    ),
    "tf_keras.DataHandler": Name(
        "tf_keras.src.engine.data_adapter:DataHandler.enumerate_epochs",
        "saves: a training continues within an epoch, in a class of orch's own",
        "self",
        is_read=True,
    ),
    "tf_keras.apply_valid_mask": Name(
        "tf_keras.src.utils.losses_utils:apply_valid_mask", "warnings about masked and scalar losses", "losses, sw, mask, reduction"
    ),
    "tf_keras.sync_to_numpy": Name("tf_keras.src.utils.tf_utils:sync_to_numpy_or_python_type", "saves: the logs of an epoch that was cut"),
    # TensorFlow: input.
    "StrategyBase.experimental_distribute_dataset": Name(
        f"{DISTRIBUTE}.distribute_lib:StrategyBase.experimental_distribute_dataset",
        "the section input, and one order of a shuffle in all workers, tensorflow#45157",
        "self, dataset, options",
    ),
    "StrategyBase.distribute_datasets_from_function": Name(
        f"{DISTRIBUTE}.distribute_lib:StrategyBase.distribute_datasets_from_function", "the section input", "self, dataset_fn, options"
    ),
    "Strategy.gather": Name(f"{DISTRIBUTE}.distribute_lib:Strategy.gather", "a warning about the order of rows", "self, value, axis"),
    "DatasetV2.list_files": Name(
        "tensorflow.python.data.ops.dataset_ops:DatasetV2.list_files", "one order of files in all workers", "file_pattern, shuffle, seed"
    ),
    "DatasetV2.shuffle": Name(
        "tensorflow.python.data.ops.dataset_ops:DatasetV2.shuffle",
        "a shuffle with one order for ever has the same one in all workers",
        "self, buffer_size, seed, reshuffle_each_iteration",
    ),
    "map_op._map_v2": Name(
        "tensorflow.python.data.ops.map_op:_map_v2",
        "a map that draws numbers draws the same ones in each run",
        "input_dataset, map_func, num_parallel_calls, deterministic",
    ),
    "random_shuffle": Name(
        "tensorflow.python.ops.gen_random_ops:random_shuffle", "Keras shuffles the numbers of rows in each worker by itself", "value, seed"
    ),
    "DistributedDataset.__iter__": Name(
        f"{DISTRIBUTE}.input_lib:DistributedDataset.__iter__",
        "the order of a dataset begun again",
        "self",
        forms={"7d30a1e0dd": "2.16 to 2.22"},
    ),
    "DistributedIteratorBase.get_next": Name(f"{DISTRIBUTE}.input_lib:DistributedIteratorBase.get_next", "the wait for input", "self"),
    "DistributedIteratorBase.get_next_as_optional": Name(
        f"{DISTRIBUTE}.input_lib:DistributedIteratorBase.get_next_as_optional", "the wait for input", "self"
    ),
    "input_lib._create_per_replica": Name(f"{DISTRIBUTE}.input_lib:_create_per_replica", "counts batches and rows", "value_list, strategy"),
    "input_lib._calculate_replicas_with_values": Name(
        f"{DISTRIBUTE}.input_lib:_calculate_replicas_with_values",
        "the rows travel with the count of replicas",
        "strategy, input_workers, optional_list",
        forms={"7f0c273ac6": "2.16 to 2.22"},
    ),
    "FuncRegistry.__call__": Name(
        "tensorflow.python.ops.script_ops:FuncRegistry.__call__", "TensorFlow may write into the arrays of a program", "self"
    ),
    "random_seed.get_seed": Name("tensorflow.python.framework.random_seed:get_seed", "a warning about numbers that no save has", "op_seed"),
    # TensorFlow: the runtime.
    "CollectiveReplicaLauncher.all_reduce": Name(
        f"{DISTRIBUTE}.cross_device_utils:CollectiveReplicaLauncher.all_reduce", "the wait for the other workers", "self, input_tensor"
    ),
    "CollectiveReplicaLauncher._all_gather": Name(
        f"{DISTRIBUTE}.cross_device_utils:CollectiveReplicaLauncher._all_gather", "the wait for the other workers", "self, input_tensor"
    ),
    "collective_ops.broadcast_send": Name(f"{_COLLECTIVES}:broadcast_send", "the wait for the other workers"),
    "collective_ops.broadcast_recv": Name(f"{_COLLECTIVES}:broadcast_recv", "the wait for the other workers"),
    "Context.ensure_initialized": Name(
        f"{_CONTEXT}.ensure_initialized", "the runtime begins: TensorFlow replaces the handler of SIGTERM", "self"
    ),
    "Context.configure_coordination_service": Name(
        f"{_CONTEXT}.configure_coordination_service", "collectives.heartbeat_s: the strategy sets none", "self, service_type"
    ),
    "CollectiveAllReduceExtended.__init__": Name(
        f"{DISTRIBUTE}.collective_all_reduce_strategy:CollectiveAllReduceExtended.__init__",
        "collectives.implementation, first values of bfloat16 and int8, and one strategy after the other",
        "self, container_strategy, cluster_resolver, communication_options",
        forms={"4a9ed0c980": "2.16 and 2.17", "3599b12fab": "2.18 to 2.22"},
    ),
    "PreemptionWatcher.__init__": Name(
        f"{DISTRIBUTE}.failure_handling.preemption_watcher:PreemptionWatcher.__init__", "needs TensorFlow's own handler of SIGTERM", "self"
    ),
    "TPUClusterResolver.__init__": Name(
        f"{DISTRIBUTE}.cluster_resolver.tpu.tpu_cluster_resolver:TPUClusterResolver.__init__", "the TPU of the spec", "self, tpu"
    ),
    "Server.join": Name("tensorflow.python.training.server_lib:Server.join", "a program that only serves, for ever, is told of", "self"),
    "DistributedVariable.__int__": Name(
        f"{DISTRIBUTE}.values:DistributedVariable.__int__", "int() works without a strategy only", is_added=True
    ),
    "DistributedVariable.__float__": Name(f"{DISTRIBUTE}.values:DistributedVariable.__float__", "as __int__", is_added=True),
    # TensorFlow and tf_keras: what `orch verify` writes down.
    "Function._run_functions_eagerly": Name(
        "tensorflow.python.eager.polymorphic_function.polymorphic_function:Function._run_functions_eagerly",
        "numbers of a step can be read where its functions are no graphs",
        "self",
    ),
    "CollectiveReplicaLauncher.all_gather": Name(
        f"{DISTRIBUTE}.cross_device_utils:CollectiveReplicaLauncher.all_gather", "works in graphs only", "self, input_tensor, axis, options"
    ),
    "nn.compute_average_loss": Name(
        "tensorflow.python.ops.nn_impl_distribute:compute_average_loss@tensorflow._api.v2.nn",
        "divides a sum over a part by the rows of all",
        "per_example_loss, sample_weight, global_batch_size",
    ),
    "GradientTape.gradient": Name(
        "tensorflow.python.eager.backprop:GradientTape.gradient",
        "losses of single rows count as their sum; the terms of a loss",
        "self, target, sources",
    ),
    "StrategyBase.run": Name(
        f"{DISTRIBUTE}.distribute_lib:StrategyBase.run", "where a step begins and ends, and its rows", "self, fn, args, kwargs, options"
    ),
    "StrategyBase.reduce": Name(f"{DISTRIBUTE}.distribute_lib:StrategyBase.reduce", "what a loop shows", "self, reduce_op, value, axis"),
    "StrategyBase.num_replicas_in_sync": Name(
        f"{DISTRIBUTE}.distribute_lib:StrategyBase.num_replicas_in_sync",
        "the code of a step sees one replica; one process with the batches of several workers",
        "self",
    ),
    "tfconfig._load_tf_config": Name(f"{DISTRIBUTE}.cluster_resolver.tfconfig_cluster_resolver:_load_tf_config", "as num_replicas_in_sync"),
    "ReplicaContextBase.all_reduce": Name(
        f"{DISTRIBUTE}.distribute_lib:ReplicaContextBase.all_reduce", "a program that adds up gradients itself", "self, reduce_op, value"
    ),
    **{
        name: Name(f"tensorflow.python.ops.gen_random_ops:{name}", "the same random numbers in one process and in several", "shape")
        for name in ("random_uniform", "random_standard_normal", "truncated_normal", "random_uniform_int")
    },
    **{
        name: Name(f"tensorflow.python.ops.gen_stateless_random_ops_v2:{name}", "as random_uniform", "shape")
        for name in (
            *("stateless_random_uniform_v2", "stateless_random_normal_v2"),
            *("stateless_truncated_normal_v2", "stateless_random_uniform_int_v2"),
        )
    },
    "tf_keras.Model.make_train_function": Name(
        "tf_keras.src.engine.training:Model.make_train_function", "the steps of a model are marked", "self, force"
    ),
    "tf_keras.Optimizer.apply_gradients": Name(
        "tf_keras.src.optimizers.optimizer:Optimizer.apply_gradients", "gradients as they are applied", "self, grads_and_vars"
    ),
    "tf_keras.OptimizerV2.apply_gradients": Name(
        "tf_keras.src.optimizers.legacy.optimizer_v2:OptimizerV2.apply_gradients", "gradients as they are applied", "self, grads_and_vars"
    ),
    # TensorFlow: what `orch scale` measures, and leaves out.
    "Context.call_function": Name(f"{_CONTEXT}.call_function", "the time in graphs", "self, name, tensor_inputs, num_outputs"),
    "Checkpoint.save": Name("tensorflow.python.checkpoint.checkpoint:Checkpoint.save", "a trial saves nothing", "self, file_prefix"),
    "Checkpoint.write": Name("tensorflow.python.checkpoint.checkpoint:Checkpoint.write", "as Checkpoint.save", "self, file_prefix"),
    "CheckpointManager.save": Name(
        "tensorflow.python.checkpoint.checkpoint_management:CheckpointManager.save", "as Checkpoint.save, and removes none", "self"
    ),
    # Python, and the tools of tests.
    "os.environ": Name("os:_Environ", "a program that replaces TF_CONFIG is noticed"),
    "warnings.warn": Name(
        "warnings:warn|_py_warnings:warn@warnings", "a warning's place is no line of orch", "message, category, stacklevel"
    ),
    "inspect.getmodule": Name("inspect:getmodule", "AutoGraph converts no function that a test has sent by value", "object, _filename"),
    "pytest.comparisons": Name("_pytest.assertion.util:_reprcompare", "a failed comparison in a task is explained as in the test"),
}
