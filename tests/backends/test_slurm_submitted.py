"""Runs that orch submits to a real Slurm: their controller is the batch step of a job. No TensorFlow."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import ROOT, Completed, Orch
from tests.live import LiveRun, is_alive, wait_until, wait_until_gone, wait_until_ready, write_script
from tests.slurm_bed import SlurmBed
from tests.slurm_runs import GOES_ON, SLEEP, Place, attempts, forget_agents, ready

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]


@pytest.fixture
def place(orch: Orch, slurm: SlurmBed, tmp_path: Path) -> Place:
    return Place(orch, slurm, tmp_path)


def test_a_run_that_waits_in_a_full_queue(place: Place) -> None:
    """A node is drained, then all are busy. Nothing of the run has begun, so its end waits for nothing."""
    place.write("")
    place.slurm.run("scontrol", "update", "nodename=hostC", "state=drain", "reason=test")
    drained, _ = place.submit("--nodes", "3")
    place.wait_for_words(drained, "queued in Slurm")
    place.orch("down", drained, check=0)
    place.slurm.run("scontrol", "update", "nodename=hostC", "state=resume")
    with place.no_room() as job:
        name, _ = place.submit()
        place.wait_for_words(name, "queued in Slurm: (Resources|Priority)")
        attached = place.orch.start("up", "script.py")
        attached.wait_for("queued in Slurm")
        attached.signal(signal.SIGINT)
        attached.wait(check=130)
        for command in ("logs", "stacks", "restart"):
            assert "no tasks yet: queued in Slurm: " in place.orch(command, name, check=2).err
        place.orch("down", name, check=0)
        assert place.slurm.jobs() == {job: "RUNNING"}
        place.wait(name, check=143)


def test_a_run_that_is_submitted_is_like_any_other(place: Place, tmp_path: Path, run: LiveRun) -> None:
    """Its exit code, its first cause, its output; the record names the job and the nodes. A controller in a job is what a job costs."""
    script = "print('from', os.uname().nodename, os.environ['MODULE'])\nsys.exit(7 if TASK == 'worker-1' else wait_for('never'))"
    place.write(script, setup=["export MODULE=cuda"])
    done = place.orch("up", "script.py", check=7)
    assert re.search(r"submitted as Slurm's job \d+", done.err)
    assert "worker-1" in run.cause()["task"]
    assert "exit code 7" in done.err.splitlines()[-1] or "exit code 7" in done.err
    assert "from hostB cuda" in done.out
    assert attempts(run) == [["hostA", "hostB"]]
    submitted = (run.path / "request/job.sbatch").read_text().replace(str(run.path), "<run directory>")
    assert submitted.startswith("#!/bin/sh\n#SBATCH --job-name=script\n#SBATCH --nodes=2\n")
    shown = place.orch("up", "script.py", "--dry-run", check=0).out
    assert unquoted(submitted) in unquoted(shown)


def unquoted(text: str) -> str:
    """A script without its quotes and indentation."""
    return "\n".join(line.strip() for line in re.sub("[\"']", "", text).splitlines())


@pytest.mark.parametrize("by", ["scancel", "Ctrl-C"])
def test_a_job_that_is_cancelled(place: Place, run: LiveRun, by: str) -> None:
    """Its tasks have the grace period of the spec to save; after scancel as far as Slurm waits (KillWait). It does not start again."""
    saves = "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(1.5), tell(f'{TASK}.saved'), os._exit(42)))"
    place.write(f"{saves}\n{SLEEP}", requeue="always")
    attached = place.orch.start("up", "script.py")
    processes = wait_until_ready(place.directory, "worker-0", "worker-1")
    if by == "scancel":
        place.slurm.run("scancel", *place.slurm.jobs())
    else:
        attached.signal(signal.SIGINT)
    code = 143 if by == "scancel" else 130
    done = attached.wait(check=code)
    wait_until_gone(processes.values())
    assert run.result()["exit_code"] == code, done
    assert {path.name for path in place.directory.glob("*.saved")} == {"worker-0.saved", "worker-1.saved"}, done
    assert {*place.slurm.jobs().values()} <= {"COMPLETING"}


def test_the_script_of_a_run_is_submitted_by_hand(place: Place, run: LiveRun) -> None:
    """The job that orch has submitted was cancelled before it began."""
    place.write("print('from', os.uname().nodename)")
    with place.no_room():
        name, job = place.submit()
        place.slurm.run("scancel", job)
    place.slurm.run("sbatch", str(run.path / "request/job.sbatch"))
    wait_until(lambda: (run.path / "result.json").exists(), "result")
    place.wait(name, check=0)
    assert run.log("worker-1") in (b"from hostB\n", b"from hostC\n")  # hostA may still be busy with the end of the first job


def test_a_controller_that_is_killed(place: Place, run: LiveRun) -> None:
    place.write(SLEEP)
    name, _ = place.submit()
    processes = wait_until_ready(place.directory, "worker-0", "worker-1")
    os.kill(run.controller().pid, signal.SIGKILL)
    wait_until_gone(processes.values())
    done = place.wait(name, check=125)
    assert "its batch step was killed, or did not begin, on hostA" in done.err, done


@pytest.mark.slow
def test_a_run_that_makes_room_for_another_goes_on(place: Place, run: LiveRun) -> None:
    """Preempted by a partition of higher priority, and queued again by Slurm."""
    place.write(GOES_ON, partition="low")
    name, job = place.submit()
    first = ready(place, 1)
    with place.no_room("--partition=high"):
        wait_until_gone(first)
        place.wait_for_words(name, "queued in Slurm")
        assert place.ps(name)["state"] not in ("failed", "succeeded", "cancelled"), place.ps(name)
    place.start_again(job)
    place.wait(name, check=0)
    assert len(attempts(run)) == 2
    assert [event["event"] for event in run.events()].count("run_resumed") == 1


@pytest.mark.slow
def test_from_another_login_node(place: Place, run: LiveRun) -> None:
    """Slurm is told to queue the job again; then another login node looks, asks and ends."""
    place.write(GOES_ON.replace("while ATTEMPT == 1", "while True"))
    name, job = place.submit()
    first = ready(place, 1)
    place.slurm.run("scontrol", "requeue", job)
    wait_until_gone(first)
    place.start_again(job)
    second = ready(place, 2)

    def there(*words: str, check: int = 0) -> Completed:
        return place.orch.start(*words, by=place.slurm.login_node("hostC")).wait(check=check)

    assert "running" in there("ps", name).out
    there("logs", name)
    assert there("stacks", name).out.startswith("worker-0..1: in time.sleep")
    there("restart", name)
    ready(place, 3)
    wait_until_gone(second)
    there("down", name)
    there("wait", name, check=143)
    assert attempts(run)[:2] == [["hostA", "hostB"]] * 2
    assert place.slurm.jobs() == {} or set(place.slurm.jobs().values()) == {"COMPLETING"}


@pytest.mark.slow
def test_the_node_of_the_controller_dies(place: Place, run: LiveRun) -> None:
    """Slurm hears of its end, and queues the job again, which gets other nodes."""
    place.write(GOES_ON)
    name, job = place.submit()
    first = ready(place, 1)
    place.slurm.kill_node("hostA")
    wait_until_gone(first)
    place.slurm.run("scontrol", "update", "nodename=hostA", "state=down", "reason=test")  # as it would be after SlurmdTimeout
    place.start_again(job)
    place.wait(name, check=0)
    assert attempts(run) == [["hostA", "hostB"], ["hostB", "hostC"]]
    assert (place.directory / "worker-0.node").read_text() == "hostB"
    forget_agents()


def test_a_run_directory_that_the_nodes_do_not_see(place: Place, slurm: SlurmBed) -> None:
    place.write("")
    home = slurm.bed.own / "runs"
    home.mkdir(exist_ok=True)
    name = place.orch("up", "script.py", "-d", "--home", str(home), check=0).out.strip()
    done = place.wait(name, check=125, home=home)
    assert "if its run directory has no controller.log, the node does not see" in " ".join(done.err.split()), done


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--set", "backend.partition=nope"], "Invalid partition name specified\n       fix: sinfo -s names the partitions"),
        (["--set", "backend.options={foo: 1}"], "unrecognized option '--foo=1'"),
        (["--nodes", "4"], "Requested node configuration is not available\n       fix: sinfo -o"),
        (["-n", "5", "--set", "backend.ntasks_per_node=2"], "5 tasks do not fit into 4 slots"),
        (["--python", "/no/python"], "there is no Python /no/python"),
        (["--home", "/dev/shm/orch-runs"], "is in the memory of this machine (tmpfs), which no node sees"),
        (["other.py"], "there is no script"),
    ],
)
def test_what_would_fail_later_is_refused_before(place: Place, words: list[str], told: str) -> None:
    place.write("")
    done = place.orch("up", *([] if words == ["other.py"] else ["script.py"]), *words, check=2)
    assert told in done.err, done
    assert place.slurm.jobs() == {}
    shutil.rmtree("/dev/shm/orch-runs", ignore_errors=True)


HANG = """
import ctypes, os, sys
pid = int(sys.argv[1])
if ctypes.CDLL(None).ptrace(16, pid, None, None):  # PTRACE_ATTACH
    sys.exit("ptrace is not allowed")
