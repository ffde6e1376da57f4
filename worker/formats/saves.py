"""The saves of a training: their directories, their manifests, and whether they are whole.

    DIR/fit-1/reached                         the last step of the training, saved or not
    DIR/fit-1/step-0000000120/                a save: after step 120
        model.safetensors                     what all workers have alike, and the chief has written
        worker-0.safetensors, worker-1...     what each worker has of its own: seeds, statistics of BatchNormalization, metrics
        manifest.json                         written last: a directory without it is no save
    DIR/fit-1/left-2/                         what the agents say while they save the snapshots that attempt 2 has left (snapshot_files.py)

The first folder is the series: the first `fit` of the program, its second one, or a loop of its own (`loop-1`). The series of a task that
trains alone next to others are in a folder with its name: DIR/worker-0/fit-1.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import stat
import time
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, Protocol, cast

from ..values.fast_dataclass import dataclass
from . import tensor_file
from .tensor_file import DamagedError

MANIFEST = "manifest.json"
MODEL = "model.safetensors"
"""The file of what all workers have alike."""
LEFT = "left"
REACHED = "reached"
FORMAT = 1
DAMAGED = ".damaged"
"""The end of the name of a save that was found to be damaged."""
_LONGEST_REACHED = 64
_LAST_MOMENT = 1e11
"""In seconds since the epoch: the year 5138."""
_NAME = re.compile(r"step-(\d{10})(-epoch|-final)?$", re.ASCII)
_TASK = re.compile(r"[a-z_]{1,40}-[0-9]{1,9}")
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}")
UNFINISHED = "it has no manifest: it was not finished"


class Files(Protocol):
    def names(self, directory: str) -> list[str]:
        """The names in a directory; none if there is no such directory."""

    def open(self, path: str, mode: str) -> BinaryIO: ...

    def put(self, path: str, new: str) -> None:
        """Give the file `new` its final path; what was there is replaced."""

    def make(self, directory: str) -> None: ...

    def move(self, directory: str, to: str) -> None: ...

    def remove(self, path: str) -> None:
        """Remove a file or a directory, if it is there."""


def _open_regular(path: str, flags: int) -> int:
    """Opens a regular file without waiting; for writing, also without following a link. Raises OSError.

    Everybody who may write into the directory could have put something else there: a training, an agent and `orch checkpoints` would wait
    for a named pipe, and a device has no end.
    """
    fd = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC | (os.O_NOFOLLOW if flags & os.O_WRONLY else 0), 0o600)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    return fd


class LocalFiles:
    """Directories of this host. A file is on the disk before it has its final name."""

    def names(self, directory: str) -> list[str]:
        try:
            return os.listdir(directory)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def open(self, path: str, mode: str) -> BinaryIO:
        return cast("BinaryIO", open(path, mode, opener=_open_regular))

    def put(self, path: str, new: str) -> None:
        with open(new, "rb") as file:
            os.fsync(file.fileno())
        os.replace(new, path)
        self._sync(os.path.dirname(path))

    def make(self, directory: str) -> None:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        self._sync(os.path.dirname(directory))

    def move(self, directory: str, to: str) -> None:
        os.rename(directory, to)

    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path)
            else:
                os.unlink(path)

    @staticmethod
    def _sync(directory: str) -> None:
        found = os.open(directory, os.O_RDONLY)
        try:
            with contextlib.suppress(OSError):  # a file system that cannot
                os.fsync(found)
        finally:
            os.close(found)


LOCAL = LocalFiles()


@dataclass(frozen=True, slots=True)
class Save:
    """A directory of a save. Without a manifest, `problem` says why."""

    directory: str
    series: str
    name: str
    manifest: dict[str, Any] | None
    problem: str = ""

    @property
    def step(self) -> int:
        match = _NAME.match(self.name)
        return int(match[1]) if match else -1

    @property
    def is_final(self) -> bool:
        """True if the training of the series was over."""
        return self.name.endswith("-final")

    @property
    def size(self) -> int:
        """The bytes of its files."""
        return sum(one["bytes"] for one in self.manifest["files"].values()) if self.manifest else 0


def name_of(step: int, kind: str = "") -> str:
    """The name of a save. `kind`: empty in an epoch; ``epoch`` at the end of one; ``final``. The newest name sorts last."""
    return f"step-{step:010d}{kind and '-'}{kind}"


def file_of(task: str) -> str:
    return f"{task}.safetensors"


def join(*parts: str) -> str:
    """A path, of this host or with a scheme such as ``gs://``."""
    return "/".join(part.rstrip("/") for part in parts)


