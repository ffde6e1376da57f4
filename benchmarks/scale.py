"""The controller with 10, 100 and 1,000 hosts of 8 tasks each, which a few processes simulate (`programs/simulated_hosts.py`).

Everything but the hosts is orch's own: one `orch up` per number of hosts. Measured are the time, the CPU and the memory of this process
until every host has its order; the CPU and the memory while the tasks write 10 MB/s; 100 calls of `orch ps`; and the time from a failure
to the line that tells it, and to the report, which comes when all tasks have ended. The output is stored, and that of one task is shown
(``--only``): a terminal takes less than 10 MB/s.

The figures of the controller are of one process on one core. The simulated hosts need cores of their own: with less than two, the wall
times are those of the machine, and only the CPU times say something about orch.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Any

import psutil

from benchmarks.measure import PROGRAMS, environment, load, orch_command, table

TASKS = 8
SIMULATORS = 2
DEADLINE_S = 600.0
BYTES_PER_S = 10e6


class Simulator:
    """One process with a part of the hosts. What it tells goes into `told`, with its number."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.told: Queue[list[Any]] = Queue()
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAMS / "simulated_hosts.py"), str(socket)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        Thread(target=self._read, daemon=True).start()
        self.wait_for("listens")

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.told.put(json.loads(line))

    def command(self, *words: Any) -> None:
        """Send a command."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()

    def wait_for(self, what: str, times: int = 1) -> list[list[Any]]:
        """Wait until the simulator has told this so many times; what it has told of it."""
        found: list[list[Any]] = []
        until = time.monotonic() + DEADLINE_S
        while len(found) < times:
            try:
                said = self.told.get(timeout=1)
            except Empty:
                self.check()
                if time.monotonic() < until:
                    continue
                raise SystemExit(f"the hosts were never {what}") from None
            if said[0] == what:
                found.append(said)
            elif said[0] == "tried":
                self.tried += said[2]
        return found

    check: Callable[[], None] = staticmethod(lambda: None)
    """Raises `SystemExit` if nothing more can come."""
    tried = 0
    """How many ports the hosts of this process were asked to try."""

    def end(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(30)


class Launched:
    """`orch up` with simulated hosts, and its lines with the times at which they came."""

    def __init__(self, directory: Path, simulators: Sequence[Simulator], hosts: int) -> None:
        self.runs = directory / "runs"
        spec = {
            "command": "true",
            "strategy": "multi_worker_mirrored",
            "tasks": {"worker": hosts * TASKS},
            "backend": {"type": "ssh", "hosts": [f"host-{number}" for number in range(hosts)], "code": "unchecked"},
        }
        (directory / "orch.json").write_text(json.dumps(spec))
        sockets = ",".join(str(one.socket) for one in simulators)
        words = ["up", "--only", "worker-0", "-f", str(directory / "orch.json"), "--home", str(self.runs), "--python", sys.executable]
        self.began_at = time.time()
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAMS / "simulated_run.py"), sockets, *words],
            cwd=directory,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.seen = psutil.Process(self.process.pid)
        self.lines: Queue[tuple[float, str]] = Queue()
        self.last: list[str] = []
        Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.last = [*self.last[-20:], line]
            if line.startswith("orch:") or "first failure" in line:
                self.lines.put((time.time(), line))

    @property
    def cpu_s(self) -> float:
        """The CPU time that the process has used so far."""
        found = self.seen.cpu_times()
        return found.user + found.system

    @property
    def memory_mb(self) -> float:
        """The largest resident memory so far."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("VmHWM")) / 1000

    def stored(self) -> int:
        """How many bytes of the tasks' output are on the disk."""
        return sum(path.stat().st_size for path in self.runs.glob("runs/*/attempt-1/*/stdout.log"))

    def wait_for(self, word: str) -> float:
        """The time of the first line that contains this."""
        until = time.monotonic() + DEADLINE_S
        while time.monotonic() < until:
            try:
                at, line = self.lines.get(timeout=1)
            except Empty:
                self.check()
                continue
            if word in line:
                return at
        raise SystemExit(f"orch up never said {word!r}; its last lines:\n{''.join(self.last)}")

    def check(self) -> None:
        """Raise `SystemExit` if the process has ended."""
        if self.process.poll() is not None:
            raise SystemExit(f"orch up has ended with {self.process.returncode}; its last lines:\n{''.join(self.last)}")


