"""From nothing to the first all-reduce done in every worker: ``orch up`` beside other ways to start the same cluster.

The other ways: a shell loop that starts N interpreters with ``TF_CONFIG`` (the base of every ratio), ``orch up`` without its
template, TensorFlow's own multi_process_runner, and torchrun with gloo (``--torchrun PATH``; another library's all-reduce, so a
hint and not a peer). The ways take turns. Beside the seconds stand those of CPU of all processes until then, which other people's
work on the machine changes less. Then the memory (PSS, all processes) of one cluster after its first all-reduce.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.measure import PROGRAMS, environment, free_addresses, load, orch_command, spread, table

SCRIPT = PROGRAMS / "first_reduce.py"
DEADLINE_S = 240.0
FLOOR_RUNS = 3
HOLD = "hold"

Way = Callable[[Path, int, list[str]], list[str]]
"""The command that starts a cluster of that many workers, whose script gets the directory and those arguments."""


def orch_up(directory: Path, workers: int, more: list[str]) -> list[str]:
    return [*orch_command(), "up", str(SCRIPT), "--workers", str(workers), "--", str(directory), *more]


def orch_without_template(directory: Path, workers: int, more: list[str]) -> list[str]:
    return [*orch_command(), "up", str(SCRIPT), "--workers", str(workers), "--set", "preload=[]", "--", str(directory), *more]


def shell_loop(directory: Path, workers: int, more: list[str]) -> list[str]:
    addresses = free_addresses(workers)
    configs = [json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}) for index in range(workers)]
    script = shlex.join([sys.executable, str(SCRIPT), str(directory), *more])
    return ["bash", "-c", f"for config in {shlex.join(configs)}; do TF_CONFIG=$config {script} & done; wait"]


def mpr(directory: Path, workers: int, more: list[str]) -> list[str]:
    return [sys.executable, str(PROGRAMS / "first_reduce_mpr.py"), str(directory), str(workers)]


def torchrun(program: str) -> Way:
    def command(directory: Path, workers: int, more: list[str]) -> list[str]:
        script = [str(PROGRAMS / "first_reduce_torch.py"), str(directory)]
        return [program, "--standalone", "--nproc-per-node", str(workers), *script]

    return command


@contextmanager
def started(command: list[str], directory: Path, workers: int) -> Iterator[tuple[subprocess.Popen[bytes], list[float]]]:
    """A cluster once all its workers have done their all-reduce, and when each of them had. Its end is waited for."""
    said = directory / "said"
    env = environment(TF_CPP_MIN_LOG_LEVEL="2")
    with said.open("wb") as output:
        process = subprocess.Popen(command, cwd=directory, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield process, _reduced(process, directory, workers, said)
        (directory / "go").touch()
        if process.wait(DEADLINE_S):
            raise SystemExit(f"{said.read_text(errors='replace')[-4000:]}\n{shlex.join(command)[:500]} ended with {process.returncode}")
    finally:
        for one in family(process.pid):
            with suppress(psutil.NoSuchProcess):
                one.kill()
        process.wait()


def _reduced(process: subprocess.Popen[bytes], directory: Path, workers: int, said: Path) -> list[float]:
    deadline = time.monotonic() + DEADLINE_S
    while len(found := list(directory.glob("[0-9]*.json"))) < workers:
        failed = process.poll() not in (None, 0)
        if failed or time.monotonic() > deadline:
            raise SystemExit(f"{said.read_text(errors='replace')[-4000:]}\nthe cluster did not form: {len(found)} of {workers} workers")
        time.sleep(0.05)
    return [json.loads(path.read_text())["reduced"] for path in found]


@dataclass(frozen=True)
class Start:
    """Until the last worker's first all-reduce. `again_s`: the same for a way that starts the cluster a second time."""

    wall_s: float
    cpu_s: float
    again_s: float | None = None


def start(way: Way, workers: int) -> Start:
    """One cluster, from nothing to its end."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        command = way(directory, workers, [])
        began = time.time()
        with started(command, directory, workers) as (process, reduced):
            wall_s, cpu_s = max(reduced) - began, sum(_cpu_seconds(one) for one in family(process.pid))
        again = directory / "again"
        if not again.exists():
            return Start(wall_s, cpu_s)
        times = [json.loads(path.read_text())["reduced"] for path in again.glob("[0-9]*.json")]
        return Start(wall_s, cpu_s, max(times) - float((again / "began").read_text()))


def family(pid: int) -> list[psutil.Process]:
    """A process and all its descendants; none if it is gone."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _cpu_seconds(process: psutil.Process) -> float:
    with suppress(psutil.NoSuchProcess):
        return sum(process.cpu_times()[:4])  # its own, and those of its children that it has reaped
    return 0.0


