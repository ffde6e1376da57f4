"""One task of a test's cluster: its process, its output, and its signals."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from worker.protocol import task_files

from ..errors import UsageError
from ..model.policy import not_finite
from ..record import event_log
from ..record.text.noise import Noise
from .connections import Connection
from .outcomes import Outcome, describe_exit
from .session import LEVEL, Session

OUTPUT = "output.log"
"""What a process has written on stdout and stderr."""


class RunOfTask(Protocol):
    """Holds what a task asks of its run (`pool.PooledRun`)."""

    session: Session
    residents: dict[str, Connection]

    def poll(self) -> None: ...
    def fork(self, tasks: Iterable[Task]) -> None: ...
    def await_ends(self, tasks: Sequence[Task]) -> None: ...


class Task:
    """One task of a cluster, as ``c["worker-1"]``: a process, which functions run in."""

    def __init__(self, run: RunOfTask, name: str, directory: Path) -> None:
        self._run, self.name = run, name
        self.directory = directory
        """The directory of its processes, with ``output.log``, ``reports.jsonl`` and ``stacks.txt``."""
        self.is_forked = False
        """Whether the task has a forked process, also one that has not come up yet."""
        self.exit: int | None = None
        """How the last process ended: an exit code, or -n for signal n; None: no process has ended, or a new one was forked."""
        self.call: Outcome | None = None
        """The outcome of the function that runs in the process."""
        self.lost: Outcome | None = None
        """How the process has ended while no function ran in it; None: it has not, or a new one was forked."""
        self.connection: Connection | None = None
        """The connection to the process, from its greeting to its end."""
        self._signals: dict[int, tuple[str, float]] = {}
        """The signals that the process was sent since its function began, by number: ``killed`` (by the test) or ``stopped`` (by orch), and
        the time, by `time.monotonic`."""
        self._printed = 0
        self._noise = quiet_noise()
        self._earlier: dict[str, int] = {}
        """How many bytes of a file belong to an earlier cluster."""

    def __repr__(self) -> str:
        state = f"process {self.pid}" if self.pid else "no process" if self.exit is None else describe_exit(self.exit)
        return f"<Task {self.name}: {state}>"

    @property
    def pid(self) -> int | None:
        """The process; None before it has come up, and once it has ended."""
        return None if self.connection is None else self.connection.pid

    @property
    def is_alive(self) -> bool:
        self._run.poll()
        return self.is_forked

    @property
    def logs(self) -> str:
        """The output of the task in this cluster, stdout and stderr, in the order in which it was written."""
        return self._read(OUTPUT)

    @property
    def reports(self) -> list[dict[str, Any]]:
        """The values that functions gave to `worker.report` in this task, oldest first."""
        lines = self._read(task_files.REPORTS).encode().splitlines()
        return [not_finite.as_numbers(values) for values in event_log.objects(lines) if task_files.OWN_KEYS.isdisjoint(values)]

    @property
    def own_logs(self) -> str:
        """`logs` without TensorFlow's own lines, unless the shell has set the level at which TensorFlow logs."""
        noise = quiet_noise()
        return self.logs if noise is None else "".join(f"{line}\n" for line in noise.fold(self.logs.splitlines()))

    def _read(self, name: str) -> str:
        return read(self.directory / name, self._earlier.get(name, 0)).decode(errors="replace")

    def forget_output(self) -> None:
        """Leave out what the process has written until now, for another test: `logs` and `reports` begin here."""
        self._earlier = {name: len(read(self.directory / name)) for name in (OUTPUT, task_files.REPORTS)}

    def send_signal(self, number: int) -> None:
        """Send a signal to the processes of the task. Raises `UsageError` if the task has no process."""
        if not self.is_alive:
            raise UsageError(f"{self.name} has no process: {'it has not been started' if self.exit is None else describe_exit(self.exit)}")
        self.pass_signal(number, "killed")

    def pass_signal(self, number: int, reason: str) -> None:
        """Send a signal; `reason`: what a function counts as that ends by it, ``killed`` or ``stopped``."""
        self._signals[number] = reason, time.monotonic()
        self._run.residents[self.name].send({"do": "signal", "number": int(number)})

    def kill(self, number: int = signal.SIGKILL) -> None:
        """End the process with a signal; waits for the end by SIGKILL. A function that ends by this signal counts as killed."""
        self.send_signal(number)
        if number == signal.SIGKILL:
            self._run.await_ends([self])

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
        self._run.fork([self])

    # --- the life of a process ----------------------------------------------------------------------

    def begin_process(self) -> None:
        """The resident is about to fork a process of this task, which will connect."""
        self.is_forked, self.exit, self.lost = True, None, None
        self._signals.clear()
        self._run.session.expected[str(self.directory)] = self._on_connected

    def _on_connected(self, connection: Connection) -> None:
        self.connection = connection
        connection.on_message = self._on_answer

    def begin_call(self, call: Outcome) -> None:
        """Run a function. A signal that the task has survived before is no reason for what comes."""
        self.call = call
        self._signals.clear()

    def _on_answer(self, answer: dict[str, Any]) -> None:
        if self.call is not None:
            call, self.call = self.call, None
            call.on_answer(answer)

    def end_process(self, code: int, at: float) -> None:
        """The process has ended at this time, by `time.monotonic`; `code` is negative for a signal."""
        if self.connection is not None:
            self._run.session.read(self.connection)  # it may have sent an answer before
            self._run.session.close(self.connection)
        self.is_forked, self.exit, self.connection = False, code, None
        self._run.session.expected.pop(str(self.directory), None)
        # A task that was killed failed when it was sent the signal: its peers may have noticed before its parent has.
        state, at = self._signals.get(-code, ("died", at))
        if self.call is not None:
            call, self.call = self.call, None
            call.on_exited(state, code, at)
        elif state != "stopped":
            self.lost = Outcome(self.name)
            self.lost.on_exited(state, code, at)

    # --- the output ---------------------------------------------------------------------------------

    def print_output(self) -> None:
        """Print the lines that were not printed yet on the test's stdout, with the name of the task before each line."""
        data = read(self.directory / OUTPUT, self._printed)
        if self.is_forked:
            data = data[: data.rfind(b"\n") + 1]
        self._printed += len(data)
        lines = data.decode(errors="replace").splitlines()
        for line in lines if self._noise is None else self._noise.fold(lines):
            sys.stdout.write(f"[{self.name}] {line}\n")


def quiet_noise(warnings: set[str] | None = None) -> Noise | None:
    """Return what recognises TensorFlow's own lines, which a test does not show; None: the shell has set the level at which TensorFlow
    logs.

    A process of the session logs errors alone. The user's warm process may log more, and then these lines are left out here. `warnings`:
    see `Noise`.
    """
    return None if LEVEL in os.environ else Noise(warnings, hides_warnings=True)


def read(path: Path, start: int = 0) -> bytes:
    """The content of a file from this byte on; empty if there is no file."""
    try:
        with path.open("rb") as file:
            file.seek(start)
            return file.read()
    except OSError:
        return b""
