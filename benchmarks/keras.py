"""A step of Keras's `fit` with several workers: Keras 3 as orch mends it, Keras 2, and a loop of one's own, in turns; the cost of mending;
the first and the second call of `fit`, `evaluate` and `predict` with several steps in one execution.

All are the same model on the same data in a cluster of two workers under ``orch up``. The time of a core that a step uses tells what is
computed, also on a machine with other work; the time of a step includes the waiting for the other worker. What the mends cost a task is
the time of what it does about Keras once that is imported, in processes of their own. With ``--beside TREE``, another tree of orch, such as
one before its mends, takes its turns too.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.measure import PROGRAMS, environment, load, orch_command, spread, table

WAYS: dict[str, tuple[str, ...]] = {
    "fit, data that end": ("fit", "ends"),
    "fit, endless data": ("fit", "whole"),
    "fit, endless data whose batches may have any size": ("fit", "open"),
    "fit, data that end, Keras 2": ("fit", "ends", "--keras", "legacy"),
    "a loop, data that end, keras.exact": ("loop", "ends", "--set", "keras.exact=true"),
    "a loop, data that end": ("loop", "ends"),
}
"""What each way gives the program, and `orch up`. The others are compared with the last."""
CALLS = {"one process": "one", "MirroredStrategy, 2 CPUs": "mirrored", "2 workers": "workers"}
"""The ways in which the calls are measured, and what the program is given."""
EXECUTIONS = (1, 10, 50)
"""Steps in one execution."""
OLDER = " in the other tree"
MENDING = """
import os, time
os.environ["TF_CONFIG"] = "{}"
import keras
from worker.task import keras as ours
since = time.perf_counter()
ours.apply_soon({"mode": "auto", "report": True}, "")
print(time.perf_counter() - since)
"""


def step_ms(way: tuple[str, ...], steps: int, tree: str = "") -> tuple[float, float]:
    """Milliseconds of a step, and of a core for it: those of the slower worker, and the mean of both. `tree`: another one than this."""
    how, form, *options = way
    with tempfile.TemporaryDirectory() as directory:
        orch = [sys.executable, "-m", "orchestrator"] if tree else orch_command()
        given = [directory, str(steps), how, form]
        command = [*orch, "up", str(PROGRAMS / "keras_steps.py"), "--workers", "2", *options, "--", *given]
        env = environment()
        if tree:
            env["PYTHONPATH"] = os.pathsep.join((tree, env["PYTHONPATH"]))
        done = subprocess.run(command, cwd=directory, env=env, capture_output=True, text=True, timeout=300)
        if done.returncode:
            raise SystemExit(f"{done.stdout}{done.stderr}\nthe training failed: exit code {done.returncode}")
        told = [json.loads((Path(directory) / f"{index}.json").read_text()) for index in range(2)]
    return max(each["step_s"] for each in told) * 1000, sum(each["cpu_s"] for each in told) / len(told) * 1000


def calls(way: str, batches: int, tree: str = "") -> dict[str, dict[str, list[list[float]]]]:
    """For each call and number of steps in one execution: seconds, and of a core, of the first and the second turn."""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, str(PROGRAMS / "keras_calls.py")]
        if way == "workers":
            orch = [sys.executable, "-m", "orchestrator"] if tree else orch_command()
            command = [*orch, "up", command[1], "--workers", "2", "--"]
        env = environment()
        if tree:
            env["PYTHONPATH"] = os.pathsep.join((tree, env["PYTHONPATH"]))
        command += [directory, way, str(batches), *map(str, EXECUTIONS)]
        done = subprocess.run(command, cwd=directory, env=env, capture_output=True, text=True, timeout=600)
        if done.returncode:
            raise SystemExit(f"{done.stdout}{done.stderr}\nthe calls failed: exit code {done.returncode}")
        found: dict[str, dict[str, list[list[float]]]] = json.loads((Path(directory) / "calls.json").read_text())
        return found


def tell_of_calls(batches: int, tree: str) -> None:
    ways = {name: (way, "") for name, way in CALLS.items()}
    if tree:
        ways["2 workers" + OLDER] = ("workers", tree)
    found = {name: calls(way, batches, of_tree) for name, (way, of_tree) in ways.items()}
    rows = []
    for call in ("fit", "evaluate", "predict"):
        for steps in EXECUTIONS:
            turns = [found[name][call][str(steps)] for name in ways]
            cells = ["; ".join(f"{seconds:.2f} ({core:.2f})" for seconds, core in each) or "fails" for each in turns]
            rows.append((call, str(steps), *cells))
    table(("call", "steps per execution", *(f"{name}: s of the first; second call (of a core)" for name in ways)), rows)


def mending_ms() -> float:
    done = subprocess.run([sys.executable, "-c", MENDING], env=environment(), capture_output=True, text=True, check=True, timeout=300)
    return float(done.stdout) * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--quick", action="store_true", help="one round")
    parser.add_argument("--batches", type=int, default=100, help="batches of 32 rows in the calls that are measured")
    parser.add_argument(
        "--beside", default="", metavar="TREE", help="the directory of another tree of orch, in which fit and the calls take turns too"
    )
    parser.add_argument("--only", default="", help="ways whose name has this text, and the last")
    options = parser.parse_args()
    rounds = 1 if options.quick else options.rounds

    *_, last = WAYS
    ways = {name: (*way,) for name, way in WAYS.items() if options.only in name or name == last}
    if importlib.util.find_spec("tf_keras") is None:
        print("tf-keras is not installed here; left out: " + ", ".join(name for name, way in ways.items() if "legacy" in way))
        ways = {name: way for name, way in ways.items() if "legacy" not in way}
    if options.beside:
        ways = {**{name + OLDER: way for name, way in ways.items() if len(way) == 2 and name != last}, **ways}
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for turn in range(rounds):
        for name in list(ways) if turn % 2 == 0 else list(reversed(ways)):
            taken[name].append(step_ms(ways[name], options.steps, options.beside if name.endswith(OLDER) else ""))
    rows = []
    for name, values in taken.items():
        cells = []
        for place in range(2):
            of_last = [each[place] for each in taken[last]]
            own = [each[place] for each in values]
            cells += [spread(own, "{:.2f}"), spread([mine / loop for mine, loop in zip(own, of_last, strict=True)], "{:.2f}")]
        rows.append((name, *cells))
    head = (
        "2 workers",
        f"ms a step, {rounds} runs: median (least to most)",
        "÷ loop, per round",
        "ms of a core for a step",
        "÷ loop, per round",
    )
    table(head, rows)
    for name in [name for name in ways if name + OLDER in ways]:
        ratios = [mine[1] / other[1] for mine, other in zip(taken[name], taken[name + OLDER], strict=True)]
        print(f"{name}, core time ÷ that in the other tree: {spread(ratios)}")
    tell_of_calls(options.batches, options.beside)
    print(f"mending Keras takes a task {spread([mending_ms() for _ in range(rounds)], '{:.1f}')} ms")
    print(load())


if __name__ == "__main__":
    main()
