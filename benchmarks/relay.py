"""The log relay: 8 processes write 100 MB of numbered lines together, under orch and under honcho.

For each: are all lines on the console, in order within their stream; how fast did they arrive there; and do the writers
slow down when nobody reads the console. The clock runs from the first writer's first line to the launcher's end. Then how long orch takes
for 160 MB that are not text, from its start to its end, beside text.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from benchmarks.measure import PROGRAMS, environment, orch_command, spread, table

SCRIPT = PROGRAMS / "write_lines.py"
WRITERS = 8
LINE_BYTES = len("writer 0 line 000000000 ") + 100 + 1
LINE = re.compile(rb"writer (\d) line (\d{9}) x{100}(?!x)")
DEADLINE_S = 300.0
BINARY_MB = 160
KINDS = {"text": "text", "third": "a third is not UTF-8", "random": "random bytes"}
PAUSE_S = 20.0
"""How long the console stays unread for a launcher whose writers do not get done."""

Command = Callable[[Path, int], list[str]]


def orch(directory: Path, lines: int) -> list[str]:
    script = [str(SCRIPT), str(directory / "times"), str(WRITERS), str(lines)]
    return [*orch_command(), "up", "--no-python", sys.executable, "--workers", str(WRITERS), "--", *script]


def honcho(directory: Path, lines: int) -> list[str]:
    script = shlex.join([sys.executable, str(SCRIPT), str(directory / "times"), str(WRITERS), str(lines)])
    (directory / "Procfile").write_text("".join(f"w{index}: {script} {index}\n" for index in range(WRITERS)))
    return [sys.executable, "-m", "honcho", "start"]


@dataclass(frozen=True)
class Relayed:
    """`writer_s`: how long each writer took to write, None if the pause held them up; `total_s`: until the launcher had ended."""

    writer_s: list[float] | None
    total_s: float
    found: str


def relay(command: Command, lines: int, paused: bool) -> Relayed:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "times").mkdir()
        console = directory / "console"
        with console.open("w+b") as file:
            process = subprocess.Popen(
                command(directory, lines),
                cwd=directory,
                env=environment(PYTHONUNBUFFERED=""),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if paused else file,
                stderr=subprocess.DEVNULL,
            )
            done = _read_late(process, file, directory) if paused else True
            process.wait(DEADLINE_S)
            ended = time.time()
        times = [json.loads(path.read_text()) for path in (directory / "times").glob("*.json")]
        if process.returncode or len(times) != WRITERS:
            raise SystemExit(f"{command.__name__} ended with exit code {process.returncode}; {len(times)} writers were done")
        total = ended - min(each["begun"] for each in times)
        return Relayed([each["ended"] - each["begun"] for each in times] if done else None, total, check(console, lines))


def _read_late(process: subprocess.Popen[bytes], file: IO[bytes], directory: Path) -> bool:
    """Leave the console unread until every writer is done, or for `PAUSE_S`; then read it. Returns whether they were done."""
    deadline = time.monotonic() + PAUSE_S
    done = False
    while not done and time.monotonic() < deadline:
        time.sleep(0.05)
        done = len(list((directory / "times").glob("*.json"))) == WRITERS
    assert process.stdout is not None
    with process.stdout as pipe:
        while block := pipe.read(1 << 20):
            file.write(block)
    return done


def show_bytes(kind: str, megabytes: float) -> float:
    """How many seconds `orch up` takes whose writers write so much of that kind (see ``write_bytes.py``) together."""
    script = [str(PROGRAMS / "write_bytes.py"), str(int(megabytes * 1e6 / WRITERS)), kind]
    with tempfile.TemporaryDirectory() as directory, open(Path(directory, "console"), "wb") as console:
        argv = [*orch_command(), "up", "--no-python", sys.executable, "--workers", str(WRITERS), "--", *script]
        begun = time.monotonic()
        subprocess.run(argv, cwd=directory, env=environment(), stdout=console, stderr=subprocess.DEVNULL, check=True, timeout=DEADLINE_S)
        return time.monotonic() - begun


def check(console: Path, lines: int) -> str:
    """What is wrong with the console's lines: ``all lines, in order`` if nothing is."""
    seen: list[list[int]] = [[] for _ in range(WRITERS)]
    with console.open("rb") as file:
        for line in file:
            if found := LINE.search(line):
                seen[int(found[1])].append(int(found[2]))
    missing = sum(lines - len(set(numbers)) for numbers in seen)
    disordered = sum(later <= earlier for numbers in seen for earlier, later in itertools.pairwise(numbers))
    if missing or disordered:
        return f"{missing} lines missing, {disordered} out of order"
    return "all lines, in order"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--megabytes", type=float, default=100)
    parser.add_argument("--quick", action="store_true", help="one round")
    options = parser.parse_args()
    rounds = 1 if options.quick else options.rounds
    lines = int(options.megabytes * 1e6 / WRITERS / LINE_BYTES)
    megabytes = WRITERS * lines * LINE_BYTES / 1e6

    commands: list[Command] = [orch]
    if importlib.util.find_spec("honcho"):
        commands.append(honcho)
    else:
        print("honcho: not measured, it is not installed here (pip install 'orch-tf[benchmarks]')")

    free: dict[str, list[Relayed]] = {command.__name__: [] for command in commands}
    paused: dict[str, list[Relayed]] = {command.__name__: [] for command in commands}
    for _ in range(rounds):
        for command in commands:
            free[command.__name__].append(relay(command, lines, paused=False))
            paused[command.__name__].append(relay(command, lines, paused=True))

    rows = []
    for name in free:
        rate = spread([megabytes / run.total_s for run in free[name]], "{:.1f}")
        said = ", ".join(sorted({run.found for run in (*free[name], *paused[name])}))
        rows.append((name, rate, said, slowdown(free[name], paused[name])))
    table((f"{WRITERS} writers, {megabytes:.0f} MB", "MB/s to the console", "on the console", "writers' time, console paused ÷ read"), rows)
    if len(commands) == 2:
        pairs = zip(free["honcho"], free["orch"], strict=True)
        print(f"throughput, orch ÷ honcho: {spread([theirs.total_s / mine.total_s for theirs, mine in pairs], '{:.2f}')}")

    shown = {kind: [show_bytes(kind, BINARY_MB) for _ in range(rounds)] for kind in KINDS}
    cells = (
        (KINDS[kind], spread(took, "{:.1f}"), spread([one / least for one, least in zip(took, shown["text"], strict=True)], "{:.1f}"))
        for kind, took in shown.items()
    )
    table((f"{WRITERS} writers, {BINARY_MB} MB, orch", "seconds", "÷ text"), list(cells))


def slowdown(free: list[Relayed], paused: list[Relayed]) -> str:
    """The ratio of the median writers' times, pair by pair."""
    ratios = []
    for read, unread in zip(free, paused, strict=True):
        if unread.writer_s is None or read.writer_s is None:
            return f"stands still (for the {PAUSE_S:.0f} s of the pause)"
        ratios.append(statistics.median(unread.writer_s) / statistics.median(read.writer_s))
    return spread(ratios, "{:.2f}")


if __name__ == "__main__":
    main()
