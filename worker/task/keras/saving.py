"""Several workers that save one model to one path: each writes a file of its own and moves that into place.

Keras opens the path itself, so that the second worker meets a locked or a half-written file (keras/src/saving/saving_lib.py). The
workers' models are the same: whoever comes last replaces the file by its equal, and nobody ever reads half of one.
"""

from __future__ import annotations

import os

from .. import imports
from .fit import named_like, works_with_others

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any


def mend_soon() -> None:
    """Mend `Model.save`, `Model.save_weights` and the making of their directories as soon as Keras's modules for them are imported."""
    imports.after("keras.src.saving.saving_api", _save_aside)
    imports.after("keras.src.utils.file_utils", _make_directories_together)


def _save_aside(module: ModuleType) -> None:
    for name in ("save_model", "save_weights"):
        setattr(module, name, _aside(getattr(module, name)))


def _make_directories_together(module: ModuleType) -> None:
    """Callbacks look whether a directory is there and then make it. Another worker may have made it between the two."""
    files: Any = module
    real = files.makedirs

    def makedirs(path: Any) -> None:
        try:
            real(path)
        except FileExistsError:
            if not os.path.isdir(path):
                raise

    files.makedirs = named_like(real, makedirs)


def _aside(real: Any) -> Any:
    def save(model: Any, filepath: Any, overwrite: bool = True, *args: Any, **kwargs: Any) -> Any:
        path = os.fspath(filepath) if isinstance(filepath, (str, os.PathLike)) else ""
        is_file = str(path).endswith((".keras", ".h5")) and "://" not in str(path)
        if not (overwrite and is_file and works_with_others(getattr(model, "distribute_strategy", None))):
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
