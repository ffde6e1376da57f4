"""Our end of a channel, with a real agent on this machine at the other."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from orchestrator.backends import Host, agents, local
from orchestrator.backends.agents import AgentLink
from worker import contract


def test_a_link_that_stalls_at_the_end_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent is stopped for longer than it may send nothing, and for less than it may be silent."""
    monkeypatch.setattr(agents, "ENDING_S", 0.8)
    size = 4 * 1024 * 1024
    stored = bytearray()

    async def run() -> None:
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        pids: list[int] = []

        def receive(host: str, frame: Any, data: bytes) -> None:
            if isinstance(frame, contract.Facts):
                pids.append(frame.pid)
            elif isinstance(frame, contract.Output):
                stored.extend(data)
                if ended.done():
                    link.order(contract.Ack(len(data)))
            elif isinstance(frame, contract.Exited):
                ended.set_result(None)

        link = AgentLink(Host("local", "127.0.0.1", sees_run_dir=False), tmp_path / "log", receive, lambda *_: None)
        await link.open(local.transport(""))
        link.order(contract.Hello("run", cwd=str(tmp_path)))
        link.beat(3.0)
        program = contract.Program("command", "sh", ("-c", f"head -c {size} /dev/zero"))
        link.order(contract.StartTasks((contract.TaskOrder("worker-0", 1, program, str(tmp_path), "worker-0"),)))
        await ended
        os.kill(pids[0], signal.SIGSTOP)
        link.order(contract.Ack(len(stored)))
        loop.call_later(1.6, os.kill, pids[0], signal.SIGCONT)
        await link.close()

    asyncio.run(run())
    assert len(stored) == size


def test_an_agent_that_still_has_output_to_send_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight megabytes to a slow controller take longer than an agent may be silent; nothing of them is lost."""
    monkeypatch.setattr(agents, "ENDING_S", 0.5)
    size = 8 * 1024 * 1024
    stored = bytearray()

    async def run() -> None:
        loop = asyncio.get_running_loop()
        ended = loop.create_future()

        def receive(host: str, frame: Any, data: bytes) -> None:
            if isinstance(frame, contract.Output):
                stored.extend(data)
                loop.call_later(0.2, link.order, contract.Ack(len(data)))
            elif isinstance(frame, contract.Exited):
                ended.set_result(None)

        link = AgentLink(Host("local", "127.0.0.1", sees_run_dir=False), tmp_path / "log", receive, lambda *_: None)
        await link.open(local.transport(""))
        link.order(contract.Hello("run", cwd=str(tmp_path)))
        program = contract.Program("command", "sh", ("-c", f"head -c {size} /dev/zero"))
        link.order(contract.StartTasks((contract.TaskOrder("worker-0", 1, program, str(tmp_path), "worker-0"),)))
        await ended
        await link.close()

    asyncio.run(run())
    assert len(stored) == size
