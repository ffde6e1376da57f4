"""The directory of a run, and the paths in `.orch/`: docs/files.md has all of them.

Directories have mode 0700, files 0600: environments and logs hold secrets. A file that is read whole is written under another name, then
renamed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worker.machine.clock import now
from worker.machine.directory import Directory
from worker.protocol.task_id import STACKS, file_of
from worker.values.codec import ContractError, from_json, to_json

from ..errors import OrchError
from .run_files import open_file, open_own, read_file, write_all, write_whole
from .run_lock import RunLock

# Functions import the model: `orch up` makes the directory and starts its agent first, and imports the model meanwhile.
if TYPE_CHECKING:
    from ..model.planning.plan import Plan
    from ..model.policy.submission import Heard
    from ..model.settings import ClusterSpec
    from ..model.state.cluster import Verdict
    from ..model.state.events import Event

RESERVE_BYTES = 32 * 1024
"""Kept free, so that `result.json` can be written when the disk is full."""
MOST_CHECKPOINTS = 10_000
"""The most files and directories that one search for checkpoints reads. The controller waits for the search."""

FAR_S = 0.5
"""The shortest time between two looks at a run whose controller is elsewhere, in seconds."""
SEARCH_S = 0.5
"""How long such a search may take. The controller gives no sign of life meanwhile, and a file server may be slow."""
_SERIES = re.compile("(fit|loop)-[0-9]+")
"""The directories of orch's own saves (worker/formats/saves.py)."""
_NO_LINKS = frozenset({errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EISDIR})
"""What a file system without links (FAT, some network drives) and a sandbox say of a link; and of a directory in its place."""
_NUMBER = re.compile("[1-9][0-9]{0,9}")


