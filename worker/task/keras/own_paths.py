"""Defines what several workers write at one path with TensorFlow: SavedModels, and the files of `Dataset.cache`.

* A SavedModel: each worker writes its own aside, as each has to take part in a save, and moves the files to the path. The chief's stay.
* A cache: each worker has files of its own, as each has a share of the data of its own, which another worker must not read.

keras/saving.py does the same for the files of Keras.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time

from .. import patches
from ..patches.features import PATHS
from ..patches.import_hooks import print_once

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_CHIEFS = "user.orch"
"""The attribute of a file that the chief has moved to its path: which save of the program it is. Some file systems have no attributes;
there the last worker's SavedModel stays."""
_LAST = "saved_model.pb"
"""The file that says that a SavedModel is whole."""
_WAIT_S, _POLL_S = 10.0, 0.02
"""How long a worker waits for a chief that saves to the same path now: otherwise it may load while the chief moves its files."""
_saves: dict[str, int] = {}
"""How often this process has saved to a path."""


def watch(log_dir: str) -> None:
    """Replace the functions as soon as TensorFlow is imported, in a task that trains together with others."""
    if _workers() > 1:
        patches.after(PATHS, "tensorflow.python.saved_model.save", lambda module: _replace("save_and_return_nodes", _save_aside))
        patches.after(PATHS, "tensorflow.python.data.ops.dataset_ops", lambda module: _replace("DatasetV2.cache", _cache_apart))


def _replace(name: str, ours: Any) -> None:
    patches.replace(PATHS, name, ours)


def _workers() -> int:
    """Return how many tasks run this program's training at the same time: with parameter servers, only the chief does."""
    with contextlib.suppress(ValueError, LookupError, TypeError):
        config = json.loads(os.environ["TF_CONFIG"])
        if config["task"]["type"] in ("chief", "worker") and not config["cluster"].get("ps"):
            return sum(len(config["cluster"].get(kind, ())) for kind in ("chief", "worker"))
    return 1


# --- caches ----------------------------------------------------------------------------------------


def _cache_apart(real: Any, self: Any, filename: Any = "", *args: Any, **kwargs: Any) -> Any:
    path = os.fspath(filename) if isinstance(filename, os.PathLike) else filename
    if not isinstance(path, str) or not path:  # in memory, or a tensor
        return real(self, filename, *args, **kwargs)
    own = f"{path}-{os.environ.get('ORCH_TASK')}-of-{_workers()}"
    print_once(f"each worker caches its share of the data in files of its own: {own}", is_note=True)
    return real(self, own, *args, **kwargs)


# --- SavedModels -----------------------------------------------------------------------------------


def _save_aside(real: Any, obj: Any, export_dir: Any, *args: Any, **kwargs: Any) -> Any:
    path = os.fspath(export_dir) if isinstance(export_dir, os.PathLike) else export_dir
    if not isinstance(path, str) or "://" in path:
        return real(obj, export_dir, *args, **kwargs)
    from .saving import locked

    path = os.path.abspath(path)
    number = _saves[path] = _saves.get(path, 0) + 1
    directory, name = os.path.split(path)
    aside, of_chief = (os.path.join(directory, f".{task}.{name}") for task in (os.environ.get("ORCH_TASK"), _chief()))
    shutil.rmtree(aside, ignore_errors=True)
    try:
        found = real(obj, aside, *args, **kwargs)
        with locked(directory):
            _move(aside, path, number)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    until = time.monotonic() + _WAIT_S
    while os.path.exists(of_chief) and time.monotonic() < until:
        time.sleep(_POLL_S)
    return found


def _chief() -> str:
    with contextlib.suppress(ValueError, LookupError, TypeError):
        return "chief-0" if json.loads(os.environ["TF_CONFIG"])["cluster"].get("chief") else "worker-0"
    return ""


def _move(aside: str, path: str, number: int) -> None:
    """Move the files of a worker to their places, unless the chief's of the same save, or of a later one, are there."""
    attempt = f"{os.environ.get('ORCH_RUN_ID')} {os.environ.get('ORCH_ATTEMPT')}"
    if os.environ.get("ORCH_IS_CHIEF") == "1":
        with contextlib.suppress(OSError):
            os.setxattr(os.path.join(aside, _LAST), _CHIEFS, f"{attempt} {number}".encode())
    else:
        with contextlib.suppress(OSError, ValueError):
            of, _, saved = os.getxattr(os.path.join(path, _LAST), _CHIEFS).decode().rpartition(" ")
            if of == attempt and int(saved) >= number:
                return
    for directory, _, names in os.walk(aside):
        os.makedirs(os.path.join(path, os.path.relpath(directory, aside)), exist_ok=True)
        for name in sorted(names):
            if os.path.join(directory, name) != os.path.join(aside, _LAST):
                _put(os.path.join(directory, name), aside, path)
    if os.path.exists(os.path.join(aside, _LAST)):
        _put(os.path.join(aside, _LAST), aside, path)


def _put(file: str, aside: str, path: str) -> None:
    os.replace(file, os.path.join(path, os.path.relpath(file, aside)))
