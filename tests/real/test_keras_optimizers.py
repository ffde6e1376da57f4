"""The step of Keras 3 in training loops and under MirroredStrategy, beside one process. The judge has `fit` of several workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from orchestrator.testing import cluster

DEADLINE_S = 600
pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(2 * DEADLINE_S), pytest.mark.slow, pytest.mark.usefixtures("warm_tensorflow")]

AS_KERAS = ("momentum", "adam", "decay", "sparse", "constraint")
BEFORE_THE_SUM = ("clipnorm", "global_clipnorm", "clipvalue", "decay_and_clipvalue")
ONE_NUMBER = ("function_of_one_number", "class_of_one_number", "sum_that_is_one_number")


def fit(names: Iterable[str]) -> dict[str, Any]:
    from tests.programs import keras_optimizers as program

    return program.run(names)


def loops(names: Iterable[str], exact: bool) -> dict[str, list[float]]:
    from tests.programs import keras_optimizers as program

    return program.run_loops(names, exact=exact)


def ungated(names: Iterable[str]) -> dict[str, Any]:
    from tests.programs import keras_optimizers as program

    return program.ungated(names)


def empty_parts() -> list[float]:
    from tests.programs import keras_optimizers as program

    return program.empty_parts()


def alone(function: Any, *args: Any) -> Any:
    with cluster(workers=1, strategy="none", timeout=DEADLINE_S) as c:
        return c.run(function, *args)["worker-0"]


def different(expected: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """The cases whose numbers are not the expected ones up to rounding."""
    return {
        name: [f"{found[name]}"[:500], f"{expected[name]}"[:500]]
        for name in expected
        if isinstance(found[name], str) or found[name] != pytest.approx(expected[name], rel=2e-4, abs=2e-5)
    }


def test_a_loop_of_ones_own_takes_the_mended_step_if_it_is_asked_for() -> None:
    """And where Keras's own step is right, the mended one is the same, bit for bit."""
    names = (*AS_KERAS, *BEFORE_THE_SUM)
    expected = alone(loops, names, False)
    with cluster(workers=2, timeout=DEADLINE_S) as c:
        by_hand, other = c.run(loops, names, False).values()
        exact, other_exact = c.run(loops, names, True).values()
        assert (by_hand, exact) == (other, other_exact)
        assert {name: by_hand[name] for name in AS_KERAS} == {name: exact[name] for name in AS_KERAS}
        assert different(expected, exact) == {}
        assert set(different({name: expected[name] for name in names}, by_hand)) == set(BEFORE_THE_SUM)
        for option in ("clipnorm", "global_clipnorm", "clipvalue"):
            said = f"orch: warning: {option}: Keras clips on each of the 2 replicas"
            assert [c.logs(name).count(said) for name in c.tasks] == [1, 0]


def test_no_variable_changes_before_all_sums_and_a_replica_without_rows_counts_nothing() -> None:
    names = ("decay_and_clipvalue", "sparse", "global_clipnorm", "constraint", "accumulation", "overwriting_averages", "overflow")
    expected = alone(empty_parts)
    with cluster(workers=2, keras={"exact": True}, timeout=DEADLINE_S) as c:
        first, second = c.run(ungated, names).values()
        dense, sparse = ["CollectiveReduceV2"], ["CollectiveGatherV2", "CollectiveReduceV2"]
        assert first == second == {name: (sparse if name in ("sparse", "global_clipnorm") else dense, []) for name in names}
        first, second = c.run(empty_parts).values()
        assert first == second == pytest.approx(expected, rel=2e-4, abs=2e-5)
        assert "Keras clips" not in c.logs("worker-0")


def test_mirrored_strategy_keeps_the_numbers_that_it_has_by_hand_unless_it_is_asked() -> None:
    names = ("adam", *BEFORE_THE_SUM, *ONE_NUMBER)
    expected = alone(fit, (*names, "accumulation", "overwriting_averages"))
    mirrored: dict[str, Any] = {"workers": 1, "strategy": "mirrored", "cpus": 2, "timeout": DEADLINE_S}
    with cluster(**mirrored, keras="off") as c:
        by_hand = c.run(fit, names)["worker-0"]
    with cluster(**mirrored) as c:
        assert c.run(fit, names)["worker-0"] == by_hand
        said = c.logs("worker-0")
        assert said.count("orch: warning: a loss function that returns one number: Keras adds the replicas' gradients") == 1
        assert said.count("orch: warning: clipvalue: Keras clips on each of the 2 replicas") == 1
    assert set(different({name: expected[name] for name in names}, by_hand)) == {
        *BEFORE_THE_SUM,
        "function_of_one_number",
        "class_of_one_number",
    }
    with cluster(**mirrored, keras={"exact": True}) as c:
        assert different(expected, c.run(fit, expected)["worker-0"]) == {}
        assert "orch: " not in c.logs("worker-0")


def mask_and_float16() -> None:
    """In each task: training with a mask that reaches the loss, and in mixed precision."""
    import keras
    import numpy as np
    import tensorflow as tf

    words: Any = np.arange(48).reshape(8, 6) % 5
    strategy = tf.distribute.get_strategy() if tf.distribute.has_strategy() else tf.distribute.MultiWorkerMirroredStrategy()
    for policy, layers in (
        ("float32", [keras.layers.Embedding(5, 4, mask_zero=True), keras.layers.Dense(1)]),
        ("mixed_float16", [keras.layers.Rescaling(0.1), keras.layers.Dense(1)]),
    ):
        keras.mixed_precision.set_global_policy(policy)
        with strategy.scope():
            model = keras.Sequential(layers)
            model.compile("sgd", "mse")
        model.fit(words.astype("float32"), words[..., None][:, : 6 if policy == "float32" else 1], batch_size=4, verbose=0)


def test_mixed_precision_is_said_to_differ_from_one_process_and_a_mask_does_not() -> None:
    with cluster(workers=2, timeout=DEADLINE_S) as c:
        c.run(mask_and_float16)
        said = c.logs("worker-0")
    assert "a mask makes the loss a mean" not in said, "orch counts the steps of all workers that are not masked"
    assert said.count("orch: warning: mixed precision: a part of a batch overflows") == 1
