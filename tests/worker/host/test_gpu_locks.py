"""Which run has which GPUs: what an agent may hold beside others, and what is left of those that are gone."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from worker.host.facts import gpu_locks
from worker.host.facts.gpu_locks import GpuLocks
from worker.protocol.messages import GpuHolder, TakeGpus
from worker.values.codec import from_json, to_json

ALL = ("a", "b", "c", "MIG-a/1/0")


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(gpu_locks, "PLACE", str(tmp_path))
    return tmp_path / f"orch-gpus-{os.geteuid()}"


@pytest.fixture
def agents() -> Iterator[tuple[GpuLocks, GpuLocks, GpuLocks]]:
    """Three agents; the kernel tells their open files apart, though they live in one process."""
    three = GpuLocks(ALL), GpuLocks(ALL), GpuLocks(ALL)
    yield three
    for one in three:
        one.close()


def test_a_claim_is_taken_as_a_whole_or_not_at_all(directory: Path, agents: tuple[GpuLocks, GpuLocks, GpuLocks]) -> None:
    first, second, third = agents
    assert first.holders() == ()
    assert first.acquire("one", TakeGpus(("a",))) == ()
    held = (GpuHolder("a", "one", os.getpid()),)
    assert first.holders() == held == second.holders()
    assert second.acquire("two", TakeGpus(("b", "a"))) == held
    assert third.holders() == held  # nothing of a refused claim is held
    assert second.acquire("two", TakeGpus(("b",))) == ()
    assert second.acquire("two", TakeGpus(("c",))) == ()  # in place of b
    assert third.acquire("three", TakeGpus(("b",))) == ()
    assert third.acquire("three", TakeGpus(("MIG-a/1/0",))) == ()
    assert [holder.uuid for holder in second.holders()] == ["a", "c", "MIG-a/1/0"]
    for one in agents:
        one.close()
    assert first.holders() == ()
    assert directory.stat().st_mode & 0o777 == 0o700


def test_only_those_who_all_share_have_one_gpu_together(directory: Path, agents: tuple[GpuLocks, GpuLocks, GpuLocks]) -> None:
    first, second, third = agents
    assert first.acquire("one", TakeGpus(shared=("a",))) == ()
    assert second.acquire("two", TakeGpus(("b",), ("a",))) == ()
    assert {(holder.run_id, holder.uuid, holder.shares) for holder in third.acquire("three", TakeGpus(("a",)))} == {
        ("one", "a", True),
        ("two", "a", True),
        ("two", "b", False),
    }
    assert third.acquire("three", TakeGpus(shared=("b",))) != ()


def test_what_the_dead_have_left_holds_nothing(directory: Path, agents: tuple[GpuLocks, GpuLocks, GpuLocks]) -> None:
    child = os.fork()
    if not child:
        GpuLocks().acquire("dead", TakeGpus(("a",)))
        os._exit(0)
    os.waitpid(child, 0)
    assert "dead" in (directory / "a").read_text()
    assert agents[0].holders() == ()
    assert agents[0].acquire("one", TakeGpus(("a",))) == ()
    assert agents[1].holders() == (GpuHolder("a", "one", os.getpid()),)


def test_a_directory_that_others_can_enter_is_not_believed(directory: Path, agents: tuple[GpuLocks, GpuLocks, GpuLocks]) -> None:
    directory.mkdir()
    directory.chmod(0o755)
    assert agents[0].acquire("one", TakeGpus(("a",))) == ()  # the run goes on, as it did without any claims
    assert agents[0].problem.startswith("cannot lock GPUs, so two runs may share one by accident: it must be")
    assert str(directory) in agents[0].problem
    assert list(directory.iterdir()) == []


def test_a_link_in_place_of_the_directory_is_not_followed(
    directory: Path, agents: tuple[GpuLocks, GpuLocks, GpuLocks], tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    directory.symlink_to("elsewhere")
    assert agents[0].acquire("one", TakeGpus(("a",))) == ()
    assert "must be a directory" in agents[0].problem
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_an_agent_that_was_stopped_before_it_wrote_its_name_is_an_unknown_holder(
    directory: Path, agents: tuple[GpuLocks, GpuLocks, GpuLocks]
) -> None:
    agents[0].acquire("one", TakeGpus(("a",)))
    os.truncate(directory / "a", 0)
    (holder,) = agents[1].acquire("two", TakeGpus(("a",)))
    assert holder == GpuHolder("a", "unknown", 0)
    assert from_json(GpuHolder, to_json(holder)) == holder, "the controller takes the frame"


def test_runs_with_different_directories_for_temporary_files_see_each_other(
    directory: Path, agents: tuple[GpuLocks, GpuLocks, GpuLocks], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheduler often gives each job one of its own."""
    for agent, name in zip(agents[:2], ("one", "two"), strict=True):
        (tmp_path / name).mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / name))
        assert agent.acquire(name, TakeGpus(("a",))) == (() if name == "one" else (GpuHolder("a", "one", os.getpid()),))
    monkeypatch.setattr(gpu_locks, "PLACE", str(tmp_path / "nowhere"))
    assert agents[2].acquire("three", TakeGpus(("a",))) == ()
    assert [path.name for path in (tmp_path / "two").iterdir()] == [directory.name], "where the usual place cannot be written to"
