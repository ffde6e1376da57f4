"""The scripts of TensorFlow's guides, by hand beside under orch: nothing that orch sets by itself may make one of them hang or fail.

    python -m tests.real.by_hand                              # all guides; 1, 2, 4 and 8 tasks; one core, two, all: some 40 minutes
    python -m tests.real.by_hand --guides parameter-server --tasks 4 --cores 1 2

*By hand* is what the guides tell to do: an interpreter for each task, started with its TF_CONFIG and nothing else. A line says how each
way ended and how long it took, import included. Exit code 1 if a script did not do under orch what it did by hand.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.conftest import ROOT
from tests.real.guides import DONE, GUIDES, Guide


def main() -> int:
    """The table, a line as soon as it is known."""
    arguments = _arguments()
    all_cores = sorted(os.sched_getaffinity(0))
    is_kept = True
    print(f"{'guide':20} {'cores':>5} {'tasks':>5}  {'by hand':16} {'under orch':16}")
    for name in arguments.guides:
        guide = GUIDES[name]
        counts = sorted({sum(guide.tasks(count).values()) for count in arguments.tasks})
        for cores in sorted({min(number, len(all_cores)) for number in arguments.cores or (1, 2, len(all_cores))}):
            for count in counts:
                with _directory(guide) as directory:
                    hand = "-" if arguments.orch_only else run_by_hand(guide, count, directory, all_cores[:cores], arguments.limit)
                with _directory(guide) as directory:
                    under = run_under_orch(guide, count, directory, all_cores[:cores], arguments.limit)
                is_kept &= under.startswith("done") or (hand != "-" and not hand.startswith("done"))
                print(f"{name:20} {cores:5} {count:5}  {hand:16} {under:16}", flush=True)
    return 0 if is_kept else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.real.by_hand", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--guides", nargs="+", choices=GUIDES, default=[*GUIDES])
    parser.add_argument("--tasks", nargs="+", type=int, default=[1, 2, 4, 8], help="processes of a cluster")
    parser.add_argument("--cores", nargs="+", type=int, help="how many cores all of them share; default: 1, 2 and all")
    parser.add_argument("--limit", type=float, default=180.0, help="seconds after which a training counts as hanging")
    parser.add_argument("--orch-only", action="store_true", help="do not run them by hand")
    return parser.parse_args()


@contextmanager
def _directory(guide: Guide) -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="by-hand-"))
    try:
        (path / "train.py").write_text(guide.text)
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _environment(directory: Path) -> dict[str, str]:
    unwanted = ("ORCH_", "TF_", "OMP_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
    return {**kept, "MODEL_DIR": str(directory / "model"), "PYTHONPATH": str(ROOT), "XDG_RUNTIME_DIR": str(directory)}


def run_by_hand(guide: Guide, count: int, directory: Path, cores: list[int], limit_s: float) -> str:
    """How it ended with an interpreter for each task: ``done 7.3 s``, ``hangs``, ``failed: worker-0 1``."""
    tasks = guide.tasks(count)
    names = [(kind, index) for kind in tasks for index in range(tasks[kind])]
    addresses = dict(zip(names, _free_addresses(len(names)), strict=True))
    cluster = {kind: [addresses[kind, index] for index in range(tasks[kind])] for kind in tasks if kind != "evaluator"}
    since = time.monotonic()
    with ExitStack() as stack:
        processes = {}
        for kind, index in names:
            env = _environment(directory)
            own = {**cluster, kind: [addresses[kind, i] for i in range(tasks[kind])]}
            if not guide.lone:
                env["TF_CONFIG"] = json.dumps({"cluster": own, "task": {"type": kind, "index": index}})
            output = stack.enter_context((directory / f"{kind}-{index}.log").open("wb"))
            process = _start([sys.executable, "train.py"], env, directory, cores, output)
            stack.callback(_kill, process)
            processes[f"{kind}-{index}"] = process
        awaited = {name: process for name, process in processes.items() if name.partition("-")[0] not in guide.servers}
        while any(process.poll() is None for process in awaited.values()):
            if time.monotonic() - since > limit_s:
                return "hangs"
            time.sleep(0.05)
    failed = [f"{name} {process.returncode}" for name, process in awaited.items() if process.returncode]
    return f"failed: {failed[0]}" if failed else f"done {time.monotonic() - since:.1f} s"


def run_under_orch(guide: Guide, count: int, directory: Path, cores: list[int], limit_s: float) -> str:
    """How it ended with `orch up`, in the same words."""
    words = [sys.executable, "-m", "orchestrator", "up", "train.py", *guide.words(count), "--timeout", str(limit_s)]
    log = directory / "orch.log"
    since = time.monotonic()
    with log.open("wb") as output:
        process = _start(words, _environment(directory), directory, cores, output)
        code = process.wait()
    if code == 0 and DONE in log.read_text(errors="replace"):
        return f"done {time.monotonic() - since:.1f} s"
    kept = shutil.copy(log, tempfile.mkstemp(prefix="by-hand-", suffix=".log")[1])
    return f"hangs: {kept}" if code == 124 else f"failed: {code}: {kept}"


def _free_addresses(count: int) -> list[str]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]


def _start(words: list[str], env: dict[str, str], directory: Path, cores: list[int], output: object) -> subprocess.Popen[bytes]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        return subprocess.Popen(words, env=env, cwd=directory, stdout=output, stderr=output, start_new_session=True)  # type: ignore[call-overload,no-any-return]
    finally:
        os.sched_setaffinity(0, before)


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


if __name__ == "__main__":
    sys.exit(main())
