"""From nothing to the first all-reduce done in every worker: ``orch up`` beside other ways to start the same cluster, as one table.

The ways: a shell loop that starts N interpreters with ``TF_CONFIG`` (the base of every ratio); ``orch up``; ``orch up`` with `orch warm`
running; ``orch up`` without its template; TensorFlow's own multi_process_runner, and a second cluster of the same runner; torchrun with
gloo (``--torchrun PATH``; another library's all-reduce, so a hint and not a peer); and bare forks of one import, with nothing around
them, twice: the floor, which no launcher can save. They take turns. Beside the seconds stand those of CPU of all processes until
then, which other people's work on the machine changes less, and the memory (PSS, all processes, what is kept warm included) after
the first all-reduce. Under the table: what the parts of orch's own start take (`start_parts`).
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
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks.measure import PROGRAMS, environment, free_addresses, load, orch_command, table
from benchmarks.start_parts import print_parts

SCRIPT = PROGRAMS / "first_reduce.py"
DEADLINE_S = 240.0
HOLD = "hold"
BASE, COLD = "shell loop", "orch up"
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2"}

Command = Callable[[Path, int, list[str]], list[str]]
"""What starts a cluster of that many workers, whose script gets the directory and those arguments."""


@dataclass(frozen=True)
class Way:
    """One row. `resident`: a process that is there before, and whose descendants the cluster's processes may be."""

    command: Command
    env: dict[str, str] = field(default_factory=dict)
    resident: int | None = None
    can_hold: bool = True
    """Its script waits after the all-reduce if it is asked to, for its memory to be looked at."""


def orch_up(directory: Path, workers: int, more: list[str]) -> list[str]:
    return [*orch_command(), "up", str(SCRIPT), "--workers", str(workers), "--", str(directory), *more]


def orch_without_template(directory: Path, workers: int, more: list[str]) -> list[str]:
    return [*orch_command(), "up", str(SCRIPT), "--workers", str(workers), "--set", "preload=[]", "--", str(directory), *more]


def shell_loop(directory: Path, workers: int, more: list[str]) -> list[str]:
    addresses = free_addresses(workers)
    configs = [json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}) for index in range(workers)]
    script = shlex.join([sys.executable, str(SCRIPT), str(directory), *more])
    return ["bash", "-c", f"for config in {shlex.join(configs)}; do TF_CONFIG=$config {script} & done; wait"]


def program(name: str) -> Command:
    """One that makes its cluster itself, twice."""

    def command(directory: Path, workers: int, more: list[str]) -> list[str]:
        return [sys.executable, str(PROGRAMS / name), str(directory), str(workers)]

    return command


def torchrun(program: str) -> Command:
    def command(directory: Path, workers: int, more: list[str]) -> list[str]:
        script = [str(PROGRAMS / "first_reduce_torch.py"), str(directory)]
        return [program, "--standalone", "--nproc-per-node", str(workers), *script]

    return command


@contextmanager
def kept_warm() -> Iterator[Way]:
    """`orch up` with a warm process, which is there for as long."""
    with tempfile.TemporaryDirectory() as runtime:
        env = {"XDG_RUNTIME_DIR": runtime}
        orch = [*orch_command(), "warm"]
        started = subprocess.run(
            [*orch, "start", "--json", "--idle-timeout", str(DEADLINE_S)], env=environment(**QUIET, **env), capture_output=True, check=True
        )
        try:
            yield Way(orch_up, env, json.loads(started.stdout)["pid"])
        finally:
            subprocess.run([*orch, "stop"], env=environment(**env), capture_output=True, check=True)


