"""Hosts with ssh, on the tests' own bed (network namespaces of this machine; root only): figures of orch's own part.

Three hosts, from nothing to the first all-reduce in every worker, beside a shell loop of ``ssh``. A task that writes 100 MB on a
host, until all of it is in the run directory, beside ``ssh HOST cat``. A run of 100 agents that do nothing: what its controller costs.
All hosts share this machine's cores, so hosts of their own would show a smaller share for orch.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from benchmarks.measure import PROGRAMS, environment, load, orch_command, spread, table
from tests.bed import Bed, made_bed, missing

DEADLINE_S = 240.0
REDUCE = PROGRAMS / "first_reduce.py"


def orch_up(bed: Bed, hosts: str, *more: str) -> list[str]:
    return [*orch_command(), "up", "-H", hosts, "--set", f"backend.ssh={json.dumps(bed.ssh)}", *more]


# --- start --------------------------------------------------------------------------------------


def by_orch(bed: Bed, directory: Path, each: int) -> list[list[str]]:
    hosts = ",".join(f"{name}:{each}" for name in bed.hosts)
    return [orch_up(bed, hosts, str(REDUCE), "--quiet", "--", str(directory))]


def by_loop(bed: Bed, directory: Path, each: int) -> list[list[str]]:
    """What one writes by hand: a TF_CONFIG for each worker, an ssh for each worker."""
    places = [(host, 41000 + number) for host in bed.hosts.values() for number in range(each)]
    cluster = {"worker": [f"{host.address}:{port}" for host, port in places]}
    commands = []
    for index, (host, _) in enumerate(places):
        config = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}})
        remote = f"TF_CONFIG={shlex.quote(config)} TF_CPP_MIN_LOG_LEVEL=2 {sys.executable} {REDUCE} {directory}"
        commands.append([*bed.ssh, host.name, remote])
    return commands


def start(bed: Bed, way: Callable[[Bed, Path, int], list[list[str]]], each: int) -> float:
    """Seconds until the last worker's first all-reduce."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        began = time.time()
        env = environment(TF_CPP_MIN_LOG_LEVEL="2")
        none = subprocess.DEVNULL
        commands = way(bed, directory, each)
        started = [subprocess.Popen(command, cwd=directory, env=env, stdin=none, stdout=none, stderr=none) for command in commands]
        codes = [process.wait(DEADLINE_S) for process in started]
        times: list[float] = [json.loads(path.read_text())["reduced"] for path in directory.glob("[0-9]*.json")]
        if any(codes) or len(times) != each * len(bed.hosts):
            raise SystemExit(f"{way.__name__}: exit codes {codes}, {len(times)} workers were done")
        return max(times) - began


# --- relay --------------------------------------------------------------------------------------


def relay(bed: Bed, megabytes: int) -> tuple[float, float]:
    """Seconds for `megabytes` to be here: under orch, and under ``ssh cat``."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        source = directory / "source"
        with source.open("wb") as file:
            for _ in range(megabytes):
                file.write(os.urandom(1_000_000 // 2).hex().encode())
        program = directory / "write.sh"
        program.write_text(f"#!/bin/sh\ndate +%s.%N >{directory}/began\nexec cat {source}\n")
        program.chmod(0o755)
        command = orch_up(bed, "hostA", "--no-python", str(program), "--quiet")
        subprocess.run(command, cwd=directory, env=environment(), check=True, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        arrived = (directory / ".orch/latest/attempt-1/worker-0/stdout.log").stat()
        if arrived.st_size != source.stat().st_size:
            raise SystemExit("orch lost bytes")
        mine = arrived.st_mtime - float((directory / "began").read_text())
        began = time.time()
        with (directory / "copy").open("wb") as copy:
            subprocess.run([*bed.ssh, "hostA", "cat", str(source)], stdout=copy, check=True)
        return mine, time.time() - began


# --- many agents --------------------------------------------------------------------------------


def hold(bed: Bed, agents: int, seconds: float) -> tuple[float, float, float, float]:
    """Seconds until all run; then, of the controller: CPU seconds per minute, MB of its own, and the ssh clients' MB together."""
    names = [f"node{number:03d}" for number in range(agents)]
    hosts = list(bed.hosts.values())
    lines = [f"Host {name}\n  HostName {hosts[n % 3].address}\n  HostKeyAlias {hosts[n % 3].name}" for n, name in enumerate(names)]
    bed.write_config(*lines)
    with tempfile.TemporaryDirectory() as name:
        began = time.monotonic()
        command = orch_up(bed, ",".join(names), "--no-python", "sleep", "--quiet", "--", "3600")
        process = subprocess.Popen(command, cwd=name, env=environment(), stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            _wait_for_tasks(Path(name), agents, process)
            took = time.monotonic() - began
            controller = psutil.Process(process.pid)
            before = sum(controller.cpu_times()[:2])
            time.sleep(seconds)
            cpu = (sum(controller.cpu_times()[:2]) - before) * 60 / seconds
            clients = sum(child.memory_full_info().uss for child in controller.children())
            return took, cpu, controller.memory_full_info().uss / 1e6, clients / 1e6
        finally:
            process.terminate()
            process.wait(DEADLINE_S)


def _wait_for_tasks(directory: Path, agents: int, process: subprocess.Popen[bytes]) -> None:
    events = directory / ".orch/latest/events.jsonl"
    deadline = time.monotonic() + DEADLINE_S
    while not events.exists() or events.read_bytes().count(b'"task_started"') < agents:
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"the agents did not come up; exit code {process.poll()}")
        time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--each", type=int, default=2, help="workers on each of the three hosts")
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--agents", type=int, default=100)
    parser.add_argument("--quick", action="store_true", help="one round, 30 agents")
    options = parser.parse_args()
    if why := missing():
        print(f"ssh: not measured: {why}")
        return
    rounds, agents = (1, 30) if options.quick else (options.rounds, options.agents)
    with made_bed() as bed:
        pairs = [(start(bed, by_loop, options.each), start(bed, by_orch, options.each)) for _ in range(rounds)]
        relayed = [relay(bed, options.megabytes) for _ in range(rounds)]
        took, cpu, own, clients = hold(bed, agents, 20)
    workers = 3 * options.each
    rows = [
        (
            f"3 hosts, {workers} workers, to the first all-reduce (s)",
            spread([o for _, o in pairs], "{:.1f}"),
            spread([s for s, _ in pairs], "{:.1f}"),
        ),
        (
            f"{options.megabytes} MB from a host (MB/s)",
            spread([options.megabytes / mine for mine, _ in relayed], "{:.0f}"),
            spread([options.megabytes / theirs for _, theirs in relayed], "{:.0f}"),
        ),
    ]
    table(("", "orch", "ssh by hand"), rows)
    print(f"start, orch ÷ shell loop of ssh: {spread([orch / loop for loop, orch in pairs], '{:.2f}')}")
    print(f"{agents} agents: all tasks run after {took:.1f} s; then the controller takes {cpu:.2f} CPU s a minute")
    print(f"    and {own:.0f} MB of its own, the ssh clients {clients:.0f} MB together")
    print(load())


if __name__ == "__main__":
    main()
