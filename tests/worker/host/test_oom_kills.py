"""The kernel's own count of kills for want of memory, v1 and v2, from made-up trees and from a real one."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Orch
from tests.live import LiveRun, write_script
from worker.host import oom_kills
from worker.host.oom_kills import OomCounter
from worker.machine.kernel_files import CGROUPS

V1 = "12:pids:/job\n4:memory,hugetlb:{path}\n0::/job\n"
V2 = "0::{path}\n"


class Tree:
    """A /proc/self and a cgroup hierarchy of our own."""

    def __init__(self, root: Path, version: int, path: str = "/job", inside: str = "/job") -> None:
        self._proc, self._cgroups = root / "proc", root / "cgroup"
        self.group = self._cgroups / ("memory" if version == 1 else "") / inside.lstrip("/")
        for directory in (self._proc, self.group):
            directory.mkdir(parents=True)
        (self._proc / "cgroup").write_text((V1 if version == 1 else V2).format(path=path))
        self._version = version
        self.count(0)

    def counter(self) -> OomCounter:
        return OomCounter(str(self._proc), str(self._cgroups))

    def found(self) -> str:
        return oom_kills.find_counter(str(self._proc), str(self._cgroups))

    def count(self, kills: int) -> None:
        if self._version == 1:
            (self.group / "memory.oom_control").write_text(f"oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n")
        else:
            (self.group / "memory.events").write_text(f"low 0\nhigh 0\nmax 9\noom 9\noom_kill {kills}\noom_group_kill 0\n")


@pytest.mark.parametrize("version", [1, 2])
def test_a_kill_that_was_counted_explains_one_end(tmp_path: Path, version: int) -> None:
    tree = Tree(tmp_path, version)
    counter = tree.counter()
    assert counter.claim() == ""
    tree.count(2)
    counter.poll()
    expected = "the kernel killed a process in its memory cgroup"
    assert [counter.claim() for _ in range(3)] == [expected, expected, ""]


def test_what_was_counted_before_or_long_ago_explains_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = Tree(tmp_path, 2)
    tree.count(5)
    counter = tree.counter()
    assert counter.claim() == ""
    tree.count(6)
    counter.poll()
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + oom_kills.WINDOW_S + 1)
    assert counter.claim() == ""


def test_a_counter_that_cannot_be_read_for_once_is_where_it_was(tmp_path: Path) -> None:
    tree = Tree(tmp_path, 2)
    tree.count(5)
    counter = tree.counter()
    aside = (tree.group / "memory.events").rename(tmp_path / "aside")
    assert counter.claim() == ""
    aside.rename(tree.group / "memory.events")
    assert counter.claim() == ""
    tree.count(6)
    assert counter.claim()
    assert counter.claim() == ""


def test_a_counter_that_cannot_be_read_at_first_explains_nothing_until_it_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = Tree(tmp_path, 2)
    tree.count(5)
    path = tree.found()
    (tree.group / "memory.events").unlink()
    monkeypatch.setattr(oom_kills, "find_counter", lambda *_: path)
    counter = tree.counter()
    tree.count(5)
    assert counter.claim() == ""
    tree.count(6)
    assert counter.claim()


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("path", "inside"),
    [
        ("/docker/abc", "/"),  # the container's own group is the root of what it has mounted
        ("/../../kubepods/pod1", "/"),  # a name from outside the cgroup namespace
        ("/", "/"),
    ],
)
def test_a_container_finds_its_own_group(tmp_path: Path, version: int, path: str, inside: str) -> None:
    tree = Tree(tmp_path, version, path, inside)
    assert Path(tree.found()).parent.resolve() == tree.group


def test_where_nothing_is_counted_nothing_is_claimed(tmp_path: Path) -> None:
    assert OomCounter(str(tmp_path)).claim() == ""
    tree = Tree(tmp_path, 2)
    (tree.group / "memory.events").unlink()  # the root of v2 has no such file
    assert tree.counter().claim() == ""


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A memory cgroup of 250 MiB, in this machine's real hierarchy."""
    found = oom_kills.find_counter()
    if not found:
        pytest.skip("NOT TESTED: this machine has no memory cgroup whose kills are counted")
    is_first = found.endswith("memory.oom_control")
    point = Path(CGROUPS, "memory" if is_first else "")
    group = point / f"orch-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / ("memory.limit_in_bytes" if is_first else "memory.max")).write_text(str(250 << 20))
        for name, limit in (("memory.swap.max", 0), ("memory.memsw.limit_in_bytes", 250 << 20)):  # nor may it swap
            if (group / name).exists():
                (group / name).write_text(str(limit))
    except OSError as error:
        if group.exists():
            group.rmdir()
        pytest.skip(f"NOT TESTED: no memory cgroup can be made here ({error})")
    yield group
    group.rmdir()


@pytest.mark.root
def test_a_task_that_the_kernel_kills_for_want_of_memory_is_told_from_one_that_a_person_kills(
    orch: Orch, tmp_path: Path, small_group: Path
) -> None:
    write_script(
        tmp_path,
        """
        if TASK == "worker-1":
            wait_for("worker-0.ready")
            if Path("greedy").exists():
                hog = bytearray(600 << 20)
                for i in range(0, len(hog), 4096):
                    hog[i] = 1
            os.kill(os.getpid(), signal.SIGKILL)
        ready()
        sleep()
        """,
    )
    (tmp_path / "greedy").touch()
    command = [sys.executable, "-m", "orchestrator", "up", "script.py", "-n", "2", "--set", "timeouts.grace_s=0.2"]
    into = f'echo $$ > {small_group}/cgroup.procs && exec "$@"'
    done = subprocess.run(["sh", "-c", into, "sh", *command], cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 137, done.stderr
    assert "fix: likely out of memory: the kernel killed a process in its memory cgroup; give" in done.stderr
    cause = LiveRun(tmp_path).cause()
    assert (cause["task"], cause["code"]) == ("worker-1", 137)
    assert cause["remedy"].startswith("likely out of memory")
    (tmp_path / "greedy").unlink()
    assert "out of memory" not in orch("up", "script.py", "-n", "2", "--set", "timeouts.grace_s=0.2", check=137).err
