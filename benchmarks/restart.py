"""A worker's death to the next step of the training: orch beside TensorFlow alone, torchrun, and a fresh start by hand.

One worker of N kills itself with SIGKILL after its first all-reduces. Under ``orch up --max-restarts 1`` and under ``torchrun
--max-restarts 1`` the cluster starts again; the time is that from the death to the last worker's next all-reduce. orch has its own
defaults: the first restart comes at once. torchrun gets ``TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1``, without which its second attempt can
read the first one's addresses and then fails or hangs (pytorch/pytorch#135712; here in every run, PyTorch 2.13). TensorFlow alone (a
shell loop) does not start again: what is measured is when the first of the others fails, if it does within a minute. The base of the
ratios is a fresh start of the same cluster by a shell loop. Under ParameterServerStrategy the others go on: two times, to the next
step, and to the next step on the worker that was lost.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from benchmarks import startup
from benchmarks.measure import PROGRAMS, environment, free_addresses, load, orch_command, spread, table

DEADLINE_S = 180.0
LIMIT_S = 60.0
"""How long after the death is waited; torchrun gives its workers 30 s to end."""
OPTIONS = ("--max-restarts", "1", "--quiet")

Command = Callable[[Path, int], list[str]]


def orch(directory: Path, workers: int) -> list[str]:
    return [*orch_command(), "up", str(PROGRAMS / "lose_one.py"), "--workers", str(workers), *OPTIONS, "--", str(directory)]


def orch_served(directory: Path, workers: int) -> list[str]:
    script = str(PROGRAMS / "lose_one_ps.py")
    return [*orch_command(), "up", script, "--workers", str(workers), "--ps", "1", *OPTIONS, "--", str(directory)]


def torchrun(program: str) -> Command:
    def command(directory: Path, workers: int) -> list[str]:
        options = ["--standalone", "--nproc-per-node", str(workers), "--max-restarts", "1"]
        return [program, *options, str(PROGRAMS / "lose_one_torch.py"), str(directory)]

    return command


def shell_loop(directory: Path, workers: int) -> list[str]:
    addresses = free_addresses(workers)
    configs = [json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}) for index in range(workers)]
    script = shlex.join([sys.executable, str(PROGRAMS / "lose_one.py"), str(directory)])
    return ["bash", "-c", f"for config in {shlex.join(configs)}; do TF_CONFIG=$config {script} & done; wait"]


def measure(command: Command, workers: int, files: int, key: str = "reduced", pattern: str = "[0-9]*.json") -> list[float]:
    """Seconds from the death to what `files` files say under `key`; none if that is not there within the time."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        env = environment(TF_CPP_MIN_LOG_LEVEL="2", TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
        said = directory / "said"
        with said.open("wb") as output:
            process = subprocess.Popen(
                command(directory, workers),
                cwd=directory,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            found = _wait(directory, files, pattern, process)
            if not found:
                return []
            died = json.loads((directory / "died").read_text())
            return [max(json.loads(path.read_text())[one] for path in found) - died for one in key.split()]
        finally:
            for one in startup.family(process.pid):
                with suppress(psutil.NoSuchProcess):
                    one.kill()
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait(directory: Path, files: int, pattern: str, process: subprocess.Popen[bytes]) -> list[Path]:
    deadline = time.monotonic() + DEADLINE_S
    while len(found := list(directory.glob(pattern))) < files:
        died = directory / "died"
        overdue = died.exists() and time.time() - json.loads(died.read_text()) > LIMIT_S
        if overdue or time.monotonic() > deadline or process.poll() not in (None, 0):
            return []
        time.sleep(0.02)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=4, metavar="N")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--torchrun", default=shutil.which("torchrun"), metavar="PATH")
    parser.add_argument("--quick", action="store_true", help="one round")
    options = parser.parse_args()
    rounds, workers = (1 if options.quick else options.rounds), options.workers
    if options.torchrun is None:
        print("torchrun: not measured, there is none on PATH (--torchrun PATH names one)")

    print(load(), flush=True)
    taken: dict[str, list[float]] = {}
    for _ in range(rounds):
        fresh = startup.start(startup.Way(startup.shell_loop), workers).wall_s
        taken.setdefault("a fresh start by shell loop", []).append(fresh)
        taken.setdefault("orch, multi_worker_mirrored", []).extend(measure(orch, workers, workers))
        served = measure(orch_served, workers, 1, "stepped reduced")
        for name, value in zip(("next step", "lost worker's next step"), served, strict=False):
            taken.setdefault(f"orch, parameter_server: {name}", []).append(value)
        if options.torchrun:
            taken.setdefault("torchrun, gloo", []).extend(measure(torchrun(options.torchrun), workers, workers))
        alone = measure(shell_loop, workers, 1, "at", "[0-9]*.failed")
        taken.setdefault("TensorFlow alone: until a peer notices", []).extend(alone)
    base = statistics.median(taken["a fresh start by shell loop"])
    rows = [
        (name, spread(values, "{:.2f}"), f"{statistics.median(values) / base:.2f}") if values else (name, f"not in {LIMIT_S:g} s", "-")
        for name, values in taken.items()
    ]
    table((f"{workers} workers, one killed: seconds to", "median (least to most)", "÷ fresh start"), rows)
    print(load())


if __name__ == "__main__":
    main()
