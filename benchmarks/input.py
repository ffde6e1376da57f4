"""Input: a step with `worker.distribute` beside the same by hand; and what each policy makes four workers read, measured beside predicted.

The two ways of a step take turns in the same two workers. What is read is counted by the kernel (rchar in /proc/PID/io: bytes that were
asked for by system calls, wherever they came from), and predicted by `orch shards --json`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measure import PROGRAMS, environment, load, orch_command, spread, table

SCRIPT = PROGRAMS / "input_steps.py"
FILES, WORKERS, BATCH = 16, 4, 256


def run(directory: Path, workers: int, *arguments: str, auto_shard: str = "") -> dict[str, Any]:
    """What each worker has measured, by its name."""
    asked = ["--auto-shard", auto_shard] if auto_shard else []
    command = [*orch_command(), "up", str(SCRIPT), "--workers", str(workers), *asked, "--", str(directory), *arguments]
    done = subprocess.run(command, cwd=directory, env=environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    return {path.stem: json.loads(path.read_text()) for path in sorted(directory.glob("worker-*.json"))}


def write_records(directory: Path, megabytes: int) -> list[str]:
    """Sixteen files of records of 4 KiB that are all alike."""
    from tests.tfrecords import record

    one, names = record(bytes(range(256)) * 16), []
    for index in range(FILES):
        path = directory / f"part-{index:02}.tfrecord"
        path.write_bytes(one * (megabytes * 256 // FILES))
        names.append(str(path))
    return names


def predicted(files: list[str], policy: str) -> dict[str, Any]:
    command = [*orch_command(), "shards", *files, "--workers", str(WORKERS), "--batch", str(BATCH), "--policy", policy, "--json"]
    found: dict[str, Any] = json.loads(subprocess.run(command, env=environment(), capture_output=True, text=True, check=False).stdout)
    return found


def compare_steps(steps: int, turns: int) -> None:
    taken: dict[str, list[float]] = {}
    for _ in range(turns):
        with tempfile.TemporaryDirectory() as directory:
            for name, values in run(Path(directory), 2, "steps", str(steps), auto_shard="data")["worker-0"].items():
                taken.setdefault(name, []).extend(values)
    ratios = [ours / hand for ours, hand in zip(taken["worker.distribute"], taken["by hand"], strict=True)]
    rows = [(name, spread(values, "{:.2f}"), "") for name, values in taken.items()]
    rows[0] = (*rows[0][:2], spread(ratios))
    table(("2 workers", f"ms a step, {len(ratios)} turns of {steps} steps: median (least to most)", "÷ by hand, turn by turn"), rows)


def compare_reading(megabytes: int) -> None:
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        files = write_records(directory, megabytes)
        measured = run(directory, WORKERS, "read", str(BATCH), *files)
        rows = []
        for policy in ("file", "data", "off"):
            plan, of_policy = predicted(files, policy), [worker[policy] for worker in measured.values()]
            read, planned = sum(one["bytes"] for one in of_policy), plan["read"]
            elements = {one["elements"] for one in of_policy}
            seconds = [one["seconds"] for one in of_policy]
            planned_elements = {share["elements"] for share in plan["shares"]}
            rows.append(
                (
                    policy,
                    f"{planned / 1e6:.1f}",
                    f"{read / 1e6:.1f}",
                    f"{read / planned:.3f}",
                    f"{sorted(planned_elements)}".strip("[]"),
                    f"{sorted(elements)}".strip("[]"),
                    spread(seconds, "{:.2f}"),
                )
            )
        elements_too = ("elements of a worker, predicted", "measured", "seconds for an epoch")
        table(("policy", "MB read, predicted", "measured", "÷ predicted", *elements_too), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=3, help="clusters of two workers, with six turns of each way")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--megabytes", type=int, default=512, help="of files, in all")
    parser.add_argument("--quick", action="store_true", help="one cluster, 100 steps, 64 MB")
    options = parser.parse_args()
    quick = options.quick
    compare_steps(100 if quick else options.steps, 1 if quick else options.turns)
    print()
    compare_reading(64 if quick else options.megabytes)
    print(load())


if __name__ == "__main__":
    main()
