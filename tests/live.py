"""A run in progress, seen from outside: its tasks' processes, what they have let the test know, how it ended."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest

from orchestrator.handle import Run
from orchestrator.model.planning import plan
from orchestrator.model.planning.facts_of_hosts import HostFacts
from orchestrator.model.policy import lifecycle
from orchestrator.model.settings import ClusterSpec, TaskSpec
from orchestrator.model.state import events
from orchestrator.record.event_log import to_line
from orchestrator.record.run_directory import RunDir
from orchestrator.record.run_store import create_run
from worker.protocol.messages import Program

PATIENCE_S = 200.0
"""A deadline against hangs; nothing here is expected to come near it."""

PROGRAMS = Path(__file__).parent / "programs"
PRELUDE = (PROGRAMS / "prelude.py").read_text()

T = TypeVar("T")


def write_script(directory: Path, text: str, preload: Sequence[str] = ()) -> Path:
    """`script.py`, which may use what stands in `PRELUDE`, and a spec beside it.

    `preload`: what the tasks are forked from has imported this; nothing: each task is a fresh interpreter.
    """
    (directory / "orch.yaml").write_text(f"preload: {json.dumps(preload)}\n")
    path = directory / "script.py"
    path.write_text(PRELUDE + textwrap.dedent(text))
    return path


def wait_until(find: Callable[[], T | None], what: str, patience_s: float = PATIENCE_S) -> T:
    __tracebackhide__ = True
    deadline = time.monotonic() + patience_s
    while not (found := find()):
        if time.monotonic() > deadline:
            pytest.fail(f"no {what} after {patience_s} s")
        time.sleep(0.005)
    return found


def wait_for_file(path: Path) -> str:
    __tracebackhide__ = True
    wait_until(path.exists, str(path))
    return path.read_text()


def wait_until_ready(directory: Path, *names: str) -> dict[str, psutil.Process]:
    """The processes that have said under these names that they are ready."""
    __tracebackhide__ = True
    return {name: psutil.Process(int(wait_for_file(directory / f"{name}.ready"))) for name in names}


@contextlib.contextmanager
def room_for(more: int) -> Iterator[None]:
    """As if no more than so many files could be opened. The kernel gives the lowest number that is free."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = [os.dup(0) for _ in range(more + 1)]
    for fd in free:
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[more], limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def is_alive(process: psutil.Process | int) -> bool:
    """Neither gone nor a zombie, at this moment. An int is a pid."""
    try:
        process = psutil.Process(process) if isinstance(process, int) else process
        return process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD) and process.is_running()
    except psutil.NoSuchProcess:
        return False


def wait_until_gone(processes: Iterable[psutil.Process]) -> None:
    """Fail the test if one of them does not end."""
    __tracebackhide__ = True
    left = list(processes)
    deadline = time.monotonic() + PATIENCE_S
    while left := [process for process in left if is_alive(process)]:
        if time.monotonic() > deadline:
            pytest.fail(f"still there: {left}")
        time.sleep(0.005)


@contextlib.contextmanager
def frozen(*pids: int) -> Iterator[None]:
    """As long as this lasts, SIGKILL does not end these processes: state D, as when a file server or a GPU's driver does not answer.

    By the freezer of cgroups v1 (Documentation/admin-guide/cgroup-v1/freezer-subsystem.rst); that of v2 lets SIGKILL through.
    """
    mounts = (line.split() for line in Path("/proc/mounts").read_text().splitlines())
    points = [words[1] for words in mounts if words[2] == "cgroup" and "freezer" in words[3].split(",")]
    group = Path(points[0] if points else "/nowhere", f"orch-test-{os.getpid()}")
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"NOT TESTED: there is no freezer of cgroups v1 here ({error.strerror})")
    try:
        for pid in pids:
            (group / "cgroup.procs").write_text(str(pid))
        (group / "freezer.state").write_text("FROZEN")
        wait_until(lambda: (group / "freezer.state").read_text() == "FROZEN\n", "frozen processes")
        yield
    finally:
        (group / "freezer.state").write_text("THAWED")
        for word in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):  # it has ended meanwhile
                (group.parent / "cgroup.procs").write_text(word)
        wait_until(lambda: not (group / "cgroup.procs").read_text(), "empty group")
        group.rmdir()


class LiveRun:
    """The latest run below a directory, read as another program would read it."""

    def __init__(self, directory: Path, home: str = ".orch") -> None:
        self._home = directory / home

    @property
    def path(self) -> Path:
        return wait_until(lambda: (self._home / "latest").resolve() if (self._home / "latest").exists() else None, "run")

    def events(self) -> list[dict[str, Any]]:
        lines = (self.path / "events.jsonl").read_bytes().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith(b"\n")]

    def event(self, name: str, **wanted: object) -> dict[str, Any]:
        """The first event of this name with these values; waits for it."""

        def find() -> dict[str, Any] | None:
            fits = (event for event in self.events() if event["event"] == name and wanted.items() <= event.items())
            return next(fits, None)

        return wait_until(find, f"event {name} {wanted}")

    def agent(self) -> psutil.Process:
        return psutil.Process(self.event("host_ready")["pid"])

    def controller(self) -> psutil.Process:
        return psutil.Process(json.loads((self.path / "lock").read_text())["pid"])

    def result(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.path / "result.json").read_bytes())
        return found

    def cause(self) -> dict[str, Any]:
        return self.result()["cause"]  # type: ignore[no-any-return]

    def log(self, task: str, stream: str = "stdout") -> bytes:
        return (self.path / "attempt-1" / task / f"{stream}.log").read_bytes()


def controller_of(run: Run) -> int:
    assert run._process is not None
    return run._process.pid


def kill(*processes: psutil.Process) -> None:
    """SIGKILL to all of them, as nearly at once as it can be done."""
    for process in processes:
        os.kill(process.pid, 9)


def plan_for(run: RunDir, workers: int) -> None:
    """Give a run its plan, as its controller does once all hosts have answered: at the time 100."""
    spec = ClusterSpec("one", "none", Program("script", "train.py"), (TaskSpec("worker", workers),), "/w")
    planned = plan.make("one", spec, plan.place(spec, {"local": None}), [HostFacts("local", "127.0.0.1", 2)])
    run.write_plan(planned)
    with open(run.path / "events.jsonl", "ab") as file:
        file.write(to_line(events.RunBegun(99.0, "one", lifecycle.policy_of(spec))) + to_line(lifecycle.begin(planned, 1, 100.0)))


@contextlib.contextmanager
def held_run(home: Path, workers: int = 1, run_id: str = "one") -> Iterator[tuple[RunDir, subprocess.Popen[bytes]]]:
    """A run of which nothing has happened yet, and the process that holds it. `workers` 0: its hosts are still being reached."""
    run = create_run(home, run_id)
    if workers:
        plan_for(run, workers)
    with subprocess.Popen([sys.executable, PROGRAMS / "hold.py", run.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        yield run, holder
        holder.kill()
