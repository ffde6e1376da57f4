"""The words of the judge, and that it has a case for all of Keras. `make judge` runs the cases."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from orchestrator.testing import cluster
from tests.judge import cases, findings
from tests.judge.case import CASES, Case, find
from tests.judge.cases import draws
from tests.judge.verdicts import AS_ONE, CRASHES, DIFFERS, REFUSED, SAYS_SO, judge

assert cases  # importing them has filled the list

DEADLINE_S = 900
PLAIN = Case("plain", "models", dict)  # type: ignore[arg-type]


def on_tensorflow(test: Any) -> Any:
    for mark in (pytest.mark.timeout(DEADLINE_S), pytest.mark.slow, pytest.mark.tensorflow, pytest.mark.usefixtures("warm_tensorflow")):
        test = mark(test)
    return test


# --- the words -----------------------------------------------------------------------------------


def answer(result: Any, *lines: str) -> dict[str, Any]:
    return {"result": result, "lines": list(lines)}


def verdict(*answers: dict[str, Any], wanted: Any, case: Case = PLAIN) -> str:
    named = {f"worker-{number}": one for number, one in enumerate(answers)}
    return judge(case, case.name, named, {"worker-0": answer(wanted)}).word


def test_numbers_are_those_of_one_process_up_to_rounding() -> None:
    wanted = {"loss": [1.0, 0.5], "weights": [[2.0]], "iterations": 6}
    assert verdict(answer({**wanted, "loss": [1.00001, 0.5]}), answer(wanted), wanted=wanted) == AS_ONE
    assert verdict(answer({**wanted, "loss": [1.01, 0.5]}), answer({**wanted, "loss": [1.01, 0.5]}), wanted=wanted) == DIFFERS
    assert verdict(answer({**wanted, "loss": [1.0]}), answer({**wanted, "loss": [1.0]}), wanted=wanted) == DIFFERS
    assert verdict(answer({**wanted, "iterations": 7}), answer({**wanted, "iterations": 7}), wanted=wanted) == DIFFERS
    assert verdict(answer({"loss": math.nan}), answer({"loss": math.nan}), wanted={"loss": 1.0}) == DIFFERS
    assert verdict(answer({"loss": math.nan}), answer({"loss": math.nan}), wanted={"loss": math.nan}) == AS_ONE


def test_a_difference_that_is_said_must_be_said_of_this_matter() -> None:
    case = Case("plain", "models", dict, says="batch")  # type: ignore[arg-type]
    apart = answer({"loss": 2.0}, "orch: fit(): the last batch has 1 row"), answer({"loss": 2.0})
    other = answer({"loss": 2.0}, "orch: jit_compile=True is ignored"), answer({"loss": 2.0})
    assert [verdict(*answers, wanted={"loss": 1.0}, case=case) for answers in (apart, other)] == [SAYS_SO, DIFFERS]
    assert verdict(*apart, wanted={"loss": 1.0}) == DIFFERS, "a case that names no words"
    uneven = (
        answer({"loss": 2.0}, "orch: batches of 16, the last one of 1, give 2 replicas parts of different size."),
        answer({"loss": 2.0}),
    )
    assert verdict(*uneven, wanted={"loss": 1.0}) == SAYS_SO


def test_what_is_said_of_a_model_counts_for_all_that_train_it_and_what_is_said_of_parts_does_not() -> None:
    units = [("draw 12", "even"), ("draw 13", "even")]
    assert {(find(name).model, draws.world_of(int(name[5:]))) for name, _ in units} == {("model 2", "two")}
    for line, words in {
        "orch: a loss function that returns one number": [SAYS_SO, SAYS_SO],
        "orch: batches give 2 replicas parts of different size.": [SAYS_SO, DIFFERS],
    }.items():
        of_two = {units[0]: {"worker-0": answer({"loss": 2.0}, line)}, units[1]: {"worker-0": answer({"loss": 2.0})}}
        found = findings.verdicts({"one": {unit: {"worker-0": answer({"loss": 1.0})} for unit in units}, "two": of_two})
        assert [found["two"][name][form].word for name, form in units] == words


def test_a_refusal_is_the_same_clear_exception_in_all_workers() -> None:
    refusal = {"error": "ValueError: this cannot be trained; do that", "kinds": ["builtins.ValueError"]}
    unclear = {"error": "AttributeError: no attribute", "kinds": ["builtins.AttributeError"]}
    of_tensorflow = {"error": "InternalError: Collective", "kinds": ["tensorflow.InternalError", "tensorflow.OpError"]}
    found = [
        verdict(one, two, wanted={})
        for one, two in ((refusal, refusal), (unclear, unclear), (of_tensorflow,) * 2, (refusal, {"ended": "stopped"}))
    ]
    assert found == [REFUSED, CRASHES, CRASHES, CRASHES]


# --- what there is -------------------------------------------------------------------------------

BASES = {
    *("Optimizer", "OptimizerMap", "Loss", "Metric", "MeanMetricWrapper", "Mean", "Sum", "Callback", "CallbackList"),
    *("Layer", "Wrapper", "InputLayer", "InputSpec"),
}
NOT_JUDGED = {
    "OrbaxCheckpoint": "it needs a package that is not installed",
    "RemoteMonitor": "it needs a server",
    **dict.fromkeys(("FlaxLayer", "JaxLayer", "TorchModuleWrapper"), "they need packages that are not installed"),
    "TFSMLayer": "it trains nothing",
    **dict.fromkeys(("Hashing", "HashedCrossing", "TextVectorization"), "they make numbers of each row, as the lookups of a case do"),
    **dict.fromkeys(("MelSpectrogram", "STFTSpectrogram"), "they make a picture of each row, and have no weights"),
    **dict.fromkeys(("Flatten", "Lambda", "Pipeline"), "they have no weights and no state; Flatten is in nearly every case"),
    "SimpleRNNCell": "SimpleRNN has it",
    "ReversibleEmbedding": "it is an Embedding whose weights are used a second time",
    "ActivityRegularization": "the case activity_regularizer adds the same loss",
}


def classes() -> list[tuple[list[str], list[str]]]:
    """In a task: of each class of Keras that must have a case, its names and the names of its base classes."""
    import keras

    modules = (keras.optimizers, keras.losses, keras.metrics, keras.callbacks, keras.layers)
    names: dict[type, set[str]] = {}
    for module in modules:
        for name, found in vars(module).items():
            if isinstance(found, type):
                names.setdefault(found, set()).add(name)
    return [(sorted(of_class), [base.__name__ for base in found.__mro__]) for found, of_class in names.items()]


def stands_for(name: str) -> str:
    """A pattern of what is judged in place of this class: a layer of another number of dimensions is of its family."""
    family = re.fullmatch(r"(\w+?)[123]D(\w*)", name)
    return rf"\b{family[1]}[123]D{family[2]}\b" if family else rf"\b{name}\b"


@pytest.mark.core
@on_tensorflow
def test_every_optimizer_loss_metric_callback_and_family_of_layers_of_keras_has_a_case() -> None:
    named = "\n".join([*findings.row_names(), *CASES])
    with cluster(workers=1, strategy="none") as c:
        found: list[tuple[list[str], list[str]]] = c.run(classes)["worker-0"]
    known = {*BASES, *NOT_JUDGED}
    missing = {names[0]: bases for names, bases in found if not any(re.search(stands_for(name), named) or name in known for name in names)}
    # Those that change images, most of them at random, are one family; six of them are judged.
    assert [name for name, bases in missing.items() if "BaseImagePreprocessingLayer" not in bases] == []
    assert [name for name in NOT_JUDGED if re.search(rf"\b{name}\b", named)] == [], "they are judged"
