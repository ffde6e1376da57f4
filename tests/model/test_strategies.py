"""The rows of `model/strategies.py`: what is documented of them, and what follows from a row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

from orchestrator.model import strategies
from orchestrator.model.settings import ClusterSpec
from orchestrator.model.strategies import EVALUATION, STRATEGIES, TRAINING, Role, Strategy, named
from worker.protocol.task_id import DATA_SERVICE, TASK_TYPES
from worker.task.strategy.strategy_builder import BUILDERS

DOCUMENT = Path(__file__).resolve().parents[2] / "docs/strategies.md"


def answers(row: Strategy) -> dict[str, str]:
    """What docs/strategies.md says of a strategy, by question."""

    def types(holds: Callable[[Role], bool]) -> str:
        return ", ".join(kind for kind, role in row.roles.items() if holds(role))

    clusters = {name: types(lambda role, name=name: role.cluster == name) for name in (TRAINING, EVALUATION)}
    return {
        "tasks, with their default numbers": ", ".join(f"{kind} {role.count}" for kind, role in row.roles.items())
        + ", exactly" * row.one_process,
        "`TF_CONFIG`": "; ".join(f"{name}: {members}" for name, members in clusters.items() if members),
        "the run succeeds with": types(lambda role: role.decides),
        "run until the others are done": types(lambda role: role.serves),
        "restart alone": types(lambda role: role.restarts_alone),
        "use GPUs": types(lambda role: role.uses_gpus),
        "wait for each other in each step": types(lambda role: role.synchronous),
        "own keys": ", ".join(f"`{section}`" for section in row.sections),
    }


def table() -> str:
    """The table of docs/strategies.md: a row for each question, a column for the strategies with the same answers."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for row in STRATEGIES.values():
        alike.setdefault(tuple(answers(row).values()), []).append(f"`{row.name}`")
    head = f"| | {' | '.join(', '.join(names) for names in alike.values())} |\n|---|{'---|' * len(alike)}\n"
    questions = zip(answers(STRATEGIES["none"]), *alike, strict=True)
    return head + "".join(f"| {question} | {' | '.join(cell or '-' for cell in cells)} |\n" for question, *cells in questions)


def test_the_documented_table_is_the_rows() -> None:
    assert table() in DOCUMENT.read_text(encoding="utf-8")


def test_each_row_fits_the_rest() -> None:
    """A name is known to `worker.strategy()`, a section is a key of the spec, a type is TensorFlow's."""
    assert list(STRATEGIES) == list(BUILDERS)
    keys = {field.name for field in fields(ClusterSpec)}
    for name, row in STRATEGIES.items():
        assert row.name == name
        assert set(row.sections) <= keys
        assert set(row.roles) <= set(TASK_TYPES) - set(DATA_SERVICE)
        assert any(role.decides for role in row.roles.values())
        assert not any(role.decides and role.serves for role in row.roles.values())
        if row.one_process:
            assert {role.cluster for role in row.roles.values()} == {None}
            assert sum(row.default_counts.values()) == 1


def test_what_names_no_strategy_means_one() -> None:
    assert strategies.implied({"worker": 2}).name == "multi_worker_mirrored"
    assert strategies.implied({"worker": 2, "ps": 0}).name == "multi_worker_mirrored"
    assert strategies.implied({"worker": 2, "ps": 1}).name == "parameter_server"


def test_a_section_is_refused_where_it_is_another_strategys() -> None:
    assert named("none").refuses("collectives") == ("collectives", "collectives: is for strategy multi_worker_mirrored, not none", "")
    assert named("multi_worker_mirrored").refuses("collectives") is None
    assert named("none").refuses("restart") is None
