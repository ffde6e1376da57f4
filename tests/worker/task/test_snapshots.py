"""Snapshots in memory: which one is whole, when one is made, and how the agents of several hosts make a save of them."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from worker.formats import saves, snapshot_files, snapshot_memory
from worker.formats.saves import LOCAL
from worker.formats.snapshot_memory import Memory
from worker.task.checkpoints.schedule import COPIES, INTERVAL_S, MEASURED_STEPS, SAVE_S, SMALL, Schedule
from worker.task.checkpoints.snapshots import LONG_S, TrainingSnapshots

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="files in memory are of Linux")

Paths = list[str]


@pytest.fixture
def agent() -> Iterator[Any]:
    """Makes the memory of a task, as the agent does."""
    fds: list[int] = []

    def make(files: int = 2) -> Paths:
        made = [os.memfd_create("test") for _ in range(files)]
        fds.extend(made)
        return [f"/proc/{os.getpid()}/fd/{fd}" for fd in made]

    yield make
    for fd in fds:
        os.close(fd)


def note(text: str) -> bytes:
    return json.dumps({"text": text}).encode() + b"\n{}"


def texts(paths: Paths) -> list[str]:
    return [each.note["text"] for each in snapshot_memory.read(paths)]


def test_the_last_two_snapshots_are_kept_and_the_newest_comes_first(agent: Any) -> None:
    paths = agent()
    assert snapshot_memory.read(paths) == []
    memory = Memory(paths)
    for number in range(5):
        memory.write(note(str(number)), [bytes([number]) * (3 + number), b"", b"end"])
        assert texts(paths) == [str(number), str(number - 1)][: number + 1]
    assert bytes(snapshot_memory.read(paths)[0].view()) == b"\4" * 7 + b"end"
    memory.close()
    again = Memory(paths)  # as after a `fit` that is over
    again.write(note("next"), [])
    assert texts(paths) == ["next", "4"]
    again.clear()
    assert texts(paths) == []


def test_the_last_finished_step_is_there_without_a_snapshot_and_after_the_task_is_killed(agent: Any) -> None:
    paths = agent()

    def train() -> None:
        memory = Memory(paths)
        for step in (1, 2**40):
            memory.reach(step)
        os.kill(os.getpid(), signal.SIGKILL)

    assert snapshot_memory.reached(paths[0]) == 0
    task = multiprocessing.get_context("fork").Process(target=train)
    task.start()
    task.join()
    assert snapshot_memory.reached(paths[0]) == 2**40
    assert texts(paths) == []
    assert not any(map(snapshot_memory.is_begun, paths))


def test_two_processes_do_not_share_the_memory_of_a_task(agent: Any) -> None:
    paths = agent()
    memory = Memory(paths)
    with pytest.raises(BlockingIOError):
        Memory(paths)
    memory.close()


@pytest.mark.parametrize("writes", range(4))
def test_a_task_that_is_killed_while_it_writes_leaves_the_snapshot_before(agent: Any, writes: int) -> None:
    """It is killed at each call of the kernel by which a snapshot is written: after the mark that it is not whole, in the middle of its
    bytes, after them, and after the header."""
    paths = agent()

    def write() -> None:
        memory = Memory(paths)
        memory.write(note("1"), [b"one"])
        memory.write(note("2"), [b"two"])
        calls: list[Any] = []

        def dies(function: Any) -> Any:
            def call(*args: Any) -> Any:
                if len(calls) == writes:
                    os.kill(os.getpid(), signal.SIGKILL)
                calls.append(function)
                return function(*args)

            return call

        os.pwrite, os.pwritev = dies(os.pwrite), dies(os.pwritev)
        snapshot_memory._MOST_BUFFERS = 2
        memory.write(note("3"), [b"th", b"ree"])
        os.kill(os.getpid(), signal.SIGKILL)

    task = multiprocessing.get_context("fork").Process(target=write)
    task.start()
    task.join()
    assert task.exitcode == -signal.SIGKILL
    assert texts(paths) == (["2", "1"] if writes == 0 else ["2"])
    assert bytes(snapshot_memory.read(paths)[0].view()) == b"two"


def test_a_header_of_which_a_bit_has_changed_is_no_snapshot(agent: Any) -> None:
    paths = agent()
    memory = Memory(paths)
    memory.write(note("1"), [b"one"])
    memory.write(note("2"), [b"two"])
    memory.close()
    newest = snapshot_memory.read(paths)[0].path
    with open(newest, "r+b") as file:
        file.seek(snapshot_memory._NOTE_AT + 3)
        file.write(b"X")
    assert texts(paths) == ["1"]
    os.truncate(snapshot_memory.read(paths)[0].path, snapshot_memory._NOTE_AT + 4)
    assert texts(paths) == []


# --- when --------------------------------------------------------------------------------------------


def steps(schedule: Schedule, count: int, *, step: float, cost: float, others: tuple[int, int] | None = None) -> tuple[list[int], float]:
    """After which steps a snapshot was made, and the share of the time that they took."""
    at, made = 0.0, []
    for number in range(1, count + 1):
        at += step
        if schedule.step_ended(at):
            made.append(number)
            at += cost
            schedule.made(cost)
            schedule.agree([schedule.numbers(), *([others] if others else [])])
        schedule.step_begins(at)
    return made, len(made) * cost / at


@pytest.mark.parametrize("step", [0.001, 0.005, 0.1, 0.3, 0.6, 1.5])
def test_there_is_a_snapshot_about_once_a_second_where_copies_cost_little(step: float) -> None:
    schedule = Schedule(1000)
    made, share = steps(schedule, int(60 / step), step=step, cost=0.0005)
    assert made[:5] == [1, 2, 3, 4, 5], "each of the first steps has one"
    between = [after - before for before, after in itertools.pairwise(made[4:])]
    assert set(between) == {schedule.every}
    assert schedule.every == 1 or INTERVAL_S / 2 < schedule.every * step < INTERVAL_S * 1.01
    assert schedule.interval_s < LONG_S, "so no line tells it"
    assert share < 0.001


@pytest.mark.parametrize(("size", "step", "cost"), [(1000, 0.005, 0.02), (SMALL * 50, 0.2, 0.4), (SMALL * 50, 0.001, 2.0)])
def test_copies_that_take_long_are_made_after_a_hundred_times_as_long(size: int, step: float, cost: float) -> None:
    schedule = Schedule(size)
    made, share = steps(schedule, int(20 * COPIES * cost / step), step=step, cost=cost)
    assert share < 0.014, "1 %, and the first ones"
    assert made[0] == (1 if size <= SMALL else MEASURED_STEPS)
    assert {after - before for before, after in itertools.pairwise(made[4:])} == {schedule.every}
    assert schedule.every * step == pytest.approx(COPIES * cost, abs=step * 2)
    assert (schedule.interval_s, schedule.cost_s) == (pytest.approx(COPIES * cost, abs=step * 2), pytest.approx(cost))
    assert schedule.interval_s > LONG_S, "so a line tells it"


def test_an_interval_longer_than_about_a_second_is_printed_and_again_if_it_has_doubled(capsys: pytest.CaptureFixture[str]) -> None:
    snapshots = object.__new__(TrainingSnapshots)
    snapshots._told_s = 0.0
    for cost in (0.0005, 0.04, 0.05, 0.12, 0.0005):
        schedule = Schedule(1000)
        steps(schedule, 20, step=0.05, cost=cost)
        snapshots._tell_of(schedule)
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(": so much")[0] for line in lines] == [
        "orch: note: checkpoints: a copy into memory takes 0.04 s, so orch makes one every 4 s (80 steps)",
        "orch: note: checkpoints: a copy into memory takes 0.12 s, so orch makes one every 12 s (240 steps)",
    ]


def test_the_interval_follows_steps_that_become_longer() -> None:
    schedule = Schedule(1000)
    steps(schedule, 2000, step=0.005, cost=0.0005)
    assert schedule.every == 200
    made, _ = steps(schedule, 500, step=0.1, cost=0.0005)
    assert [after - before for before, after in itertools.pairwise(made)][:3] == [200, 10, 10], "the first one comes soon after the change"


def test_a_save_on_the_disk_is_due_every_few_minutes() -> None:
    schedule, at, due = Schedule(1000), 0.0, []
    for number in range(1, 5000):
        at += 0.1
        if schedule.step_ended(at):
            schedule.made(0.0005)
            schedule.agree([schedule.numbers()])
        schedule.step_begins(at)
        if schedule.is_save_due:
            due.append(round(number * 0.1 / SAVE_S, 2))
            schedule.saved()
    assert due == [1, 2]


def test_all_workers_follow_the_one_whose_snapshots_are_the_dearest() -> None:
    slow = Schedule(1000)
    steps(slow, 50, step=0.1, cost=0.0005, others=(20_000, 100_000))
    assert (slow.every, slow.cost_s) == (20, 0.02)


# --- as a save -----------------------------------------------------------------------------------------


def snapshot(directory: Path, worker: int, step: int, *, holds: bool, value: bytes = b"", workers: int = 2) -> tuple[bytes, list[bytes]]:
    head = {
        "series": str(directory / "loop-1"),
        "task": f"worker-{worker}",
        "run": "run",
        "attempt": 1,
        "chief": "worker-0",
        "workers": [f"worker-{each}" for each in range(workers)],
        "holds": holds,
        "name": saves.name_of(step) if step else "",
        "random": None,
        "document": {
            "step": step,
            "at": 1.0,
            "kind": "",
            "order": "",
            "input": {"epoch": 0, "batch": step},
            "world": {"workers": [], "replicas": 1},
            "versions": {},
        },
    }
    tensors = {"own": ("U8", [2], True), **({"weights": ("F32", [2], False)} if holds else {})} if step else {}
    data = [bytes([worker, step]), *([value or bytes([step] * 8)] if holds else [])] if step else []
    return b"\n".join(json.dumps(each).encode() for each in (head, tensors)), data


def leave(agent: Any, directory: Path, worker: int, *at: int, holds: bool, value: bytes = b"", workers: int = 2) -> Paths:
    """What a worker has left: snapshots after these steps. The first one, 0, says that there is none yet."""
    paths: Paths = agent(snapshot_memory.FILES)
    memory = Memory(paths)
    for step in (0, *at):
        memory.write(*snapshot(directory, worker, step, holds=holds, value=value, workers=workers))
    memory.reach(max(at, default=0) + 1)
    memory.close()
    return paths


def listed(directory: Path) -> list[saves.Save]:
    found = [save for save in saves.list_saves(LOCAL, str(directory), "loop-1") if save.manifest is not None]
    assert [saves.check(LOCAL, save) for save in found] == [""] * len(found)
    return found


def test_the_newest_snapshot_that_all_workers_have_becomes_a_save(agent: Any, tmp_path: Path) -> None:
    mine, other = leave(agent, tmp_path, 0, 7, 8, 9, holds=True), leave(agent, tmp_path, 1, 7, 8, holds=False)
    assert snapshot_files.write_saves([mine, other]) == []
    (save,) = listed(tmp_path)
    assert (save.step, (save.manifest or {})["how"], "lost" in (save.manifest or {})) == (8, "snapshot", False)
    own, _ = saves.read_file(LOCAL, save, "worker-1.safetensors")
    alike, _ = saves.read_file(LOCAL, save, saves.MODEL)
    assert bytes(own["own"].data) == bytes([1, 8])
    assert bytes(alike["weights"].data) == bytes([8] * 8)
    assert not [name for name in LOCAL.names(str(tmp_path / "loop-1")) if name.startswith(saves.LEFT)]
    assert snapshot_files.write_saves([mine, other]) == []
    assert saves.reached(LOCAL, str(tmp_path), "loop-1") == 10, "the chief has finished one more"
    assert [save.step for save in listed(tmp_path)] == [8], "no save is overwritten, and none made that is older than one that is whole"


def test_a_worker_that_had_no_snapshot_yet_leaves_the_saves_before(agent: Any, tmp_path: Path) -> None:
    paths = [leave(agent, tmp_path, 0, 1, holds=True), leave(agent, tmp_path, 1, holds=False)]
    assert snapshot_files.write_saves(paths) == []
    assert listed(tmp_path) == []


def on_hosts(*hosts: list[Paths]) -> list[str]:
    """The agents of several hosts write at the same time."""
    lines: list[str] = []
    threads = [threading.Thread(target=lambda mine=mine: lines.extend(snapshot_files.write_saves(mine))) for mine in hosts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return lines


def test_the_agents_of_two_hosts_make_one_save(agent: Any, tmp_path: Path) -> None:
    chief, other = leave(agent, tmp_path, 0, 8, holds=True), leave(agent, tmp_path, 1, 8, 9, holds=True)
    assert on_hosts([chief], [other]) == []
    (save,) = listed(tmp_path)
    assert save.step == 8
    assert set((save.manifest or {})["files"]) == {saves.MODEL, "worker-0.safetensors", "worker-1.safetensors"}


@pytest.mark.parametrize("lost", [0, 1])
def test_a_lost_host_is_named_and_the_weights_of_another_one_are_saved(
    agent: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    monkeypatch.setattr(snapshot_files, "OTHERS_S", 0.1)
    monkeypatch.setattr(snapshot_files, "CHIEF_S", 0.1)
    assert on_hosts([leave(agent, tmp_path, 1 - lost, 8, 9, holds=True)]) == []
    (save,) = listed(tmp_path)
    manifest = save.manifest or {}
    assert (save.step, manifest["lost"], manifest["by"]) == (9, [f"worker-{lost}"], f"worker-{1 - lost}")


def test_replicas_that_have_diverged_are_no_save(agent: Any, tmp_path: Path) -> None:
    chief, other = leave(agent, tmp_path, 0, 8, holds=True), leave(agent, tmp_path, 1, 8, holds=True, value=b"12345678")
    (line,) = on_hosts([chief, other])
    assert "the replicas have diverged: worker-1 has another weights than worker-0; an older checkpoint is used" in line
    assert listed(tmp_path) == []


def test_a_directory_that_cannot_be_written_is_said_and_the_training_goes_on(agent: Any, tmp_path: Path) -> None:
    (tmp_path / "loop-1").write_text("a file is in the way")
    (line,) = snapshot_files.write_saves([leave(agent, tmp_path, 0, 8, holds=True)])
    assert "is not saved" in line


def test_a_file_that_is_gone_leaves_the_older_snapshot(agent: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chief, other = leave(agent, tmp_path, 0, 7, 8, holds=True), leave(agent, tmp_path, 1, 7, 8, holds=False)
    real = snapshot_files._Writer._finish

    def finish(writer: Any, name: str, *args: Any) -> bool:
        if name == saves.name_of(8):
            (tmp_path / "loop-1" / name / "worker-1.safetensors").unlink()
        return real(writer, name, *args)

    monkeypatch.setattr(snapshot_files._Writer, "_finish", finish)
    assert snapshot_files.write_saves([chief, other]) == []
    assert [save.step for save in listed(tmp_path)] == [7]


@pytest.mark.parametrize(
    "odd",
    [
        {"name": "../../../escape"},
        {"task": "../../evil"},
        {"chief": "/x"},
        {"workers": ["../x"]},
        {"series": 5},
        {"series": "x"},
        {"run": 1},
    ],
    ids=str,
)
def test_a_note_that_names_another_place_takes_nothing_from_the_other_tasks(agent: Any, tmp_path: Path, odd: dict[str, Any]) -> None:
    """The memory is the task's own: any program may write there."""
    base = tmp_path / "a" / "b" / "c"
    mine = leave(agent, base, 0, 7, holds=True, workers=1)
    hostile: Paths = agent(snapshot_memory.FILES)
    memory = Memory(hostile)
    head, tensors = snapshot(base / "other", 1, 7, holds=True)[0].split(b"\n")
    memory.write(json.dumps({**json.loads(head), **odd}).encode() + b"\n" + tensors, [bytes([1, 7]), bytes(8)])
    memory.close()
    list_note: Paths = agent(snapshot_memory.FILES)
    memory = Memory(list_note)
    memory.write(b"[]\n" + tensors, [bytes([1, 7]), bytes(8)])
    memory.close()
    assert snapshot_files.write_saves([hostile, list_note, mine]) == []
    assert [save.step for save in listed(base)] == [7]
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if "c" not in path.parts) == ["a", "a/b"]
