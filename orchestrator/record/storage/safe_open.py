"""How a run's files are opened for reading: anybody may have put anything in their place."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import IO

from ...errors import OrchError

_KINDS = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a named pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


def open_file(path: Path | str) -> IO[bytes]:
    """Open a regular file for reading, without ever waiting.

    Raises `FileNotFoundError`, and `OrchError` for whatever cannot be read or is no regular file: opening a named pipe would wait for
    somebody who writes into it.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise OrchError(f"{path} cannot be read: {error.strerror or error}") from None
    kind = stat.S_IFMT(os.fstat(fd).st_mode)
    if kind != stat.S_IFREG:
        os.close(fd)
        raise OrchError(f"{path} is {_KINDS.get(kind, 'something else')}, not a file that orch has written; take it away")
    return os.fdopen(fd, "rb")


def read_file(path: Path) -> bytes:
    """All of a regular file. Raises as `open_file` does."""
    with open_file(path) as file:
        return file.read()


def size_of(path: Path) -> int:
    """Bytes of a file; 0: it is not there."""
    try:
        return path.stat().st_size
    except OSError:
        return 0
