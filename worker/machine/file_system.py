"""The kind of the file system on which a path is."""

from __future__ import annotations

import os

_MOUNTS = "/proc/self/mounts"
_OF_THIS_MACHINE = frozenset(("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "overlay", "tmpfs", "ramfs"))


def kind_of(path: str) -> str:
    """The kind of the file system of a path, such as ``ext4`` or ``nfs4``; empty: unknown."""
    try:
        with open(_MOUNTS, encoding="utf-8", errors="surrogateescape") as file:
            mounts = [line.split() for line in file]
    except OSError:
        return ""
    real = os.path.realpath(path)
    fits = [words for words in mounts if real == words[1] or real.startswith(words[1].rstrip("/") + "/")]
    return max(fits, key=lambda words: len(words[1]))[2] if fits else ""


def is_of_this_machine(path: str) -> bool:
    """Whether no other machine writes to the file system of this path, so that what was written there can be read at once."""
    return kind_of(path) in _OF_THIS_MACHINE
