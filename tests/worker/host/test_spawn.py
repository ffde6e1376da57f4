"""Programs that cannot be executed: descriptors are given back, and the reason is said."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from tests.live import room_for
from worker.host.processes.spawn import Command, SpawnError, spawn


def count_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("more", range(4))
def test_a_program_that_there_are_no_descriptors_for_leaves_none_behind(tmp_path: Path, more: int) -> None:
    log = str(tmp_path / "log")
    before = count_files()
    with room_for(more), pytest.raises(SpawnError, match=r"^no process .*: Too many open files; raise the limit of open files"):
        spawn(Command(("true",), str(tmp_path), {}, log, log), (0, 0))
    assert count_files() == before


@pytest.mark.parametrize(
    ("argv", "env", "why"),
    [(("true", "a\0b"), {}, "true: embedded null byte"), (("true",), {"A=B": ""}, "true: illegal environment variable name")],
)
def test_a_program_that_no_kernel_would_take_is_refused_with_the_reason(
    tmp_path: Path, argv: tuple[str, ...], env: dict[str, str], why: str
) -> None:
    log, limits = str(tmp_path / "log"), resource.getrlimit(resource.RLIMIT_NOFILE)
    with pytest.raises(SpawnError, match=f"^{why}$"):
        spawn(Command(argv, str(tmp_path), env, log, log), limits)
