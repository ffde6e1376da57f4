"""What a training under orch finds replaced in other packages: the names of the table, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conftest import Orch
from worker.task.patches.names import NAMES

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(900), pytest.mark.slow, pytest.mark.usefixtures("warm_tensorflow")]

PYTHONS_OWN = {"sys:excepthook", "sys:breakpointhook"}


def test_all_that_is_replaced_in_a_training_is_a_row_of_the_table(orch: Orch, script: Any) -> None:
    """Looks at each attribute of each module and class, however it was set: at functions and classes whose code is orch's."""
    script("""
        import functools, json, sys, types
        import numpy as np, tensorflow as tf
        import worker

        strategy = worker.strategy()
        with strategy.scope():
            model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
            model.compile("adam", "mse")
        data = tf.data.Dataset.from_tensor_slices((np.zeros((16, 4)), np.zeros((16, 1)))).shuffle(16).batch(4)
        model.fit(data, epochs=2, verbose=0)
        model.evaluate(data, verbose=0)
        model.predict(data, verbose=0)
        tf.keras.Sequential.own = lambda self: None  # the program's own


        ROOT = worker.__file__.rpartition("/")[0]

        def is_of_orch(value):
            if isinstance(value, property):
                return any(map(is_of_orch, (value.fget, value.fset)))
            while isinstance(value, (staticmethod, classmethod, functools.partial)):
                value = value.func if isinstance(value, functools.partial) else value.__func__
            if isinstance(value, type):
                return str(value.__module__).startswith(("worker.", "orch"))
            is_function = isinstance(value, types.FunctionType)
            return is_function and (value.__code__.co_filename.startswith(ROOT) or "_orch_feature" in vars(value))

        found = set()
        for name, module in list(sys.modules.items()):
            if name.startswith(("worker", "orchestrator", "_orch", "__main__", "__mp_main__")) or not isinstance(module, types.ModuleType):
                continue
            for attribute, value in list(vars(module).items()):
                if is_of_orch(value):
                    found.add(f"{name}:{attribute}")
                if isinstance(value, type) and not is_of_orch(value):
                    for inner, part in list(vars(value).items()):
                        if is_of_orch(part):
                            found.add(f"{value.__module__}:{value.__qualname__}.{inner}")
        if worker.context().index == 0:
            print("found", json.dumps(sorted(found)))
    """)
    done = orch("up", "script.py", "-n", "2", "--checkpoint", "--set", "keras.exact=true", check=0)
    (line,) = [line for line in done.out.splitlines() if "found [" in line]
    found = set(json.loads(line.partition("found ")[2]))
    places = [where.partition("@") for name in NAMES.values() if not name.is_read for where in name.place.split("|")]
    rows = {place for place, _, _ in places} | {f"{other}:{place.partition(':')[2]}" for place, _, other in places if other}
    assert found - rows - PYTHONS_OWN == set()
    assert len(found & rows) > 30
