"""Compares the working directory of this host with the directory where orch runs."""

from __future__ import annotations

from ...protocol.messages import WorkdirState
from ...workdir import read_state

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
    knows = bool(here.commit and there.commit)
    if knows and not here.has_changes:
        return [], []
    why = "it has changes that are not committed" if knows else "git does not know it"
    compared = [name for name in (there.program, "the commit" if knows else "") if name]
    if not compared:
        return [], [f"{cwd!r} was not compared with the directory where orch runs: {why}"]
    return [], [f"of {cwd!r} only {' and '.join(compared)} could be compared with the directory where orch runs: {why}"]


def _difference(there: WorkdirState, here: WorkdirState) -> str:
    if here.digest != there.digest:
        return f"{there.program} is {'different' if here.digest else 'missing'}"
    if not (here.commit and there.commit):
        return ""
    if here.commit != there.commit:
        return f"its commit is {here.commit[:10]} and not {there.commit[:10]}"
    if here.has_changes == there.has_changes:
        return ""
    return "it has changes that are not committed" if here.has_changes else "it lacks the changes that are not committed there"
