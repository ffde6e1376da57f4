"""Makes, finds, lists and removes the runs in HOME, which is `.orch/`."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from worker.protocol.task_id import TASK_TYPES
from worker.values.words import few

from ..errors import OrchError, UsageError
from .run_directory import RESERVE_BYTES, RunDir
from .run_files import write_whole
from .text.lines import clean

if TYPE_CHECKING:  # see run_directory.py
    from ..model.planning.plan import Plan


_ID_WITHOUT_NAME = re.compile(r"-\d{8}-\d{6}-[0-9a-f]+$")
"""What the id of a run has after its name."""
_IS_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*-\d{8}-\d{6}-[0-9a-f]{8}")
"""An id as orch makes it (orchestrator/control/starting.py)."""
_HARMLESS = re.compile(r"\w[\w.+@,=-]*")
"""The names of directories that are listed: a copy may have a name of its own, on which neither a shell nor a terminal acts."""
BEGINNING_S = 60.0
"""How long the directory of a run may be without a lock or a spec, in seconds."""
LATEST = "latest"
"""The link to the latest run, and the word for this run in place of a name."""
_TASK = re.compile(rf"(?:{'|'.join(TASK_TYPES)})-\d+")


class SeveralRunsError(UsageError):
    """The ids of several runs begin as the user has written. `runs`: the newest last."""

    def __init__(self, text: str, runs: Sequence[RunDir]) -> None:
        super().__init__(text)
        self.runs = runs


def create_run(home: Path, run_id: str) -> RunDir:
    """Makes the directory of a new run. Raises `OrchError` with the reason; then no directory of a run is left behind."""
    run = RunDir(home / "runs" / run_id)
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not any(home.iterdir()):  # --home may name a project, which is not hidden from git
            write_whole(home / ".gitignore", b"*\n")
        run.path.parent.mkdir(mode=0o700, exist_ok=True)
        run.path.mkdir(mode=0o700)
        if os.geteuid() and (owner := home.stat().st_uid) and owner != run.path.stat().st_uid:
            discard(run)
            what = f"{home} belongs to another user, who could put another run instead of yours"
            raise OrchError(what, "name a directory of your own with --home or ORCH_HOME", "security")
        try:
            write_whole(run.path / "reserve", bytes(RESERVE_BYTES))
        except OSError:
            discard(run)
            raise
    except OSError as error:
        raise cannot_keep(home, error) from None
    return run


def cannot_keep(path: Path, error: OSError) -> OrchError:
    """The error for a directory in which a run cannot be made or written."""
    return OrchError(f"cannot keep a run in {path}: {error.strerror or error}", remedy_for(error))


def remedy_for(error: OSError) -> str:
    """Return what lets a run be recorded, after this error."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "raise the limit of open files (ulimit -n)"
    is_other = error.errno in (errno.EEXIST, errno.ENOTDIR)
    first = "remove what is there in place of a directory" if is_other else "make room"
    return f"{first}, or name another directory with --home or ORCH_HOME"


def discard(run: RunDir) -> None:
    """Removes the directory of a run of which no task was started."""
    run.lock.release()
    import shutil  # a slow import, for runs that are refused

    shutil.rmtree(run.path, ignore_errors=True)


def find_run(home: Path, name: str | None) -> RunDir:
    """The run whose id is `name`, or was made from the name `name` (--name), or begins with it; the latest, or else the newest, if `name`
    is None or ``latest``. Raises `UsageError`, and `SeveralRunsError` if this is true of several runs."""
    if name == "":  # each id begins so
        raise UsageError("the name of a run must not be empty (a variable of the shell that is not set?); leave it out for the latest run")
    if name is None or (name == LATEST and not any(run.run_id.startswith(name) for run in list_runs(home))):
        if (latest := _latest(home)) is not None:
            return latest
        if not (runs := list_runs(home)):
            raise UsageError(f"there is no run in {home}", "cd to the directory of the run, or name it: --home DIR; orch up starts one")
        return runs[-1]  # the link was removed, or no run has got a plan
    found = [run for run in list_runs(home) if run.run_id.startswith(name)]
    named = [run for run in found if name_of(run.run_id) == name]  # lr-1 is not lr-10
    chosen = [run for run in found if run.run_id == name] or named or found
    if not found and _TASK.fullmatch(name):
        raise UsageError(f"{name} is a task, and a run is named here: orch logs {name} and orch stacks --task {name} are about a task")
    if not found:
        raise UsageError(f"the run {name!r} does not exist in {home}; runs: {_named(list_runs(home)) or 'none'}")
    if len(chosen) != 1:
        which = f"the newest is {chosen[-1].run_id}; all: {_named(chosen)}"
        raise SeveralRunsError(f"the names of {len(chosen)} runs in {home} begin with {name!r}: write more of the name; {which}", chosen)
    return chosen[0]


