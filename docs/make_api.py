"""Prints docs/api.md, from the docstrings of the public names: python docs/make_api.py > docs/api.md"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import orchestrator
import orchestrator.testing
import worker
from worker.task.checkpoints.saver import Saver

HEAD = """# Python API

`python docs/make_api.py` makes this page from the docstrings of every public name of `worker`, `orchestrator` and `orchestrator.testing`.
"""
ABOUT = {
    worker: "Functions for a training script, which also work without orch, in one process: [spec.md](spec.md#what-a-script-can-use).",
    orchestrator: "Runs from a Python program: [python.md](python.md).",
    orchestrator.testing: "Clusters in tests: [testing.md](testing.md).",
}


LEFT_OUT = (orchestrator.ClusterSpec, orchestrator.testing.Outcome)  # the keys of orch.yaml; what a Job reports
OF_ORCH_ITSELF = {
    *("begin_call", "begin_process", "end_process", "fail", "forget_output", "has_raised_as", "on_answer", "on_exited", "own_logs"),
    *("pass_on", "pass_signal", "poll", "pooled_run", "print_output", "send_signal", "time_out"),
}
"""Members of public classes that only orch calls."""


def page() -> Iterator[str]:
    yield HEAD
    for module, about in ABOUT.items():
        yield f"## {module.__name__}\n\n{about}\n"
        yield from _module(module)


def _module(module: ModuleType) -> Iterator[str]:
    names = [name for name in module.__all__ if not name.startswith("__")]
    found = {name: getattr(module, name) for name in names}
    functions = {name: each for name, each in found.items() if not inspect.isclass(each)}
    errors = {name: each for name, each in found.items() if inspect.isclass(each) and issubclass(each, BaseException)}
    classes = {
        name: each
        for name, each in found.items()
        if each not in LEFT_OUT and name not in functions and name not in errors and name[0].isupper()
    }
    for name, each in sorted(functions.items()):
        yield f"### `{module.__name__}.{name}{_arguments(each)}`\n\n{_text(each)}\n"
    for name, each in sorted(classes.items()):
        yield from _class(f"{module.__name__}.{name}", each)
    if module is worker:
        yield from _class("the saver of `worker.checkpoints`", Saver)
    for name, each in sorted(errors.items()):
        yield f"* `{module.__name__}.{name}`: {' '.join(_text(each).split())}"
    yield ""


def _class(name: str, each: type) -> Iterator[str]:
    title = name if "`" in name else f"`{name}`"
    yield f"### {title}\n\n{_text(each)}\n"
    rows = list(_members(each))
    if rows:
        yield "\n".join(["| member | what it is |", "|---|---|", *rows, ""])


def _members(each: type) -> Iterator[str]:
    """A row for each public field, property and method that has a docstring. A class gives what its parents of orch have, too."""
    seen = set[str]()
    for parent in each.__mro__:
        if parent.__module__.partition(".")[0] not in ("orchestrator", "worker"):
            continue
        for name, about in _fields(parent):
            if name not in seen:
                seen.add(name)
                yield f"| `{name}` | {_cell(about)} |"
        for name, member in vars(parent).items():
            if name.startswith("_") or name in seen | OF_ORCH_ITSELF or not (text := inspect.getdoc(member)):
                continue
            seen.add(name)
            is_value = isinstance(member, property) or not callable(getattr(parent, name))
            yield f"| `{name}{'' if is_value else _arguments(getattr(parent, name))}` | {_cell(text)} |"


def _fields(parent: type) -> Iterator[tuple[str, str]]:
    """The fields of a dataclass with the text below each, and in one row those that are what their names say."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(parent))).body[0]
    assert isinstance(tree, ast.ClassDef)
    plain = []
    for node, after in zip(tree.body, [*tree.body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and not node.target.id.startswith("_"):
            is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str)
            if is_text:
                yield node.target.id, str(after.value.value)  # type: ignore[union-attr]
            else:
                plain.append(f"{node.target.id}: {ast.unparse(node.annotation)}")
    if plain:
        yield _cell("`, `".join(plain)), ""


def _arguments(each: Any) -> str:
    """The arguments with their defaults, without their types."""
    parameters = [one.replace(annotation=one.empty) for one in inspect.signature(each).parameters.values()]
    parameters = [one for one in parameters if one.name not in ("self", "cls") and not one.name.startswith("_")]
    return re.sub(r"<Signals\.(\w+): \d+>", r"\1", str(inspect.Signature(parameters)))


def _text(each: Any) -> str:
    """A docstring as Markdown: blocks with four blanks are code there, too."""
    return re.sub(r"``([^`]+)``", r"`\1`", (inspect.getdoc(each) or "").strip()).replace("::\n", ":\n")


def _cell(text: str) -> str:
    return " ".join(re.sub(r"``([^`]+)``", r"`\1`", inspect.cleandoc(text)).split()).replace("|", "\\|")


def api() -> str:
    return re.sub(r"\n{3,}", "\n\n", "\n".join(page())).rstrip() + "\n"


if __name__ == "__main__":
    print(api(), end="")
