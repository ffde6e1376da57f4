"""What the benchmarks share: how orch is started, and how a figure is printed."""

from __future__ import annotations

import os
import shutil
import socket
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ROOT / "benchmarks" / "programs"


def orch_command() -> list[str]:
    """The installed `orch` of this interpreter, or the checkout's if none is installed."""
    installed = shutil.which("orch", path=os.path.dirname(sys.executable))
    return [installed] if installed else [sys.executable, "-m", "orchestrator"]


def environment(**extra: str) -> dict[str, str]:
    """This process's environment without settings for orch or TensorFlow's cluster, and with the checkout importable.

    Python may keep what it compiles, as it does for whatever is installed.
    """
    unset = ("TF_CONFIG", "PYTHONDONTWRITEBYTECODE")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ORCH_") and name not in unset}
    return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), kept.get("PYTHONPATH")))), **extra}


def spread(values: Sequence[float], form: str = "{:.3f}") -> str:
    """``median (least to most)``."""
    median, least, most = (form.format(value) for value in (statistics.median(values), min(values), max(values)))
    return f"{median} ({least} to {most})"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a Markdown table."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    for row in (head, ["-" * width for width in widths], *rows):
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |", flush=True)


def free_addresses(count: int) -> list[str]:
    """Addresses on this machine that were free a moment ago, which is all that a start by hand has."""
    with ExitStack() as stack:
        held = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [f"127.0.0.1:{server.getsockname()[1]}" for server in held]


def fill(path: Path, target: str, text: str) -> None:
    """Replace what ``make TARGET`` has written into a document, which stands between two marks."""
    begin, end = f"<!-- written by `make {target}` -->\n", f"<!-- end of what `make {target}` writes -->\n"
    before, _, rest = path.read_text(encoding="utf-8").partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise SystemExit(f"{path} has no place for what make {target} writes: the lines {begin.strip()} and {end.strip()}")
    path.write_text(f"{before}{begin}{text}{end}{after}", encoding="utf-8")


def load() -> str:
    """What else the machine was doing, for whoever reads the figures."""
    return f"load average {os.getloadavg()[0]:.2f} on {os.cpu_count()} cores, {time.strftime('%Y-%m-%d %H:%M')}"
