"""CPU time of ``orch --help`` beside that of an interpreter that does nothing, and of ``torchrun --help`` where torch is installed.

CPU time is user plus system time of the process and its children, from the kernel, so that a busy machine does not
change what is measured. The commands take turns.
"""

from __future__ import annotations

import argparse
import importlib.util
import resource
import statistics
import subprocess
import sys

from benchmarks.measure import environment, orch_command, spread, table


def children_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def cpu_seconds(command: list[str]) -> float:
    before = children_cpu()
    subprocess.run(command, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)
    return children_cpu() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--quick", action="store_true", help="5 runs")
    options = parser.parse_args()
    runs = 5 if options.quick else options.runs

    bare = "python -c pass"
    commands = {bare: [sys.executable, "-c", "pass"], "orch --help": [*orch_command(), "--help"]}
    if importlib.util.find_spec("torch"):
        commands["torchrun --help"] = [sys.executable, "-m", "torch.distributed.run", "--help"]
    for command in commands.values():
        cpu_seconds(command)  # Compiles what is not compiled yet.

    taken: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(runs):
        for name, command in commands.items():
            taken[name].append(cpu_seconds(command))

    base = statistics.median(taken[bare])
    rows = [(name, spread(values), f"{statistics.median(values) / base:.1f}") for name, values in taken.items()]
    table(("command", f"CPU seconds, median of {runs} (least to most)", "times the bare interpreter"), rows)
    if "torchrun --help" not in commands:
        print("torchrun: not measured, torch is not installed here")


if __name__ == "__main__":
    main()
