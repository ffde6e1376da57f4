"""The controller of a run: a function, and a program whose input is a run directory.

``python -m orchestrator.controller RUN_DIR`` reads `spec.yaml` there, runs the run to its verdict, writes everything into the run
directory, and exits with the run's code. `orch up -d`, a batch step and `orchestrator.launch` start this program; an attached `orch up`
calls `run`.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":  # before any import of orch
    import os

    sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # started by its path, orch need not be installed
    from orchestrator import forget_working_directory, import_asyncio, import_own_worker

    forget_working_directory()
    import_own_worker()
    import_asyncio()
    from orchestrator import controller

    controller.main()

import asyncio
import contextlib
import functools
import os
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NoReturn, Protocol

from worker.clock import now
from worker.fast_dataclass import dataclass

from . import end_process
from .backends import load
from .errors import BROKEN, OrchError, UsageError
from .model.run.cluster import Cause, Cluster, Outcome, Verdict
from .model.spec import ClusterSpec
from .model.spec.document import read
from .model.spec.parse import parse
from .record.storage.run_directory import RunDir
from .record.text import timeline
from .record.text.event_messages import Messages, headline, say
from .requests import end_with_parent, handle_requests
from .signals import Stop, handle_signals, hold_signals
from .starting import cannot_keep
from .supervision.supervisor import Supervisor, Viewer

START_S = 1.0
"""The time after which the controller has little to do: then it imports what the end of the run needs."""
Control = Callable[[Stop], AbstractContextManager[None]]
"""A way to end a run while it goes on, such as `handle_signals`. Entered in the loop of the run, before anything is started."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A run that is over, or was given up."""

    run: RunDir
    cluster: Cluster | None
    """None: there was no plan yet."""
    verdict: Verdict
    error: OrchError | None
    """Why orch could not start the tasks, or could not go on. The caller of `run` gets this error, too."""

    @property
    def is_hurried(self) -> bool:
        """The user has asked twice, and does not wait for what is still to be shown."""
        return self.cluster is not None and self.cluster.stop_repeated

    def report(self) -> list[str]:
        """The lines about the end of the run."""
        return _find_report()(self.verdict, self.run, self.cluster, _shown(self.run.path)).splitlines()


class Show(Viewer, Protocol):
    """A `Viewer` that also shows the end."""

    def end(self, ended: Ended) -> None:
        """Called once. May block until all is shown."""
        ...


def run(rundir: RunDir, spec: ClusterSpec, show: Show, controls: Sequence[Control] = ()) -> Verdict:
    """Run a run, whose lock this process holds, to its verdict, and write the verdict into `result.json`.

    Can be called in any thread that runs no event loop. Raises `OrchError` if orch could not start the tasks, or could not go on;
    `result.json` has this verdict as well.
    """
    supervisor = Supervisor(spec, load(spec), rundir, show)
    started_at = now()
    broken: OrchError | None = None
    try:
        rundir.hold()
        rundir.lock.sign()
        verdict = asyncio.run(_supervise(supervisor, rundir, controls))
    except Exception as error:
        broken = _in_words(rundir, error)
        outcome = Outcome.BROKEN if broken.exit_code == BROKEN else Outcome.FAILED
        verdict = Verdict(outcome, broken.exit_code, 1, started_at, now(), Cause(str(broken), now()))
    if rundir.is_gone:
        verdict = _without_record(rundir, verdict)
    else:
        _write_verdict(rundir, verdict, supervisor.cluster)
    rundir.close()  # `orch wait` and `ps` need not wait until the end is shown
    show.end(Ended(rundir, supervisor.cluster, verdict, broken))
    if broken is not None:
        raise broken from None
    return verdict


def _in_words(rundir: RunDir, error: Exception) -> OrchError:
    """The error that ends a run, for the user."""
    if isinstance(error, OrchError):
        return error
    if isinstance(error, OSError):
        return cannot_keep(rundir, error)
    traceback.print_exception(error)
    return OrchError(f"an internal error of orch: {error}; please report it")


