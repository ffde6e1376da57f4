"""What it costs to see a run: samples, the timestamps in a step, a report, and a profile.

* `samples`: the CPU time of an agent and of its controller with 8 and with 64 tasks that report, write and are up as trainings are, with
  samples and beside it, at the same time, of one without.
* `stamps`: the CPU time of a training step on two workers, with orch's timestamps around the collectives and its counting of steps, and
  without, in hundreds of short turns in the same processes; and the nodes of both graphs.
* `report`: seconds and bytes of the page, for 8 tasks and ten minutes, and for 64 tasks and a day, of records that are made up.
* `profile`: seconds of `orch profile --for 2s` for two workers, and the speed of the training before, during and after.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.measure import PROGRAMS, ROOT, environment, load, orch_command, spread, table

DEADLINE_S = 400.0
WITHOUT_SAMPLES = """\
import importlib.util, runpy, sys
class Sampler:
    def __init__(self, *args, **more): pass
    def begin(self): pass
class Instead:
    def find_spec(self, name, path=None, target=None):
        return importlib.util.spec_from_loader(name, self) if name.endswith("host.sampler") else None
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


def processes(run: Path, tasks: int) -> dict[str, int]:
    """The agent and the controller of a run, once all its tasks are up."""
    _await(lambda: len(_events(run, "task_up")) == tasks, "tasks that listen at their ports")
    agent = int(_events(run, "host_ready")[0]["pid"])
    parent = Path(f"/proc/{agent}/stat").read_text().rpartition(")")[2].split()[1]
    return {"agent": agent, "controller": int(parent)}


def watched(directory: Path, tasks: int, *, sampled: bool) -> AbstractContextManager[Path]:
    """A run of so many tasks that do what a training does for its agent."""
    directory.mkdir()
    python, instead = directory / "python", directory / "without_samples.py"
    instead.write_text(WITHOUT_SAMPLES)
    # The agent is started as PYTHON -I PROGRAM.
    begin = f"-I {instead}" if not sampled else "-I"
    python.write_text(f'#!/bin/sh\n[ "$1" = -I ] || exec {sys.executable} "$@"\nshift\nexec {sys.executable} {begin} "$@"\n')
    python.chmod(0o755)
    program = ("--no-python", sys.executable, "-n", str(tasks), "--", "-S", str(PROGRAMS / "watched_task.py"))
    return going(directory, "--python", str(python), *program)


def cpu_seconds(pid: int) -> float:
    """What all threads of a process have had of the cores, in nanoseconds and not in ticks of 10 ms (/proc/PID/task/TID/schedstat)."""
    return sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def samples(windows: int, seconds: float = 10.0) -> None:
    rows = []
    for tasks in (8, 64):
        shares: dict[tuple[bool, str], list[float]] = {}
        with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
            runs = {kind: stack.enter_context(watched(Path(name) / str(kind), tasks, sampled=kind)) for kind in (True, False)}
            pids = {(kind, who): pid for kind, run in runs.items() for who, pid in processes(run, tasks).items()}
            time.sleep(5.0)  # until the first sample
            for _ in range(windows):
                before, began = {key: cpu_seconds(pid) for key, pid in pids.items()}, time.monotonic()
                time.sleep(seconds)
                lasted = time.monotonic() - began
                for key, pid in pids.items():
                    shares.setdefault(key, []).append(100 * (cpu_seconds(pid) - before[key]) / lasted)
            for kind, run in runs.items():
                if kind != (run / "samples").exists():
                    raise SystemExit(f"the agent of {tasks} tasks was to be {'with' if kind else 'without'} samples, and was not")
        for who in ("agent", "controller"):
            differences = [one - other for one, other in zip(shares[True, who], shares[False, who], strict=True)]
            rows.append(
                [str(tasks), who, *(f"{spread(found, '{:.2f}')} %" for found in (shares[True, who], shares[False, who], differences))]
            )
    table([f"tasks, {windows} times {seconds:g} s", "", "of one core", "without samples, at the same time", "samples"], rows)


# --- timestamps ----------------------------------------------------------------------------------


def stamps(rounds: int) -> None:
    """In a small step, what orch adds can be told from the noise; it is the same for each step, whatever the step computes."""
    rows = []
    for width, batch in ((16, 4), (512, 64)):
        with tempfile.TemporaryDirectory() as name:
            words = (str(PROGRAMS / "stamped_steps.py"), "-n", "2", "--json", "--", str(rounds), str(width), str(batch))
            done = subprocess.run(
                [*orch_command(), "up", *words],
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
        for task, found in enumerate(measured):
            plain = statistics.median(found["plain"])
            pairs = [one - other for one, other in zip(found["stamped"], found["plain"], strict=True)]
            median, low, high = (1e6 * value for value in median_with_bounds(pairs))
            share = f"{100 * median / 1e6 / plain:+.2f} % ({100 * low / 1e6 / plain:+.2f} to {100 * high / 1e6 / plain:+.2f})"
            row = [f"worker-{task}", f"{1000 * plain:.2f} ms", f"{median:+.0f} us ({low:+.0f} to {high:+.0f})", share]
            rows.append([*row, str(len(pairs)), f"{found['stamped_nodes']} / {found['plain_nodes']}"])
    head = ["task", "CPU of a step, without", "what orch adds, median of the pairs (19 times of 20)", "of the step", "pairs"]
    table([*head, "nodes with / without"], rows)


def median_with_bounds(values: Sequence[float]) -> tuple[float, float, float]:
    """The median, and between what the median of endlessly many such values lies 19 times of 20 (by the ranks of a binomial count)."""
    found = sorted(values)
    away = 0.98 * len(found) ** 0.5
    low, high = max(0, int(len(found) / 2 - away)), min(len(found) - 1, math.ceil(len(found) / 2 + away))
    return statistics.median(found), found[low], found[high]


# --- report --------------------------------------------------------------------------------------


def report(*, quick: bool) -> None:
    from orchestrator.views import report_page
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
    print(load())
    for part in given.part or PARTS:
        print(f"\n{part}", flush=True)
        match part:
            case "samples":
                samples(3 if given.quick else 12)
            case "stamps":
                stamps(200 if given.quick else 1000)
            case "report":
                report(quick=given.quick)
            case "profile":
                profile(2 if given.quick else 5)
    print(f"\nnow: load average {os.getloadavg()[0]:.2f}")


if __name__ == "__main__":
    main()
