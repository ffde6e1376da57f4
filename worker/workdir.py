"""What a working directory is like on this machine: its program's file, the commit, and whether there are changes.

`look` is called where orch runs and on each host that should have the same directory. What differs is judged in
host/program/workdir_check.py.
"""

from __future__ import annotations

import hashlib
import os

from .protocol.messages import WorkdirState

GIT_S = 10.0
"""How long git may take, in seconds. After that, the directory counts as one that git does not know."""


def look(cwd: str, program: str) -> WorkdirState:
    """The state of the directory `cwd`. `program`: the program's file, absolute or relative to `cwd`; empty: it has none there.

    Files that cannot be read count as missing.
    """
    commit, has_changes = _ask_git(cwd)
    path = os.path.join(cwd, program)
    try:
        found = os.stat(path)
        digest = digest_of(path) if program else ""
    except OSError:
        return WorkdirState(program, commit=commit, has_changes=has_changes)
    return WorkdirState(program, digest, found.st_ino, found.st_mtime_ns, commit, has_changes)


def digest_of(path: str) -> str:
    """SHA-256 of a file's content, in hex. Raises `OSError`."""
    found = hashlib.sha256()
    with open(path, "rb") as file:
        while data := file.read(1 << 20):
            found.update(data)
    return found.hexdigest()


def _ask_git(cwd: str) -> tuple[str, bool]:
    """The commit that is checked out, and whether tracked files differ from it; ("", False) where git does not know the directory."""
    import subprocess  # most agents compare nothing

    argv = ["git", "--no-optional-locks", "-C", cwd, "status", "--porcelain=v2", "--branch", "--untracked-files=no"]
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=GIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "", False
    head, lines = b"# branch.oid ", done.stdout.splitlines()
    commit = next((line[len(head) :].decode() for line in lines if line.startswith(head)), "")
    return commit, any(not line.startswith(b"# ") for line in lines)
