"""The jobs of engines that run controllers, as other processes see them: whether they live, and how a request reaches them.

The record of a run has the last word of its engine (`engine.json`). Whoever looks at the run asks again when the word is old: one process
at a time, with one question for all runs in the same `.orch`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from os import geteuid
from pathlib import Path
from typing import TYPE_CHECKING

from worker.machine.clock import now, patience

from .errors import TERMINATED, OrchError
from .model.run import submission
from .model.run.submission import Heard, Word
from .record.storage import engine_files, run_store
from .record.storage.run_directory import RunDir

if TYPE_CHECKING:  # most runs have no engine
    from .backends import Engine, RunFacts

ASK_S, SELDOM_S = patience(12.0), patience(30.0)
"""The shortest time between two questions to an engine, in seconds; and the time if the answer has been the same for ten times as long."""
ENDING_S = patience(2.0)
"""The same while an engine may start the job of a run again that has a verdict."""
ASKER_S = 5.0
"""How long another process is waited for that asks the same engine now."""
WITHDRAWN_S = patience(30.0)
"""How long a job may take to end that had not begun."""
FORGOTTEN = Word("ended", "its engine does not know the job any more")


def find(home: Path, name: str | None) -> RunDir:
    """`run_store.find_run`: a run that keeps its record up to date."""
    return attach(run_store.find_run(home, name))


def find_all(home: Path) -> list[RunDir]:
    """`run_store.list_runs`: runs that keep their records up to date."""
    return [attach(run) for run in run_store.list_runs(home)]


def attach(run: RunDir) -> RunDir:
    """The run, whose record is from now on kept up to date by whoever looks at it."""
    run.renew = lambda: renew(run)
    return run


def renew(run: RunDir) -> None:
    """Bring the record of a submitted run up to date, as far as this is due."""
    hear(run)


# --- the word of the engine --------------------------------------------------------------------


def hear(run: RunDir, *, anew: bool = False) -> Heard:
    """The last word of the engine of a run, which is asked if the word is old, or `anew` in any case. May take seconds."""
    heard = run.heard()
    if not _is_own(run) or not (anew or _is_due(run, heard, now())):
        return heard
    with engine_files.exclusive(run.path.parent.parent / "asking", ASKER_S) as is_alone:
        if is_alone and run.heard().asked_at == heard.asked_at:  # otherwise another process has asked meanwhile
            _ask([run, *(one for one in run_store.list_runs(run.path.parent.parent) if one.run_id != run.run_id)])
    return run.heard()


def _is_own(run: RunDir) -> bool:
    """The files of a run of another user may say anything, also of whom to ask."""
    with suppress(OSError):
        return run.path.stat().st_uid == geteuid()
    return False


def _is_due(run: RunDir, heard: Heard, at: float) -> bool:
    if _is_settled(run, heard):
        return False
    pause = ASK_S if heard.at - heard.since < 10 * SELDOM_S else SELDOM_S
    return not 0 <= at - heard.asked_at < (ENDING_S if run.own_verdict() is not None else pause)


def _is_settled(run: RunDir, heard: Heard) -> bool:
    """Whether no answer could change anything: the job has ended for good, or the run is over and does not begin again."""
    verdict = run.own_verdict()
    return heard.word.state == "ended" or (verdict is not None and verdict.exit_code not in submission.REQUEUED)


def _ask(runs: list[RunDir]) -> None:
    """Ask about the first run, and about those of the others that are not settled."""
    by_engine: dict[Engine, dict[str, RunDir]] = {}
    for run in runs:
        if run is runs[0] or (run.is_submitted and _is_own(run) and not _is_settled(run, run.heard())):
            with suppress(OrchError):  # a spec that cannot be read
                engine, _, job = _job_of(run)
                by_engine.setdefault(engine, {})[job] = run
    for engine, jobs in by_engine.items():
        verdicts = {job: run.own_verdict() for job, run in jobs.items()}
        ends = {job: verdict.ended_at if verdict else 0.0 for job, verdict in verdicts.items()}
        try:
            words = engine.ask(list(jobs))
        except OrchError as error:
            for job, run in jobs.items():
                engine_files.keep_heard(run.path, submission.ask_in_vain(run.heard(), str(error), now(), ends[job]))
        else:
            for job, run in jobs.items():
                engine_files.keep_heard(run.path, submission.listen(run.heard(), words.get(job, FORGOTTEN), now(), ends[job]))


def _job_of(run: RunDir) -> tuple[Engine, RunFacts, str]:
    """The engine of a submitted run, the run as the engine knows it, and its job. Raises `OrchError`."""
    from .backends import RunFacts, load

    submitted, spec = engine_files.read_submission(run.path), run.read_spec()
    engine = load(spec).engine(spec)
    if submitted is None or engine is None:
        raise OrchError(f"{run.run_id}: {run.path / 'submission.json'} cannot be read, or its place has no engine")
    return engine, RunFacts(spec, run.run_id, str(run.path)), submitted.job


# --- requests ----------------------------------------------------------------------------------


def deliver(run: RunDir, line: bytes) -> None:
    """Give a line to the controller of a submitted run, which may be about to start. Raises `OrchError`."""
    engine, facts, job = _job_of(run)
    channel = engine.channel(facts, job)
    if channel is None:
        engine_files.append_request(run.path, line)
    else:
        channel.deliver(line)


def withdraw(run: RunDir, reason: str, code: int = TERMINATED) -> bool:
    """End the job of a submitted run that has no controller now. Returns False, and does nothing, if it has one, or may have one.

    `reason`, `code`: how the run ends, if it has never had a controller. Returns when the engine says that the job has ended. Raises
    `OrchError`.
    """
    if run.lock.is_held():
        return False
    heard = hear(run, anew=True)
    if heard.word.state != "waiting" or heard.trouble:
        return False
    engine, facts, job = _job_of(run)
    engine.withdraw(facts, job)
    for heard in _until_ended(run):
        if heard.word.state == "ended":
            engine_files.keep_heard(run.path, replace(heard, word=replace(heard.word, cause=reason, exit_code=code)))
            return True
    raise OrchError(f"{run.run_id} was withdrawn, and its job has not ended yet: {heard.describe(now())}")


def _until_ended(run: RunDir) -> Iterator[Heard]:
    """The words of the engine until the job has ended, or `WITHDRAWN_S` are over."""
    limit = now() + WITHDRAWN_S
    while (heard := hear(run, anew=True)).word.state != "ended" and now() < limit:
        yield heard
        time.sleep(run.look_s(0.0))
    yield heard
