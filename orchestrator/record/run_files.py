"""Reading and writing the files of a run. Files are written as a whole and for this user only; reading trusts no file."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from worker.protocol import task_files
from worker.values.words import bytes_of

from ..errors import OrchError

MOST_BYTES = 64 << 20
"""The most that is read at once, of a file or of a line: the plan of ten thousand tasks has ten million bytes."""

SAME_TRAINING = "same_training.json"
"""The result of `orch verify`, in the run of the workers."""
SCALED = "scaled.json"
"""The result of `orch scale`, in the run of the last size."""


def private_opener(path: str, flags: int) -> int:
    """For `open(opener=)`: a new file has mode 0600. A link is not followed, and a named pipe is not waited for."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, 0o600)


def open_own(path: Path, flags: int) -> int:
    """Open a file for writing, made with mode 0600, and no link or pipe that a task or another user has put there. Raises OSError."""
    fd = task_files.open_regular(str(path), flags | os.O_CREAT)
    if os.fstat(fd).st_nlink <= 1:
        return fd
    os.close(fd)
    raise PermissionError(errno.EPERM, "the file has another name, too", str(path))


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file under another name, then renames it. So a reader finds the whole file, or none."""
    with open_whole(path) as file:
        file.write(data)


@contextlib.contextmanager
def open_whole(path: Path, *, is_shared: bool = False) -> Iterator[IO[bytes]]:
    """As `write_whole`. `is_shared`: others may write into the directory, and a file of theirs must not get the bytes."""
    aside = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")  # two threads may write the same file
    try:
        with open(aside, "xb" if is_shared else "wb", opener=private_opener) as file:
            yield file
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def write_all(fd: int, data: bytes) -> None:
    """Writes all bytes. One call of `os.write` may write fewer."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


_KINDS = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a named pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


def open_file(path: Path | str) -> IO[bytes]:
    """Opens a regular file for reading, without waiting.

    Raises `FileNotFoundError`, and `OrchError` for a file that cannot be read or is not regular: opening a named pipe would wait for a
    writer, and a page that is given away would show the file that a link names.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OrchError(f"{path} is a link, not a file that orch has written; remove it") from None
        raise OrchError(f"{path} cannot be read: {error.strerror or error}") from None
    kind = stat.S_IFMT(os.fstat(fd).st_mode)
    if kind != stat.S_IFREG:
        os.close(fd)
        raise OrchError(f"{path} is {_KINDS.get(kind, 'something else')}, not a file that orch has written; remove it")
    return os.fdopen(fd, "rb")


def read_file(path: Path) -> bytes:
    """The contents of a regular file. Raises as `open_file` does, and `OrchError` for more than `MOST_BYTES`."""
    with open_file(path) as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise OrchError(f"{path} has more than {bytes_of(MOST_BYTES)}, which orch does not write there; remove it")
    return data


def read_lines(file: IO[bytes]) -> Iterator[bytes]:
    """The whole lines from here on. The file ends for its reader at a line that is still being written, or has more than `MOST_BYTES`."""
    while (line := file.readline(MOST_BYTES)).endswith(b"\n"):
        yield line


def size_of(path: Path) -> int:
    """The size of a file in bytes; 0 if the file does not exist."""
    try:
        return path.stat().st_size
    except OSError:
        return 0
