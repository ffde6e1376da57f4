"""Compares the working directory of this host with the directory where orch runs."""

from __future__ import annotations

from ...machine.workdir import read_state
from ...protocol.messages import WorkdirState

REMEDY = "make it the same, or write backend: {code: ship}"


def compare(there: WorkdirState, cwd: str) -> tuple[list[str], list[str]]:
    """Compare `cwd` with `there`, the directory where orch runs.

    Returns the problems, which end the start, and the notes: each at most one sentence.
    """
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
