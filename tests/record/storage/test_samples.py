"""The samples of a run on disk: bounded however long the run, and read again at the finest resolution that is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.record import samples
from orchestrator.record.run_directory import RunDir
from worker.protocol.messages import GpuUse, HostUse, Sampled, TaskUse


def made(at: float, host: str = "a", cpu: float = 50.0, tasks: int = 1) -> Sampled:
    uses = tuple(TaskUse(f"worker-{number}", 1, "S", cpu, memory=1000 + int(at), threads=9, read=5.0) for number in range(tasks))
    return Sampled(at, 2.0, uses, HostUse(cpu, 2, memory_total=10), host=host)


def test_a_line_gives_the_sample_back() -> None:
    sample = Sampled(12.25, 2.0, made(12).tasks, HostUse(1.0, 2, stalled_io=3.5), (GpuUse(0, 97.0, 5), GpuUse(1)), "host with, odd\nname")
    assert list(samples.parse([samples.to_line(sample)])) == [sample]


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"[]\n",
        b'{"at":1}\n',
        b'{"at":1,"s":2,"host":"a","tasks":{"worker-0":["S"]},"use":[]}\n',
        b'{"at":1,"s":2,"host":"a","tasks":{"w-0/1":7},"use":[]}\n',
        b'{"at":"x","s":2,"host":"a","tasks":{},"use":[]}\n',
        b'{"at":1,"s":2,"host":"a","tasks":{},"use":["nan"]}\n',
        b'{"at":1,"s":2,"host":"a","tasks":{},"use":[1e999]}\n',
        b'{"at":1e308,"s":2,"host":"a","tasks":{},"use":[]}\n',
        b'{"at":1,"s":-2,"host":"a","tasks":{},"use":[]}\n',
        b'{"at":1,"s":2,"host":"a","tasks":{},"use":[1' + b"0" * 400 + b"]}\n",
        b'{"at":1,"s":2,"host":"a","tasks":{},"use":[]',
    ],
)
def test_a_damaged_line_is_skipped(line: bytes) -> None:
    assert list(samples.parse([line])) == []


def test_folding_keeps_means_of_rates_and_the_highest_sizes() -> None:
    stopped = Sampled(4.0, 2.0, (TaskUse("worker-0", 1, "T", 100.0, memory=7), TaskUse("worker-1", 2, "R", 3.0)), HostUse(8.0, 2), host="a")
    folded = samples.fold([made(2.0), stopped, made(6.0, cpu=0.0)])
    assert (folded.at, folded.seconds, folded.host) == (6.0, 6.0, "a")
    first, second = folded.tasks
    assert (first.task, first.state, first.cpu, first.memory) == ("worker-0", "T", 50.0, 1006)
    assert (second.task, second.attempt, second.cpu) == ("worker-1", 2, 3.0)
    assert folded.use.cores == 2


def test_a_day_takes_bounded_space_and_is_there_from_its_first_minutes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A made-up run of two hosts, with files of 64 KB in place of 4 MB."""
    monkeypatch.setattr(samples, "MOST_BYTES", 64 * 1024)
    files = samples.SampleFiles(RunDir(tmp_path))
    day = 86_400
    for at in range(0, day, 60):  # every minute, as if the agent sampled so rarely
        for host in ("a", "b"):
            files.keep(made(float(at), host, tasks=4))
    files.close()
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "samples").iterdir()}
    assert all(size < 66 * 1024 for size in sizes.values()), sizes
    found = list(samples.read_samples(tmp_path))
    times = [sample.at for sample in found if sample.host == "a"]
    assert times == sorted(set(times))
    assert times[0] <= 600
    assert times[-1] == day - 60
    latest = samples.read_latest(tmp_path)
    assert {host: sample.at for host, sample in latest.items()} == {"a": day - 60, "b": day - 60}


def test_a_run_without_samples_has_none(tmp_path: Path) -> None:
    assert list(samples.read_samples(tmp_path)) == []
    assert samples.read_latest(tmp_path) == {}
    (tmp_path / "samples").mkdir()
    (tmp_path / "samples/0.jsonl").mkdir()
    assert samples.read_latest(tmp_path) == {}


def test_a_disk_without_room_loses_samples_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "samples").write_text("in the way")
    files = samples.SampleFiles(RunDir(tmp_path))
    files.keep(made(1.0))
    files.close()
    files.keep(made(2.0))
    assert (tmp_path / "samples").read_text() == "in the way"
