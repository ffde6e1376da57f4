"""What the documents promise and a machine can check: their specs are read, their links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import ROOT, Orch

DOCUMENTS = sorted(path for where in (".", "docs", "examples", "benchmarks") for path in (ROOT / where).glob("*.md"))
SPECS = [
    pytest.param(block, id=f"{path.relative_to(ROOT)}-{number}")
    for path in DOCUMENTS
    for number, block in enumerate(re.findall(r"^```yaml\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL))
]


@pytest.mark.parametrize("spec", SPECS)
def test_a_spec_that_is_shown_is_one(orch: Orch, tmp_path: Path, spec: str) -> None:
    (tmp_path / "orch.yaml").write_text(spec if "script:" in spec else f"script: train.py\n{spec}")
    orch("plan", check=0)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)\)", path.read_text())
    assert [target for target in targets if "://" not in target and not (path.parent / target).exists()] == []


@pytest.mark.parametrize("example", sorted(path.name for path in (ROOT / "examples").glob("*.py") if path.name != "digits.py"))
def test_every_example_is_in_their_table(example: str) -> None:
    assert f"({example})" in (ROOT / "examples/README.md").read_text()


@pytest.mark.parametrize("package", ["orchestrator", "worker"])
def test_every_room_is_in_the_table_of_rooms(package: str) -> None:
    _, _, table = (ROOT / "docs/how-it-works.md").read_text().partition("## The rooms")
    named = set(re.findall(r"`(?:\w+/)*(\w+(?:\.py|/))`", table.partition("\n## ")[0]))
    rooms = {f"{path.name}/" if path.is_dir() else path.name for path in (ROOT / package).glob("[!_]*")}
    assert sorted(rooms - named - {"py.typed"}) == []
