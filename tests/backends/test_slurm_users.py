"""Two users of a Slurm: neither ends what is the other's, and neither reads it unasked. No TensorFlow."""

from __future__ import annotations

import json
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.conftest import Completed, Orch
from tests.live import is_alive, wait_for_file, wait_until, write_script
from tests.slurm_bed import SlurmBed, User
from tests.slurm_runs import SLEEP

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]


class Person(User):
    def __init__(self, orch: Orch, slurm: SlurmBed, name: str) -> None:
        super().__init__(slurm, name)
        self._orch = orch
        write_script(self.home, SLEEP)
        (self.home / "orch.yaml").write_text("{preload: [], backend: {type: slurm, nodes: 1}, timeouts: {grace_s: 2}}\n")

    def __call__(self, *words: str, home: Path | None = None, check: int | None = None) -> Completed:
        env = {**self.env, "ORCH_HOME": str((home or self.home) / ".orch"), "XDG_STATE_HOME": str(self.home / "state")}
        return self._orch.start(*words, cwd=self.home, by=self.by, env=env).wait(check=check)

    def submit(self) -> tuple[str, psutil.Process]:
        """The name of a run whose task is ready, and the process of this task."""
        name = self("up", "script.py", "-d", check=0).out.strip()
        return name, psutil.Process(int(wait_for_file(self.home / "worker-0.ready")))


@pytest.fixture
def people(orch: Orch, slurm: SlurmBed) -> Iterator[tuple[Person, Person]]:
    yield Person(orch, slurm, "games"), Person(orch, slurm, "bin")
    shutil.rmtree(slurm.root / "homes")


def test_a_run_belongs_to_its_user(people: tuple[Person, Person], slurm: SlurmBed) -> None:
    one, other = people
    (name, task), (others_name, others_task) = one.submit(), other.submit()
    assert set(slurm.jobs().values()) == {"RUNNING"}
    assert [task.uids().real, others_task.uids().real] == [one.account.pw_uid, other.account.pw_uid]
    kept = [one.home / ".orch", *(one.home / ".orch").rglob("*"), *one.home.glob("orch-agent-*")]
    assert not [str(path) for path in kept if _is_open(path)], "directories are 0700 and files 0600, also what the agent has in TMPDIR"
    assert kept[-1].name.startswith("orch-agent-")

    # The directory is closed.
    for command in ("ps", "down", "logs"):
        done = other(command, name, home=one.home, check=125)
        assert done.err == f"error: the runs in {one.home}/.orch cannot be read: Permission denied\n", done

    # The user lets others look: so they can, and no more.
    for path in ((one.home / ".orch"), *(one.home / ".orch").rglob("*")):
        path.chmod(path.stat().st_mode | (0o055 if path.is_dir() else 0o044), follow_symlinks=path.is_symlink())
    assert "running" in other("ps", name, home=one.home, check=0).out
    done = other("down", name, home=one.home)
    assert done.code not in (0, 143), done
    assert "belongs to another user, whose settings may name any program: its engine is not asked" in done.err, done
    assert len(done.err.splitlines()) == 1, done
    job = json.loads((one.home / ".orch/runs" / name / "submission.json").read_text())["job"]
    assert is_alive(task)

    # Each ends what is his or her own.
    one("down", name, check=0)
    wait_until(lambda: job not in slurm.jobs(), "end of the job")
    assert is_alive(others_task)
    other("down", others_name, check=0)
    one("wait", name, check=143)
    other("wait", others_name, check=143)


def _is_open(path: Path) -> bool:
    """Whether others than its owner may do anything with a file. A link has no mode of its own."""
    return not path.is_symlink() and bool(stat.S_IMODE(path.stat().st_mode) & 0o077)
