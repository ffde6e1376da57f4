"""The controller's side of a mirror: a program of the standard library alone, whose text an interpreter there gets (``-c``).

    RUN_DIR fetch       from what the mirror has, on stdin, to the pieces that the mirror lacks, on stdout
    RUN_DIR deliver     appends the line on stdin to the file `requests`

All files of a run grow or are replaced as a whole. Of a file that grows the mirror tells its size, and a checksum of its last bytes: if
these are others here, the file was cut or begun again, and is sent from its beginning. Of a file that is replaced the mirror tells the
time.

What is sent, after `MARK`, for each piece: a line ``["PATH", STAMP, SIZE]`` of JSON, and SIZE bytes. The path is relative to the directory
of the run. The stamp is the offset of the bytes, or the time in ns of a file that is replaced, or `GONE`. The last line has an empty path;
its stamp is 1 if there is more to fetch.
"""

from __future__ import annotations

import json
import os
import re
import stat
import sys
import zlib

MARK = b"orch-mirror-1\n"
GONE = -1
PIECE_BYTES = 1 << 20
"""The most bytes of a piece of a file that grows."""
WHOLE_BYTES = 16 << 20
"""The most bytes of a file that is replaced: a larger one is not sent."""
FETCH_BYTES = 64 << 20
"""After so many bytes an answer ends."""
TAIL_BYTES = 64
MOST_FILES = 100_000
RESULT, EVENTS = "result.json", "events.jsonl"
_SHAPES = re.compile(
    r"(?!engine\.json|submission\.json)[a-z_]{1,40}\.jsonl?|marks|controller\.log|samples/[0-9](\.old)?\.jsonl|agents/[^/\0.][^/\0]{0,200}"
    r"|attempt-[1-9][0-9]{0,9}/[a-z_]{1,40}-[0-9]{1,9}/[a-z_][a-z0-9_.-]{0,60}"
)


def is_mirrored(path: str) -> bool:
    """True if a run has such a file, and others want it: no checkpoint, no file of another name, and none outside of the directory."""
    return _SHAPES.fullmatch(path) is not None


def grows(path: str) -> bool:
    """True if a file of a run is only appended to, or cut and begun again. Other files are replaced as a whole."""
    return path == "marks" or (path.endswith((".log", ".jsonl", ".txt")) and not path.endswith(".old.jsonl"))


def walk(root: str) -> list[str]:
    """The paths of the files that are mirrored, in the order in which they are sent: the verdict comes last, when all else is there."""
    found: list[str] = []
    pending = [""]
    while pending and len(found) < MOST_FILES:
        inside = pending.pop()
        try:
            with os.scandir(os.path.join(root, inside)) as entries:
                for entry in entries:
                    path = f"{inside}/{entry.name}" if inside else entry.name
                    if entry.is_dir(follow_symlinks=False) and path.count("/") < 2:
                        pending.append(path)
                    elif entry.is_file(follow_symlinks=False) and is_mirrored(path):
                        found.append(path)
        except OSError:
            continue
    return sorted(found, key=lambda path: (path == RESULT, grows(path), path != EVENTS, path))


def state(path: str, name: str) -> list[int]:
    """Return what a mirror tells of a file that it has. Raises OSError."""
    fd = open_regular(path)
    try:
        found = os.fstat(fd)
        return [found.st_size, checksum(fd, found.st_size)] if grows(name) else [found.st_mtime_ns]
    finally:
        os.close(fd)


def checksum(fd: int, end: int) -> int:
    """The checksum of the last bytes before `end`."""
    return zlib.crc32(os.pread(fd, min(end, TAIL_BYTES), max(0, end - TAIL_BYTES)))


def open_regular(path: str) -> int:
    """Raises OSError, also for what is no regular file."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise OSError("no regular file")


class PieceSender:
    """Sends the pieces of the files in `root` that a mirror lacks. `have`: the state of each file that the mirror has."""

    def __init__(self, root: str, have: dict[str, list[int]], out: int = 1) -> None:
        self._root, self._have, self._out = root, have, out
        self._left = FETCH_BYTES

    def send_all(self) -> None:
        paths = walk(self._root)  # without a verdict that is written meanwhile: what came before might be missing
        os.write(self._out, MARK)
        for path in paths:
            if self._left > 0:
                try:
                    self._send_file(path)
                except OSError:  # it was removed or replaced meanwhile
                    continue
        for path in sorted(set(self._have) - set(paths)):
            if is_mirrored(path) and not grows(path):
                self._send(path, GONE, b"")
        self._send("", int(self._left <= 0), b"")

    def _send_file(self, path: str) -> None:
        fd = open_regular(os.path.join(self._root, path))
        try:
            found, had = os.fstat(fd), self._have.get(path, [])
            if grows(path):
                self._send_growth(path, fd, found.st_size, *(had if len(had) == 2 else (-1, 0)))
            elif had != [found.st_mtime_ns] and found.st_size <= WHOLE_BYTES:
                self._send(path, found.st_mtime_ns, os.pread(fd, WHOLE_BYTES, 0))
        finally:
            os.close(fd)

    def _send_growth(self, path: str, fd: int, size: int, offset: int, check: int) -> None:
        is_new = not 0 <= offset <= size or (offset and checksum(fd, offset) != check)
        start = 0 if is_new else offset
        if is_new and not size:
            self._send(path, 0, b"")
        while start < size and self._left > 0:
            data = os.pread(fd, min(PIECE_BYTES, size - start), start)
            if not data:
                break
            self._send(path, start, data)
            start += len(data)

    def _send(self, path: str, stamp: int, data: bytes) -> None:
        view = memoryview(json.dumps([path, stamp, len(data)]).encode() + b"\n" + data)
        self._left -= len(data)
        while view:
            view = view[os.write(self._out, view) :]


def deliver(root: str, line: bytes) -> None:
    """Append a line to the file of requests. Raises OSError."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    fd = os.open(os.path.join(root, "requests"), flags, 0o600)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise OSError("the file of requests is no regular file")
    os.write(fd, line)  # shorter than a page: it is written as a whole


def main(root: str, verb: str) -> None:
    given = sys.stdin.buffer.read()
    if not os.path.isdir(root):
        sys.exit(f"the controller has no directory {root} yet")
    try:
        if verb == "deliver":
            deliver(root, given)
        else:
            PieceSender(root, json.loads(given)).send_all()
    except OSError as error:
        sys.exit(f"{root}: {error.strerror or error}")


if __name__ == "__main__":
    main(*sys.argv[1:])
