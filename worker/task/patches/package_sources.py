"""Reads the source files of installed packages: whether a function is there, its arguments, and a fingerprint of its text.

Nothing is imported. A fingerprint leaves out comments, docstrings and white space, so it changes only with the code. The check of all rows
takes a fraction of a second, because only the lines of the named functions are parsed.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import sys

from .table import FEATURES, NAMES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .names import Name
    from .table import Feature

PACKAGES = ("keras", "tf_keras", "tensorflow")
"""The packages of the table that have releases of their own."""

DIGITS = 10
"""The length of a fingerprint, in hexadecimal digits of a SHA-256."""


class Sources:
    """The files of the packages that an interpreter would import. `directory_of`: finds the directory of a package, or gives nothing."""

    def __init__(self, directory_of: Callable[[str], str] | None = None) -> None:
        self._directory_of = directory_of or _directory_of
        self._directories: dict[str, str] = {}
        self._texts: dict[str, str | None] = {}
        self._misfits: dict[tuple[str, ...], str] = {}

    def directory(self, package: str) -> str:
        """The directory of a top-level package, or of a single module; empty: it is not installed."""
        if package not in self._directories:
            self._directories[package] = self._directory_of(package)
        return self._directories[package]

    def text(self, module: str) -> str | None:
        """The source of a module; empty: the module is missing. None: it has no source, such as a compiled module."""
        if module not in self._texts:
            self._texts[module] = self._read(module)
        return self._texts[module]

    def block(self, module: str, name: str) -> str | None:
        """The lines of a class, function or variable of a module, such as ``Trainer.fit``; empty: missing. None: there is no source."""
        text = self.text(module)
        return block_of(text, name) if text else text

    def misfit(self, name: Name) -> str:
        """See the function `misfit`. Many features need the same name."""
        key = (name.place, name.arguments, *name.forms)
        if key not in self._misfits:
            self._misfits[key] = misfit(name, self)
        return self._misfits[key]

    def version(self, package: str) -> str:
        """The release of a package, from the directory of its metadata; empty: unknown."""
        beside = os.path.dirname(self.directory(package))
        form = re.compile(rf"{package}(?:_cpu|_nightly|_rocm|_macos|_intel|_tpu)*-(.+)\.dist-info")
        found = [each[1] for name in sorted(os.listdir(beside or ".")) if (each := form.fullmatch(name))]
        return found[0] if found else ""

    def _read(self, module: str) -> str | None:
        package, _, rest = module.partition(".")
        directory = self.directory(package)
        path = os.path.join(directory, *rest.split(".")) if rest else directory
        for file in (os.path.join(path, "__init__.py"), f"{path}.py"):
            try:
                with open(file, encoding="utf-8", errors="replace") as opened:
                    return opened.read()
            except OSError:
                continue
        beside = os.path.dirname(path)
        names = os.listdir(beside) if os.path.isdir(beside) else []
        return None if any(name.startswith(f"{os.path.basename(path)}.") for name in names) or os.path.isdir(path) else ""


def _directory_of(package: str) -> str:
    """Return where this interpreter finds a package. The package is not imported."""
    from importlib.machinery import PathFinder

    loaded = sys.modules.get(package)
    spec = None if loaded is not None else PathFinder.find_spec(package)
    origin = getattr(loaded, "__file__", None) or getattr(spec, "origin", None) or ""
    # Not the first of `__path__`: TensorFlow puts directories of its own before.
    return os.path.dirname(origin) if os.path.basename(origin) == "__init__.py" else origin.removesuffix(".py")


_BEGIN = re.compile(r"( *)(?:(?:(?:async )?def|class) (\w+)\b|(\w+)(?:: [^=]*)? = |from \S+ import (?:.* as )?(\w+)\s*(?:#.*)?$)")
_HEAD = re.compile(r"(?:@.*\n)*(?:async )?def(?:.*\n)*?.*:(?= *(?:#.*)?$)", re.MULTILINE)
_INDENT = re.compile(r"\n( +)(?=\S)")
_TEXT_OR_COMMENT = re.compile(
    r"""\"{3}(?:[^\\]|\\.)*?\"{3}|'{3}(?:[^\\]|\\.)*?'{3}|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|(?P<comment>\#[^\n]*)""", re.DOTALL
)


def block_of(text: str, name: str) -> str:
    """The lines of a name in a module's text, from its definition or import on, without indentation; empty: none."""
    first, after, last, indent = 0, 0, len(text), 0
    for depth, part in enumerate(name.split(".")):
        if depth:
            indent = min((len(each) for each in {*_INDENT.findall(text, first, last)} if len(each) > indent), default=0)
        first = _begin(text, part, indent, after, last)
        if first < 0:
            return ""
        after = text.find("\n", first) + 1 or len(text)
        end = re.compile(rf"\n {{0,{indent}}}[^\s)\]}}#]").search(text, after - 1, last)  # a pattern that begins with a letter is fast
        last = end.start() + 1 if end else last
    lines = text[first:last].splitlines()
    while lines[-1].lstrip()[:1] in ("", "#"):
        lines.pop()
    return "\n".join(line[indent:] if not line[:indent].strip() else line for line in lines)


