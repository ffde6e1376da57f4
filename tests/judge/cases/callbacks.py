"""Every callback of Keras 3, and callbacks of one's own."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from ..case import Result, case
from ..place import Place

SMALL = "the small model with a metric"


def _fit(place: Place, callbacks: list[Any], epochs: int = 4, **options: Any) -> Result:
    model = options.pop("model", None) or place.small(metrics=["mae"])
    x = place.draws(8)
    y = place.target(x)
    return place.fit(
        model, place.dataset(x, y), epochs=epochs, callbacks=callbacks, validation_data=place.dataset(x[:49], y[:49]), **options
    )


@case("callbacks", "EarlyStopping", model=SMALL)
def early_stopping(place: Place) -> Result:
    stop = place.keras.callbacks.EarlyStopping("val_loss", patience=1, min_delta=0.5, restore_best_weights=True)
    return {**_fit(place, [stop]), "stopped": stop.stopped_epoch, "best": float(stop.best)}


@case("callbacks", "EarlyStopping on the loss of the training", model=SMALL)
def early_stopping_on_loss(place: Place) -> Result:
    stop = place.keras.callbacks.EarlyStopping("loss", patience=0, min_delta=10)
    return {**_fit(place, [stop]), "stopped": stop.stopped_epoch}


@case("callbacks", "ReduceLROnPlateau", model=SMALL)
def plateau(place: Place) -> Result:
    return _fit(place, [place.keras.callbacks.ReduceLROnPlateau("val_loss", patience=0, min_delta=0.5, factor=0.5)])


@case("callbacks", "LearningRateScheduler", model=SMALL)
def scheduler(place: Place) -> Result:
    return _fit(place, [place.keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5)])


@case("callbacks", "ModelCheckpoint, of weights and of the best model", model=SMALL, forms=("even", "tiny"))
def checkpoints(place: Place) -> Result:
    directory, made = place.directory("checkpoints"), place.keras.callbacks
    each = made.ModelCheckpoint(str(directory / "{epoch:02d}.weights.h5"), save_weights_only=True)
    best = made.ModelCheckpoint(str(directory / "best.keras"), monitor="val_loss", save_best_only=True)
    found = _fit(place, [each, best])
    place.meet()
    again = place.keras.models.load_model(str(directory / "best.keras"))
    files = sorted(path.name for path in directory.iterdir() if not path.name.startswith("."))
    return {**found, "best": float(best.best), "files": files, "again": [float(np.sum(weight)) for weight in again.get_weights()]}


@case("callbacks", "ModelCheckpoint, save_freq=3", model=SMALL, forms=("even",))
def checkpoints_of_batches(place: Place) -> Result:
    directory = place.directory("batches")
    found = _fit(place, [place.keras.callbacks.ModelCheckpoint(str(directory / "{batch}.weights.h5"), save_weights_only=True, save_freq=3)])
    place.meet()
    return {**found, "files": sorted(path.name for path in directory.iterdir() if not path.name.startswith("."))}


@case("callbacks", "BackupAndRestore", model=SMALL, forms=("even", "tiny"))
def backup(place: Place) -> Result:
    """The first training ends in the second epoch; the second continues it."""

    class Crash(place.keras.callbacks.Callback):  # type: ignore[name-defined]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 2:
                raise InterruptedError

    directory = str(place.directory("backup"))
    made = place.keras.callbacks.BackupAndRestore
    with contextlib.suppress(InterruptedError):
        _fit(place, [made(directory, delete_checkpoint=False), Crash()])
    place.meet()
    found = _fit(place, [made(directory)])
    place.meet()
    return {**found, "epochs": len(found["loss"])}


@case("callbacks", "CSVLogger", model=SMALL, forms=("even", "tiny"))
def csv_logger(place: Place) -> Result:
    path = place.directory("csv") / "log.csv"
    found = _fit(place, [place.keras.callbacks.CSVLogger(str(path))])
    place.meet()
    rows = [line.split(",") for line in path.read_text().splitlines()]
    return {**found, "columns": sorted(rows[0]), "rows": len(rows)}


@case("callbacks", "TensorBoard", model=SMALL, forms=("even", "tiny"))
def tensorboard(place: Place) -> Result:
    directory = place.directory("board")
    found = _fit(place, [place.keras.callbacks.TensorBoard(str(directory), histogram_freq=1, update_freq=2)])
    place.meet()
    return {**found, "writers": len({path.name.split(".")[4] for path in (directory / "train").iterdir()})}


@case("callbacks", "TerminateOnNaN")
def terminate_on_nan(place: Place) -> Result:
    x = place.draws(8)
    y = place.target(x)
    y[40] = np.inf
    found = place.fit(place.small(), place.dataset(x, y), callbacks=[place.keras.callbacks.TerminateOnNaN()])
    return {"epochs": len(found["loss"]), "iterations": found["iterations"]}


@case("callbacks", "SwapEMAWeights")
def swap(place: Place) -> Result:
    def build() -> Any:
        dense = place.keras.layers.Dense
        optimizer = place.keras.optimizers.SGD(0.05, use_ema=True, ema_momentum=0.5)  # made in the scope of the strategy
        return place.sequential(dense(4, "tanh"), dense(1), optimizer=optimizer)

    model = place.kept(build)
    return _fit(place, [place.keras.callbacks.SwapEMAWeights(swap_on_epoch=True)], model=model)


@case("callbacks", "History, ProgbarLogger and LambdaCallback", model=SMALL)
def simple(place: Place) -> Result:
    made, seen = place.keras.callbacks, []
    each = made.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(sorted(logs)))
    history = made.History()
    found = _fit(place, [history, made.ProgbarLogger(), each])
    return {**found, "seen": seen, "epochs": list(history.epoch)}


@case("callbacks", "a callback that reads and sets weights", model=SMALL)
def weights(place: Place) -> Result:
    class Halve(place.keras.callbacks.Callback):  # type: ignore[name-defined]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.set_weights([weight * 0.5 for weight in self.model.get_weights()])

    return _fit(place, [Halve()])


@case("callbacks", "a callback that evaluates and predicts", model=SMALL, forms=("even", "tiny"))
def evaluates(place: Place) -> Result:
    seen: list[Any] = []
    x = place.draws(8)
    y = place.target(x)

    class Look(place.keras.callbacks.Callback):  # type: ignore[name-defined]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            found = self.model.evaluate(place.dataset(x[:30], y[:30]), verbose=0, return_dict=True)
            seen.append({name: float(value) for name, value in found.items()})
            seen.append(np.asarray(self.model.predict(place.dataset(x[:30]), verbose=0), "float64").tolist())

    return {**_fit(place, [Look()], epochs=2), "seen": seen}


@case("callbacks", "a callback that stops in all workers after a batch", model=SMALL)
def stops(place: Place) -> Result:
    class Stop(place.keras.callbacks.Callback):  # type: ignore[name-defined]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 1:
                self.model.stop_training = True

    return _fit(place, [Stop()])


ONE = "one process has no other worker: the workers are compared"


@case("callbacks", "a callback that stops in one worker", model=SMALL, compare="workers", because=ONE)
def stops_in_one(place: Place) -> Result:
    class Stop(place.keras.callbacks.Callback):  # type: ignore[name-defined]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if epoch == 1 and (place.task == "worker-1" or not place.has_peers):
                self.model.stop_training = True

    found = _fit(place, [Stop()])
    return {**found, "epochs": len(found["loss"])}


@case("callbacks", "callbacks of the chief alone", model=SMALL, forms=("even", "tiny"))
def of_the_chief(place: Place) -> Result:
    made = place.keras.callbacks
    path = str(place.directory("chiefs") / "{epoch}.weights.h5")
    own = [made.ModelCheckpoint(path, save_weights_only=True)]
    return _fit(place, own if place.task == "worker-0" else [])
