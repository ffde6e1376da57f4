"""The samples of real runs, on hosts that see the run directory and on hosts that do not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.backends.connection.incoming_frames import Expected
from orchestrator.record import samples
from tests.bed import Bed
from tests.conftest import Orch
from tests.live import LiveRun, wait_until, write_script
from worker.protocol import messages
from worker.protocol.channel import ChannelError
from worker.protocol.messages import Sampled, TaskUse

BUSY = """
import pathlib, time
while not pathlib.Path(end).exists():
    sum(range(10_000))
"""


def hosts_of(run: Path) -> dict[str, set[str]]:
    """The hosts whose samples are on disk, each with the tasks that used a processor."""
    latest = samples.read_latest(run)
    return {host: {use.task for use in sample.tasks if use.cpu > 1.0} for host, sample in latest.items()}


def test_a_run_keeps_samples_and_no_events_of_them(orch: Orch, run: LiveRun, tmp_path: Path) -> None:
    write_script(tmp_path, f"end = {str(tmp_path / 'end')!r}" + BUSY)
    going = orch.start("up", "script.py", "-n", "2")
    wait_until(lambda: hosts_of(run.path) == {"local": {"worker-0", "worker-1"}}, "samples")
    (tmp_path / "end").touch()
    going.wait(check=0)
    assert "sampled" not in {event["event"] for event in run.events()}
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in (run.path / "samples").iterdir())
    before = list(samples.read_samples(run.path))[-1]
    assert before.at < run.result()["ended_at"]
    assert before.use.cores >= 1


@pytest.mark.root
def test_hosts_without_the_run_directory_send_their_samples(orch: Orch, bed: Bed, run: LiveRun, tmp_path: Path) -> None:
    write_script(tmp_path, f"end = {str(tmp_path / 'end')!r}" + BUSY)
    home = bed.own / "home/runs"
    ssh = f"backend.ssh={json.dumps(bed.ssh)}"
    going = orch.start("up", "script.py", "-H", "hostA:1,hostB:1", "--set", ssh, "--home", str(home))
    wait_until((home / "latest").exists, "run")
    path = (home / "latest").resolve()
    wait_until(lambda: hosts_of(path) == {"hostA": {"worker-0"}, "hostB": {"worker-1"}}, "samples of both hosts")
    (tmp_path / "end").touch()
    going.wait(check=0)


def test_a_sample_is_about_tasks_that_the_host_has_started() -> None:
    """The names become keys of a file that commands read."""
    expected = Expected()
    expected.add((messages.TaskOrder("worker-0", 1, messages.Program("command", "true"), "/", "worker-0"),))
    expected.check(Sampled(1.0, 2.0, (TaskUse("worker-0", 1),)), b"")
    with pytest.raises(ChannelError, match="a frame for task 'worker-9' in attempt 1"):
        expected.check(Sampled(1.0, 2.0, (TaskUse("worker-9", 1),)), b"")