def memory_mb(way: Way, workers: int) -> float:
    """PSS of everything that was started, after the first all-reduce of every worker."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        with started(way(directory, workers, [HOLD]), directory, workers) as (process, _):
            return sum(pss_kb(one.pid) for one in family(process.pid)) / 1024


def pss_kb(pid: int) -> int:
    with suppress(OSError), open(f"/proc/{pid}/smaps_rollup") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Pss:"))
    return 0


# --- the floor: what cannot be saved by starting things in another way ----------------------------


def floor() -> dict[str, list[float]]:
    """Seconds for one import, one fork of a process that has imported, and one task that does nothing under orch."""
    found: dict[str, list[float]] = {"import": [], "fork": [], "channel": []}
    for _ in range(FLOOR_RUNS):
        found["import"].append(_timed([sys.executable, "-c", "import os, tensorflow; os._exit(0)"]))
        answer = subprocess.run(
            [sys.executable, "-c", _FORK], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True
        )
        found["fork"] += json.loads(answer.stdout)
        found["channel"].append(_timed([*orch_command(), "up", "--no-python", "true", "--workers", "1", "--quiet"]))
    return found


_FORK = """
import gc, json, os, sys, time, tensorflow
gc.collect(); gc.freeze()
taken = []
for _ in range(5):
    since = time.perf_counter()
    pid = os.fork()
    if not pid: os._exit(0)
    taken.append(time.perf_counter() - since)
    os.waitpid(pid, 0)
sys.stdout.write(json.dumps(taken)); sys.stdout.flush(); os._exit(0)
"""


def _timed(command: list[str]) -> float:
    with tempfile.TemporaryDirectory() as directory:
        since = time.perf_counter()
        subprocess.run(command, cwd=directory, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, check=True)
        return time.perf_counter() - since


# --- what is printed ------------------------------------------------------------------------------


def slope(points: Iterable[tuple[int, float]]) -> float:
    """The increment per worker: a straight line's, by least squares."""
    return statistics.linear_regression(*zip(*points, strict=True)).slope


def why_not(torch_program: str | None) -> Iterator[str]:
    missing = [name for name in ("portpicker", "dill", "tblib") if importlib.util.find_spec(name) is None]
    if missing:
        yield f"multi_process_runner: not measured, it needs {', '.join(missing)} (pip install {' '.join(missing)})"
    if torch_program is None:
        yield "torchrun: not measured, there is none on PATH (--torchrun PATH names one)"


def print_times(title: str, taken: dict[str, dict[int, list[float]]], counts: list[int]) -> None:
    base = {count: statistics.median(taken["shell loop"][count]) for count in counts}
    rows = []
    for name, by_count in taken.items():
        cells = [f"{spread(by_count[count], '{:.2f}')}; {statistics.median(by_count[count]) / base[count]:.2f}" for count in counts]
        medians = [(count, statistics.median(by_count[count])) for count in counts]
        rows.append((name, *cells, f"{slope(medians):.2f}" if len(counts) > 1 else "-"))
    table((f"{title}, median (least to most); ÷ shell loop", *(f"{count} workers" for count in counts), "more per worker"), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4, 8], metavar="N")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--torchrun", default=shutil.which("torchrun"), metavar="PATH")
    parser.add_argument("--memory", type=int, default=8, metavar="N", help="workers of the cluster whose memory is looked at; 0: none")
    parser.add_argument("--quick", action="store_true", help="one round with 2 and 8 workers")
    options = parser.parse_args()
    counts = [2, 8] if options.quick else options.workers
    rounds = 1 if options.quick else options.rounds

    ways: dict[str, Way] = {"shell loop": shell_loop, "orch up": orch_up, "orch up, preload=[]": orch_without_template}
    missing = list(why_not(options.torchrun))
    if not any(line.startswith("multi") for line in missing):
        ways["multi_process_runner"] = mpr
    if options.torchrun:
        ways["torchrun, gloo"] = torchrun(options.torchrun)
    for line in missing:
        print(line)

    print(load(), flush=True)
    wall: dict[str, dict[int, list[float]]] = {name: {count: [] for count in counts} for name in ways}
    cpu: dict[str, dict[int, list[float]]] = {name: {count: [] for count in counts} for name in ways}
    warm: dict[int, list[float]] = {count: [] for count in counts}
    for turn in range(rounds):
        for count in counts:
            for name in list(ways) if turn % 2 == 0 else reversed(ways):
                taken = start(ways[name], count)
                print(f"  {name}, {count}: {taken.wall_s:.2f} s, {taken.cpu_s:.2f} s of CPU; {load()}", file=sys.stderr)
                wall[name][count].append(taken.wall_s)
                cpu[name][count].append(taken.cpu_s)
                if taken.again_s is not None:
                    warm[count].append(taken.again_s)
    if all(warm.values()):
        wall["the same runner, its second cluster"] = warm
    print_times("seconds", wall, counts)
    print_times("CPU seconds", cpu, counts)
    parts = {name: statistics.median(values) for name, values in floor().items()}
    print(
        f"floor: one import {parts['import']:.2f} s, one fork of what has imported {parts['fork'] * 1000:.0f} ms, "
        f"one task that does nothing under orch {parts['channel']:.2f} s; {parts['import'] + parts['channel']:.2f} s in all"
    )
    if options.memory:
        compared = ("shell loop", "orch up")
        used = {name: memory_mb(ways[name], options.memory) for name in compared}
        ratio = used["orch up"] / used["shell loop"]
        said = ", ".join(f"{name} {value:.0f} MB" for name, value in used.items())
        print(f"PSS of all processes, {options.memory} workers after their first all-reduce: {said}; ratio {ratio:.2f}")
    print(load())


if __name__ == "__main__":
    main()
