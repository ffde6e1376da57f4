"""What an agent measures of its tasks: the numbers are right from the first sample on, and cost little."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live import wait_until
from tests.worker.controller_double import AgentProcess
from worker.host.facts import gpu_driver
from worker.host.facts.control_group import ControlGroup, GroupCounts
from worker.host.processes import proc_files
from worker.host.sampler import Sampler, Watched
from worker.protocol import messages, task_files
from worker.protocol.messages import GpuUse, Sampled


class Channel:
    """Takes what a sampler sends; its loop calls nothing by itself."""

    def __init__(self) -> None:
        self.sent: list[Sampled] = []
        self.is_full = False
        self.awaits = False
        self.due: list[Callable[[], None]] = []

    def send(self, sample: Sampled) -> None:
        self.sent.append(sample)

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        self.due.append(action)

    def add(self, helper: object) -> None:
        pass

    def sample(self) -> Sampled:
        self.due.pop()()
        return self.sent[-1]


def sampler_of(channel: Any, *pids: int) -> Sampler:
    tasks = [Watched(f"worker-{number}", 1, pid) for number, pid in enumerate(pids)]

    def living() -> list[Watched]:
        return [task for task in tasks if Path(f"/proc/{task.pid}").exists()]

    made = Sampler(channel, channel, channel, living, lambda: channel.awaits, has_gpus=False)
    made.begin()
    return made


@pytest.fixture
def burner() -> Iterator[subprocess.Popen[bytes]]:
    """A process that keeps one core busy."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        yield process
        process.kill()


def test_the_first_sample_of_a_process_has_what_it_used_since_its_start(burner: subprocess.Popen[bytes]) -> None:
    """The machine may be busy: the process gets what it gets, and the kernel's count is the judge."""
    channel = Channel()
    sampler_of(channel, burner.pid)
    wait_until(lambda: (counts := proc_files.read_process(burner.pid)) is not None and counts.cpu_s > 0.3, "process that has computed")
    (first,) = channel.sample().tasks
    for use in (first, channel.sample().tasks[0]):
        assert use.memory > 1 << 20
        assert use.threads == 1
    assert first.cpu > 0.0
    counts = proc_files.read_process(burner.pid)
    assert counts is not None
    used = 100 * counts.cpu_s / (proc_files.now() - counts.started_at)
    assert first.cpu == pytest.approx(used, rel=0.5)


def test_a_later_process_of_the_same_pid_begins_anew(tmp_path: Path) -> None:
    """Written by hand, because the kernel gives the same pid again only after thousands of others."""
    proc = tmp_path / "7"
    (proc / "task/7").mkdir(parents=True)
    (tmp_path / "stat").write_text("cpu  1 0 0 0 0 0 0 0 0 0\ncpu0 1\n")

    def write(ticks: int, started: int, state: str = "R") -> None:
        fields = [state, *["0"] * 8, "0", "0", str(ticks), "0", "0", "0", "0", "0", "3", "0", str(started), "0", "5"]
        (proc / "stat").write_text(f"7 (a b) c) {' '.join(fields)}")

    channel: Any = Channel()
    hertz = os.sysconf("SC_CLK_TCK")
    now = int(proc_files.now() * hertz)
    write(1_000_000, now - 1_000_000)
    made = Sampler(channel, channel, channel, lambda: [Watched("worker-0", 1, 7)], lambda: False, has_gpus=False, proc=str(tmp_path))
    made.begin()
    channel.sample()
    assert (channel.sent[0].tasks[0].state, channel.sent[0].tasks[0].threads) == ("R", 3)
    assert channel.sent[0].tasks[0].cpu == pytest.approx(100.0, abs=0.1)  # one core since its start, long before the time of the sample
    write(1_000_000, now - 1_000_000)
    assert channel.sample().tasks[0].cpu == 0.0
    write(0, now)
    assert channel.sample().tasks[0].cpu == 0.0
    write(0, now, "Z")
    assert channel.sample().tasks == (), "it has ended, and its memory is no 0"


def test_the_children_of_the_main_thread_count_for_the_task() -> None:
    script = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"
    with subprocess.Popen([sys.executable, "-c", script], start_new_session=True) as process:
        channel = Channel()
        sampler_of(channel, process.pid)
        while not proc_files.read_children(process.pid):
            time.sleep(0.01)
        time.sleep(0.5)
        (use,) = channel.sample().tasks
        os.killpg(process.pid, signal.SIGKILL)
    assert use.cpu > 5.0
    assert use.threads == 2


def test_a_task_that_keeps_silent_in_a_meeting_is_in_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread would tell each second how long it has waited: a call keeps the interpreter's lock, or the process is stopped."""
    monkeypatch.setattr("worker.host.sampler.SILENT_S", 0.2)
    channel: Any = Channel()
    watched = Watched("worker-0", 1, os.getpid(), str(tmp_path))
    Sampler(channel, channel, channel, lambda: [watched], lambda: False, has_gpus=False).begin()

    def tell(waits: float) -> tuple[int, int, float]:
        (tmp_path / task_files.PACE).write_text(json.dumps({"came": 8, "met": 7, "waits": waits}))
        (use,) = channel.sample().tasks
        return use.came, use.met, use.waits

    assert tell(0.4) == (8, 7, 0.4)
    time.sleep(0.3)
    assert tell(0.4) == (7, 7, 0.0)
    assert tell(1.6) == (8, 7, 1.6)


def test_a_full_channel_gets_no_sample_and_the_next_one_is_about_all_the_time(burner: subprocess.Popen[bytes]) -> None:
    channel = Channel()
    sampler_of(channel, burner.pid)
    channel.is_full = True
    time.sleep(0.3)
    channel.due.pop()()
    assert channel.sent == []
    channel.is_full = False
    time.sleep(0.1)
    assert channel.sample().seconds >= 0.4


