"""A working directory that should be the one where orch runs: looked at file by file, and read only where that is in doubt."""

from __future__ import annotations

import os
import time

from ..contract import LikeHere, Likeness, few
from .code import digest_of

READING_S = 10.0
"""For how long files are read; the controller hears nothing meanwhile. What is left then is compared by size."""
REMEDY = "make it the same, or write backend: {code: ship}"


def compare(packed: str, cwd: str) -> tuple[list[str], list[str]]:
    """What is not as it must be in `cwd`, and what is odd there: sentences. `packed`: a `Likeness`."""
    wanted = Likeness.unpack(packed)
    until = time.monotonic() + READING_S
    found: dict[str, list[LikeHere]] = {}
    for file in wanted.files:
        found.setdefault(_compare(file, cwd, is_late=time.monotonic() > until), []).append(file)
    if len(found.get("same", ())) == len(wanted.files):  # one disk: the files that were left out are on it, too
        return [], []
    must = {what: [file.path for file in found.get(what, ()) if file.must] for what in ("missing", "different")}
    may = {what: [file.path for file in found.get(what, ()) if not file.must] for what in ("missing", "different")}
    problems, notes = [], []
    if any(must.values()):
        problems.append(f"{cwd!r} is not what it is where orch runs: {_told(must)}; {REMEDY}")
    if any(may.values()):
        notes.append(f"{_told(may)} in {cwd!r}, where orch runs it is otherwise; no code, and git does not track it, so the run goes on")
    if "of the same size" in found:
        notes.append(f"compared by size alone in {cwd!r}: {few([file.path for file in found['of the same size']])}")
    return problems, notes + ([wanted.rest] if wanted.rest else [])


def _compare(file: LikeHere, cwd: str, *, is_late: bool) -> str:
    """``same``: it is the very file; ``like``: another one with its content."""
    path = os.path.join(cwd, file.path)
    try:
        found = os.stat(path)
        if found.st_size != file.size:
            return "different"
        if (found.st_ino, found.st_mtime_ns) == (file.inode, file.mtime_ns):
            return "same"
        if is_late or not file.digest:
            return "of the same size"
        return "like" if digest_of(path) == file.digest else "different"
    except OSError:
        return "missing"


def _told(names: dict[str, list[str]]) -> str:
    return "; ".join(f"{few(some)} {'is' if len(some) == 1 else 'are'} {what}" for what, some in names.items() if some)
