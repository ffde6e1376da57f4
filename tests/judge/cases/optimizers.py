"""Every optimizer of Keras 3, its options, schedules and scaled losses. The name of a case is the code that makes the optimizer."""

from __future__ import annotations

import functools
from typing import Any

from ..case import CLIPPED, Case, Result, add, case
from ..place import Place

PLAIN = """
SGD(0.05)
SGD(0.05, momentum=0.9)
SGD(0.05, momentum=0.9, nesterov=True)
RMSprop(0.01)
RMSprop(0.01, momentum=0.9, centered=True)
Adam(0.01)
Adam(0.01, amsgrad=True)
AdamW(0.05, weight_decay=0.5)
Adagrad(0.1)
Adadelta(1.0)
Adamax(0.01)
Nadam(0.01)
Ftrl(0.1)
Lion(0.01)
Adafactor(0.01)
Lamb(0.01)
Muon(0.01)
ScheduleFreeAdamW(0.01)
SGD(0.05, weight_decay=0.1)
SGD(0.05, clipnorm=0.1)
SGD(0.05, global_clipnorm=0.1)
SGD(0.05, clipvalue=0.02)
SGD(0.05, momentum=0.9, global_clipnorm=0.1)
Adam(0.01, clipnorm=0.1, weight_decay=0.1)
SGD(0.05, use_ema=True, ema_momentum=0.5)
SGD(0.05, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2)
SGD(0.05, gradient_accumulation_steps=2)
SGD(0.05, loss_scale_factor=8.0)
LossScaleOptimizer(SGD(0.05), initial_scale=1024.0)
LossScaleOptimizer(SGD(0.05, global_clipnorm=0.1), initial_scale=1024.0)
LossScaleOptimizer(SGD(0.05), initial_scale=1e38)
SGD(schedules.ExponentialDecay(0.1, 2, 0.5))
SGD(schedules.PiecewiseConstantDecay([2, 4], [0.1, 0.05, 0.01]))
SGD(schedules.PolynomialDecay(0.1, 6, 0.01))
SGD(schedules.InverseTimeDecay(0.1, 2, 0.5))
SGD(schedules.CosineDecay(0.1, 8))
SGD(schedules.CosineDecayRestarts(0.1, 3))
""".strip().splitlines()


def _train(place: Place, code: str) -> Result:
    def build() -> Any:
        optimizers = vars(place.keras.optimizers)
        return place.sequential(
            place.keras.layers.Dense(4, "tanh"), place.keras.layers.Dense(1), optimizer=eval(code, dict(optimizers)), jit_compile=False
        )

    model = place.kept(build)
    x = place.draws(8)
    return place.fit(model, place.dataset(x, place.target(x)))


for code in PLAIN:
    add(Case(code, "optimizers", functools.partial(_train, code=code), says=CLIPPED if "clip" in code else ""))


@case("optimizers", "MultiOptimizer, Adam for the last layer", forms=("even",))
def multi_optimizer(place: Place) -> Result:
    def build() -> Any:
        keras = place.keras
        first, last = keras.layers.Dense(4, "tanh"), keras.layers.Dense(1, name="last")
        model = keras.Sequential([keras.layers.Input((8,)), first, last])
        by_path = keras.optimizers.OptimizerMap(keras.optimizers.SGD(0.05), {".*last.*": keras.optimizers.Adam(0.01)})
        model.compile(keras.optimizers.MultiOptimizer(by_path), "mse")
        return model

    x = place.draws(8)
    return place.fit(place.kept(build), place.dataset(x, place.target(x)))


@case("optimizers", "AdamW, exclude_from_weight_decay", forms=("even", "tiny"))
def excluded(place: Place) -> Result:
    def build() -> Any:
        optimizer = place.keras.optimizers.AdamW(0.05, weight_decay=0.5)
        optimizer.exclude_from_weight_decay(var_names=["bias"])
        return place.sequential(place.keras.layers.Dense(4, "tanh"), place.keras.layers.Dense(1), optimizer=optimizer)

    x = place.draws(8)
    return place.fit(place.kept(build), place.dataset(x, place.target(x)))


@case("optimizers", "an optimizer of one's own: update_step", forms=("even", "uneven"), says=CLIPPED)
def own_update(place: Place) -> Result:
    tf = place.tf

    class Own(place.keras.optimizers.Optimizer):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__(learning_rate=0.01, clipnorm=0.5)

        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            self.assign_sub(variable, tf.sign(gradient) * learning_rate + gradient * 0.01)

    return _own(place, Own)


@case("optimizers", "an optimizer of one's own: apply", forms=("even", "uneven"))
def own_apply(place: Place) -> Result:
    class Own(place.keras.optimizers.SGD):  # type: ignore[name-defined]
        def apply(self, grads: Any, trainable_variables: Any = None) -> None:
            super().apply([gradient * 0.5 for gradient in grads], trainable_variables)

    return _own(place, lambda: Own(0.05, momentum=0.9))


def _own(place: Place, make: Any) -> Result:
    dense = place.keras.layers.Dense
    x = place.draws(8)
    model = place.kept(lambda: place.sequential(dense(4, "tanh"), dense(1), optimizer=make()))
    return place.fit(model, place.dataset(x, place.target(x)))


@case("optimizers", "gradients of single rows (Embedding), and a constraint", says=CLIPPED)
def sparse_gradients(place: Place) -> Result:
    layers = place.keras.layers

    def build() -> Any:
        optimizer = place.keras.optimizers.SGD(0.05, momentum=0.9, global_clipnorm=0.5)
        made = (layers.Embedding(7, 3), layers.Flatten(), layers.Dense(1, kernel_constraint="non_neg"))
        return place.sequential(*made, shape=(4,), optimizer=optimizer)

    x = place.draws(4)
    return place.fit(place.kept(build), place.dataset(abs(x * 3).astype("int32") % 7, place.target(x)))


def _with_policy(place: Place, policy: str, x: Any, **options: Any) -> Result:
    mixed = place.keras.mixed_precision
    mixed.set_global_policy(policy)
    try:
        model = place.small(**options)
        found = place.fit(model, place.dataset(x, place.target(x)))
        scale = getattr(model.optimizer, "dynamic_scale", None)
        return {**found, "scale": float(scale.numpy()) if scale is not None and not place.is_keras_2 else 0.0}
    finally:
        mixed.set_global_policy("float32")


COARSE = "half precision: rounding of 1e-3 in each step, in another order"


@case("optimizers", "mixed_float16", compare="workers", because=COARSE)
def mixed_float16(place: Place) -> Result:
    return _with_policy(place, "mixed_float16", place.draws(8))


@case("optimizers", "mixed_bfloat16", compare="workers", because=COARSE)
def mixed_bfloat16(place: Place) -> Result:
    return _with_policy(place, "mixed_bfloat16", place.draws(8))


@case("optimizers", "mixed_float16, the gradients of one replica overflow", says="^orch: warning: mixed precision: ")
def overflowing(place: Place) -> Result:
    x = place.draws(8)
    x[12:16] *= 3000
    found = _with_policy(place, "mixed_float16", x, optimizer=place.keras.optimizers.SGD(1e-4))
    return {"iterations": found["iterations"], "scale": found["scale"]}
