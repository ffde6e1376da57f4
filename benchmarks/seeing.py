"""What it costs to see a run: samples, the timestamps in a step, a report, and a profile.

* `samples`: the CPU time of an agent with 8 and with 64 tasks, with its samples and without.
* `stamps`: the CPU time of a training step on two workers, with orch's timestamps around the collectives and without, in turns in the same
  processes; and the nodes of both graphs.
* `report`: seconds and bytes of the page, for 8 tasks and ten minutes, and for 64 tasks and a day, of records that are made up.
* `profile`: seconds of `orch profile --for 2s` for two workers, and the speed of the training before, during and after.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from benchmarks.measure import PROGRAMS, ROOT, environment, load, orch_command, spread, table

DEADLINE_S = 400.0
WITHOUT_SAMPLES = """\
import importlib.util, runpy, sys
class Sampler:
    def __init__(self, *args, **more): pass
    def begin(self): pass
class Instead:
    def find_spec(self, name, path=None, target=None):
        return importlib.util.spec_from_loader(name, self) if name.endswith("host.sampling.sampler") else None
    def create_module(self, spec): return None
    def exec_module(self, module): module.Sampler, module.Watched = Sampler, tuple
sys.meta_path.insert(0, Instead())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs the program of an agent without its samples. `Watched` is never made."""


@contextmanager
def going(directory: Path, *words: str) -> Iterator[Path]:
    """A run that goes on; gives its directory."""
    runs = directory / ".orch"
    process = subprocess.Popen(
        [*orch_command(), "up", "--quiet", *words], cwd=directory, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        _await(lambda: (runs / "latest" / "events.jsonl").exists(), "record of the run")
        yield runs / "latest"
    finally:
        subprocess.run([*orch_command(), "down"], cwd=directory, env=environment(), capture_output=True, check=False)
        process.wait(DEADLINE_S)


def _await(holds: Any, what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        if time.monotonic() > deadline:
            raise SystemExit(f"no {what} after {DEADLINE_S:g} s")
        time.sleep(0.1)


def _events(run: Path, name: str) -> list[dict[str, Any]]:
    found = (json.loads(line) for line in (run / "events.jsonl").read_text().splitlines())
    return [event for event in found if event["event"] == name]


# --- samples -------------------------------------------------------------------------------------


def agent_share(directory: Path, tasks: int, seconds: float, *, sampled: bool) -> float:
    """The percentage of a core that the agent of so many tasks takes."""
    directory.mkdir()
    python, instead = directory / "python", directory / "without_samples.py"
    instead.write_text(WITHOUT_SAMPLES)
    # The agent is started as PYTHON -I PROGRAM.
    begin = f"-I {instead}" if not sampled else "-I"
    python.write_text(f'#!/bin/sh\n[ "$1" = -I ] || exec {sys.executable} "$@"\nshift\nexec {sys.executable} {begin} "$@"\n')
    python.chmod(0o755)
    with going(directory, "--python", str(python), "--no-python", "sleep", "-n", str(tasks), "--", "1000") as run:
        _await(lambda: len(_events(run, "task_started")) == tasks, "started tasks")
        time.sleep(5.0)  # until the first sample
        agent = psutil.Process(_events(run, "host_ready")[0]["pid"])
        before = agent.cpu_times()
        time.sleep(seconds)
        after = agent.cpu_times()
        if sampled != (run / "samples").exists():
            raise SystemExit(f"the agent of {tasks} tasks was to be {'with' if sampled else 'without'} samples, and was not")
    return 100 * (after.user + after.system - before.user - before.system) / seconds


def samples(seconds: float, rounds: int) -> None:
    rows = []
    for tasks in (8, 64):
        shares: dict[bool, list[float]] = {True: [], False: []}
        with tempfile.TemporaryDirectory() as name:
            for number in range(rounds):
                for sampled in (True, False):
                    shares[sampled].append(agent_share(Path(name) / f"{number}-{sampled}", tasks, seconds, sampled=sampled))
        difference = statistics.median(shares[True]) - statistics.median(shares[False])
        rows.append([str(tasks), *(f"{spread(shares[kind], '{:.2f}')} %" for kind in (True, False)), f"{difference:.2f} %"])
    table(["tasks", "agent, of one core", "without samples", "samples"], rows)


# --- timestamps ----------------------------------------------------------------------------------


def stamps(rounds: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        done = subprocess.run(
            [*orch_command(), "up", str(PROGRAMS / "stamped_steps.py"), "-n", "2", "--json", "--", str(rounds)],
            cwd=name,
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE_S,
        )
        if done.returncode:
            raise SystemExit(f"the steps ended with exit code {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        logs = sorted(Path(name).glob(".orch/latest/attempt-1/worker-*/stdout.log"))
        measured = [json.loads(log.read_text().splitlines()[-1]) for log in logs]
    rows = []
    for task, found in enumerate(measured):
        with_, without = (statistics.median(found[kind]) for kind in ("stamped", "plain"))
        turns = [100 * (one / other - 1) for one, other in zip(found["stamped"], found["plain"], strict=True)]
        times = [f"{1000 * value:.2f} ms" for value in (with_, without)]
        nodes = f"{found['stamped_nodes']} / {found['plain_nodes']}"
        rows.append([f"worker-{task}", *times, f"{100 * (with_ / without - 1):+.1f} %", spread(turns, "{:+.1f}"), nodes])
    table(["task", "CPU of a step, with timestamps", "without", "of the medians", "turn by turn, %", "nodes with / without"], rows)


# --- report --------------------------------------------------------------------------------------


def report(*, quick: bool) -> None:
    from orchestrator.insight.seeing import report_page
    from tests.made_up_run import MadeUpRun

    rows = []
    for tasks, seconds, name, report_s, sample_s in (
        (8, 600.0, "10 min", 4.0, 2.0),
        (64, 86_400.0, "a day", 600.0 if quick else 60.0, 60.0),
    ):
        with tempfile.TemporaryDirectory() as home:
            run = MadeUpRun(Path(home), workers=tasks, seconds=seconds, report_s=report_s, sample_s=sample_s).run
            record = sum(path.stat().st_size for path in run.path.rglob("*") if path.is_file())
            began, used = time.perf_counter(), time.process_time()
            text = report_page.page(run)
            took, cpu = time.perf_counter() - began, time.process_time() - used
        rows.append(
            [f"{tasks} tasks, {name}", f"{record / 1e6:.1f} MB", f"{len(text.encode()) / 1e6:.2f} MB", f"{took:.1f} s", f"{cpu:.1f} s"]
        )
    table(["run", "its record", "page", "wall", "CPU"], rows)


# --- profile -------------------------------------------------------------------------------------


def _step(run: Path) -> float:
    texts = [path.read_text() for path in run.glob("attempt-1/worker-0/pace.json")]
    return float(json.loads(texts[0])["step"]) if texts else 0.0


def _rate(run: Path, seconds: float) -> float:
    before, began = _step(run), time.monotonic()
    time.sleep(seconds)
    return (_step(run) - before) / (time.monotonic() - began)


def profile(rounds: int) -> None:
    with (
        tempfile.TemporaryDirectory() as name,
        going(Path(name), str(ROOT / "examples" / "who_waits.py"), "-n", "2", "--", "--steps", "10000000") as run,
    ):
        _await(lambda: _step(run) > 500, "steps of the training")
        took: list[float] = []
        rates: dict[str, list[float]] = {"before": [], "with": []}
        size = 0
        for _ in range(rounds):
            rates["before"].append(_rate(run, 8.0))
            began, at = _step(run), time.monotonic()
            done = subprocess.run(
                [*orch_command(), "profile", "--for", "2s"], cwd=name, env=environment(), capture_output=True, text=True, check=False
            )
            took.append(time.monotonic() - at)
            if done.returncode:
                raise SystemExit(f"orch profile ended with exit code {done.returncode}: {done.stderr}")
            time.sleep(max(0.0, 8.0 - took[-1]))
            rates["with"].append((_step(run) - began) / (time.monotonic() - at))
            size = max(path.stat().st_size for path in run.glob("profile/plugins/profile/*/*.xplane.pb"))
    ratio = statistics.median(rates["with"]) / statistics.median(rates["before"])
    row = [f"{spread(took, '{:.1f}')} s", f"{size / 1e6:.1f} MB"]
    row += [spread(rates["before"], "{:.0f}"), spread(rates["with"], "{:.0f}"), f"{100 * ratio:.0f} %"]
    table(["orch profile --for 2s", "largest file", "steps/s in 8 s without", "in 8 s with a profile", "speed"], [row])


PARTS = ("samples", "stamps", "report", "profile")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--part", choices=PARTS, action="append", help="only this part; may be repeated")
    given = parser.parse_args()
    rounds = 1 if given.quick else 3
    print(load())
    for part in given.part or PARTS:
        print(f"\n{part}", flush=True)
        match part:
            case "samples":
                samples(10.0 if given.quick else 20.0, rounds)
            case "stamps":
                stamps(20 if given.quick else 100)
            case "report":
                report(quick=given.quick)
            case "profile":
                profile(2 if given.quick else 5)
    print(f"\nnow: load average {os.getloadavg()[0]:.2f}")


if __name__ == "__main__":
    main()
