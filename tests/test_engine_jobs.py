"""What is asked of an engine, and how often: the engine of the crates without its daemon, whose words the test writes."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from orchestrator import backends
from orchestrator.cli import submitted_run
from orchestrator.control import engine_jobs
from orchestrator.errors import OrchError, UsageError
from orchestrator.model.policy.submission import GRACE_S, Heard, Submission, Word
from orchestrator.model.settings import BACKENDS, derive
from orchestrator.model.state.cluster import Cluster
from orchestrator.model.state.events import Event, RunNoted
from orchestrator.record import engine_files
from orchestrator.record.run_directory import RunDir
from orchestrator.record.run_store import create_run
from tests.backends import crate, crate_engine
from tests.backends.test_crate import orch
from tests.record.storage.test_saves_of_run import save
from worker.machine.file_system import is_of_this_machine

if TYPE_CHECKING:
    from orchestrator.cli.viewers import Terminal


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of runs, in a yard whose engine says what `say` has written."""
    monkeypatch.setattr(derive, "_STRUCTS", {})  # what other tests of this process have derived knows no crates
    monkeypatch.setitem(BACKENDS, crate.NAME, crate.CrateSettings)
    monkeypatch.setitem(backends.MODULES, crate.NAME, crate.__name__)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "crates.txt").write_text("red 1\n")
    (tmp_path / "jobs" / "1").mkdir(parents=True)
    return tmp_path / ".orch"


def say(home: Path, state: str, **more: object) -> None:
    (home.parent / "jobs/1/word.json").write_text(json.dumps({"state": state, **more}))


def submitted(home: Path, engine: str = "near") -> RunDir:
    run = create_run(home, "one")
    run.write("spec.yaml", f"{{script: script.py, backend: {{type: crate, crates: crates.txt, engine: {engine}}}}}")
    engine_files.keep_submission(run.path, Submission("1", "crate job 1", 1.0))
    return run


def test_a_copy_beside_a_run_does_not_take_the_word_of_its_engine(home: Path) -> None:
    run = submitted(home)
    copy = home / "runs" / "one-copy"
    shutil.copytree(run.path, copy)
    say(home, "running")
    assert engine_jobs.hear(run, always=True).word == Word("running")
    assert not (copy / "engine.json").exists()


def test_the_words_of_a_record_have_a_limit_and_command_no_terminal(home: Path) -> None:
    """A directory that somebody has sent may have any."""
    run, odd = submitted(home), "\x1b[2J" + "x" * 1_000_000
    engine_files.keep_submission(run.path, Submission("1", odd, 1.0, place=odd))
    engine_files.keep_heard(run.path, Heard(Word("ended", odd, odd), trouble=odd))
    heard, made = engine_files.read_heard(run.path), engine_files.read_submission(run.path)
    assert made is not None
    told = (heard.word.words, heard.word.cause, heard.trouble, made.words, made.place)
    assert [(len(words), "\x1b" in words) for words in told] == [(engine_files.MOST_WORDS, False)] * 5


def test_new_words_of_the_engine_hide_no_event_of_the_run(home: Path) -> None:
    """The controller may record an event between the look at its events and the words of the engine."""
    run = submitted(home)
    shown: list[Event] = []

    class Screen:
        def on_event(self, before: Cluster, after: Cluster, event: Event) -> None:
            shown.append(event)

    followed = submitted_run._Followed(run, cast("Terminal", Screen()))
    followed._look()
    asked = RunNoted("the end was asked for", 2.0)
    run.record(asked)
    run.close()
    say(home, "running", words="running on red")
    assert engine_jobs.hear(run, always=True).word.words == "running on red"
    followed._say_words()
    followed._look()
    assert len(shown) == 2
    assert shown[-1] == asked


def test_what_the_end_of_a_job_has_cut_off_is_fetched_once_its_machine_can_be_reached(home: Path) -> None:
    run = engine_jobs.attach(submitted(home, "far"))
    say(home, "ended")
    reached, cut = home.parent / "reached", home.parent / "cut"
    (home.parent / "reach").write_text(f'#!/bin/sh\ntouch {reached}\nexec "$@"\n')
    (home.parent / "reach").chmod(0o700)
    cut.touch()
    assert not run.is_alive()
    cut.unlink()
    assert not reached.exists()
    run.renew()
    assert reached.exists()
    reached.unlink()
    run.renew()
    assert not reached.exists(), "all has come"


def test_a_run_has_no_verdict_as_long_as_that_of_its_controller_may_come(home: Path) -> None:
    run = engine_jobs.attach(submitted(home))
    say(home, "ended", has_exited=True)
    assert run.is_alive()
    assert run.read_verdict() is None
    heard = run.heard()
    engine_files.keep_heard(run.path, Heard(heard.word, heard.at, heard.since - GRACE_S))
    assert not run.is_alive()
    assert (run.read_result() or {})["exit_code"] == 125


def test_a_verdict_is_not_waited_for_on_a_disk_of_this_machine(home: Path) -> None:
    """A file server shows new files late, and so does the mirror of a controller that is elsewhere."""
    run = engine_jobs.attach(submitted(home))
    say(home, "ended", has_exited=True)
    engine_files.keep_submission(run.path, Submission("1", "crate job 1", 1.0, is_shared=True))
    assert is_of_this_machine(str(run.path))
    assert not run.is_alive()
    assert (run.read_result() or {})["exit_code"] == 125


