"""`worker.KerasCheckpoint`: the callback by which a script asks for saves of its `fit`."""

from __future__ import annotations

import sys
from typing import Any


class KerasCheckpoint:
    """Saves for Keras's `fit`: ``model.fit(..., callbacks=[worker.KerasCheckpoint(every=100)])``. ``orch up --checkpoint`` adds it itself.

    After a restart, `fit` continues with the step after the newest save: weights, optimizer, seeds, metrics, History, the state of the
    other callbacks, the epoch, and the place in the data. Give it to all workers.

    `every`: steps between two saves; by default the end of each epoch. `keep`: how many saves stay (the spec's, or 3). `dir`: the directory
    of the saves, as in `worker.checkpoints`.

    The object is a callback of the Keras that TensorFlow uses. Raises ValueError under Keras 2 and under ParameterServerStrategy.
    """

    def __new__(cls, every: int | None = None, keep: int | None = None, dir: str | None = None) -> Any:
        import tensorflow as tf

        from . import fit_session, keras_saves, saver

        saver.keep_order()
        keras_saves.install()
        made: Any = type("KerasCheckpoint", (tf.keras.callbacks.Callback,), {fit_session.MARK: True})()
        made.every, made.keep, made.dir = every, keep, dir
        if "keras.src" not in sys.modules or not isinstance(made, sys.modules["keras"].callbacks.Callback):
            raise ValueError("worker.KerasCheckpoint is for Keras 3; under Keras 2, save with tf.keras.callbacks.BackupAndRestore")
        return made
