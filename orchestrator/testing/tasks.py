"""One task of a test's cluster: its process, its output, and its signals."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worker import task_files

from ..errors import UsageError
from .connections import Connection
from .failures import ClusterLost
from .jobs import POLL_S, Job, describe_exit

if TYPE_CHECKING:
    from .pool import PooledRun

DYING_S = 10.0
"""How long a killed process may take to end."""


class Task:
    """One task of a cluster, as ``c["worker-1"]``: a process, which functions run in."""

    def __init__(self, run: PooledRun, name: str) -> None:
        self._run, self.name = run, name
        self.pid: int | None = None
        """The process; None once it has ended."""
        self.exit: int | None = None
        """How the last process ended: an exit code, or -n for signal n; None: no process has ended."""
        self.job: Job | None = None
        """The function that runs in the process."""
        self.directories: list[Path] = []
        """The directories of its processes, with ``output.log``, ``reports.jsonl`` and ``stacks.txt``; the newest is the last."""
        self.connection: Connection | None = None
        self._signals: dict[int, tuple[str, float]] = {}
        """The signals that the process was sent since its function began, by number: ``killed`` (by the test) or ``stopped`` (by orch), and
        the time, by `time.monotonic`."""
        self._printed = 0
        self._forgotten = (0, 0)
        """How many characters of the output, and how many reports, belong to an earlier cluster."""

    def __repr__(self) -> str:
        state = f"process {self.pid}" if self.pid else "no process" if self.exit is None else describe_exit(self.exit)
        return f"<Task {self.name}: {state}>"

    def _poll(self) -> None:
        if self._run.is_in_use:
            self._run.session.poll(0)

    @property
    def is_alive(self) -> bool:
        self._poll()
        return self.pid is not None

    @property
    def logs(self) -> str:
        """The output of the task in this cluster, stdout and stderr, in the order in which it was written."""
        self._poll()
        return self._read_output()[self._forgotten[0] :]

    def _read_output(self) -> str:
        return "".join(read(directory / "output.log") for directory in self.directories)

    @property
    def reports(self) -> list[dict[str, Any]]:
        """The values that functions gave to `worker.report` in this task, oldest first."""
        return self._read_reports()[self._forgotten[1] :]

    def _read_reports(self) -> list[dict[str, Any]]:
        lines = "".join(read(directory / task_files.REPORTS) for directory in self.directories).splitlines()
        found = []
        for line in lines:
            with contextlib.suppress(ValueError, RecursionError):  # a line that a full disk has torn, or that is not whole yet
                found.append(json.loads(line))
        return [values for values in found if isinstance(values, dict) and task_files.INPUT not in values]

    def forget_output(self) -> None:
        """Leave out what the process has written until now, for another test: `logs` and `reports` begin here."""
        self._forgotten = (len(self._read_output()), len(self._read_reports()))

    def send_signal(self, number: int) -> None:
        """Send a signal to the processes of the task. Raises `UsageError` if the task has no process."""
        if self.pid == os.getpid():
            raise UsageError(f"{self.name} is the test's own process (in_process)")
        if not self.is_alive:
            raise UsageError(f"{self.name} has no process: {'it has not been started' if self.exit is None else describe_exit(self.exit)}")
        self._send(int(number), "killed")

    def _send(self, number: int, reason: str) -> None:
        self._signals[number] = reason, time.monotonic()
        self._run.residents[self.name].send({"do": "signal", "number": number})

    def kill(self, number: int = signal.SIGKILL) -> None:
        """End the process with a signal; the end by SIGKILL is waited for. A function that ends by this signal counts as killed."""
        self.send_signal(number)
        if number == signal.SIGKILL:
            self.await_end()

    def pause(self) -> None:
        """Stop the process (SIGSTOP): the other tasks wait for it, and get no answer."""
        self.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue the process (SIGCONT)."""
        self.send_signal(signal.SIGCONT)

    def restart(self) -> None:
        """Fork a new process of the task, at the same address."""
        if self.is_alive:
            self.kill()
        self._run.fork([self.name])

    def stop(self) -> None:
        """Send SIGKILL for a reason of orch's own, without waiting for the end."""
        if self.pid is not None and self.pid != os.getpid():
            self._send(int(signal.SIGKILL), "stopped")

    def await_end(self) -> None:
        until = time.monotonic() + DYING_S
        while self.pid is not None:
            if time.monotonic() > until:
                raise ClusterLost(f"{self.name}, process {self.pid}, has not ended {DYING_S:g} s after SIGKILL")
            self._run.session.poll(POLL_S)

    def begin(self, job: Job) -> None:
        """Run this job's function. A signal that the task has survived before is no reason for what comes."""
        self.job = job
        self._signals.clear()

    # --- events -----------------------------------------------------------------------------------

    def on_forked(self, directory: Path) -> None:
        self.exit, self._printed = None, 0
        self._signals.clear()
        self.directories.append(directory)

    def on_connected(self, connection: Connection) -> None:
        """The process has connected."""
        self.connection, self.pid = connection, connection.pid
        connection.on_message = self._on_message

    def _on_message(self, message: dict[str, Any] | None) -> None:
        if message is not None and self.job is not None and "call" in message:
            job, self.job = self.job, None
            job.on_answer(self.name, message)

    def on_exited(self, code: int) -> None:
        """The process has ended; `code` is negative for a signal."""
        self.pid, self.exit = None, code
        if self.connection is not None:
            for message in self.connection.read() if self.connection.is_open else ():  # its last messages
                self._on_message(message)
            self._run.session.close(self.connection)
            self.connection = None
        if self.job is not None:
            job, self.job = self.job, None
            # A task that was killed failed when it was sent the signal: its peers may have noticed before its parent has.
            state, at = self._signals.get(-code, ("died", time.monotonic()))
            job.on_exited(self.name, state, code, at)

    def print_output(self) -> None:
        """Print the lines that were not printed yet on the test's stdout, with the name of the task before each line."""
        if not self.directories:
            return
        path = self.directories[-1] / "output.log"
        try:
            if os.stat(path).st_size == self._printed:
                return
            with path.open("rb") as file:
                file.seek(self._printed)
                data = file.read()
        except OSError:
            return
        if self.pid is not None:
            data = data[: data.rfind(b"\n") + 1]
        self._printed += len(data)
        for line in data.decode(errors="replace").splitlines():
            sys.stdout.write(f"[{self.name}] {line}\n")


def read(path: Path) -> str:
    """The text of a file; empty if there is no file."""
    try:
        return path.read_bytes().decode(errors="replace")
    except OSError:
        return ""
