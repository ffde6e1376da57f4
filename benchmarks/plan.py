"""Many tasks: 10,000 planned, with every TF_CONFIG's text; 300 that do nothing started, watched and ended.

Planning is measured in a process of its own (CPU seconds, growth of its peak memory), for 1,000 and 10,000 tasks: the texts
grow with the square of the tasks, for each names all of them, so they are made one by one and nothing else may grow like that.
The 300 tasks run under ``orch up`` and from a shell loop, in turns.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.measure import PROGRAMS, environment, load, orch_command, spread, table

PLANNED = (1_000, 10_000)
DEADLINE_S = 300.0


def plan(tasks: int) -> dict[str, float]:
    command = [sys.executable, str(PROGRAMS / "plan_tasks.py"), str(tasks)]
    answer = subprocess.run(command, env=environment(), stdout=subprocess.PIPE, check=True, timeout=DEADLINE_S)
    found: dict[str, float] = json.loads(answer.stdout)
    return found


def print_plans(runs: int) -> None:
    found = {tasks: [plan(tasks) for _ in range(runs)] for tasks in PLANNED}
    lines = {
        "planned (CPU s)": ("plan_s", "{:.3f}"),
        "every TF_CONFIG's text, one by one (CPU s)": ("texts_s", "{:.3f}"),
        "those texts together (GB, never held)": ("texts_gb", "{:.3f}"),
        "every host's orders as bytes (CPU s)": ("orders_s", "{:.3f}"),
        "peak memory of all that (MB more)": ("mb", "{:.1f}"),
        "the life of all tasks, step by step (CPU s)": ("life_s", "{:.2f}"),
        "peak memory of their life (MB more)": ("life_mb", "{:.1f}"),
    }
    rows = []
    for title, (key, form) in lines.items():
        medians = [statistics.median(run[key] for run in found[tasks]) for tasks in PLANNED]
        times = f"{medians[1] / medians[0]:.1f}" if medians[0] else "-"
        rows.append((title, *(spread([run[key] for run in found[tasks]], form) for tasks in PLANNED), times))
    table((f"median of {runs} (least to most)", *(f"{tasks:,} tasks" for tasks in PLANNED), "times as much"), rows)


def commands(directory: Path, tasks: int) -> dict[str, list[str]]:
    """The ways to start that many tasks that do nothing."""
    script = directory / "nothing.py"
    script.write_text("pass\n")
    count = ["--workers", str(tasks), "--quiet"]
    up = [*orch_command(), "up"]
    return {
        "true, shell loop": _loop(["/bin/true"], tasks),
        "true, orch up": [*up, "--no-python", "/bin/true", *count],
        "Python, shell loop": _loop([sys.executable, str(script)], tasks),
        "Python, orch up": [*up, str(script), *count],
        "Python, orch up, forked from a template": [*up, str(script), *count, "--set", "preload=[json]"],
    }


def _loop(command: list[str], tasks: int) -> list[str]:
    return ["bash", "-c", f"for number in $(seq {tasks}); do {shlex.join(command)} & done; wait"]


def print_tasks(tasks: int, runs: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        ways = commands(Path(name), tasks)
        taken: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(runs):
            for way, command in ways.items():
                since = time.perf_counter()
                done = subprocess.run(
                    command, cwd=name, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, timeout=DEADLINE_S
                )
                taken[way].append(time.perf_counter() - since)
                if done.returncode:
                    raise SystemExit(f"{done.stderr.decode(errors='replace')[-4000:]}\n{way} ended with exit code {done.returncode}")
    rows = []
    for way, values in taken.items():
        base = taken[f"{way.partition(',')[0]}, shell loop"]
        ratio = statistics.median(values) / statistics.median(base)
        rows.append((way, spread(values, "{:.2f}"), f"{statistics.median(values) / tasks * 1000:.1f}", f"{ratio:.2f}"))
    table((f"{tasks} tasks that do nothing", f"seconds, median of {runs} (least to most)", "ms a task", "÷ shell loop"), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=300, help="how many are started")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one run")
    options = parser.parse_args()
    runs = 1 if options.quick else options.runs
    print(load(), flush=True)
    print_plans(runs)
    print_tasks(options.tasks, runs)
    print(load())


if __name__ == "__main__":
    main()
