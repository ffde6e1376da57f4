"""Hosts that are none, for `benchmarks.scale`: agents that speak orch's protocol, many in one process, whose tasks are only numbers.

``python simulated_hosts.py SOCKET`` listens there. Each connection is one agent; `simulated_run` makes them. Lines on stdin are commands,
and each line on stdout tells the time at which something has happened, by the system's clock.
"""

from __future__ import annotations

import ast
import asyncio
import itertools
import json
import os
import re
import sys
import time
from collections.abc import Callable
from typing import Any

from worker.protocol import messages
from worker.protocol.channel import Decoder, encode

STEP_S = 0.05
"""The pause between two pieces of output."""
PIECE = 32 * 1024
"""How much the tasks of one host write at once, together."""
PIDS = itertools.count(100)


class SimulatedHost:
    """One agent. Its tasks start at once, listen at once, and end when they are stopped."""

    def __init__(self, number: int, name: str, writer: asyncio.StreamWriter, tell: Callable[..., None]) -> None:
        self._number, self.name, self._writer, self._tell = number, name, writer, tell
        self._orders: dict[str, int] = {}
        """The attempt of each task that runs."""
        self._offsets: dict[tuple[str, int], int] = {}

    def send(self, *frames: Any, data: bytes = b"") -> None:
        """Send frames to the controller; `data` belongs to the only one."""
        self._writer.write(b"".join(encode(frame, data) for frame in frames))

    def on_order(self, order: messages.Order) -> None:
        """Every order of the controller arrives here."""
        match order:
            case messages.Hello():
                self.send(self._facts(order))
            case messages.Try():
                self.send(messages.Tried())
                self._tell("tried", sum(len(target.ports) for target in order.targets))
            case messages.TakeGpus():
                self.send(messages.GpusTaken())
            case messages.StartTasks():
                self._start(order)
            case messages.StopTasks():
                self._end([task for task in order.tasks if task in self._orders], 128 + 15, stopped=True)
            case messages.Ping():
                self.send(messages.Pong())
            case messages.Bye():
                self._writer.close()

    def _facts(self, hello: messages.Hello) -> messages.HostReady:
        address = f"10.{self._number >> 16 & 255}.{self._number >> 8 & 255}.{self._number & 255}"
        return messages.HostReady(
            pid=next(PIDS),
            python=sys.executable,
            python_version=".".join(map(str, sys.version_info[:3])),
            cores=64,
            ports=tuple(range(20_000, 20_000 + hello.ports)),
            at=time.time(),
            addresses=(messages.NetAddress("eth0", address, 8),),
            arrived_at=address,
        )

    def _start(self, start: messages.StartTasks) -> None:
        self._tell("ordered", self.name)
        for order in start.orders:
            self._orders[order.task] = order.attempt
            at = time.time()
            self.send(
                messages.TaskStarted(order.task, order.attempt, next(PIDS), at),
                messages.TaskUp(order.task, order.attempt, at),
            )

    def _end(self, names: list[str], code: int, *, stopped: bool) -> None:
        for task in names:
            attempt, at = self._orders.pop(task), time.time()
            self.send(messages.TaskExited(task, attempt, code, stopped, at, killed=stopped), messages.TaskSwept(task, attempt, at))

    def fail(self) -> None:
        """The first task ends with exit code 7."""
        task = next(iter(self._orders))
        self._tell("failed", task)
        self._end([task], 7, stopped=False)

    def write(self, size: int) -> int:
        """Each task writes its part of so many bytes. Returns how many these are."""
        before = sum(self._offsets.values())
        part = max(1, size // max(1, len(self._orders)))
        line = b"step 100: loss 0.25, accuracy 0.93, 1.2 s per step\n"
        for task, attempt in self._orders.items():
            offset = self._offsets.get((task, attempt), 0)
            data = (line * (part // len(line) + 1))[: max(len(line), part // len(line) * len(line))]
            self._offsets[task, attempt] = offset + len(data)
            self.send(messages.Output(task, attempt, "stdout", offset), data=data)
        return sum(self._offsets.values()) - before


class Simulator:
    """All hosts of this process."""

    def __init__(self) -> None:
        self._hosts: list[SimulatedHost] = []

    async def serve(self, path: str) -> None:
        """Listen, and follow the commands of stdin until it ends."""
        server = await asyncio.start_unix_server(self._attend, path, limit=1 << 20, backlog=4096)
        self._tell("listens", path)
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        async with server:
            while line := await reader.readline():
                what, *values = json.loads(line)
                if what == "fail":
                    self._hosts[0].fail()
                elif what == "write":
                    await self._write(*values)

    async def _attend(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        greeting = json.loads(await reader.readline())
        # As the program on a host does, whose first line calls `remote_entry.arrive`: worker/ comes first, then the mark is written.
        arguments = re.search(rb"n\['arrive'\](\(.*\))$", await reader.readline())
        assert arguments is not None
        size, _, _, mark = ast.literal_eval(arguments[1].decode("ascii"))
        await reader.readexactly(size)
        writer.write(mark)
        host = SimulatedHost(greeting["number"], greeting["host"], writer, self._tell)
        self._hosts.append(host)
        decoder = Decoder(messages.ORDERS)
        try:
            while data := await reader.read(1 << 20):
                for order, _ in decoder.feed(data):
                    host.on_order(order)
        except ConnectionError:
            pass
        finally:
            self._hosts.remove(host)
            writer.close()

    async def _write(self, rate: float, seconds: float) -> None:
        """Have the tasks of all hosts write `rate` bytes a second, together."""
        written = 0
        until, turn = time.monotonic() + seconds, itertools.cycle(range(max(1, len(self._hosts))))
        while time.monotonic() < until and self._hosts:
            size, most = rate * STEP_S, PIECE
            for _ in range(max(1, int(size / most))):
                written += self._hosts[next(turn)].write(int(min(size, most)))
            await asyncio.sleep(STEP_S)
        self._tell("written", written)

    def _tell(self, what: str, *values: Any) -> None:
        sys.stdout.write(json.dumps([what, time.time(), *values]) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    try:
        asyncio.run(Simulator().serve(sys.argv[1]))
    finally:
        if os.path.exists(sys.argv[1]):
            os.unlink(sys.argv[1])
