"""Several workers save one model to one path: each worker writes a file of its own, and renames it to this path.

Keras opens the path itself, so a second worker finds a locked or incomplete file (keras/src/saving/saving_lib.py). The workers' models are
equal: the last worker replaces the file by an equal file, and a reader never finds half of a file.
"""

from __future__ import annotations

import os
from typing import Any

from ..import_hooks import replace
from .fit import is_wanted


def mend(saving: Any, files: Any) -> None:
    """Replace the functions that write a model's file, and the one that makes directories. `saving`: the module saving_api of Keras;
    `files`: its module file_utils.
    """
    replace(saving.saving_lib, "save_model", _save_aside)
    replace(saving.saving_lib, "save_weights_only", _save_aside)
    replace(saving.legacy_h5_format, "save_model_to_hdf5", _save_aside)
    replace(files, "makedirs", _make_together)


def _make_together(real: Any, path: Any) -> None:
    """Callbacks make a directory if it does not exist. Another worker may make the directory at the same time."""
    try:
        real(path)
    except FileExistsError:
        if not os.path.isdir(path):
            raise


def _save_aside(real: Any, model: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
    path = str(filepath)
    is_file = path.endswith((".keras", ".h5")) and "://" not in path
    if not (is_file and is_wanted(getattr(model, "distribute_strategy", None))):
        return real(model, filepath, *args, **kwargs)
    directory, name = os.path.split(path)
    aside = os.path.join(directory, f".{os.environ.get('ORCH_TASK', os.getpid())}.{name}")
    try:
        real(model, aside, *args, **kwargs)
        os.replace(aside, path)
    finally:
        if os.path.exists(aside):
            os.unlink(aside)
