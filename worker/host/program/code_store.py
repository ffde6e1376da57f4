"""A working directory that the controller sends: kept in the user's cache by content, so that the next run sends only what has changed.

    files/SHA256             contents
    code/DIGEST/             a directory as it was sent, in which tasks run; files that the tasks write stay there until it is removed

What no run has used for `KEPT_S` is removed, unless an agent still holds it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator

from ...protocol.messages import Code, CodeFile
from ...workdir import digest_of
from ..remote_entry import KEPT_S, cache_directory, lock, remove_old


class CodeError(Exception):
    """The directory cannot be kept here; the message says why."""


class CodeStore:
    """One working directory that is being received: `begin`, then `add_part` for each part, then `finish`."""

    def __init__(self, code: Code) -> None:
        self._code = code
        self._base = ""
        self._lock = -1
        self._arriving = ""
        """The file with the first parts of a content; empty: the next part begins one."""
        self._trouble: CodeError | None = None
        """Why a part could not be kept."""
        self.is_temporary = False
        """This host has no cache for the user: the directory is removed by `close`."""

    def begin(self) -> tuple[str, ...]:
        """Returns the digests of the contents that must be sent. Raises `CodeError`."""
        with self._explained():
            base = cache_directory()
            self.is_temporary = base is None
            self._base = base or tempfile.mkdtemp(prefix="orch-code-")
            os.makedirs(self._kept(""), mode=0o700, exist_ok=True)
            os.makedirs(self.path, mode=0o700, exist_ok=True)
            self._lock = lock(self.path, fcntl.LOCK_SH)
            os.utime(self.path)
            remove_old("", self.path)
            for name in os.listdir(self._kept("")):
                with contextlib.suppress(OSError):
                    if os.stat(self._kept(name)).st_mtime < time.time() - KEPT_S:
                        os.unlink(self._kept(name))
            return tuple(dict.fromkeys(file.digest for file in self._code.files if not self._is_kept(file)))

    def add_part(self, digest: str, data: bytes, *, last: bool) -> None:
        """Add a part of a content. `finish` raises the error of the first part that cannot be kept."""
        if self._trouble is None:
            try:
                with self._explained():
                    self._add_part(digest, data, last=last)
            except CodeError as error:
                self._trouble = error
                self._drop_arriving()

    def _add_part(self, digest: str, data: bytes, *, last: bool) -> None:
        if not self._arriving:
            fd, self._arriving = tempfile.mkstemp(dir=self._kept(""))
            os.close(fd)
        with open(self._arriving, "ab") as file:
            file.write(data)
        if last:
            if digest_of(self._arriving) != digest:
                raise CodeError("a file did not arrive as it was sent; was it changed meanwhile? try again")
            os.replace(self._arriving, self._kept(digest))
            self._arriving = ""

    def finish(self) -> str:
        """Put every file in its place. Returns the directory. Raises `CodeError`."""
        if self._trouble is not None:
            raise self._trouble
        with self._explained():
            for file in self._code.files:
                self._put(file)
        return self.path

    def _put(self, file: CodeFile) -> None:
        path, mode = os.path.join(self.path, file.path), 0o700 if file.executable else 0o600
        if os.path.isabs(file.path) or ".." in file.path.split("/"):
            raise CodeError(f"{file.path!r} is not below the working directory")
        if _holds(path, file) and os.stat(path).st_mode & 0o777 == mode:
            return
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        aside = f"{path}.{os.uname().nodename}.{os.getpid()}"  # hosts may share a home
        shutil.copyfile(self._kept(file.digest), aside)
        os.chmod(aside, mode)
        os.replace(aside, path)

    @property
    def path(self) -> str:
        return os.path.join(self._base, "code", self._code.digest[:16])

    def close(self) -> None:
        self._drop_arriving()  # the controller may have ended in the middle of a content
        if self._lock >= 0:
            os.close(self._lock)
        if self.is_temporary and self._base:
            shutil.rmtree(self._base, ignore_errors=True)

    def _drop_arriving(self) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self._arriving)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise CodeError(f"the working directory cannot be kept in {self._base or 'the cache'}: {error.strerror or error}") from None

    def _kept(self, digest: str) -> str:
        return os.path.join(self._base, "files", digest)

    def _is_kept(self, file: CodeFile) -> bool:
        with contextlib.suppress(OSError):
            if _holds(self._kept(file.digest), file):
                os.utime(self._kept(file.digest))
                return True
        return False


def _holds(path: str, file: CodeFile) -> bool:
    """Whether the file at `path` has this content."""
    try:
        return os.lstat(path).st_size == file.size and digest_of(path) == file.digest
    except OSError:
        return False
