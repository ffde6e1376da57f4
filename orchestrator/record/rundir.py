"""A run on disk. The paths of `.orch/`, of which a few are made elsewhere.

    HOME/.gitignore                 "*", if we made HOME
    HOME/latest -> runs/RUN
    HOME/runs/RUN/
      lock                          held (flock) by the controller as long as it lives; its pid is inside
      spec.yaml plan.json           what was wanted, what was planned
      request/                      what the backend ran, byte for byte
      events.jsonl                  what happened
      marks                         when each output had grown to how many bytes (marks.py)
      reserve                       room for the last events, for when the disk is full
      agents/HOST.log               what an agent had to complain about; template-N.log: what its imports have printed
      attempt-1/worker-0/           stdout.log stderr.log error.json reports.jsonl stacks.txt begun ended (worker/host, worker/task)
      checkpoints/                  ORCH_CHECKPOINT_DIR of the tasks
      data_service/attempt-1/       the journal of a dispatcher (worker/task/data_service.py)
      controller.log                what a detached controller has printed (cli/detach.py)
      result.json                   the verdict

Directories are 0700, files 0600: environments and logs hold secrets. A file that others read whole is written aside and
renamed. Whether a run is alive is a fact of the kernel (the lock), never a pid in a file: the pid is believed only while the lock is held.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from worker.contract import STACKS, ContractError, file_of, from_json, to_json

from ..errors import OrchError, UsageError
from ..model import lifecycle, plan
from ..model.cluster import Cluster, Verdict
from ..model.events import HostLost
from ..model.plan import Plan
from . import journal
from .journal import RunEvent

RESERVE_BYTES = 32 * 1024
"""Kept free for the verdict: a run that a full disk has ended must still be able to say so."""
MOST_CHECKPOINTS = 10_000
"""How many files are looked at in search of a new one."""
IGNORE_ALL = b"*\n"
LOCK_S = 0.2
"""How long a new controller waits for the lock: whoever looks whether the run is alive holds it for a moment."""
ATTEMPTS = 100
"""How often a directory is made again that runs which are being discarded take away."""


class RunDir:
    """One run's directory. Open it with `create` or `find`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.made: list[Path] = []
        """What was made above HOME for this run."""
        self._lock_fd: int | None = None
        self._events_fd: int | None = None

    @property
    def run_id(self) -> str:
        return self.path.name

    # --- the controller's side -----------------------------------------------------------------

    def lock(self) -> None:
        """Say that this process runs the run. Held until the process ends. Raises `OrchError` if another one does."""
        fd = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            deadline = time.monotonic() + LOCK_S
            while not _took_lock(fd, fcntl.LOCK_EX):
                if time.monotonic() >= deadline:
                    raise OrchError(f"{self.run_id} already has a controller; orch down {self.run_id} ends it")
                time.sleep(LOCK_S / 20)
        except OSError as error:
            os.close(fd)
            reason = error.strerror or error
            raise OrchError(
                f"{self.path / 'lock'} cannot be locked: {reason}; name another directory with --run-dir or ORCH_HOME"
            ) from None
        except OrchError:
            os.close(fd)
            raise
        os.ftruncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode(), 0)
        self._lock_fd = fd

    def unlock(self) -> None:
        """Say that the run is over: its verdict is written."""
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def record(self, event: RunEvent) -> None:
        """Append to `events.jsonl`. Raises OSError, such as for a full disk."""
        if self._events_fd is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._events_fd = os.open(self.path / "events.jsonl", flags, 0o600)
        _write_all(self._events_fd, journal.to_line(event))

    def write_spec(self, text: str) -> None:
        self.write("spec.yaml", text)

    def make_attempt(self, number: int) -> None:
        """Make the directory of an attempt; an agent would make it readable by all."""
        (self.path / f"attempt-{number}").mkdir(mode=0o700, exist_ok=True)

    def write_plan(self, planned: Plan) -> None:
        """Write `plan.json`; from now on the run is the latest."""
        self.write("plan.json", json.dumps(to_json(planned)))
        home = self.path.parent.parent
        aside = home / f".latest-{self.run_id}"
        aside.symlink_to(Path("runs") / self.run_id)
        aside.replace(home / "latest")

    def discard(self) -> None:
        """Remove the directory of a run of which nothing was started, and what was only made for it."""
        shutil.rmtree(self.path, ignore_errors=True)
        home = self.path.parent.parent
        with contextlib.suppress(OSError):
            self.path.parent.rmdir()
            ignore = home / ".gitignore"
            if [path.name for path in home.iterdir()] == [ignore.name] and ignore.read_bytes() == IGNORE_ALL:
                ignore.unlink()
                try:
                    home.rmdir()
                except OSError:  # another run has just come
                    _write_whole(ignore, IGNORE_ALL)
            for parent in reversed(self.made):
                parent.rmdir()

    def write_verdict(self, verdict: Verdict, extra: dict[str, Any]) -> None:
        """Write `result.json`, out of the reserve if need be."""
        # Every field, also those at their default: programs read this.
        text = json.dumps({**extra, **dataclasses.asdict(verdict)}, indent=2) + "\n"
        try:
            self.write("result.json", text)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            self.free_reserve()
            self.write("result.json", text)
        self.free_reserve()

    def free_reserve(self) -> None:
        (self.path / "reserve").unlink(missing_ok=True)

    def write(self, name: str, text: str) -> None:
        """Write a file of the run whole: aside, then renamed."""
        path = self.path / name
        path.parent.mkdir(mode=0o700, exist_ok=True)
        _write_whole(path, text.encode("utf-8", "surrogateescape"))

    def append_output(self, task: str, attempt: int, stream: str, offset: int, data: bytes) -> int:
        """Store bytes that came from a host which does not see this directory. Returns the file's new size."""
        path = self.log_path(task, attempt, stream)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.lseek(fd, offset, os.SEEK_SET)
            _write_all(fd, data)
        finally:
            os.close(fd)
        return offset + len(data)

    # --- everybody's side ----------------------------------------------------------------------

    def log_path(self, task: str, attempt: int, stream: str) -> Path:
        return self.task_dir(task, attempt) / file_of(stream)

    def task_dir(self, task: str, attempt: int) -> Path:
        return self.path / plan.log_dir(attempt, task)

    def stacks_path(self, task: str, attempt: int) -> Path:
        """What the task said when it was asked for its stacks; the agent of its host writes it."""
        return self.log_path(task, attempt, STACKS)

    def attempts(self) -> list[int]:
        """The attempts that have begun, the newest last."""
        names = (path.name.partition("-")[2] for path in self.path.glob("attempt-[0-9]*"))
        return sorted(int(name) for name in names if name.isdigit())

    def newest_checkpoint(self) -> float:
        """When anything in the checkpoint directory last changed; 0 if nothing is there."""
        newest, seen = 0.0, 0
        for directory, _, names in os.walk(self.path / "checkpoints"):
            for name in names:
                with contextlib.suppress(OSError):  # it has just been renamed, or removed as too old
                    newest = max(newest, os.stat(os.path.join(directory, name)).st_mtime)
            seen += len(names)
            if seen > MOST_CHECKPOINTS:
                break
        return newest

    def last_attempts(self) -> dict[str, int]:
        """The newest attempt of each task that was ever started."""
        found: dict[str, int] = {}
        for number in self.attempts():
            found.update(dict.fromkeys(os.listdir(self.path / f"attempt-{number}"), number))
        return found

    def agent_log(self, host: str) -> Path:
        path = self.path / "agents" / f"{host}.log"
        path.parent.mkdir(mode=0o700, exist_ok=True)
        return path

    def controller_pid(self) -> int | None:
        """The pid of the controller, if it lives. Whoever wrote it is to be believed only if `is_ours`."""
        try:
            fd = os.open(self.path / "lock", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            if _took_lock(fd, fcntl.LOCK_SH):
                return None
            text = os.pread(fd, 32, 0)
            return int(text) if text.isdigit() and int(text) > 1 else None
        except OSError:  # what cannot be locked, nobody has locked
            return None
        finally:
            os.close(fd)

    def is_ours(self) -> bool:
        """Directory and lock belong to the user who asks, or root asks: the pid in a file of somebody else's may be any process."""
        user = os.geteuid()
        try:
            owners = {path.stat().st_uid for path in (self.path, self.path / "lock")}
        except OSError:
            return False
        return owners == {user} or user == 0

    def wait_unlocked(self) -> None:
        """Return when no controller holds the run any more."""
        with contextlib.suppress(FileNotFoundError), open(self.path / "lock", "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH)

    def read_plan(self) -> Plan | None:
        """The plan; None if the run ended before there was one."""
        try:
            return from_json(Plan, json.loads((self.path / "plan.json").read_bytes()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, ContractError) as error:
            raise OrchError(
                f"the plan of {self.run_id} cannot be read: {error}; if another version of orch wrote it, use that one; "
                f"plan and logs: {self.path}"
            ) from None

    def read_result(self) -> dict[str, Any] | None:
        """`result.json` as it is; None while the run goes on, or if its controller died."""
        try:
            found = json.loads((self.path / "result.json").read_bytes())
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def read_events(self) -> Iterator[RunEvent]:
        try:
            with open(self.path / "events.jsonl", "rb") as file:
                yield from journal.from_lines(file)
        except FileNotFoundError:
            return

    def read_cluster(self) -> Cluster | None:
        """The run as its events tell it; None if it ended before there was a plan."""
        planned = self.read_plan()
        if planned is None:
            return None
        # Asked before the events are read: a controller that ends in between has written its last one before it let go of the lock.
        lives = self.controller_pid() is not None
        cluster = lifecycle.of_plan(planned)
        at = 0.0
        for event in self.read_events():
            cluster, at = journal.replay(cluster, event), event.at
        if not cluster.is_over and not lives:
            # Nobody was left to say so: with the controller went the agents, and with them the tasks.
            for host in planned.hosts:
                cluster, _ = lifecycle.step(cluster, HostLost(host.name, "its controller died", at))
        return cluster


def create(home: Path, run_id: str) -> RunDir:
    """Make the directory of a new run. Raises `OrchError` with the place and the reason; nothing is left then."""
    run = RunDir(home / "runs" / run_id)
    try:
        _make_directories(run)
        with open(run.path / "reserve", "wb", opener=private_opener) as file:
            file.write(b"\0" * RESERVE_BYTES)
    except OSError as error:
        run.discard()
        raise OrchError(
            f"cannot keep a run in {home}: {error.strerror or error}; name another directory with --run-dir or ORCH_HOME"
        ) from None
    return run


def _make_directories(run: RunDir) -> None:
    home = run.path.parent.parent
    for parent in reversed([path for path in home.parents if not path.exists()]):
        parent.mkdir(exist_ok=True)
        run.made.append(parent)
    for attempt in range(ATTEMPTS):
        try:
            if not home.exists():
                home.mkdir(mode=0o700, exist_ok=True)
                # Only a directory that we have made is hidden from git: --run-dir may name one with a project in it.
                _write_whole(home / ".gitignore", IGNORE_ALL)
            run.path.parent.mkdir(mode=0o700, exist_ok=True)
            run.path.mkdir(mode=0o700)
            return
        except (FileNotFoundError, FileExistsError):  # another run has just been discarded, and its parents with it
            if attempt == ATTEMPTS - 1:
                raise


def find(home: Path, name: str | None) -> RunDir:
    """A run by its id or an unambiguous beginning of it; None: the latest. Raises `UsageError`."""
    if name is None:
        latest = home / "latest"
        if not latest.is_dir():
            raise UsageError(f"there is no run in {home}")
        return RunDir(latest.resolve())
    found = [run for run in list_runs(home) if run.run_id.startswith(name)]
    exact = [run for run in found if run.run_id == name]
    if len(exact or found) != 1:
        known = ", ".join(run.run_id for run in (found or list_runs(home))[-8:]) or "none"
        what = "matches several" if found else "does not exist"
        raise UsageError(f"the run {name!r} {what} in {home}; runs: {known}")
    return (exact or found)[0]


def list_runs(home: Path) -> list[RunDir]:
    """All runs, oldest first."""
    try:
        paths = list((home / "runs").iterdir())
    except OSError:
        return []
    begun = ((_begun_at(path), path) for path in paths)
    return [RunDir(path) for at, path in sorted((at, path) for at, path in begun if at is not None)]


def _begun_at(path: Path) -> int | None:
    """When a run was made, in ns: its spec is written once, its directory changes again and again. None: it has just been discarded."""
    for kept in (path / "spec.yaml", path / "."):
        with contextlib.suppress(OSError):
            return kept.stat().st_mtime_ns
    return None


def _took_lock(fd: int, kind: int) -> bool:
    """Lock a file, if nobody else holds it. Raises OSError where files cannot be locked."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def private_opener(path: str, flags: int) -> int:
    """For `open`: what it makes is this user's alone."""
    return os.open(path, flags, 0o600)


def _write_whole(path: Path, data: bytes) -> None:
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(aside, "wb", opener=private_opener) as file:
            file.write(data)
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
