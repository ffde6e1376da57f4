"""The start of a run: makes its directory, and starts its controller as a process of its own, or as the job of an engine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from worker.values.fast_dataclass import dataclass

from ..backends import Backend, Request, RunFacts, load, load_checked
from ..errors import OrchError, UnansweredError
from ..model.settings import ClusterSpec
from ..model.settings.parse import to_document
from ..record.run_directory import RunDir
from ..record.run_files import private_opener
from ..record.run_store import cannot_keep, create_run, discard, list_runs
from .signals import hold_signals

if TYPE_CHECKING:  # most runs have no engine
    from ..model.policy.submission import Submission
    from ..model.state.cluster import Cluster

PROGRAM = Path(__file__).parents[1] / "controller.py"


@dataclass(frozen=True, slots=True)
class RunStart:
    """Holds what a run begins with: its directory, its place, and what the place does for it."""

    run: RunDir
    backend: Backend
    request: Request

    @property
    def spec(self) -> ClusterSpec:
        return self.request.run.spec


def start_of(run: RunDir, backend: Backend, spec: ClusterSpec) -> RunStart:
    return RunStart(run, backend, backend.request(RunFacts(spec, run.run_id, str(run.path))))


def read_start(run: RunDir) -> RunStart:
    """The start of a run that another process has created. Raises `OrchError`."""
    spec = run.read_spec()
    return start_of(run, load(spec), spec)


def create(home: Path, spec: ClusterSpec) -> RunStart:
    """Make the directory of a new run, with its spec, and hold its lock for the controller. Raises `OrchError`; then there is no run."""
    backend = load_checked(spec)
    # A run is also found by its id in the environment of its processes, on hosts that many runs share.
    run = create_run(home, f"{spec.name}-{time.strftime('%Y%m%d-%H%M%S')}-{spec.backend.mark or os.urandom(4).hex()}")
    try:
        run.lock.acquire()  # before anything else: a run without a controller is taken for lost
        # JSON is YAML too, and carries texts that are not UTF-8.
        run.write("spec.yaml", json.dumps(to_document(spec), indent=2) + "\n")
        if spec.call:
            from ..record.engine_files import keep_call_seal  # a slow import, which most runs do not need

            keep_call_seal(run.path)
        start = start_of(run, backend, spec)
        for name, text in start.request.texts().items():
            run.write(f"request/{name}", text)
    except (OrchError, OSError) as error:
        discard(run)
        raise (error if isinstance(error, OrchError) else cannot_keep(run.path, error)) from None
    return start


def again(home: Path, spec: ClusterSpec) -> tuple[RunStart, Cluster | None] | None:
    """The run that this job of an engine has begun before, in whose record it goes on, and its state. None: there is none; or it has ended
    in a way after which no engine should start it again. Raises `OrchError`."""
    if not spec.backend.mark:
        return None
    from ..model.policy.submission import REQUEUED
    from ..record.run_progress import resume

    for run in reversed(list_runs(home)):
        if run.run_id.endswith(f"-{spec.backend.mark}") and not run.lock.is_held():
            if (past := run.own_verdict()) is not None and past.exit_code not in REQUEUED:
                return None
            run.lock.acquire()
            return start_of(run, load_checked(spec), spec), resume(run)
    return None


def submit(start: RunStart) -> Submission | None:
    """Give a run to its engine, whose job is the controller; None: it has none. Raises `OrchError`, `UnansweredError`: it may come."""
    run, engine = start.run, start.backend.engine(start.spec)
    if engine is None:
        return None
    from ..record.engine_files import keep_submission, seal_key

    try:
        seal_key()  # before there is a job
        submitted = replace(engine.submit(start.request), run_id=run.run_id)
    except UnansweredError:  # a job that comes all the same finds its run
        run.lock.release()
        raise
    except OrchError:
        discard(run)
        raise
    try:
        run.make_latest()
        keep_submission(run.path, submitted)
    except (OSError, OrchError) as error:
        try:
            engine.withdraw(start.request.run, submitted.job)
        finally:
            discard(run)
        raise (cannot_keep(run.path, error) if isinstance(error, OSError) else error) from None
    run.lock.release()  # the controller waits for this
    return submitted


def start_controller(run: RunDir, *, tied: bool = False, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start the controller of a run that `create` has made, in a session of its own, and hand lock and requests over to it.

    Its arguments contain nothing of the spec, because every user of the machine can read them. Its messages go to `controller.log`.
    `tied`: the run ends when this process ends, in whatever way. `env`: in place of the environment of this process.
    Raises `OrchError`; then there is no run.
    """
    words = ["--held", *map(str, run.lock.fds), *(["--owner", str(os.getpid())] if tied else [])]
    held = hold_signals()  # the controller inherits the blocked signals: none ends it before it can act on signals
    try:
        with open(run.path / "controller.log", "ab", opener=private_opener) as log:
            process = subprocess.Popen(
                [sys.executable, str(PROGRAM), str(run.path), *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=env,
                pass_fds=run.lock.fds,
                start_new_session=True,
            )
    except OSError as error:
        discard(run)
        raise OrchError(f"the controller of {run.run_id} cannot be started: {error}") from None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
    run.lock.close()
    return process
