"""A working directory that the controller sends: kept in the user's cache by content, so that the next run sends only what has changed.

    files/SHA256             contents
    code/DIGEST/             a directory as it was sent, in which tasks run; files that the tasks write stay there until it is removed

What no run has used for `KEPT_S` is removed, unless an agent still holds it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator

from ..machine.workdir import digest_of
from ..protocol.messages import Code, CodeFile
from .remote_entry import KEPT_S, cache_directory, lock, remove_old


class CodeError(Exception):
    """The directory cannot be kept here; the message says why."""


class CodeStore:
    """One working directory that is being received: `begin`, then `find_missing`, then `add_part` for each part, then `finish`.

    `find_missing` and `finish` read all files, which takes as long as the disk does: the agent calls them in a process of their own.
    """

    def __init__(self, code: Code) -> None:
        self._code = code
        self._base = ""
        self._lock = -1
        self._arriving = ""
        """The file with the first parts of a content; empty: the next part begins one."""
        self._digest = hashlib.sha256()
        self._trouble: CodeError | None = None
        """Why a part could not be kept."""
        self.is_temporary = False
        """This host has no cache for the user: the directory is removed by `close`."""

    def begin(self) -> None:
        """Find the place, and hold it. Raises `CodeError`."""
        with self._explained():
            base = cache_directory()
            self.is_temporary = base is None
            self._base = base or tempfile.mkdtemp(prefix="orch-code-")
            os.makedirs(self._kept(""), mode=0o700, exist_ok=True)
            os.makedirs(os.path.dirname(self.path), mode=0o700, exist_ok=True)
            _make_directory(self.path)
            self._lock = lock(self.path, fcntl.LOCK_SH)
            os.utime(self.path)

    def find_missing(self) -> list[str]:
        """Remove what no run has used for long. Returns the digests of the contents that must be sent. Raises `CodeError`."""
        with self._explained():
            remove_old("", self.path)
            for name in os.listdir(self._kept("")):
                with contextlib.suppress(OSError):
                    if os.stat(self._kept(name)).st_mtime < time.time() - KEPT_S:
                        os.unlink(self._kept(name))
            return list(dict.fromkeys(file.digest for file in self._code.files if not self._is_kept(file)))

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
            self._digest = hashlib.sha256()
        with open(self._arriving, "ab") as file:
            file.write(data)
        self._digest.update(data)
        if last:
            if self._digest.hexdigest() != digest:
                raise CodeError("a file did not arrive as it was sent; was it changed meanwhile? try again")
            os.replace(self._arriving, self._kept(digest))
            self._arriving = ""

    def finish(self) -> str:
        """Put every file in its place. Returns the directory. Raises `CodeError`."""
        if self._trouble is not None:
            raise self._trouble
        seen: set[str] = set()
        for file in self._code.files:
            with self._explained(file.path):
                self._put(file, seen)
        return self.path

    def _put(self, file: CodeFile, seen: set[str]) -> None:
        path, mode = os.path.join(self.path, file.path), 0o700 if file.executable else 0o600
        if os.path.isabs(file.path) or ".." in file.path.split("/"):
            raise CodeError(f"{file.path!r} is not below the working directory")
        *parents, _ = file.path.split("/")
        for place in itertools.accumulate((self.path, *parents), os.path.join):
            if place not in seen:
                _make_directory(place)
                seen.add(place)
        if _holds(path, file) and os.stat(path).st_mode & 0o777 == mode:
            return
        aside = self._kept(f"{file.digest}.{os.uname().nodename}.{os.getpid()}")  # hosts may share a home
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
    def _explained(self, name: str = "") -> Iterator[None]:
        """`name`: of the file that is dealt with."""
        try:
            yield
        except OSError as error:
            what = f"{name or 'the working directory'} cannot be kept in {self._base or 'the cache'}"
            raise CodeError(f"{what}: {error.strerror or error}") from None

    def _kept(self, digest: str) -> str:
        return os.path.join(self._base, "files", digest)

    def _is_kept(self, file: CodeFile) -> bool:
        with contextlib.suppress(OSError):
            if _holds(self._kept(file.digest), file):
                os.utime(self._kept(file.digest))
                return True
        return False


def _holds(path: str, file: CodeFile) -> bool:
    try:
        found = os.lstat(path)  # a task may have put a link or a named pipe there
        return stat.S_ISREG(found.st_mode) and found.st_size == file.size and digest_of(path) == file.digest
    except OSError:
        return False


def _make_directory(path: str) -> None:
    """Make a directory, unless it is there. A link, which a task has put there, would lead out of the cache, and is removed."""
    try:
        if stat.S_ISDIR(os.lstat(path).st_mode):
            return
        os.unlink(path)
    except FileNotFoundError:
        pass
    with contextlib.suppress(FileExistsError):  # another agent of this user has been faster
        os.mkdir(path, 0o700)
