"""`model.fit` that loses nothing to a restart: nothing here knows of orch.

    orch up examples/resume_fit.py --workers 2 --checkpoint --set checkpoints.every=10 --max-restarts 3

After a restart, `fit` continues with the step after the newest save: weights, optimizer, dropout, the order of the data, the metrics of the
epoch, History and the other callbacks are what they would be without the restart. `--die` kills the first worker in its second epoch.
"""

import os
import signal
import sys

import digits
import keras
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy() if "TF_CONFIG" in os.environ else tf.distribute.get_strategy()
with strategy.scope():
    model = keras.Sequential([keras.Input([64]), keras.layers.Dense(64, "relu"), keras.layers.Dropout(0.2), keras.layers.Dense(10)])
    model.compile(
        optimizer=keras.optimizers.AdamW(0.01),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )


class Die(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        is_first = os.environ.get("ORCH_TASK") == "worker-0" and os.environ.get("ORCH_ATTEMPT") == "1"
        if "--die" in sys.argv and is_first and (self.epoch, batch) == (1, 14):
            os.kill(os.getpid(), signal.SIGKILL)


x, y = digits.load("train")
stops = keras.callbacks.EarlyStopping("val_loss", patience=3)
history = model.fit(x, y, batch_size=60, epochs=4, validation_data=digits.load("test"), callbacks=[Die(), stops], verbose=0)
print("loss of each epoch:", *(f"{loss:.6f}" for loss in history.history["loss"]))
accuracy = history.history["val_accuracy"][-1]
print(f"test accuracy {accuracy:.2f}")
if accuracy < 0.9:
    sys.exit(1)
