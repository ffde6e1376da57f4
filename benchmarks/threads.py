"""What the numbers of threads that orch sets are worth: a step of training with each of them, and without.

    python -m benchmarks.threads --workers 2 4 8 --rounds 5

Under orch, ``OMP_NUM_THREADS`` and ``TF_NUM_INTRAOP_THREADS`` are cores ÷ tasks. *Without* one of them means: as many as there are cores,
which is what TensorFlow and OpenMP take by themselves. The four ways take turns, in changing order; each round gives one ratio.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

from benchmarks.measure import PROGRAMS, environment, load, orch_command, spread, table
from worker.machine.cpu_cores import count_cores

SCRIPT = PROGRAMS / "train_steps.py"
OMP, INTRA = "OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS"
WAYS = {"both": (), "without intra-op": (INTRA,), "without OMP": (OMP,), "neither": (OMP, INTRA)}


def step_ms(workers: int, steps: int, left_out: tuple[str, ...]) -> float:
    """The median of the chief's steps, in milliseconds."""
    own = [word for name in left_out for word in ("--env", f"{name}={count_cores()}")]
    with tempfile.TemporaryDirectory() as directory:
        command = [*orch_command(), "up", str(SCRIPT), "-q", "--workers", str(workers), *own, "--", directory, str(steps)]
        subprocess.run(command, cwd=directory, env=environment(), stdin=subprocess.DEVNULL, check=True, timeout=600)
        found: float = json.loads((Path(directory) / "0.json").read_text())["median_s"]
    return found * 1000


def main() -> None:
    """A table for each number of workers."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.threads", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    for workers in options.workers:
        taken: dict[str, list[float]] = {way: [] for way in WAYS}
        for turn in range(options.rounds):
            for way in WAYS if turn % 2 == 0 else reversed(WAYS):
                taken[way].append(step_ms(workers, options.steps, WAYS[way]))
        rows = [
            (way, spread(values, "{:.2f}"), spread([one / both for one, both in zip(values, taken["both"], strict=True)], "{:.2f}"))
            for way, values in taken.items()
        ]
        table((f"{workers} workers", f"ms a step, {options.rounds} runs: median (least to most)", "÷ both, per round"), rows)
    print(load())


if __name__ == "__main__":
    main()
