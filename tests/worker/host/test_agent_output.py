"""The agent hands on what its tasks write, to a controller that is quick, slow, silent or dead. No task ever waits for it."""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.live import wait_for_file
from tests.worker.controller_double import AgentProcess
from worker.host import log_forwarder
from worker.host.log_files import Inotify, TaskOutput
from worker.host.network.link import Link
from worker.host.processes.loop import Loop
from worker.machine.directory import Directory
from worker.protocol import messages
from worker.protocol.channel import encode
from worker.protocol.task_id import STACKS

MEGABYTE = 1024 * 1024
WRITE = "head -c {size} /dev/zero | tr '\\0' x; printf end"


def acknowledge_to_end(agent: AgentProcess) -> None:
    """Acknowledge what has come and what comes, until the last byte of `WRITE` is there."""
    done = 0
    while True:
        come = sum(len(data) for frame, data in agent.frames if isinstance(frame, messages.Output))
        if come > done:
            agent.order(messages.Ack(come - done))
            done = come
        if agent.output("worker-0").endswith(b"end"):
            return
        assert agent.read()


def test_the_bytes_come_in_order_to_a_controller_that_does_not_see_the_files(agent: AgentProcess) -> None:
    agent.hello(shared_dir=None)
    agent.start("for i in 1 2 3; do echo out $i; echo err $i >&2; sleep 0.03; done; printf partial")
    agent.wait_for(messages.TaskSwept)
    assert agent.output("worker-0") == b"out 1\nout 2\nout 3\npartial"
    assert agent.output("worker-0", "stderr") == b"err 1\nerr 2\nerr 3\n"
    kinds = [type(frame) for frame, _ in agent.frames]
    assert max(i for i, kind in enumerate(kinds) if kind is messages.Output) < kinds.index(messages.TaskExited)


def test_a_controller_that_does_not_acknowledge_holds_up_no_task(agent: AgentProcess) -> None:
    agent.hello(shared_dir=None)
    agent.start(WRITE.format(size=8 * MEGABYTE))
    agent.wait_for(messages.TaskSwept)
    assert len(agent.output("worker-0")) == log_forwarder.CREDIT
    acknowledge_to_end(agent)
    assert agent.output("worker-0") == b"x" * 8 * MEGABYTE + b"end"


def test_a_controller_that_does_not_read_holds_up_no_task(agent: AgentProcess, tmp_path: Path) -> None:
    """Its pipe is full; the task ends nevertheless, and the rest comes when it reads again."""
    agent.hello(shared_dir=None)
    agent.start(f"{WRITE.format(size=8 * MEGABYTE)}; : > written")
    wait_for_file(tmp_path / "written")
    acknowledge_to_end(agent)
    assert agent.output("worker-0") == b"x" * 8 * MEGABYTE + b"end"


def test_a_task_that_writes_64_megabytes(agent: AgentProcess) -> None:
    agent.hello(shared_dir=None)
    agent.start(WRITE.format(size=64 * MEGABYTE))
    found, tail = 0, b""
    while tail[-3:] != b"end":
        for frame, data in agent.read():
            if isinstance(frame, messages.Output):
                assert frame.offset == found
                assert not data.strip(b"x") or data.strip(b"x") in (b"e", b"en", b"end", b"nd", b"d")
                found += len(data)
                tail = (tail + data)[-3:]
                agent.order(messages.Ack(len(data)))
        agent.frames.clear()
    assert found == 64 * MEGABYTE + 3


def test_one_loud_task_does_not_silence_the_others_for_good(agent: AgentProcess) -> None:
    agent.hello(shared_dir=None)
    agent.start(WRITE.format(size=8 * MEGABYTE), "echo quiet")
    acknowledge_to_end(agent)
    if agent.output("worker-1") != b"quiet\n":
        agent.order(messages.Ack(MEGABYTE))
        agent.wait_for(messages.Output, lambda frame: frame.task == "worker-1")
    assert agent.output("worker-1") == b"quiet\n"


def test_a_bye_still_brings_the_rest(agent: AgentProcess) -> None:
    agent.hello(shared_dir=None)
    agent.start(WRITE.format(size=3 * MEGABYTE))
    agent.wait_for(messages.TaskSwept)
    agent.order(messages.Bye())
    acknowledge_to_end(agent)
    agent.read_to_end()
    assert agent.wait() == 0
    assert agent.output("worker-0") == b"x" * 3 * MEGABYTE + b"end"


def test_a_controller_that_dies_after_its_bye_leaves_no_agent(agent: AgentProcess) -> None:
    """Output is still owed, and nobody will ever acknowledge it."""
    agent.hello(shared_dir=None)
    agent.start(WRITE.format(size=3 * MEGABYTE))
    agent.wait_for(messages.TaskSwept)
    agent.order(messages.Bye())
    agent.stdin.close()
    agent.stdout.close()
    assert agent.wait() == 1


