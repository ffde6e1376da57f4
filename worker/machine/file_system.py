"""The kind of the file system on which a path is."""

from __future__ import annotations

import os
import re

_MOUNTS = "/proc/self/mounts"
_OF_THIS_MACHINE = frozenset(("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "overlay", "tmpfs", "ramfs"))


def kind_of(path: str) -> str:
    """The kind of the file system of a path, such as ``ext4`` or ``nfs4``; empty: unknown."""
    real = os.path.realpath(path)
    fits = [mount for mount in _mounts() if real == mount[0] or real.startswith(mount[0].rstrip("/") + "/")]
    return max(fits, key=lambda mount: len(mount[0]))[1] if fits else ""


def mounts_in(path: str) -> list[str]:
    """Return what is mounted in a directory, or in its place: other directories, which are not to be emptied with this one."""
    real = os.path.realpath(path)
    return [where for where, _ in _mounts() if where == real or where.startswith(real.rstrip("/") + "/")]


def _mounts() -> list[tuple[str, str]]:
    """Return where something is mounted, and the kind of its file system, as far as the kernel tells."""
    try:
        with open(_MOUNTS, encoding="utf-8", errors="surrogateescape") as file:
            mounts = [line.split() for line in file]
    except OSError:
        return []
    return [(re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), words[1]), words[2]) for words in mounts if len(words) > 2]


def is_of_this_machine(path: str) -> bool:
    """True if no other machine writes to the file system of this path, so that what was written there can be read at once."""
    return kind_of(path) in _OF_THIS_MACHINE
