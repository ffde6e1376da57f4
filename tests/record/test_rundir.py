"""A run on disk: who may read it, how it is written, how it is found again, and what is left of one that never started."""

from __future__ import annotations

import json
import os
import resource
import secrets
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli import running
from orchestrator.errors import OrchError, UsageError
from orchestrator.model import events
from orchestrator.model.cluster import Cause, Outcome, TaskState, Verdict
from orchestrator.model.spec import ClusterSpec, TaskSpec
from orchestrator.record import rundir
from orchestrator.record.journal import RunEvent, RunNoted
from orchestrator.record.rundir import RunDir, RunExists
from tests.conftest import Orch
from tests.live import held_run
from worker.contract import Program

Script = Callable[..., Path]


def entries(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*")}


# --- made and discarded -------------------------------------------------------------------------


def test_a_new_run_is_hidden_from_git_and_from_other_users(tmp_path: Path) -> None:
    home = tmp_path / "a" / ".orch"
    before = os.umask(0)
    try:
        run = rundir.create(home, "one")
        run.write("request/agent.txt", "x")
    finally:
        os.umask(before)
    assert (home / ".gitignore").read_text() == "*\n"
    for path in [home, *home.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_a_directory_with_other_things_in_it_is_not_hidden_from_git(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("mine")
    rundir.create(tmp_path, "one")
    assert not (tmp_path / ".gitignore").exists()


def test_discarding_takes_away_all_that_was_made_and_nothing_else(tmp_path: Path) -> None:
    rundir.create(tmp_path / "a" / "b" / "home", "one").discard()
    assert entries(tmp_path) == set()
    (tmp_path / "mine").mkdir()
    rundir.create(tmp_path / "mine", "one").discard()
    assert entries(tmp_path) == {"mine"}
    first, second = rundir.create(tmp_path / "home", "one"), rundir.create(tmp_path / "home", "two")
    first.discard()
    assert second.path.is_dir()
    assert not first.path.exists()
    second.discard()
    assert entries(tmp_path) == {"mine"}


def test_runs_made_and_discarded_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    def make(number: int) -> None:
        run = rundir.create(tmp_path / "home", f"run-{number}")
        run.write("spec.yaml", "x")
        run.discard()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(make, range(200)))
    assert {path for path in entries(tmp_path) if "run-" in path} == set()


def test_a_run_of_the_same_id_is_left_alone(tmp_path: Path) -> None:
    first = rundir.create(tmp_path / "home", "one")
    first.write("spec.yaml", "x")
    before = entries(tmp_path)
    with pytest.raises(RunExists, match=r"there is a run one in .*home"):
        rundir.create(tmp_path / "home", "one")
    assert entries(tmp_path) == before


def test_an_id_that_is_taken_is_drawn_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = iter(["aaaa", "aaaa", "aaaa", "bbbb"])
    monkeypatch.setattr(secrets, "token_hex", lambda size: next(drawn))
    monkeypatch.setattr(time, "strftime", lambda text: "20261121-143000")
    spec = ClusterSpec("train", "none", Program("script", "train.py"), (TaskSpec("worker", 1),), "/w")
    made = [running._create(tmp_path / "home", spec).run_id for _ in range(2)]
    assert made == ["train-20261121-143000-aaaa", "train-20261121-143000-bbbb"]
    assert all((tmp_path / "home" / "runs" / run_id / "spec.yaml").is_file() for run_id in made)
    monkeypatch.setattr(secrets, "token_hex", lambda size: "aaaa")
    with pytest.raises(RunExists):
        running._create(tmp_path / "home", spec)
    assert len(rundir.list_runs(tmp_path / "home")) == 2


def test_a_run_without_room_for_its_reserve_leaves_nothing(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (rundir.RESERVE_BYTES // 2, before[1]))
    try:
        with pytest.raises(OrchError, match=r"cannot keep a run in .*home"):
            rundir.create(tmp_path / "home", "one")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert entries(tmp_path) == set()


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_place_that_cannot_hold_a_run_is_named(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(OrchError, match=r"cannot keep a run in .*file.*--run-dir") as raised:
        rundir.create(tmp_path / place, "one")
    assert raised.value.exit_code == 125
    assert entries(tmp_path) == {"file"}


# --- written ------------------------------------------------------------------------------------


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    run = rundir.create(tmp_path / "home", "one")
    run.write("spec.yaml", "first")
    with pytest.raises(UnicodeEncodeError):
        run.write("spec.yaml", "half \ud800")
    assert (run.path / "spec.yaml").read_text() == "first"
    before = (run.path / "spec.yaml").stat().st_ino
    run.write("spec.yaml", "second")
    assert (run.path / "spec.yaml").stat().st_ino != before, "renamed into place, not written over"
    assert not [name for name in entries(run.path) if "/." in f"/{name}"]


def test_bytes_that_are_not_utf_8_survive(tmp_path: Path) -> None:
    run = rundir.create(tmp_path / "home", "one")
    run.write("spec.yaml", os.fsdecode(b"\xff\xfe"))
    assert (run.path / "spec.yaml").read_bytes() == b"\xff\xfe"


def test_output_that_arrives_in_pieces_is_put_where_it_belongs(tmp_path: Path) -> None:
    run = rundir.create(tmp_path / "home", "one")
    assert run.append_output("worker-0", 1, "stdout", 0, b"hello ") == 6
    assert run.append_output("worker-0", 1, "stdout", 6, b"\xffworld") == 12
    assert run.append_output("worker-0", 1, "stdout", 6, b"\xffworld") == 12, "a piece that comes twice changes nothing"
    assert run.log_path("worker-0", 1, "stdout").read_bytes() == b"hello \xffworld"


def test_the_verdict_has_every_field_and_the_reserve_is_given_back(tmp_path: Path) -> None:
    run = rundir.create(tmp_path / "home", "one")
    assert (run.path / "reserve").stat().st_size >= 16 * 1024
    run.write_verdict(Verdict(Outcome.SUCCEEDED, 0, 1, 1.0, 2.0), {"run": "one"})
    assert run.read_result() == {
        "run": "one", "outcome": "succeeded", "exit_code": 0, "attempt": 1, "started_at": 1.0, "ended_at": 2.0, "cause": None,
        "past": [], "gave_up": "",
    }  # fmt: skip
    assert not (run.path / "reserve").exists()
    run.write_verdict(Verdict(Outcome.BROKEN, 125, 1, 1.0, 2.0, Cause("no space", 2.0)), {"run": "one"})
    assert json.loads((run.path / "result.json").read_text())["cause"] == {
        "what": "no space", "at": 2.0, "task": "", "host": "", "code": None, "failure": None,
        "killed": False, "attempt": 1,
        "suspect": "", "remedy": "", "secondary": [],
    }  # fmt: skip


def test_events_are_read_back_and_an_unfinished_or_foreign_line_is_left_out(tmp_path: Path) -> None:
    run = rundir.create(tmp_path / "home", "one")
    assert list(run.read_events()) == []
    run.record(RunNoted("first", 1.0))
    run.record(RunNoted("zwei \udcff", 2.0))
    assert run._events_fd is not None
    os.close(run._events_fd)  # a controller keeps it open to its end
    with open(run.path / "events.jsonl", "ab") as file:
        file.write(b'{"event": "of_a_newer_orch", "x": 1}\nnoise \xff\n[1]\n' + b'{"event": "run_noted", "text": "half')
    assert [event.text for event in run.read_events() if isinstance(event, RunNoted)] == ["first", "zwei \udcff"]
    assert len(list(run.read_events())) == 2


# --- found --------------------------------------------------------------------------------------


def test_runs_are_found_by_name_by_beginning_or_as_the_latest(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with pytest.raises(UsageError, match="no run in"):
        rundir.find(home, None)
    assert rundir.list_runs(home) == []
    for name in ("abc", "abcd", "xyz"):
        rundir.create(home, name)
    with pytest.raises(UsageError, match=r"the latest run is not known in .*home; name one of its runs: abc, abcd, xyz"):
        rundir.find(home, None)
    assert [run.run_id for run in rundir.list_runs(home)] == ["abc", "abcd", "xyz"]
    assert rundir.find(home, "x").run_id == "xyz"
    assert rundir.find(home, "abc").run_id == "abc", "a whole name is not the beginning of another"
    with pytest.raises(UsageError, match=r"'ab' matches several .*abc, abcd"):
        rundir.find(home, "ab")
    with pytest.raises(UsageError, match=r"'q' does not exist .*abc, abcd, xyz"):
        rundir.find(home, "q")
    (home / "latest").symlink_to("runs/gone")
    with pytest.raises(UsageError, match=r"the latest run is not known in .*home; name one of its runs: abc, abcd, xyz"):
        rundir.find(home, None)


def test_runs_are_listed_in_the_order_in_which_they_were_made(tmp_path: Path) -> None:
    home = tmp_path / "home"
    for number, name in enumerate(("c", "b", "a")):
        run = rundir.create(home, name)
        run.write_spec("{}\n")
        os.utime(run.path / "spec.yaml", (100 + number, 100 + number))
    rundir.RunDir(home / "runs" / "c").write_verdict(Verdict(Outcome.SUCCEEDED, 0, 1, 1.0, 2.0), {})
    assert [run.run_id for run in rundir.list_runs(home)] == ["c", "b", "a"]


def test_a_run_that_is_discarded_meanwhile_is_not_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    first, second = rundir.create(home, "first"), rundir.create(home, "second")
    listed = Path.iterdir

    def iterdir(path: Path) -> Iterator[Path]:
        found = list(listed(path))
        if path.name == "runs":
            monkeypatch.undo()
            second.discard()
        return iter(found)

    monkeypatch.setattr(Path, "is_dir", lambda path: True)
    monkeypatch.setattr(Path, "iterdir", iterdir)
    assert [run.run_id for run in rundir.list_runs(home)] == [first.run_id]


def test_the_attempts_are_known_and_what_else_lies_there_is_none(tmp_path: Path) -> None:
    run = rundir.create(tmp_path / "home", "one")
    for number in (2, 10, 1):
        run.make_attempt(number)
    (run.path / "attempt-1 (copy)").mkdir()
    for attempt, task in ((1, "worker-0"), (1, "worker-1"), (10, "worker-1")):
        run.append_output(task, attempt, "stdout", 0, b"x")
    assert run.attempts() == [1, 2, 10]
    assert run.last_attempts() == {"worker-0": 1, "worker-1": 10}


def test_the_newest_checkpoint_is_found_wherever_it_lies(tmp_path: Path) -> None:
    run = rundir.create(tmp_path / "home", "one")
    assert run.newest_checkpoint() == 0.0
    deep = run.path / "checkpoints" / "step-7" / "shards"
    deep.mkdir(parents=True)
    assert run.newest_checkpoint() == 0.0, "a directory is no checkpoint"
    for folder, at in ((run.path / "checkpoints", 100), (deep, 300), (deep.parent, 200)):
        (folder / "saved").touch()
        os.utime(folder / "saved", (at, at))
    (deep / "gone").symlink_to("nowhere")
    (run.path / "checkpoints" / "latest").symlink_to("step-7")
    assert run.newest_checkpoint() == 300.0


class Listing:
    """What `os.scandir` gives; it notes each entry that is taken from it."""

    def __init__(self, entries: Any, taken: list[str]) -> None:
        self._entries, self._taken = entries, taken

    def __enter__(self) -> Listing:
        return self

    def __exit__(self, *_: object) -> None:
        self._entries.close()

    def __iter__(self) -> Listing:
        return self

    def __next__(self) -> os.DirEntry[str]:
        entry: os.DirEntry[str] = next(self._entries)
        self._taken.append(entry.name)
        return entry


def test_a_huge_directory_of_checkpoints_is_not_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller does nothing else meanwhile. What it has not seen there is still progress."""
    run = rundir.create(tmp_path / "home", "one")
    folder = run.path / "checkpoints"
    folder.mkdir()
    for number in range(50):
        (folder / f"shard-{number}").touch()
        os.utime(folder / f"shard-{number}", (100, 100))
    os.utime(folder, (200, 200))
    monkeypatch.setattr(rundir, "MOST_CHECKPOINTS", 10)
    taken: list[str] = []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: Listing(scandir(path), taken))
    assert run.newest_checkpoint() == 200.0
    assert len(taken) == 11


def test_a_plan_that_is_damaged_is_an_error_with_its_place(tmp_path: Path) -> None:
    run = rundir.create(tmp_path / "home", "one")
    assert run.read_plan() is None
    for text in ("{", "[]", '{"run_id": 1}'):
        run.write("plan.json", text)
        with pytest.raises(OrchError, match="plan of one cannot be read"):
            run.read_plan()


# --- alive --------------------------------------------------------------------------------------


@pytest.fixture
def held(tmp_path: Path) -> Iterator[tuple[RunDir, subprocess.Popen[bytes]]]:
    with held_run(tmp_path / "home") as found:
        yield found


def record(run: RunDir, *happened: RunEvent) -> None:
    for event in happened:
        run.record(event)
    assert run._events_fd is not None
    os.close(run._events_fd)
    run._events_fd = None


def test_a_run_that_ends_while_it_is_read_is_not_lost(
    held: tuple[RunDir, subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, holder = held
    record(run, events.Launched(1, 100.0), events.TaskStarted("worker-0", 1, 5, 101.0))
    read = RunDir.read_events

    def read_and_end(self: RunDir) -> Iterator[RunEvent]:
        yield from read(self)
        holder.kill()
        self.lock.wait()

    monkeypatch.setattr(RunDir, "read_events", read_and_end)
    cluster = run.read_cluster()
    assert cluster is not None
    assert cluster.tasks["worker-0"].state is not TaskState.LOST


def test_a_run_is_lost_from_when_it_was_last_heard_of(held: tuple[RunDir, subprocess.Popen[bytes]]) -> None:
    run, holder = held
    record(run, events.Launched(1, 100.0), events.TaskStarted("worker-0", 1, 5, 101.0), events.TaskUp("worker-0", 1, 250.0))
    holder.kill()
    run.lock.wait()
    cluster = run.read_cluster()
    assert cluster is not None
    assert cluster.tasks["worker-0"].state is TaskState.LOST
    assert cluster.tasks["worker-0"].ended_at == 250.0


# --- a whole run --------------------------------------------------------------------------------


def test_everything_that_a_run_leaves_is_private_and_latest_points_to_it(orch: Orch, script: Script, tmp_path: Path) -> None:
    script("import sys\nprint('x')\nsys.exit(3)\n", "fail.py")
    before = os.umask(0)
    try:
        for detached in ([], ["-d"]):
            orch("up", "fail.py", "-n", "2", *detached)
            orch("wait", check=3)
    finally:
        os.umask(before)
    home = tmp_path / ".orch"
    runs = rundir.list_runs(home)
    assert [os.readlink(home / "latest"), len(runs)] == [f"runs/{runs[-1].run_id}", 2]
    for run in runs:
        kept = entries(run.path)
        assert {"spec.yaml", "plan.json", "events.jsonl", "result.json", "lock", "request/agent-local.txt"} <= kept
        assert {f"attempt-1/worker-{i}/{name}.log" for i in (0, 1) for name in ("stdout", "stderr")} <= kept
        assert "reserve" not in kept
        for path in run.path.rglob("*"):
            assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    assert subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True).returncode == 0
    status = subprocess.run(["git", "status", "--porcelain"], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert ".orch" not in status.stdout
