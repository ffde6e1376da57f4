"""The cells of a notebook as Python: what Jupyter alone can run is left out and said, and nothing else changes."""

from __future__ import annotations

import json
import re

import pytest

from worker.values.notebook_cells import Cell, parts


def cell(*texts: str, tags: tuple[str, ...] = (), kind: str = "code") -> list[Cell]:
    made = {"cells": [{"cell_type": kind, "source": text, "metadata": {"tags": tags}} for text in texts]}
    return parts("a.ipynb", json.dumps(made).encode())


@pytest.mark.parametrize(
    ("text", "python"),
    [
        ("%matplotlib inline\nx = 1", "pass  # %matplotlib inline\nx = 1"),
        ("%env A=b c\n%set_env B 2", "__import__('os').environ['A'] = 'b c'\n__import__('os').environ['B'] = '2'"),
        ("%%time\nx = 1", "#%%time\nx = 1"),
        ("%%orch -n 2\n!ls\nx = 1", "#%%orch -n 2\npass  # !ls\nx = 1"),
        ("%time x = 1", "x = 1"),
        ("if x:\n    !ls\n    y = 1", "if x:\n    pass  # !ls\n    y = 1"),
        (
            "try:\n  %tensorflow_version 2.x\nexcept Exception:\n  pass",
            "try:\n  pass  # %tensorflow_version 2.x\nexcept Exception:\n  pass",
        ),
        ("len?", "pass  # len?"),
        # Python, and no magics:
        ("x = (7\n     % 4)", None),
        ("x = 7 \\\n% 4", None),
        ("x = '''\n!ls\n%time\n'''", None),
        ("# why?", None),
        ("x = [\n  1,\n  # !ls\n]", None),
    ],
)
def test_a_cell_in_python(text: str, python: str | None) -> None:
    (made,) = cell(text)
    assert made.source.decode() == (python or text) + "\n"
    assert made.source.count(b"\n") == text.count("\n") + 1, "each line in its place"
    compile(made.source, "", "exec")


def test_what_is_left_out_is_said() -> None:
    first, second, third = cell("x = 1\n!ls\n%matplotlib inline", "%%bash\nrm -r /", "%timeit f()\nfor _ in x:\n    %who")
    assert first.left_out == ("cell 1, line 2: !ls",)
    assert (second.left_out, second.source) == (("cell 2: %%bash",), b"")
    assert third.left_out == ("cell 3, line 1: %timeit f()", "cell 3, line 3: %who")
    assert cell("%%writefile a/b.py\nx = 1\n")[0] == Cell("cell 1", b"", "a/b.py", "x = 1\n")
    assert cell("%%writefile -a b.py\nx = 1\n")[0].left_out == ("cell 1: %%writefile -a b.py",)


@pytest.mark.parametrize(
    "line", ["!pip install x", "%pip install -U x", "! python -m pip install x", "%conda install x", "!uv pip install x"]
)
def test_an_installation_is_found(line: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"it installs a package (cell 2, line 2: {line}): install it first")):
        cell("x = 1", f"\n{line}")
    assert not cell(f"x = '''\n{line}\n'''")[0].left_out


def test_only_cells_with_code_count() -> None:
    made = {
        "cells": [
            {"cell_type": "markdown", "source": ["# a"]},
            {"cell_type": "code", "source": ["x = 1\n", "y = 2"]},
            {"cell_type": "code", "source": "1 / 0", "metadata": {"tags": ["skip-execution"]}},
            {"cell_type": "code", "source": "z = 3"},
        ]
    }
    found = parts("a.ipynb", json.dumps(made).encode())
    assert [(one.name, one.source) for one in found] == [("cell 1", b"x = 1\ny = 2\n"), ("cell 3", b"z = 3\n")]
    assert parts("a.py", b"x = 1") == [Cell("", b"x = 1")]


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"cells": 1}', b'{"cells": [1]}', b'{"worksheets": []}', b'{"cells": [{"cell_type": "code"}]}', b"\xff"]
)
def test_what_is_no_notebook_says_so(data: bytes) -> None:
    with pytest.raises(ValueError, match="it is no notebook of nbformat 4"):
        parts("a.ipynb", data)