@contextmanager
def started(way: Way, directory: Path, workers: int, more: list[str]) -> Iterator[tuple[subprocess.Popen[bytes], list[float]]]:
    """A cluster once all its workers have done their all-reduce, and when each of them had. Its end is waited for."""
    said = directory / "said"
    command = way.command(directory, workers, more)
    # No warm process but the one that is meant.
    env = environment(**{**QUIET, "XDG_RUNTIME_DIR": str(directory), **way.env})
    with said.open("wb") as output:
        process = subprocess.Popen(command, cwd=directory, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield process, _reduced(process, directory, workers, said)
        (directory / "go").touch()
        if process.wait(DEADLINE_S):
            raise SystemExit(f"{said.read_text(errors='replace')[-4000:]}\n{shlex.join(command)[:500]} ended with {process.returncode}")
        if way.resident is not None and "forked from the warm process" not in said.read_text(errors="replace"):
            raise SystemExit(f"{said.read_text(errors='replace')[-4000:]}\nthe warm process was not used")
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
    """One cluster, from nothing to its end; of a way that makes two, the first, and the time of the second."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        before_s = sum(_cpu_seconds(one) for one in _resident(way))
        began = time.time()
        with started(way, directory, workers, []) as (process, reduced):
            processes = [*family(process.pid), *_resident(way)]
            wall_s, cpu_s = max(reduced) - began, sum(_cpu_seconds(one) for one in processes) - before_s
        again = directory / "again"
        if not again.exists():
            return Start(wall_s, cpu_s)
        times = [json.loads(path.read_text())["reduced"] for path in again.glob("[0-9]*.json")]
        return Start(wall_s, cpu_s, max(times) - float((again / "began").read_text()))


def _resident(way: Way) -> list[psutil.Process]:
    return family(way.resident) if way.resident is not None else []


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
    """PSS of everything that was started, and of what was there for it, after the first all-reduce of every worker."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        with started(way, directory, workers, [HOLD]) as (process, _):
            return sum(pss_kb(one.pid) for one in [*family(process.pid), *_resident(way)]) / 1024


def pss_kb(pid: int) -> int:
    with suppress(OSError), open(f"/proc/{pid}/smaps_rollup") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Pss:"))
    return 0


# --- the parts: what orch's start cannot do without -------------------------------------------------


def floor(runs: int) -> dict[str, list[float]]:
    """Seconds for one import, one fork of a process that has imported, and one task that does nothing under orch."""
    found: dict[str, list[float]] = {"import": [], "fork": [], "channel": []}
    for _ in range(runs):
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


@dataclass
class Figures:
    """What was measured of one way, by the number of workers. `memory`: of the cluster that was looked at, in MB."""

    wall_s: dict[int, list[float]]
    cpu_s: dict[int, list[float]]
    memory: float | None = None


def print_table(taken: dict[str, Figures], counts: list[int], memory_of: int) -> None:
    """The one table. A cell: the median, the least and the most if there are several, and the ratio to the shell loop's."""
    base = taken[BASE]
    most = max(counts)
    head = ("to the first all-reduce", *(f"{count} workers" for count in counts), "more per worker", f"CPU, {most} workers")
    rows = []
    for name, figures in taken.items():
        cells = [_cell(figures.wall_s[count], base.wall_s[count], "s") for count in counts]
        medians = [(count, statistics.median(figures.wall_s[count])) for count in counts]
        cells.append(f"{slope(medians):.2f} s" if len(counts) > 1 else "-")
        cells.append(_cell(figures.cpu_s[most], base.cpu_s[most], "s") if figures.cpu_s[most] else "-")
        if memory_of:
            known = figures.memory is not None and base.memory is not None
            cells.append(_cell([figures.memory], [base.memory], "MB", "{:.0f}") if known else "-")  # type: ignore[list-item]
        rows.append((name, *cells))
    table((*head, *((f"PSS, {memory_of} workers",) if memory_of else ())), rows)


def _cell(values: list[float], base: list[float], unit: str, form: str = "{:.2f}") -> str:
    median = statistics.median(values)
    spread = f" ({form.format(min(values))} to {form.format(max(values))})" if len(values) > 1 else ""
    return f"{form.format(median)} {unit}{spread}; {median / statistics.median(base):.2f}"


def print_floor(increment_s: float | None, runs: int) -> None:
    """What a cluster that orch forks from one import cannot start without."""
    parts = {name: statistics.median(values) for name, values in floor(runs).items()}
    print(
        f"\nThe parts: one import {parts['import']:.2f} s, one fork of what has imported {parts['fork'] * 1000:.0f} ms, one task that does "
        f"nothing under orch, its channel formed and closed again, {parts['channel']:.2f} s; together {sum(parts.values()):.2f} s."
    )
    if increment_s is not None:
        print(f"A further worker costs orch up {increment_s * 1000:.0f} ms, which is {increment_s / parts['fork']:.0f} forks.")


def measure_all(ways: dict[str, Way], counts: list[int], rounds: int, memory_of: int) -> dict[str, Figures]:
    """Every way in turns, with each number of workers."""
    found = {name: Figures({count: [] for count in counts}, {count: [] for count in counts}) for name in ways}
    again: dict[str, dict[int, list[float]]] = {}
    for turn in range(rounds):
        for count in counts:
            for name in list(ways) if turn % 2 == 0 else reversed(ways):
                taken = start(ways[name], count)
                print(f"  {name}, {count}: {taken.wall_s:.2f} s, {taken.cpu_s:.2f} s of CPU; {load()}", file=sys.stderr, flush=True)
                found[name].wall_s[count].append(taken.wall_s)
                found[name].cpu_s[count].append(taken.cpu_s)
                if taken.again_s is not None:
                    again.setdefault(name, {count: [] for count in counts})[count].append(taken.again_s)
    for name, way in ways.items() if memory_of else ():
        if way.can_hold:
            found[name].memory = memory_mb(way, memory_of)
    for name, wall_s in again.items():
        found[f"{name}, the second time"] = Figures(wall_s, {count: [] for count in counts})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4, 8, 16], metavar="N")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--torchrun", default=shutil.which("torchrun"), metavar="PATH")
    parser.add_argument("--memory", type=int, default=8, metavar="N", help="workers of the cluster whose memory is looked at; 0: none")
    parser.add_argument("--parts", action="store_true", help="only where the time of a start goes, part by part")
    parser.add_argument("--quick", action="store_true", help="one round")
    options = parser.parse_args()
    counts, rounds = options.workers, 1 if options.quick else options.rounds
    if options.parts:
        print_parts(5 if options.quick else 15)
        print(f"\n{load()}")
        return
    missing = list(why_not(options.torchrun))
    with kept_warm() as warm:
        ways = {
            BASE: Way(shell_loop),
            COLD: Way(orch_up),
            "orch up, warm": warm,
            "orch up, preload=[]": Way(orch_without_template, can_hold=False),
            "bare forks": Way(program("first_reduce_forked.py"), can_hold=False),
        }
        if not any(line.startswith("multi") for line in missing):
            ways["multi_process_runner"] = Way(program("first_reduce_mpr.py"), can_hold=False)
        if options.torchrun:
            ways["torchrun, gloo"] = Way(torchrun(options.torchrun), can_hold=False)
        print(load(), flush=True)
        taken = measure_all(ways, counts, rounds, options.memory)
    print()
    print_table(taken, counts, options.memory)
    medians = [(count, statistics.median(values)) for count, values in taken[COLD].wall_s.items()]
    print_floor(slope(medians) if len(medians) > 1 else None, rounds)
    print(f"\nMedian of {rounds}{' (least to most)' if rounds > 1 else ''}; after the semicolon: divided by the shell loop's. {load()}.")
    for line in missing:
        print(line)
    print()
    print_parts(5 if options.quick else 15)


if __name__ == "__main__":
    main()
