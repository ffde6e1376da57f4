"""The part of the judge that the test suite runs: for each mend of orch that no other test shows, at least one unit that is wrong without
the mend. The worlds other than that of two workers have the hardest form of data.
"""

from __future__ import annotations

from .tasks import Unit


def _of(form: str, *names: str) -> tuple[Unit, ...]:
    return tuple((name, form) for name in names)


TWO: dict[str, tuple[Unit, ...]] = {
    "the order of a step": (
        *_of(
            "uneven",
            "SGD(0.05, gradient_accumulation_steps=2)",
            "an optimizer of one's own: update_step",
            "gradients of single rows (Embedding), and a constraint",
            "losses of numbers",
            "functions as losses",
            "regularizers: L1, L2, L1L2, OrthogonalRegularizer",
            "worker.distribute of a dataset, optimizer.apply",
        ),
        *_of("tiny", "AdamW(0.05, weight_decay=0.5)", "activity_regularizer"),
        *_of("even", "mixed_float16, the gradients of one replica overflow"),
    ),
    "parts and state": (
        *_of("uneven", "metrics of chances"),
        *_of(
            "tiny",
            "metrics made outside the scope",
            "metrics after each batch, in a callback",
            "layers for images",
            "statistics for rows",
            "a subclass of Model",
            "a train_step of one's own: the weights",
            "a train_step and a test_step, without call(): a GAN",
            "the data of one worker ends early, with Conv1D and MaxPooling1D",
        ),
        *_of("even", "a layer of one's own with a moving mean"),
    ),
    "forms of data": (
        # These train one model, and so do the callbacks below: a model is traced once for the cases that follow each other.
        *_of("uneven", "a dataset", "a generator", "files of text, AUTO"),
        *_of("tiny", "a PyDataset with workers"),
        *_of("even", "a distributed dataset from a function"),
        *_of(
            "uneven",
            "dicts, with sample_weight and validation_data",
            "run_eagerly=True",
            "steps_per_execution=3",
            "evaluate: arrays, a dataset, a dataset of unknown length",
        ),
        *_of(
            "tiny",
            "arrays, validation_split and class_weight",
            "predict: arrays, a dataset, a dataset of unknown length",
        ),
    ),
    "batches, callbacks and files": (
        *_of("uneven", "EarlyStopping"),
        *_of(
            "tiny",
            "ModelCheckpoint, of weights and of the best model",
            "BackupAndRestore",
            "CSVLogger",
            "TensorBoard",
            "callbacks of the chief alone",
            "save, load and train on",
        ),
        *_of(
            "even",
            "jit_compile=True",
            "train_on_batch",
            "test_on_batch",
            "predict_on_batch",
            "export, each worker to a path of its own",
        ),
    ),
}
"""Four parts, each of which takes as long as the others: pytest's processes run them beside each other. `tests/real/test_data.py` has
shuffles, `worker.files`, predictions of files and arrays in files; `tests/real/test_keras_optimizers.py` clipping in loops.
"""
TWO_OF_TWO: tuple[Unit, ...] = _of(
    "tiny",
    "a dataset",
    "SGD(0.05, global_clipnorm=0.1)",
    "metrics of chances",
    "statistics for rows",
    "EarlyStopping",
    "gather and experimental_local_results of a batch",
    "predict: arrays, a dataset, a dataset of unknown length",
)
KERAS_2: tuple[Unit, ...] = (
    *_of(
        "even",
        "a subclass of Model",
        "a dataset with policy OFF",
        "a layer of one's own with a moving mean",
        "arrays, validation_split and class_weight",
        "dicts, with sample_weight and validation_data",
        "predict: arrays, a dataset, a dataset of unknown length",
        "EarlyStopping",
        "ModelCheckpoint, of weights and of the best model",
        "functions as losses",
        "losses of labels",
    ),
    *_of("tiny", "fit, evaluate and predict again and again", "AdamW(0.05, weight_decay=0.5)"),
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
"""For the oldest release of Keras 3 that orch knows."""
BETWEEN: tuple[Unit, ...] = tuple(unit for unit in OLDER if unit[0] in ("a dataset", "steps_per_execution=3", "functions as losses"))
"""For the releases between this one and the newest, in which one or two functions have the form of the oldest, and the others that of the
newest.
"""
