"""The generators of random numbers of a process: what a save has of them, and operations that nothing can save."""

from __future__ import annotations

import os
import random
import sys
from typing import Any, cast

from .. import failure, patches
from ..patches.features import RANDOM
from ..patches.import_hooks import print_once
from .variables import NamedVariable


def state() -> dict[str, Any]:
    """The global generators of Python and NumPy, as JSON."""
    import numpy as np

    version, numbers, gauss = random.getstate()
    kind, keys, *rest = cast("tuple[Any, ...]", np.random.get_state(legacy=True))
    return {"python": [version, list(numbers), gauss], "numpy": [kind, keys.tolist(), *rest]}


def raw() -> tuple[Any, ...]:
    """The same, to be compared: some microseconds."""
    import numpy as np

    kind, keys, *rest = cast("tuple[Any, ...]", np.random.get_state(legacy=True))
    return random.getstate(), kind, keys.tobytes(), *rest


KERAS_GENERATOR = "global_seed_generator"
"""The attribute in which Keras 3 keeps its generator (keras/src/random/seed_generator.py; before 3.13 the file has no constant for it)."""


def made() -> tuple[bool, bool]:
    """Return whether the program has used the global generators of Keras 3 and of TensorFlow."""
    keras, stateful = sys.modules.get("keras.src.random.seed_generator"), sys.modules.get("tensorflow.python.ops.stateful_random_ops")
    return (
        keras is not None and keras.global_state.get_global_attribute(KERAS_GENERATOR) is not None,
        stateful is not None and stateful.global_generator is not None,
    )


def restore(found: dict[str, Any]) -> None:
    import numpy as np

    version, numbers, gauss = found["python"]
    random.setstate((version, tuple(numbers), gauss))
    kind, keys, *rest = found["numpy"]
    np.random.set_state((kind, np.array(keys, np.uint32), *rest))


def generators(strategy: Any, wanted: Any = ()) -> list[NamedVariable]:
    """The global generators of Keras 3 and of TensorFlow, if the program has used them, or if a save has them (`wanted`: its names)."""
    found = []
    keras = sys.modules.get("keras.src.random.seed_generator")
    if keras is not None:
        name = "keras.random/state"
        if name in wanted and keras.global_state.get_global_attribute(KERAS_GENERATOR) is None:
            with strategy.scope():
                keras.global_seed_generator()
        made = keras.global_state.get_global_attribute(KERAS_GENERATOR)
        if made is not None:
            found.append(NamedVariable(name, made.state._value, True))
    stateful = sys.modules.get("tensorflow.python.ops.stateful_random_ops")
    if stateful is not None:
        name = "tf.random/state"
        if name in wanted and stateful.global_generator is None:
            with strategy.scope():
                stateful.get_global_generator()
        if stateful.global_generator is not None:
            found.append(NamedVariable(name, stateful.global_generator.state, True))
    return found


def watch() -> None:
    """From now on, say so where the program draws numbers by an operation whose position is in no variable, such as `tf.random.normal`.

    Every such operation asks for its seed by one function (tensorflow/python/framework/random_seed.py); inside a `tf.function`, when the
    function is traced. Datasets are judged by `input_check`.
    """

    def get_seed(real: Any, op_seed: Any) -> Any:
        if not _is_of_input():
            print_once(
                f"checkpoints: {failure.calling_line()} draws random numbers that no checkpoint can restore. "
                "fix: keras.random, tf.random.Generator or tf.random.stateless_…"
            )
        return real(op_seed)

    patches.replace(RANDOM, "random_seed.get_seed", get_seed)


def _is_of_input() -> bool:
    frame: Any = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if f"{os.sep}data{os.sep}" in name or "data_adapter" in name or name.endswith(("stateful_random_ops.py", "shuffle_order.py")):
            return True
        frame = frame.f_back
    return False
