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


def table_row(row: Strategy) -> str:
    """A row as docs/strategies.md shows it."""

    def types(holds: Callable[[Role], bool]) -> str:
        return ", ".join(kind for kind, role in row.roles.items() if holds(role))

    clusters = {name: types(lambda role, name=name: role.cluster == name) for name in (TRAINING, EVALUATION)}
    cells = [
        f"`{row.name}`",
        ", ".join(f"{kind} {role.count}" for kind, role in row.roles.items()) + ", exactly" * row.one_process,
        "; ".join(f"{name}: {members}" for name, members in clusters.items() if members),
        types(lambda role: role.decides),
        types(lambda role: role.serves),
        types(lambda role: role.restarts_alone),
        types(lambda role: role.uses_gpus),
        types(lambda role: role.synchronous),
        ", ".join(f"`{section}`" for section in row.sections),
    ]
    return f"| {' | '.join(cell or '-' for cell in cells)} |"


def test_the_documented_table_is_the_rows() -> None:
    lines = DOCUMENT.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.startswith("| `")] == [table_row(row) for row in STRATEGIES.values()]


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