def _find_report() -> Callable[..., str]:
    """`report`, whose module has regular expressions for logs and stacks: a start need not wait for them, and neither need a verdict."""
    from .record.text.report import report

    return report


async def _supervise(supervisor: Supervisor, rundir: RunDir, controls: Sequence[Control]) -> Verdict:
    with contextlib.ExitStack() as stack:
        for control in controls:
            stack.enter_context(control(supervisor.stop))
        stack.enter_context(handle_requests(rundir, supervisor))
        asyncio.get_running_loop().call_later(START_S, _find_report)
        return await supervisor.run()


def _without_record(rundir: RunDir, verdict: Verdict) -> Verdict:
    """The verdict of a run whose directory was removed: its message also says how the run ended, as no file can."""
    how = "its tasks had succeeded" if verdict.outcome is Outcome.SUCCEEDED or verdict.cause is None else headline(verdict.cause)
    what = f"the run directory {rundir.path} was removed while the run went on: its record is lost; {how}"
    return Verdict(Outcome.BROKEN, BROKEN, verdict.attempt, verdict.started_at, verdict.ended_at, Cause(what, now()))


def _write_verdict(rundir: RunDir, verdict: Verdict, cluster: Cluster | None) -> None:
    try:
        durations = {} if cluster is None else timeline.durations(timeline.measure(rundir.read_events(), cluster))
        rundir.write_verdict(verdict, {"run": rundir.run_id, "durations": durations})
    except OSError as error:
        say(f"the verdict cannot be written to {rundir.path}: {error.strerror or error}")


# --- the program -------------------------------------------------------------------------------


class Log(Messages):
    """A `Show` for a controller without a terminal: all that happens, as lines on stderr, which is `controller.log`."""

    def on_output(self, task: str, attempt: int, stream: str, size: int) -> None: ...

    def end(self, ended: Ended) -> None:
        for line in ended.report() if ended.error is None else ():  # `main` prints an error
            say(line)


def main(words: Sequence[str] | None = None) -> NoReturn:
    """Run the run in RUN_DIR, and exit with its code."""
    hold_signals()
    import argparse  # an attached `orch up` has no use for it

    parser = argparse.ArgumentParser(prog="python -m orchestrator.controller", description="Run the run in RUN_DIR, as its spec.yaml says.")
    parser.add_argument("run_dir", metavar="RUN_DIR")
    parser.add_argument("--held", type=int, nargs="+", metavar="FD", help="the descriptors by which whoever started this holds the run")
    parser.add_argument("--owner", type=int, metavar="PID", help="the parent process: the run ends with it")
    given = parser.parse_args(words)
    controls: list[Control] = [handle_signals]
    if given.owner is not None:
        controls.append(functools.partial(end_with_parent, given.owner))
    try:
        rundir = RunDir(Path(os.path.abspath(given.run_dir)))
        if not os.path.isfile(rundir.path / "spec.yaml"):  # before a lock is made: this may be no run directory
            raise UsageError(f"{rundir.path} is no run directory: there is no file spec.yaml in it")
        if given.held is None:
            rundir.lock.acquire()
        else:
            rundir.lock.inherit(given.held)
        _refuse_again(rundir)
        code = run(rundir, read_spec(rundir), Log(), controls).exit_code
    except (OrchError, OSError) as error:
        say(str(error), head="Error")
        code = error.exit_code if isinstance(error, OrchError) else BROKEN
    end_process(code)


def _refuse_again(rundir: RunDir) -> None:
    for name in ("events.jsonl", "result.json"):
        if (rundir.path / name).exists():
            raise UsageError(f"{rundir.run_id} has been run already; a run is run once: orch up starts a new one")


def read_spec(rundir: RunDir) -> ClusterSpec:
    """The spec in `spec.yaml`. Raises `OrchError`."""
    path = rundir.path / "spec.yaml"
    try:
        text = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None
    return parse(read(text, str(path)), workdir=os.getcwd())


def _shown(path: Path) -> Path:
    """The path relative to the working directory, if it lies there."""
    with contextlib.suppress(ValueError, OSError):
        return path.relative_to(os.getcwd())
    return path
