"""A task's death to the words about it: N tasks wait, one dies with exit code 7, the others die at SIGTERM at once.

The dying task writes down the time just before `os._exit(7)`. The launcher's output is a pipe whose lines are stamped as they
arrive: the first line that names the death, and the verdict, which orch and torchrun print when the others have ended too
(honcho prints none). Lastly, the launcher's own end. The launchers take turns.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import PROGRAMS, environment, load, orch_command, spread, table

SCRIPT = PROGRAMS / "die.py"
DEADLINE_S = 120.0

Command = Callable[[Path, int], list[str]]


@dataclass(frozen=True)
class Launcher:
    """`named`, `verdict`: what the two lines that are waited for look like; None if there is no such line."""

    name: str
    command: Command
    named: re.Pattern[bytes]
    verdict: re.Pattern[bytes] | None


def orch(directory: Path, tasks: int) -> list[str]:
    # As a command: a fresh interpreter each, nothing is looked for in the script.
    script = [str(SCRIPT), str(directory), str(tasks)]
    return [*orch_command(), "up", "--no-python", sys.executable, "--workers", str(tasks), "--", *script]


def honcho(directory: Path, tasks: int) -> list[str]:
    script = shlex.join([sys.executable, str(SCRIPT), str(directory), str(tasks)])
    (directory / "Procfile").write_text("".join(f"w{index}: exec {script} {index}\n" for index in range(tasks)))
    return [sys.executable, "-m", "honcho", "start"]


def torchrun(program: str) -> Command:
    def command(directory: Path, tasks: int) -> list[str]:
        return [program, "--standalone", "--nproc-per-node", str(tasks), str(SCRIPT), str(directory), str(tasks)]

    return command


def launchers(torch_program: str | None) -> list[Launcher]:
    found = [
        Launcher("orch", orch, re.compile(rb"orch: worker-\d+ .*exit code 7"), re.compile(rb"first failure: worker-\d+ .*exit code 7"))
    ]
    if importlib.util.find_spec("honcho"):
        found.append(Launcher("honcho", honcho, re.compile(rb"stopped \(rc=7\)"), None))
    else:
        print("honcho: not measured, it is not installed here (pip install 'orch-tf[benchmarks]')")
    if torch_program:
        said = re.compile(rb"Root Cause \(first observed failure\)")
        found.append(Launcher("torchrun", torchrun(torch_program), re.compile(rb"failed \(exitcode: 7\)"), said))
    else:
        print("torchrun: not measured, there is none on PATH (--torchrun PATH names one)")
    return found


@dataclass(frozen=True)
class Death:
    """Milliseconds after the death."""

    named: float
    verdict: float
    ended: float


def die(launcher: Launcher, tasks: int) -> Death:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        process = subprocess.Popen(
            launcher.command(directory, tasks),
            cwd=directory,
            env=environment(PYTHONUNBUFFERED="1"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        try:
            lines = _stamped_lines(process)
            process.wait(DEADLINE_S)
            ended = time.time()
        finally:
            process.kill()
            process.wait()
        said = b"".join(line for _, line in lines).decode(errors="replace")
        if not (directory / "died").exists():
            raise SystemExit(f"{said}\n{launcher.name}: the task that was to die never started")
        died = float((directory / "died").read_text())

    def after(pattern: re.Pattern[bytes]) -> float:
        at = next((at for at, line in lines if pattern.search(line)), None)
        if at is None:
            raise SystemExit(f"{said}\n{launcher.name} never said {pattern.pattern.decode()!r}")
        return (at - died) * 1000

    named = after(launcher.named)
    return Death(named, after(launcher.verdict) if launcher.verdict else named, (ended - died) * 1000)


def _stamped_lines(process: subprocess.Popen[bytes]) -> list[tuple[float, bytes]]:
    assert process.stdout is not None
    with process.stdout:
        return [(time.time(), line) for line in process.stdout]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, nargs="+", default=[4, 32], metavar="N")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--torchrun", default=shutil.which("torchrun"), metavar="PATH")
    parser.add_argument("--torchrun-runs", type=int, default=3, help="it takes seconds to start and to end")
    parser.add_argument("--quick", action="store_true", help="5 runs, the slow ones once")
    options = parser.parse_args()
    runs = 5 if options.quick else options.runs
    few = 1 if options.quick else options.torchrun_runs

    print(load(), flush=True)
    known = launchers(options.torchrun)
    for tasks in options.tasks:
        taken: dict[str, list[Death]] = {launcher.name: [] for launcher in known}
        for turn in range(runs):
            for launcher in known:
                if launcher.name != "torchrun" or turn < few:
                    taken[launcher.name].append(die(launcher, tasks))
        rows = []
        for launcher in known:
            deaths = taken[launcher.name]
            verdict = spread([death.verdict for death in deaths], "{:.0f}") if launcher.verdict else "says none"
            ended = [death.ended for death in deaths]
            rows.append(
                (
                    f"{launcher.name}, {len(deaths)} runs",
                    spread([death.named for death in deaths], "{:.0f}"),
                    verdict,
                    spread(ended, "{:.0f}"),
                )
            )
        table((f"{tasks} tasks; ms after the death, median (least to most)", "it is named", "the verdict", "the launcher ends"), rows)
        slow = sum(death.verdict > 50 for death in taken["orch"])
        middle = statistics.median(death.verdict for death in taken["orch"])
        print(f"orch's verdict with {tasks} tasks: {middle:.0f} ms; over 50 ms in {slow} of {len(taken['orch'])} runs", flush=True)
    print(load())


if __name__ == "__main__":
    main()
