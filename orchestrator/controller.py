"""The controller of a run: a function, and a program whose input is a run directory.

``python -m orchestrator.controller RUN_DIR`` reads `spec.yaml` there, runs the run to its verdict, writes everything into the run
directory, and exits with the run's code. `orch up -d`, `orchestrator.launch` and the job of an engine start this program; an attached
`orch up` calls `run`. Only in the job of an engine, the program goes on with a run that another controller has left.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":  # before any import of orch
    import os
    import signal

    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))  # as `hold_signals`, which is not imported yet
    # Started by its path, orch need not be installed, and another orch that is installed does not count.
    home, packages = os.path.dirname(os.path.dirname(os.path.abspath(__file__))), [path.endswith("-packages") for path in sys.path]
    sys.path.insert([*packages, True].index(True), home)
    from orchestrator import forget_working_directory, import_asyncio, import_own_worker

    forget_working_directory()
    import_own_worker()
    import_asyncio()
    from orchestrator import controller

    controller.main()

import asyncio
import contextlib
import fcntl
import os
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from worker.machine.clock import now, patience
from worker.values.fast_dataclass import dataclass

from . import end_process
from .control import event_loop
from .control.requests import end_with_parent, handle_requests
from .control.signals import EVERYWHERE_S, TOGETHER_S, handle_signals, hold_signals, once
from .control.starting import RunStart, read_start
from .control.supervisor import Supervisor
from .errors import BROKEN, USAGE, OrchError, UsageError
from .model.state.cluster import Cause, Cluster, Outcome, Verdict
from .record.run_directory import RunDir
from .record.run_lock import LOCK_S
from .record.run_progress import resume
from .record.run_store import cannot_keep
from .record.text import timeline
from .record.text.event_messages import Messages, headline, say

SUBMITTING_S = patience(120.0)
"""How long the job of an engine waits for the process that submits it: that process holds the run until it has recorded the job."""
START_S = 0.5
"""The time after which the controller has little to do: then it imports what the end of the run needs."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A run that is over, or was given up."""

    run: RunDir
    cluster: Cluster
    verdict: Verdict
    error: OrchError | None = None
    """Why orch could not start the tasks, or could not go on."""

    def report(self) -> list[str]:
        """The lines about the end of the run."""
        return _find_report()(self.verdict, self.run, self.cluster).splitlines()


def run(
    start: RunStart,
    viewer: Messages,
    *,
    handles_signals: bool = False,
    owner: int | None = None,
    former: Cluster | None = None,
    is_submitted: bool = False,
) -> Ended:
    """Run a run, whose lock this process holds, to its verdict, and write the verdict into `result.json`.

    Can be called in any thread that runs no event loop. `handles_signals`: the signals that this process gets end the run; for a process
    that only runs this run. `owner`: the parent of this process, with which the run ends. `former`: the state in which another controller
    left the run. `is_submitted`: this is the job of an engine.
    """
    rundir, supervisor, started_at = start.run, Supervisor(start, viewer, former, _find_report), now()
    error = notices = None
    if start.spec.notify:
        from .control.notices import Notices  # most runs tell no one

        notices = Notices(start, viewer.say)
        supervisor.listeners.append(notices.on_event)
    try:
        rundir.hold()
        rundir.lock.sign()
        together_s = EVERYWHERE_S if start.spec.backend.IS_EVERYWHERE else TOGETHER_S if is_submitted else 0.0
        verdict = event_loop.run(lambda: _supervise(supervisor, start, handles_signals, owner, is_submitted, together_s))
        error = refusal(supervisor.cluster, verdict)
    except Exception as reason:
        error = _in_words(rundir, reason)
        outcome = Outcome.BROKEN if error.exit_code == BROKEN else Outcome.FAILED
        verdict = Verdict(outcome, error.exit_code, 1, started_at, now(), Cause(str(error), now()))
    if rundir.is_gone:
        verdict = _without_record(rundir, verdict)
    else:
        _write_verdict(rundir, verdict, supervisor)
    rundir.close()  # `orch wait` and `ps` need not wait until the end is shown
    if notices is not None:
        notices.on_end(verdict)
    return Ended(rundir, supervisor.cluster, verdict, error)


def refusal(cluster: Cluster, verdict: Verdict) -> OrchError | None:
    """The error of a run that ended before it had tasks; None: the run has a report of its end."""
    if cluster.tasks or verdict.cause is None or verdict.outcome not in (Outcome.BROKEN, Outcome.FAILED):
        return None
    return (UsageError if verdict.exit_code == USAGE else OrchError)(verdict.cause.what, verdict.cause.remedy)


