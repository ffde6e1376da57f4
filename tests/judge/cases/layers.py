"""Every family of layers of Keras 3. The name of a case is the code that makes the layers."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ..case import OWN_STATE, Case, Result, add, case
from ..place import Branch, Place, aligned, branches

SHAPES: dict[str, tuple[int, ...]] = {
    "rows": (8,),
    "images": (6, 6, 2),
    "series": (6, 3),
    "short series": (3, 3),
    "volumes": (4, 4, 4, 1),
    "films": (3, 4, 4, 1),
}
DRAWN = "all replicas draw the same mask, each for its own part: only that the numbers are finite, and the same in all workers"
STATISTICS = "each replica normalises by its own part of the batch, as the documentation of the layer says: the workers are compared"
# The form of a row, what is common to the layers, and the code that makes each.
LAYERS: dict[tuple[str, str], str] = {
    ("rows", "layers"): """
Dense(4, 'gelu')
Dense(4, kernel_constraint='non_neg')
EinsumDense('ab,bc->ac', output_shape=4)
TernaryDense(4)
PReLU()
LeakyReLU()
ELU()
ReLU()
Softmax()
Activation('silu')
Identity()
Reshape((4, 2))
RepeatVector(2)
Rescaling(2.0, 1.0)
""",
    ("rows", "norms"): """
LayerNormalization()
UnitNormalization()
SpectralNormalization(Dense(4))
RMSNormalization()
BatchNormalization(synchronized=True)
""",
    ("rows", "statistics"): """
BatchNormalization()
""",
    ("rows", "random layers"): """
Dropout(0.3)
AlphaDropout(0.3)
GaussianDropout(0.3)
GaussianNoise(0.3)
""",
    ("images", "convolutions"): """
Conv2D(2, 3)
Conv2D(2, 3, strides=2, padding='same')
DepthwiseConv2D(3)
SeparableConv2D(2, 3)
Conv2DTranspose(2, 3)
""",
    ("images", "pools"): """
MaxPooling2D(2)
AveragePooling2D(2)
""",
    ("images", "layers"): """
GlobalAveragePooling2D()
GlobalMaxPooling2D()
GroupNormalization(groups=2)
UpSampling2D(2)
ZeroPadding2D(1)
Cropping2D(1)
Permute((2, 1, 3))
Resizing(4, 4)
CenterCrop(4, 4)
""",
    ("images", "adaptive pools"): """
AdaptiveAveragePooling2D(2)
AdaptiveMaxPooling2D(2)
""",
    ("images", "random layers"): """
SpatialDropout2D(0.3)
RandomFlip()
RandomRotation(0.2)
RandomZoom(0.2)
RandomContrast(0.2)
RandomTranslation(0.2, 0.2)
""",
    ("short series", "recurrent layers"): """
LSTM(3)
GRU(3)
SimpleRNN(3)
LSTM(3, return_sequences=True, go_backwards=True)
Bidirectional(GRU(2))
RNN(StackedRNNCells([GRUCell(2), LSTMCell(2)]))
TimeDistributed(Dense(2))
Masking()
""",
    ("series", "convolutions"): """
Conv1D(2, 3)
Conv1D(2, 3, padding='causal')
DepthwiseConv1D(3)
SeparableConv1D(2, 3)
Conv1DTranspose(2, 3)
""",
    ("series", "pools"): """
MaxPooling1D(2)
AveragePooling1D(2)
GlobalAveragePooling1D()
GlobalMaxPooling1D()
""",
    ("short series", "random layers"): """
SpatialDropout1D(0.3)
LSTM(3, dropout=0.3)
""",
    ("volumes", "convolutions"): """
Conv3D(2, 2)
Conv3DTranspose(2, 2)
""",
    ("volumes", "pools"): """
MaxPooling3D(2)
AveragePooling3D(2)
""",
    ("films", "recurrent layers"): """
ConvLSTM2D(2, 2)
""",
    ("words", "layers"): """
