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
    done, left_out = "", list[str]()
    for number, line in enumerate(text.split("\n"), 1):
        words, indent = line.strip(), line[: len(line) - len(line.lstrip())]
        if _MAGIC.match(words) and _begins_statement(done, indent):
            if env := _ENV.match(words):
                words = f"__import__('os').environ[{env[1]!r}] = {env[2]!r}"
            elif words.startswith("%time "):
                words = words[6:]
            elif _INSTALLS.match(words):
                raise ValueError(f"it installs a package ({name}, line {number}: {words}): install it first, and tag the cell {SKIP}")
            else:
                left_out += [] if _NEEDLESS.match(words) else [f"{name}, line {number}: {words}"]
                words = f"pass  # {words}"
            line = indent + words
        done += f"{line}\n"
    return Cell(name, done.encode("utf-8", "surrogatepass"), left_out=tuple(left_out))


def _begins_statement(before: str, indent: str) -> bool:
    """True if a statement may follow here: not inside of a text, of brackets, or of a statement that goes on."""
    try:
        ast.parse(f"{before}{indent}pass\n")
    except SyntaxError as error:
        return "expected 'except'" in error.msg  # in the body of a try
    except ValueError:
        return False
    return True
