"""Snapshots in memory: which one is whole, when one is made, and how the agents of several hosts make a save of them."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from worker.checkpoint_files import saves, snapshot_files, snapshot_memory, step_records, tensor_file
from worker.checkpoint_files.saves import LOCAL
from worker.checkpoint_files.snapshot_memory import Memory
from worker.task.snapshots.schedule import MEASURED_STEPS, SAVE_S, SHARE, SMALL, Schedule

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
    again.close()


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
        file.seek(4096 + 3)
        file.write(b"X")
    assert texts(paths) == ["1"]
    os.truncate(snapshot_memory.read(paths)[0].path, 4100)
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
            if schedule.is_talk_due:
                schedule.agree([schedule.numbers(), *([others] if others else [])])
        schedule.step_begins(at)
    return made, len(made) * cost / at


def test_each_step_has_a_snapshot_where_copies_cost_little() -> None:
    made, share = steps(Schedule(1000), 100, step=0.1, cost=0.0005)
    assert made == list(range(1, 101))
    assert share < 0.01


@pytest.mark.parametrize(("size", "step", "cost"), [(1000, 0.005, 0.0005), (SMALL * 50, 0.2, 0.4), (SMALL * 50, 0.001, 2.0)])
def test_snapshots_take_less_than_one_percent_of_the_time(size: int, step: float, cost: float) -> None:
    made, share = steps(Schedule(size), int(4 * cost / SHARE / step) * 20, step=step, cost=cost)
    assert share < 0.01
    assert made[0] == (1 if size <= SMALL else MEASURED_STEPS)
    assert made[-1] - made[-2] <= cost / SHARE / step + 1


def test_a_save_on_the_disk_is_due_every_few_minutes() -> None:
    schedule, at, due = Schedule(1000), 0.0, []
    for number in range(1, 5000):
        at += 0.1
        if schedule.step_ended(at):
            schedule.made(0.0005)
            if schedule.is_talk_due:
                schedule.agree([schedule.numbers()])
        schedule.step_begins(at)
        if schedule.is_save_due:
            due.append(round(number * 0.1 / SAVE_S, 2))
            schedule.saved()
    assert due == [1, 2]


def test_all_workers_follow_the_one_whose_snapshots_are_the_dearest() -> None:
    slow = Schedule(1000)
    steps(slow, 50, step=0.1, cost=0.0005, others=(2_000_000, 100_000))
    assert slow.every == 20


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
        "records": step > 0,
        "document": {"step": step, "at": 1.0, "kind": ""},
    }
    tensors = {"own": ("U8", [2], True), **({"weights": ("F32", [2], False)} if holds else {})} if step else {}
    data = [bytes([worker, step]), *([value or bytes([step] * 8)] if holds else [])] if step else []
    return b"\n".join(json.dumps(each).encode() for each in (head, tensors)), data


def leave(agent: Any, directory: Path, worker: int, *at: int, holds: bool, value: bytes = b"") -> Paths:
    """What a worker has left: snapshots after these steps. The first one, 0, says that there is none yet."""
    paths: Paths = agent(snapshot_memory.FILES)
    memory = Memory(snapshot_memory.snapshots_of(paths))
    for step in (0, *at):
        memory.write(*snapshot(directory, worker, step, holds=holds, value=value))
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
    assert "the replicas have diverged: worker-1 has another weights than worker-0; an older save is taken" in line
    assert listed(tmp_path) == []


def test_a_directory_that_cannot_be_written_is_said_and_the_training_goes_on(agent: Any, tmp_path: Path) -> None:
    (tmp_path / "loop-1").write_text("a file is in the way")
    (line,) = snapshot_files.write_saves([leave(agent, tmp_path, 0, 8, holds=True)])
    assert "is not saved" in line


# --- what survivors have kept ------------------------------------------------------------------------------


def write_records(paths: Paths, worker: int, *steps: int, written: int = 1 << 20) -> None:
    """As TensorFlow does in the steps. `written`: the bytes of the last one that were written before the worker was killed."""
    numbers, rows = step_records.HEAD, step_records.HEAD + 64
    (path,) = snapshot_memory.records_of(paths)
    with open(path, "r+b") as file:
        file.write(step_records.head(numbers, [(rows, [("own", "U8", [2])])]))
        file.seek(numbers)
        file.write(step_records.NONE * step_records.ROWS)
        for step in steps:
            row, most = (step - 1) % step_records.ROWS, written if step == steps[-1] else 10
            file.seek(rows + row * 2)
            file.write(bytes([worker, step])[:most])
            file.seek(numbers + row * 8)
            file.write((step - 1).to_bytes(8, "little") if most > 2 else b"")


def keep(paths: Paths, directory: Path, worker: int, step: int, *, value: bytes = b"", alike: dict[str, str] | None = None) -> None:
    """As a survivor does. `alike`: its checksums, in place of the values."""
    note, data = snapshot(directory, worker, step, holds=True, value=value)
    head, _ = note.split(b"\n")
    told = {} if alike else {"weights": ("F32", [2], False)}
    memory = Memory(snapshot_memory.kept_of(paths))
    memory.write(json.dumps({**json.loads(head), "alike": alike or {}, "still": []}).encode() + b"\n" + json.dumps(told).encode(), data[1:])
    memory.close()


@pytest.mark.parametrize("written", [0, 1, 2, 10])
def test_what_a_survivor_has_kept_is_a_save_with_the_records_of_all(agent: Any, tmp_path: Path, written: int) -> None:
    """The dead worker has no snapshot of the step, but a record of it; it may have been killed while it wrote that of the next one."""
    chief, other = leave(agent, tmp_path, 0, 7, 8, holds=True), leave(agent, tmp_path, 1, 7, 8, holds=False)
    write_records(chief, 0, *range(17, 22))
    write_records(other, 1, *range(17, 22), written=written)
    (path,) = snapshot_memory.records_of(other)
    assert {each.step for each in step_records.read(path)} == ({19, 20, 21} if written > 2 else {18, 19, 20})
    keep(other, tmp_path, 1, 20)
    assert snapshot_files.write_saves([chief, other]) == []
    (save,) = listed(tmp_path)
    manifest = save.manifest or {}
    assert (save.step, manifest["how"], manifest["by"]) == (20, "survivors", "worker-1")
    for worker in range(2):
        own, _ = saves.read_file(LOCAL, save, f"worker-{worker}.safetensors")
        assert bytes(own["own"].data) == bytes([worker, 20])
    alike, _ = saves.read_file(LOCAL, save, saves.MODEL)
    assert bytes(alike["weights"].data) == bytes([20] * 8)


def test_a_record_that_is_not_whole_leaves_the_snapshot(agent: Any, tmp_path: Path) -> None:
    chief, other = leave(agent, tmp_path, 0, 7, 8, holds=True), leave(agent, tmp_path, 1, 7, 8, holds=False)
    write_records(chief, 0, 20)
    write_records(other, 1, 19, 20, written=2)
    keep(chief, tmp_path, 0, 20)
    assert snapshot_files.write_saves([chief, other]) == []
    assert [(save.step, (save.manifest or {})["how"]) for save in listed(tmp_path)] == [(8, "snapshot")]


def test_survivors_whose_replicas_have_diverged_leave_the_snapshot(agent: Any, tmp_path: Path) -> None:
    chief, other = leave(agent, tmp_path, 0, 8, holds=True), leave(agent, tmp_path, 1, 8, holds=False)
    for worker, paths in enumerate((chief, other)):
        write_records(paths, worker, 20)
    keep(chief, tmp_path, 0, 20)
    keep(other, tmp_path, 1, 20, alike={"weights": "another"})
    (line,) = snapshot_files.write_saves([chief, other])
    assert "the replicas have diverged: worker-1 has another weights than worker-0; an older save is taken" in line
    assert [save.step for save in listed(tmp_path)] == [8]


def test_a_survivor_on_another_host_than_the_chief_gives_the_weights(agent: Any, tmp_path: Path) -> None:
    chief, other = leave(agent, tmp_path, 0, 8, holds=True), leave(agent, tmp_path, 1, 8, holds=True)
    for worker, paths in enumerate((chief, other)):
        write_records(paths, worker, 20)
    keep(other, tmp_path, 1, 20)
    assert on_hosts([chief], [other]) == []
    (save,) = listed(tmp_path)
    assert (save.step, (save.manifest or {})["by"]) == (20, "worker-1")


def test_what_no_optimizer_changes_must_be_that_of_the_snapshot(agent: Any, tmp_path: Path) -> None:
    chief, other = leave(agent, tmp_path, 0, 8, holds=True), leave(agent, tmp_path, 1, 8, holds=False)
    for worker, paths in enumerate((chief, other)):
        write_records(paths, worker, 20)
    note, data = snapshot(tmp_path, 0, 20, holds=True)
    head = {**json.loads(note.split(b"\n")[0]), "alike": {}, "still": ["weights"]}
    memory = Memory(snapshot_memory.kept_of(chief))
    memory.write(json.dumps(head).encode() + b"\n" + json.dumps({"weights": ("F32", [2], False)}).encode(), data[1:])
    memory.close()
    (line,) = snapshot_files.write_saves([chief, other])
    assert "step-0000000020 is not saved: weights changes outside of the optimizer; an older save is taken" in line
    assert [save.step for save in listed(tmp_path)] == [8]


def test_survivors_on_several_hosts_write_the_same_weights_once(agent: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may share the directory. None stands in the way of another one, and their checksums are compared all the same."""
    names: list[str] = []
    real = tensor_file.write
    monkeypatch.setattr(tensor_file, "write", lambda file, *args: (names.append(Path(file.name).name), real(file, *args))[1])
    hosts = []
    for worker in range(3):
        paths = leave(agent, tmp_path, worker, 8, holds=True)
        write_records(paths, worker, 20)
        keep(paths, tmp_path, worker, 20)
        hosts.append([paths])
    assert on_hosts(*hosts) == []
    (save,) = [save for save in listed(tmp_path) if save.step == 20]
    assert (save.manifest or {})["how"] == "survivors"
    written = [name for name in names if name.startswith(saves.MODEL)]
    assert written
    assert len(set(written)) == len(written)


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
