"""The jobs of engines that run controllers, as other processes see them: whether they live, and how a request reaches them.

The record of a run has the last word of its engine (`engine.json`). A command that looks at the run asks again when the word is old: one
process at a time, with one question for all runs in the same `.orch`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from worker.machine.clock import now, patience

from ..errors import TERMINATED, OrchError, UsageError
from ..model.policy import submission
from ..model.policy.submission import Heard, Word
from ..record import engine_files, run_store
from ..record.run_directory import RunDir

if TYPE_CHECKING:  # most runs have no engine
    from ..backends import Engine, RunFacts
    from ..backends.engines import Channel

ASK_S, SELDOM_S = patience(12.0), patience(30.0)
"""The shortest time between two questions to an engine, in seconds; and the time if the answer has been the same for ten times as long."""
ENDING_S = patience(2.0)
"""The same while an engine may start the job of a run again that has a verdict."""
ASKER_S = 5.0
"""How long another process is waited for that asks the same engine now."""
WITHDRAWN_S = 60.0
"""How long a job may take to end that had not begun."""
MIRROR_S = 1.0
"""The shortest time between two questions for the files of a controller whose file system is another, in seconds."""
FETCH_S = 10.0
"""How long one look at a run may fetch: the rest of gigabytes of output comes with the next."""
NOT_OURS = "belongs to another user, whose settings may name any program"
FORGOTTEN = Word("ended", "its engine does not know the job any more")


def find(home: Path, name: str | None) -> RunDir:
    """`run_store.find_run`: a run that keeps its record up to date."""
    return attach(run_store.find_run(home, name))


def find_all(home: Path) -> list[RunDir]:
    """`run_store.list_runs`: runs that keep their records up to date."""
    return [attach(run) for run in run_store.list_runs(home)]


def attach(run: RunDir) -> RunDir:
    """The run, whose record is from now on kept up to date by anyone who looks at it."""
    run.renew = _Renewer(run).renew
    return run


class _Renewer:
    """Keeps the record of one run up to date, for a process that looks at the run again and again."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._fetched_at = -math.inf
        """When the files were last fetched, by the clock of `time.monotonic`; infinite: all has come after the end of the job."""

    def renew(self) -> None:
        """Ask the engine, and fetch what the controller has written elsewhere, as far as this is due. May take seconds."""
        if not self._run.is_submitted or self._run.lock.is_held():
            return
        heard = hear(self._run)
        is_last = heard.word.state == "ended"
        is_due = time.monotonic() - self._fetched_at >= (0.0 if is_last else MIRROR_S)
        if heard.is_fetched or heard.word.state == "waiting" or not is_due or not self._run.is_ours or engine_files.is_copy(self._run.path):
            return
        has_come = True
        with suppress(OrchError):  # a spec that cannot be read
            engine, facts, job = _job_of(self._run)
            channel = engine.channel(facts, job)
            if channel is not None and not self._has_all():
                has_come = self._fetch(channel, heard)
            if channel is not None and has_come and heard.word.is_gone and not self._has_all():
                # Of what is gone nothing answers: the word was wrong, and a run that goes on must not be removed.
                is_last = hear(self._run, always=True).word.state == "ended"
            elif has_come and (is_last or self._has_all()):
                if channel is not None:
                    engine.forget(facts, job)
                engine_files.keep_heard(self._run.path, replace(self._run.heard(), is_fetched=True))
        # What the end of a job has cut off is asked for again; but its machine may be gone for good.
        self._fetched_at = math.inf if is_last and (has_come or now() - heard.since > submission.GRACE_S) else time.monotonic()

    def _has_all(self) -> bool:
        """True if the run is over for good, and its verdict is here, which comes last."""
        verdict = self._run.own_verdict()
        return verdict is not None and verdict.exit_code not in submission.REQUEUED

    def _fetch(self, channel: Channel, heard: Heard) -> bool:
        """Returns whether all has come that the controller has written until now."""
        from ..record import mirror

        program, limit = mirror.SOURCE.read_text(), time.monotonic() + FETCH_S
        with engine_files.exclusive(self._run.path / "mirroring", ASKER_S) as is_alone:
            try:
                while is_alone and mirror.store(self._run.path, channel.exchange(program, "fetch", mirror.have(self._run.path)), limit):
                    if time.monotonic() > limit:
                        return False
                return is_alone
            except OrchError as error:
                if heard.word.state != "ended":  # of a job that has ended there may be nothing left to ask
                    engine_files.keep_heard(self._run.path, replace(heard, trouble=error.line))
                return False


# --- the word of the engine --------------------------------------------------------------------


def hear(run: RunDir, *, always: bool = False) -> Heard:
    """The last word of the engine of a run, which is asked if the word is old, or with `always=` in any case. May take seconds.

    The end of a job is not asked for again: later the engine may know less of it. But a job that seemed gone may be there.
    """
    heard = run.heard()
    if heard.word.state == "ended" and not heard.word.is_gone:
        return heard
    if not run.is_ours or not (always or _is_due(run, heard, now())) or engine_files.is_copy(run.path):
        return heard
    with engine_files.exclusive(run.path.parent.parent / "asking", ASKER_S) as is_alone:
        if is_alone and run.heard().asked_at == heard.asked_at:  # otherwise another process has asked meanwhile
            _ask([run, *(one for one in run_store.list_runs(run.path.parent.parent) if one.run_id != run.run_id)])
    return run.heard()


def _is_due(run: RunDir, heard: Heard, at: float) -> bool:
    if _is_settled(run, heard):
        return False
    pause = ASK_S if heard.at - heard.since < 10 * SELDOM_S else SELDOM_S
    return not 0 <= at - heard.asked_at < (ENDING_S if run.own_verdict() is not None else pause)


