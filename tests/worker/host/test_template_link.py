"""The agent's end of a template by itself; `test_template.py` has it with real agents and templates."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.live import room_for
from worker.host.forkserver.template_link import MOST_PINGS, ForkRequest, Preload, TemplateLink, TemplateProcess
from worker.host.processes.loop import Loop


class Listener:
    """Notes which requests were refused, and why."""

    def __init__(self) -> None:
        self.refused: list[tuple[ForkRequest, str]] = []

    def on_refused(self, request: ForkRequest, why: str) -> None:
        self.refused.append((request, why))


def fork_request() -> ForkRequest:
    return ForkRequest({}, {"TZ": "UTC"}, "/", "stdout.log", "stderr.log", (0, 0), {}, "/")


def test_requests_are_compared_by_identity() -> None:
    """Two attempts of a task may be the same in all fields; and each request holds a whole environment."""
    one, other = fork_request(), fork_request()
    assert len({one, other}) == 2


@pytest.mark.parametrize("more", range(3))
def test_too_many_open_files_cost_a_fork_and_not_the_host(tmp_path: Path, more: int) -> None:
    loop = Loop()
    control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener: Any = Listener()
    request = fork_request()
    with control, theirs:
        link = TemplateLink(loop, listener, Preload(("json",), {}, str(tmp_path), str(tmp_path)), "log", TemplateProcess(0, -1, control))
        link.ready = True
        before = len(os.listdir("/proc/self/fd"))
        with room_for(more):
            link.fork(request)
            assert listener.refused == [(request, "the template cannot be asked: Too many open files")]
        assert len(os.listdir("/proc/self/fd")) == before
        loop.forget(control)
    loop._selector.close()


def test_forks_of_a_dead_template_are_ended_before_their_tasks_are_started_once_more(tmp_path: Path) -> None:
    """To start a task takes a while, in which a fork that has announced itself last would run its program."""
    loop = Loop()
    alive: list[list[int]] = []
    lifelines: list[int] = []
    control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, subprocess.Popen(["sleep", "1000"], start_new_session=True) as template:
        listener: Any = Listener()
        listener.on_refused = lambda *_: alive.append([fd for fd in lifelines if select.select([fd], [], [], 0) == ([], [], [])])
        preload = Preload(("json",), {}, str(tmp_path), str(tmp_path))
        link = TemplateLink(loop, listener, preload, "log", TemplateProcess(template.pid, os.dup(1), control))
        link.ready = True
        for _ in range(2):
            link.fork(fork_request())
        received = [fd for _ in range(2) for fd in socket.recv_fds(theirs, 1000, 2)[1]]
        lifelines += received[1::2]
        link.close()
    assert alive == [[], []]
    for fd in received:
        os.close(fd)
    loop._selector.close()


def test_pings_without_an_answer_are_counted_and_not_the_time(tmp_path: Path) -> None:
    """An agent that was stopped for an hour has sent none, so its template is not killed for that hour."""
    loop = Loop()
    control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener: Any = Listener()
    preload = Preload(("json",), {}, str(tmp_path), str(tmp_path))
    with control, theirs, subprocess.Popen(["sleep", "1000"]) as template:
        link = TemplateLink(loop, listener, preload, "log", TemplateProcess(template.pid, -1, control))
        for is_ready in (False, True, True):
            link.ready = is_ready
            for _ in range(MOST_PINGS):
                link.poll()
            theirs.send(b'{"pong": true}')
            loop._wait(0.0)
        for _ in range(MOST_PINGS):
            link.poll()
        assert template.poll() is None
        link.poll()
        assert template.wait() == -signal.SIGKILL
        loop.forget(control)
    loop._selector.close()
