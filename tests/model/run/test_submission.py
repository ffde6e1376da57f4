"""Whether a run that an engine has goes on, and how it ended, from the engine's words alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.model.policy.submission import GRACE_S, Heard, Submission, Word, lives, verdict_of
from orchestrator.model.state.cluster import Outcome, Verdict

QUEUED, RUNNING, ENDED, UNKNOWN = (Word(state) for state in ("waiting", "running", "ended", "unknown"))


def verdict(code: int) -> Verdict:
    return Verdict(Outcome.FAILED, code, 1, 100.0, 200.0)


@pytest.mark.parametrize(("word", "alive"), [(QUEUED, True), (RUNNING, True), (UNKNOWN, True), (ENDED, False)])
def test_without_a_verdict_the_word_of_the_engine_counts(word: Word, alive: bool) -> None:
    assert lives(Heard(word), None, 300.0) is alive
    assert lives(Heard(word, trouble="cannot ask Slurm"), None, 300.0) is alive, "its last word counts as long as there is no other"


@pytest.mark.parametrize("code", [0, 1, 124, 125, 130])
@pytest.mark.parametrize("word", [QUEUED, RUNNING])
def test_most_verdicts_count_at_once(word: Word, code: int) -> None:
    assert not lives(Heard(word, 150.0), verdict(code), 300.0), "the word is older than the verdict"
    assert not lives(Heard(word, 250.0, verdict_at=200.0), verdict(code), 300.0)


@pytest.mark.parametrize("code", [42, 143])
def test_a_run_that_may_be_requeued_is_over_when_the_engine_has_said_so(code: int) -> None:
    assert lives(Heard(RUNNING, 150.0), verdict(code), 300.0), "the engine has not been asked since"
    assert lives(Heard(RUNNING, 250.0, verdict_at=200.0), verdict(code), 300.0), "the job still ends"
    assert lives(Heard(QUEUED, 250.0, verdict_at=200.0), verdict(code), 300.0), "the job waits again"
    assert not lives(Heard(ENDED, 250.0, verdict_at=200.0), verdict(code), 300.0)
    assert not lives(Heard(ENDED, 250.0), verdict(code), 300.0), "the verdict was fetched after the word"
    assert not lives(Heard(UNKNOWN, 250.0, verdict_at=200.0), verdict(code), 300.0)
    assert not lives(Heard(RUNNING, 150.0, trouble="cannot ask Slurm"), verdict(code), 300.0), "nobody can say more than the verdict does"


@pytest.mark.parametrize(
    ("code", "outcome", "shown"),
    [
        (143, Outcome.CANCELLED, 143),
        (130, Outcome.CANCELLED, 130),
        (124, Outcome.TIMED_OUT, 124),
        (None, Outcome.BROKEN, 125),
        (3, Outcome.FAILED, 3),
        (0, Outcome.SUCCEEDED, 0),
    ],
)
def test_a_job_that_ended_without_a_verdict_has_the_end_that_the_engine_tells(code: int | None, outcome: Outcome, shown: int) -> None:
    ended = replace(ENDED, cause="the node n3 died", exit_code=code)
    found = verdict_of(Submission("7", "Slurm job 7", 100.0), Heard(ended, 300.0))
    assert (found.outcome, found.exit_code, found.started_at, found.ended_at) == (outcome, shown, 100.0, 300.0)
    assert found.cause is not None
    assert found.cause.what == "Slurm job 7: the node n3 died"


def test_a_word_that_cannot_be_renewed_is_shown_with_its_age() -> None:
    heard = Heard(Word("waiting", "queued in Slurm: Resources"), 100.0, 100.0)
    assert heard.describe(140.0) == "queued in Slurm: Resources"
    late = replace(heard, trouble="cannot ask Slurm: timed out")
    assert late.describe(140.0) == "cannot ask Slurm: timed out; 40 s ago: queued in Slurm: Resources"
    assert Heard(trouble="cannot ask Slurm: timed out").describe(140.0) == "cannot ask Slurm: timed out; it has not been asked yet"


def test_the_verdict_of_a_controller_that_has_exited_may_come_late() -> None:
    heard = Heard(replace(ENDED, has_exited=True), 300.0, 300.0)
    assert lives(heard, None, 301.0), "a file server may show the verdict a minute late"
    assert not lives(heard, verdict(0), 301.0)
    assert not lives(heard, None, 300.0 + GRACE_S)
    assert not lives(heard, None, 300.0, late_s=0.0), "but not on a disk of this machine"
    assert not lives(replace(heard, word=ENDED), None, 301.0), "a controller that was killed has left none"
