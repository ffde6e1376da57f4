"""The same command on every node: from the last node's start to all tasks, and to the first all-reduce, beside torchrun's rendezvous.

The nodes are processes of this machine. All but the last one have started, and wait; the clock begins with the command of the last one.
With N nodes of a program that only writes when it began, this is the rendezvous; with TensorFlow, and with PyTorch and gloo, it goes on to
the first all-reduce, which needs an import in each task: a hint, and no peer. torchrun is that of ``--torchrun PATH``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from benchmarks.measure import PROGRAMS, environment, load, orch_command, spread, table

DEADLINE_S = 600.0
CALM_S = 2.0
"""The nodes wait once they have taken nearly no CPU time for so long."""
BEGUN, REDUCED = "begun", "reduced"
Node = Callable[[Path, int, int, int], list[str]]
"""The command of a node: a directory, a port, the number of nodes, the index of this one."""


def orch(*program: str) -> Node:
    def command(directory: Path, port: int, nodes: int, index: int) -> list[str]:
        at = ["--join-dir", str(directory / "shared"), "--nodes", str(nodes), "--node-index", str(index)]
        return [
            *orch_command(),
            "up",
            *program,
            "--join",
            *at,
            "--quiet",
            "--home",
            str(directory / "home"),
            "--",
            *_words(program, directory),
        ]

    return command


def torchrun(path: str, *program: str) -> Node:
    def command(directory: Path, port: int, nodes: int, index: int) -> list[str]:
        at = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{port}", "--rdzv-id", "1", "--node-rank", str(index)]
        script = [*program, *_words(program, directory)]
        return [path, "--nnodes", str(nodes), "--nproc-per-node", "1", *at, *script]

    return command


def _words(program: Sequence[str], directory: Path) -> list[str]:
    return [str(PROGRAMS / "begun.py"), str(directory)] if "--no-python" in program else [str(directory)]


STAMP = ("--no-python", sys.executable)


def measure(node: Node, nodes: int, key: str) -> float:
    """Seconds from the start of the last node to what all tasks have written under `key`."""
    with tempfile.TemporaryDirectory() as name, socket.create_server(("127.0.0.1", 0)) as free:
        directory, port = Path(name), free.getsockname()[1]
        free.close()
        env = environment(TF_CPP_MIN_LOG_LEVEL="2", OMP_NUM_THREADS="1", HOME=name, TMPDIR=name)
        started: list[psutil.Popen] = []

        def start(index: int) -> None:
            said = (directory / f"said-{index}").open("wb")
            with said:
                started.append(
                    psutil.Popen(
                        node(directory, port, nodes, index), cwd=directory, env=env, stdin=subprocess.DEVNULL, stdout=said, stderr=said
                    )
                )

        try:
            for index in range(nodes - 1):
                start(index)
            _await_calm(started)
            began = time.time()
            start(nodes - 1)
            for process in started:
                process.wait(DEADLINE_S)
            times: list[float] = [json.loads(path.read_text())[key] for path in directory.glob("[0-9]*.json")]
            if len(times) != nodes or any(process.returncode for process in started):
                raise SystemExit(f"{len(times)} of {nodes} tasks are done\n{(directory / 'said-0').read_text()[-2000:]}")
            return max(times) - began
        finally:
            for process in started:
                with suppress(psutil.NoSuchProcess):
                    for each in (*process.children(recursive=True), process):
                        each.kill()
                process.wait()


def _await_calm(nodes: Sequence[psutil.Popen]) -> None:
    """Wait until the nodes have come as far as they get without the last one."""
    limit, taken = time.monotonic() + DEADLINE_S, -1.0
    while time.monotonic() < limit:
        now = sum(sum(process.cpu_times()[:2]) for process in nodes)
        sleeps = all(process.status() == psutil.STATUS_SLEEPING for process in nodes)
        if sleeps and 0 <= now - taken < 0.05 * CALM_S * len(nodes) ** 0.5:
            return
        taken = now
        time.sleep(CALM_S)
    raise SystemExit("the nodes do not come to rest")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--torchrun", default=shutil.which("torchrun"), metavar="PATH")
    parser.add_argument("--quick", action="store_true", help="one round, of 2 and 8 nodes")
    options = parser.parse_args()
    rounds = 1 if options.quick else options.rounds
    sizes = {BEGUN: (2, 8) if options.quick else (2, 8, 64), REDUCED: (2,) if options.quick else (2, 8)}
    ours = {BEGUN: orch(*STAMP), REDUCED: orch(str(PROGRAMS / "first_reduce.py"))}
    theirs: dict[str, Node] = {}
    if options.torchrun:
        theirs = {BEGUN: torchrun(options.torchrun, *STAMP), REDUCED: torchrun(options.torchrun, str(PROGRAMS / "first_reduce_torch.py"))}
    else:
        print("torchrun: not measured, there is none on PATH (--torchrun PATH names one)")
    print(load(), flush=True)
    rows = []
    for key, words in ((BEGUN, "all tasks have begun"), (REDUCED, "the last task's first all-reduce")):
        for nodes in sizes[key]:
            found: dict[str, list[float]] = {}
            for _ in range(rounds):  # in turns
                for who, ways in (("orch", ours), ("torchrun", theirs)):
                    if key in ways:
                        found.setdefault(who, []).append(measure(ways[key], nodes, key))
            cells = [spread(found[who], "{:.2f}") if who in found else "" for who in ("orch", "torchrun")]
            ratio = ""
            if len(found) == 2:
                pairs = zip(found["orch"], found["torchrun"], strict=True)
                ratio = spread([mine / other for mine, other in pairs], "{:.2f}")
            rows.append((f"{nodes} nodes: {words}", *cells, ratio))
    table(("seconds from the last node's command, until", "orch up --join", "torchrun", "orch ÷ torchrun"), rows)
    print(load())


if __name__ == "__main__":
    main()
