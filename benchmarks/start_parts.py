"""Where the time of a start goes: one task that does nothing, part by part, in the controller, the agent and the task.

A part ends where `programs/trace_start.py` says so. Its time is the time since the part before it in the same process, on the clock and of
this process's CPU; both grow by some percent, for the tracing itself takes time. The three processes run side by side.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import PROGRAMS, ROOT, environment, table


@dataclass(frozen=True)
class Part:
    """One part of a start. `at`: when it had ended, after the start of orch. Times are in milliseconds."""

    process: str
    name: str
    at: float
    wall: float
    cpu: float
    imports: float
    modules: int


def start_once() -> list[Part]:
    """The parts of one start, in the order in which they ended."""
    with tempfile.TemporaryDirectory() as directory:
        notes, python, script = (Path(directory, name) for name in ("notes", "python", "script.py"))
        python.write_text(f'#!/bin/sh\nexec {sys.executable} {PROGRAMS}/trace_start.py {notes} "$0" "$@"\n')
        python.chmod(0o700)
        script.write_text("")
        words = [python, ROOT / "orchestrator" / "__main__.py", "up", script, "--workers", "1", "--quiet", "--python", python]
        began = time.time()
        env = environment(XDG_RUNTIME_DIR=directory)  # no warm process but one of this directory, and there is none
        done = subprocess.run(
            list(map(str, words)), cwd=directory, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        ended = time.time()
        if done.returncode:
            raise SystemExit(f"the traced start ended with {done.returncode}:\n{done.stderr}")
        lines = sorted(notes.read_text().splitlines())
    pids = list(dict.fromkeys(line.split()[1] for line in lines))
    if len(pids) != 3:
        raise SystemExit(f"{len(pids)} processes were traced, and not a controller, an agent and a task")
    names = dict(zip(pids, ("controller", "agent", "task"), strict=True))
    last: dict[str, tuple[float, float, float]] = {}
    parts: list[Part] = []
    for line in lines:
        at, pid, cpu_s, imported_s, modules, name = line.split(" ", 5)
        now = (float(at), float(cpu_s), float(imported_s))
        before = last.get(pid, (began if not parts else now[0] - now[1], 0.0, 0.0))
        wall, cpu, imports = ((one - other) * 1000 for one, other in zip(now, before, strict=True))
        parts.append(Part(names[pid], name, (now[0] - began) * 1000, wall, cpu, imports, int(modules)))
        last[pid] = now
    return [*parts, Part("controller", "process is gone", (ended - began) * 1000, (ended - last[pids[0]][0]) * 1000, 0.0, 0.0, 0)]


def print_parts(runs: int) -> None:
    """The medians of so many starts, as one table. The first start, in which files are read for the first time, is left out."""
    start_once()
    starts = [start_once() for _ in range(runs)]
    same_parts: dict[tuple[str, str, int], list[Part]] = {}
    for start in starts:
        seen: Counter[tuple[str, str]] = Counter()
        for part in start:
            seen[part.process, part.name] += 1
            same_parts.setdefault((part.process, part.name, seen[part.process, part.name]), []).append(part)
    rows = []
    for (process, name, _), same in same_parts.items():
        found = {key: statistics.median(getattr(part, key) for part in same) for key in ("at", "wall", "cpu", "imports", "modules")}
        cells = [f"{found[key]:.1f}" if abs(found[key]) >= 0.05 else "-" for key in ("at", "wall", "cpu", "imports")]
        rows.append((process, name, *cells, f"{found['modules']:.0f}" if found["modules"] else "-"))
    table(("process", "part", "ends at (ms)", "took (ms)", "CPU (ms)", "imports (ms)", "modules by then"), rows)
    for process in ("controller", "agent", "task"):
        of_all = [sum(part.cpu for part in start if part.process == process) for start in starts]
        print(f"{process}: {statistics.median(of_all):.0f} ms of CPU (least {min(of_all):.0f})")
