"""Slurm, on the tests' own bed (three slurmd in network namespaces of this machine; root only), in turns with what one uses without orch.

From nothing to the first all-reduce on three nodes: ``orch up`` in ``salloc`` and as a job of its own, beside ``srun python`` with
TensorFlow's own SlurmClusterResolver. A task's death to the end of everything, beside ``srun --kill-on-bad-exit``. How often orch calls
``squeue`` for three runs that wait, one of which is looked at. All nodes share this machine's cores.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.measure import PROGRAMS, environment, load, orch_command, spread, table
from tests import bed as beds
from tests import slurm_bed
from tests.slurm_bed import SlurmBed

DEADLINE_S = 300.0
NODES = len(beds.NAMES)
ALLOCATE = ["salloc", "--quiet", f"-N{NODES}"]
SUBMIT = ["--backend", "slurm", "--nodes", str(NODES)]

Way = Callable[[Path], list[str]]


def in_salloc(directory: Path) -> list[str]:
    return [*ALLOCATE, *orch_command(), "up", str(PROGRAMS / "first_reduce.py"), "--quiet", "--", str(directory)]


def submitted(directory: Path) -> list[str]:
    return [*orch_command(), "up", str(PROGRAMS / "first_reduce.py"), "--quiet", *SUBMIT, "--", str(directory)]


def by_srun(directory: Path) -> list[str]:
    program = [sys.executable, str(PROGRAMS / "first_reduce_slurm.py"), str(directory)]
    return [*ALLOCATE, "srun", "--quiet", "--mpi=none", f"-N{NODES}", f"-n{NODES}", *program]


def start(slurm: SlurmBed, way: Way, phases: dict[str, list[float]]) -> float:
    """Seconds until the last worker's first all-reduce. `phases` gets where they went, in a run of orch."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        slurm.wait_idle()
        began = time.time()
        env = environment(TF_CPP_MIN_LOG_LEVEL="2", **slurm.env)
        done = subprocess.run(way(directory), cwd=directory, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=DEADLINE_S)
        times: list[float] = [json.loads(path.read_text())["reduced"] for path in directory.glob("[0-9]*.json")]
        if done.returncode or len(times) != NODES:
            raise SystemExit(f"{way.__name__}: exit code {done.returncode}, {len(times)} workers were done\n{done.stderr.decode()[-2000:]}")
        if (directory / ".orch").exists():
            for phase, seconds in _phases(directory / ".orch/latest", began).items():
                phases.setdefault(phase, []).append(seconds)
        return max(times) - began


def _phases(run: Path, began: float) -> dict[str, float]:
    """The seconds of each phase of a run's start, those of the slowest worker."""
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    controller = next(event["at"] for event in events if event["event"] == "run_begun")
    found = {"until there is a controller": controller - began}
    for durations in json.loads((run / "result.json").read_text())["durations"].values():
        for phase, seconds in durations.items():
            found[phase] = max(found.get(phase, 0.0), seconds)
    return found


def orch_dies(directory: Path) -> list[str]:
    script = [str(PROGRAMS / "die.py"), str(directory), str(NODES)]
    return [*ALLOCATE, *orch_command(), "up", "--no-python", sys.executable, "--quiet", "--", *script]


def srun_dies(directory: Path) -> list[str]:
    script = f'exec {sys.executable} {PROGRAMS / "die.py"} {directory} {NODES} "$SLURM_PROCID"'
    return [*ALLOCATE, "srun", "--mpi=none", "--kill-on-bad-exit=1", f"-N{NODES}", f"-n{NODES}", "sh", "-c", script]


def failure(slurm: SlurmBed, way: Way) -> float:
    """Seconds from a task's death to the end of its launcher."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        slurm.wait_idle()
        env = environment(**slurm.env)
        done = subprocess.run(way(directory), cwd=directory, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=DEADLINE_S)
        ended = time.time()
        if not done.returncode:
            raise SystemExit(f"{way.__name__}: exit code {done.returncode}\n{done.stderr.decode()[-2000:]}")
        return ended - float((directory / "died").read_text())


def questions(slurm: SlurmBed, seconds: float) -> float:
    """How often `squeue` is called in a minute: three runs wait, one is followed, and somebody looks at the list each second."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        asked, programs = directory / "asked", directory / "bin"
        programs.mkdir()
        asked.touch()
        (programs / "squeue").write_text(f'#!/bin/sh\necho >> {asked}\nexec {shutil.which("squeue")} "$@"\n')
        (programs / "squeue").chmod(0o755)
        (directory / "train.py").touch()
        env = environment(**slurm.env, PATH=f"{programs}:{os.environ['PATH']}")
        slurm.run("sbatch", f"-N{NODES}", "--exclusive", "-o/dev/null", "--wrap", "sleep 1000")

        def orch(*words: str) -> subprocess.Popen[bytes]:
            none = subprocess.DEVNULL
            return subprocess.Popen([*orch_command(), *words], cwd=directory, env=env, stdin=none, stdout=none, stderr=none)

        for _ in range(2):
            orch("up", "train.py", "-d", *SUBMIT).wait(DEADLINE_S)
        follower = orch("up", "train.py", *SUBMIT)
        try:
            time.sleep(5)
            before, began = asked.stat().st_size, time.monotonic()
            while time.monotonic() < began + seconds:
                orch("ps", "--all").wait(DEADLINE_S)
                time.sleep(1)
            return (asked.stat().st_size - before) * 60 / (time.monotonic() - began)
        finally:
            follower.kill()
            follower.wait()
            slurm.cancel_all()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one round")
    options = parser.parse_args()
    if why := beds.missing() or slurm_bed.missing():
        print(f"slurm: not measured: {why}")
        return
    rounds = 1 if options.quick else options.rounds
    with beds.made_bed() as bed, slurm_bed.made_slurm(bed) as slurm:
        phases: dict[Way, dict[str, list[float]]] = {way: {} for way in (by_srun, in_salloc, submitted)}
        starts = [[start(slurm, way, phases[way]) for way in phases] for _ in range(rounds)]
        ends = [[failure(slurm, way) for way in (srun_dies, orch_dies)] for _ in range(rounds)]
        asked = questions(slurm, 60.0 if options.quick else 120.0)
    srun, salloc, job = zip(*starts, strict=True)
    theirs, ours = zip(*ends, strict=True)
    rows = [
        (f"{NODES} nodes, to the first all-reduce (s)", spread(salloc, "{:.1f}"), spread(job, "{:.1f}"), spread(srun, "{:.1f}")),
        ("a task's death to the end of all (s)", spread(ours, "{:.2f}"), "", spread(theirs, "{:.2f}")),
    ]
    table(("", "orch up in salloc", "orch up, submitted", "srun python"), rows)
    print(f"start, orch up in salloc ÷ srun python: {spread([mine / other for mine, other in zip(salloc, srun, strict=True)], '{:.2f}')}")
    of_salloc, of_job = phases[in_salloc], phases[submitted]
    parts = [(phase, spread(of_salloc[phase], "{:.2f}"), spread(of_job.get(phase, [0.0]), "{:.2f}")) for phase in of_salloc]
    table(("a phase of the start, of the slowest worker (s)", "orch up in salloc", "orch up, submitted"), parts)
    print(f"three runs that wait, one of them followed, and orch ps each second: {asked:.1f} calls of squeue a minute")
    print(load())


if __name__ == "__main__":
    main()
