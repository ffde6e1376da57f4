"""A run whose controller an engine starts, in a job of its own: what was submitted, and the last word of the engine. Pure.

The record keeps both, so any process can read them without the engine. The word of the engine counts where the lock of the run cannot be
seen: before there is a controller, and on other machines than the controller's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Literal

from worker.values.fast_dataclass import dataclass

from ...errors import BROKEN, DEADLINE, INTERRUPTED, TERMINATED
from ..state.cluster import Cause, Outcome, Verdict
from .restarts import PREEMPTED

REQUEUED = frozenset((PREEMPTED, TERMINATED))
"""The exit codes of a controller after which an engine may start the job again: a saved preemption, and SIGTERM."""

GRACE_S = 60.0
"""How long after the end of a job its last files may still come, in seconds: NFS may show a new file a minute late."""

_OUTCOMES = {
    0: Outcome.SUCCEEDED,
    BROKEN: Outcome.BROKEN,
    DEADLINE: Outcome.TIMED_OUT,
    TERMINATED: Outcome.CANCELLED,
    INTERRUPTED: Outcome.CANCELLED,
}


@dataclass(frozen=True, slots=True)
class Submission:
    """The request for a run, which an engine has accepted."""

    job: str
    """What the engine calls the job: ``4711``."""
    words: str
    """For people: ``Slurm job 4711 in the partition debug``."""
    at: float = 0.0
    run_id: str = ""
    place: str = ""
    """The cluster, if the engine's programs name one: elsewhere, or tomorrow, the same programs may ask another one."""
    is_shared: bool = False
    """The controller writes into this very directory; otherwise its files are fetched."""
    pinned: Mapping[str, str] = field(default_factory=dict)
    """Settings of `backend:` as they were at the submission, where the spec left them to the user's surroundings, which change: the current
    context of kubectl. With them the job is found again."""
    seal: str = ""
    """What tells this directory from a copy (engine_files.py)."""


@dataclass(frozen=True, slots=True)
class Word:
    state: Literal["waiting", "running", "ended", "unknown"]
    """``waiting``: it has no controller, and will get one. ``ended``: there will be none any more; also of a job that the engine has
    forgotten. ``unknown``: the engine cannot tell now."""
    words: str = ""
    """For people: ``queued in Slurm: Resources, starts about 14:05``."""
    cause: str = ""
    """Why a job ended, for a run whose controller could write no verdict: ``its time limit of 1 h``, ``the node n3 died``."""
    exit_code: int | None = None
    """The exit code of a run that ended so: that of its controller, if the engine knows it; 143 if somebody has cancelled the job, 124
    after a time limit. None: 125."""
    has_exited: bool = False
    """The controller may have ended by itself: its verdict counts, which a file server may show late."""
    is_gone: bool = False
    """Nothing is left of the job that could answer. If its channel answers all the same, the word is wrong."""


@dataclass(frozen=True, slots=True)
class Heard:
    """The last word of an engine about a job, as the record keeps the word."""

    word: Word = Word("waiting")
    at: float = 0.0
    """When the engine last said this; 0: never."""
    since: float = 0.0
    """When the engine first said this."""
    asked_at: float = 0.0
    """When the engine was last asked, also in vain."""
    trouble: str = ""
    """Why the last question had no answer: ``cannot ask Slurm: …``."""
    verdict_at: float = 0.0
    """The end of the verdict that the run had before the last question; 0: it had none."""
    is_fetched: bool = False
    """The run is over, and all that its job has written elsewhere is here."""

    def describe(self, now: float) -> str:
        """The word for people, with its age if the engine cannot be asked now."""
        words = self.word.words or self.word.state
        if not self.trouble:
            return words
        return f"{self.trouble}; {f'{now - self.at:.0f} s ago: {words}' if self.at else 'it has not been asked yet'}"


def lives(heard: Heard, verdict: Verdict | None, at: float, late_s: float = GRACE_S) -> bool:
    """True if a run goes on at this time, or will, whose lock no process of this machine holds; or its verdict may still come.

    `late_s`: how late a verdict may come. One after which the engine may start the job again counts once the engine says that the job has
    ended, or says nothing.
    """
    if heard.word.state == "ended":
        return verdict is None and heard.word.has_exited and 0 <= at - heard.since < late_s
    if verdict is None:
        return True
    if verdict.exit_code not in REQUEUED or heard.trouble:
        return False
    return heard.verdict_at != verdict.ended_at or heard.word.state in ("waiting", "running")


def verdict_of(submission: Submission, heard: Heard) -> Verdict:
    """The end of a run whose job has ended, and whose controller has written no verdict."""
    code = BROKEN if heard.word.exit_code is None else heard.word.exit_code
    outcome = _OUTCOMES.get(code, Outcome.FAILED)
    cause = heard.word.cause or "the job ended, and its controller could not say how the run ended"
    return Verdict(outcome, code, 1, submission.at, heard.at, Cause(f"{submission.words}: {cause}", heard.at))


def listen(heard: Heard, word: Word, at: float, verdict_at: float) -> Heard:
    return Heard(word, at, heard.since if word == heard.word and heard.at else at, at, verdict_at=verdict_at)


def ask_in_vain(heard: Heard, trouble: str, at: float, verdict_at: float) -> Heard:
    """The word after a question without an answer."""
    return replace(heard, trouble=trouble, asked_at=at, verdict_at=verdict_at)
