"""The part of the judge that the test suite runs: for each mend of orch at least one unit that is wrong without the mend. The worlds other
than that of two workers have the hardest form of data.
"""

from __future__ import annotations

from .tasks import Unit


def _of(form: str, *names: str) -> tuple[Unit, ...]:
    return tuple((name, form) for name in names)


TWO: tuple[Unit, ...] = (
    *_of(
        "uneven",
        "SGD(0.05, global_clipnorm=0.1)",
        "Adam(0.01, clipnorm=0.1, weight_decay=0.1)",
        "SGD(0.05, gradient_accumulation_steps=2)",
        "an optimizer of one's own: update_step",
        "gradients of single rows (Embedding), and a constraint",
        "losses of numbers",
        "functions as losses",
        "regularizers: L1, L2, L1L2, OrthogonalRegularizer",
        "metrics of chances",
        "a dataset",
        "a dataset, shuffled",
        "a generator",
        "arrays, validation_data of arrays, sample_weight",
        "dicts, with sample_weight and validation_data",
        "files of text, AUTO",
        "files, predicted in order",
        "worker.files",
        "run_eagerly=True",
        "steps_per_execution=3",
        "evaluate: arrays, a dataset, a dataset of unknown length",
        "EarlyStopping",
        "ReduceLROnPlateau",
        "worker.distribute of a dataset, optimizer.apply",
    ),
    *_of(
        "tiny",
        "AdamW(0.05, weight_decay=0.5)",
        "activity_regularizer",
        "metrics made outside the scope",
        "metrics after each batch, in a callback",
        "layers for images",
        "statistics for rows",
        "a subclass of Model",
        "a train_step of one's own: the weights",
        "a train_step and a test_step, without call(): a GAN",
        "a PyDataset with workers",
        "an array of a file, mmap_mode='r+', in a PyDataset",
        "arrays, validation_split and class_weight",
        "predict: arrays, a dataset, a dataset of unknown length",
        "the data of one worker ends early, with Conv1D and MaxPooling1D",
        "save, load and train on",
        "ModelCheckpoint, of weights and of the best model",
        "BackupAndRestore",
        "CSVLogger",
        "TensorBoard",
        "callbacks of the chief alone",
    ),
    *_of(
        "even",
        "mixed_float16, the gradients of one replica overflow",
        "SGD(schedules.ExponentialDecay(0.1, 2, 0.5))",
        "jit_compile=True",
        "train_on_batch",
        "test_on_batch",
        "predict_on_batch",
        "a distributed dataset from a function",
        "a layer of one's own with a moving mean",
        "export, each worker to a path of its own",
    ),
)
TWO_OF_TWO: tuple[Unit, ...] = _of(
    "tiny",
    "a dataset",
    "SGD(0.05, global_clipnorm=0.1)",
    "metrics of chances",
    "statistics for rows",
    "EarlyStopping",
    "predict: arrays, a dataset, a dataset of unknown length",
)
KERAS_2: tuple[Unit, ...] = _of(
    "even",
    "a subclass of Model",
    "arrays, validation_split and class_weight",
    "dicts, with sample_weight and validation_data",
    "predict: arrays, a dataset, a dataset of unknown length",
    "EarlyStopping",
    "ModelCheckpoint, of weights and of the best model",
)
OLDER: tuple[Unit, ...] = _of(
    "tiny",
    "a dataset",
    "SGD(0.05, gradient_accumulation_steps=2)",
    "SGD(0.05, global_clipnorm=0.1)",
    "functions as losses",
    "dicts, with sample_weight and validation_data",
    "steps_per_execution=3",
    "mixed_float16, the gradients of one replica overflow",
    "BackupAndRestore",
)
"""For a release of Keras 3 that is not the newest."""
