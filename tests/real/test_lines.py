"""Each line about numbers is printed where it is true, and not for the nearest program of which it is not."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from orchestrator.testing import cluster
from tests.conftest import ROOT

ROOMS = ("worker/task/keras", "worker/task/input")
PROGRAMS = "tests/programs/lines.py"
WORLDS: dict[str, dict[str, Any]] = {
    "two workers": {"workers": 2},
    "MirroredStrategy": {"workers": 1, "strategy": "mirrored", "cpus": 2},
    "two workers, Keras 2": {"workers": 2, "keras": "legacy"},
}
ELSEWHERE = {
    "the rows of a batch come worker by worker": "tests/real/test_keras_numbers.py",
    "a loss of Keras for a part without rows is an empty tensor": "tests/real/test_keras_numbers.py",
    "an embedding of positions": "tests/judge/cases/layers.py",
    "with one worker, Keras begins ": "tests/real/test_data.py",
    "input: orch cannot look into a dataset": "tests/worker/task/test_shuffle_order.py",
    ", and orch cannot give all workers one order (": "tests/worker/task/test_shuffle_order.py",
    " each worker reads the whole dataset": "tests/real/test_input.py",
}
"""The lines that need a cluster of another form, and the tests that have both programs."""


def run(world: str) -> dict[str, list[bool]]:
    """In a task."""
    from tests.programs import lines

    return lines.run(world)


def texts(source: str | ast.AST) -> list[str]:
    tree = ast.parse(source) if isinstance(source, str) else source
    return [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def warnings() -> list[list[str]]:
    """The texts of each warning in the code: the second argument of a note says that it is one."""
    trees = [ast.parse(path.read_text()) for room in ROOMS for path in (ROOT / room).glob("*.py")]
    calls = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
    printed = [call for call in calls if getattr(call.func, "id", "") == "print_once"]
    return [texts(call.args[0]) for call in printed if "is_note" not in [each.arg for each in call.keywords]]


def test_each_warning_has_its_programs() -> None:
    words = [*ELSEWHERE, *(text for text in texts((ROOT / PROGRAMS).read_text()) if len(text) > 10)]
    found = warnings()
    assert len(found) > 40
    parts_of_each = [[part for part in parts if len(part) > 10] for parts in found]
    assert [parts for parts in parts_of_each if not any(each in part or part.strip(" :") in each for each in words for part in parts)] == []
    assert [words for words, path in ELSEWHERE.items() if words not in (ROOT / path).read_text()] == []


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("warm_tensorflow")
@pytest.mark.parametrize("world", WORLDS)
def test_a_line_is_printed_where_it_is_true_and_not_elsewhere(world: str) -> None:
    with cluster(**WORLDS[world], timeout=600) as c:
        of_tasks = c.run(run, world).values()
    found = {words: [any(said) for said in zip(*(of_task[words] for of_task in of_tasks), strict=True)] for words in next(iter(of_tasks))}
    assert found == {words: [True, False] for words in found}
