"""The Python that the pages show: each block runs, in one pytest with one import of TensorFlow.

A block that is not whole has a comment above it in the source of its page, which no reader sees: ``<!-- before:`` and the lines that the
block lacks, or ``<!-- not run: …`` and why.
"""

from __future__ import annotations

import ast
import builtins
import json
import re
import textwrap
from pathlib import Path
from typing import NamedTuple

import pytest

from tests import tfrecords
from tests.conftest import ROOT
from tests.testing.test_plugin import run_pytest

TUTORIAL = "docs/tutorial.md"
"""tests/real/test_tutorial.py types it."""
BLOCK = re.compile(r"(?:^<!-- (before|not run): *(.*?) *-->\n)?^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    page: str
    place: str
    mark: str
    """What the comment above the block is: ``before``, ``not run``, or nothing."""
    comment: str
    code: str

    @property
    def whole(self) -> str:
        return self.comment + self.code if self.mark == "before" else self.code

    @property
    def has_tests(self) -> bool:
        return "\ndef test_" in self.code


BLOCKS = [
    Block(page := str(path.relative_to(ROOT)), f"{page}-{number}", found[1] or "", found[2] or "", found[3])
    for where in (".", "docs", "examples")
    for path in sorted((ROOT / where).glob("*.md"))
    for number, found in enumerate(BLOCK.finditer(path.read_text()))
]
RUN = [block for block in BLOCKS if block.mark != "not run" and block.page != TUTORIAL]
TRAIN = "import worker\nprint('loss 0.1')\nworker.report(loss=0.1)\n"
IN_TASKS = """
    import functools
    import json

    import pytest

    import orchestrator


    def run(strategy, code):
        exec(compile(code, "page", "exec"), {"__name__": "page"})


    BLOCKS = json.load(open("blocks.json"))


    @pytest.mark.orch(workers=2)
    @pytest.mark.parametrize("place", BLOCKS)
    def test_in_tasks(orch_cluster, place):
        orch_cluster.run(run, BLOCKS[place])


    @pytest.mark.parametrize("number", [0, 1, 2])
    def test_launch(monkeypatch, number):
        monkeypatch.setattr(orchestrator, "launch", functools.partial(orchestrator.launch, preload=[]))
        exec(json.load(open("launches.json"))[number], {})
"""


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.place)
def test_a_block_of_python_is_python_whose_names_are_there(block: Block) -> None:
    tree = ast.parse(block.whole)
    if block.mark != "not run" and not block.has_tests:
        known = set(dir(builtins))
        for node in ast.walk(tree):
            match node:
                case ast.Import() | ast.ImportFrom():
                    known |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
                case ast.FunctionDef(name=name) | ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
                    known.add(name)
        assert sorted({node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - known) == []


@pytest.mark.slow
@pytest.mark.tensorflow
def test_the_python_of_the_pages_runs(tmp_path: Path) -> None:
    for page in {block.page for block in RUN if block.has_tests}:
        code = "".join(block.whole for block in RUN if block.page == page and block.has_tests)
        (tmp_path / f"test_{Path(page).stem.lower()}.py").write_text(code)
    launches = [block.code for block in RUN if "launch(" in block.code]
    in_tasks = {block.place: block.whole for block in RUN if not block.has_tests and block.code not in launches}
    (tmp_path / "launches.json").write_text(json.dumps(launches))
    (tmp_path / "blocks.json").write_text(json.dumps(in_tasks))
    (tmp_path / "test_blocks.py").write_text(textwrap.dedent(IN_TASKS))
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "data").mkdir()
    tfrecords.write(tmp_path / "data/0.tfrecord", [b"digits"] * 2560)
    done = run_pytest(tmp_path, "-rA", "-q")
    assert done.code == 0, done
    assert len(launches) == 3
    assert set(in_tasks) <= {name.partition("[")[2].rstrip("]") for name in done.outcomes}, done
    assert set(done.outcomes.values()) == {"passed"}, done
