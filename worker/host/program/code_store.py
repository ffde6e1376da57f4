"""A working directory that was sent: kept in the user's cache by content, so that next time only what has changed is sent.

    files/SHA256             contents
    code/DIGEST/             a directory as it was sent, in which tasks run; what they leave there stays until it goes

What nobody has used for `KEPT_S` goes, unless an agent still holds it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time

from ...protocol.messages import Code, CodeFile
from ...workdir import digest_of
from ..remote_entry import KEPT_S, cache_directory, lock, remove_unheld


class CodeError(Exception):
    """The directory cannot be kept here; the message says why."""


class CodeStore:
    """One working directory on its way. Give it the order, then the parts, then have it settled."""

    def __init__(self) -> None:
        self._base = ""
        self._code: Code | None = None
        self._lock = -1
        self._taking = ""
        """The content of which a part has come."""
        self.is_temporary = False

    def expect(self, code: Code) -> tuple[str, ...]:
        """The contents that are not here yet. Raises `CodeError`."""
        try:
            base = cache_directory()
            self.is_temporary = base is None
            self._base = base or tempfile.mkdtemp(prefix="orch-code-")
            self._code = code
            os.makedirs(os.path.join(self._base, "files"), mode=0o700, exist_ok=True)
            os.makedirs(self.path, mode=0o700, exist_ok=True)
            self._lock = lock(self.path, fcntl.LOCK_SH)
            os.utime(self.path)
            self._forget_old()
            return tuple(dict.fromkeys(file.digest for file in code.files if not self._is_in_place(file) and not self._is_kept(file)))
        except OSError as error:
            raise CodeError(f"the working directory cannot be kept in {self._base or 'the cache'}: {error.strerror or error}") from None

    def take(self, digest: str, data: bytes, *, last: bool) -> None:
        """A piece of a content. Raises `CodeError`."""
        aside = f"{self._kept(digest)}.{os.uname().nodename}.{os.getpid()}"
        begins, self._taking = digest != self._taking, "" if last else digest
        try:
            with open(aside, "wb" if begins else "ab", opener=_private) as file:  # a dead agent with our pid may have left the like
                file.write(data)
            if last:
                if digest_of(aside) != digest:
                    os.unlink(aside)
                    raise CodeError("a file did not arrive as it was sent; was it changed meanwhile? try again")
                os.replace(aside, self._kept(digest))
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(aside)
            raise CodeError(f"the working directory cannot be kept in {self._base}: {error.strerror or error}") from None

    def settle(self) -> str:
        """Put every file in its place. Returns the directory. Raises `CodeError`."""
        assert self._code is not None
        try:
            for file in self._code.files:
                if not self._is_in_place(file):
                    self._put(file)
        except OSError as error:
            raise CodeError(f"the working directory cannot be made in {self.path}: {error.strerror or error}") from None
        return self.path

    @property
    def path(self) -> str:
        assert self._code is not None
        return os.path.join(self._base, "code", self._code.digest[:16])

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
        if self.is_temporary and self._base:
            shutil.rmtree(self._base, ignore_errors=True)

    def _kept(self, digest: str) -> str:
        return os.path.join(self._base, "files", digest)

    def _is_kept(self, file: CodeFile) -> bool:
        path = self._kept(file.digest)
        try:
            if os.stat(path).st_size == file.size and digest_of(path) == file.digest:
                os.utime(path)
                return True
        except OSError:
            pass
        return False

    def _place_of(self, file: CodeFile) -> str:
        if os.path.isabs(file.path) or ".." in file.path.split("/"):
            raise CodeError(f"{file.path!r} is not below the working directory")
        return os.path.join(self.path, file.path)

    def _is_in_place(self, file: CodeFile) -> bool:
        path = self._place_of(file)
        try:
            found = os.lstat(path)
            fits = found.st_size == file.size and bool(found.st_mode & 0o100) == file.executable
            return fits and digest_of(path) == file.digest
        except OSError:
            return False

    def _put(self, file: CodeFile) -> None:
        path = self._place_of(file)
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        aside = f"{path}.{os.uname().nodename}.{os.getpid()}"
        shutil.copyfile(self._kept(file.digest), aside)
        os.chmod(aside, 0o700 if file.executable else 0o600)
        os.replace(aside, path)

    def _forget_old(self) -> None:
        before = time.time() - KEPT_S
        for name in os.listdir(os.path.join(self._base, "files")):
            with contextlib.suppress(OSError):
                if os.stat(self._kept(name)).st_mtime < before:
                    os.unlink(self._kept(name))
        trees = os.path.join(self._base, "code")
        for name in os.listdir(trees):
            path = os.path.join(trees, name)
            with contextlib.suppress(OSError):
                if path != self.path and os.stat(path).st_mtime < before:
                    remove_unheld(path)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
