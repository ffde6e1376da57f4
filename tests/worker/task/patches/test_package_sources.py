"""What is read from the sources of other packages (worker/task/patches/package_sources.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker.task.patches.package_sources import Sources, _of_feature, arguments, block_of, fingerprint
from worker.task.patches.table import Feature

TEXT = '''
"""A module."""
from a.b import first as second
from a.b import third # line: 12

LIMIT: int = 3
_limits = {
    "a": 1,
}


# A comment before.
@decorated
def outer(a, b=1, *, c):
    """It says what it does.

    And why.
    """
    def inner(x):
        return x

    return inner(a) + b  # a comment


class Trainer(
    Base,
    Other,
):
  """Two blanks, as TensorFlow has them."""

  size = 1

  def fit(
      self,
      x=None,
      *args,
      **kwargs
  ):
    # pylint: disable=all
    return x
# A comment at the left margin.

  async def later(self):
    pass

class Other:
    def fit(self):
        return 2
'''


@pytest.mark.parametrize(
    ("name", "first", "last"),
    [
        ("second", "from a.b import first as second", "from a.b import first as second"),
        ("third", "from a.b import third # line: 12", "from a.b import third # line: 12"),
        ("LIMIT", "LIMIT: int = 3", "LIMIT: int = 3"),
        ("_limits", "_limits = {", "}"),
        ("outer", "def outer(a, b=1, *, c):", "    return inner(a) + b  # a comment"),
        ("outer.inner", "def inner(x):", "    return x"),
        ("Trainer", "class Trainer(", "    pass"),
        ("Trainer.size", "size = 1", "size = 1"),
        ("Trainer.fit", "def fit(", "  return x"),
        ("Trainer.later", "async def later(self):", "  pass"),
        ("Other.fit", "def fit(self):", "    return 2"),
    ],
)
def test_the_lines_of_a_name(name: str, first: str, last: str) -> None:
    lines = block_of(TEXT, name).splitlines()
    assert (lines[0], lines[-1]) == (first, last)


@pytest.mark.parametrize("name", ["first", "fit", "Trainer.inner", "Other.later", "inner", "a", "Trainer.fit.x"])
def test_a_name_that_is_not_there(name: str) -> None:
    assert block_of(TEXT, name) == ""


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("outer", ["a", "b", "c"]),
        ("Trainer.fit", ["self", "x", "*args", "**kwargs"]),
        ("Trainer.later", ["self"]),
        ("Trainer", None),
        ("LIMIT", None),
    ],
)
def test_the_arguments_of_a_function(name: str, expected: list[str] | None) -> None:
    assert arguments(block_of(TEXT, name)) == expected


def test_a_fingerprint_is_that_of_the_code_alone() -> None:
    first = 'def f(a):\n    """Old words."""\n    return g(a, 1)  # why\n'
    same = "def f(a):\n    '''New words,\n    on two lines.'''\n    # another reason\n    return g(\n        a,\n        1)\n"
    other = "def f(a):\n    return g(a, 2)\n"
    assert fingerprint(first) == fingerprint(same) != fingerprint(other)
    assert len(fingerprint(first)) == 10


@pytest.mark.parametrize(
    ("text", "expected"),
    [("def f(:\n    return", None), ("x = '''", None), ("def f(a):\n\treturn 1\n        return 2", ["a"])],  # of the last one, the head
)
def test_what_this_python_cannot_parse_counts_as_text(text: str, expected: list[str] | None) -> None:
    assert fingerprint(text) != fingerprint(f"{text}\n    x")
    assert arguments(text) == expected


@pytest.mark.parametrize("default", ["a: int = 1", "a={'x: y': 1}", "a=lambda: 3", "a=':'", "a=1,  # such as: this"])
def test_the_head_of_a_function_ends_where_its_body_begins(default: str) -> None:
    block = f"@decorated(x=1)\ndef f(\n    self,\n    {default}\n) -> dict[str, int]:  # why\n    if self:\n        return {{}}"
    assert arguments(block) == ["self", "a"]


@pytest.mark.parametrize(
    ("line", "is_comment"),
    [
        ("return 1  # why", True),
        ("return '# why'", False),
        ('return """text\n# why"""', False),
        ("""return "it's"  # why""", True),
        (r"return 'a\'b # why'", False),
        ('return """a"b\'"""  # why', True),
    ],
)
def test_a_comment_is_none_within_a_text(line: str, is_comment: bool) -> None:
    changed = line.replace("why", "another")
    assert (fingerprint(f"def f():\n    {line}") == fingerprint(f"def f():\n    {changed}")) is is_comment


def test_what_a_feature_reads_is_a_word_and_no_part_of_one(tmp_path: Path) -> None:
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "__init__.py").write_text("_limits = _limit_2 = a_limit = 1\nx._limit = 2\n")
    sources = Sources(lambda name: str(tmp_path / name))
    row = Feature((), "measures", "nothing", reads={"library": "_limit _limits limit"})
    assert _of_feature(row, sources) == ["library has no limit"]


def test_modules_are_found_without_an_import(tmp_path: Path) -> None:
    package = tmp_path / "library"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('imported')\n")
    (package / "inner" / "__init__.py").write_text("ONE = 1\n")
    (package / "inner" / "module.py").write_text("def f():\n    pass\n")
    (package / "compiled.cpython-311-x86_64-linux-gnu.so").write_bytes(b"")
    (package / "bare.pyc").write_bytes(b"")
    (tmp_path / "library-2.1.dev3.dist-info").mkdir()
    sources = Sources(lambda name: str(tmp_path / name) if (tmp_path / name).is_dir() else "")
    assert sources.text("library.inner") == "ONE = 1\n"
    assert sources.block("library.inner.module", "f") == "def f():\n    pass"
    assert sources.block("library.inner.module", "g") == ""
    assert [sources.text(f"library.{name}") for name in ("compiled", "bare", "missing")] == [None, None, ""]
    assert sources.text("another.module") == ""
    assert (sources.directory("another"), sources.version("library")) == ("", "2.1.dev3")
