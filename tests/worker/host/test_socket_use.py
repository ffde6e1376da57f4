"""What the kernel tells of the connections of tasks to other hosts.

Addresses of this host stand in for others here; tests/backends/test_links.py has real ones.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.worker.host.test_sampling import Channel, sampler_of
from worker.host.network import socket_use
from worker.host.network.socket_use import Links
from worker.protocol.messages import LinkUse

PATIENCE_S = 20.0


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connection from 127.0.0.2 to 127.0.0.1, which counts as one between hosts."""
    monkeypatch.setattr(socket_use, "_is_loopback", lambda address, family: False)
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname(), source_address=("127.0.0.2", 0)) as sender,
        listener.accept()[0] as receiver,
    ):
        yield sender, receiver


def exchange(sender: socket.socket, receiver: socket.socket, size: int) -> None:
    """Send so many bytes, and wait until the kernel has acknowledged them."""
    sender.sendall(bytes(size))
    left = size
    while left:
        left -= len(receiver.recv(left))
    deadline, inode = time.monotonic() + PATIENCE_S, os.fstat(sender.fileno()).st_ino
    while not any(one.inode == inode and one.acknowledged >= size for one in socket_use.connections()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_a_process_sends_is_counted_from_one_reading_to_the_next(pair: tuple[socket.socket, socket.socket]) -> None:
    known = Links()
    assert known.read([os.getpid()], 10.0) == ()
    exchange(*pair, 400_000)
    (link,) = known.read([os.getpid()], 12.0)
    assert (link.peer, link.again, link.lost) == ("127.0.0.1", 0, 0.0)
    assert link.sent == pytest.approx(200_000, abs=2)
    assert link.rate >= link.sent
    assert known.read([os.getpid()], 14.0) == (), "nothing was sent meanwhile"


def test_connections_of_other_processes_do_not_count(pair: tuple[socket.socket, socket.socket]) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as other:
        known = Links()
        known.read([other.pid], 10.0)
        exchange(*pair, 400_000)
        assert known.read([other.pid], 12.0) == ()
        other.kill()
    assert known.read([other.pid], 14.0) == (), "a process that is gone holds nothing"


IN_A_CHILD = """
import os, subprocess, sys
fd = int(sys.argv[1])
child = subprocess.Popen(["sleep", "60"], pass_fds=[fd])
os.close(fd)
print(child.pid, flush=True)
child.wait()
"""


def test_a_connection_of_a_child_is_that_of_the_task(pair: tuple[socket.socket, socket.socket]) -> None:
    """As where a shell has started the program."""
    fd = pair[0].fileno()
    with subprocess.Popen([sys.executable, "-c", IN_A_CHILD, str(fd)], pass_fds=[fd], stdout=subprocess.PIPE, text=True) as task:
        assert task.stdout is not None
        child = int(task.stdout.readline())
        known = Links()
        known.read([task.pid], 10.0)
        exchange(*pair, 400_000)
        assert [link.peer for link in known.read([task.pid], 12.0)] == ["127.0.0.1"]
        os.kill(child, signal.SIGKILL)


def test_an_answer_of_another_form_is_an_error_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket_use, "_SOCKET", struct.Struct("=9000x16s16s"))
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()),
        pytest.raises(OSError, match="form"),
    ):
        socket_use.connections()


def test_connections_within_the_host_are_left_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as sender:
        inodes = {os.fstat(end.fileno()).st_ino for end in (listener, sender)}
        assert not inodes & {one.inode for one in socket_use.connections()}


@pytest.mark.parametrize(
    ("address", "family", "text", "is_loopback"),
    [
        (bytes([10, 0, 0, 7]) + bytes(12), socket.AF_INET, "10.0.0.7", False),
        (bytes([127, 3, 0, 1]) + bytes(12), socket.AF_INET, "127.3.0.1", True),
        (bytes(10) + b"\xff\xff" + bytes([10, 0, 0, 7]), socket.AF_INET6, "10.0.0.7", False),
        (bytes(10) + b"\xff\xff" + bytes([127, 0, 0, 1]), socket.AF_INET6, "127.0.0.1", True),
        (bytes(15) + b"\x01", socket.AF_INET6, "::1", True),
        (bytes([0xFD]) + bytes(14) + b"\x07", socket.AF_INET6, "fd00::7", False),
    ],
)
def test_an_address_is_read_as_people_write_it(address: bytes, family: int, text: str, is_loopback: bool) -> None:
    assert socket_use._text(address, family) == text
    assert socket_use._is_loopback(address, family) == is_loopback


def test_a_sample_has_the_links_of_the_tasks_and_a_slow_reading_rests(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = Channel()
    made = sampler_of(channel, os.getpid())
    channel.sample()
    exchange(*pair, 400_000)
    made._links_at = 0.0
    (link,) = channel.sample().links
    assert (link.peer, link.sent > 0) == ("127.0.0.1", True)

    def slow(*_: object) -> tuple[LinkUse, ...]:
        until = time.thread_time() + 0.05
        while time.thread_time() < until:
            pass
        return (link,)

    monkeypatch.setattr(made._links, "read", slow)
    made._links_at = 0.0
    assert channel.sample().links == (link,)
    assert channel.sample().links == (), "50 ms are 0.1 % of fifty seconds"


def test_where_the_kernel_does_not_tell_nothing_else_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> list[socket_use.Connection]:
        raise PermissionError

    monkeypatch.setattr(socket_use, "connections", refuse)
    channel = Channel()
    sampler_of(channel, os.getpid())
    assert (channel.sample().links, len(channel.sample().tasks)) == ((), 1)
