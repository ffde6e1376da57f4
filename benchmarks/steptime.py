"""A step of training under ``orch up`` beside the same step in two processes started by hand with TF_CONFIG.

The script times its own steps, so that nobody's start-up counts. The two ways take turns, in changing order, and each
pair of neighbours gives one ratio. orch shares the cores out among the tasks; the processes started by hand get the same
thread settings, and in a third run TensorFlow's defaults (every task takes every core).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measure import PROGRAMS, environment, free_addresses, orch_command, spread, table

SCRIPT = PROGRAMS / "train_steps.py"
WORKERS = 2


def under_orch(directory: Path, steps: int) -> dict[str, Any]:
    command = [*orch_command(), "up", str(SCRIPT), "--workers", str(WORKERS), "--", str(directory), str(steps)]
    return _train(directory, [command], [environment()])


def by_hand(directory: Path, steps: int, threads: dict[str, str]) -> dict[str, Any]:
    addresses = free_addresses(WORKERS)
    tasks = [{"type": "worker", "index": index} for index in range(WORKERS)]
    configs = [json.dumps({"cluster": {"worker": addresses}, "task": task}) for task in tasks]
    command = [sys.executable, str(SCRIPT), str(directory), str(steps)]
    return _train(directory, [command] * WORKERS, [environment(TF_CONFIG=config, **threads) for config in configs])


def _train(directory: Path, commands: list[list[str]], environments: list[dict[str, str]]) -> dict[str, Any]:
    """Run the commands together to their end and return what worker 0 has measured."""
    said = directory / "said"
    processes = []
    with said.open("wb") as output:
        for command, env in zip(commands, environments, strict=True):
            started = subprocess.Popen(command, cwd=directory, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
            processes.append(started)
    try:
        codes = [process.wait(300) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    if any(codes):
        raise SystemExit(f"{said.read_text(errors='replace')}\nthe training failed: exit codes {codes}")
    result: dict[str, Any] = json.loads((directory / "0.json").read_text())
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--quick", action="store_true", help="one pair")
    options = parser.parse_args()
    pairs = 1 if options.quick else options.pairs

    taken: dict[str, list[float]] = {"orch": [], "by hand": [], "by hand, default threads": []}
    threads: dict[str, str] = {}
    for turn in range(pairs):
        names = list(taken) if turn % 2 == 0 else list(reversed(taken))
        for name in names:
            with tempfile.TemporaryDirectory() as directory:
                if name == "orch":
                    result = under_orch(Path(directory), options.steps)
                    threads = result["threads"]
                else:
                    result = by_hand(Path(directory), options.steps, threads if name == "by hand" else {})
            taken[name].append(result["median_s"] * 1000)

    def ratios(name: str) -> str:
        return spread([mine / theirs for mine, theirs in zip(taken["orch"], taken[name], strict=True)])

    rows = [(name, spread(values, "{:.2f}"), ratios(name)) for name, values in taken.items()]
    table((f"{WORKERS} workers", f"ms a step, {pairs} runs: median (least to most)", "orch ÷ this, per pair"), rows)
    print(f"threads under orch and by hand: {threads or 'defaults'}")


if __name__ == "__main__":
    main()