class RunDir:
    """The directory of a run. `run_store` makes and finds such directories."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.run_id = path.name
        self.lock = RunLock(lambda: self.path)
        self._events_fd: int | None = None
        self._torn = b""
        """A line end, if the last line of `events.jsonl` may lack one: the next event must not continue that line."""
        self._held: Directory | None = None
        self.renew: Callable[[], None] = _leave
        """Brings the record of a submitted run up to date, if that is due; set by anyone who can ask engines: `control.engine_jobs`."""

    @property
    def path(self) -> Path:
        """The path of the directory: after `hold` the present one, even if the directory was moved."""
        held = self._held  # another thread may call `let_go` meanwhile
        return self._path if held is None else Path(held.path)

    # --- the controller's side -----------------------------------------------------------------

    def hold(self) -> None:
        """Keeps the directory open, so that `path` follows a move. Raises OSError if the directory does not exist."""
        self._held = Directory(str(self._path))

    def let_go(self) -> None:
        """Ends what `hold` has begun; `path` stays as it is."""
        self._path, self._held = self.path, None

    @property
    def is_gone(self) -> bool:
        """True if the held directory was removed: all records are lost, and nothing more can be recorded."""
        return self._held is not None and self._held.is_gone

    def take_up(self) -> None:
        """Goes on in the directory of a run that another controller has left: the run has no verdict any more. Raises OSError."""
        (self.path / "result.json").unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError, OrchError), open_file(self.path / "events.jsonl") as file:
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                self._torn = b"" if file.read() == b"\n" else b"\n"
        write_whole(self.path / "reserve", bytes(RESERVE_BYTES))

    def record(self, event: Event) -> None:
        """Appends to `events.jsonl`. Raises OSError, for example if the disk is full."""
        if self._events_fd is None:
            self._events_fd = open_own(self.path / "events.jsonl", os.O_WRONLY | os.O_APPEND)
        from .event_log import to_line

        start, self._torn = self._torn, b"\n"
        write_all(self._events_fd, start + to_line(event))
        self._torn = b""

    @property
    def recorded_bytes(self) -> int:
        """The size of `events.jsonl`, for the controller."""
        return 0 if self._events_fd is None else os.lseek(self._events_fd, 0, os.SEEK_CUR)

    def close(self) -> None:
        """Stops recording and releases the lock. Call this last, when the verdict is written."""
        if self._events_fd is not None:
            os.close(self._events_fd)
            self._events_fd = None
        self.lock.release()

    def make_attempt(self, number: int) -> None:
        """Makes the directory of an attempt, with mode 0700."""
        (self.path / f"attempt-{number}").mkdir(mode=0o700, exist_ok=True)

    def write_plan(self, planned: Plan) -> None:
        """Writes `plan.json`, and makes the run the latest."""
        self.write("plan.json", json.dumps(to_json(planned)))
        self.make_latest()

    def make_latest(self) -> None:
        """Makes this the run that commands without the name of a run are about. A submitted run was that when it was submitted."""
        if self.is_submitted:
            return
        home = self.path.parent.parent
        aside = home / f".latest-{self.run_id}"
        try:
            aside.symlink_to(Path("runs") / self.run_id)
            aside.replace(home / "latest")
        except OSError as error:
            aside.unlink(missing_ok=True)
            if error.errno not in _NO_LINKS:
                raise  # else the newest run is the one that is meant

    def write_verdict(self, verdict: Verdict, extra: dict[str, Any]) -> None:
        """Writes `result.json`, for which the reserve makes room."""
        self.free_reserve()
        # All fields, also those at their default: programs read this file.
        self.write("result.json", json.dumps({**extra, **dataclasses.asdict(verdict)}, indent=2) + "\n")
        if self.path.parent.name == "runs" and not (self.path / "plan.json").exists():
            # `orch wait` after a run whose hosts could not be reached must not tell of the run before it.
            with contextlib.suppress(OSError):
                self.make_latest()

    def free_reserve(self) -> None:
        """Makes room for the last files of a run whose disk is full."""
        (self.path / "reserve").unlink(missing_ok=True)

    def write(self, name: str, text: str) -> None:
        """Writes a file of the run as a whole: under another name, then renamed."""
        path = self.path / name
        if path.parent != self.path:
            path.parent.mkdir(mode=0o700, exist_ok=True)
        write_whole(path, text.encode("utf-8", "surrogateescape"))

    def append_output(self, task: str, attempt: int, stream: str, offset: int, data: bytes) -> int:
        """Stores output bytes from a host that does not see this directory. Returns the new size of the file."""
        path = self.log_path(task, attempt, stream)
        try:
            fd = open_own(path, os.O_WRONLY)
        except FileNotFoundError:
            self.make_attempt(attempt)  # not its parents: a run's directory that was removed is not made again
            path.parent.mkdir(mode=0o700, exist_ok=True)
            fd = open_own(path, os.O_WRONLY)
        with open(fd, "wb") as file:  # not by its path: "wb" would empty the file
            file.seek(offset)
            file.write(data)
        return offset + len(data)

    # --- everybody's side ----------------------------------------------------------------------

    @property
    def is_submitted(self) -> bool:
        """True if the controller is a job of an engine."""
        return os.path.exists(self.path / "submission.json")

    @property
    def is_ours(self) -> bool:
        """True if this user has made the directory and what says by which programs the run is reached: another user may name any there."""
        try:
            owners = {os.lstat(self.path).st_uid, os.stat(self.path).st_uid}  # the path may be a link to somebody's directory
            for name in ("spec.yaml", "plan.json", "submission.json", "lock"):
                with contextlib.suppress(FileNotFoundError):
                    owners.add(os.lstat(self.path / name).st_uid)
        except OSError:
            return False
        return owners == {os.geteuid()}

    def is_alive(self) -> bool:
        """True if the run goes on, is being started, or waits for its engine: by its lock, or else by the last word of the engine."""
        if self.lock.is_held():
            return True
        if not self.is_submitted:
            return False
        from ..model.policy import submission

        self.renew()
        return submission.lives(self.heard(), self.own_verdict(), now(), self._late_s())

    def _late_s(self) -> float:
        """Return how late this directory may show what the controller of a submitted run has written, in seconds."""
        from worker.machine.file_system import is_of_this_machine

        from ..model.policy.submission import GRACE_S
        from .engine_files import read_submission

        submitted = read_submission(self.path)
        return 0.0 if submitted is not None and submitted.is_shared and is_of_this_machine(str(self.path)) else GRACE_S

    def heard(self) -> Heard:
        """The last word of the engine of a submitted run."""
        from .engine_files import is_copy, read_heard

        heard = read_heard(self.path)
        if heard.word.state == "ended" or not is_copy(self.path):
            return heard
        return dataclasses.replace(
            heard, trouble="this directory is a copy, or was submitted by another user or an older orch: its engine is not asked"
        )

    def look_s(self, usual_s: float) -> float:
        """The time between two looks at the run, in seconds: a file server is asked gently."""
        return max(usual_s, FAR_S) if self.is_submitted else usual_s

    def log_path(self, task: str, attempt: int, stream: str) -> Path:
        return self.task_dir(task, attempt) / file_of(stream)

    def task_dir(self, task: str, attempt: int) -> Path:
        from ..model.planning.plan import log_dir

        return self.path / log_dir(attempt, task)

    def stacks_path(self, task: str, attempt: int) -> Path:
        """The file into which a task writes its stacks."""
        return self.log_path(task, attempt, STACKS)

    def attempts(self) -> list[int]:
        """The numbers of the attempts that have begun, the newest last."""
        names = (path.name.partition("-")[2] for path in self.path.glob("attempt-[1-9]*") if path.is_dir())
        return sorted(int(name) for name in names if _NUMBER.fullmatch(name))

    def newest_checkpoint(self) -> float:
        """The newest mtime of a checkpoint's file; 0 if there is none.

        Of orch's own saves, that of the manifest with the highest step counts: a save of a step that was saved before is no progress.
        Beyond `MOST_CHECKPOINTS` or `SEARCH_S`, directories count in place of files.
        """
        newest, changed, seen, began = 0.0, 0.0, 0, time.monotonic()
        base = self.path / "checkpoints"
        for folder, folders, names in os.walk(base):
            if folder == str(base):
                own = [name for name in folders if _SERIES.fullmatch(name)]
                folders[:] = [name for name in folders if name not in own]
                newest = max((_highest_save(base / name) for name in own), default=0.0)
            seen += len(folders) + len(names)
            changed = max(changed, _changed_at(folder))  # a new checkpoint may be a new directory in any of them
            if seen > MOST_CHECKPOINTS:
                return max(newest, changed)
            for name in names:
                if time.monotonic() - began > SEARCH_S:
                    return max(newest, changed)
                newest = max(newest, _changed_at(os.path.join(folder, name)))
        return newest

    def last_attempts(self) -> dict[str, int]:
        """The newest attempt of each task that has started."""
        found: dict[str, int] = {}
        for number in self.attempts():
            found.update(dict.fromkeys(os.listdir(self.path / f"attempt-{number}"), number))
        return found

    def agent_log(self, host: str) -> Path:
        """The file for what the agent of a host writes to stderr. Makes its directory."""
        path = self.path / "agents" / f"{host}.log"
        path.parent.mkdir(mode=0o700, exist_ok=True)
        return path

    def read_plan(self) -> Plan | None:
        """The plan; None if there is no plan yet, or if the run ended without one (`run_store.plan_of` tells these apart)."""
        from ..model.planning.plan import Plan
        from ..model.strategies import named

        try:
            planned = from_json(Plan, json.loads(read_file(self.path / "plan.json")))
            named(planned.spec.strategy)  # of a later orch, there may be none here
            return planned
        except FileNotFoundError:
            return None
        except (OSError, ValueError, LookupError, RecursionError) as error:
            raise OrchError(
                f"the plan of {self.run_id} cannot be read: {error}; if another version of orch wrote it, use that one; "
                f"plan and logs: {self.path}"
            ) from None

    def read_spec(self) -> ClusterSpec:
        """The spec in `spec.yaml`. Raises `OrchError`."""
        from ..model.settings.document import read
        from ..model.settings.parse import parse

        path = self.path / "spec.yaml"
        try:
            return parse(read(read_file(path), str(path)), workdir=os.getcwd())
        except OSError as error:
            raise OrchError(f"the settings of {self.run_id} cannot be read: {error}") from None

    def read_result(self) -> dict[str, Any] | None:
        """The contents of `result.json`, or what an engine says in its place; None: the run goes on, or its controller died."""
        found: dict[str, Any] | None = self._read_own_result()
        if found is not None or not self.is_submitted:
            return found
        from ..model.policy import submission
        from .engine_files import read_submission

        submitted, heard = read_submission(self.path), self.heard()
        if submitted is None or submission.lives(heard, None, now(), self._late_s()) or self.lock.is_held():
            return None
        found = json.loads(json.dumps(dataclasses.asdict(submission.verdict_of(submitted, heard))))
        return {"run": self.run_id, **found}

    def _read_own_result(self) -> dict[str, Any] | None:
        try:
            found = json.loads(read_file(self.path / "result.json"))
        except (OSError, ValueError, RecursionError, OrchError):
            return None
        return found if isinstance(found, dict) else None

    def read_verdict(self) -> Verdict | None:
        return _verdict(self.read_result())

    def own_verdict(self) -> Verdict | None:
        """The verdict in `result.json`, which the controller has written."""
        return _verdict(self._read_own_result())

    def read_events(self, *, milestones: bool = False, on_report: Callable[[bytes, bytes], None] | None = None) -> Iterator[Event]:
        """See `EventReader.new`."""
        from .event_log import EventReader

        return EventReader(self.path).new(milestones=milestones, on_report=on_report)


def _leave() -> None:
    """A record that nothing but its controller changes."""


def _verdict(result: dict[str, Any] | None) -> Verdict | None:
    if result is None:
        return None
    from ..model.state.cluster import Verdict

    known = {field.name for field in dataclasses.fields(Verdict)}
    try:
        return from_json(Verdict, {name: value for name, value in result.items() if name in known})
    except ContractError:
        return None


def _highest_save(series: Path) -> float:
    """The mtime of the manifest with the highest step; 0: nothing is saved."""
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(series), reverse=True):
            if "." not in name and (at := _changed_at(str(series / name / "manifest.json"))):
                return at
    return 0.0


def _changed_at(path: str) -> float:
    with contextlib.suppress(OSError):  # a checkpoint may be renamed or removed at any time
        return os.stat(path).st_mtime
    return 0.0