os.waitpid(pid, 1 << 30)  # it has stopped (__WALL: also if it is a child of another process)
print("stopped", flush=True)
os.waitpid(pid, 1 << 30)  # it was killed
"""


@contextmanager
def hanging(pid: int) -> Iterator[None]:
    """A process that does nothing more, whatever wakes it: Slurm sends SIGCONT to what it ends. SIGKILL ends it."""
    with subprocess.Popen([sys.executable, "-c", HANG, str(pid)], stdout=subprocess.PIPE) as tracer:
        assert tracer.stdout is not None
        try:
            assert tracer.stdout.readline() == b"stopped\n"
            yield
        finally:
            tracer.kill()


@pytest.mark.slow
def test_a_job_that_slurm_ends_at_its_time_limit(place: Place, run: LiveRun) -> None:
    """Its controller hangs: it neither asks the tasks to save nor has a verdict. Agents end the tasks, and Slurm has the last word."""
    place.write(SLEEP, time="30")
    name, job = place.submit()
    processes = wait_until_ready(place.directory, "worker-0", "worker-1")
    with hanging(run.controller().pid):
        wait_until_gone(processes.values())
        place.slurm.run("scontrol", "update", f"jobid={job}", "endtime=now+1second")
        done = place.wait(name, check=124)
    assert re.search(r"Slurm's job \d+: its time limit of \d+:00 was over", done.err), done


@pytest.mark.slow
def test_slurmds_that_are_killed_and_an_output_of_a_hundred_megabytes(place: Place, run: LiveRun) -> None:
    """What the slurmds have started goes on, and the job ends with the run. They come back in time."""
    place.write("sys.stdout.write('x' * 50_000_000)\nready()\nwait_for('done')\nsys.stdout.write('y\\n' * 25_000_000)\n")
    name, _ = place.submit()
    wait_until_ready(place.directory, "worker-0", "worker-1")
    logs = [run.path / f"attempt-1/worker-{index}/stdout.log" for index in range(2)]

    def wait_for_bytes(count: int) -> None:
        wait_until(lambda: all(log.exists() and log.stat().st_size > count for log in logs), f"{count:,} bytes")

    wait_for_bytes(45_000_000)  # not all of it without slurmds: on a busy machine that takes longer than SlurmdTimeout
    for node in ("hostA", "hostB"):
        place.slurm.kill_slurmd(node)
    (place.directory / "done").write_text("")
    wait_for_bytes(51_000_000)
    place.slurm.mend_daemons()
    place.wait(name, check=0)
    assert [log.stat().st_size for log in logs] == [100_000_000] * 2


def test_a_reboot_of_the_login_node(place: Place, run: LiveRun) -> None:
    """Everything there is killed, `orch up` first. The run goes on, and whoever logs in later sees it, here and on another login node."""
    place.write("print('from', os.uname().nodename, flush=True)\nready()\nwait_for('done')")
    attached = place.orch.start("up", "script.py")
    processes = wait_until_ready(place.directory, "worker-0", "worker-1")
    attached.wait_for("from hostB")
    attached.kill()
    name = run.path.name
    assert "running" in place.orch("ps", name, check=0).out
    other = place.slurm.login_node("hostC")
    assert "from hostB" in place.orch.start("logs", name, by=other).wait(check=0).out
    waiting = place.orch.start("wait", name, by=other)
    assert all(map(is_alive, processes.values()))
    (place.directory / "done").write_text("")
    waiting.wait(check=0)


def test_the_commands_on_the_page_for_users_of_slurm(place: Place, run: LiveRun) -> None:
    page = (ROOT / "docs/slurm.md").read_text()
    typed = [line.partition("#")[0].split()[1:] for line in re.findall(r"^\$ .*", page, re.MULTILINE)]
    submit, with_gpus, ps, logs, allocate, again = typed
    assert "#SBATCH --gpus-per-node=2" in place.orch(*with_gpus[1:], "--dry-run", check=0).out
    write_script(place.directory, "print('from', os.uname().nodename, flush=True)\nready()\nwait_for('done')").rename(
        place.directory / "train.py"
    )
    name = place.orch(*submit[1:], check=0).out.strip()
    wait_until_ready(place.directory, "worker-0", "worker-1", "worker-2")
    (place.directory / "done").write_text("")
    place.wait(name, check=0)
    assert name in place.orch(*ps[1:], check=0).out
    assert sorted(re.findall("from (host.)", place.orch(*logs[1:], check=0).out)) == ["hostA", "hostB", "hostC"]
    done = place.orch.start(*again[1:], by=(*allocate, "--quiet")).wait(check=0)
    promised = re.escape(re.search("    (orch: the allocation .*)", page)[1])  # type: ignore[index]
    for shown, real in (("4711", r"\d+"), (r"n9,\ n10,\ n11", "hostA, hostB, hostC")):
        promised = promised.replace(shown, real)
    assert re.fullmatch(promised, done.err.splitlines()[0]), done
