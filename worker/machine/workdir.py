"""The state of a working directory on this machine: its program's file, the commit, and whether there are changes.

`read_state` is called where orch runs, and `compare` on each host that should have the same directory.
"""

from __future__ import annotations

import os

from ..protocol.messages import WorkdirState

GIT_S = 10.0
"""How long git may take, in seconds. After that, orch takes the directory for one that is not in git."""
REMEDY = "make it the same, or write backend: {code: ship}"


def read_state(cwd: str, program: str) -> WorkdirState:
    """The state of `cwd`, and of the program's file, if `program` names one. A file that cannot be read counts as missing."""
    commit, has_changes = _read_git(cwd)
    path = os.path.join(cwd, program)
    try:
        found = os.stat(path)
        digest = digest_of(path) if program else ""
    except OSError:
        return WorkdirState(program, commit=commit, has_changes=has_changes)
    return WorkdirState(program, digest, found.st_ino, found.st_mtime_ns, commit, has_changes)


def digest_of(path: str, most: int | None = None) -> str:
    """SHA-256 of a file's content, or of its first `most` bytes, in hex. Raises `OSError`."""
    import hashlib  # a slow import that most runs do not need

    found = hashlib.sha256()
    with open(path, "rb") as file:
        while data := file.read(1 << 20 if most is None else min(1 << 20, most)):
            found.update(data)
            most = None if most is None else most - len(data)
    return found.hexdigest()


def _read_git(cwd: str) -> tuple[str, bool]:
    """The commit that is checked out, and whether tracked files differ from it; ("", False) for a directory that is not in git."""
    import subprocess  # most agents do not compare directories

    argv = ["git", "--no-optional-locks", "-C", cwd, "status", "--porcelain=v2", "--branch", "--untracked-files=no"]
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=GIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "", False
    head, lines = b"# branch.oid ", done.stdout.splitlines()
    commit = next((line[len(head) :].decode() for line in lines if line.startswith(head)), "")
    return commit, any(not line.startswith(b"# ") for line in lines)


def compare(there: WorkdirState, cwd: str) -> tuple[list[str], list[str]]:
    """The problems of `cwd`, which end the start, and the notes, compared with `there`, where orch runs: a sentence for each."""
    here = read_state(cwd, there.program)
    if (here.inode, here.mtime_ns) == (there.inode, there.mtime_ns) and here.digest == there.digest:
        return [], []  # both hosts see the same disk
    what = _difference(there, here)
    if what:
        return [f"{cwd!r} is not what it is where orch runs: {what}; {REMEDY}"], []
    if here.commit and there.commit and not here.has_changes:
        return [], []
    why = "it has changes that are not committed" if here.commit and there.commit else "git does not know it"
    return [], [f"{cwd!r} could not be compared as a whole with the directory where orch runs: {why}"]


def _difference(there: WorkdirState, here: WorkdirState) -> str:
    if here.digest != there.digest:
        return f"{there.program} is {'different' if here.digest else 'missing'}"
    if not (here.commit and there.commit):
        return ""
    if here.commit != there.commit:
        return f"its commit is {here.commit[:10]} and not {there.commit[:10]}"
    return "" if here.has_changes == there.has_changes else "only one of the two has changes that are not committed"
