"""Several workers save one model to one path: each worker writes a file of its own, and renames it to this path.

Keras opens the path itself, so a second worker finds a locked or incomplete file (keras/src/saving/saving_lib.py). The workers' models are
equal: the last worker replaces the file by an equal file, and a reader never finds half of a file.
"""

from __future__ import annotations

import functools
import os
import sys

from ..import_hooks import named_like

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .fit import Wanted


def mend(saving: Any, files: Any, is_wanted: Wanted) -> None:
    """Replace `Model.save` and `Model.save_weights` in the module `saving_api`, and `makedirs` in the module `file_utils`."""
    for name, modules in find_holders(saving).items():
        ours = _aside(getattr(saving, name), is_wanted)
        for module in modules:
            setattr(module, name, ours)
    files.makedirs = _made_together(files.makedirs)


@functools.lru_cache(maxsize=1)
def find_holders(saving: Any) -> dict[str, list[Any]]:
    """For each function, the modules of Keras that have it, such as keras.models for save_model.

    A template calls this before it forks: a search through thousands of modules takes 14 ms in each task, and copies their pages.
    """
    found: dict[str, list[Any]] = {"save_model": [], "save_weights": []}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "keras":
            for function, holders in found.items():
                if getattr(module, "__dict__", {}).get(function) is getattr(saving, function):
                    holders.append(module)
    return found


def _made_together(real: Any) -> Any:
    """Callbacks make a directory if it does not exist. Another worker may make the directory at the same time."""

    def makedirs(path: Any) -> None:
        try:
            real(path)
        except FileExistsError:
            if not os.path.isdir(path):
                raise

    return named_like(real, makedirs)


def _aside(real: Any, is_wanted: Wanted) -> Any:
    def save(model: Any, filepath: Any, overwrite: bool = True, *args: Any, **kwargs: Any) -> Any:
        path = os.fspath(filepath) if isinstance(filepath, (str, os.PathLike)) else ""
        is_file = str(path).endswith((".keras", ".h5")) and "://" not in str(path)
        if not (overwrite and is_file and is_wanted(getattr(model, "distribute_strategy", None))):
            return real(model, filepath, overwrite, *args, **kwargs)
        directory, name = os.path.split(str(path))
        aside = os.path.join(directory, f".{os.environ.get('ORCH_TASK', os.getpid())}.{name}")
        try:
            real(model, aside, overwrite, *args, **kwargs)
            os.replace(aside, path)
        finally:
            if os.path.exists(aside):
                os.unlink(aside)

    return named_like(real, save)
