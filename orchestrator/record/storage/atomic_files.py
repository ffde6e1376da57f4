"""How a run's files are written: this user's alone, and whole."""

from __future__ import annotations

import os
from pathlib import Path


def private_opener(path: str, flags: int) -> int:
    """For `open`: what it makes is this user's alone."""
    return os.open(path, flags, 0o600)


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that whoever reads it finds all of it or none: aside, then renamed."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(aside, "wb", opener=private_opener) as file:
            file.write(data)
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def write_all(fd: int, data: bytes) -> None:
    """Write all of it: the kernel may take less at once."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