def _latest(home: Path) -> RunDir | None:
    """The run that the link names, if this is one of `runs`. Of a run that was moved and left a link there, this link."""
    with contextlib.suppress(OSError, ValueError):
        entry = home / "runs" / Path(os.readlink(home / LATEST)).name
        if entry.parent.name == "runs" and os.path.isdir(entry) and os.path.samefile(home / LATEST, entry):
            return RunDir(entry)
    return None


def is_made_by_orch(run: RunDir) -> bool:
    """True if orch has made this directory, to the end. Others call their directories `runs`, too, and `runs` may be a link to anywhere."""
    has = [os.path.isfile(path) and not os.path.islink(path) for path in (run.path / "lock", run.path / "spec.yaml")]
    is_old = not 0 <= time.time() - (begun_at(run.path) or 0) / 1e9 < BEGINNING_S
    return _IS_ID.fullmatch(run.run_id) is not None and (all(has) or (has[0] and is_old))


def name_of(run_id: str) -> str:
    return _ID_WITHOUT_NAME.sub("", run_id, count=1)


def _named(runs: Sequence[RunDir]) -> str:
    return few([run.run_id for run in reversed(runs)])


def no_tasks_yet(run: RunDir) -> str:
    """The words for a run that goes on and has no tasks: why it has none."""
    from .run_progress import read_cluster  # a start has no use for it

    return clean(f"no tasks yet: {read_cluster(run).waiting or 'its hosts are being reached'}")


def plan_of(run: RunDir) -> Plan:
    """The plan of a run. Raises `UsageError` if the run has no plan yet, `OrchError` if the run ended without a plan."""
    lives = run.is_alive()  # read first: the run may get its plan, or end, at any moment
    planned = run.read_plan()
    if planned is None and lives:
        raise UsageError(f"{run.run_id} has {no_tasks_yet(run)}")
    if planned is None:
        raise OrchError(f"{run.run_id} ended before it had tasks; orch wait says why; logs: {run.path}")
    return planned


def check_attempt(run: RunDir, number: int | None) -> None:
    """Raises `UsageError` for an attempt that the run does not have."""
    found = run.attempts()
    if number is not None and number not in found:
        raise UsageError(f"{run.run_id} has no attempt {number}; it has {', '.join(map(str, found)) or 'none'}")


def list_runs(home: Path) -> list[RunDir]:
    """All runs, oldest first. Raises `OrchError` if the directory cannot be read."""
    try:
        paths = [path for path in (home / "runs").iterdir() if _HARMLESS.fullmatch(path.name)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise OrchError(f"the runs in {home} cannot be read: {error.strerror or error}") from None
    begun = ((begun_at(path), path) for path in paths)
    return [RunDir(path) for at, path in sorted((at, path) for at, path in begun if at is not None)]


def going(home: Path) -> list[str]:
    """The runs that this machine is running, the oldest first."""
    return [run.run_id for run in list_runs(home) if run.lock.is_held()]


def begun_at(path: Path) -> int | None:
    """The time when a run was made, in ns, by its spec or directory; None: it was discarded meanwhile, or this is no run."""
    for kept in (f"{path}/spec.yaml", f"{path}/"):  # not by pathlib, which drops the last slash: it demands a directory
        with contextlib.suppress(OSError):
            return os.stat(kept).st_mtime_ns
    return None