def test_the_end_of_a_job_is_asked_for_seldom(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = submitted(home)
    say(home, "waiting", words="still there")
    monkeypatch.setattr(engine_jobs, "WITHDRAWN_S", engine_jobs.ENDING_S / 2)
    with pytest.raises(OrchError, match="its job has not ended yet: still there"):
        engine_jobs.withdraw(run, "enough")
    assert (home.parent / "asked").read_text() == "1\n" * 3


def test_a_run_continues_a_submitted_run_whose_job_has_ended(home: Path) -> None:
    run = submitted(home)
    save(run.path / "checkpoints", "fit-1", 10)
    (home.parent / "script.py").touch()
    (home.parent / "orch.yaml").write_text((run.path / "spec.yaml").read_text())
    say(home, "running")
    assert "still goes on" in orch(home.parent, "up", "--resume", "one", "--dry-run", check=2).stderr
    say(home, "ended")
    (run.path / "engine.json").unlink()  # the word is old
    orch(home.parent, "up", "--resume", "one", "--dry-run")


def reach(home: Path) -> None:
    (home.parent / "reach").write_text('#!/bin/sh\nexec "$@"\n')
    (home.parent / "reach").chmod(0o700)


def test_a_job_that_seemed_gone_and_answers_is_asked_for_again_and_not_removed(home: Path) -> None:
    run = engine_jobs.attach(submitted(home, "far"))
    say(home, "ended", is_gone=True)
    engine_jobs.hear(run, always=True)
    reach(home)
    say(home, "running")
    run.renew()
    assert run.heard().word == Word("running")
    assert not (home.parent / "jobs/1/forgotten").exists()


def test_the_end_of_a_job_stays_as_the_engine_told_it_at_first(home: Path) -> None:
    run = submitted(home)
    say(home, "ended", cause="its host died", exit_code=3)
    assert engine_jobs.hear(run, always=True).word.exit_code == 3
    (home.parent / "jobs/1/word.json").unlink()
    assert not engine_jobs.withdraw(run, "enough")
    assert run.heard().word == Word("ended", cause="its host died", exit_code=3)


def test_a_record_that_never_comes_does_not_keep_the_job_for_ever(home: Path) -> None:
    run = submitted(home, "far")
    say(home, "ended", has_exited=True)
    heard = engine_jobs.hear(run, always=True)
    assert engine_jobs.clear(run) == ""
    assert not (home.parent / "jobs/1/forgotten").exists()
    engine_files.keep_heard(run.path, replace(heard, since=heard.since - GRACE_S))
    assert engine_jobs.clear(run) == "what was left of 1 was removed; its record could not be fetched to the end, and the rest is lost"
    assert (home.parent / "jobs/1/forgotten").exists()


def test_only_what_was_there_is_told_as_removed(home: Path) -> None:
    run = submitted(home, "far")
    say(home, "ended")
    engine_jobs.hear(run, always=True)
    (home.parent / "jobs/1/forgotten").touch()
    assert engine_jobs.clear(run) == ""
    assert run.heard().is_fetched


@pytest.mark.root
@pytest.mark.parametrize("owned", [".", "spec.yaml", "submission.json"])
@pytest.mark.parametrize("state", ["waiting", "running", "ended"])
def test_no_program_runs_that_the_spec_of_another_user_names(home: Path, owned: str, state: Any) -> None:
    """Otherwise root, who ends or lists what another user has left there, would run it."""
    run = submitted(home, "far")
    say(home, state)
    engine_files.keep_heard(run.path, Heard(Word(state)))
    os.chown(run.path / owned, 65534, 65534)
    run.path.rename(home / "moved")
    run.path.symlink_to(home / "moved")  # the link is ours, and the directory is not
    engine_jobs.attach(run).renew()
    assert engine_jobs.hear(run, always=True).word == Word(state)
    with contextlib.suppress(UsageError):
        assert not engine_jobs.withdraw(run, "enough")
    with pytest.raises(UsageError, match=r"^one belongs to another user, whose settings may name any program: its engine is not asked"):
        engine_jobs.deliver(run, b"{}\n")
    assert engine_jobs.clear(run).startswith("the run belongs to another user")
    assert {path.name for path in (home.parent / "jobs/1").iterdir()} == {"word.json"}


def test_a_job_is_found_with_the_settings_of_its_submission(home: Path) -> None:
    run = submitted(home)
    (home.parent / "elsewhere").mkdir()
    pinned = {"crates": "elsewhere/crates.txt"}
    engine_files.keep_submission(run.path, replace(Submission("1", "crate job 1", 1.0), pinned=pinned))
    engine, facts, _ = engine_jobs._job_of(run)
    assert cast("crate_engine.CrateEngine", engine).yard.name == "elsewhere"
    assert cast("crate.CrateSettings", facts.spec.backend).crates == pinned["crates"]
    strange = Submission("1", "crate job 1", 1.0, pinned={"unknown": "x"})
    engine_files.keep_submission(run.path, strange)
    with pytest.raises(OrchError, match="cannot be read"):
        engine_jobs._job_of(run)
