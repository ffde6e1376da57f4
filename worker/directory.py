"""A directory that is found again when somebody has moved it while it is in use."""

from __future__ import annotations

import os


class Directory:
    """Keeps a descriptor of a directory. `path` where the kernel names what a descriptor stands for (/proc): the place where it is now.

    Raises OSError if the directory cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self._path, self._fd = path, -1
        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    @property
    def path(self) -> str:
        """Where it is now; of one that was removed: where it was last."""
        if not self._is_at(self._path):
            try:
                here = os.readlink(f"/proc/self/fd/{self._fd}")
            except OSError:
                return self._path
            if self._is_at(here):
                self._path = here
        return self._path

    @property
    def is_gone(self) -> bool:
        """It was removed, also in order to move it to another file system; without /proc: or moved."""
        return not self._is_at(self.path)

    def _is_at(self, path: str) -> bool:
        try:
            return self._fd >= 0 and os.path.samestat(os.stat(path), os.fstat(self._fd))
        except OSError:
            return False

    def close(self) -> None:
        """From now on `path` stays what it is."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    __del__ = close