async def _supervise(
    supervisor: Supervisor, start: RunStart, handles_signals: bool, owner: int | None, has_file: bool, together_s: float
) -> Verdict:
    """`together_s`: within this time, signals are one, because an engine sends it to each process of a job."""
    handle_requests(start.run, supervisor, has_file=has_file)
    asyncio.get_running_loop().call_later(START_S, _find_report)
    if owner is not None:
        asyncio.get_running_loop().call_soon(end_with_parent, owner, supervisor.stop)
    stop = once(supervisor.stop, together_s) if together_s else supervisor.stop
    with contextlib.ExitStack() as stack:
        if start.spec.metrics_dir:
            from .control.metrics_file import MetricsFile  # most runs have no metrics

            stack.callback(MetricsFile(start, supervisor).end)
        if handles_signals:
            stack.enter_context(handle_signals(stop))
        return await supervisor.run()


def _find_report() -> Callable[..., str]:
    """`report`, whose module has regular expressions for logs and stacks. A start need not wait for them, and neither need a verdict: they
    are imported while the tasks end, or before."""
    from .record.report import report

    return report


def _in_words(rundir: RunDir, error: Exception) -> OrchError:
    if isinstance(error, OrchError):
        return error
    if isinstance(error, OSError):
        return cannot_keep(rundir.path, error)
    traceback.print_exception(error)
    return OrchError(f"an internal error of orch: {error}; please report it")


def _without_record(rundir: RunDir, verdict: Verdict) -> Verdict:
    """The verdict of a run whose directory was removed: its message also says how the run ended, as no file can."""
    how = "its tasks had succeeded" if verdict.outcome is Outcome.SUCCEEDED or verdict.cause is None else headline(verdict.cause)
    what = f"the run directory {rundir.path} was removed while the run went on: its record is lost; {how}"
    return Verdict(Outcome.BROKEN, BROKEN, verdict.attempt, verdict.started_at, verdict.ended_at, Cause(what, now()))


def _write_verdict(rundir: RunDir, verdict: Verdict, supervisor: Supervisor) -> None:
    try:
        durations = timeline.durations(supervisor.phases.measure(supervisor.cluster))
        rundir.write_verdict(verdict, {"run": rundir.run_id, "durations": durations})
    except OSError as error:
        say(f"the result cannot be written to {rundir.path}: {error.strerror or error}")


# --- the program -------------------------------------------------------------------------------


def main(words: Sequence[str] | None = None) -> NoReturn:
    """Run the run in RUN_DIR, and exit with its code."""
    hold_signals()
    _hold_archive()
    import argparse  # an attached `orch up` has no use for it

    parser = argparse.ArgumentParser(prog="python -m orchestrator.controller", description="Run the run in RUN_DIR, as its spec.yaml says.")
    parser.add_argument("run_dir", metavar="RUN_DIR")
    parser.add_argument("--held", type=int, nargs="+", metavar="FD", help="the descriptors by which the caller holds the run")
    parser.add_argument("--submitted", action="store_true", help="this is the job of an engine, which may start it again")
    parser.add_argument("--owner", type=int, metavar="PID", help="the parent process: the run ends with it")
    given = parser.parse_args(words)
    try:
        rundir = RunDir(Path(os.path.abspath(given.run_dir)))
        if not os.path.isfile(rundir.path / "spec.yaml"):  # before a lock is made: this may be no run directory
            raise UsageError(f"{rundir.path} is no run directory: there is no file spec.yaml in it")
        if given.held is None:
            rundir.lock.acquire(SUBMITTING_S if given.submitted else LOCK_S)
        else:
            rundir.lock.inherit(given.held)
        former = None
        if (rundir.path / "events.jsonl").exists() or (rundir.path / "result.json").exists():
            if not given.submitted:
                raise UsageError(f"{rundir.run_id} has been run already; a run is run once: orch up starts a new one")
            from .model.policy.submission import REQUEUED

            if (past := rundir.own_verdict()) is not None and past.exit_code not in REQUEUED:
                say(f"{rundir.run_id} ended with exit code {past.exit_code}, and is left as it is; orch up starts a new run")
                end_process(past.exit_code)
            former = resume(rundir)
        start, is_submitted = read_start(rundir), given.submitted
        ended = run(start, Messages(), handles_signals=True, owner=given.owner, former=former, is_submitted=is_submitted)
        if ended.error is not None:
            raise ended.error
        for line in ended.report():
            say(line)
        code = ended.verdict.exit_code
    except (OrchError, OSError) as error:
        say(str(error), head="error")
        code = error.exit_code if isinstance(error, OrchError) else BROKEN
    end_process(code)


def _hold_archive() -> None:
    """Hold the directory of orch if it is that of an archive (docs/archive_main.py), which is removed two weeks after its last use."""
    with contextlib.suppress(OSError):
        fcntl.flock(os.open(Path(__file__).parents[1] / ".lock", os.O_RDONLY), fcntl.LOCK_SH | fcntl.LOCK_NB)