def test_what_it_kept_on_its_own_disk_goes_with_it(start_agent: Callable[[], AgentProcess]) -> None:
    before = set(Path(tempfile.gettempdir()).glob("orch-agent-*"))
    for dies in (False, True):
        agent = start_agent()
        agent.hello(shared_dir=None)
        agent.start("exec sleep 1000")
        agent.wait_for(messages.TaskStarted)
        assert len(set(Path(tempfile.gettempdir()).glob("orch-agent-*")) - before) == 1
        if dies:
            agent.stdin.close()
        else:
            agent.order(messages.Bye())
        agent.wait()
        assert set(Path(tempfile.gettempdir()).glob("orch-agent-*")) == before


def test_where_the_kernel_does_not_tell_it_looks(start_agent: Callable[[], AgentProcess], tmp_path: Path) -> None:
    """All inotify instances of this user are taken: the output still comes, while the task runs."""
    instances = take_all_inotify_instances()
    try:
        agent = start_agent()
        agent.hello()
    finally:
        for fd in instances:
            os.close(fd)
    agent.start("echo early; while ! [ -e go ]; do sleep 0.01; done; echo late")
    agent.wait_for(messages.Output, lambda frame: frame.offset == 6)
    assert not agent.all(messages.TaskExited)
    (tmp_path / "go").touch()
    agent.wait_for(messages.TaskSwept)
    assert [frame.offset for frame in agent.all(messages.Output)][-1] == 11


def take_all_inotify_instances() -> list[int]:
    import ctypes

    limit = int(Path("/proc/sys/fs/inotify/max_user_instances").read_text())
    if limit > min(2000, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 200):
        pytest.skip(f"NOT TESTED: this user may have {limit} inotify instances, and we not so many open files")
    libc = ctypes.CDLL(None, use_errno=True)
    found = []
    while (fd := libc.inotify_init1(os.O_CLOEXEC)) >= 0:
        found.append(fd)
    return found


def test_a_log_directory_that_vanishes_is_no_end(agent: AgentProcess, tmp_path: Path) -> None:
    agent.hello()
    agent.start("echo one; while ! [ -e go ]; do sleep 0.01; done; echo two; exit 3")
    agent.wait_for(messages.Output)
    shutil.rmtree(tmp_path / "attempt-1")
    (tmp_path / "go").touch()
    assert agent.wait_for(messages.TaskExited).code == 3
    agent.wait_for(messages.TaskSwept)


def test_a_task_that_never_stops_writing_does_not_keep_the_others_waiting(agent: AgentProcess) -> None:
    agent.hello(shared_dir=None)
    agent.start("yes", "sleep 0.2; echo here I am")
    done = 0
    while agent.output("worker-1") != b"here I am\n":
        come = sum(len(data) for frame, data in agent.frames if isinstance(frame, messages.Output))
        if come > done:
            agent.order(messages.Ack(come - done))
            done = come
        assert agent.read()
    agent.order(messages.StopTasks(("worker-0",), 0.0))


def test_stacks_are_handed_on_as_well(agent: AgentProcess) -> None:
    agent.hello(shared_dir=None)
    agent.start('echo where >> "$ORCH_LOG_DIR/stacks.txt"')
    agent.wait_for(messages.TaskSwept)
    assert agent.output("worker-0", STACKS) == b"where\n"


def test_a_log_that_is_gone_was_not_cut_short(tmp_path: Path) -> None:
    """The run directory was moved or removed: the task has done nothing wrong."""
    output = TaskOutput("worker-0", 1, Directory(str(tmp_path)), "")
    (tmp_path / "stdout.log").write_text("lines")
    output.sent["stdout"] = output.size("stdout")
    (tmp_path / "stdout.log").unlink()
    assert not output.check_shorter()
    (tmp_path / "stdout.log").write_text("line")
    assert output.check_shorter()


def test_the_kernel_names_the_files_that_have_grown(tmp_path: Path) -> None:
    inotify = Inotify()
    watches = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        watches.append(inotify.add(str(tmp_path / name)))
    names = {"stdout.log", "a file of the task with a long näme"}
    for name in names:
        (tmp_path / "other" / name).write_text("grown")
        (tmp_path / "other" / name).write_text("grown again")
    assert inotify.read() == ({watches[1]: names}, False)
    assert inotify.read() == ({}, False)
    os.close(inotify.fileno())


def test_what_is_sent_together_is_written_together() -> None:
    """64 tasks that report all the time would otherwise cost 64 calls, and wake their controller as often."""
    loop = Loop()
    (orders, order), (read, frames) = os.pipe(), os.pipe()
    os.set_blocking(read, False)
    link = Link(loop, orders, frames, lambda *_: None, lambda: None)
    notes = [messages.RunNoted(str(number), 1.0) for number in range(3)]
    with link.gathered():
        link.send(notes[0])
        with link.gathered():
            link.send(notes[1])
        with pytest.raises(BlockingIOError):
            os.read(read, 1)
    assert os.read(read, 4096) == encode(notes[0]) + encode(notes[1])
    link.send(notes[2])
    assert os.read(read, 4096) == encode(notes[2])
    loop._selector.close()
    for fd in (orders, order, read, frames):
        os.close(fd)
