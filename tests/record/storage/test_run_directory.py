"""A run on disk: who may read it, how it is written, and what is read of it."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.errors import OrchError
from orchestrator.model.planning import plan
from orchestrator.model.planning.facts_of_hosts import HostFacts
from orchestrator.model.settings import ClusterSpec, TaskDevices, TaskSpec
from orchestrator.model.state import events
from orchestrator.model.state.cluster import Cause, Outcome, TaskState, Verdict
from orchestrator.record import run_directory
from orchestrator.record.event_log import EventReader
from orchestrator.record.log_index import Marks
from orchestrator.record.run_directory import RunDir
from orchestrator.record.run_progress import read_cluster
from orchestrator.record.run_store import create_run, list_runs
from tests.conftest import Orch, needs_git
from tests.live import held_run
from worker.protocol.messages import Program

Script = Callable[..., Path]


def entries(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*")}


# --- written ------------------------------------------------------------------------------------


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    run = create_run(tmp_path / "home", "one")
    run.write("spec.yaml", "first")
    with pytest.raises(UnicodeEncodeError):
        run.write("spec.yaml", "half \ud800")
    assert (run.path / "spec.yaml").read_text() == "first"
    before = (run.path / "spec.yaml").stat().st_ino
    run.write("spec.yaml", "second")
    assert (run.path / "spec.yaml").stat().st_ino != before, "renamed into place, not written over"
    assert not [name for name in entries(run.path) if "/." in f"/{name}"]


def test_bytes_that_are_not_utf_8_survive(tmp_path: Path) -> None:
    run = create_run(tmp_path / "home", "one")
    run.write("spec.yaml", os.fsdecode(b"\xff\xfe"))
    assert (run.path / "spec.yaml").read_bytes() == b"\xff\xfe"


def test_output_that_arrives_in_pieces_is_put_where_it_belongs(tmp_path: Path) -> None:
    run = create_run(tmp_path / "home", "one")
    assert run.append_output("worker-0", 1, "stdout", 0, b"hello ") == 6
    assert run.append_output("worker-0", 1, "stdout", 6, b"\xffworld") == 12
    assert run.append_output("worker-0", 1, "stdout", 6, b"\xffworld") == 12, "a piece that comes twice changes nothing"
    assert run.log_path("worker-0", 1, "stdout").read_bytes() == b"hello \xffworld"


@pytest.mark.parametrize("kind", ["pipe", "link", "second name"])
def test_what_lies_in_place_of_a_file_is_not_written(tmp_path: Path, kind: str) -> None:
    """A task knows the directory of its run, and so does a script that cleans up."""
    run = create_run(tmp_path / "home", "one")
    (tmp_path / "other").write_text("mine")
    for name in ("events.jsonl", "lock", "marks", "attempt-1/worker-0/stdout.log"):
        path = run.path / name
        path.parent.mkdir(exist_ok=True, parents=True)
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "link":
            path.symlink_to(tmp_path / "other")
        else:
            path.hardlink_to(tmp_path / "other")
    with pytest.raises(OSError, match=r"not a regular file|No such device|symbolic links|has another name"):
        run.record(events.RunNoted("first", 1.0))
    with pytest.raises(OrchError, match=r"lock cannot be locked: .*(not a regular file|symbolic links|has another name)"):
        run.lock.acquire()
    with pytest.raises(OSError, match=r"not a regular file|No such device|symbolic links|has another name"):
        run.append_output("worker-0", 1, "stdout", 0, b"x")
    if kind != "second name":
        marks = Marks(run)
        marks.grew("worker-0", 1, "stdout", 7)
        marks.write(1.0)
    assert (tmp_path / "other").read_text() == "mine"


def test_the_verdict_has_every_field_and_the_reserve_is_given_back(tmp_path: Path) -> None:
    run = create_run(tmp_path / "home", "one")
    assert (run.path / "reserve").stat().st_size >= 16 * 1024
    run.write_verdict(Verdict(Outcome.SUCCEEDED, 0, 1, 1.0, 2.0), {"run": "one"})
    assert run.read_result() == {
        "run": "one", "outcome": "succeeded", "exit_code": 0, "attempt": 1, "started_at": 1.0, "ended_at": 2.0, "cause": None,
        "past": [], "gave_up": "", "remains": [],
        "warning": "", "input": {}, "reports": {}, "remarks": [], "saved": None,
    }  # fmt: skip
    assert not (run.path / "reserve").exists()
    run.write_verdict(Verdict(Outcome.BROKEN, 125, 1, 1.0, 2.0, Cause("no space", 2.0)), {"run": "one"})
    assert json.loads((run.path / "result.json").read_text())["cause"] == {
        "what": "no space", "at": 2.0, "task": "", "host": "", "code": None, "failure": None,
        "killed": False, "attempt": 1,
        "suspect": "", "remedy": "", "about": "", "secondary": [],
    }  # fmt: skip


def test_events_are_read_back_and_an_unfinished_or_foreign_line_is_left_out(tmp_path: Path) -> None:
    run = create_run(tmp_path / "home", "one")
    assert list(run.read_events()) == []
    run.record(events.RunNoted("first", 1.0))
    run.record(events.RunNoted("zwei \udcff", 2.0))
    assert run._events_fd is not None
    os.close(run._events_fd)  # a controller keeps it open to its end
    with open(run.path / "events.jsonl", "ab") as file:
        file.write(b'{"event": "of_a_newer_orch", "x": 1}\nnoise \xff\n[1]\n' + b'{"event": "run_noted", "text": "half')
    assert [event.text for event in run.read_events() if isinstance(event, events.RunNoted)] == ["first", "zwei \udcff"]
    assert len(list(run.read_events())) == 2


def test_an_event_after_one_that_a_full_disk_has_cut_short_is_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_some(fd: int, data: bytes) -> None:
        os.write(fd, data[:20])
        raise OSError(errno.ENOSPC, "No space left on device")

    run = create_run(tmp_path / "home", "one")
    run.record(events.RunNoted("first", 1.0))
    with monkeypatch.context() as patch:
        patch.setattr(run_directory, "write_all", write_some)
        with pytest.raises(OSError, match="No space left"):
            run.record(events.RunNoted("cut short", 2.0))
    run.record(events.HostBroken("no space left", 3.0))
    run.record(events.RunNoted("last", 4.0))
    run.close()
    assert [event.at for event in run.read_events()] == [1.0, 3.0, 4.0]


# --- read -------------------------------------------------------------------------------------------


def test_the_attempts_are_known_and_what_else_lies_there_is_none(tmp_path: Path) -> None:
    run = create_run(tmp_path / "home", "one")
    for number in (2, 10, 1):
        run.make_attempt(number)
    for odd in ("attempt-1 (copy)", "attempt-1²", "attempt-01", "attempt-" + "9" * 200):
        (run.path / odd).mkdir()
    (run.path / "attempt-3").touch()
    for attempt, task in ((1, "worker-0"), (1, "worker-1"), (10, "worker-1")):
        run.append_output(task, attempt, "stdout", 0, b"x")
    assert run.attempts() == [1, 2, 10]
    assert run.last_attempts() == {"worker-0": 1, "worker-1": 10}


def test_the_newest_checkpoint_is_found_wherever_it_lies(tmp_path: Path) -> None:
    run = create_run(tmp_path / "home", "one")
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


def test_a_slow_disk_of_checkpoints_does_not_hold_up_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller gives its agents no sign of life while it looks, and they count silence as the end of the controller."""
    run = create_run(tmp_path / "home", "one")
    folder = run.path / "checkpoints"
    folder.mkdir()
    for number in range(300):
        (folder / f"shard-{number}").touch()
        os.utime(folder / f"shard-{number}", (100, 100))
    os.utime(folder, (200, 200))
    at, read = 0.0, run_directory._changed_at
    looked: list[str] = []

    def look_slowly(path: str) -> float:
        nonlocal at
        at += 0.005
        looked.append(path)
        return read(path)

    monkeypatch.setattr(run_directory, "_changed_at", look_slowly)
    monkeypatch.setattr("orchestrator.record.run_directory.time.monotonic", lambda: at)
    assert run.newest_checkpoint() == 200.0
    assert len(looked) < 110


