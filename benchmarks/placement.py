"""Summing up placement logs: a million lines by `orch placement`, beside `grep -c` and an `awk` that counts op and device.

The log is what TensorFlow 2.21 writes, repeated: the samples of tests/insight/placement/logs. CPU time is user plus system, from
the kernel; memory is the peak of orch's own process (ru_maxrss), for a log and for one a tenth as long.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import statistics
import subprocess
import tempfile
from pathlib import Path

from benchmarks.measure import ROOT, environment, load, orch_command, spread, table

SAMPLE = ROOT / "tests" / "insight" / "placement" / "logs" / "tf2.21-two-cpus.stderr.log"
AWK = '/Executing op/ { n = split($0, word, " "); count[word[n - 3] " " word[n]]++ } END { for (key in count) print count[key], key }'
MEASURED = """
import resource, sys
from orchestrator.cli import main
try:
    main(["placement", "--json"])
finally:
    sys.stdout.flush()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
"""


def make_run(directory: Path, lines: int) -> Path:
    """A run of one task that has logged nothing yet, made by orch itself; then its stderr gets `lines` lines. Returns the log."""
    (directory / "nothing.py").write_text("pass\n")
    command = [*orch_command(), "up", "nothing.py", "--strategy", "none"]
    subprocess.run(command, cwd=directory, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, check=True)
    log = directory / ".orch" / "latest" / "attempt-1" / "worker-0" / "stderr.log"
    sample = SAMPLE.read_bytes().splitlines(keepends=True)
    with log.open("wb") as file:
        for start in range(0, lines, len(sample)):
            file.writelines(sample[: lines - start])
    return log


def cpu_seconds(command: list[str], directory: Path) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    # Into a pipe: with /dev/null for its output, grep stops at the first hit.
    subprocess.run(command, cwd=directory, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def peak_mb(directory: Path) -> float:
    python = shutil.which("python", path=str(Path(orch_command()[0]).parent)) or "python3"
    command = [python, "-c", MEASURED]
    done = subprocess.run(command, cwd=directory, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, check=True)
    return int(done.stderr.split()[-1]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="2 runs")
    options = parser.parse_args()
    runs = 2 if options.quick else options.runs
    print(load(), flush=True)
    with tempfile.TemporaryDirectory() as short_name, tempfile.TemporaryDirectory() as name:
        make_run(Path(short_name), options.lines // 10)
        log = make_run(Path(name), options.lines)
        commands = {
            "grep -c": ["grep", "-c", "Executing op", str(log)],
            "awk, op and device": ["awk", AWK, str(log)],
            "orch placement": [*orch_command(), "placement"],
        }
        taken: dict[str, list[float]] = {what: [] for what in commands}
        for _ in range(runs):
            for what, command in commands.items():
                taken[what].append(cpu_seconds(command, Path(name)))
        base = statistics.median(taken["awk, op and device"])
        rows = [(what, spread(values, "{:.2f}"), f"{statistics.median(values) / base:.2f}") for what, values in taken.items()]
        head = f"{options.lines:,} lines, {log.stat().st_size / 1e6:.0f} MB"
        table((head, f"CPU seconds, median of {runs} (least to most)", "÷ awk"), rows)
        short, long = peak_mb(Path(short_name)), peak_mb(Path(name))
    print(f"peak memory of orch placement: {short:.0f} MB for {options.lines // 10:,} lines, {long:.0f} MB for {options.lines:,}")


if __name__ == "__main__":
    main()
