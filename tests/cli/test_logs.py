"""`orch logs` of runs that write faster than they are read, that have no tasks yet, and to readers that do not take it."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from orchestrator.cli.commands.logs_command import moment
from orchestrator.errors import SpecError
from orchestrator.record.run_directory import RunDir
from tests.conftest import Orch
from tests.live import held_run, plan_for, wait_until

LINES = b"line of worker-0\n" * 20_000
ENOUGH = 40 * len(LINES)
"""What worker-0 has written when nobody hopes for the other task any more."""


@pytest.mark.parametrize("words", [(), ("-f",)], ids=["once", "followed"])
def test_a_task_that_writes_faster_than_it_is_read_hides_no_other(orch: Orch, tmp_path: Path, words: tuple[str, ...]) -> None:
    with held_run(tmp_path / ".orch", workers=2) as (run, _):
        first = write(run, "worker-0", LINES)
        write(run, "worker-1", b"line of worker-1\n")
        read_fd, write_fd = os.pipe()
        running = orch.start("logs", *words, stdout=write_fd)
        os.close(write_fd)
        shown, written = b"", len(LINES)
        with os.fdopen(read_fd, "rb", buffering=0) as reader, first.open("ab", buffering=0) as log:
            while b"line of worker-1\n" not in shown[-100_000:] and written < ENOUGH and (data := reader.read(65536)):
                written += log.write(LINES[: len(data) // 17 * 2 * 17])
                shown += data
        assert b"worker-1 | line of worker-1\n" in shown, "and not only after all that worker-0 will ever write"
        done = running.wait()
        if not words:
            assert done.code == 0
            assert shown.count(b"\n") == LINES.count(b"\n") + 1


@pytest.mark.parametrize("words", [(), ("--stream", "stderr")], ids=["both", "stderr alone"])
def test_both_streams_are_shown_on_stdout_which_grep_reads(orch: Orch, tmp_path: Path, words: tuple[str, ...]) -> None:
    with held_run(tmp_path / ".orch", workers=2) as (run, _):
        for task in ("worker-0", "worker-1"):
            write(run, task, b"out\n")
            write(run, task, b"err\n", "stderr")
        done = orch("logs", *words, check=0)
        assert done.out.splitlines() == [
            f"{task} | {line}" for task in ("worker-0", "worker-1") for line in ("out", "err")[1 if words else 0 :]
        ]
        assert done.err == ""


def write(run: RunDir, task: str, data: bytes, stream: str = "stdout") -> Path:
    path = run.log_path(task, 1, stream)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("command", ["logs", "placement", "restart", "stacks"])
def test_a_run_whose_hosts_are_being_reached_is_said_to_have_no_tasks_yet(orch: Orch, tmp_path: Path, command: str) -> None:
    with held_run(tmp_path / ".orch", workers=0) as (run, holder):
        assert orch(command, "one", check=2).err == "error: one has no tasks yet: its hosts are being reached\n"
        assert orch("ps", "one", check=0).out == "one: running; it has no tasks yet: its hosts are being reached\n"
        holder.kill()
        run.lock.wait()
        done = orch(command, "one")
        assert "no tasks yet" not in done.err
        assert ("ended before it had tasks" if done.code == 125 else "is not running") in done.err


def test_who_follows_a_run_waits_for_its_tasks(orch: Orch, tmp_path: Path) -> None:
    with held_run(tmp_path / ".orch", workers=0) as (run, holder):
        following = orch.start("logs", "-f", "one")
        following.wait_for("orch: one has no tasks yet: its hosts are being reached; waiting for them\n")
        plan_for(run, 2)
        write(run, "worker-1", b"hello\n")
        following.wait_for("worker-1 | hello")
        holder.kill()
        following.wait(check=0)
    with held_run(tmp_path / "other", workers=0) as (run, holder):
        following = orch.start("logs", "-f", "one", "--home", "other")
        following.wait_for("waiting for them")
        holder.kill()
        assert "error: one ended before it had tasks; orch wait says why; logs: " in following.wait(check=125).err


@pytest.mark.parametrize("words", [(), ("-f",), ("--json",)], ids=["text", "followed", "json"])
def test_output_that_cannot_be_written_is_an_error_with_its_reason(orch: Orch, tmp_path: Path, words: tuple[str, ...]) -> None:
    with held_run(tmp_path / ".orch") as (run, _), open("/dev/full", "wb") as full:
        write(run, "worker-0", b"hello\n")
        done = orch.start("logs", *words, stdout=full).wait(check=125)
        assert done.err == "error: standard output cannot be written: No space left on device\n"


def test_lines_of_several_tasks_come_by_time_and_equal_ones_once(orch: Orch, tmp_path: Path) -> None:
    with held_run(tmp_path / ".orch", workers=3) as (run, _):
        for task in range(3):
            write(run, f"worker-{task}", b"loading\nloss %d\n" % task + b"done\n" * (task < 2))
        marks = "\n1000.0 worker-2.1.stdout=15\n\n1001.0 worker-0.1.stdout=15\n\n1002.0 worker-1.1.stdout=20 worker-0.1.stdout=20\n"
        (run.path / "marks").write_text(marks)
        by_task = orch("logs", check=0).out.splitlines()
        assert [line.split()[0] for line in by_task] == ["worker-0"] * 3 + ["worker-1"] * 3 + ["worker-2"] * 2
        merged = orch("logs", "--merge", check=0).out.splitlines()
        assert sorted(merged) == sorted(by_task)
        assert merged == [
            *("worker-2 | loading", "worker-2 | loss 2", "worker-0 | loading", "worker-0 | loss 0"),
            *("worker-0 | done", "worker-1 | loading", "worker-1 | loss 1", "worker-1 | done"),
        ]
        assert orch("logs", "--fold", check=0).out.splitlines() == [
            *("worker-0..2 | loading", "worker-2    | loss 2", "worker-0    | loss 0", "worker-0    | done"),
            *("worker-1    | loss 1", "worker-1    | done"),
        ]
        assert (
            orch("logs", "--fold", "--grep", "d", "worker-0", "--task", "worker-1", check=0).out
            == "worker-0..1 | loading\nworker-0..1 | done\n"
        )
        assert "leave out one of the two" in orch("logs", "--fold", "--json", check=2).err


@pytest.mark.parametrize("words", [("--merge",), ("--fold",)], ids=["merged", "folded"])
def test_lines_by_time_are_followed_across_attempts(
    orch: Orch, script: Callable[..., Path], tmp_path: Path, words: tuple[str, ...]
) -> None:
    script("""
        import os, pathlib, sys, time
        attempt = os.environ["ORCH_ATTEMPT"]
        print("attempt", attempt, flush=True)
        print("only", os.environ["ORCH_TASK"], flush=True)
        while not pathlib.Path(f"go.{attempt}").exists():
            time.sleep(0.01)
        sys.exit(attempt == "1" and os.environ["ORCH_TASK"] == "worker-1")
    """)
    running = orch.start("up", "script.py", "-n", "2", "--max-restarts", "1", "--quiet")
    wait_until(lambda: "only worker-1" in orch("logs", "--merge").out, "output of the first attempt")
    following = orch.start("logs", "-f", *words)
    following.wait_for("only worker-1")
    (tmp_path / "go.1").touch()
    following.wait_for("orch: attempt 2: worker-1 failed (exit code 1) (restart 1 of 1)\n")
    (tmp_path / "go.2").touch()
    done = following.wait(check=0)
    running.wait(check=0)
    for number in "12":
        own = [line for line in done.out.splitlines() if line.endswith(f"attempt {number}")]
        if words == ("--fold",):
            assert own == [f"worker-0..1 | attempt {number}"]
        else:
            assert sorted(own) == [f"worker-{task} | attempt {number}" for task in (0, 1)]
    assert done.out.count("only worker-0") == done.out.count("only worker-1") == 2


NOW = datetime(2026, 11, 21, 14, 0, tzinfo=timezone(timedelta(hours=1)))


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("1d ago", NOW - timedelta(days=1)),
        ("2h30m ago", NOW - timedelta(hours=2, minutes=30)),
        (" ago", None),
        ("ago", None),
        ("14:30 ago", None),
        ("90", NOW - timedelta(seconds=90)),
        ("1.5s", NOW - timedelta(seconds=1.5)),
        ("10m", NOW - timedelta(minutes=10)),
        ("2h30m", NOW - timedelta(hours=2, minutes=30)),
        ("1d", NOW - timedelta(days=1)),
        ("0s", NOW),
        ("13:30", NOW - timedelta(minutes=30)),
        ("14:30", NOW - timedelta(hours=23, minutes=30)),
        ("2026-11-21T13:00", NOW - timedelta(hours=1)),
        ("2026-11-21 13:00:30", NOW - timedelta(minutes=59, seconds=30)),
        ("2026-11-21T13:00:00Z", NOW),
        ("2026-11-20", NOW - timedelta(hours=38)),
        ("", None),
        ("yesterday", None),
        ("10 m", None),
        ("-5m", None),
        ("25:00", None),
        ("9" * 400, None),
        ("١m", None),
    ],
)
def test_a_moment_is_written_as_people_write_it(text: str, meant: datetime | None) -> None:
    if meant is not None:
        assert moment(text, NOW) == meant.timestamp()
    else:
        with pytest.raises(SpecError, match="is not a time"):
            moment(text, NOW)