@dataclass(frozen=True)
class Figures:
    """The figures of one number of hosts."""

    hosts: int
    start_s: float
    cpu_s: float
    memory_mb: float
    tried: int
    """How many ports of other hosts the hosts were asked to try, all together."""
    output_cpu: float
    """The part of one core that takes 10 MB of output in each second."""
    ps_s: float
    """The time of one `orch ps`."""
    told_s: float
    told_cpu_s: float
    """From the failure to its line; the second is CPU time of the controller."""
    verdict_s: float
    verdict_cpu_s: float
    """The same to the report."""
    end_cpu_s: float
    """The CPU time of the whole run, of the controller."""

    def row(self) -> list[str]:
        return [
            f"{self.hosts:,}",
            f"{self.start_s:.1f} s",
            f"{self.cpu_s:.2f} s",
            f"{self.cpu_s / self.hosts * 1000:.1f} ms",
            f"{self.memory_mb:.0f} MB",
            f"{self.tried:,}",
            f"{self.output_cpu:.0%}",
            f"{self.ps_s * 1000:.0f} ms",
            f"{self.told_s:.2f} s; {self.told_cpu_s:.2f} s",
            f"{self.verdict_s:.2f} s; {self.verdict_cpu_s:.2f} s",
            f"{self.end_cpu_s:.1f} s",
        ]


HEAD = ["hosts", "start", "CPU until ordered", "per host", "memory", "ports tried"]
HEAD += ["10 MB/s of output", "orch ps", "failure to its line; CPU", "to the report; CPU", "CPU of the run"]


@contextmanager
def simulators(directory: Path) -> Iterator[list[Simulator]]:
    """The processes that simulate all hosts."""
    with ExitStack() as stack:
        found: list[Simulator] = []
        for number in range(SIMULATORS):
            found.append(Simulator(directory / f"hosts-{number}"))
            stack.callback(found[-1].end)
        yield found


def measure(hosts: int, *, output_s: float, calls: int) -> Figures:
    """Run one cluster of so many hosts."""
    with tempfile.TemporaryDirectory() as name, simulators(Path(name)) as parts:
        launched = Launched(Path(name), parts, hosts)
        for part in parts:
            part.check = launched.check
        try:
            return _measure(launched, parts, hosts, output_s, calls)
        finally:
            launched.process.kill()
            launched.process.wait()


def _measure(launched: Launched, parts: Sequence[Simulator], hosts: int, output_s: float, calls: int) -> Figures:
    # Host number n, from 1, is a part of simulator n % SIMULATORS.
    shares = [len(range(1, hosts + 1)[(number - 1) % len(parts) :: len(parts)]) for number in range(len(parts))]
    ordered_at = max(part.wait_for("ordered", share)[-1][1] for part, share in zip(parts, shares, strict=True) if share)
    cpu_s = launched.cpu_s
    memory_mb = launched.memory_mb
    ps_s = _ps(launched, calls)  # the controller also reads the first events of the tasks meanwhile
    before_s = launched.cpu_s
    for part in parts:
        part.command("write", BYTES_PER_S / len(parts), output_s)
    written = sum(part.wait_for("written")[0][2] for part in parts)
    while launched.stored() < written:
        launched.check()
        time.sleep(0.2)
    output_cpu = (launched.cpu_s - before_s) / (written / BYTES_PER_S)
    memory_mb = max(memory_mb, launched.memory_mb)
    failing_cpu_s = launched.cpu_s
    parts[1 % len(parts)].command("fail")
    failed_at = parts[1 % len(parts)].wait_for("failed")[0][1]
    told_at = launched.wait_for("exit code 7")
    told_cpu_s = launched.cpu_s - failing_cpu_s
    said_at = launched.wait_for("first failure")
    end_cpu_s = launched.cpu_s
    tried = sum(part.tried for part in parts)
    start_s = ordered_at - launched.began_at
    told, said = (told_at - failed_at, told_cpu_s), (said_at - failed_at, end_cpu_s - failing_cpu_s)
    return Figures(hosts, start_s, cpu_s, memory_mb, tried, output_cpu, ps_s, *told, *said, end_cpu_s)


def _ps(launched: Launched, calls: int) -> float:
    began = time.monotonic()
    for _ in range(calls):
        done = subprocess.run(
            [*orch_command(), "ps", "--home", str(launched.runs)], env=environment(), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    return (time.monotonic() - began) / calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, nargs="+", metavar="N", help="in place of 10, 100 and 1,000")
    parser.add_argument("--quick", action="store_true", help="10 and 100 hosts, and shorter")
    given = parser.parse_args()
    sizes = given.hosts or ([10, 100] if given.quick else [10, 100, 1000])
    print(f"{TASKS} tasks on each host; {load()}\n")
    found = []
    for hosts in sizes:
        found.append(measure(hosts, output_s=2.0 if given.quick else 10.0, calls=5 if given.quick else 100))
        print(f"{hosts} hosts: measured", file=sys.stderr, flush=True)
    table(HEAD, [one.row() for one in found])


if __name__ == "__main__":
    main()