def test_a_new_directory_among_very_many_is_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = create_run(tmp_path / "home", "one")
    model = run.path / "checkpoints" / "model"
    for number in range(8):
        (model / f"step-{number}").mkdir(parents=True)
        (model / f"step-{number}" / "saved").touch()
    for path in (*model.glob("*/saved"), *model.iterdir(), model.parent):
        os.utime(path, (100, 100))
    os.utime(model, (200, 200))
    monkeypatch.setattr(run_directory, "MOST_CHECKPOINTS", 10)
    assert run.newest_checkpoint() == 200.0


def test_what_a_single_task_asks_for_comes_back_with_the_plan(tmp_path: Path) -> None:
    own = {1: TaskDevices(affinity=True)}
    spec = ClusterSpec("one", "multi_worker_mirrored", Program("script", "a.py"), (TaskSpec("worker", 2, overrides=own),), "/w")
    run = create_run(tmp_path / "home", "one")
    run.write_plan(plan.make("one", spec, plan.place(spec, {"local": None}), [HostFacts("local", "127.0.0.1", 2)]))
    kept = run.read_plan()
    assert kept is not None
    assert kept.spec.tasks[0].devices_of(1) == own[1]


def test_a_plan_that_is_damaged_is_an_error_with_its_place(tmp_path: Path) -> None:
    run = create_run(tmp_path / "home", "one")
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


def record(run: RunDir, *happened: events.Event) -> None:
    for event in happened:
        run.record(event)
    assert run._events_fd is not None
    os.close(run._events_fd)
    run._events_fd = None


def test_a_run_that_ends_while_it_is_read_is_not_lost(
    held: tuple[RunDir, subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, holder = held
    record(run, events.TaskStarted("worker-0", 1, 5, 101.0))
    read = EventReader.new

    def read_and_end(self: EventReader) -> Iterator[events.Event]:
        yield from read(self)
        holder.kill()
        run.lock.wait()

    monkeypatch.setattr(EventReader, "new", read_and_end)
    cluster = read_cluster(run)
    assert cluster is not None
    assert cluster.tasks["worker-0"].state is not TaskState.LOST


def test_a_run_is_lost_from_when_it_was_last_heard_of(held: tuple[RunDir, subprocess.Popen[bytes]]) -> None:
    run, holder = held
    record(run, events.TaskStarted("worker-0", 1, 5, 101.0), events.TaskUp("worker-0", 1, 250.0))
    holder.kill()
    run.lock.wait()
    cluster = read_cluster(run)
    assert cluster is not None
    assert cluster.tasks["worker-0"].state is TaskState.LOST
    assert cluster.tasks["worker-0"].ended_at == 250.0


# --- a whole run --------------------------------------------------------------------------------


@needs_git
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
    runs = list_runs(home)
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
