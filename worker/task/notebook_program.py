"""Runs the cells of a notebook as one program, each under a name of its own, such as ``/w/guide.ipynb cell 3``."""

from __future__ import annotations

import linecache
import os

from ..values import notebook_cells
from . import failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType


def run(path: str, main: ModuleType) -> None:
    """`main`: the module in which the cells run."""
    with open(path, "rb") as file:
        cells = notebook_cells.parts(path, file.read())
    main.__file__ = path
    main.display = print  # type: ignore[attr-defined]  # a function of Jupyter
    failure.show_kept_lines()
    for cell in cells:
        if cell.file:  # in one step, because another task may import the file
            with open(f"{cell.file}.{os.getpid()}", "w", encoding="utf-8") as written:
                written.write(cell.text)
            os.replace(written.name, cell.file)
        name = f"{path} {cell.name}"
        linecache.cache[name] = (len(cell.source), None, cell.source.decode("utf-8", "replace").splitlines(keepends=True), name)
        exec(compile(cell.source, name, "exec", dont_inherit=True), main.__dict__)