def _begin(text: str, word: str, indent: int, at: int, limit: int) -> int:
    """The start of the first line with this indentation that makes a name; -1: there is none."""
    while (at := text.find(word, at, limit)) >= 0:  # most lines do not have it: a template waits for this
        line = text.rfind("\n", 0, at) + 1
        at = text.find("\n", at) + 1 or len(text)
        found = _BEGIN.match(text[line:at].rstrip("\n"))
        if found and word in found.groups()[1:] and len(found[1]) == indent:
            return line
    return -1


def fingerprint(block: str) -> str:
    """The first digits of the SHA-256 of a block's code."""
    lines = block.splitlines()
    for row, begin, last_row, end in sorted(_left_out(block), reverse=True):
        lines[row - 1 : last_row] = [lines[row - 1][:begin] + lines[last_row - 1][end:]]
    return hashlib.sha256("".join("".join(lines).split()).encode()).hexdigest()[:DIGITS]


def _left_out(text: str) -> Iterator[tuple[int, int, int, int]]:
    """Return where the comments and docstrings are: the first line and column, and the last ones."""
    tree = _parsed(text)
    if tree is None:  # the syntax of a newer Python: the whole text counts
        return
    for found in _TEXT_OR_COMMENT.finditer(text):
        if found["comment"]:
            row, column = text.count("\n", 0, found.start()) + 1, found.start() - text.rfind("\n", 0, found.start()) - 1
            yield row, column, row, column + len(found[0])
    nodes: list[ast.AST] = [tree]
    for node in nodes:
        body = getattr(node, "body", None)
        first = body[0] if body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            yield first.lineno, first.col_offset, first.end_lineno or first.lineno, first.end_col_offset or 0
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            nodes += getattr(node, name, ())


def _parsed(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except SyntaxError:
        return None


def arguments(block: str) -> list[str] | None:
    """The names of a function's arguments, with stars; None: it is no function, or newer syntax."""
    head = _HEAD.match(block)
    tree = (_parsed(f"{head[0]} pass") if head else None) or _parsed(block)  # a body takes long
    found = tree.body[0] if tree is not None and tree.body else None
    if not isinstance(found, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return None
    given = found.args
    names = [each.arg for each in (*given.posonlyargs, *given.args)]
    names += [f"*{given.vararg.arg}"] if given.vararg else []
    return [*names, *(each.arg for each in given.kwonlyargs), *([f"**{given.kwarg.arg}"] if given.kwarg else [])]


# --- the table ---------------------------------------------------------------------------------------


def problems_of(feature: str, sources: Sources) -> list[str]:
    """Return which names of a feature do not fit these packages, and why; empty: the feature is on."""
    found = _of_feature(FEATURES[feature], sources)
    for other in FEATURES[feature].needs:
        found += [f"it needs {other!r}: {why}" for why in problems_of(other, sources)[:1]]
    return found


def _of_feature(feature: Feature, sources: Sources) -> list[str]:
    problems = [f"{name}: {problem}" for name in feature.names if (problem := sources.misfit(NAMES[name]))]
    for module, names in feature.reads.items():
        text = sources.text(module) if sources.directory(module.partition(".")[0]) else None
        missing = [name for name in names.split() if text is not None and not _has_word(text, name)]
        problems += [f"{module} has no {' and no '.join(missing)}"] if missing else []
    return problems


def _has_word(text: str, word: str) -> bool:
    at = text.find(word)
    while at >= 0 and any(each == "_" or each.isalnum() for each in (text[max(at - 1, 0) : at], text[at + len(word) : at + len(word) + 1])):
        at = text.find(word, at + 1)
    return at >= 0


def misfit(name: Name, sources: Sources) -> str:
    """Why a row does not fit the installed package; empty: it fits, the package is missing, or there is no source to read."""
    places = [place.partition("@")[0].split(":") for place in name.place.split("|")]
    if not sources.directory(places[0][0].partition(".")[0]):
        return ""
    blocks = [sources.block(module, attribute) for module, attribute in places]
    block = next((each for each in blocks if each), "")
    if name.is_added or (not block and None in blocks):
        return ""
    if not block:
        return f"there is no {' and no '.join(map(':'.join, places))}"
    wanted = [each for each in name.arguments.split(", ") if each]
    given = (wanted and arguments(block)) or []
    if given[: len(wanted)] != wanted and not any(each.startswith("*") for each in given):
        return f"it has the arguments {', '.join(given)}, and not {name.arguments}"
    found = fingerprint(block) if name.forms else ""
    return "" if not name.forms or found in name.forms else f"its code is another one, {found}"
