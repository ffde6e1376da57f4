"""Lists the features of orch that need names of other packages (`names`). A feature is on if all of its names fit, or off as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from ...values.fast_dataclass import dataclass
from .features import (
    COPIES,
    COUNTS,
    DEVICES,
    FILES,
    FIT,
    GIVEN,
    HEARTBEAT,
    IMPLEMENTATION,
    INPUT,
    LOOPS,
    MEETINGS,
    NO_SAVES,
    NUMBERS,
    ORDER,
    OTHER_TF_CONFIG,
    PACE,
    PARTS,
    PATHS,
    PROFILES,
    RANDOM,
    REFUSAL,
    REPORTS,
    REPORTS_2,
    SAVES,
    SAVES_2,
    SCALE,
    SCALE_2,
    SERVING,
    SIGTERM,
    STEP,
    SWEEPS,
    TESTS,
    TPU,
    TRACEBACKS,
    TYPES,
    VERIFY,
    VERIFY_2,
    WARNINGS,
    WARNINGS_2,
)
from .names import BASE, DISTRIBUTE, NAMES

__all__ = ["FEATURES", "NAMES", "Feature"]


@dataclass(frozen=True, slots=True)
class Feature:
    """Holds what works only if all of its names fit."""

    names: tuple[str, ...]
    sort: Literal["measures", "changes"]
    """``measures``: without it the training is the same. ``changes``: without it numbers or saves differ. What becomes of an error of
    orch's own in the one and in the other, the module `guard` says."""
    lost: str
    """What does not work without the feature: a part of the sentence "…; without it LOST"."""
    reads: Mapping[str, str] = field(default_factory=dict)
    """Private attributes that orch reads, by the module whose source has them."""
    needs: tuple[str, ...] = ()
    """Other features that must be on."""


_STRATEGY_READS = {
    f"{DISTRIBUTE}.collective_all_reduce_strategy": "_in_multi_worker_mode _num_workers _is_chief _id_in_cluster",
    f"{DISTRIBUTE}.input_lib": "_original_dataset",
}
_LAYER_READS = {"keras.src.layers.layer": "_flatten_layers _non_trainable_variables"}


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


