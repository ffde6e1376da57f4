"""Plays the controller: starts a real agent, gives it orders and takes its frames, as slowly as a test wants."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.live import PATIENCE_S
from worker.protocol import messages as contract
from worker.protocol.channel import Decoder, encode

START = Path(__file__).resolve().parents[2] / "worker" / "host" / "start_agent.py"

F = TypeVar("F")


def patched_agent(text: str) -> tuple[str, ...]:
    """An agent on a host that is otherwise than this one: `text` is run first, with the modules `driver` and `programs` of worker/host."""
    lines = (
        "import importlib, os, sys, time",
        f"sys.argv = [{str(START)!r}]",
        f"sys.path.insert(0, {str(START.parent)!r})",
        "import start_agent",
        "start_agent.load()",
        "find = importlib.import_module",
        "rooms = ('facts.gpu_driver', 'facts.program_checks', 'agent')",
        "driver, programs, agent = (find(f'_orch_worker.host.{name}') for name in rooms)",
        text,
        "os._exit(agent.main())",
    )
    return (sys.executable, "-I", "-c", "\n".join(lines))


class AgentProcess:
    """An agent and our two ends of its channel. `frames`: all that has been read so far, with their data."""

    def __init__(self, directory: Path, patch: str = "") -> None:
        self.directory = directory
        self._log = directory / "agent.log"
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                patched_agent(patch) if patch else [sys.executable, "-I", str(START)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                start_new_session=True,
            )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.stdin, self.stdout = self.process.stdin, self.process.stdout
        self._decoder = Decoder(contract.FRAMES)
        self.frames: list[tuple[Any, bytes]] = []

    @property
    def complaints(self) -> str:
        return self._log.read_text()

    def order(self, *messages: Any) -> None:
        for message in messages:
            self.send(encode(message))

    def send(self, data: bytes) -> None:
        """Bytes as they are; those that an agent does not want any more are dropped."""
        view = memoryview(data)
        while view:
            view = view[self.stdin.write(view) or 0 :]

    def hello(self, **settings: Any) -> contract.HostReady:
        """Greet it and wait for its answer. Unless told otherwise, it sees `directory` as the run directory."""
        settings = {"cwd": str(self.directory), "shared_dir": str(self.directory), **settings}
        self.order(contract.Hello("run", **settings))
        return self.wait_for(contract.HostReady)

    def start(self, *scripts: str, attempt: int = 1, env: dict[str, str] | None = None, **settings: Any) -> None:
        """Start a shell task for each of the scripts: worker-0, worker-1, …"""
        orders = (
            contract.TaskOrder(
                task=f"worker-{index}",
                attempt=attempt,
                program=contract.Program("command", "sh", ("-c", script)),
                cwd=str(self.directory),
                log_dir=f"attempt-{attempt}/worker-{index}",
                env={"ORCH_TASK": f"worker-{index}", **(env or {})},
                **settings,
            )
            for index, script in enumerate(scripts)
        )
        self.order(contract.StartTasks(tuple(orders), env={"ORCH_RUN_ID": "run"}))

    def read(self, timeout: float = PATIENCE_S) -> list[tuple[Any, bytes]]:
        """The frames that arrive next; an empty list at the end of the stream. Fails the test if nothing comes."""
        __tracebackhide__ = True
        while True:
            if not select.select([self.stdout], [], [], timeout)[0]:
                pytest.fail(f"the agent has said nothing for {timeout} s; so far: {[frame for frame, _ in self.frames]}\n{self.complaints}")
            data = os.read(self.stdout.fileno(), 64 * 1024)
            found = list(self._decoder.feed(data))
            self.frames += found
            if found or not data:
                return found

    def wait_for(self, kind: type[F], when: Callable[[F], bool] = lambda _: True) -> F:
        """The first frame of this kind that fits, read already or yet to come."""
        __tracebackhide__ = True
        position = 0
        while True:
            while position < len(self.frames):
                frame = self.frames[position][0]
                position += 1
                if isinstance(frame, kind) and when(frame):
                    return frame
            if not self.read():
                pytest.fail(f"the agent ended without {kind.__name__}; {[frame for frame, _ in self.frames]}\n{self.complaints}")

    def read_to_end(self) -> None:
        while self.read():
            pass

    def all(self, kind: type[F]) -> list[F]:
        return [frame for frame, _ in self.frames if isinstance(frame, kind)]

    def output(self, task: str, stream: str = "stdout") -> bytes:
        """The bytes of `Output` so far; checks that each piece follows the one before."""
        found = bytearray()
        for frame, data in self.frames:
            if isinstance(frame, contract.Output) and (frame.task, frame.stream) == (task, stream):
                assert frame.offset == len(found)
                found += data
        return bytes(found)

    def wait(self) -> int:
        return self.process.wait(PATIENCE_S)

    def close(self) -> None:
        """Let go of both ends, and see it end by itself."""
        self.stdin.close()
        self.stdout.close()
        try:
            self.wait()
        finally:
            self.process.kill()
            self.process.wait()