def series_of(files: Files, base: str) -> list[str]:
    """The names of the series of a directory, in their order."""
    found = [name.rstrip("/") for name in files.names(base)]
    named = [match for name in found if (match := re.fullmatch(r"(fit|loop)-(\d+)", name))]
    return [match[0] for match in sorted(named, key=lambda match: (match[1], int(match[2])))]


def homes_of(files: Files, base: str) -> list[str]:
    """The directories with series: this one, and in it those of the tasks that train alone next to others (``worker-0``)."""
    tasks = sorted(name for each in files.names(base) if re.fullmatch(r"(?!fit-|loop-)[a-z]+-\d+", name := each.rstrip("/")))
    return [base, *(join(base, task) for task in tasks)]


def list_saves(files: Files, base: str, series: str) -> Iterator[Save]:
    """The saves of a series, the newest first, also those that are not whole."""
    for name in sorted((name.rstrip("/") for name in files.names(join(base, series))), reverse=True):
        if _NAME.match(name):
            yield read_save(files, base, series, name)


def read_save(files: Files, base: str, series: str, name: str) -> Save:
    directory = join(base, series, name)
    try:
        with files.open(join(directory, MANIFEST), "rb") as file:
            return Save(directory, series, name, unseal(file.read(tensor_file.LONGEST_HEADER)))
    except DamagedError as error:
        return Save(directory, series, name, None, f"{MANIFEST}: {error}")
    except Exception as error:  # each file system has errors of its own
        problem = "" if MANIFEST not in files.names(directory) else f"{MANIFEST}: {error}"
        return Save(directory, series, name, None, problem or UNFINISHED)


def check(files: Files, save: Save) -> str:
    """Return what is wrong with a save, by the checksums of all its tensors; empty: nothing."""
    if save.manifest is None:
        return save.problem
    for name in save.manifest["files"]:
        try:
            read_file(files, save, name, keep=False)
        except DamagedError as error:
            return str(error)
    return ""


def read_file(
    files: Files, save: Save, name: str, *, keep: bool = True, only: str = ""
) -> tuple[dict[str, tensor_file.Tensor], dict[str, Any]]:
    """The tensors and the note of one file of a save. Raises `DamagedError`, with the name of the file."""
    assert save.manifest is not None
    try:
        with files.open(join(save.directory, name), "rb") as file:
            return tensor_file.read(file, save.manifest["files"][name]["tensors"], keep=keep, only=only)
    except DamagedError as error:
        raise DamagedError(f"{name}: {error}") from None
    except Exception as error:  # each file system has errors of its own
        raise DamagedError(f"{name}: {getattr(error, 'strerror', None) or error}") from None


# --- writing ----------------------------------------------------------------------------------------


@contextlib.contextmanager
def _new_file(files: Files, path: str) -> Iterator[BinaryIO]:
    """A file, which gets its path at the end. If it does not come to that, as on a full disk, it takes no room there."""
    new = f"{path}.new"
    file = files.open(new, "wb")
    try:
        with file:
            yield file
        files.put(path, new)
    except BaseException:
        with contextlib.suppress(Exception):  # the reason is the first error
            files.remove(new)
        raise


def write_bytes(files: Files, path: str, content: bytes) -> None:
    """A file, which is there as a whole or not at all."""
    with _new_file(files, path) as file:
        file.write(content)


def write_file(files: Files, directory: str, name: str, tensors: Mapping[str, tensor_file.Tensor], note: Mapping[str, Any]) -> None:
    """A file of tensors."""
    with _new_file(files, join(directory, name)) as file:
        tensor_file.write(file, tensors, note)