Embedding(12, 3)
Embedding(12, 3, mask_zero=True)
CategoryEncoding(12, output_mode='multi_hot')
""",
}


def _train(place: Place, kind: str, codes: list[str]) -> Result:
    """One model with a branch for each of these layers."""
    layers = place.keras.layers

    def made(code: str) -> list[Any]:
        before = [layers.Dense(8, "tanh")] if kind == "rows" else []
        return [*before, eval(code, dict(vars(layers))), layers.Flatten(), layers.Dense(1)]

    words = kind == "words"
    x = aligned((np.abs(place.draws(5)) * 5).astype("int32") % 12) if words else place.draws(*SHAPES[kind])
    of_rows: dict[str, Branch] = {code: (lambda code=code: made(code), lambda: "mse") for code in codes}
    return branches(place, of_rows, x, place.target(place.draws(8)), dtype="int32" if words else None, predicts=True)


for (kind, what), text in LAYERS.items():
    codes = text.strip().splitlines()
    own = {"random layers": {"compare": "finite", "because": DRAWN}, "statistics": {"compare": "workers", "because": STATISTICS}}.get(
        what, {}
    )
    train = functools.partial(_train, kind=kind, codes=codes)
    add(Case(f"{what} for {kind}", "layers", train, rows=tuple(codes), **own))  # type: ignore[arg-type]


SEVERAL = (
    *("Add()", "Subtract()", "Multiply()", "Average()", "Maximum()", "Minimum()", "Concatenate()", "Dot(axes=1, normalize=True)"),
    *("Attention()", "AdditiveAttention()", "MultiHeadAttention(2, 2)", "GroupQueryAttention(2, 2, 1)"),
)


def _with_several_inputs(place: Place) -> Result:
    """One model: the layers have the rows, and what a dense layer makes of them."""
    layers = place.keras.layers

    def made(code: str) -> list[Any]:
        inner = eval(code, dict(vars(layers)))
        first = layers.Dense(4, "tanh")
        inputs = place.keras.Input((6, 4))
        takes_two = "MultiHead" in code or "GroupQuery" in code
        joined = inner(inputs, first(inputs)) if takes_two else inner([inputs, first(inputs)])
        return [place.keras.Model(inputs, joined), layers.Flatten(), layers.Dense(1)]

    x = place.draws(6, 4)
    of_rows: dict[str, Branch] = {code: (lambda code=code: made(code), lambda: "mse") for code in SEVERAL}
    return branches(place, of_rows, x, place.target(x))


add(Case("layers with several inputs", "layers", _with_several_inputs, rows=SEVERAL))


@case("layers", "Normalization(), adapted")
def normalization(place: Place) -> Result:
    def build() -> Any:
        layer = place.keras.layers.Normalization()
        layer.adapt(place.draws(8)[:80])
        return place.sequential(layer, place.keras.layers.Dense(1))

    x = place.draws(8)
    return place.fit(place.kept(build), place.dataset(x, place.target(x)))


@case("layers", "Discretization, IntegerLookup and StringLookup, in the dataset", forms=("even",))
def lookups(place: Place) -> Result:
    layers = place.keras.layers
    bins = layers.Discretization([-1.0, 0.0, 1.0])
    lookup = layers.IntegerLookup(vocabulary=[0, 1, 2])
    words = layers.StringLookup(vocabulary=["0", "1"])
    x = place.draws(8)

    def prepare(x: Any, y: Any) -> Any:
        found = lookup(place.tf.cast(bins(x), "int64"))
        return place.tf.cast(found + words(place.tf.strings.as_string(found)), "float32"), y

    model = place.kept(lambda: place.sequential(layers.Dense(1)))
    return place.fit(model, place.dataset(x, place.target(x)).map(prepare))


def _own_state(place: Place, **how: Any) -> Result:
    class Centre(place.keras.layers.Layer):  # type: ignore[name-defined]
        """Subtracts a moving mean of what went through."""

        def build(self, shape: Any) -> None:
            self.mean = self.add_weight(shape=(shape[-1],), initializer="zeros", trainable=False, name="mean", **how)

        def call(self, x: Any, training: Any = False) -> Any:
            if training:
                self.mean.assign(0.9 * self.mean + 0.1 * place.tf.reduce_mean(x, axis=0))
            return x - self.mean

    model = place.kept(lambda: place.sequential(place.keras.layers.Dense(4), Centre(), place.keras.layers.Dense(1)))
    x = place.draws(8)
    return place.fit(model, place.dataset(x, place.target(x)))


ITS_OWN = "each replica computes with the mean of its own part during a step: the workers are compared"


@case("layers", "a layer of one's own with a moving mean", compare="workers", because=ITS_OWN, says=OWN_STATE)
def own_state(place: Place) -> Result:
    return _own_state(place)


@case("layers", "a layer of one's own that counts its calls", says=OWN_STATE)
def counting(place: Place) -> Result:
    class Count(place.keras.layers.Layer):  # type: ignore[name-defined]
        def build(self, shape: Any) -> None:
            self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False, name="calls")

        def call(self, x: Any, training: Any = False) -> Any:
            if training:
                self.calls.assign_add(1.0)
            return x

    model = place.kept(lambda: place.sequential(place.keras.layers.Dense(4), Count(), place.keras.layers.Dense(1)))
    x = place.draws(8)
    return place.fit(model, place.dataset(x, place.target(x)))


@case("layers", "an Embedding of positions, with Adam", says="an embedding of positions")
def positions(place: Place) -> Result:
    class Places(place.keras.layers.Layer):  # type: ignore[name-defined]
        """Adds a row of a table to each column, the same in all rows of a batch."""

        def __init__(self) -> None:
            super().__init__()
            self.table = place.keras.layers.Embedding(8, 1)

        def call(self, x: Any) -> Any:
            return x + place.tf.reshape(self.table(place.tf.range(8)), (1, 8))

    def build() -> Any:
        layers = (Places(), place.keras.layers.Dense(4, "tanh"), place.keras.layers.Dense(1))
        return place.sequential(*layers, optimizer=place.keras.optimizers.Adam(0.01))

    model = place.kept(build)
    x = place.draws(8)
    return place.fit(model, place.dataset(x, place.target(x)))
