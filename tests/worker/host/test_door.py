"""A channel that is cut while the controller lives: the agent waits, and the controller comes back where it was."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from orchestrator.backends import remote_worker
from tests.live import is_alive, wait_for_file, wait_until
from tests.worker.controller_double import AgentProcess
from worker.protocol import messages
from worker.protocol.channel import Decoder, encode
from worker.protocol.replay import Replay, goodbye

SECRET = "0123456789abcdef"
COUNTING = "echo $$ >pid~; mv pid~ pid; n=0; while [ ! -e go ]; do echo line-$n; n=$((n+1)); done; echo last"


class Controller:
    """Counts what comes and goes, as `AgentLink` does."""

    def __init__(self, start_agent: Callable[..., AgentProcess], directory: Path, lost_after_s: float = 60.0) -> None:
        self.agent, self.directory = start_agent(), directory
        self.sent, self.received, self.output = Replay(), 0, b""
        self.decoder = Decoder(messages.FRAMES)
        self.to_agent, self.from_agent = self.agent.stdin, self.agent.stdout
        self.order(messages.Hello("run", cwd=str(directory), lost_after_s=lost_after_s, secret=SECRET, owner_grace_s=0.1))
        self.door = ""
        while not self.door:
            self.read()
        program = messages.Program("command", "sh", ("-c", COUNTING))
        self.order(messages.StartTasks((messages.TaskOrder("worker-0", 1, program, str(directory), "worker-0"),)))
        self.pid = int(wait_for_file(directory / "pid"))

    def order(self, order: object) -> None:
        data = encode(order)
        self.sent.keep(data)
        self.to_agent.write(data)

    def read(self) -> bool:
        data = self.from_agent.read(1 << 16) or b""
        self.received += len(data)
        for frame, more in self.decoder.feed(data):
            if isinstance(frame, messages.HostReady):
                self.door = frame.door
            elif isinstance(frame, messages.Output) and frame.stream == "stdout":
                assert frame.offset == len(self.output)
                self.output += more
                self.order(messages.Ack(len(more), self.received))
        return bool(data)

    def cut(self) -> None:
        self.to_agent.close()
        self.from_agent.close()

    @contextmanager
    def program(self, secret: str = SECRET, received: int | None = None) -> Iterator[subprocess.Popen[bytes]]:
        """The program that comes back, as a host runs it."""
        pipe = subprocess.PIPE
        with subprocess.Popen(remote_worker.argv(sys.executable), stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            first, mark = remote_worker.come_back(self.door, secret, self.received if received is None else received)
            process.stdin.write(first)
            said = b""
            while not said.endswith(mark) and (byte := process.stdout.read(1)):
                said += byte
            yield process

    def come_back(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.to_agent, self.from_agent = process.stdin, process.stdout
        self.to_agent.write(self.sent.after(int.from_bytes(process.stdout.read(8), "big")))


def test_a_task_goes_on_over_many_cuts_and_each_line_comes_once(start_agent: Callable[..., AgentProcess], tmp_path: Path) -> None:
    controller = Controller(start_agent, tmp_path)
    with ExitStack() as programs:
        for _ in range(5):
            size = len(controller.output)
            while len(controller.output) < size + 200_000:
                assert controller.read()
            controller.cut()
            for refused in (controller.program("another secret"), controller.program(received=10**9)):
                with refused as process:
                    assert process.stdout is not None
                    assert process.stdout.read() == b""
            controller.come_back(programs.enter_context(controller.program()))
        assert is_alive(controller.pid)
        (tmp_path / "go").touch()
        while not controller.output.endswith(b"last\n"):
            assert controller.read()
        controller.order(messages.Bye())
        while controller.read():
            pass
    lines = controller.output.split()
    assert lines == [f"line-{number}".encode() for number in range(len(lines) - 1)] + [b"last"]
    assert controller.agent.wait() == 0


def test_a_task_goes_on_if_only_its_frames_were_cut(start_agent: Callable[..., AgentProcess], tmp_path: Path) -> None:
    """The agent has failed to write, and has not read the end of the orders, when the controller comes back."""
    controller = Controller(start_agent, tmp_path)
    old_orders = controller.to_agent
    controller.from_agent.close()
    time.sleep(0.2)  # the task writes all the time
    with controller.program() as program:
        controller.come_back(program)
        (tmp_path / "go").touch()
        while not controller.output.endswith(b"last\n"):
            assert controller.read()
        controller.order(messages.Bye())
        while controller.read():
            pass
    old_orders.close()
    assert controller.agent.wait() == 0


@pytest.mark.parametrize("words", ["after an order", "in an order"])
def test_a_controller_that_says_goodbye_is_not_waited_for(start_agent: Callable[..., AgentProcess], tmp_path: Path, words: str) -> None:
    controller = Controller(start_agent, tmp_path)
    half = encode(messages.StopTasks(("worker-0",), 1.0))[:30] if words == "in an order" else b""
    controller.to_agent.write(half + goodbye(SECRET))
    assert controller.agent.wait() == 1
    assert not is_alive(controller.pid)


def test_a_controller_that_does_not_come_back_is_waited_for_as_long_as_a_silent_one(
    start_agent: Callable[..., AgentProcess], tmp_path: Path
) -> None:
    controller = Controller(start_agent, tmp_path, lost_after_s=3.0)
    began = time.monotonic()
    controller.cut()
    assert controller.agent.wait() == 1
    assert time.monotonic() - began > 1.5
    wait_until(lambda: not is_alive(controller.pid), "end of the task")
    with controller.program() as late:
        assert late.wait() == remote_worker.GONE


def test_what_was_received_is_forgotten_and_the_rest_can_be_sent_again() -> None:
    sent = Replay()
    sent.keep(b"abcdef")
    sent.forget(2)
    sent.forget(1)  # an older count
    assert sent.after(3) == b"def"
    sent.keep(b"gh")
    for wrong in (2, 9):
        with pytest.raises(ValueError, match=r"the other end has received \d bytes"):
            sent.after(wrong)
    assert sent.take(4) == b"efgh"
    assert sent.after(4) == b""
    sent.keep(b"ef")
    sent.forget(100)
    assert sent.after(6) == b""
