"""The cells of a Jupyter notebook (nbformat 4) as Python. Each line stays in its place, so a line number is that of the cell. Pure."""

from __future__ import annotations

import ast
import json
import re

from .fast_dataclass import dataclass

SKIP = "skip-execution"
"""The tag of cells that are not run, as in MyST-NB and nbmake."""
_MAGIC = re.compile(r"[%!?]|[\w.]+\?\??$")
_INSTALLS = re.compile(r"[%!]\s*(?:python3? -m )?(?:pip3?|conda|mamba|uv)\b.*\binstall\b")
_NEEDLESS = re.compile(r"%(?:matplotlib|load_ext|reload_ext|autoreload|config|tensorflow_version)\b")
_ENV = re.compile(r"%(?:set_)?env\s+(\w+)\s*[= ]\s*(.+)")
_RUNS = re.compile(r"%%(?:time|capture|orch)\b")
_WRITES = re.compile(r"%%writefile\s+([^\s-]\S*)\s*$")


@dataclass(frozen=True, slots=True)
class Cell:
    name: str
    """``cell 3``: the third cell with code; empty for a file of another kind, as a whole."""
    source: bytes
    """Python."""
    file: str = ""
    text: str = ""
    """The file that the cell writes (``%%writefile``), and what it writes there, in place of running."""
    left_out: tuple[str, ...] = ()
    """Lines for Jupyter that Python cannot run: ``cell 3, line 1: !ls``."""


def parts(path: str, data: bytes) -> list[Cell]:
    """The cells with code that are run, of a notebook; any other file as one. Raises ValueError for what no task can run as a notebook."""
    if not path.endswith(".ipynb"):
        return [Cell("", data)]
    try:
        found = [cell for cell in json.loads(data)["cells"] if cell["cell_type"] == "code"]
        texts = ["".join(cell["source"]) for cell in found]  # a text, or a list of texts
        runs = [SKIP not in cell.get("metadata", {}).get("tags", ()) for cell in found]
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(f"it is no notebook of nbformat 4 ({type(error).__name__}: {error})") from None
    return [_translate(f"cell {number}", text) for number, text in enumerate(texts, 1) if runs[number - 1]]


def _translate(name: str, text: str) -> Cell:
    first, _, body = text.partition("\n")
    if first.startswith("%%"):
        if written := _WRITES.match(first):
            return Cell(name, b"", written[1], text=body)
        if not _RUNS.match(first):
            return Cell(name, b"", left_out=(f"{name}: {first}",))
        text = f"#{text}"
    lines, left_out = [*re.split("\r\n?|\n", text), ""], list[str]()
    while number := _line_for_jupyter(lines):
        words = lines[number - 1].strip()
        if env := _ENV.match(words):
            made = f"__import__('os').environ[{env[1]!r}] = {env[2]!r}"
        elif words.startswith("%time "):
            made = words[6:]
        elif _INSTALLS.match(words):
            raise ValueError(f"it installs a package ({name}, line {number}: {words}): install it first, and tag the cell {SKIP}")
        else:
            left_out += [] if _NEEDLESS.match(words) else [f"{name}, line {number}: {words}"]
            made = f"pass  # {words}"
        lines[number - 1] = lines[number - 1].replace(words, made)
    return Cell(name, "\n".join(lines).encode(), left_out=tuple(left_out))


def _line_for_jupyter(lines: list[str]) -> int:
    """The number of the first line that is no Python, but for Jupyter; 0: there is none. In a text or in brackets, a line is Python."""
    try:
        ast.parse("\n".join(lines))
    except SyntaxError as error:
        return error.lineno if error.lineno and _MAGIC.match(lines[error.lineno - 1].strip()) else 0
    return 0
