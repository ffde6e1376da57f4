"""A directory that is found again if somebody moves it while orch uses it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator


class Directory:
    """An open directory, of which /proc names the place where it is now. Raises OSError if it cannot be opened."""

    def __init__(self, path: str) -> None:
        self._path, self._fd = path, -1
        self._is_settled = False
        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    @property
    def path(self) -> str:
        """Return where the directory is now. If it was removed, or there is no /proc: where it was last."""
        if not self._is_settled and not self._is_at(self._path):
            try:
                here = os.readlink(f"/proc/self/fd/{self._fd}")
            except OSError:
                return self._path
            if self._is_at(here):
                self._path = here
        return self._path

    @contextlib.contextmanager
    def settled(self) -> Iterator[None]:
        """Find out once where the directory is, for all that is done meanwhile: for a look at the files of many tasks."""
        before, _ = self._is_settled, self.path
        self._is_settled = True
        try:
            yield
        finally:
            self._is_settled = before

    @property
    def is_gone(self) -> bool:
        """The directory was removed, or moved to another file system; without /proc, also if it was moved at all."""
        return not self._is_at(self.path)

    def _is_at(self, path: str) -> bool:
        try:
            return self._fd >= 0 and os.path.samestat(os.stat(path), os.fstat(self._fd))
        except OSError:
            return False

    def close(self) -> None:
        """From now on, `path` does not change."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    __del__ = close