def test_it_stops_with_the_last_task_and_begins_again(burner: subprocess.Popen[bytes]) -> None:
    channel = Channel()
    made = sampler_of(channel, burner.pid)
    channel.sample()
    burner.kill()
    burner.wait()
    channel.due.pop()()
    assert (len(channel.sent), channel.due) == (1, [])
    made.begin()
    assert len(channel.due) == 1


def test_it_waits_for_tasks_that_have_no_process_yet(burner: subprocess.Popen[bytes]) -> None:
    """TensorFlow's import takes longer than the time to the first sample."""
    channel = Channel()
    channel.awaits = True
    made = sampler_of(channel)
    channel.due.pop()()
    assert channel.sent == []
    assert len(channel.due) == 1
    made._find_tasks = lambda: [Watched("worker-0", 1, burner.pid)]
    time.sleep(0.1)
    assert [use.task for use in channel.sample().tasks] == ["worker-0"]


@pytest.mark.parametrize("count", [8, 64])
def test_sampling_takes_less_than_a_hundredth_of_a_core(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By CPU time, which other processes do not change; with encoding, and without the slow count of shared pages."""
    monkeypatch.setattr(proc_files, "read_own_memory", lambda *_: pytest.fail("read within the first minute"))
    processes = [subprocess.Popen(["sleep", "1000"]) for _ in range(count)]
    try:
        channel = Channel()
        sampler_of(channel, *(process.pid for process in processes))
        before = resource.getrusage(resource.RUSAGE_SELF)
        for _ in range(50):
            channel.sample()
        after = resource.getrusage(resource.RUSAGE_SELF)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert len(channel.sent[-1].tasks) == count
    used_s = (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / 50
    assert used_s < 0.01 * 2.0, f"{1000 * used_s:.2f} ms of CPU time for a sample every 2 s"


def test_the_own_share_of_the_memory_is_read_of_one_task_a_minute_and_no_more_if_it_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    skipped, now, read = [0.0], proc_files.now, proc_files.read_own_memory
    monkeypatch.setattr(proc_files, "now", lambda: now() + skipped[0])
    with subprocess.Popen(["sleep", "1000"]) as first, subprocess.Popen(["sleep", "1000"]) as second:
        channel = Channel()
        sampler_of(channel, first.pid, second.pid)

        def measured() -> list[str]:
            return [use.task for use in channel.sample().tasks if use.own_memory]

        turns = []
        for _ in range(4):
            assert measured() == []
            skipped[0] += 60.0
            turns += measured()
        assert turns == ["worker-1", "worker-0"] * 2

        def read_slowly(pid: int, proc: str) -> int:
            time.sleep(0.06)
            return read(pid, proc)

        monkeypatch.setattr(proc_files, "read_own_memory", read_slowly)
        skipped[0] += 60.0
        assert measured() == ["worker-1"]
        skipped[0] += 600.0
        assert measured() == []
        for process in (first, second):
            process.kill()


def test_an_agent_samples_its_tasks(agent: AgentProcess) -> None:
    agent.hello()
    agent.start("while :; do :; done", "exec sleep 1000")
    sample = agent.wait_for(Sampled, lambda sample: len(sample.tasks) == 2)
    uses = {use.task: use for use in sample.tasks}
    assert uses["worker-0"].cpu > uses["worker-1"].cpu
    assert uses["worker-1"].state == "S"
    assert sample.use.memory_total > sample.use.memory > 0
    assert sample.use.cores >= 1
    agent.order(messages.SignalTasks(("worker-1",), signal.SIGSTOP))
    agent.wait_for(Sampled, lambda sample: any(use.state == "T" for use in sample.tasks))
    agent.order(messages.StopTasks(("worker-0", "worker-1"), 0.0))
    agent.order(messages.Bye())
    agent.read_to_end()


STAT = "usage_usec 1\nnr_periods 40\nnr_throttled 25\nthrottled_usec 2500000\n"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"proc": "0::/job\n", "job/cpu.stat": STAT}, GroupCounts(40, 25)),
        ({"proc": "0::/outside\n", "cpu.stat": STAT}, GroupCounts(40, 25)),
        ({"proc": "4:memory:/a\n1:cpu,cpuacct:/a\n", "cpu,cpuacct/a/cpu.stat": STAT}, GroupCounts(40, 25)),
        ({"proc": "nonsense\n"}, GroupCounts()),
    ],
    ids=["version 2", "in a container", "version 1", "unknown"],
)
def test_it_reads_the_control_group(tmp_path: Path, files: dict[str, str], expected: GroupCounts) -> None:
    for name, text in files.items():
        path = tmp_path / "proc/cgroup" if name == "proc" else tmp_path / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert ControlGroup(str(tmp_path / "proc"), str(tmp_path / "groups")).read() == expected


def test_it_reads_what_the_gpus_do() -> None:
    out = "0, 97, 12345\n1, [N/A], 0\nFailed to initialize NVML\n"
    assert gpu_driver.read_use(out) == (GpuUse(0, 97.0, 12345 << 20), GpuUse(1))


@pytest.mark.parametrize("name", ["_measure", "_measure_host", "_measure_links"])
def test_an_error_of_what_measures_turns_it_off_with_a_note(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise KeyError("planted")

    channel: Any = Channel()
    made = sampler_of(channel, os.getpid())
    monkeypatch.setattr(made, name, fail)
    why = "because orch's own code has failed (KeyError: 'planted')"
    assert channel.sample().text == f"what the tasks use is not measured from here on, {why}"
    made.begin()
    while channel.due:
        channel.due.pop()()
    assert len(channel.sent) == 1
