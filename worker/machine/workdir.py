"""The state of a working directory on this machine: its program's file, the commit, and whether there are changes.

`read_state` is called where orch runs, and on each host that should have the same directory. host/facts/workdir_check.py compares them.
"""

from __future__ import annotations

import os

from ..protocol.messages import WorkdirState

GIT_S = 10.0
"""How long git may take, in seconds. After that, orch takes the directory for one that is not in git."""


def read_state(cwd: str, program: str) -> WorkdirState:
    """The state of the directory `cwd`. `program`: the program's file, absolute or relative to `cwd`; empty: the program is no file.

    Files that cannot be read count as missing.
    """
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
