"""Tasks on their way to a process, as the agent keeps them."""

from __future__ import annotations

import os
import resource
import socket
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.live import room_for
from worker.directory import Directory
from worker.host.loop import Loop
from worker.host.tasks import import_environment, processes
from worker.host.tasks.launcher import Birth, Starter
from worker.host.tasks.log_files import TaskOutput
from worker.host.template.template_choice import Templates
from worker.host.template.template_client import Fork, Running, Start, Template
from worker.protocol import messages

NOBODY = (0, 0)


def birth_of(name: str, directory: Path) -> Birth:
    program = messages.Program("serve")
    order = messages.TaskOrder(name, 1, program, str(directory), name)
    told = messages.BootstrapOrder(name, program, None, str(directory))
    return Birth(order, TaskOutput(name, 1, Directory(str(directory)), ""), told, {"TZ": "UTC", "ORCH_TASK": name})


def refuse(*_: Any) -> NoReturn:
    raise processes.SpawnError("not here")


def count_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_tasks_on_their_way_are_told_apart_by_what_they_are_and_not_by_what_they_hold(tmp_path: Path) -> None:
    """Each holds a whole environment, and is looked for among all."""
    one, other = birth_of("worker-0", tmp_path), birth_of("worker-0", tmp_path)
    assert one != other
    assert len({Fork({}, print, print), Fork({}, print, print)}) == 2


def test_what_decides_on_a_template_is_looked_for_once_for_each_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    frozen = import_environment.frozen
    monkeypatch.setattr(import_environment, "frozen", lambda *words: asked.append(words) or frozen(*words))
    monkeypatch.setattr(processes, "spawn", refuse)
    loop = Loop()
    failed: list[Birth] = []
    templates = Templates(loop, NOBODY, lambda *_: None, lambda *_: None)
    starter = Starter(loop, templates, NOBODY, lambda *_: None, lambda birth, why: failed.append(birth), lambda *_: None, print)
    assert templates.add(Start({}, ("json",), str(tmp_path), str(tmp_path))) is None
    asked.clear()
    starter.start([birth_of(f"worker-{index}", tmp_path) for index in range(4)])
    assert len(failed) == len(asked) == 4
    loop._selector.close()


@pytest.mark.parametrize("more", range(3))
def test_too_many_open_files_cost_a_fork_and_not_the_host(tmp_path: Path, more: int) -> None:
    loop = Loop()
    control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    refused: list[str] = []
    with control, theirs:
        start = Start({}, ("json",), str(tmp_path), str(tmp_path))
        template = Template(loop, start, "log", lambda *_: None, lambda *_: None, Running(0, -1, control))
        template.ready = True
        before = count_files()
        with room_for(more):
            template.fork(Fork({}, lambda *_: None, refused.append))
            assert refused == ["the template cannot be asked: Too many open files"]
        assert count_files() == before
        loop.forget(control)
    loop._selector.close()


@pytest.mark.parametrize("more", range(4))
def test_a_program_that_there_are_no_descriptors_for_leaves_none_behind(tmp_path: Path, more: int) -> None:
    log = str(tmp_path / "log")
    before = count_files()
    with room_for(more), pytest.raises(OSError, match="Too many open files"):
        processes.spawn(processes.Command(("true",), str(tmp_path), {}, log, log), NOBODY)
    assert count_files() == before


@pytest.mark.parametrize(
    ("argv", "env", "why"),
    [(("true", "a\0b"), {}, "true: embedded null byte"), (("true",), {"A=B": ""}, "true: illegal environment variable name")],
)
def test_a_program_that_no_kernel_would_take_is_refused_with_the_reason(
    tmp_path: Path, argv: tuple[str, ...], env: dict[str, str], why: str
) -> None:
    log, limits = str(tmp_path / "log"), resource.getrlimit(resource.RLIMIT_NOFILE)
    with pytest.raises(processes.SpawnError, match=f"^{why}$"):
        processes.spawn(processes.Command(argv, str(tmp_path), env, log, log), limits)