FEATURES: dict[str, Feature] = {
    LOOPS: Feature(
        _names(
            "Trainer.fit Trainer.evaluate Trainer.predict Trainer.make_train_function Trainer.make_test_function get_data_adapter "
            "DataAdapter train_validation_split TFEpochIterator EpochIterator.reset EpochIterator.catch_stop_iteration "
            "Trainer._maybe_symbolic_build"
        ),
        "changes",
        "fit of Keras can neither run on several workers nor save",
        reads={"keras.src.trainers.trainer": "_symbolic_build _initial_epoch"},
    ),
    FIT: Feature(
        _names("Trainer.fit Trainer.make_predict_function potentially_ragged_concat Metric.add_variable"),
        "changes",
        "fit, evaluate and predict of Keras cannot run on several workers",
        reads={**_STRATEGY_READS, **_LAYER_READS},
        needs=(LOOPS, STEP, PARTS, ORDER),
    ),
    STEP: Feature(
        _names(
            "BaseOptimizer.apply BaseOptimizer._backend_apply_gradients BaseOptimizer._backend_update_step Loss.__call__ "
            "LossScaleOptimizer.apply LossScaleOptimizer._tf_apply LossScaleOptimizer._stateful_handle_finite_grads "
            "TFOptimizer._all_reduce_sum_gradients TFOptimizer._overwrite_model_variables_with_average_value backend.cond "
            "loss.scale_loss_for_distribution loss.apply_mask loss.reduce_values loss.reduce_weighted_values "
            "Trainer.make_train_function Trainer.make_test_function StrategyBase.num_replicas_in_sync GradientTape.gradient "
            "nn.compute_average_loss"
        ),
        "changes",
        "keras: {exact: true} changes nothing",
        reads={
            BASE.partition(":")[0]: "_trainable_variables _overwrite_variable_with_gradient",
            f"{DISTRIBUTE}.distribute_lib": "_num_replicas_in_sync",
        },
    ),
    PARTS: Feature(
        _names(
            "Trainer.train_step Trainer._make_function nn._compute_moments_sync Variable.__init__ Mean.update_state "
            "input_lib._calculate_replicas_with_values"
        ),
        "changes",
        "several replicas need batches that they can share evenly",
        reads={
            **_LAYER_READS,
            "keras.src.trainers.trainer": "_compile_loss _compile_metrics",
            "keras.src.trainers.compile_utils": "_user_loss _user_metrics",
        },
    ),
    SAVES: Feature(
        _names("Trainer.fit Trainer.make_train_function"),
        "changes",
        "--checkpoint and worker.KerasCheckpoint save nothing",
        reads={"keras.src.trainers.trainer": "_initial_epoch _symbolic_build"},
        needs=(LOOPS, ORDER),
    ),
    SAVES_2: Feature(
        _names("tf_keras.Model.fit tf_keras.get_data_handler tf_keras.DataHandler tf_keras.sync_to_numpy"),
        "changes",
        "--checkpoint and worker.KerasCheckpoint save nothing",
        reads={
            "tf_keras.src.engine.data_adapter": "_adapter _dataset _steps_per_execution",
            "tf_keras.src.engine.training": "_train_counter _get_verbosity",
        },
        needs=(ORDER,),
    ),
    FILES: Feature(
        _names("saving_lib.save_model saving_lib.save_weights_only legacy_h5_format.save_model_to_hdf5 file_utils.makedirs"),
        "changes",
        "workers that save one model to one path may find half of a file",
    ),
    PATHS: Feature(
        _names("save_and_return_nodes DatasetV2.cache"),
        "changes",
        "workers that export to one path, or cache in one file, may find half of it",
    ),
    ORDER: Feature(
        _names("StrategyBase.experimental_distribute_dataset random_shuffle DatasetV2.shuffle DistributedDataset.__iter__ Strategy.gather"),
        "changes",
        "a shuffle without a seed has another order in each worker",
        reads={
            f"{DISTRIBUTE}.input_lib": "_original_dataset _create_cloned_datasets_from_dataset _input_context _input_workers"
            " _num_replicas_in_sync",
            "tensorflow.python.data.ops.dataset_ops": "_inputs _options_attr",
        },
    ),
    GIVEN: Feature(
        _names("DistributedDataset.__iter__"), "measures", "orch prints no warning where the workers of a loop have other data each"
    ),
    INPUT: Feature(
        _names("StrategyBase.experimental_distribute_dataset StrategyBase.distribute_datasets_from_function DatasetV2.list_files"),
        "changes",
        "the section input acts on worker.distribute only",
    ),
    COPIES: Feature(
        _names("FuncRegistry.__call__"), "changes", "TensorFlow may write into arrays that a generator or numpy_function returns"
    ),
    REFUSAL: Feature(_names("Trainer.fit"), "changes", "fit on several workers fails with an error of TensorFlow"),
    REPORTS: Feature(_names("Trainer.fit"), "measures", "fit reports no progress"),
    REPORTS_2: Feature(_names("tf_keras.Model.fit"), "measures", "fit reports no progress"),
    WARNINGS: Feature(
        _names(
            "Trainer.fit Trainer.make_predict_function Trainer.make_train_function Trainer.make_test_function "
            "BaseOptimizer.apply LossScaleOptimizer.apply loss.reduce_values loss.reduce_weighted_values loss.apply_mask"
        ),
        "measures",
        "orch prints no warning where Keras's numbers on several replicas differ from those of one process",
    ),
    WARNINGS_2: Feature(
        _names("tf_keras.Model.fit tf_keras.single_batch_iterator tf_keras.get_data_handler tf_keras.apply_valid_mask"),
        "measures",
        "orch prints no warning where the numbers on several replicas differ from those of one process",
        reads={"tf_keras.src.engine.data_adapter": "_adapter _dataset _inferred_steps"},
    ),
    COUNTS: Feature(
        _names("DistributedIteratorBase.get_next DistributedIteratorBase.get_next_as_optional input_lib._create_per_replica"),
        "measures",
        "batches, rows and the wait for input are not counted",
    ),
    MEETINGS: Feature(
        _names(
            "CollectiveReplicaLauncher.all_reduce CollectiveReplicaLauncher._all_gather "
            "collective_ops.broadcast_send collective_ops.broadcast_recv"
        ),
        "measures",
        "orch cannot tell which worker the others wait for",
    ),
    TYPES: Feature(
        _names("CollectiveReplicaLauncher.all_reduce CollectiveReplicaLauncher._all_gather CollectiveAllReduceExtended.__init__"),
        "changes",
        "several workers cannot have variables of bfloat16, int8 and uint8",
        reads={f"{DISTRIBUTE}.collective_all_reduce_strategy": "_get_variable_creator_initial_value"},
    ),
    SWEEPS: Feature(
        _names("CollectiveAllReduceExtended.__init__"),
        "changes",
        "variables of a second MultiWorkerMirroredStrategy may fail",
        reads={
            f"{DISTRIBUTE}.collective_all_reduce_strategy": "_collective_key_base _std_server_started _enable_check_health",
            "tensorflow.python.eager.context": "_collective_ops_server_def",
        },
    ),
    SIGTERM: Feature(
        _names("Context.ensure_initialized PreemptionWatcher.__init__"),
        "changes",
        "TensorFlow keeps the program's handler of SIGTERM from running",
    ),
    PROFILES: Feature(_names("Context.ensure_initialized"), "measures", "orch profile gets no answer"),
    HEARTBEAT: Feature(_names("Context.configure_coordination_service"), "measures", "collectives.heartbeat_s has no effect"),
    IMPLEMENTATION: Feature(_names("CollectiveAllReduceExtended.__init__"), "measures", "collectives.implementation has no effect"),
    TPU: Feature(_names("TPUClusterResolver.__init__"), "changes", "TPUClusterResolver(tpu='') does not find the TPU of the spec"),
    SERVING: Feature(_names("Server.join"), "measures", "orch does not notice that all tasks only serve"),
    NUMBERS: Feature(
        _names("DistributedVariable.__int__ DistributedVariable.__float__"), "changes", "int() of a variable fails under a strategy"
    ),
    TRACEBACKS: Feature(
        _names("keras.traceback tf_keras.traceback tensorflow.traceback tensorflow.stacks warnings.warn"),
        "measures",
        "tracebacks and warnings show lines of orch",
    ),
    RANDOM: Feature(_names("random_seed.get_seed"), "measures", "orch prints no warning about random numbers that no checkpoint has"),
    OTHER_TF_CONFIG: Feature(_names("os.environ"), "measures", "orch does not notice a program that replaces TF_CONFIG"),
    TESTS: Feature(
        _names("inspect.getmodule pytest.comparisons"), "measures", "comparisons of a test's function in a task have no explanation"
    ),
    NO_SAVES: Feature(
        _names(
            "Checkpoint.save Checkpoint.write CheckpointManager.save save_and_return_nodes "
            "saving_lib.save_model saving_lib.save_weights_only legacy_h5_format.save_model_to_hdf5"
        ),
        "changes",
        "a program that orch verify or orch scale runs would write its own files",
    ),
    VERIFY: Feature(
        _names(
            "Function._run_functions_eagerly CollectiveReplicaLauncher.all_gather GradientTape.gradient StrategyBase.run "
            "StrategyBase.reduce ReplicaContextBase.all_reduce random_uniform random_standard_normal truncated_normal random_uniform_int "
            "stateless_random_uniform_v2 stateless_random_normal_v2 stateless_truncated_normal_v2 stateless_random_uniform_int_v2 "
            "StrategyBase.num_replicas_in_sync tfconfig._load_tf_config map_op._map_v2 "
            "Trainer.make_train_function Trainer.fit BaseOptimizer.apply TFOptimizer._all_reduce_sum_gradients"
        ),
        "measures",
        "orch verify cannot compare",
        reads={BASE.partition(":")[0]: "_trainable_variables"},
        needs=(NO_SAVES,),
    ),
    VERIFY_2: Feature(
        _names(
            "tf_keras.Model.fit tf_keras.Model.make_train_function tf_keras.Optimizer.apply_gradients tf_keras.OptimizerV2.apply_gradients"
        ),
        "measures",
        "orch verify cannot compare",
        needs=(VERIFY,),
    ),
    SCALE: Feature(
        _names(
            "Context.call_function DistributedIteratorBase.get_next DistributedIteratorBase.get_next_as_optional "
            "CollectiveReplicaLauncher.all_reduce CollectiveReplicaLauncher._all_gather Trainer.fit"
        ),
        "measures",
        "orch scale cannot measure",
        needs=(NO_SAVES,),
    ),
    SCALE_2: Feature(_names("tf_keras.Model.fit"), "measures", "orch scale cannot measure", needs=(SCALE,)),
    DEVICES: Feature((), "changes", "the section devices has no effect"),
    PACE: Feature((), "measures", "orch does not know how fast the steps are, and what they wait for"),
}
