"""Describes how an agent comes up at the other end of a connection: its program is started and connected, gets worker/ if it brings none,
and sends its mark."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from worker.protocol import task_files

from ...errors import OrchError, UsageError
from .. import Diagnosis, Host, StartFailure, Transport
from .agent_pipes import AgentProgram, NotUsedError
from .agent_process import AgentProcess, open_log, start

LOG_BYTES = 1024 * 1024
"""The most bytes that are read of an agent's stderr."""
_NO_PROGRAM = (errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.ENOTDIR)

Explain = Callable[[Host, StartFailure], Diagnosis]
"""`Backend.explain`."""


class NotReachedError(Exception):
    """An agent did not come up."""

    def __init__(self, diagnosis: Diagnosis) -> None:
        super().__init__(diagnosis.cause)
        self.diagnosis = diagnosis


class AgentStart:
    """Starts the agent of one host; again, if a try was in vain. Says afterwards why it may have ended."""

    transport: Transport
    explain: Explain
    """Of the last try."""

    def __init__(self, host: Host, log: Path, secret: str) -> None:
        """`log`: the file for the agent's stderr. `secret`: see `AgentProcess`."""
        self.log = log
        self.note = ""
        """A line for the user about the warm process, if there is one."""
        self._host, self._secret = host, secret
        self._process: AgentProgram | None = None

    async def run(self, transport: Transport, explain: Explain) -> AgentProgram:
        """The agent's program, of which an error leaves nothing. Raises `UsageError`, `OrchError`, or `NotReachedError` without a mark."""
        self.transport, self.explain = transport, explain
        try:
            with open_log(self.log) as stderr:
                await asyncio.wait_for(self._connect(transport, explain, stderr), transport.limit_s)
        except BaseException as error:
            process, self._process = self._process, None
            if process is not None:
                process.kill()
                await process.wait()
            if isinstance(error, asyncio.TimeoutError):
                advice = "check the address, the firewall and the load"
                raise NotReachedError(Diagnosis(f"no agent answers after {transport.limit_s:g} s", advice)) from None
            raise
        assert self._process is not None
        return self._process

    def failure(self, code: int, *, had_answered: bool = False) -> StartFailure:
        """Return how the program of the transport has ended."""
        return StartFailure(self.transport.argv[0], code, read_log(self.log), had_answered=had_answered)

    async def ask_why(self, code: int) -> Diagnosis:
        """Return what the place knows of the end of an agent that had answered."""
        return await asyncio.to_thread(self.explain, self._host, self.failure(code, had_answered=True))

    async def _connect(self, transport: Transport, explain: Explain, stderr: BinaryIO) -> None:
        """Connect to the agent that was started ahead, or to one that is started now, and read its mark."""
        log_size = stderr.tell()
        try:
            self._process, self.note = start(transport, stderr.fileno(), secret=self._secret)
            try:
                self.note = await self._process.connect() or self.note
            except NotUsedError as error:
                self._process, self.note = AgentProcess(transport.argv, stderr.fileno()), str(error)
                await self._process.connect()
        except OSError as error:
            raise self._refuse(transport, explain, error) from None
        if transport.brings_worker:
            await self._read_mark(self._process, transport, explain, log_size)

    async def _read_mark(self, process: AgentProgram, transport: Transport, explain: Explain, log_size: int) -> None:
        """Send worker/, and wait for the mark. Raises `NotReachedError`."""
        assert process.stdin is not None
        assert process.stdout is not None
        from .. import remote_worker  # an agent of this machine needs no copy of worker/

        first, mark = remote_worker.arrival()
        process.stdin.write(first)
        try:
            noise = (await process.stdout.readuntil(mark)).removesuffix(mark).strip()
        except asyncio.IncompleteReadError:
            failure = StartFailure(transport.argv[0], await process.wait(), read_log(self.log, log_size))
            raise NotReachedError(explain(self._host, failure)) from None
        except asyncio.LimitOverrunError:
            raise NotReachedError(Diagnosis("its shell prints without end")) from None
        if noise:
            with open_log(self.log) as log:
                log.write(b"its shell printed: " + noise[:1000] + b"\n")

    def _refuse(self, transport: Transport, explain: Explain, error: OSError) -> OrchError:
        """The error says whether the program is the wrong one, or this machine is short of something."""
        failure = StartFailure(transport.argv[0], error=error)
        if error.errno in _NO_PROGRAM:
            told = explain(self._host, failure)
            return UsageError(told.cause, told.remedy)
        remedy = "raise the limit of open files (ulimit -n), of processes (ulimit -u) or of memory, of which this machine is short"
        return OrchError(failure.text, remedy)


def read_log(log: Path, start: int = 0) -> str:
    """Return what an agent has written to stderr, from this byte on; a task may have put something else in place of the file."""
    return task_files.read(str(log), start, most=LOG_BYTES).decode(errors="replace").strip()