def _is_settled(run: RunDir, heard: Heard) -> bool:
    """True if no answer could change anything: the job has ended for good, or the run is over and does not begin again."""
    verdict = run.own_verdict()
    return heard.word.state == "ended" or (verdict is not None and verdict.exit_code not in submission.REQUEUED)


def _ask(runs: list[RunDir]) -> None:
    """Ask about the first run, and about those of the others that are not settled."""
    by_engine: dict[Engine, dict[str, RunDir]] = {}
    for run in runs:
        is_asked = run is runs[0] or (run.is_submitted and not _is_settled(run, run.heard()))
        if is_asked and run.is_ours and not engine_files.is_copy(run.path):
            with suppress(OrchError):  # a spec that cannot be read
                engine, _, job = _job_of(run)
                by_engine.setdefault(engine, {}).setdefault(job, run)
    for engine, jobs in by_engine.items():
        verdicts = {job: run.own_verdict() for job, run in jobs.items()}
        ends = {job: verdict.ended_at if verdict else 0.0 for job, verdict in verdicts.items()}
        try:
            words = engine.ask({job: submitted for job, run in jobs.items() if (submitted := engine_files.read_submission(run.path))})
        except OrchError as error:
            for job, run in jobs.items():
                engine_files.keep_heard(run.path, submission.ask_in_vain(run.heard(), error.line, now(), ends[job]))
        else:
            for job, run in jobs.items():
                engine_files.keep_heard(run.path, submission.listen(run.heard(), words.get(job, FORGOTTEN), now(), ends[job]))


def _job_of(run: RunDir) -> tuple[Engine, RunFacts, str]:
    """The engine of a submitted run, the run as the engine knows it, and its job. Raises `OrchError`."""
    from ..backends import RunFacts, load

    submitted, spec = engine_files.read_submission(run.path), run.read_spec()
    trouble = OrchError(f"{run.run_id}: {run.path / 'submission.json'} cannot be read, or its place has no engine")
    if submitted is not None and submitted.pinned:
        try:
            spec = replace(spec, backend=replace(spec.backend, **submitted.pinned))
        except TypeError:  # another version of orch has written it
            raise trouble from None
    engine = load(spec).engine(spec)
    if submitted is None or engine is None:
        raise trouble
    return engine, RunFacts(spec, run.run_id, str(run.path)), submitted.job


# --- requests ----------------------------------------------------------------------------------


def _find_job(run: RunDir) -> tuple[Engine, RunFacts, str]:
    """`_job_of`, for who changes something. Raises `UsageError` for a run of another user, and for a copy of a run."""
    if not run.is_ours:
        raise UsageError(f"{run.run_id} {NOT_OURS}: its engine is not asked; give the command as this user")
    if engine_files.is_copy(run.path):
        raise UsageError(f"{run.path} is a copy: its job belongs to the directory in which the run was submitted")
    return _job_of(run)


def deliver(run: RunDir, line: bytes) -> None:
    """Give a line to the controller of a submitted run, which may be about to start. Raises `OrchError`."""
    engine, facts, job = _find_job(run)
    channel = engine.channel(facts, job)
    if channel is None:
        engine_files.append_request(run.path, line)
    else:
        from ..record import mirror

        for _ in channel.exchange(mirror.SOURCE.read_text(), "deliver", line):
            pass


def withdraw(run: RunDir, reason: str, code: int = TERMINATED) -> bool:
    """End the job of a submitted run that has no controller now. Returns False, and does nothing, if it has one, or may have one.

    `reason`, `code`: how the run ends, if it has never had a controller. Returns when the engine says that the job has ended. Raises
    `OrchError`.
    """
    if run.lock.is_held():
        return False
    heard = hear(run, always=True)
    if heard.word.state != "waiting" or heard.trouble:
        return False
    engine, facts, job = _find_job(run)
    engine.withdraw(facts, job)
    for heard in _until_ended(run):
        if heard.word.state == "ended":
            engine_files.keep_heard(run.path, replace(heard, word=replace(heard.word, cause=reason, exit_code=code, is_gone=False)))
            return True
    raise OrchError(f"{run.run_id} was withdrawn, and its job has not ended yet: {heard.describe(now())}")


def clear(run: RunDir) -> str:
    """Remove what is left of the job of a run without a controller; its record stays for a while. Returns a line. Raises `OrchError`."""
    if not run.is_ours:
        return f"the run {NOT_OURS}: what its job may have left was not looked for"
    heard = run.heard()
    has_no_end = heard.word.has_exited and run.own_verdict() is None
    is_to_come = has_no_end and 0 <= now() - heard.since < submission.GRACE_S
    if heard.is_fetched or heard.word.state != "ended" or is_to_come or engine_files.is_copy(run.path):
        return ""
    engine, facts, job = _job_of(run)
    if engine.channel(facts, job) is None:
        return ""
    has_removed = engine.forget(facts, job)
    engine_files.keep_heard(run.path, replace(heard, is_fetched=True))
    if not has_removed:
        return ""
    lost = "; its record could not be fetched to the end, and the rest is lost" if has_no_end else ""
    return f"what was left of {job} was removed{lost}"


def _until_ended(run: RunDir) -> Iterator[Heard]:
    """The words of the engine until the job has ended, or `WITHDRAWN_S` are over: asked for more and more seldom."""
    limit, pause = now() + WITHDRAWN_S, ENDING_S
    while (heard := hear(run, always=True)).word.state != "ended" and now() < limit:
        yield heard
        time.sleep(pause)
        pause = min(2 * pause, ASK_S)
    yield heard
