"""Several workers save one model to one path: each worker writes a file of its own, and the chief's file is the one that stays at the path.

Keras opens the path itself, so a second worker finds a locked or incomplete file (keras/src/saving/saving_lib.py). With this module, a
reader never finds half of a file, and after its call each worker finds a file at the path. Which workers save, no one knows before: no
worker waits for another one. So the chief notes in its file which step of the model the file has, and another worker leaves such a file
of its own step as it is. The workers' models are equal except for the state of layers within an epoch, and for seeds.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .. import patches
from ..patches.features import FILES
from .fit import is_wanted


def mend() -> None:
    """Replace the functions that write a model's file, and the one that makes directories."""
    for name in ("saving_lib.save_model", "saving_lib.save_weights_only", "legacy_h5_format.save_model_to_hdf5"):
        patches.replace(FILES, name, _save_aside)
    patches.replace(FILES, "file_utils.makedirs", _make_together)


def _look_apart() -> None:
    """Look at an optimizer, as Keras does once before a save: it makes one, whose variable would wait for the workers that do not save."""
    from keras.src.backend.common import global_state
    from keras.src.saving import saving_lib

    with ThreadPoolExecutor(1) as thread_without_scope:
        names = thread_without_scope.submit(saving_lib.get_attr_skipset, "Optimizer").result()
    for name in ("skiplist", "skipset"):  # Keras reads the first one, and writes the second one
        global_state.set_global_attribute(f"saving_attr_{name}_Optimizer", names)


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
    _look_apart()
    directory, name = os.path.split(path)
    aside = os.path.join(directory, f".{os.environ.get('ORCH_TASK', os.getpid())}.{name}")
    try:
        real(model, aside, *args, **kwargs)
        if os.path.exists(aside):  # a file in several parts has other names
            _move(aside, path, _note(model))
    finally:
        if os.path.exists(aside):
            os.unlink(aside)


def _move(aside: str, path: str, note: bytes) -> None:
    """Move a worker's file to its place, unless the chief's file of the same step is there."""
    is_chief = os.environ.get("ORCH_IS_CHIEF") == "1"
    if is_chief:
        _write(aside, note)
    with locked(os.path.dirname(path) or "."):
        if is_chief or _read(path) != note:
            os.replace(aside, path)


def _note(model: Any) -> bytes:
    """The step of a model in this attempt of this run."""
    step = getattr(getattr(model, "optimizer", None), "iterations", None)
    run = (os.environ.get("ORCH_RUN_ID"), os.environ.get("ORCH_ATTEMPT"))
    return f"orch: the chief's file of step {None if step is None else int(step.numpy())} of {run}".encode()


def _write(path: str, note: bytes) -> None:
    if path.endswith(".keras"):
        import zipfile

        with zipfile.ZipFile(path, "a") as archive:
            archive.comment = note
    else:
        import h5py  # type: ignore[import-untyped]

        with h5py.File(path, "a") as file:
            file.attrs["orch"] = note.decode()


def _read(path: str) -> bytes:
    """The note in a file; nothing if there is no such file, or if it has no note."""
    with contextlib.suppress(OSError, ValueError):
        if path.endswith(".keras"):
            import zipfile

            with contextlib.suppress(zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
                return archive.comment
        else:
            import h5py

            with h5py.File(path, "r") as file:
                return str(file.attrs.get("orch", "")).encode()
    return b""


@contextlib.contextmanager
def locked(directory: str) -> Iterator[None]:
    """One worker at a time looks at a directory and moves its file; where the file system has no locks, as many as like.

    A file is locked, and not the directory: the controller of the run holds the run directory as long as it lives.
    """
    path, fd = os.path.join(directory, ".orch-lock"), -1
    with contextlib.suppress(OSError):
        fd = _lock(path)
    try:
        yield
    finally:
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.unlink(path)
            os.close(fd)


def _lock(path: str) -> int:
    """A descriptor of the locked file, which anyone who had the lock before may have removed. Raises OSError."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
        except OSError:  # the file system has no locks, so no one holds this one
            os.close(fd)
            with contextlib.suppress(OSError):
                os.unlink(path)
            raise
        with contextlib.suppress(OSError):  # the holder before has removed the file, perhaps on another host (ESTALE)
            if os.path.samestat(os.fstat(fd), os.stat(path)):
                return fd
        os.close(fd)
