"""Directories that agents keep, share and take away from one another: worker/, the working directory, their own. Real files and locks."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from worker.host import code_store, remote_entry, scratch_directory
from worker.protocol.messages import Code, CodeFile

OLD_S = 1.0
"""The time of a directory that nobody has used for long."""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "orch"


@pytest.fixture(autouse=True)
def _release() -> Iterator[None]:
    """Give back the locks that an agent holds until it ends."""
    yield
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if "/.lock" in os.readlink(f"/proc/self/fd/{name}"):
                os.close(int(name))


def while_it_is_removed(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Have something happen when the first directory is about to be removed."""
    remove, acts = shutil.rmtree, [act]

    def rmtree(*arguments: Any, **named: Any) -> None:
        while acts:
            acts.pop()()
        remove(*arguments, **named)

    monkeypatch.setattr(shutil, "rmtree", rmtree)


def is_held(directory: Path) -> bool:
    with open(directory / ".lock") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_an_agent_that_comes_while_an_old_worker_is_removed_has_its_own(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"host/start_agent.py": "text"}
    old = cache / "worker-old"
    (old / "host").mkdir(parents=True, mode=0o700)
    (old / "host/start_agent.py").write_text("text")
    (old / ".lock").touch()
    os.utime(old, (OLD_S, OLD_S))
    came: list[str] = []
    while_it_is_removed(monkeypatch, lambda: came.append(remote_entry._settle("worker-old", files)[0]))
    remote_entry._settle("worker-new", files)
    assert (Path(came[0]) / "host/start_agent.py").read_text() == "text"
    assert is_held(Path(came[0]))
    assert is_held(cache / "worker-new")


def test_an_agent_that_comes_while_an_old_working_directory_is_removed_has_its_own(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = b"print()\n"
    file = CodeFile("script.py", hashlib.sha256(text).hexdigest(), len(text), False)
    stores = [code_store.CodeStore(Code(digest * 64, (file,))) for digest in "ab"]

    def receive(store: code_store.CodeStore) -> Path:
        store.begin()
        for wanted in store.find_missing():
            store.add_part(wanted, text, last=True)
        return Path(store.finish())

    first = receive(stores[0])
    stores[0].close()
    os.utime(first, (OLD_S, OLD_S))
    came: list[Path] = []
    again = code_store.CodeStore(Code("a" * 64, (file,)))
    while_it_is_removed(monkeypatch, lambda: came.append(receive(again)))
    receive(stores[1])
    assert (came[0] / "script.py").read_bytes() == text
    assert is_held(came[0])
    assert [path for path in (cache / "code").iterdir() if path not in (came[0], Path(stores[1].path))] == []


def test_what_a_dead_agent_with_our_pid_has_left_of_a_content_is_none_of_it(cache: Path) -> None:
    text = b"print()\n"
    file = CodeFile("script.py", hashlib.sha256(text).hexdigest(), len(text), False)
    stores = [code_store.CodeStore(Code("a" * 64, (file,))) for _ in range(2)]
    for store in stores:
        store.begin()
        (wanted,) = store.find_missing()
        store.add_part(wanted, text[:3], last=False)
    stores[1].add_part(file.digest, text[3:5], last=False)
    stores[1].add_part(file.digest, text[5:], last=True)
    assert (Path(stores[1].finish()) / "script.py").read_bytes() == text


def test_a_content_of_which_the_rest_never_comes_is_not_kept_for_weeks(cache: Path) -> None:
    store = code_store.CodeStore(Code("a" * 64, (CodeFile("data", "b" * 64, 6, executable=False),)))
    store.begin()
    store.add_part("b" * 64, b"one", last=False)
    assert list(cache.rglob("tmp*"))
    store.close()
    assert not list(cache.rglob("tmp*"))


def test_what_somebody_holds_is_not_removed(tmp_path: Path) -> None:
    fd = remote_entry.lock(str(tmp_path), fcntl.LOCK_SH)
    with pytest.raises(OSError, match="unavailable"):
        remote_entry.remove_unheld(str(tmp_path))
    assert tmp_path.exists()
    os.close(fd)


def test_agents_that_begin_together_do_not_take_each_other_for_dead(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    flock, others = fcntl.flock, [scratch_directory.make]
    made: list[str] = []

    def meanwhile(*arguments: Any) -> None:
        while others:  # between the first one's open() and its flock()
            made.append(others.pop()())
        flock(*arguments)

    monkeypatch.setattr(fcntl, "flock", meanwhile)
    made.append(scratch_directory.make())
    monkeypatch.setattr(fcntl, "flock", flock)
    assert [is_held(Path(path)) for path in made] == [True, True]
    assert {str(path) for path in tmp_path.iterdir()} == set(made)


def test_a_dead_agents_directory_is_taken_away_and_a_living_ones_is_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    living = scratch_directory.make()
    dead = tmp_path / "orch-agent-dead"
    (dead / "attempt-1").mkdir(parents=True)
    (dead / ".lock").touch()
    third = scratch_directory.make()
    assert {str(path) for path in tmp_path.iterdir()} == {living, third}


def test_a_link_that_has_the_name_of_a_dead_agents_directory_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every user may make one in the directory for temporary files, which leads to a directory of this user."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    (tmp_path / "own").mkdir()
    (tmp_path / "own/.lock").touch()
    (tmp_path / "tmp/orch-agent-dead").symlink_to(tmp_path / "own")
    scratch_directory.make()
    assert (tmp_path / "tmp/orch-agent-dead").is_symlink()
    assert (tmp_path / "own/.lock").exists()


def store_of(*names: str, text: bytes = b"print()\n") -> code_store.CodeStore:
    digest = hashlib.sha256(text).hexdigest()
    return code_store.CodeStore(Code("a" * 64, tuple(CodeFile(name, digest, len(text), False) for name in names)))


def receive(store: code_store.CodeStore, text: bytes = b"print()\n") -> Path:
    store.begin()
    for wanted in store.find_missing():
        store.add_part(wanted, text, last=True)
    return Path(store.finish())


def test_a_file_may_have_the_longest_name(cache: Path) -> None:
    name = "é" * 127 + "x"
    assert (receive(store_of(name)) / name).read_bytes() == b"print()\n"
    with pytest.raises(code_store.CodeError, match=r"^sub/x{256} cannot be kept in .*: File name too long$"):
        receive(store_of("sub/" + "x" * 256))


@pytest.mark.parametrize("link", ["", "sub", "sub/deeper"])
def test_a_directory_that_a_task_has_replaced_by_a_link_is_made_anew(cache: Path, tmp_path: Path, link: str) -> None:
    """The next run with the same code must not write where the link leads."""
    name = "sub/deeper/x.txt"
    directory = receive(store_of(name))
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(directory, elsewhere)
    shutil.rmtree(directory / link)
    (directory / link).symlink_to(elsewhere / link)
    for path in elsewhere.rglob("x.txt"):
        path.write_text("of the user")
    again = receive(store_of(name))
    assert again == directory
    assert (again / name).read_bytes() == b"print()\n"
    assert not (again / link).is_symlink()
    assert (elsewhere / name).read_text() == "of the user"


@pytest.mark.parametrize("odd", ["mkfifo", "ln -s /dev/zero"])
def test_a_file_that_a_task_has_replaced_is_put_there_anew(cache: Path, odd: str) -> None:
    directory = receive(store_of("empty", text=b""), b"")
    (directory / "empty").unlink()
    subprocess.run([*odd.split(), "empty"], cwd=directory, check=True)
    receive(store_of("empty", text=b""), b"")
    assert (directory / "empty").read_bytes() == b""
    assert (directory / "empty").is_file()
