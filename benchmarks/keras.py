"""A step of Keras's `fit` with several workers: Keras 3 as orch mends it, Keras 2, and a loop of one's own, in turns; the cost of mending.

All three are the same model on the same data in a cluster of two workers under ``orch up``. What the mends cost a task is the time of what
it does about Keras once that is imported, in processes of their own.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.measure import PROGRAMS, environment, load, orch_command, spread, table

LOOP = "a loop, Keras 3"
WAYS = {"fit, Keras 3 under orch": ("fit", "v3"), "fit, Keras 2": ("fit", "legacy"), LOOP: ("loop", "v3")}
MENDING = """
import os, time
os.environ["TF_CONFIG"] = "{}"
import keras
from worker.task import keras as ours
since = time.perf_counter()
ours.apply_soon({"mode": "auto", "report": True}, "")
print(time.perf_counter() - since)
"""


def step_ms(how: str, keras: str, steps: int) -> float:
    with tempfile.TemporaryDirectory() as directory:
        options = ["--workers", "2", "--keras", keras, "--", directory, str(steps), how]
        command = [*orch_command(), "up", str(PROGRAMS / "keras_steps.py"), *options]
        done = subprocess.run(command, cwd=directory, env=environment(), capture_output=True, text=True, timeout=300)
        if done.returncode:
            raise SystemExit(f"{done.stdout}{done.stderr}\nthe training failed: exit code {done.returncode}")
        return max(float(json.loads((Path(directory) / f"{index}.json").read_text())["step_s"]) for index in range(2)) * 1000


def mending_ms() -> float:
    done = subprocess.run([sys.executable, "-c", MENDING], env=environment(), capture_output=True, text=True, check=True, timeout=300)
    return float(done.stdout) * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--quick", action="store_true", help="one round")
    options = parser.parse_args()
    rounds = 1 if options.quick else options.rounds

    ways = dict(WAYS)
    if importlib.util.find_spec("tf_keras") is None:
        print("tf-keras is not installed here; left out: " + next(name for name, (_, keras) in ways.items() if keras == "legacy"))
        ways = {name: way for name, way in ways.items() if way[1] != "legacy"}
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds):
        for name in list(ways) if turn % 2 == 0 else list(reversed(ways)):
            taken[name].append(step_ms(*ways[name], options.steps))
    rows = []
    for name, values in taken.items():
        ratios = [mine / loop for mine, loop in zip(values, taken[LOOP], strict=True)]
        rows.append((name, spread(values, "{:.2f}"), spread(ratios, "{:.2f}")))
    table(("2 workers", f"ms a step, {rounds} runs: median (least to most)", "÷ loop, per round"), rows)
    print(f"mending Keras takes a task {spread([mending_ms() for _ in range(rounds)], '{:.1f}')} ms")
    print(load())


if __name__ == "__main__":
    main()
