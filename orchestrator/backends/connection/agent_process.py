"""The program that becomes an agent, with pipes for its orders and its frames.

The agent of this machine is started before the rest of orch is imported (`start_ahead`), because both take equally long and most machines
have two cores. So `asyncio` is imported only where a process is connected.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from worker.host.forkserver import warm_socket
from worker.protocol import task_files

from .. import Request, Transport
from .agent_pipes import MOST_BYTES, AgentProgram, EarlyAgent, NotUsedError, StartedAgent, kill_group, make_protocol

if TYPE_CHECKING:
    import asyncio

    from .farewell import Farewell

MOST_LOG_BYTES = 64 << 20
FIRST_LOOK_S, LOOK_S = 0.0005, 0.005
"""When the end of a program is looked for again, first and last. `wait` is called when the program has closed its stdout, or was killed: it
ends soon, and the verdict of a run waits for this."""


class AgentProcess:
    """A program in a session of its own: the terminal's Ctrl-C is for orch to act on. `connect` gives it `stdin` and `stdout`."""

    def __init__(self, argv: Sequence[str], stderr: int, secret: str = "") -> None:
        """Start the program. `secret`: of an agent that may outlive the program; see `farewell`. Raises OSError."""
        self.stdin: asyncio.StreamWriter | None = None
        self.stdout: asyncio.StreamReader | None = None
        self._frames: asyncio.BaseTransport | None = None
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=stderr, bufsize=0, start_new_session=True)
        self._farewell: Farewell | None = None
        if secret:
            from .farewell import Farewell

            assert self._process.stdin is not None
            try:
                self._farewell = Farewell(secret, self._process.stdin.fileno())
            except OSError:
                self._process.kill()
                self._process.communicate()
                raise

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, -n for signal n; None: `wait` has not seen the end."""
        return self._process.returncode

    async def connect(self) -> str:
        """Open both pipes in the loop that runs now. Returns a line for the user, as `WarmAgent.connect` does: none."""
        import asyncio

        loop = asyncio.get_running_loop()
        stdout, nothing = asyncio.StreamReader(MOST_BYTES), asyncio.StreamReader()
        self._frames, _ = await loop.connect_read_pipe(lambda: make_protocol(stdout), self._process.stdout)
        transport, protocol = await loop.connect_write_pipe(lambda: make_protocol(nothing), self._process.stdin)
        self.stdout, self.stdin = stdout, asyncio.StreamWriter(transport, protocol, nothing, loop)
        return ""

    def kill(self) -> None:
        """SIGKILL to the program with its children: an interpreter's wrapper script may not have exec'ed it."""
        kill_group(self.pid, self.returncode)

    async def wait(self) -> int:
        """Wait for the program's end. Returns its exit code."""
        import asyncio

        pause_s = FIRST_LOOK_S
        while (code := self._process.poll()) is None:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LOOK_S)
        if self._farewell is not None:
            self._farewell.end()
            self._farewell = None
        if self._frames is not None:
            self._frames.close()  # a child of the program may still hold the other end
        if self.stdin is None:  # `connect` was called off
            for pipe in filter(None, (self._process.stdin, self._process.stdout)):
                pipe.close()
            return code
        if not self.stdin.is_closing():
            self.stdin.transport.abort()  # nothing reads the rest of the orders
        await self.stdin.wait_closed()
        return code


def start(transport: Transport, stderr: int, early: warm_socket.EarlyRequest | None = None, secret: str = "") -> StartedAgent:
    """Start an agent, or ask the warm process for one; none if one was started ahead. Raises OSError.

    `early`: the request to the warm process, if it was made already. `secret`: see `AgentProcess`.
    """
    if transport.early is not None and (agent := transport.early.take()) is not None:
        return agent
    note = ""
    if transport.imports is not None and (early is not None or warm_socket.is_there(os.environ)):
        from .. import warm_agent

        try:
            return StartedAgent(warm_agent.request_agent(transport, stderr, early))
        except NotUsedError as error:
            note = str(error)
    return StartedAgent(begin(transport, transport.argv, stderr, secret), note)


def begin(transport: Transport, argv: Sequence[str], stderr: int, secret: str) -> AgentProgram:
    """Return what a transport starts, by `argv` or in its own way. Raises OSError. `secret`: see `AgentProcess`."""
    return AgentProcess(argv, stderr, secret) if transport.begin is None else transport.begin(stderr)


def open_log(log: Path) -> BinaryIO:
    """The file for the stderr of an agent, to write at its end; a task may have put a link or a named pipe in its place. Raises OSError."""
    return open(task_files.open_regular(str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab")


def limit_log(log: Path) -> None:
    """Empty the file for the stderr of an agent if it has grown beyond `MOST_LOG_BYTES`: a host may write without end."""
    with contextlib.suppress(OSError):
        if os.stat(log).st_size > MOST_LOG_BYTES:
            with open_log(log) as file:
                os.ftruncate(file.fileno(), 0)
                file.write(f"orch: this file had more than {MOST_LOG_BYTES >> 20} MiB, and was emptied\n".encode())


def start_ahead(request: Request, log_of: Callable[[str], Path], early: warm_socket.EarlyRequest | None = None) -> Request:
    """Start the agent of a run that this process is about to run, if this machine is the only host: the request has it afterwards.

    `log_of`: the file for a host's stderr.
    An agent that is not used ends with this process, which holds the channel. An error is not reported here: `AgentLink.open` starts the
    program again, and reports it. `early`: a request to the warm process, which is withdrawn if the run has no use for it.
    """
    if len(request.hosts) == 1 and request.hosts[0].is_here:
        (host,) = request.hosts
        with contextlib.suppress(OSError), open_log(log_of(host.name)) as stderr:
            agent = EarlyAgent(start(host.transport, stderr.fileno(), early))
            request = replace(request, hosts=(replace(host, transport=replace(host.transport, early=agent)),))
    if early is not None:
        early.withdraw()
    return request
