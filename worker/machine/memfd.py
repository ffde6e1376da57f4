"""Files in memory, for requests of any length: a pipe is too short, and other processes could read a file on disk."""

from __future__ import annotations

import os


def keep_in_memory(data: bytes) -> int:
    """A descriptor of `data` in memory, or of a file without a name where a sandbox refuses that. Raises OSError."""
    try:
        fd = os.memfd_create("orch-order")
    except (AttributeError, OSError):
        import tempfile  # a slow import, which few platforms need

        with tempfile.TemporaryFile(prefix="orch-") as file:
            fd = os.dup(file.fileno())
    with open(fd, "wb", closefd=False) as writer:
        writer.write(data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
