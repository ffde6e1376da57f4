"""Plays the agent: starts one task by an order, as `worker/host` does, and gathers what it left."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worker.protocol.messages import BootstrapOrder, Failure, Program
from worker.settings.collective_settings import CollectiveSettings
from worker.settings.device_settings import DeviceSettings
from worker.settings.task_settings import VARIABLE, TaskSettings
from worker.settings.tpu_settings import TpuSettings
from worker.values.codec import from_json, to_json

ROOT = Path(__file__).resolve().parents[2]
START = ROOT / "worker" / "task" / "start_task.py"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a program printed and how it ended; `code` is negative for a signal."""

    code: int
    out: str
    err: str
    log_dir: Path

    @classmethod
    def of(cls, code: int, log_dir: Path) -> Outcome:
        out, err = ((log_dir / f"{name}.log").read_bytes().decode("utf-8", "surrogateescape") for name in ("stdout", "stderr"))
        return cls(code, out, err, log_dir)

    @property
    def failure(self) -> Failure | None:
        path = self.log_dir / "error.json"
        return from_json(Failure, json.loads(path.read_bytes())) if path.exists() else None

    @property
    def shell_code(self) -> int:
        """The code as a shell says it: 128 + n for signal n."""
        return self.code if self.code >= 0 else 128 - self.code

    def told(self) -> tuple[int, str, str]:
        """Code, stdout and stderr, as they are the same in every run."""
        return self.shell_code, hide_addresses(self.out), hide_addresses(self.err)

    def check(self, code: int = 0) -> Outcome:
        """Fail unless the program ended with this code, negative for a signal."""
        assert self.shell_code == (code if code >= 0 else 128 - code), (
            f"exit code {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"
        )
        return self


def hide_addresses(text: str) -> str:
    return re.sub(r"0x[0-9a-f]+", "0x", text)


def clean_environment(changes: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment without a PYTHONPATH that would let a task find `worker` by itself."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**env, "PYTHONDONTWRITEBYTECODE": "1", "TF_CPP_MIN_LOG_LEVEL": "2", **(changes or {})}


@dataclass(frozen=True, slots=True)
class Told:
    """What a task is told, and where its output goes."""

    order: BootstrapOrder
    env: dict[str, str]
    log_dir: Path


def prepare(
    program: Program,
    cwd: Path,
    *,
    task: str = "worker-0",
    strategy: str = "none",
    tf_config: str | None = None,
    devices: DeviceSettings = DeviceSettings(),
    collectives: CollectiveSettings = CollectiveSettings(),
    tpu: TpuSettings = TpuSettings(),
    env: Mapping[str, str] | None = None,
    log_dir: Path | None = None,
) -> Told:
    """What a task is told that runs `program`; its log directory is made."""
    if log_dir is None:
        (cwd / "logs").mkdir(exist_ok=True)
        log_dir = Path(tempfile.mkdtemp(prefix=f"{task}-", dir=cwd / "logs"))
    log_dir.mkdir(exist_ok=True)
    settings = TaskSettings(strategy, devices, collectives, tpu=tpu)
    order = BootstrapOrder(task, program, tf_config, str(log_dir), settings)
    changes = {"PYTHONUNBUFFERED": "1", "ORCH_TASK": task, VARIABLE: json.dumps(to_json(settings)), "ORCH_LOG_DIR": str(log_dir)}
    return Told(order, clean_environment({**changes, **(env or {})}), log_dir)


def start_task(program: Program, cwd: Path, *, options: Sequence[str] = (), start: Path = START, **settings: Any) -> Task:
    """Start a task in the background. `options`: of the interpreter; `settings`: those of `prepare`."""
    told = prepare(program, cwd, **settings)
    with (
        tempfile.TemporaryFile() as file,
        (told.log_dir / "stdout.log").open("ab") as stdout,
        (told.log_dir / "stderr.log").open("ab") as stderr,
    ):
        file.write(json.dumps(to_json(told.order)).encode("ascii"))
        file.flush()
        process = subprocess.Popen(
            [sys.executable, *options, str(start), str(file.fileno()), told.order.task, program.target],
            cwd=cwd,
            env=told.env,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            pass_fds=[file.fileno()],
            start_new_session=True,
        )
    return Task(process, told.log_dir)


@dataclass(frozen=True, slots=True)
class Task:
    process: subprocess.Popen[bytes]
    log_dir: Path

    def wait(self, timeout: float = 280) -> Outcome:
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        return Outcome.of(code, self.log_dir)

    def kill(self) -> Outcome:
        self.process.kill()
        return self.wait()


def run_task(program: Program, cwd: Path, **settings: Any) -> Outcome:
    """Start a task and wait for its end. The settings are those of `start_task`."""
    return start_task(program, cwd, **settings).wait()


def run_plainly(arguments: Sequence[str], cwd: Path, env: Mapping[str, str] | None = None) -> Outcome:
    """The same program by hand: ``python ARGUMENTS``."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=clean_environment(env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="surrogateescape",
        check=False,
        timeout=280,
    )
    return Outcome(done.returncode, done.stdout, done.stderr, cwd)


@contextmanager
def held_ports(count: int) -> Iterator[list[str]]:
    """Addresses whose ports are held as the agent holds them: TensorFlow binds them a second time."""
    with ExitStack() as stack:
        addresses = []
        for _ in range(count):
            holder = stack.enter_context(socket.socket())
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            holder.bind(("127.0.0.1", 0))
            addresses.append(f"127.0.0.1:{holder.getsockname()[1]}")
        yield addresses
