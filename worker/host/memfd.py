"""Descriptors that hold data in memory: for orders of any length, which no pipe would take and nobody else should read."""

from __future__ import annotations

import os


def keep_in_memory(data: bytes) -> int:
    """A descriptor that reads as `data`, from the beginning. Raises OSError."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("orch-order")
    else:
        import tempfile  # a slow import, for few

        with tempfile.TemporaryFile(prefix="orch-") as file:
            fd = os.dup(file.fileno())
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.lseek(fd, 0, os.SEEK_SET)
    except OSError:
        os.close(fd)
        raise
    return fd
