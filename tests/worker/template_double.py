"""Plays the agent's part towards a template: starts one, and has it fork tasks as `agent_double` executes them."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.live import PATIENCE_S
from tests.worker.agent_double import ROOT, Outcome, clean_environment, prepare
from worker.host.facts.program_files import directory_of
from worker.machine.memfd import keep_in_memory
from worker.protocol.messages import Program
from worker.values.codec import to_json

START = ROOT / "worker" / "host" / "forkserver" / "start_template.py"


class RefusedError(Exception):
    """The template would not fork this task; the message says why."""


class TemplateProcess:
    """A template and the agent's end of its socket."""

    def __init__(self, directory: Path, preload: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.settimeout(PATIENCE_S)
        self.log = directory / "template.log"
        with theirs, self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(START), str(theirs.fileno()), str(directory), *preload],
                cwd=directory,
                env=clean_environment({"PYTHONUNBUFFERED": "1", **(env or {})}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._tokens = 0
        self._ended: dict[int, int] = {}
        self._lifelines: dict[int, int] = {}
        """Of each task that was forked and not waited for."""

    def receive(self) -> dict[str, Any]:
        """Its next message; empty if it has closed its end."""
        data = self.control.recv(64 * 1024)
        return json.loads(data) if data else {}

    def wait_until_ready(self) -> None:
        message = self.receive()
        assert message.get("ready"), f"{message}\n{self.log.read_text()}"

    def fork(self, program: Program, cwd: Path, **settings: Any) -> ForkedTask:
        """Fork a task; the settings are those of `agent_double.prepare`. Raises `RefusedError`."""
        log_dir, lifeline = self.ask(program, cwd, **settings)
        self.control.settimeout(PATIENCE_S)
        message = self.receive()
        while "ended" in message:
            self._ended[message["ended"]] = message["code"]
            message = self.receive()
        if "refused" in message:
            os.close(lifeline)
            raise RefusedError(message["why"])
        self._lifelines[message["pid"]] = lifeline
        self._ended.pop(message["pid"], None)  # another's, long ago
        return ForkedTask(ForkedProcess(message["pid"], self), log_dir)

    def ask(self, program: Program, cwd: Path, **settings: Any) -> tuple[Path, int]:
        """Ask for a task, without waiting for the answer. Returns its log directory, and our end of its lifeline."""
        told = prepare(program, cwd, **settings)
        request = {
            "order": to_json(told.order),
            "env": told.env,
            "cwd": str(cwd),
            "stdout": str(told.log_dir / "stdout.log"),
            "stderr": str(told.log_dir / "stderr.log"),
            "limits": resource.getrlimit(resource.RLIMIT_NOFILE),
            "devices": {},
            "path": directory_of(program, str(cwd)),
        }
        self._tokens += 1
        request_fd = keep_in_memory(json.dumps(request).encode("ascii"))
        life_read, life_write = os.pipe()
        socket.send_fds(self.control, [json.dumps({"fork": self._tokens}).encode()], [request_fd, life_read])
        for fd in (request_fd, life_read):
            os.close(fd)
        return told.log_dir, life_write

    def has_ended(self, pid: int) -> bool:
        """So far as the template has said until now."""
        with suppress(BlockingIOError):
            self.wait_for_end(pid, 0.0)
        return pid in self._ended

    def wait_for_end(self, pid: int, timeout: float = PATIENCE_S) -> int:
        self.control.settimeout(timeout)
        while pid not in self._ended:
            message = self.receive()
            assert "ended" in message, message
            self._ended[message["ended"]] = message["code"]
        self._let_go(pid)
        return self._ended[pid]

    def _let_go(self, pid: int) -> None:
        if pid in self._lifelines:
            os.close(self._lifelines.pop(pid))

    def close(self) -> None:
        """Let go of it, and see it end by itself."""
        for pid in list(self._lifelines):
            self._let_go(pid)
        self.control.close()
        try:
            self.process.wait(PATIENCE_S)
        finally:
            self.process.kill()
            self.process.wait()


@dataclass(frozen=True, slots=True)
class ForkedProcess:
    """What a test needs of a `Popen`, for a process that is a template's child."""

    pid: int
    template: TemplateProcess

    def wait(self, timeout: float) -> int:
        return self.template.wait_for_end(self.pid, timeout)

    def poll(self) -> int | None:
        return self.wait(PATIENCE_S) if self.template.has_ended(self.pid) else None

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        if not self.template.has_ended(self.pid):
            os.kill(self.pid, signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class ForkedTask:
    """A forked task that runs: `agent_double.Task`, for a `ForkedProcess`. Its exit code is what a shell would say."""

    process: ForkedProcess
    log_dir: Path

    def wait(self, timeout: float = 280) -> Outcome:
        try:
            code = self.process.wait(timeout)
        except TimeoutError:
            self.process.kill()
            raise
        return Outcome.of(code, self.log_dir)

    def kill(self) -> Outcome:
        self.process.kill()
        return self.wait()


@contextmanager
def template(directory: Path, *preload: str, env: Mapping[str, str] | None = None) -> Iterator[TemplateProcess]:
    process = TemplateProcess(directory, preload, env)
    try:
        process.wait_until_ready()
        yield process
    finally:
        process.close()
