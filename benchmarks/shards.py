"""`orch shards`: its planner alone, and the whole command on many small TFRecord files and on a few large ones.

CPU time is user plus system, from the kernel; memory is the peak of the process (ru_maxrss). The files are in the page cache. A child that
does nothing but import the command is the first row: what is above it is the work.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.measure import environment, load, spread, table
from tests.tfrecords import record

MEASURED = """
import json, resource, sys, time
{prepare}
began = time.perf_counter()
{work}
taken = time.perf_counter() - began
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps([taken, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024]), file=sys.stderr)
"""
IMPORT = "from orchestrator.cli.commands import shards_command"
PLAN = "from orchestrator.model.planning.sharding import File, Sharding, Tally, batches, epoch"
COMMAND = """
from orchestrator.cli import main
try:
    main(["shards", {pattern!r}, "-n", "8", "-r", "8", "-b", "1024", "--json"])
except SystemExit:
    pass
"""


def measure(prepare: str, work: str, cwd: str) -> list[float]:
    """Seconds, seconds of CPU, peak megabytes of a process of its own."""
    command = [sys.executable, "-c", MEASURED.format(prepare=prepare, work=work)]
    done = subprocess.run(command, cwd=cwd, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, check=True, text=True)
    figures: list[float] = json.loads(done.stderr.splitlines()[-1])
    return figures


def plan_files(count: int) -> str:
    return f"""
found = Tally(8)
for number in range({count}):
    found.add(File(f"data/part-{{number:06}}.tfrecord", 1 << 20, number % 1000))
assert epoch(Sharding("file", workers=8, replicas=8, batch=1024), found).steps
"""


def plan_steps(elements: int) -> str:
    return f"""
sharding = Sharding("file", workers=8, replicas=8, batch=1024)
assert sum(1 for step in batches(sharding, {elements}, 0))
"""


def write_files(directory: Path, small: int, large: int) -> None:
    """`small` files of 20 records of 100 bytes, and two of `large` records: of 200 bytes, and of 100 kB."""
    few = record(b"x" * 100) * 20
    (directory / "small").mkdir()
    for number in range(small):
        (directory / "small" / f"part-{number:06}.tfrecord").write_bytes(few)
    for name, one, count in (("short", record(b"x" * 200), large), ("long", record(b"x" * 100_000), large // 100)):
        with open(directory / f"{name}.tfrecord", "wb") as file:
            for _ in range(count):
                file.write(one)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="2 runs, 20,000 files, 500,000 records")
    options = parser.parse_args()
    files, records, runs = (20_000, 500_000, 2) if options.quick else (options.files, options.records, options.runs)
    print(load(), flush=True)
    with tempfile.TemporaryDirectory() as name:
        write_files(Path(name), files, records)
        cases = {
            "nothing: the imports of the command": (IMPORT, "pass"),
            f"planner: {files:,} files, the sums of an epoch": (PLAN, plan_files(files)),
            "planner: 1,000,000 elements of a worker, step by step": (PLAN, plan_steps(1_000_000)),
            f"command: {files // 10:,} files of 20 records": ("", COMMAND.format(pattern="small/*0.tfrecord")),
            f"command: {files:,} files of 20 records": ("", COMMAND.format(pattern="small/*")),
            f"command: 1 file of {records:,} records of 200 bytes": ("", COMMAND.format(pattern="short.tfrecord")),
            f"command: 1 file of {records // 100:,} records of 100 kB": ("", COMMAND.format(pattern="long.tfrecord")),
        }
        rows = []
        for what, (prepare, work) in cases.items():
            taken = [measure(prepare, work, name) for _ in range(runs)]
            seconds, cpu, memory = zip(*taken, strict=True)
            rows.append((what, spread(seconds, "{:.2f}"), spread(cpu, "{:.2f}"), f"{max(memory):.0f}"))
        table(("", f"seconds, median of {runs} (least to most)", "CPU seconds", "peak MB"), rows)


if __name__ == "__main__":
    main()