def finish(files: Files, directory: str, document: Mapping[str, Any], told: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the manifest of a save whose files are all there. `told`: what `tensor_file.describe` says of each file."""
    tensors = [(f"{name}/{tensor}", one) for name, file in told.items() for tensor, one in file.items()]
    manifest = {
        **document,
        "files": {name: {"bytes": tensor_file.bytes_of(file), "tensors": file} for name, file in told.items()},
        "sha256": tensor_file.digest_of_all(tensors),
    }
    write_bytes(files, join(directory, MANIFEST), seal(manifest))


# --- manifests and the last step -----------------------------------------------------------------------


def seal(manifest: dict[str, Any]) -> bytes:
    """A manifest as text, with a checksum of itself."""
    return json.dumps({**manifest, "format": FORMAT, "seal": _seal({**manifest, "format": FORMAT})}, indent=1).encode()


def unseal(text: bytes) -> dict[str, Any]:
    """Raises `DamagedError`."""
    try:
        found: dict[str, Any] = json.loads(text)
        given = found.pop("seal")
        form = found["format"]
    except (ValueError, LookupError, TypeError, AttributeError):
        raise DamagedError("it is not the manifest of a checkpoint") from None
    if given != _seal(found):
        raise DamagedError("it is not what was written: its checksum differs")
    if form != FORMAT:
        raise DamagedError(f"it has the format {form}, and this version of orch reads {FORMAT}")
    if not _is_whole(found):
        raise DamagedError("it lacks what a manifest says: its time, its place in the training, and its files with their bytes and tensors")
    return found


def _is_whole(manifest: dict[str, Any]) -> bool:
    """True if a manifest has what all readers need. Its checksum proves nothing: anyone who writes a file there can make one."""
    match manifest:
        case {
            "at": int() | float() as at,
            "files": {**files},
            "kind": "" | "epoch" | "final",
            "by": str(by),
            "run": str(),
            "attempt": attempt,
            "order": str(),
            "step": step,
            "input": {"epoch": epoch, "batch": batch, **place},
            "world": {"workers": workers, "replicas": replicas},
            "versions": {**_versions},
            **more,
        } if 0 <= at <= _LAST_MOMENT and all(map(_are_tasks, ([by], workers, more.get("lost", [])))):
            counts = [step, epoch, batch, replicas, attempt, place.get("first_epoch", 0), more.get("validations", 0)]
        case _:
            return False
    match manifest.get("optimizers", {}):
        case {**optimizers} if all(map(_are_texts, optimizers.values())):
            pass
        case _:
            return False
    match manifest.get("fit"):
        case None:
            pass
        case {"is_stopped": bool(), "callbacks": [*callbacks]} if all(map(_is_of_callback, callbacks)):
            pass
        case _:
            return False
    for name, one in files.items():
        match one:
            case {"bytes": size, "tensors": {**_tensors}} if _FILE.fullmatch(str(name)):
                counts.append(size)
            case _:
                return False
    return all(type(count) is int and 0 <= count < 1 << 63 for count in counts)


def _is_of_callback(told: Any) -> bool:
    match told:
        case {"class": str(), "kept": {**_kept}, **more}:
            return type(more.get("written", 0)) is int
    return False


def _are_tasks(names: Any) -> bool:
    return _are_texts(names) and all(map(is_task, names))


def _are_texts(names: Any) -> bool:
    return isinstance(names, list) and all(isinstance(name, str) for name in names)


def is_task(name: Any) -> bool:
    """True if this is the name of a task, and leads out of no directory."""
    return isinstance(name, str) and _TASK.fullmatch(name) is not None


def is_name(name: Any) -> bool:
    """True if this is the name of a save."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def _seal(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def open_reached(base: str, series: str) -> int:
    """The file in which the last finished step of a training is noted. Raises OSError."""
    return _open_regular(join(base, series, REACHED), os.O_WRONLY | os.O_CREAT)


def note_reached(fd: int, step: int) -> None:
    """`fd`: of `open_reached`. Raises OSError."""
    os.pwrite(fd, b"%020d\n" % step, 0)


def reached(files: Files, base: str, series: str) -> int | None:
    """The last step that the training of a series has finished, also if it was not saved; None: unknown."""
    try:
        with files.open(join(base, series, REACHED), "rb") as file:
            return int(file.read(_LONGEST_REACHED).split()[0])
    except Exception:  # each file system has errors of its own
        return None


def age(manifest: dict[str, Any]) -> float:
    """The seconds since a save."""
    return max(0.0, time.time() - float(manifest["at"]))
